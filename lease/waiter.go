package lease

import (
	"container/list"
	"context"
	"errors"
	"time"

	"github.com/egressfleet/egress/endpoint"
)

// waiter is an Acquire that found nothing free. As long as it is in the queue,
// no free slot satisfies it: so whoever finds one free overtakes nobody.
type waiter struct {
	req   Request
	since time.Time
	ready chan struct{}
	// Set before ready is closed.
	lease *Lease
	err   error
}

func newWaiter(req Request) *waiter {
	return &waiter{req: req, since: time.Now(), ready: make(chan struct{})}
}

func (w *waiter) answer(l *Lease, err error) {
	w.lease, w.err = l, err
	close(w.ready)
}

// wait blocks until the waiter is served or ctx ends.
func (m *Memory) wait(ctx context.Context, w *waiter, element *list.Element) (*Lease, error) {
	select {
	case <-w.ready:
	case <-ctx.Done():
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	waited := time.Since(w.since)
	m.stats.WaitTime += waited
	select {
	case <-w.ready: // even where ctx ended too: a lease that was granted is not lost
		return w.lease, w.err
	default:
	}
	m.waiters.Remove(element)
	m.stats.Canceled++
	return nil, m.endOfWaitLocked(&w.req, waited, ctx.Err())
}

// offerLocked gives a free slot to the waiters whom it satisfies, in turn, as
// long as it is free.
func (m *Memory) offerLocked(s *slot) {
	now := time.Now()
	for e := m.waiters.Front(); e != nil && s.next != nil; {
		w, next := e.Value.(*waiter), e.Next()
		bound := m.boundLocked(&w.req, now)
		if (bound == nil || bound == s) && s.satisfies(&w.req, now) {
			m.waiters.Remove(e)
			w.answer(m.grantLocked(s, w.req, now), nil)
			return // granting has settled the slot, and offered it to the others
		}
		e = next
	}
}

// settleLocked puts the slot where it belongs after any change of it, offers it
// to waiters if it is free, and lets sessions go if it is of no use.
func (m *Memory) settleLocked(s *slot, now time.Time) {
	listed, free := s.next != nil, m.leasable(s, now)
	switch {
	case free && !listed:
		s.group.free.insert(s)
		m.offerLocked(s)
	case !free && listed:
		s.unlink()
	}
	if !s.usable(now) {
		m.moveSessionsLocked(s)
	}
	if s.coolUntil.After(now) && !s.gone {
		s.cooling.About.slot = s
		m.alarms.Set(&s.cooling, s.coolUntil)
	}
}

// unavailableLocked is the error for a request that nothing satisfies now.
func (m *Memory) unavailableLocked(req *Request, waited time.Duration) *UnavailableError {
	now := time.Now()
	e := &UnavailableError{Counts: m.countLocked(req, now), Waited: waited, Err: ErrNoneFree}
	if e.Counts.Total == e.Counts.Draining+e.Counts.NotSelected {
		e.Err = ErrNoMatch
		return e
	}
	e.RetryAfter = m.nextFreeLocked(req, now)
	return e
}

func (m *Memory) endOfWaitLocked(req *Request, waited time.Duration, cause error) error {
	e := m.unavailableLocked(req, waited)
	e.Err = errors.Join(e.Err, cause)
	return e
}

// nextFreeLocked is when the first healthy slot frees itself, or zero.
func (m *Memory) nextFreeLocked(req *Request, now time.Time) time.Duration {
	var soonest time.Duration
	for _, s := range m.slots {
		if s.draining || s.verdict.Health != endpoint.Healthy || !req.Selector.Matches(s.endpoint.Attributes) {
			continue
		}
		if in := m.freeAt(s, req.Domain).Sub(now); in > 0 && (soonest == 0 || in < soonest) {
			soonest = in
		}
	}
	return soonest
}
