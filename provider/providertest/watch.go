package providertest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/egressfleet/egress/provider"
)

// grace is the time that the contract gives a call whose context has ended.
const grace = time.Second

// errOverdue is the error of a call that did not return in that time.
var errOverdue = errors.New("the call did not return within a second after its context ended")

// seen is one error that the provider returned.
type seen struct {
	op  string
	err error
}

// watched is a provider whose calls always return, and whose errors are kept.
type watched struct {
	provider.Provider
	s *suite
}

// Unwrap returns the provider itself.
func (w *watched) Unwrap() provider.Provider { return w.Provider }

// Create calls the provider.
func (w *watched) Create(ctx context.Context, req provider.CreateRequest) (string, error) {
	return watch(ctx, w.s, "Create", func(ctx context.Context) (string, error) { return w.Provider.Create(ctx, req) })
}

// Get calls the provider.
func (w *watched) Get(ctx context.Context, id string) (provider.Instance, error) {
	return watch(ctx, w.s, "Get", func(ctx context.Context) (provider.Instance, error) { return w.Provider.Get(ctx, id) })
}

// Delete calls the provider.
func (w *watched) Delete(ctx context.Context, id string) error {
	_, err := watch(ctx, w.s, "Delete", func(ctx context.Context) (struct{}, error) {
		return struct{}{}, w.Provider.Delete(ctx, id)
	})
	return err
}

// ListByTag calls the provider.
func (w *watched) ListByTag(ctx context.Context, tag string) ([]provider.Instance, error) {
	return watch(ctx, w.s, "ListByTag", func(ctx context.Context) ([]provider.Instance, error) {
		return w.Provider.ListByTag(ctx, tag)
	})
}

// answer is what a call returned.
type answer[T any] struct {
	value T
	err   error
}

// watch runs one call with the time of one step, and leaves it behind where it
// outlives its context.
func watch[T any](ctx context.Context, s *suite, op string, call func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, s.h.Timeout)
	defer cancel()
	done := make(chan answer[T], 1)
	s.calls.Go(func() {
		var a answer[T]
		defer func() {
			if p := recover(); p != nil {
				a.err = fmt.Errorf("%s panicked: %v\n%s", op, p, stack())
			}
			done <- a
		}()
		a.value, a.err = call(ctx)
	})
	a, ok := await(ctx, done)
	if !ok {
		return a.value, fmt.Errorf("%s: %w: %w", op, errOverdue, ctx.Err())
	}
	s.note(op, a.err)
	return a.value, a.err
}

// await returns what comes before the grace is over.
func await[T any](ctx context.Context, done <-chan T) (out T, ok bool) {
	select {
	case out = <-done:
		return out, true
	case <-ctx.Done():
	}
	late := time.NewTimer(grace)
	defer late.Stop()
	select {
	case out = <-done:
		return out, true
	case <-late.C:
		return out, false
	}
}

// note keeps an error for the cases that look at all of them.
func (s *suite) note(op string, err error) {
	if err == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.errs = append(s.errs, seen{op, err})
}

// waitFor waits for what runs, but not for ever.
func waitFor(wg *sync.WaitGroup, limit time.Duration) bool {
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	select {
	case <-done:
		return true
	case <-time.After(limit):
		return false
	}
}
