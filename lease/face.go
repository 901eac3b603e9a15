package lease

import (
	"maps"
	"net/netip"
	"time"

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
	until time.Time
	count int
	token int64 // the store's latest when it was counted
	alarm alarm.Alarm[matter]
}

func newFace(address netip.Addr) *face {
	return &face{address: address, slots: map[*slot]struct{}{}}
}

func (f *face) block(domain string) *block {
	if f.blocks == nil {
		f.blocks = map[string]*block{}
	}
	if f.blocks[domain] == nil {
		f.blocks[domain] = &block{}
	}
	return f.blocks[domain]
}

func (f *face) blockedFor(domain string, now time.Time) bool {
	if domain == "" || f.blocks == nil {
		return false
	}
	b, ok := f.blocks[domain]
	return ok && b.until.After(now)
}

// forgive ends the growth of a domain's cooldown, not one that runs. A lease
// from before the block proves nothing.
func (f *face) forgive(domain string, token int64) {
	if b, ok := f.blocks[domain]; ok && token > b.token {
		b.count = 0
	}
}

// wearLocked gives the slot the face of its egress address, with what domains
// had against its former one. Loopback is nobody's identity.
func (m *Memory) wearLocked(s *slot, address netip.Addr) {
	if !address.IsValid() || address.IsLoopback() || address == s.face.address {
		return
	}
	f := m.faces[address]
	if f == nil {
		f = newFace(address)
		m.faces[address] = f
	}
	former := s.face
	m.takeOffLocked(s)
	s.face = f
	f.slots[s] = struct{}{}
	if !former.address.IsValid() {
		m.mergeLocked(f, former)
	}
	if len(f.slots) > 1 {
		m.log.Info("endpoints share an egress address: a ban of one is a ban of all", "address", address.String(), "endpoint", s.endpoint.ID, "endpoints", len(f.slots))
	}
}

// mergeLocked gives the blocks of an endpoint to its address.
func (m *Memory) mergeLocked(to, from *face) {
	for domain, b := range from.blocks {
		m.alarms.Clear(&b.alarm)
		mine := to.block(domain)
		mine.count, mine.token = max(mine.count, b.count), max(mine.token, b.token)
		mine.until = later(mine.until, b.until)
		mine.alarm.About = matter{face: to, domain: domain}
		m.alarms.Set(&mine.alarm, mine.until)
	}
	from.blocks = nil
}

// takeOffLocked parts a slot from its face. One that nobody wears and nothing is
// held against is forgotten.
func (m *Memory) takeOffLocked(s *slot) {
	delete(s.face.slots, s)
	m.forgetFaceLocked(s.face)
}

func (m *Memory) forgetFaceLocked(f *face) {
	if f.address.IsValid() && len(f.slots) == 0 && len(f.blocks) == 0 {
		delete(m.faces, f.address)
	}
}

// blockLocked lets a domain's refusal have its consequence.
func (m *Memory) blockLocked(h *held, o Outcome, now time.Time) {
	f := h.slot.face
	b := f.block(o.Domain)
	if h.key.Token <= b.token {
		return // counted already: many requests may have been in flight
	}
	b.count, b.token = b.count+1, m.token
	pause := escalate(m.cfg.DomainCooldown, m.cfg.MaxDomainCooldown, b.count)
	b.until = later(b.until, now.Add(min(max(pause, o.RetryAfter), m.cfg.MaxDomainCooldown)))
	b.alarm.About = matter{face: f, domain: o.Domain}
	m.alarms.Set(&b.alarm, b.until)
	m.log.V(1).Info("endpoint cools down for domain", "endpoint", h.slot.endpoint.ID, "domain", o.Domain, "until", b.until)
	for s := range maps.Clone(f.slots) {
		m.moveSessionsLocked(s)
	}
}

// unblockLocked runs when a domain's cooldown ends, and once more when the
// memory of it does.
func (m *Memory) unblockLocked(f *face, domain string, now time.Time) {
	b, ok := f.blocks[domain]
	if !ok {
		return
	}
	forgetAt := b.until.Add(m.cfg.MaxDomainCooldown)
	if !forgetAt.After(now) {
		delete(f.blocks, domain)
		m.forgetFaceLocked(f)
		return
	}
	m.alarms.Set(&b.alarm, forgetAt)
	for s := range maps.Clone(f.slots) {
		m.offerLocked(s)
	}
}
