package lease

import (
	"time"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/internal/alarm"
)

// slot is one generation of an endpoint in the store.
//
// What every lease touches stands first, close together: in a large store each
// line of memory that a lease needs must be fetched.
type slot struct {
	// Links of the free list; next is nil where the slot is not in it.
	prev, next *slot
	used       uint64 // when it was used last, or came in; see Memory.used
	group      *group
	face       *face              // nil while nothing is known of it
	endpoint   *endpoint.Endpoint // never changed in place: leases share it
	held       *held              // its leases, linked
	holders    int                // how many
	coolUntil  instant
	// proven is whether a holder reported OK since it came in, and since its
	// last fault. Until then it has one holder at a time.
	proven   bool
	draining bool
	gone     bool // it has left the inventory; only leases still know it
	verdict  endpoint.Verdict
	// alarm rings when a lease or the cooldown may end, or sooner; wakes is when.
	alarm alarm.Alarm[ringer]
	wakes instant

	former     *slot
	faults     int   // proxy faults since the last OK
	faultToken int64 // the store's latest token when one was counted
}

// usable tells whether the slot may be leased, now or when a holder ends.
func (s *slot) usable(now instant) bool {
	return !s.gone && !s.draining && s.verdict.Health == endpoint.Healthy && s.coolUntil <= now
}

// satisfies tells whether a request may have the slot, were it free.
func (s *slot) satisfies(req *Request, now instant) bool {
	return !s.face.blockedFor(req.Domain, now) && req.Selector.Matches(s.endpoint.Attributes)
}

// leasable tells whether the slot belongs into the free list.
func (m *Memory) leasable(s *slot, now instant) bool {
	return s.usable(now) && s.holders < m.capacity(s)
}

func (m *Memory) capacity(s *slot) int {
	if !s.proven {
		return 1
	}
	return m.cfg.MaxHolders
}

// place returns the counter that the slot belongs to.
func (m *Memory) place(s *slot, c *Counts, req *Request, now instant) *int {
	switch {
	case !req.Selector.Matches(s.endpoint.Attributes):
		return &c.NotSelected
	case s.draining:
		return &c.Draining
	case s.verdict.Health == endpoint.Unhealthy:
		return &c.Unhealthy
	case s.verdict.Health != endpoint.Healthy:
		return &c.Unknown
	case s.holders >= m.capacity(s):
		return &c.Leased
	case s.coolUntil > now:
		return &c.Cooling
	case s.face.blockedFor(req.Domain, now):
		return &c.CoolingForDomain
	}
	return &c.Free
}

func (m *Memory) statusLocked(s *slot, now instant) Status {
	st := Status{Endpoint: s.endpoint.Clone(), Verdict: s.verdict, Draining: s.draining, Probation: !s.proven}
	for h := s.held; h != nil; h = h.next {
		st.Leases = append(st.Leases, Holding{
			ID: m.leases.id(h.number), Holder: h.holder, Domain: h.lease.domain, ExpiresAt: h.deadline.time(),
		})
	}
	if s.coolUntil > now {
		st.CoolUntil = s.coolUntil.time()
	}
	for domain, b := range s.face.domains() {
		if b.until > now {
			if st.CoolDomains == nil {
				st.CoolDomains = map[string]time.Time{}
			}
			st.CoolDomains[domain] = b.until.time()
		}
	}
	return st
}

// freeAt is when the slot may be leased for the domain, as things stand.
func (m *Memory) freeAt(s *slot, domain string) instant {
	at := s.coolUntil
	if s.holders >= m.capacity(s) {
		var first instant
		for h := s.held; h != nil; h = h.next {
			if first == 0 || h.deadline < first {
				first = h.deadline
			}
		}
		at = max(at, first)
	}
	if b, ok := s.face.domains()[domain]; ok {
		at = max(at, b.until)
	}
	return at
}
