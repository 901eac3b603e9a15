package lease

import (
	"container/list"

	"github.com/egressfleet/egress/internal/alarm"
)

// session binds the requests that name it to one endpoint.
type session struct {
	name  string
	slot  *slot
	alarm alarm.Alarm[ringer]
}

// pickLocked returns the free slot that the request is to have, or nil. A
// session stays with its endpoint as long as that may be leased for the request,
// and waits for it while another holds it.
func (m *Memory) pickLocked(req *Request, now instant) *slot {
	if bound := m.boundLocked(req, now); bound != nil {
		if m.leasable(bound, now) && bound.next == nil {
			m.settleLocked(bound, now) // it has just cooled down; its alarm is late
		}
		if bound.next != nil {
			return bound
		}
		return nil
	}
	return m.firstLocked(req, now)
}

// firstLocked returns the least recently used free slot that satisfies the request.
func (m *Memory) firstLocked(req *Request, now instant) *slot {
	if len(req.Selector) > 0 && m.index.learn(req.Selector) {
		m.index.split()
	}
	return m.index.first(req, now)
}

// boundLocked returns the slot that the request's session is to stay with.
func (m *Memory) boundLocked(req *Request, now instant) *slot {
	if req.Session == "" {
		return nil
	}
	s, ok := m.sessions[req.Session]
	if !ok || !s.slot.usable(now) || !s.slot.satisfies(req, now) {
		return nil
	}
	return s.slot
}

// bindLocked records which slot a session got.
func (m *Memory) bindLocked(name string, to *slot, now instant) {
	if name == "" {
		return
	}
	s := m.sessions[name]
	if s == nil {
		s = &session{name: name}
		s.alarm.About = s
		m.sessions[name] = s
	}
	s.slot = to
	m.alarms.Set(&s.alarm, now.plus(m.cfg.SessionTTL).time())
}

// moveSessionsLocked lets those who wait for a slot that is of no use to them any
// more have another.
func (m *Memory) moveSessionsLocked(from *slot, now instant) {
	if m.waiters.Len() == 0 {
		return
	}
	m.retryLocked(now, func(w *waiter) bool {
		s, ok := m.sessions[w.req.Session]
		return ok && s.slot == from && m.boundLocked(&w.req, now) == nil
	})
}

// ring forgets the session, and those who wait for its slot may have any other.
func (s *session) ring(m *Memory, now instant) {
	delete(m.sessions, s.name)
	m.retryLocked(now, func(w *waiter) bool { return w.req.Session == s.name })
}

// retryLocked looks anew for a slot for the waiters that are chosen.
func (m *Memory) retryLocked(now instant, chosen func(*waiter) bool) {
	for e := m.waiters.Front(); e != nil; {
		if m.serveLocked(e, chosen, now) {
			e = m.waiters.Front() // the queue may have changed anywhere
			continue
		}
		e = e.Next()
	}
}

// serveLocked gives a chosen waiter a free slot, if there is one.
func (m *Memory) serveLocked(e *list.Element, chosen func(*waiter) bool, now instant) (served bool) {
	w := e.Value.(*waiter)
	if !chosen(w) {
		return false
	}
	free := m.pickLocked(&w.req, now)
	if free == nil {
		return false
	}
	m.waiters.Remove(e)
	w.answer(m.grantLocked(free, &w.req, now), nil)
	return true
}
