package lease

import (
	"context"
	"time"

	"github.com/egressfleet/egress/endpoint"
)

// keeper is a lease's way to its store.
type keeper interface {
	idOf(l *Lease) string
	transport() *endpoint.TransportConfig
	renew(ctx context.Context, l *Lease, ttl time.Duration) (granted time.Duration, err error)
	release(ctx context.Context, l *Lease, unused bool) error
	report(ctx context.Context, l *Lease, outcome Outcome) error
}

// byKey keeps a lease whose store is reached by its key.
type byKey struct {
	store  Store
	id     string
	config endpoint.TransportConfig
}

func (k *byKey) idOf(*Lease) string { return k.id }

func (k *byKey) transport() *endpoint.TransportConfig { return &k.config }

func (k *byKey) renew(ctx context.Context, l *Lease, ttl time.Duration) (time.Duration, error) {
	grant, err := k.store.Renew(ctx, l.Key(), ttl)
	return grant.TTL, err
}

func (k *byKey) release(ctx context.Context, l *Lease, unused bool) error {
	if unused {
		return k.store.ReleaseUnused(ctx, l.Key())
	}
	return k.store.Release(ctx, l.Key())
}

func (k *byKey) report(ctx context.Context, l *Lease, outcome Outcome) error {
	return k.store.Report(ctx, l.Key(), outcome)
}

// Memory is the keeper of its own leases, which it finds by their numbers.

func (m *Memory) idOf(l *Lease) string { return m.leases.id(l.number) }

func (m *Memory) transport() *endpoint.TransportConfig { return &m.cfg.Transport }

func (m *Memory) renew(_ context.Context, l *Lease, ttl time.Duration) (time.Duration, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, ttl, err := m.renewLocked(l.number, l.token, ttl)
	return ttl, err
}

func (m *Memory) release(_ context.Context, l *Lease, unused bool) error {
	return m.end(l.number, l.token, unused)
}

func (m *Memory) report(_ context.Context, l *Lease, o Outcome) error {
	return m.tell(l.number, l.token, o)
}
