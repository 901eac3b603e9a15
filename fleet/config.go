package fleet

import (
	"cmp"
	"fmt"
	"time"

	"github.com/go-logr/logr"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/health"
	"github.com/egressfleet/egress/internal/check"
	"github.com/egressfleet/egress/lease"
	"github.com/egressfleet/egress/provider"
)

// Config says what a [Fleet] keeps. Provider, Tag, Endpoint, a probe in
// Health, and Inventory are required.
type Config struct {
	// Provider makes the instances.
	Provider provider.Provider
	// Tag marks them. No other fleet may use it on the same provider.
	Tag string
	// Size is how many healthy proxies are wanted. Zero keeps none.
	Size int
	// MaxAge replaces proxies that are older, see [Pool.MaxAge].
	MaxAge time.Duration
	// Pools, instead of Size, MaxAge and Request, are several kinds of proxies.
	Pools []Pool
	// MaxSize is a hard ceiling on instances, counting those that are being made
	// or deleted, or do not answer any more; what is wanted and a fifth of it,
	// rounded up, if zero.
	MaxSize int
	// MaxCreating bounds the instances that are being made, from Create until
	// they run; 4 if zero.
	MaxCreating int

	// Request says what to make for a UID: placement, user-data and metadata. UID
	// and Tag are set by the fleet. It must return the same for the same UID. If
	// nil, everything else is left to the provider's defaults.
	Request func(uid string) (provider.CreateRequest, error)
	// Endpoint tells the proxy on an instance that runs. If its ID is empty, the
	// instance's name is taken. Its Generation is set by the fleet.
	Endpoint func(uid string, in provider.Instance) (endpoint.Endpoint, error)
	// Health is the configuration of the fleet's engine. Its OnTransition is
	// called after the inventory was told.
	Health health.EngineConfig
	// Inventory is where the endpoints go.
	Inventory lease.Inventory

	// PollInterval is the time between two looks at an instance that is being
	// made or deleted; 2 s if zero. One that serves is looked at ten times less.
	PollInterval time.Duration
	// ListInterval is the time between two lists by tag, which find what the
	// record does not know; 1 min if zero.
	ListInterval time.Duration
	// AdoptTimeout is how long the fleet makes nothing after its start because
	// the list by tag is not whole; without end if zero. After it, what hosts hold
	// that have not answered since the start is not counted, and MaxSize may be
	// exceeded by that.
	AdoptTimeout time.Duration
	// OrphanAge protects an instance of the tag that the record did not know: it
	// does not end as one too many before it is that old, by its own creation time;
	// 5 min if zero. Another fleet may be handing over, and still counts on it.
	OrphanAge time.Duration
	// CallTimeout bounds each call to the provider but Create, which may have to
	// fetch an image; 1 min if zero.
	CallTimeout time.Duration
	// CreateTimeout bounds one call of Create, which is repeated; 30 min if zero.
	CreateTimeout time.Duration
	// BootTimeout is how long an instance may take to run, and then again to be
	// healthy; provider.BootTimeout if zero.
	BootTimeout time.Duration
	// UnhealthyTimeout is how long a proxy that was healthy may be unhealthy
	// before it is replaced; 2 min if zero.
	UnhealthyTimeout time.Duration
	// DrainTimeout is how long leases may hold up the deletion of an instance
	// that is replaced; 1 min if zero. Then they are revoked.
	DrainTimeout time.Duration

	// OnEvent, if set, is told what happens, in order. It is called by one
	// goroutine, without a lock, and may call the fleet, but not Close.
	OnEvent func(Event)
	// Logger gets what an operator must see at V(0): replacements, errors that
	// retrying cannot help, instances that were let go; the rest at V(1).
	Logger logr.Logger
}

func (c Config) withDefaults() (Config, error) {
	var problems check.Problems
	problems.Require(c.Provider != nil, "provider", "give the provider that makes the instances")
	problems.Within("tag", provider.ValidTag(c.Tag))
	problems.Require(c.Endpoint != nil, "endpoint", "give the function that tells an instance's proxy")
	problems.Require(c.Inventory != nil, "inventory", "give the store that the endpoints go to")
	c = c.withPools(&problems)
	if c.MaxSize != 0 && c.MaxSize < c.Size {
		problems.Add("maxSize", c.MaxSize, fmt.Sprintf("must be at least what is wanted, %d", c.Size))
	}
	c.MaxCreating = cmp.Or(c.MaxCreating, 4)
	if c.MaxCreating < 0 {
		problems.Add("maxCreating", c.MaxCreating, "must not be negative")
	}
	for _, d := range []struct {
		path  string
		value *time.Duration
		def   time.Duration
	}{
		{"pollInterval", &c.PollInterval, 2 * time.Second},
		{"listInterval", &c.ListInterval, time.Minute},
		{"adoptTimeout", &c.AdoptTimeout, 0},
		{"orphanAge", &c.OrphanAge, 5 * time.Minute},
		{"callTimeout", &c.CallTimeout, time.Minute},
		{"createTimeout", &c.CreateTimeout, 30 * time.Minute},
		{"bootTimeout", &c.BootTimeout, provider.BootTimeout},
		{"unhealthyTimeout", &c.UnhealthyTimeout, 2 * time.Minute},
		{"drainTimeout", &c.DrainTimeout, time.Minute},
	} {
		*d.value = cmp.Or(*d.value, d.def)
		if *d.value < 0 {
			problems.Add(d.path, *d.value, "must not be negative")
		}
	}
	return c, problems.Err()
}

// share is a fifth, rounded up: what may be replaced at one time. Karpenter's
// node repair stops at the same share.
func share(n int) int { return (n + 4) / 5 }
