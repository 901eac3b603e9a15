package providertest

import (
	"context"
	"errors"
	"io"
	"reflect"
	"strings"
	"time"

	"github.com/egressfleet/egress/provider"
)

// Harness connects the suite to one provider and its backend. New and Request
// are required. Functions are called by one goroutine at a time, and return nil
// or an error that ends the case.
type Harness struct {
	// New returns the provider under test. A later call stands for a restart:
	// it returns another one over the same backend, which knows nothing that
	// the earlier ones kept in memory. The suite closes those that have, or
	// wrap, a method Close() error.
	New func() (provider.Provider, error)
	// Request returns a request with that UID and tag that works, in a place
	// where all that the other fields do takes effect. The suite sets Metadata.
	Request func(uid, tag string) provider.CreateRequest

	// Timeout is how long one step may take: a call, a boot, a deletion.
	// 1 min if zero.
	Timeout time.Duration
	// Interval is the time between two polls; 50 ms if zero.
	Interval time.Duration
	// Settle is how long it may take until what a canceled call had asked for
	// has happened; 1 s if zero.
	Settle time.Duration
	// Concurrency is how many goroutines work at the same time; 8 if zero.
	Concurrency int
	// NoBoot says that instances never get an address, as where disks are
	// blank. Then nothing waits for them to be Running.
	NoBoot bool

	// Unconfigured is a well-formed ID in a place that the provider's
	// configuration does not have.
	Unconfigured string
	// Second is as Request, for another place (host, zone) of the provider that
	// Break and Hang leave alone.
	Second func(uid, tag string) provider.CreateRequest

	// Stop powers an instance off behind the provider's back, so that it will
	// not run by itself again.
	Stop func(ctx context.Context, id string) error
	// Crash ends an instance as a guest that crashed.
	Crash func(ctx context.Context, id string) error
	// Vanish removes an instance as an administrator would.
	Vanish func(ctx context.Context, id string) error
	// Break makes all calls to the backend fail as where a wire is cut, until
	// restore. It does not touch what runs there.
	Break func() (restore func(), err error)
	// Hang lets calls to the backend go unanswered until release. Then they go
	// on, whether or not their caller is still there.
	Hang func() (release func(), err error)
	// Exhaust uses up the quota or the capacity, until restore.
	Exhaust func(ctx context.Context) (restore func(), err error)
	// Foreign makes, where the request's instance would be and under its name,
	// an object that nobody of this library made: it has no mark of ours.
	Foreign func(ctx context.Context, req provider.CreateRequest) (Stranger, error)
	// OtherUID makes, where the request's instance would be and under its name,
	// one of the same tag that belongs to another UID, as if two UIDs had the
	// same name.
	OtherUID func(ctx context.Context, req provider.CreateRequest) (Stranger, error)

	// Leftovers returns the names of all that instances have made on the
	// backend and that is there, as its administrator sees it: machines, disks,
	// addresses, half-made or whole. What serves every instance and stays, such
	// as base images, does not belong there, nor what is not the suite's.
	Leftovers func(ctx context.Context) ([]string, error)
	// HasUserData tells whether the guest of an instance was given exactly
	// these bytes as user-data.
	HasUserData func(ctx context.Context, id string, want []byte) (bool, error)
	// Logs returns all that the providers have logged so far, at every level
	// that does not ask for secrets by name.
	Logs func() string
	// Secrets are further texts that no error and no log may show: keys and
	// passwords of the configuration.
	Secrets []string
}

// Stranger is an object on the backend that is not the provider's to touch.
type Stranger struct {
	// ID is the provider ID that it would have as an instance.
	ID string
	// Unchanged tells whether it is still there as it was made.
	Unchanged func(ctx context.Context) (bool, error)
	// Remove removes it.
	Remove func(ctx context.Context) error
}

func (h Harness) withDefaults() Harness {
	h.Timeout = positive(h.Timeout, time.Minute)
	h.Interval = positive(h.Interval, 50*time.Millisecond)
	h.Settle = positive(h.Settle, time.Second)
	h.Concurrency = positive(h.Concurrency, 8)
	return h
}

func positive[N ~int | ~int64](n, def N) N {
	if n > 0 {
		return n
	}
	return def
}

func (h Harness) validate() error {
	var problems []error
	for _, field := range []string{"New", "Request"} {
		if !h.has(field) {
			problems = append(problems, errors.New("providertest.Harness: "+field+" is required"))
		}
	}
	return errors.Join(problems...)
}

// has tells whether a field is set.
func (h Harness) has(field string) bool {
	return !reflect.ValueOf(h).FieldByName(field).IsZero()
}

// missing returns those of the fields that are not set, as text.
func (h Harness) missing(fields []string) string {
	var out []string
	for _, f := range fields {
		if !h.has(f) {
			out = append(out, "Harness."+f)
		}
	}
	return strings.Join(out, ", ")
}

// closeProvider closes what can be closed.
func closeProvider(p provider.Provider) error {
	if c, ok := provider.As[io.Closer](p); ok {
		return c.Close()
	}
	return nil
}
