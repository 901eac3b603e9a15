package kvm

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/egressfleet/egress/provider"
)

// shared is one value for many callers, such as a connection: made when first
// wanted, by one attempt however many wait for it, and made anew when it is no
// longer alive.
type shared[T any] struct {
	// lifetime bounds every attempt, and timeout each.
	lifetime context.Context
	timeout  time.Duration
	create   func(context.Context) (T, error)
	alive    func(T) bool

	mu      sync.Mutex
	value   T
	has     bool
	attempt *attempt[T]
}

type attempt[T any] struct {
	done  chan struct{}
	value T
	err   error
}

// get returns the value, or waits for it until ctx ends. An attempt goes on
// without those who left.
func (s *shared[T]) get(ctx context.Context) (T, error) {
	a, value, ok := s.join()
	if ok {
		return value, nil
	}
	select {
	case <-a.done:
		return a.value, a.err
	case <-ctx.Done():
		var zero T
		return zero, ctx.Err()
	}
}

func (s *shared[T]) join() (*attempt[T], T, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.has && s.alive(s.value) {
		return nil, s.value, true
	}
	s.has = false
	if s.attempt == nil {
		s.attempt = &attempt[T]{done: make(chan struct{})}
		go s.run(s.attempt)
	}
	var zero T
	return s.attempt, zero, false
}

func (s *shared[T]) run(a *attempt[T]) {
	ctx, cancel := context.WithTimeoutCause(s.lifetime, s.timeout, errDialTimeout)
	defer cancel()
	a.value, a.err = s.create(ctx)
	if a.err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		a.err = s.late(a.err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.value, s.has, s.attempt = a.value, a.err == nil, nil
	close(a.done)
}

// late is the error of an attempt that ran out of time. One that says only that
// tells nothing more.
func (s *shared[T]) late(err error) error {
	var known *provider.Error
	if errors.As(err, &known) {
		return err
	}
	return provider.Transientf(codeNoAnswer, "the host has not answered for %s: %w", s.timeout, err)
}

// current returns the value where there is a living one.
func (s *shared[T]) current() (T, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.value, s.has && s.alive(s.value)
}

// settle waits for a running attempt to end, for Close.
func (s *shared[T]) settle() {
	s.mu.Lock()
	a := s.attempt
	s.mu.Unlock()
	if a != nil {
		<-a.done
	}
}
