package lease

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/egressfleet/egress/endpoint"
)

// Lease is the right to use one endpoint until a deadline. It is safe for
// concurrent use: one holder may send many requests at once.
type Lease struct {
	store     Store
	grant     Grant
	transport *endpoint.TransportConfig // never changed

	mu        sync.Mutex
	expiresAt time.Time
	lost      error // why it has ended, once it has
	client    *http.Client
	conns     *transport // the client's
	// Of the context, made when first asked for.
	ctx    context.Context
	cancel context.CancelCauseFunc
	expiry *time.Timer
}

// New makes the lease for what a store granted. Stores call it; asked is when
// the holder's request was sent, by the holder's clock. The transport is what
// [Lease.Client] uses.
func New(store Store, grant Grant, asked time.Time, transport endpoint.TransportConfig) *Lease {
	l := &Lease{}
	l.init(store, grant, asked, &transport)
	return l
}

func (l *Lease) init(store Store, grant Grant, asked time.Time, transport *endpoint.TransportConfig) {
	l.store, l.grant, l.transport, l.expiresAt = store, grant, transport, asked.Add(grant.TTL)
}

// Key identifies the lease to its store.
func (l *Lease) Key() Key { return l.grant.Key }

// Grant returns what the store granted. TTL is that of the acquire, and the
// endpoint's attributes must not be changed.
func (l *Lease) Grant() Grant { return l.grant }

// Endpoint returns what is leased.
func (l *Lease) Endpoint() endpoint.Endpoint { return l.grant.Endpoint.Clone() }

// Domain returns the domain that the lease was acquired for.
func (l *Lease) Domain() string { return l.grant.Domain }

// ExpiresAt is when the lease ends unless it is renewed.
func (l *Lease) ExpiresAt() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.expiresAt
}

// Context ends when the lease does. Its cause says why.
func (l *Lease) Context() context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.contextLocked()
}

func (l *Lease) contextLocked() context.Context {
	if l.ctx != nil {
		return l.ctx
	}
	l.ctx, l.cancel = context.WithCancelCause(context.Background())
	if l.lost != nil {
		l.cancel(l.lost)
		return l.ctx
	}
	l.expiry = time.AfterFunc(time.Until(l.expiresAt), func() { _ = l.Err() })
	return l.ctx
}

// Err returns nil while the lease is held, and then an error that matches
// ErrLost and the reason: ErrReleased, ErrExpired or ErrRevoked.
func (l *Lease) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.errLocked()
}

func (l *Lease) errLocked() error {
	if l.lost == nil && !l.expiresAt.After(time.Now()) {
		l.loseLocked(ErrExpired)
	}
	return l.lost
}

// Client returns a client that goes through the leased proxy alone, with a
// transport of its own, made at the first call. It works as long as the lease
// is held; requests in flight are cancelled when it ends. It has no timeout:
// give each request a deadline.
func (l *Lease) Client() *http.Client {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.client == nil {
		l.conns = newTransport(l.contextLocked(), l)
		l.client = &http.Client{Transport: l.conns}
	}
	return l.client
}

// ProxyURL returns the proxy for programs that connect by themselves, such as
// a browser; its Reveal gives the credentials. It fails once the lease is lost.
// Such a program must stop when [Lease.Context] ends.
func (l *Lease) ProxyURL() (endpoint.URL, error) {
	if err := l.Err(); err != nil {
		return endpoint.URL{}, err
	}
	return l.grant.Endpoint.URL, nil
}

// Renew extends the lease to end ttl from now, or the store's default for zero.
// When the store says that the lease is not held any more, it is lost.
func (l *Lease) Renew(ctx context.Context, ttl time.Duration) error {
	if err := l.Err(); err != nil {
		return err
	}
	asked := time.Now()
	grant, err := l.store.Renew(ctx, l.grant.Key, ttl)
	if errors.Is(err, ErrNotHeld) || errors.Is(err, ErrExpired) {
		l.Lose(err)
	}
	if err != nil {
		return err
	}
	return l.extend(asked.Add(grant.TTL))
}

// Report says how a use of the lease went.
func (l *Lease) Report(ctx context.Context, outcome Outcome) error {
	return l.store.Report(ctx, l.grant.Key, outcome)
}

// Release ends the lease and closes its connections. It may be called again.
// The lease is lost to its holder even where the store cannot be told.
func (l *Lease) Release(ctx context.Context) error {
	return l.end(ctx, l.store.Release)
}

// ReleaseUnused is [Lease.Release] for a lease that was not used.
func (l *Lease) ReleaseUnused(ctx context.Context) error {
	return l.end(ctx, l.store.ReleaseUnused)
}

func (l *Lease) end(ctx context.Context, tell func(context.Context, Key) error) error {
	l.mu.Lock()
	ended := l.lost != nil
	l.loseLocked(ErrReleased)
	l.mu.Unlock()
	if ended {
		return nil
	}
	return tell(ctx, l.grant.Key)
}

// Lose ends the lease for its holder, without telling the store. Stores call it
// when they learn that a lease has ended. The first cause stands.
func (l *Lease) Lose(cause error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.loseLocked(cause)
}

func (l *Lease) loseLocked(cause error) {
	if l.lost != nil {
		return
	}
	l.lost = lost(cause)
	if l.ctx != nil {
		l.cancel(l.lost)
		l.expiry.Stop()
	}
	if l.conns != nil {
		l.conns.close()
	}
}

func (l *Lease) extend(until time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.errLocked(); err != nil {
		return err
	}
	l.expiresAt = until
	if l.expiry != nil {
		l.expiry.Reset(time.Until(until))
	}
	return nil
}

// usualEnds are the errors of the usual causes, made once.
var usualEnds = []*lostError{{ErrReleased}, {ErrExpired}, {ErrRevoked}}

func lost(cause error) error {
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
