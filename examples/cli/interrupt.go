package main

import (
	"context"
	"errors"
)

// errInterrupted is the cause of a context that an interrupt ended.
var errInterrupted = errors.New("interrupted")

// interrupted tells whether the first interrupt has come.
func (a *app) interrupted() bool { return a.ctx.Err() != nil }

// listen returns a context that ends with the first interrupt. The second ends
// a.insistence, in which cleaning up is done.
func (a *app) listen(ctx context.Context) (first context.Context, stop func()) {
	insistence, give := context.WithCancel(context.WithoutCancel(ctx))
	a.insistence = insistence
	first, cancel := context.WithCancelCause(ctx)
	a.ctx = first
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for _, end := range []func(){func() { cancel(errInterrupted) }, give} {
			select {
			case <-a.signals:
				end()
			case <-insistence.Done():
				return
			}
		}
	}()
	return first, func() {
		give()
		<-ended
		cancel(nil)
	}
}
