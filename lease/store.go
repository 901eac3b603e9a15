package lease

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/egressfleet/egress/endpoint"
)

// Store is what holders of leases use. All methods are safe for concurrent use.
// [Memory] implements it.
type Store interface {
	// Acquire returns a lease on an endpoint that satisfies the request. It
	// waits until one is free, first come first served among those whom a freed
	// endpoint satisfies. When ctx ends first, the error is an
	// [*UnavailableError] that matches ctx's error and says why nothing came.
	Acquire(ctx context.Context, req Request) (*Lease, error)
	// TryAcquire is Acquire without waiting: it fails at once with an
	// [*UnavailableError] that matches ErrNoMatch or ErrNoneFree.
	TryAcquire(ctx context.Context, req Request) (*Lease, error)

	// Renew extends the lease to end ttl from now; zero means the store's
	// default. The store may grant less, and a lease has a longest lifetime. A
	// wrong or unknown key is ErrNotHeld, an expired lease ErrExpired. Holders
	// call [Lease.Renew] instead.
	Renew(ctx context.Context, key Key, ttl time.Duration) (Grant, error)
	// Release ends the lease. An unknown lease is nil, a wrong token ErrNotHeld,
	// an expired one ErrExpired. Holders call [Lease.Release] instead.
	Release(ctx context.Context, key Key) error
	// ReleaseUnused is Release for a lease that was not used: the endpoint keeps
	// its place among the least recently used.
	ReleaseUnused(ctx context.Context, key Key) error
	// Report says how a request went. A wrong token is ErrNotHeld. A report for
	// a lease that has ended is counted, and changes nothing.
	Report(ctx context.Context, key Key, outcome Outcome) error

	// List returns every endpoint, ordered by ID.
	List(ctx context.Context) ([]Status, error)
	// Stats returns counts since the store began.
	Stats(ctx context.Context) (Stats, error)
}

// Inventory is what the owner of the endpoints uses. All methods are safe for
// concurrent use. An unknown ID is ErrUnknownEndpoint, but for Remove.
type Inventory interface {
	// Put adds or changes an endpoint. A new one, a new generation and a new URL
	// all begin as Unknown, and are not leased before a verdict says Healthy.
	// Leases on the former generation go on until they end.
	Put(ctx context.Context, e endpoint.Endpoint) error
	// Remove takes the endpoint out and revokes its leases. Unknown IDs are nil.
	Remove(ctx context.Context, id string) error
	// SetVerdict records a judgement. One on another generation than the
	// endpoint's is dropped: it is late.
	SetVerdict(ctx context.Context, id string, v endpoint.Verdict) error
	// Drain ends the leasing of the endpoint and returns how many leases are
	// left on it. Call it again to see them end. Put does not undo it.
	Drain(ctx context.Context, id string) (held int, err error)
	// Revoke ends the leases on the endpoint at once.
	Revoke(ctx context.Context, id string) error
	// Reports returns the proxy faults that holders report from now on, until
	// ctx ends. A reader that falls behind loses the newest.
	Reports(ctx context.Context) <-chan Report
}

// Request says what a holder wants.
type Request struct {
	// Holder names the holder, for people. Required.
	Holder string
	// Selector chooses among the endpoints by their attributes; all if empty.
	Selector Selector
	// Session, if set, gives requests of the same session the same endpoint, as
	// long as it may be leased for the domain; while another holds it they wait.
	// Then the session moves to another. It is forgotten when it was not used for
	// the store's SessionTTL.
	Session string
	// Domain is the host to be fetched from: endpoints that cool down for it are
	// left out. Letter case and a final dot do not matter. Empty means that none
	// is known: only cooldowns of the endpoint itself count.
	Domain string
	// TTL is how long the lease shall last; the store's default if zero. The
	// store may grant less.
	TTL time.Duration
}

