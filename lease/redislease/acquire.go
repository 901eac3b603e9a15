package redislease

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/egressfleet/egress/lease"
)

// want is one acquire. Its ID is that of the lease it becomes: so a call whose
// answer is lost is made again and gives the same.
type want struct {
	id       string
	selector string
	req      lease.Request
	arrived  int64 // the server's time when it came to wait, or zero
}

func newWant(req lease.Request) (*want, error) {
	if err := req.Validate(); err != nil {
		return nil, fmt.Errorf("lease.Request: %w", err)
	}
	req.Domain = canonicalDomain(req.Domain)
	return &want{id: rand.Text(), selector: selectorText(req.Selector), req: req}, nil
}

// outcome is what an acquire came to: a lease, a place in the queue or a reason.
type outcome struct {
	lease   *lease.Lease
	why     *lease.UnavailableError
	nextDue time.Duration // when something may change by itself
}

// TryAcquire implements [lease.Store].
func (s *Store) TryAcquire(ctx context.Context, req lease.Request) (*lease.Lease, error) {
	w, err := newWant(req)
	if err != nil {
		return nil, err
	}
	o, err := s.ask(ctx, w, false)
	switch {
	case err != nil:
		s.giveBack(w)
		return nil, err
	case o.lease != nil:
		return o.lease, nil
	}
	return nil, o.why
}

// Acquire implements [lease.Store]. As long as Redis does not answer it waits too.
func (s *Store) Acquire(ctx context.Context, req lease.Request) (*lease.Lease, error) {
	w, err := newWant(req)
	if err != nil {
		return nil, err
	}
	woken := s.enter(w.id)
	defer s.exit(w.id)
	began := time.Now()
	for {
		o, err := s.ask(ctx, w, true)
		switch {
		case ctx.Err() != nil && (err != nil || o.lease == nil):
			return s.stopWaiting(ctx, w, began, nil)
		case permanent(err):
			s.giveBack(w)
			return nil, err
		case err == nil && o.lease != nil:
			return o.lease, nil
		}
		if !s.pause(ctx, woken, o.nextDue) {
			return s.stopWaiting(ctx, w, began, err)
		}
	}
}

// pause waits until there is a reason to ask again. It tells whether there can be
// one.
func (s *Store) pause(ctx context.Context, woken <-chan struct{}, nextDue time.Duration) bool {
	wait := s.cfg.PollInterval
	if nextDue > 0 {
		wait = min(wait, nextDue+time.Millisecond)
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-woken:
	case <-timer.C:
	case <-ctx.Done():
		return false
	case <-s.ctx.Done():
		return false
	}
	return true
}

// ask runs the acquire once. It takes a place in the queue, or keeps it, with wait.
func (s *Store) ask(ctx context.Context, w *want, wait bool) (outcome, error) {
	if ctx.Err() != nil {
		return outcome{}, fmt.Errorf("redislease: %w", ctx.Err())
	}
	asked := time.Now()
	args := []any{w.id, w.selector, w.req.Domain, micros(s.cfg.ttl(w.req.TTL)), w.req.Holder, ""}
	if wait {
		args[5] = w.arrived
	}
	if w.req.Session != "" {
		args = append(args, w.req.Session)
	}
	r, err := s.do(ctx, s.lua.acquire, args...)
	if err != nil {
		return outcome{}, err
	}
	word, err := r.word("lease", "wait", "none", "gone")
	if word == "wait" && !wait {
		word, err = r.word() // to nobody who waits
	}
	switch word {
	case "":
		return outcome{}, err
	case "lease":
		l, err := s.leaseOf(w, r.list(1), asked)
		return outcome{lease: l}, err
	case "wait":
		w.arrived = r.number(1)
		return outcome{nextDue: duration(r.number(2))}, nil
	}
	return outcome{why: unavailable(r)}, nil
}

func (s *Store) leaseOf(w *want, r reply, asked time.Time) (*lease.Lease, error) {
	if len(r) == 2 { // by the short way, which grants what was asked for
		r = append(r, micros(s.cfg.ttl(w.req.TTL)), w.req.Domain)
	}
	grant, err := s.grantOf(w.id, r)
	if err != nil {
		return nil, err
	}
	if log := s.log.V(1); log.Enabled() {
		log.Info("leased", "endpoint", grant.Endpoint.ID, "holder", w.req.Holder, "domain", w.req.Domain, "token", grant.Token, "ttl", grant.TTL)
	}
	return lease.New(s, grant, asked, s.cfg.Transport), nil
}

// unavailable reads why nothing came.
func unavailable(r reply) *lease.UnavailableError {
	e := &lease.UnavailableError{Counts: countsOf(r.list(1)), RetryAfter: duration(r.count(2)), Err: lease.ErrNoneFree}
	if e.Counts.Total == e.Counts.Draining+e.Counts.NotSelected {
		e.RetryAfter, e.Err = 0, lease.ErrNoMatch
	}
	return e
}

// patience is how long an acquire whose context has ended waits to be told why
// nothing came.
const patience = 500 * time.Millisecond

// stopWaiting leaves the queue. A lease that was granted meanwhile is not lost.
func (s *Store) stopWaiting(ctx context.Context, w *want, began time.Time, last error) (*lease.Lease, error) {
	if s.ctx.Err() != nil {
		return nil, lease.ErrClosed
	}
	asked := time.Now()
	telling, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	r, err := s.leave(telling, w, "keep")
	word := ""
	if err == nil {
		word, err = r.word("lease", "none")
	}
	if err != nil {
		s.giveBack(w)
		return nil, fmt.Errorf("no lease after %v: %w", time.Since(began).Round(time.Millisecond), errors.Join(ctx.Err(), last, err))
	}
	if word == "lease" {
		return s.leaseOf(w, r.list(1), asked)
	}
	e := unavailable(r)
	e.Waited = time.Since(began)
	e.Err = errors.Join(e.Err, ctx.Err())
	return nil, e
}

func (s *Store) leave(ctx context.Context, w *want, keep string) (reply, error) {
	return s.do(ctx, s.lua.leave, w.id, w.selector, w.req.Domain, w.req.Session, keep)
}

// giveBack ends, in the background, an acquire whose answer nobody has seen. Where
// that fails too, the lease ends by its time.
func (s *Store) giveBack(w *want) {
	s.begin(func() {
		ctx, cancel := context.WithTimeout(s.ctx, s.cfg.grace())
		defer cancel()
		for {
			_, err := s.leave(ctx, w, "")
			if err == nil || permanent(err) || !s.pause(ctx, nil, 0) {
				return
			}
		}
	})
}
