package main

import (
	"fmt"
	"sync"
)

// An event as a client was told of it.
type event struct {
	kind string // ADDED, MODIFIED, DELETED
	seen
}

// An epoch is one unbroken watch: a list, and everything after it.
type epoch struct {
	start  uint64
	events []event
}

// check holds one unbroken watch against the ledger: ordered, unique, complete, nothing invented.
func (e *epoch) check(who string, l *ledger) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var wrong []string
	last := e.start
	got := map[string]map[int]int{}
	for _, event := range e.events {
		if event.revision <= last {
			wrong = append(wrong, fmt.Sprintf("%s: %s of %s at revision %d came after revision %d", who, event.kind, event.key, event.revision, last))
		}
		last = event.revision
		if event.kind == "DELETED" {
			continue
		}
		if !l.attempted[event.key][event.seq] {
			wrong = append(wrong, fmt.Sprintf("%s: nobody wrote %s at %d", who, event.key, event.seq))
		}
		if got[event.key] == nil {
			got[event.key] = map[int]int{}
		}
		got[event.key][event.seq]++
	}
	for key, writes := range l.acked {
		for seq, revision := range writes {
			if revision <= e.start || revision > last {
				continue
			}
			if times := got[key][seq]; times != 1 {
				wrong = append(wrong, fmt.Sprintf("%s: write %d of %s (revision %d) was seen %d times between %d and %d", who, seq, key, revision, times, e.start, last))
			}
		}
	}
	return wrong
}

// A notebook follows what an informer tells its handlers.
type notebook struct {
	who     string
	mu      sync.Mutex
	present map[string]seen
	events  int
	wrong   []string
}

func newNotebook(who string) *notebook {
	return &notebook{who: who, present: map[string]seen{}}
}

func (n *notebook) complain(format string, arguments ...any) {
	n.wrong = append(n.wrong, n.who+": "+fmt.Sprintf(format, arguments...))
}

func (n *notebook) added(s seen) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.events++
	if before, exists := n.present[s.key]; exists {
		n.complain("%s was added at %d although it was there at %d", s.key, s.revision, before.revision)
	}
	n.present[s.key] = s
}

func (n *notebook) updated(s seen) {
	n.mu.Lock()
	defer n.mu.Unlock()
	before, exists := n.present[s.key]
	switch {
	case !exists:
		n.complain("%s was updated at %d before it was added", s.key, s.revision)
	case before.revision == s.revision:
		// After a restart an informer lists again and tells its handlers of what has not changed; that is no event.
		return
	case before.revision > s.revision:
		n.complain("%s went back from %d to %d", s.key, before.revision, s.revision)
	}
	n.events++
	n.present[s.key] = s
}

func (n *notebook) deleted(key string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.events++
	if _, exists := n.present[key]; !exists {
		n.complain("%s was deleted although it was not there", key)
	}
	delete(n.present, key)
}

func (n *notebook) objects() []seen {
	n.mu.Lock()
	defer n.mu.Unlock()
	var all []seen
	for _, object := range n.present {
		all = append(all, object)
	}
	return all
}
