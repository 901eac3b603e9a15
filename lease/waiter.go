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
	req     Request
	since   instant
	element *list.Element // in the queue
	ready   chan struct{}
	// Set before ready is closed.
	lease *Lease
	err   error
}

// queueLocked puts the request at the end of the queue.
func (m *Memory) queueLocked(req *Request, now instant) *waiter {
	w := &waiter{req: *req, since: now, ready: make(chan struct{})}
	w.element = m.waiters.PushBack(w)
	return w
}

func (w *waiter) answer(l *Lease, err error) {
	w.lease, w.err = l, err
	close(w.ready)
}

// wait blocks until the waiter is served or ctx ends.
func (m *Memory) wait(ctx context.Context, w *waiter) (*Lease, error) {
	select {
	case <-w.ready:
	case <-ctx.Done():
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	waited := thisInstant().since(w.since)
	m.stats.WaitTime += waited
	select {
	case <-w.ready: // even where ctx ended too: a lease that was granted is not lost
		return w.lease, w.err
	default:
	}
	m.waiters.Remove(w.element)
	m.stats.Canceled++
	return nil, m.endOfWaitLocked(&w.req, waited, ctx.Err())
}

// offerLocked gives a free slot to the waiters whom it satisfies, in turn, as
// long as it is free.
func (m *Memory) offerLocked(s *slot, now instant) {
	for e := m.waiters.Front(); e != nil && s.next != nil; {
		w, next := e.Value.(*waiter), e.Next()
		bound := m.boundLocked(&w.req, now)
		if (bound == nil || bound == s) && s.satisfies(&w.req, now) {
			m.waiters.Remove(e)
			w.answer(m.grantLocked(s, &w.req, now), nil)
			return // granting has settled the slot, and offered it to the others
		}
		e = next
	}
}

// settleLocked puts the slot where it belongs after any change of it, offers it
// to waiters if it is free, and lets sessions go if it is of no use.
func (m *Memory) settleLocked(s *slot, now instant) {
	listed, free := s.next != nil, m.leasable(s, now)
	switch {
	case free && !listed:
		m.index.list(s)
		m.offerLocked(s, now)
	case !free && listed:
		s.unlink()
	}
	if !s.usable(now) {
		m.moveSessionsLocked(s, now)
	}
	if s.coolUntil > now && !s.gone {
		m.wakeLocked(s, s.coolUntil)
	}
}

// unavailableLocked is the error for a request that nothing satisfies now.
func (m *Memory) unavailableLocked(req *Request, waited time.Duration) *UnavailableError {
	now := thisInstant()
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
func (m *Memory) nextFreeLocked(req *Request, now instant) time.Duration {
	var soonest time.Duration
	for _, s := range m.slots {
		if s.draining || s.verdict.Health != endpoint.Healthy || !req.Selector.Matches(s.endpoint.Attributes) {
			continue
		}
		if in := m.freeAt(s, req.Domain).since(now); in > 0 && (soonest == 0 || in < soonest) {
			soonest = in
		}
	}
	return soonest
}
