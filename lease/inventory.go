package lease

import (
	"context"
	"fmt"

	"github.com/egressfleet/egress/endpoint"
)

// Put implements [Inventory].
func (m *Memory) Put(_ context.Context, e endpoint.Endpoint) error {
	if err := e.Validate(); err != nil {
		return fmt.Errorf("endpoint: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return ErrClosed
	}
	e = e.Clone()
	now := thisInstant()
	s, known := m.slots[e.ID]
	if known && s.endpoint.Generation == e.Generation && s.endpoint.URL.Equal(e.URL) {
		if !e.EgressIP.IsValid() {
			e.EgressIP = s.endpoint.EgressIP // a probe has found it out
		}
		s.endpoint = &e
		m.moveGroupLocked(s)
		m.wearLocked(s, e.EgressIP)
		m.settleLocked(s, now)
		m.offerLocked(s, now) // new attributes may satisfy others
		return nil
	}
	m.used++
	next := &slot{endpoint: &e, verdict: endpoint.Verdict{Health: endpoint.Unknown}, used: m.used}
	m.index.join(next)
	m.wearLocked(next, e.EgressIP) // before the former takes it off: bans stay
	if known {
		m.retireLocked(s, now)
		next.draining, next.former = s.draining, s.living()
	}
	m.slots[e.ID] = next
	return nil
}

// moveGroupLocked follows a change of attributes.
func (m *Memory) moveGroupLocked(s *slot) {
	if s.next != nil {
		s.unlink() // settling lists it again
	}
	m.index.leave(s)
	m.index.join(s)
}

// retireLocked takes the slot out of all lists. Its leases go on.
func (m *Memory) retireLocked(s *slot, now instant) {
	if s.next != nil {
		s.unlink()
	}
	if s.held == nil {
		m.alarms.Clear(&s.alarm)
	}
	if s.face.isOwn() {
		for _, b := range s.face.domains() {
			m.alarms.Clear(&b.alarm)
		}
	}
	m.takeOffLocked(s)
	m.index.leave(s)
	s.gone = true
	delete(m.slots, s.endpoint.ID)
	m.moveSessionsLocked(s, now)
}

// living is the slot, or the latest of its former ones, that is still leased.
func (s *slot) living() *slot {
	for ; s != nil; s = s.former {
		if s.held != nil {
			return s
		}
	}
	return nil
}

// Remove implements [Inventory].
func (m *Memory) Remove(_ context.Context, id string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s, ok := m.slots[id]; ok {
		now := thisInstant()
		m.retireLocked(s, now)
		m.revokeLocked(s, now)
	}
	return nil
}

// revokeLocked ends the leases on a slot and its former ones. The lock delay keeps
// those who wait from it.
func (m *Memory) revokeLocked(s *slot, now instant) {
	for ; s != nil; s = s.former {
		for s.held != nil {
			m.stats.Revoked++
			m.endLocked(s.held, ErrRevoked, now)
		}
	}
}

// SetVerdict implements [Inventory].
func (m *Memory) SetVerdict(_ context.Context, id string, v endpoint.Verdict) error {
	return m.change(id, func(s *slot, _ instant) {
		if v.Generation != s.endpoint.Generation {
			return
		}
		s.verdict = v
		if v.EgressIP.IsValid() {
			e := *s.endpoint
			e.EgressIP = v.EgressIP
			s.endpoint = &e
			m.wearLocked(s, v.EgressIP)
		}
	})
}

// Drain implements [Inventory].
func (m *Memory) Drain(_ context.Context, id string) (held int, err error) {
	err = m.change(id, func(s *slot, _ instant) {
		s.draining = true
		for ; s != nil; s = s.former {
			held += s.holders
		}
	})
	return held, err
}

// Revoke implements [Inventory].
func (m *Memory) Revoke(_ context.Context, id string) error {
	return m.change(id, m.revokeLocked)
}

// change runs f on the slot under the lock and settles it.
func (m *Memory) change(id string, f func(*slot, instant)) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return ErrClosed
	}
	s, ok := m.slots[id]
	if !ok {
		return fmt.Errorf("%w: %s", ErrUnknownEndpoint, id)
	}
	now := thisInstant()
	f(s, now)
	m.settleLocked(s, now)
	return nil
}

// reportBuffer is how far a reader of Reports may fall behind.
const reportBuffer = 256

// Reports implements [Inventory].
func (m *Memory) Reports(ctx context.Context) <-chan Report {
	reports := make(chan Report, reportBuffer)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.readers[reports] = struct{}{}
	context.AfterFunc(ctx, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.readers, reports)
		close(reports)
	})
	return reports
}

func (m *Memory) publishLocked(r Report) {
	for reader := range m.readers {
		select {
		case reader <- r:
		default:
			m.stats.DroppedReports++
		}
	}
}
