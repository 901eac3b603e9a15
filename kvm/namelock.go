package kvm

import (
	"context"
	"sync"
)

// nameLocks lets one caller at a time work on each name. The zero value is
// ready.
type nameLocks struct {
	mu    sync.Mutex
	locks map[string]*nameLock
}

type nameLock struct {
	held  chan struct{} // holds one value while locked
	users int           // holder and waiters, guarded by nameLocks.mu
}

// lock waits for the name until ctx ends. The caller must call unlock once.
func (n *nameLocks) lock(ctx context.Context, name string) (unlock func(), err error) {
	l := n.join(name)
	select {
	case l.held <- struct{}{}:
		return func() { <-l.held; n.leave(name, l) }, nil
	case <-ctx.Done():
		n.leave(name, l)
		return nil, ctx.Err()
	}
}

func (n *nameLocks) join(name string) *nameLock {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.locks == nil {
		n.locks = map[string]*nameLock{}
	}
	l := n.locks[name]
	if l == nil {
		l = &nameLock{held: make(chan struct{}, 1)}
		n.locks[name] = l
	}
	l.users++
	return l
}

func (n *nameLocks) leave(name string, l *nameLock) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if l.users--; l.users == 0 {
		delete(n.locks, name)
	}
}
