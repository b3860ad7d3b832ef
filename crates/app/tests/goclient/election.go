package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// An election among candidates that all run here, so that two leaders at once are noticed.
type election struct {
	mu      sync.Mutex
	leading map[string]bool
	terms   []string
	wrong   []string
}

// candidate takes part until its context ends.
func (e *election) candidate(ctx context.Context, client kubernetes.Interface, name string) {
	lock := &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Name: "leader", Namespace: namespace},
		Client:     client.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: name},
	}
	for ctx.Err() == nil {
		leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{
			Lock: lock, Name: name, ReleaseOnCancel: true,
			// Longer than any restart, so that a leader may keep its office through one.
			LeaseDuration: 30 * time.Second, RenewDeadline: 20 * time.Second, RetryPeriod: 200 * time.Millisecond,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(context.Context) { e.began(name) },
				OnStoppedLeading: func() { e.ended(name) },
			},
		})
	}
}

func (e *election) began(name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.leading[name] = true
	e.terms = append(e.terms, name)
	if len(e.leading) > 1 {
		e.wrong = append(e.wrong, fmt.Sprintf("election: %v lead at once", e.leading))
	}
}

func (e *election) ended(name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.leading, name)
}

func (e *election) leader() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	for name := range e.leading {
		return name
	}
	return ""
}
