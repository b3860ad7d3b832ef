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
	unsure map[string]bool // a write's answer was lost: it may still come to pass, for instance in a server that is just ending
}

func newWriter(name string, to resource, notes *ledger, seed int64) *writer {
	return &writer{name: name, to: to, notes: notes, random: rand.New(rand.NewSource(seed)), seqs: map[string]int{}, exists: map[string]bool{}, unsure: map[string]bool{}}
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
		w.exists[key], w.unsure[key] = false, false
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
	w.exists[key], w.unsure[key] = true, false
	w.notes.ack(key, seq, result.revision)
	return nil
}

// recover finds out what a failed write has left behind. Only a lost answer, or an answer that means "not now" or "you are late",
// may be the cause.
func (w *writer) recover(ctx context.Context, key string, cause error) error {
	if _, answered := cause.(apierrors.APIStatus); !answered {
		w.unsure[key] = true
	} else if !forgivable(cause) && !(w.unsure[key] && (apierrors.IsAlreadyExists(cause) || apierrors.IsNotFound(cause))) {
		return cause
	}
	return w.look(ctx, key)
}

func forgivable(cause error) bool {
	return apierrors.IsConflict(cause) || apierrors.IsTooManyRequests(cause) || apierrors.IsServiceUnavailable(cause) ||
		apierrors.IsServerTimeout(cause) || apierrors.IsTimeout(cause) || apierrors.IsInternalError(cause)
}

// resolve looks at all keys of which it is not known whether the last write happened.
func (w *writer) resolve(ctx context.Context) error {
	for key, unsure := range w.unsure {
		if unsure {
			if err := w.look(ctx, key); err != nil {
				return err
			}
			w.unsure[key] = false
		}
	}
	return nil
}

// look reads a key, waiting for the server if it is away.
func (w *writer) look(ctx context.Context, key string) error {
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
