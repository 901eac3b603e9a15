package discovery

import (
	"context"
	"errors"
	"time"

	"github.com/egressfleet/egress/lease"
)

// errNotLeading is what a client of a former leader is told. It asks again, and finds
// the present one.
var errNotLeading = errors.New("this replica does not lead any more: ask again")

// leading is a store that grants nothing while its process is not sure to lead. It asks
// after the grant too: the process may have been stopped since it asked before.
type leading struct {
	lease.Store
	leads func() bool
}

// WhileLeading returns a store of leases in memory that grants and extends leases only
// while leads says so.
func WhileLeading(store lease.Store, leads func() bool) lease.Store {
	return leading{store, leads}
}

func (s leading) Acquire(ctx context.Context, req lease.Request) (*lease.Lease, error) {
	return s.acquire(ctx, req, s.Store.Acquire)
}

func (s leading) TryAcquire(ctx context.Context, req lease.Request) (*lease.Lease, error) {
	return s.acquire(ctx, req, s.Store.TryAcquire)
}

func (s leading) acquire(ctx context.Context, req lease.Request, from func(context.Context, lease.Request) (*lease.Lease, error)) (*lease.Lease, error) {
	if !s.leads() {
		return nil, errNotLeading
	}
	l, err := from(ctx, req)
	if err == nil && !s.leads() {
		_ = l.ReleaseUnused(context.WithoutCancel(ctx))
		return nil, errNotLeading
	}
	return l, err
}

func (s leading) Renew(ctx context.Context, key lease.Key, ttl time.Duration) (lease.Grant, error) {
	if !s.leads() {
		return lease.Grant{}, errNotLeading
	}
	grant, err := s.Store.Renew(ctx, key, ttl)
	if err == nil && !s.leads() {
		return lease.Grant{}, errNotLeading
	}
	return grant, err
}
