package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

// A follower watches one resource by itself, without a cache: list, then every event, again and again when the server says that
// the past is gone.
type follower struct {
	who    string
	from   resource
	watch  func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error)
	mu     sync.Mutex
	moved  *sync.Cond
	epochs []*epoch
}

func newFollower(who string, from resource, watch func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error)) *follower {
	f := &follower{who: who, from: from, watch: watch}
	f.moved = sync.NewCond(&f.mu)
	return f
}

func (f *follower) run(ctx context.Context) {
	for ctx.Err() == nil {
		_, revision, err := f.from.list(ctx)
		if err != nil {
			pause(ctx)
			continue
		}
		f.mu.Lock()
		current := &epoch{start: parseRevision(revision)}
		f.epochs = append(f.epochs, current)
		f.moved.Broadcast()
		f.mu.Unlock()
		retry, err := watchtools.NewRetryWatcherWithContext(ctx, revision, &cache.ListWatch{WatchFuncWithContext: f.watch})
		if err != nil {
			pause(ctx)
			continue
		}
		for e := range retry.ResultChan() {
			if e.Type == watch.Error {
				break // the past is gone: a new epoch
			}
			object, ok := e.Object.(metav1.Object)
			if !ok || e.Type == watch.Bookmark {
				continue
			}
			f.mu.Lock()
			current.events = append(current.events, event{kind: string(e.Type), seen: seenOf(object)})
			f.moved.Broadcast()
			f.mu.Unlock()
		}
		retry.Stop()
	}
}

// reach waits until the follower has seen everything up to the revision.
func (f *follower) reach(ctx context.Context, revision uint64) error {
	stop := context.AfterFunc(ctx, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.moved.Broadcast()
	})
	defer stop()
	f.mu.Lock()
	defer f.mu.Unlock()
	for {
		if len(f.epochs) > 0 {
			current := f.epochs[len(f.epochs)-1]
			last := current.start
			if n := len(current.events); n > 0 {
				last = max(last, current.events[n-1].revision)
			}
			if last >= revision {
				return nil
			}
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%s did not get as far as revision %d: %w", f.who, revision, ctx.Err())
		}
		f.moved.Wait()
	}
}

func (f *follower) check(l *ledger) (wrong []string, epochs, events int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, epoch := range f.epochs {
		wrong = append(wrong, epoch.check(f.who, l)...)
		events += len(epoch.events)
	}
	return wrong, len(f.epochs), events
}

// handler makes an informer write into a notebook.
func handler(n *notebook) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { n.added(seenOf(object.(metav1.Object))) },
		UpdateFunc: func(_, object any) { n.updated(seenOf(object.(metav1.Object))) },
		DeleteFunc: func(object any) {
			if unknown, ok := object.(cache.DeletedFinalStateUnknown); ok {
				n.deleted(unknown.Obj.(metav1.Object).GetName())
				return
			}
			n.deleted(object.(metav1.Object).GetName())
		},
	}
}

func pause(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(20 * time.Millisecond):
	}
}

// until waits for a state that another goroutine brings about.
func until(ctx context.Context, what string, holds func() ([]string, error)) error {
	for {
		wrong, err := holds()
		if err == nil && len(wrong) == 0 {
			return nil
		}
		if ctx.Err() != nil {
			if len(wrong) > 5 {
				wrong = append(wrong[:5], fmt.Sprintf("and %d more", len(wrong)-5))
			}
			return fmt.Errorf("%s: %w %v", what, errors.Join(ctx.Err(), err), wrong)
		}
		pause(ctx)
	}
}
