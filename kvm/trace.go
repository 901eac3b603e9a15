package kvm

import (
	"context"
	"time"
)

// Trace is a set of optional functions that are told what the provider does.
// Each is called at the start of something and returns the function to call at
// its end, which may be nil. They run in the goroutine that does the work, may
// run concurrently, and shall return soon.
//
// The context that Operation and Step return is used for what happens inside,
// so that the span of a call has the span of its step as parent. A nil context
// leaves it as it was.
type Trace struct {
	// Operation is one call of a Provider's method.
	Operation func(context.Context, OperationInfo) (context.Context, func(error))
	// Step is one step of Create or Delete. The package's page lists them.
	Step func(context.Context, StepInfo) (context.Context, func(error))
	// Call is one call of libvirt.
	Call func(context.Context, CallInfo) func(error)
	// Dial is the making of one connection to libvirt.
	Dial func(context.Context, DialInfo) func(error)
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

// StepInfo describes one step of an operation.
type StepInfo struct {
	OperationInfo
	// Step is the name of the step.
	Step string
}

// CallInfo describes one call of libvirt.
type CallInfo struct {
	// RPC is libvirt's name of the function, such as "virDomainCreate".
	RPC string
	// Host is the configured name of the host.
	Host string
	// Args are names and values by turns, as in the log line. They hold names
	// and sizes, never a secret.
	Args []any
}

// DialInfo describes the making of one connection to libvirt.
type DialInfo struct {
	// Host is the configured name of the host, Address how it is reached.
	Host, Address string
	// Purpose is "control", "agent" or "upload".
	Purpose string
}

func (t *Trace) operation(ctx context.Context, info OperationInfo) (context.Context, func(error)) {
	if t == nil || t.Operation == nil {
		return ctx, ignoreEnd
	}
	return started(ctx)(t.Operation(ctx, info))
}

func (t *Trace) step(ctx context.Context, info StepInfo) (context.Context, func(error)) {
	if t == nil || t.Step == nil {
		return ctx, ignoreEnd
	}
	return started(ctx)(t.Step(ctx, info))
}

func (t *Trace) dial(ctx context.Context, info DialInfo) func(error) {
	if t == nil || t.Dial == nil {
		return ignoreEnd
	}
	_, end := started(ctx)(ctx, t.Dial(ctx, info))
	return end
}

func (t *Trace) call(ctx context.Context, info CallInfo) func(error) {
	if t == nil || t.Call == nil {
		return ignoreEnd
	}
	_, end := started(ctx)(ctx, t.Call(ctx, info))
	return end
}

// started fills in what a hook left nil.
func started(outer context.Context) func(context.Context, func(error)) (context.Context, func(error)) {
	return func(ctx context.Context, end func(error)) (context.Context, func(error)) {
		if ctx == nil {
			ctx = outer
		}
		if end == nil {
			end = ignoreEnd
		}
		return ctx, end
	}
}

func ignoreEnd(error) {}

// elapsed is the time since start in the form the log lines have.
func elapsed(start time.Time) string { return time.Since(start).Round(10 * time.Microsecond).String() }
