package lease

import (
	"context"
	"fmt"
	"time"

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
	s, known := m.slots[e.ID]
	if known && s.endpoint.Generation == e.Generation && s.endpoint.URL.Equal(e.URL) {
		s.endpoint = e.Clone()
		return nil
	}
	if known {
		m.retireLocked(s)
	}
	m.used++
	m.slots[e.ID] = &slot{
		endpoint: e.Clone(), verdict: endpoint.Verdict{Health: endpoint.Unknown}, used: m.used,
		draining: known && s.draining,
	}
	return nil
}

// retireLocked takes the slot out of all lists. Its lease goes on.
func (m *Memory) retireLocked(s *slot) {
	if s.next != nil {
		m.free.remove(s)
	}
	m.alarms.Clear(&s.cooling)
	for _, b := range s.blocks {
		m.alarms.Clear(&b.alarm)
	}
	s.gone = true
	delete(m.slots, s.endpoint.ID)
}

// Remove implements [Inventory].
func (m *Memory) Remove(_ context.Context, id string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, h := range m.heldOnLocked(id) {
		m.stats.Revoked++
		m.endLocked(h, ErrRevoked)
	}
	if s, ok := m.slots[id]; ok {
		m.retireLocked(s)
	}
	return nil
}

// heldOnLocked returns the leases on the endpoint, of all its generations.
func (m *Memory) heldOnLocked(id string) []*held {
	var all []*held
	for _, h := range m.leases {
		if h.slot.endpoint.ID == id {
			all = append(all, h)
		}
	}
	return all
}

// SetVerdict implements [Inventory].
func (m *Memory) SetVerdict(_ context.Context, id string, v endpoint.Verdict) error {
	return m.change(id, func(s *slot) {
		if v.Generation != s.endpoint.Generation {
			return
		}
		s.verdict = v
		if v.EgressIP.IsValid() {
			s.endpoint.EgressIP = v.EgressIP
		}
	})
}

// Drain implements [Inventory].
func (m *Memory) Drain(_ context.Context, id string) (int, error) {
	if err := m.change(id, func(s *slot) { s.draining = true }); err != nil {
		return 0, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.heldOnLocked(id)), nil
}

// Revoke implements [Inventory].
func (m *Memory) Revoke(_ context.Context, id string) error {
	return m.change(id, func(*slot) {
		for _, h := range m.heldOnLocked(id) {
			m.stats.Revoked++
			m.endLocked(h, ErrRevoked)
		}
	})
}

// change runs f on the slot under the lock and settles it.
func (m *Memory) change(id string, f func(*slot)) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return ErrClosed
	}
	s, ok := m.slots[id]
	if !ok {
		return fmt.Errorf("%w: %s", ErrUnknownEndpoint, id)
	}
	f(s)
	m.settleLocked(s, time.Now())
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
