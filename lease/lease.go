package lease

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/egressfleet/egress/endpoint"
)

// Lease is the right to use one endpoint until a deadline. It is safe for
// concurrent use: one holder may send many requests at once.
//
// A store makes one for each grant, and most of the cost of a grant is the garbage
// that is left of it. So it is small: what only some holders need is made when it is
// asked for.
type Lease struct {
	keeper   keeper
	number   uint64             // in a Memory
	token    int64              // of its key
	endpoint *endpoint.Endpoint // never changed: all leases on it share it
	domain   string
	ttl      time.Duration // of the acquire

	// lost is why it has ended, once it has. It is set under mu.
	lost atomic.Pointer[lostError]

	mu      sync.Mutex
	expires instant
	use     *use // nil before the first
}

// use is what the holder has made of its lease.
type use struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	expiry *time.Timer
	client *http.Client // made when first asked for
	conns  *transport   // the client's
}

// New makes the lease for what a store granted. Stores call it; asked is when
// the holder's request was sent, by the holder's clock. The transport is what
// [Lease.Client] uses.
func New(store Store, grant Grant, asked time.Time, transport endpoint.TransportConfig) *Lease {
	return &Lease{
		keeper: &byKey{store, grant.ID, transport}, token: grant.Token,
		endpoint: &grant.Endpoint, domain: grant.Domain,
		ttl: grant.TTL, expires: instantOf(asked.Add(grant.TTL)),
	}
}

// Key identifies the lease to its store.
func (l *Lease) Key() Key { return Key{ID: l.keeper.idOf(l), Token: l.token} }

// Grant returns what the store granted. TTL is that of the acquire, and the
// endpoint's attributes must not be changed.
func (l *Lease) Grant() Grant { return l.grantFor(l.keeper.idOf(l), l.ttl) }

func (l *Lease) grantFor(id string, ttl time.Duration) Grant {
	return Grant{
		Key: Key{ID: id, Token: l.token}, Endpoint: *l.endpoint, Domain: l.domain, TTL: ttl,
	}
}

// Endpoint returns what is leased.
func (l *Lease) Endpoint() endpoint.Endpoint { return l.endpoint.Clone() }

// Domain returns the domain that the lease was acquired for.
func (l *Lease) Domain() string { return l.domain }

// ExpiresAt is when the lease ends unless it is renewed.
func (l *Lease) ExpiresAt() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.expires.time()
}

// Context ends when the lease does. Its cause says why.
func (l *Lease) Context() context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.useLocked().ctx
}

func (l *Lease) useLocked() *use {
	if l.use != nil {
		return l.use
	}
	u := &use{}
	u.ctx, u.cancel = context.WithCancelCause(context.Background())
	if lost := l.lost.Load(); lost != nil {
		u.cancel(lost)
	} else {
		u.expiry = time.AfterFunc(l.expires.until(), func() { _ = l.Err() })
	}
	l.use = u
	return u
}

// Err returns nil while the lease is held, and then an error that matches
// ErrLost and the reason: ErrReleased, ErrExpired or ErrRevoked.
func (l *Lease) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.errLocked()
}

func (l *Lease) errLocked() error {
	if l.lost.Load() == nil && l.expires <= thisInstant() {
		l.loseLocked(ErrExpired)
	}
	if lost := l.lost.Load(); lost != nil {
		return lost
	}
	return nil
}

// Client returns a client that goes through the leased proxy alone, with a
// transport of its own, made at the first call. It works as long as the lease
// is held; requests in flight are cancelled when it ends. It has no timeout:
// give each request a deadline.
func (l *Lease) Client() *http.Client {
	l.mu.Lock()
	defer l.mu.Unlock()
	u := l.useLocked()
	if u.client == nil {
		u.conns = newTransport(u.ctx, l)
		u.client = &http.Client{Transport: u.conns}
	}
	return u.client
}

// ProxyURL returns the proxy for programs that connect by themselves, such as
// a browser; its Reveal gives the credentials. It fails once the lease is lost.
// Such a program must stop when [Lease.Context] ends.
func (l *Lease) ProxyURL() (endpoint.URL, error) {
	if err := l.Err(); err != nil {
		return endpoint.URL{}, err
	}
	return l.endpoint.URL, nil
}