// Validate reports what is wrong with the request.
func (r Request) Validate() error {
	var errs []error
	if r.Holder == "" {
		errs = append(errs, errors.New("holder: name who holds the lease, such as a host name and a process ID"))
	}
	if r.TTL < 0 {
		errs = append(errs, fmt.Errorf("ttl: %v: must not be negative", r.TTL))
	}
	if err := r.Selector.Validate(); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// canonicalDomain is the form under which cooldowns are kept.
func canonicalDomain(domain string) string {
	return strings.ToLower(strings.TrimSuffix(domain, "."))
}

// Key identifies a lease to its store. ID and token are checked together.
type Key struct {
	// ID names the lease.
	ID string `json:"id"`
	// Token rises with every lease of a store, and is at least the store's time
	// in microseconds since 1970, so that a restart does not repeat it. Whoever
	// sees a lower token than before sees an old holder.
	Token int64 `json:"token"`
}

// Grant is what a store grants.
type Grant struct {
	Key
	Endpoint endpoint.Endpoint
	Domain   string
	// TTL counts from when the holder asked.
	TTL time.Duration
}

// Report is a proxy fault that a holder reported.
type Report struct {
	EndpointID string
	Generation uint64
	Holder     string
	Outcome    Outcome
}

// Status is an endpoint as its store sees it.
type Status struct {
	Endpoint endpoint.Endpoint
	Verdict  endpoint.Verdict
	Draining bool
	// Probation is whether it has one holder at most: it is new, or has failed,
	// and no holder has reported OK since.
	Probation bool
	// Leases are those held, in no order.
	Leases []Holding
	// CoolUntil is when the endpoint may be leased again, if that is to come.
	CoolUntil time.Time
	// CoolDomains tells the same for single domains.
	CoolDomains map[string]time.Time
}

// Holding is a lease as others may see it: without its token.
type Holding struct {
	ID        string
	Holder    string
	Domain    string
	ExpiresAt time.Time
}

// Stats counts what a store did and what it holds.
type Stats struct {
	Acquired, Released, Renewed, Expired, Revoked int64
	// Canceled counts waits that ended without a lease, Waits all that waited.
	Waits, Canceled int64
	// WaitTime is the sum over all waits that have ended.
	WaitTime time.Duration
	// Outcomes counts reports by kind; LateReports those that came too late.
	Outcomes    map[OutcomeKind]int64
	LateReports int64
	// DroppedReports counts reports that a slow reader of Reports lost.
	DroppedReports int64
	// Waiting is the number of waits at present, Endpoints where endpoints stand.
	Waiting   int
	Endpoints Counts
}

// Counts tells where the endpoints stand. An endpoint is counted in Total, and
// in the first of the others that holds. Leased are those with no place left for
// another holder.
type Counts struct {
	Total, NotSelected, Draining, Unknown, Unhealthy, Leased, Cooling, CoolingForDomain, Free int
}

// String tells the counts that are not zero, such as
// "3 endpoints: 2 leased, 1 unhealthy".
func (c Counts) String() string {
	var parts []string
	for _, p := range []struct {
		n    int
		what string
	}{
		{c.NotSelected, "not selected"}, {c.Draining, "draining"}, {c.Unknown, "not yet proven"},
		{c.Unhealthy, "unhealthy"}, {c.Leased, "leased"}, {c.Cooling, "cooling down"},
		{c.CoolingForDomain, "cooling down for the domain"}, {c.Free, "free"},
	} {
		if p.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", p.n, p.what))
		}
	}
	if len(parts) == 0 {
		return "no endpoints"
	}
	return fmt.Sprintf("%d endpoints: %s", c.Total, strings.Join(parts, ", "))
}

// The errors of stores and leases. Match them with errors.Is.
var (
	// ErrNoMatch says that no endpoint of the store could ever satisfy the
	// request as things stand: waiting needs a change of the inventory.
	ErrNoMatch = errors.New("no endpoint matches")
	// ErrNoneFree says that an endpoint could satisfy the request, but none is
	// free now.
	ErrNoneFree = errors.New("no endpoint is free")
	// ErrNotHeld says that the key is not that of a lease: the token is wrong or
	// the lease has long ended.
	ErrNotHeld = errors.New("lease is not held")
	// ErrExpired says that the lease's time ran out.
	ErrExpired = errors.New("lease expired")
	// ErrRevoked says that the owner ended the lease.
	ErrRevoked = errors.New("lease revoked")
	// ErrReleased says that the holder ended the lease.
	ErrReleased = errors.New("lease released")
	// ErrLost matches every error that a request gets because its lease has
	// ended, beside the reason.
	ErrLost = errors.New("lease lost")
	// ErrUnknownEndpoint says that the inventory has no such endpoint.
	ErrUnknownEndpoint = errors.New("unknown endpoint")
	// ErrClosed says that the store was closed.
	ErrClosed = errors.New("lease store closed")
)

// UnavailableError says why no lease came.
type UnavailableError struct {
	// Counts tells where the store's endpoints stand for this request.
	Counts Counts
	// RetryAfter is when an endpoint may become free by itself, zero if unknown.
	RetryAfter time.Duration
	// Waited is how long the wait was; zero for TryAcquire.
	Waited time.Duration
	// Err is ErrNoMatch or ErrNoneFree, joined with the context's error where
	// that ended a wait.
	Err error
}

// Error tells where the endpoints stand.
func (e *UnavailableError) Error() string {
	text := fmt.Sprintf("no lease (%v)", e.Counts)
	if e.Waited > 0 {
		text = fmt.Sprintf("no lease after %v (%v)", e.Waited.Round(time.Millisecond), e.Counts)
	}
	if e.RetryAfter > 0 {
		text += fmt.Sprintf("; one may be free in %v", e.RetryAfter.Round(time.Millisecond))
	}
	return text
}

// Unwrap returns Err.
func (e *UnavailableError) Unwrap() error { return e.Err }
