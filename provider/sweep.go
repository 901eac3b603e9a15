package provider

import (
	"context"
	"time"
)

// DefaultSweepAge is the age below which a [Sweeper] leaves things alone where
// its caller does not say: an hour, four times [BootTimeout].
const DefaultSweepAge = time.Hour

// Sweeper is an optional interface of providers that can find and remove what
// crashes left behind.
type Sweeper interface {
	// Sweep looks in every scope and returns what it found, in the order of the
	// scopes. It removes only what carries the tag, or is an unfinished part of
	// this library's own making that nobody works on; everything else is
	// reported and stays. Scopes that did not answer come back as
	// [*PartialError] beside what was found in the others.
	Sweep(ctx context.Context, req SweepRequest) ([]Leftover, error)
}

// SweepRequest says what to look for.
type SweepRequest struct {
	// Tag is whose leftovers are removed. Required.
	Tag string
	// Owned, if set, tells whether an instance of the tag still has an owner. One
	// that has not is left over too. Nil means that every whole instance has one.
	Owned func(Instance) bool
	// MinAge is how old a thing must be, or for how long it must not have
	// changed, before it counts as left over; [DefaultSweepAge] if zero.
	MinAge time.Duration
	// DryRun reports what would be removed and removes nothing.
	DryRun bool
}

// Leftover is one thing that a sweep found.
type Leftover struct {
	// Scope is the host or zone.
	Scope string `json:"scope"`
	// Kind is what it is in the backend's words, such as "domain" or "volume".
	Kind string `json:"kind"`
	// Name is its name there.
	Name string `json:"name"`
	// Age is since its making, or since it changed last; zero where the backend
	// does not tell.
	Age time.Duration `json:"age,omitempty"`
	// Reason says why it is left over, and where it stays, why.
	Reason string `json:"reason"`
	// Removed is whether it is gone, or on its way; in a dry run whether it would
	// be.
	Removed bool `json:"removed"`
	// Err is why it could not be removed.
	Err error `json:"-"`
}

// Sweep asks the provider's [Sweeper], or that of one that p decorates. Without
// one there is nothing to find: what a provider makes in one piece leaves none.
func Sweep(ctx context.Context, p Provider, req SweepRequest) ([]Leftover, error) {
	sweeper, ok := As[Sweeper](p)
	if !ok {
		return nil, nil
	}
	if req.MinAge <= 0 {
		req.MinAge = DefaultSweepAge
	}
	return sweeper.Sweep(ctx, req)
}