// Renew extends the lease to end ttl from now, or the store's default for zero.
// When the store says that the lease is not held any more, it is lost.
func (l *Lease) Renew(ctx context.Context, ttl time.Duration) error {
	if err := l.Err(); err != nil {
		return err
	}
	asked := thisInstant()
	granted, err := l.keeper.renew(ctx, l, ttl)
	if errors.Is(err, ErrNotHeld) || errors.Is(err, ErrExpired) {
		l.Lose(err)
	}
	if err != nil {
		return err
	}
	return l.extend(asked.plus(granted))
}

// Report says how a use of the lease went.
func (l *Lease) Report(ctx context.Context, outcome Outcome) error {
	return l.keeper.report(ctx, l, outcome)
}

// Release ends the lease and closes its connections. It may be called again.
// The lease is lost to its holder even where the store cannot be told.
func (l *Lease) Release(ctx context.Context) error {
	return l.end(ctx, false)
}

// ReleaseUnused is [Lease.Release] for a lease that was not used.
func (l *Lease) ReleaseUnused(ctx context.Context) error {
	return l.end(ctx, true)
}

func (l *Lease) end(ctx context.Context, unused bool) error {
	if !l.lose(ErrReleased) {
		return nil
	}
	return l.keeper.release(ctx, l, unused)
}

// Lose ends the lease for its holder, without telling the store. Stores call it
// when they learn that a lease has ended. The first cause stands.
func (l *Lease) Lose(cause error) { l.lose(cause) }

// lose tells whether the lease was held until now.
func (l *Lease) lose(cause error) bool {
	if l.lost.Load() != nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.loseLocked(cause)
}

func (l *Lease) loseLocked(cause error) bool {
	if l.lost.Load() != nil {
		return false
	}
	why := lost(cause)
	l.lost.Store(why)
	if l.use != nil {
		l.use.end(why)
	}
	return true
}

// end cancels what is in flight and closes the connections.
func (u *use) end(cause error) {
	u.cancel(cause)
	u.expiry.Stop()
	if u.conns != nil {
		u.conns.close()
	}
}

func (l *Lease) extend(until instant) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.errLocked(); err != nil {
		return err
	}
	l.expires = until
	if l.use != nil {
		l.use.expiry.Reset(until.until())
	}
	return nil
}

// usualEnds are the errors of the usual causes, made once.
var usualEnds = []*lostError{{ErrReleased}, {ErrExpired}, {ErrRevoked}}

func lost(cause error) *lostError {
	for _, end := range usualEnds {
		if end.cause == cause { //nolint:errorlint // these values themselves.
			return end
		}
	}
	return &lostError{cause}
}

// lostError is ErrLost with the reason.
type lostError struct{ cause error }

func (e *lostError) Error() string {
	return fmt.Sprintf("%v: %v", ErrLost, e.cause)
}

func (e *lostError) Unwrap() []error { return []error{ErrLost, e.cause} }

// Keep renews the lease in the background, each time for ttl or the store's
// default if zero, when a third of that has passed. It returns a context that
// ends with ctx and when the lease is lost, for the work that needs the lease:
// its cause then matches ErrLost. Call stop when the work is done; it does not
// release the lease.
//
// A renewal that fails is tried again until the lease has run out.
func (l *Lease) Keep(ctx context.Context, ttl time.Duration) (work context.Context, stop context.CancelFunc) {
	work, cancel := context.WithCancelCause(ctx)
	unlink := context.AfterFunc(l.Context(), func() { cancel(l.Err()) })
	go func() {
		defer unlink()
		for l.waitToRenew(work) {
			_ = l.Renew(work, ttl)
		}
	}()
	return work, func() { cancel(nil) }
}

// shortestPause is between two renewals, so that a store that fails is not
// called without end.
const shortestPause = 100 * time.Millisecond

// waitToRenew waits for two thirds of what is left of the lease to remain.
func (l *Lease) waitToRenew(work context.Context) bool {
	timer := time.NewTimer(max(time.Until(l.ExpiresAt())/3, shortestPause))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-work.Done():
		return false
	}
}
