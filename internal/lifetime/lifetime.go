// Package lifetime ends the calls of what is closed, and waits for them.
package lifetime

import (
	"context"
	"sync"
)

// Lifetime is from New to Close. All methods are safe for concurrent use.
type Lifetime struct {
	ctx     context.Context
	end     context.CancelFunc
	errOver error

	mu    sync.Mutex
	over  bool
	calls sync.WaitGroup // grows only under mu while not over
}

// New begins one. Calls that come after its end get errOver.
func New(errOver error) *Lifetime {
	l := &Lifetime{errOver: errOver}
	l.ctx, l.end = context.WithCancel(context.Background())
	return l
}

// Context ends when Close begins.
func (l *Lifetime) Context() context.Context { return l.ctx }

// Enter counts a call in, whose context then ends with the lifetime too. The
// caller must call leave.
func (l *Lifetime) Enter(ctx context.Context) (_ context.Context, leave func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over {
		return ctx, nil, l.errOver
	}
	l.calls.Add(1)
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(l.ctx, cancel)
	return ctx, func() { stop(); cancel(); l.calls.Done() }, nil
}

// Close lets nobody in any more, ends the calls and waits for them. It may be
// called more than once.
func (l *Lifetime) Close() {
	l.mu.Lock()
	l.over = true
	l.mu.Unlock()
	l.end()
	l.calls.Wait()
}
