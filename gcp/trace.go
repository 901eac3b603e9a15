package gcp

import (
	"context"
	"time"
)

// Trace is a set of optional functions that are told what the provider does.
// Each is called at the start of something and returns the function to call at
// its end, which may be nil. They run in the goroutine that does the work, may
// run concurrently, and shall return soon.
type Trace struct {
	// Operation is one call of a Provider's method. The context that it returns is
	// used for what happens inside, so that the span of a call has the operation's as
	// parent; a nil one leaves it as it was.
	Operation func(context.Context, OperationInfo) (context.Context, func(error))
	// Call is one HTTP request to the API. A call that is retried is several.
	Call func(context.Context, CallInfo) func(error)
}

// OperationInfo describes one call of a Provider's method.
type OperationInfo struct {
	// Op is the method's name, such as "Create", "ListByTag" or "Place".
	Op string
	// Provider is [Config.Name].
	Provider string
	// ID is the instance's; empty for a list, and for a Create without a place.
	ID string
}

// CallInfo describes one request to the API.
type CallInfo struct {
	// Method is Google's name of it, such as "instances.insert".
	Method string
	// Scope is the zone or region; empty for what has none.
	Scope string
	// Name is the instance's or other resource's; empty for a list.
	Name string
	// Attempt is 1, and more for a retry or a further page.
	Attempt int
}

func (t *Trace) operation(ctx context.Context, info OperationInfo) (context.Context, func(error)) {
	if t == nil || t.Operation == nil {
		return ctx, ignoreEnd
	}
	inner, end := t.Operation(ctx, info)
	if inner == nil {
		inner = ctx
	}
	if end == nil {
		end = ignoreEnd
	}
	return inner, end
}

func (t *Trace) call(ctx context.Context, info CallInfo) func(error) {
	if t == nil || t.Call == nil {
		return ignoreEnd
	}
	if end := t.Call(ctx, info); end != nil {
		return end
	}
	return ignoreEnd
}

func ignoreEnd(error) {}

// elapsed is the time since start in the form the log lines have.
func elapsed(start time.Time) string { return time.Since(start).Round(10 * time.Microsecond).String() }
