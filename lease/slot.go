package lease

import (
	"time"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/internal/alarm"
)

// slot is one endpoint in the store.
type slot struct {
	endpoint endpoint.Endpoint
	verdict  endpoint.Verdict
	draining bool
	gone     bool // it has left the inventory; only a lease still knows it
	held     *held
	used     uint64 // when it was used last, or came in; see Memory.used

	coolUntil time.Time
	cooling   alarm.Alarm[matter]
	faults    int // proxy faults since the last OK
	blocks    map[string]*block

	// Links of the free list; next is nil where the slot is not in it.
	prev, next *slot
}

// block is a domain's refusal of the endpoint. It stays after its end, so that
// the next one is longer, until the domain answers again or has not blocked
// for as long as a cooldown may be.
type block struct {
	until time.Time
	count int
	alarm alarm.Alarm[matter]
}

func (s *slot) block(domain string) *block {
	if s.blocks == nil {
		s.blocks = map[string]*block{}
	}
	if s.blocks[domain] == nil {
		s.blocks[domain] = &block{}
	}
	return s.blocks[domain]
}

// forgive ends the growth of a domain's cooldown, not one that runs: an answer
// to a request that was sent before the block proves nothing.
func (s *slot) forgive(domain string, now time.Time) {
	if b, ok := s.blocks[domain]; ok && !b.until.After(now) {
		b.count = 0
	}
}

func (s *slot) blockedFor(domain string, now time.Time) bool {
	if domain == "" || s.blocks == nil {
		return false
	}
	b, ok := s.blocks[domain]
	return ok && b.until.After(now)
}

// leasable tells whether the slot belongs into the free list.
func (s *slot) leasable(now time.Time) bool {
	return !s.gone && s.held == nil && !s.draining && s.verdict.Health == endpoint.Healthy && !s.coolUntil.After(now)
}

// place returns the counter that the slot belongs to.
func (s *slot) place(c *Counts, domain string, now time.Time) *int {
	switch {
	case s.held != nil:
		return &c.Leased
	case s.draining:
		return &c.Draining
	case s.verdict.Health == endpoint.Unhealthy:
		return &c.Unhealthy
	case s.verdict.Health != endpoint.Healthy:
		return &c.Unknown
	case s.coolUntil.After(now):
		return &c.Cooling
	case s.blockedFor(domain, now):
		return &c.CoolingForDomain
	}
	return &c.Free
}

func (s *slot) status(now time.Time) Status {
	st := Status{Endpoint: s.endpoint.Clone(), Verdict: s.verdict, Draining: s.draining}
	if s.held != nil {
		st.Holder, st.LeaseID, st.ExpiresAt = s.held.holder, s.held.key.ID, s.held.deadline
	}
	if s.coolUntil.After(now) {
		st.CoolUntil = s.coolUntil
	}
	for domain, b := range s.blocks {
		if b.until.After(now) {
			if st.CoolDomains == nil {
				st.CoolDomains = map[string]time.Time{}
			}
			st.CoolDomains[domain] = b.until
		}
	}
	return st
}

// freeList holds the leasable slots, least recently used first, as a ring
// around root.
type freeList struct{ root slot }

func (l *freeList) init() {
	if l.root.next == nil {
		l.root.next, l.root.prev = &l.root, &l.root
	}
}

// first returns the least recently used slot that the domain does not block.
func (l *freeList) first(domain string, now time.Time) *slot {
	l.init()
	for s := l.root.next; s != &l.root; s = s.next {
		if !s.blockedFor(domain, now) {
			return s
		}
	}
	return nil
}

// insert puts the slot at its place by use. Most come back as the most recently
// used, so it looks from the end.
func (l *freeList) insert(s *slot) {
	l.init()
	after := l.root.prev
	for after != &l.root && after.used > s.used {
		after = after.prev
	}
	s.prev, s.next = after, after.next
	after.next.prev, after.next = s, s
}

func (l *freeList) remove(s *slot) {
	s.prev.next, s.next.prev = s.next, s.prev
	s.prev, s.next = nil, nil
}
