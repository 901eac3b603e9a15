package lease

import (
	"time"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/internal/alarm"
)

// slot is one generation of an endpoint in the store.
type slot struct {
	endpoint endpoint.Endpoint // never changed in place: leases share its map
	verdict  endpoint.Verdict
	draining bool
	gone     bool // it has left the inventory; only leases still know it
	former   *slot
	used     uint64 // when it was used last, or came in; see Memory.used
	face     *face
	group    *group

	held []*held
	// proven is whether a holder reported OK since it came in, and since its
	// last fault. Until then it has one holder at a time.
	proven     bool
	faults     int   // proxy faults since the last OK
	faultToken int64 // the store's latest token when one was counted
	coolUntil  time.Time
	cooling    alarm.Alarm[matter]

	// Links of the free list; next is nil where the slot is not in it.
	prev, next *slot
}

// usable tells whether the slot may be leased, now or when a holder ends.
func (s *slot) usable(now time.Time) bool {
	return !s.gone && !s.draining && s.verdict.Health == endpoint.Healthy && !s.coolUntil.After(now)
}

// satisfies tells whether a request may have the slot, were it free.
func (s *slot) satisfies(req *Request, now time.Time) bool {
	return !s.face.blockedFor(req.Domain, now) && req.Selector.Matches(s.endpoint.Attributes)
}

// leasable tells whether the slot belongs into the free list.
func (m *Memory) leasable(s *slot, now time.Time) bool {
	return s.usable(now) && len(s.held) < m.capacity(s)
}

func (m *Memory) capacity(s *slot) int {
	if !s.proven {
		return 1
	}
	return m.cfg.MaxHolders
}

// place returns the counter that the slot belongs to.
func (m *Memory) place(s *slot, c *Counts, req *Request, now time.Time) *int {
	switch {
	case !req.Selector.Matches(s.endpoint.Attributes):
		return &c.NotSelected
	case s.draining:
		return &c.Draining
	case s.verdict.Health == endpoint.Unhealthy:
		return &c.Unhealthy
	case s.verdict.Health != endpoint.Healthy:
		return &c.Unknown
	case len(s.held) >= m.capacity(s):
		return &c.Leased
	case s.coolUntil.After(now):
		return &c.Cooling
	case s.face.blockedFor(req.Domain, now):
		return &c.CoolingForDomain
	}
	return &c.Free
}

func (s *slot) status(now time.Time) Status {
	st := Status{Endpoint: s.endpoint.Clone(), Verdict: s.verdict, Draining: s.draining, Probation: !s.proven}
	for _, h := range s.held {
		st.Leases = append(st.Leases, Holding{ID: h.key.ID, Holder: h.holder, Domain: h.domain, ExpiresAt: h.deadline})
	}
	if s.coolUntil.After(now) {
		st.CoolUntil = s.coolUntil
	}
	for domain, b := range s.face.blocks {
		if b.until.After(now) {
			if st.CoolDomains == nil {
				st.CoolDomains = map[string]time.Time{}
			}
			st.CoolDomains[domain] = b.until
		}
	}
	return st
}

// freeAt is when the slot may be leased for the domain, as things stand.
func (m *Memory) freeAt(s *slot, domain string) time.Time {
	at := s.coolUntil
	if len(s.held) >= m.capacity(s) {
		var first time.Time
		for _, h := range s.held {
			if first.IsZero() || h.deadline.Before(first) {
				first = h.deadline
			}
		}
		at = later(at, first)
	}
	if b, ok := s.face.blocks[domain]; ok {
		at = later(at, b.until)
	}
	return at
}
