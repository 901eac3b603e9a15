package leasehttp

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/egressfleet/egress/lease"
)

// pendings are the acquires by their request IDs. Each goes on without its client
// for a grace, so that a client that polls keeps its place in the queue, and one
// that lost the answer gets it again.
type pendings struct {
	store lease.Store
	grace time.Duration
	most  int
	work  sync.WaitGroup

	mu     sync.Mutex
	closed bool
	byID   map[string]*pending
	byKey  map[lease.Key]string // IDs of those that were granted
	unseen int                  // those that are not granted yet
}

// pending is one acquire.
type pending struct {
	id string
	// immediate is whether it began without a wait: then its answer is on the way.
	immediate bool
	cancel    context.CancelFunc
	done      chan struct{}
	// Set before done is closed.
	lease *lease.Lease
	grant lease.Grant
	err   error

	// The rest is guarded by the lock of pendings.
	delivered bool
	polls     int
	expiry    *time.Timer // runs while nobody polls
}

func newPendings(cfg HandlerConfig) *pendings {
	return &pendings{
		store: cfg.Store, grace: cfg.PollGrace, most: cfg.MaxPending,
		byID: map[string]*pending{}, byKey: map[lease.Key]string{},
	}
}

// acquire waits for the grant of a request, and no longer than wait. One without
// an ID is forgotten with its call.
func (p *pendings) acquire(ctx context.Context, id string, named bool, req lease.Request, wait time.Duration) (lease.Grant, error) {
	if !named {
		return p.once(ctx, req, wait)
	}
	r, err := p.join(id, req, wait)
	if err != nil {
		return lease.Grant{}, err
	}
	defer p.leave(r)
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-r.done:
	case <-timer.C:
		if !r.settled() {
			return lease.Grant{}, p.notYet(ctx, wait)
		}
	case <-ctx.Done():
		return lease.Grant{}, ctx.Err()
	}
	return p.deliver(r)
}

// settled tells whether the answer is there, and waits for one that is on its way.
func (r *pending) settled() bool {
	if r.immediate {
		<-r.done
	}
	return r.over()
}

// once is an acquire without an ID: when its client is gone, so is its lease.
func (p *pendings) once(ctx context.Context, req lease.Request, wait time.Duration) (lease.Grant, error) {
	l, err := p.try(ctx, req, wait)
	if err != nil {
		return lease.Grant{}, err
	}
	if ctx.Err() != nil {
		_ = l.ReleaseUnused(context.WithoutCancel(ctx))
		return lease.Grant{}, ctx.Err()
	}
	return l.Grant(), nil
}

func (p *pendings) try(ctx context.Context, req lease.Request, wait time.Duration) (*lease.Lease, error) {
	if wait == 0 {
		return p.store.TryAcquire(ctx, req)
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	return p.store.Acquire(ctx, req)
}

// notYet says why there is no lease yet.
func (p *pendings) notYet(ctx context.Context, waited time.Duration) error {
	stats, err := p.store.Stats(ctx)
	if err != nil {
		return err
	}
	return &lease.UnavailableError{Counts: stats.Endpoints, Waited: waited, Err: lease.ErrNoneFree}
}

// join finds the request of that ID, or begins it.
func (p *pendings) join(id string, req lease.Request, wait time.Duration) (*pending, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r, ok := p.byID[id]
	switch {
	case p.closed:
		return nil, lease.ErrClosed
	case ok && (!r.over() || r.err == nil):
		r.polls++
		if r.expiry != nil {
			r.expiry.Stop()
		}
		return r, nil
	case p.unseen >= p.most:
		return nil, &apiError{http.StatusServiceUnavailable, codeUnavailable, "too many acquires are waiting: try again later"}
	}
	ctx, cancel := context.WithCancel(context.Background())
	r = &pending{id: id, immediate: wait == 0, cancel: cancel, done: make(chan struct{}), polls: 1}
	p.byID[id] = r
	p.unseen++
	p.work.Go(func() { p.run(ctx, r, req) })
	return r, nil
}

func (r *pending) over() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

// run asks the store, once for each request.
func (p *pendings) run(ctx context.Context, r *pending, req lease.Request) {
	if r.immediate {
		r.lease, r.err = p.store.TryAcquire(ctx, req)
	} else {
		r.lease, r.err = p.store.Acquire(ctx, req)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unseen--
	if r.err == nil {
		r.grant = r.lease.Grant()
		p.byKey[r.grant.Key] = r.id
	}
	close(r.done)
	if p.byID[r.id] != r { // given up in the meantime
		p.giveBackLocked(r)
	}
}

// deliver hands the grant out, as often as it is asked for while it lasts.
func (p *pendings) deliver(r *pending) (lease.Grant, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.err != nil {
		return lease.Grant{}, r.err
	}
	if err := r.lease.Err(); err != nil {
		return lease.Grant{}, err
	}
	r.delivered = true
	grant := r.grant
	// A client that asks again counts from now.
	grant.TTL = time.Until(r.lease.ExpiresAt())
	return grant, nil
}

// leave starts the grace of a request that nobody polls. A lease that was
// delivered is remembered for as long as it was granted.
func (p *pendings) leave(r *pending) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r.polls--
	if r.polls > 0 || p.byID[r.id] != r {
		return
	}
	grace := p.grace
	if r.delivered {
		grace = max(grace, time.Until(r.lease.ExpiresAt()))
	}
	if r.over() && r.err != nil {
		p.dropLocked(r)
		return
	}
	r.expiry = time.AfterFunc(grace, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.byID[r.id] == r && r.polls == 0 {
			p.dropLocked(r)
		}
	})
}

// giveUp ends a request. A lease that came of it is given back.
func (p *pendings) giveUp(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r, ok := p.byID[id]; ok {
		r.delivered = false
		p.dropLocked(r)
	}
}

// released forgets the request that led to a lease.
func (p *pendings) released(key lease.Key) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r, ok := p.byID[p.byKey[key]]; ok {
		p.dropLocked(r)
	}
}

func (p *pendings) dropLocked(r *pending) {
	delete(p.byID, r.id)
	if r.expiry != nil {
		r.expiry.Stop()
	}
	r.cancel()
	if r.over() {
		p.giveBackLocked(r)
	}
}

// giveBackLocked releases a lease that no client has.
func (p *pendings) giveBackLocked(r *pending) {
	delete(p.byKey, r.grant.Key)
	if r.err == nil && !r.delivered {
		p.work.Go(func() { _ = r.lease.ReleaseUnused(context.Background()) })
	}
}

func (p *pendings) close() {
	p.mu.Lock()
	p.closed = true
	for _, r := range p.byID {
		p.dropLocked(r)
	}
	p.mu.Unlock()
	p.work.Wait()
}
