package lease

import "time"

// ringer is what an alarm of the store is about: a slot to be looked at, a domain
// that blocks no more, a session or an ended lease to be forgotten.
type ringer interface {
	// ring runs under the store's lock when the time has come.
	ring(m *Memory, now instant)
}

// onAlarm runs when the timer rings.
func (m *Memory) onAlarm() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return
	}
	now := time.Now()
	for a := m.alarms.Due(now); a != nil; a = m.alarms.Due(now) {
		a.About.ring(m, thisInstant())
	}
	m.alarms.Rearm()
}

// wakeLocked has the slot looked at by that time at the latest. An alarm that rings
// sooner is left as it is, and looks when it is next to ring. So an ordinary lease
// moves no alarm: its slot's still stands from an earlier one.
func (m *Memory) wakeLocked(s *slot, at instant) {
	if !s.alarm.IsSet() || at < s.wakes {
		s.alarm.About, s.wakes = s, at
		m.alarms.Set(&s.alarm, at.time())
	}
}

// ring ends the leases of the slot whose time has run out, and its cooldown.
func (s *slot) ring(m *Memory, now instant) {
	for h := s.overdue(now); h != nil; h = s.overdue(now) {
		m.expireLocked(h, now)
	}
	m.settleLocked(s, now)
	for h := s.held; h != nil; h = h.next {
		m.wakeLocked(s, h.deadline)
	}
}

// overdue returns a lease whose time has run out, or nil.
func (s *slot) overdue(now instant) *held {
	for h := s.held; h != nil; h = h.next {
		if h.deadline <= now {
			return h
		}
	}
	return nil
}
