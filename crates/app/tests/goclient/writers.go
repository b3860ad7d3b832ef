package main

import (
	"context"
	"fmt"
	"math/rand"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

const keysPerWriter = 8

// A writer changes its own keys, one write after the other, and notes in the ledger what came of each.
type writer struct {
	name   string
	to     resource
	notes  *ledger
	random *rand.Rand
	seqs   map[string]int
	exists map[string]bool
}

func newWriter(name string, to resource, notes *ledger, seed int64) *writer {
	return &writer{name: name, to: to, notes: notes, random: rand.New(rand.NewSource(seed)), seqs: map[string]int{}, exists: map[string]bool{}}
}

// writes does n writes; while the server is away it waits for it.
func (w *writer) writes(ctx context.Context, n int) error {
	for range n {
		key := fmt.Sprintf("%s-%d", w.name, w.random.Intn(keysPerWriter))
		if err := w.one(ctx, key); err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
	}
	return nil
}

func (w *writer) one(ctx context.Context, key string) error {
	if w.exists[key] && w.random.Intn(5) == 0 {
		w.notes.tryDelete(key)
		err := w.to.remove(ctx, key)
		if err != nil {
			return w.recover(ctx, key, err)
		}
		w.exists[key] = false
		w.notes.gone(key)
		return nil
	}
	w.seqs[key]++
	seq := w.seqs[key]
	w.notes.try(key, seq)
	var result seen
	var err error
	if w.exists[key] {
		result, err = w.to.update(ctx, key, seq)
	} else {
		result, err = w.to.create(ctx, key, seq)
	}
	if err != nil {
		return w.recover(ctx, key, err)
	}
	if result.seq != seq {
		return fmt.Errorf("wrote %d and was answered %d", seq, result.seq)
	}
	w.exists[key] = true
	w.notes.ack(key, seq, result.revision)
	return nil
}

// recover finds out what a failed write has left behind. Only answers that mean "not now" or "you are late" may be the cause.
func (w *writer) recover(ctx context.Context, key string, cause error) error {
	var status apierrors.APIStatus
	if s, ok := cause.(apierrors.APIStatus); ok {
		status = s
	}
	if status != nil && !apierrors.IsConflict(cause) && !apierrors.IsTooManyRequests(cause) && !apierrors.IsServiceUnavailable(cause) &&
		!apierrors.IsServerTimeout(cause) && !apierrors.IsTimeout(cause) && !apierrors.IsInternalError(cause) {
		return cause
	}
	for {
		object, err := w.to.get(ctx, key)
		switch {
		case err == nil:
			w.exists[key] = true
			w.notes.settle(key, object.seq)
			return nil
		case apierrors.IsNotFound(err):
			w.exists[key] = false
			w.notes.gone(key)
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the server did not come back: %w", err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
