package lease

import "time"

// matter is what an alarm of the store is about: a lease that expires, a slot
// that has cooled down, a face that a domain blocks no more, a session or an
// ended lease to be forgotten.
type matter struct {
	lease   *held
	slot    *slot
	face    *face
	domain  string
	session *session
	forget  string
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
		m.handleLocked(a.About, now)
	}
	m.alarms.Rearm()
}

func (m *Memory) handleLocked(about matter, now time.Time) {
	switch {
	case about.lease != nil:
		m.expireLocked(about.lease, now)
	case about.forget != "":
		delete(m.ended, about.forget)
	case about.face != nil:
		m.unblockLocked(about.face, about.domain, now)
	case about.session != nil:
		m.forgetSessionLocked(about.session)
	default:
		m.settleLocked(about.slot, now)
	}
}
