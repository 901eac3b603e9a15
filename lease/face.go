package lease

import (
	"maps"
	"net/netip"

	"github.com/egressfleet/egress/internal/alarm"
)

// face is what targets see: an egress address, behind which several endpoints
// may stand, or one endpoint whose address is not known. Domains block faces.
type face struct {
	address netip.Addr // zero for an endpoint's own
	slots   map[*slot]struct{}
	blocks  map[string]*block
}

// block is a domain's refusal. It stays after its end, so that the next one is
// longer, until the domain answers again or has not blocked for as long as a
// cooldown may be.
type block struct {
	until instant
	count int
	token int64 // the store's latest when it was counted

	face   *face
	domain string
	alarm  alarm.Alarm[ringer]
}

// putOn gives the slot a face.
func (s *slot) putOn(f *face) {
	if f.slots == nil {
		f.slots = map[*slot]struct{}{}
	}
	s.face = f
	f.slots[s] = struct{}{}
}

// isOwn tells whether the face is that of one endpoint. So is none, as it is as
// long as nothing is known.
func (f *face) isOwn() bool { return f == nil || !f.address.IsValid() }

// domains returns what is held against the face.
func (f *face) domains() map[string]*block {
	if f == nil {
		return nil
	}
	return f.blocks
}

func (f *face) block(domain string) *block {
	if f.blocks == nil {
		f.blocks = map[string]*block{}
	}
	b := f.blocks[domain]
	if b == nil {
		b = &block{face: f, domain: domain}
		b.alarm.About = b
		f.blocks[domain] = b
	}
	return b
}

func (f *face) blockedFor(domain string, now instant) bool {
	if f == nil || f.blocks == nil || domain == "" {
		return false
	}
	b, ok := f.blocks[domain]
	return ok && b.until > now
}

// forgive ends the growth of a domain's cooldown, not one that runs. A lease
// from before the block proves nothing.
func (f *face) forgive(domain string, token int64) {
	if b, ok := f.domains()[domain]; ok && token > b.token {
		b.count = 0
	}
}

// wearLocked gives the slot the face of its egress address, with what domains
// had against its former one. Loopback is nobody's identity.
func (m *Memory) wearLocked(s *slot, address netip.Addr) {
	former := s.face
	if !address.IsValid() || address.IsLoopback() || !former.isOwn() && address == former.address {
		return
	}
	f := m.faces[address]
	if f == nil {
		f = &face{address: address}
		m.faces[address] = f
	}
	m.takeOffLocked(s)
	s.putOn(f)
	if former.isOwn() {
		m.mergeLocked(f, former)
	}
	if len(f.slots) > 1 {
		m.log.Info("endpoints share an egress address: a ban of one is a ban of all", "address", address.String(), "endpoint", s.endpoint.ID, "endpoints", len(f.slots))
	}
}

// mergeLocked gives the blocks of an endpoint to its address.
func (m *Memory) mergeLocked(to, from *face) {
	for domain, b := range from.domains() {
		m.alarms.Clear(&b.alarm)
		mine := to.block(domain)
		mine.count, mine.token = max(mine.count, b.count), max(mine.token, b.token)
		mine.until = max(mine.until, b.until)
		m.alarms.Set(&mine.alarm, mine.until.time())
	}
}

// takeOffLocked parts a slot from its face. One that nobody wears and nothing is
// held against is forgotten.
func (m *Memory) takeOffLocked(s *slot) {
	if f := s.face; f != nil {
		delete(f.slots, s)
		m.forgetFaceLocked(f)
	}
}

func (m *Memory) forgetFaceLocked(f *face) {
	if f.address.IsValid() && len(f.slots) == 0 && len(f.blocks) == 0 {
		delete(m.faces, f.address)
	}
}

// blockLocked lets a domain's refusal have its consequence.
func (m *Memory) blockLocked(h *held, o Outcome, now instant) {
	f := h.slot.face
	if f == nil {
		f = &face{}
		h.slot.putOn(f)
	}
	b := f.block(o.Domain)
	if h.lease.token <= b.token {
		return // counted already: many requests may have been in flight
	}
	b.count, b.token = b.count+1, m.token
	pause := escalate(m.cfg.DomainCooldown, m.cfg.MaxDomainCooldown, b.count)
	b.until = max(b.until, now.plus(min(max(pause, o.RetryAfter), m.cfg.MaxDomainCooldown)))
	m.alarms.Set(&b.alarm, b.until.time())
	m.log.V(1).Info("endpoint cools down for domain", "endpoint", h.slot.endpoint.ID, "domain", o.Domain, "until", b.until.time())
	for s := range maps.Clone(f.slots) {
		m.moveSessionsLocked(s, now)
	}
}

// ring ends a domain's cooldown, and later the memory of it.
func (b *block) ring(m *Memory, now instant) {
	f := b.face
	forgetAt := b.until.plus(m.cfg.MaxDomainCooldown)
	if forgetAt <= now {
		delete(f.blocks, b.domain)
		m.forgetFaceLocked(f)
		return
	}
	m.alarms.Set(&b.alarm, forgetAt.time())
	for s := range maps.Clone(f.slots) {
		m.offerLocked(s, now)
	}
}
