package main

import (
	"fmt"
	"sort"
	"strconv"
	"sync"
)

// A ledger is what the writers know about one resource: every write they tried, and of those that were acknowledged the revision.
// A write whose answer was lost is tried only: it may have happened or not.
type ledger struct {
	mu        sync.Mutex
	attempted map[string]map[int]bool   // key → sequence numbers
	acked     map[string]map[int]uint64 // key → sequence number → revision
	final     map[string]int            // key → sequence number it must have now; absent keys do not exist
	deletes   map[string]int            // key → deletions that were tried
}

func newLedger() *ledger {
	return &ledger{
		attempted: map[string]map[int]bool{},
		acked:     map[string]map[int]uint64{},
		final:     map[string]int{},
		deletes:   map[string]int{},
	}
}

func (l *ledger) try(key string, seq int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.attempted[key] == nil {
		l.attempted[key] = map[int]bool{}
		l.acked[key] = map[int]uint64{}
	}
	l.attempted[key][seq] = true
}

func (l *ledger) ack(key string, seq int, revision uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.acked[key][seq] = revision
	l.final[key] = seq
}

// settle records what a read has shown after an answer was lost.
func (l *ledger) settle(key string, seq int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.final[key] = seq
}

func (l *ledger) tryDelete(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.deletes[key]++
}

func (l *ledger) gone(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.final, key)
}

// A seen object: all that the checks need of it.
type seen struct {
	key      string
	seq      int
	revision uint64
}

func parseRevision(text string) uint64 {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		panic(fmt.Sprintf("resourceVersion %q is no number", text))
	}
	return n
}

// compare reports where the objects that exist differ from what the writers left behind.
func (l *ledger) compare(who string, objects []seen) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var wrong []string
	found := map[string]bool{}
	for _, object := range objects {
		found[object.key] = true
		want, exists := l.final[object.key]
		switch {
		case !exists:
			wrong = append(wrong, fmt.Sprintf("%s: %s exists at %d and should not", who, object.key, object.seq))
		case want != object.seq:
			wrong = append(wrong, fmt.Sprintf("%s: %s is at %d, should be at %d", who, object.key, object.seq, want))
		}
	}
	for key, seq := range l.final {
		if !found[key] {
			wrong = append(wrong, fmt.Sprintf("%s: %s is missing, should be at %d", who, key, seq))
		}
	}
	sort.Strings(wrong)
	return wrong
}
