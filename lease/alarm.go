package lease

import "time"

// matter is what an alarm of the store is about: a lease that expires, a slot
// that has cooled down, for all or for a domain, or an ended lease to be
// forgotten.
type matter struct {
	lease  *held
	slot   *slot
	domain string
	forget string
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
		m.expireLocked(about.lease)
	case about.forget != "":
		delete(m.ended, about.forget)
	case about.domain != "":
		m.unblockLocked(about.slot, about.domain, now)
	default:
		m.settleLocked(about.slot, now)
	}
}

// unblockLocked runs when a domain's cooldown ends, and once more when the
// memory of it does.
func (m *Memory) unblockLocked(s *slot, domain string, now time.Time) {
	b, ok := s.blocks[domain]
	if !ok {
		return
	}
	forgetAt := b.until.Add(m.cfg.MaxDomainCooldown)
	if !forgetAt.After(now) {
		delete(s.blocks, domain)
		return
	}
	m.alarms.Set(&b.alarm, forgetAt)
	m.offerLocked(s)
}
