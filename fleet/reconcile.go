package fleet

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/lease"
	"github.com/egressfleet/egress/provider"
)

// maxCalls bounds the calls to the provider at one time, Create aside.
const maxCalls = 32

// reconcileLocked starts what is due, and returns when to look again at the
// latest.
func (f *Fleet) reconcileLocked(now time.Time) time.Time {
	f.listIfDueLocked(now)
	if f.destroying {
		f.condemnAllLocked(now)
	} else if f.listed {
		f.repairLocked(now)
		f.shrinkLocked(now)
		f.growLocked(now)
	}
	f.startStepsLocked(now)
	f.inheritIfDueLocked(now)
	return f.nextLocked(now)
}

// growLocked records new members for what is missing, within all limits.
func (f *Fleet) growLocked(now time.Time) {
	creating := f.creatingLocked()
	for _, p := range f.poolOrder {
		for live := f.liveLocked(p); live < p.Size; live++ {
			if p.growAfter.After(now) || creating >= f.cfg.MaxCreating || f.members.len() >= f.ceilingLocked() {
				break
			}
			m := &member{uid: rand.Text(), created: now, pool: p}
			m.enter(PhaseCreating, now, "")
			f.members.add(m)
			f.eventLocked(m, Event{Type: Creating})
			creating++
		}
	}
}

func (f *Fleet) creatingLocked() (n int) {
	for _, m := range f.members.all {
		if m.phase == PhaseCreating || m.phase == PhaseBooting {
			n++
		}
	}
	return n
}

func (f *Fleet) liveLocked(p *pool) (n int) {
	for _, m := range f.members.all {
		if m.live() && m.pool == p {
			n++
		}
	}
	return n
}

// shrinkLocked condemns what is more than wanted, as an adoption or a smaller size
// may bring: what does not serve before what does, the idle before the leased,
// the oldest first. Leases end in their own time.
func (f *Fleet) shrinkLocked(now time.Time) {
	for _, p := range append(slices.Clone(f.poolOrder), f.stray) {
		surplus := f.liveLocked(p) - p.Size - f.youngOrphansLocked(p, now)
		if surplus <= 0 || !f.leasedKnownLocked(now) {
			continue
		}
		for _, m := range f.victimsLocked(p) {
			if surplus > 0 && !m.busy && !m.unseen && !f.youngOrphan(m, now) {
				m.patient = true
				f.replaceLocked(m, now, "more instances exist than are wanted")
				surplus--
			}
		}
	}
}

// youngOrphan tells whether it is too early to end an adopted member as one too many.
func (f *Fleet) youngOrphan(m *member, now time.Time) bool {
	return m.adopted && now.Sub(m.created) < f.cfg.OrphanAge
}

// youngOrphansLocked counts them. No other ends in their stead.
func (f *Fleet) youngOrphansLocked(p *pool, now time.Time) (n int) {
	for _, m := range f.members.all {
		if m.pool == p && m.live() && f.youngOrphan(m, now) {
			n++
		}
	}
	return n
}

// victimsLocked are the live members of a pool, the first to go first.
func (f *Fleet) victimsLocked(p *pool) []*member {
	all := slices.DeleteFunc(slices.Clone(f.members.all), func(m *member) bool { return m.pool != p || !m.live() })
	slices.SortStableFunc(all, func(a, b *member) int {
		return cmp.Compare(f.rankLocked(a), f.rankLocked(b))
	})
	return all
}

// leasedKnownLocked tells whether the fleet knows which endpoints are leased, and
// asks if it does not. An inventory that is no store cannot tell.
func (f *Fleet) leasedKnownLocked(now time.Time) bool {
	store, ok := f.cfg.Inventory.(lease.Store)
	if !ok || now.Sub(f.leasedAt) < f.cfg.PollInterval {
		return true
	}
	if !f.asking {
		f.asking = true
		f.work.Go(func() { f.askLeased(store) })
	}
	return false
}

func (f *Fleet) askLeased(store lease.Store) {
	ctx, cancel := context.WithTimeout(f.ctx, f.cfg.CallTimeout)
	defer cancel()
	list, err := store.List(ctx)
	leased := map[string]bool{}
	for _, s := range list {
		leased[s.Endpoint.ID] = len(s.Leases) > 0
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asking = false
	if err == nil {
		f.leased, f.leasedAt = leased, time.Now()
		f.wake()
	}
}

func (f *Fleet) rankLocked(m *member) int {
	switch {
	case m.phase != PhaseServing:
		return 0
	case m.verdict.Health != endpoint.Healthy:
		return 1
	case !f.leased[m.endpointID]:
		return 2
	}
	return 3
}

// repairLocked condemns what the caller wants replaced, and, as far as the budget
// goes, proxies that stay unhealthy or are too old.
func (f *Fleet) repairLocked(now time.Time) {
	wanted := f.wantedLocked()
	unhealthy, healthy, repairs, budget := 0, 0, 0, share(wanted)
	for _, m := range f.members.all {
		switch {
		case m.phase != PhaseServing:
		case m.verdict.Health == endpoint.Healthy:
			healthy++
		default:
			unhealthy++
		}
		if m.repair {
			repairs++
		}
	}
	if 2*unhealthy > wanted {
		budget = 1
	}
	for _, m := range f.members.all {
		if m.busy {
			continue
		}
		if m.wanted != "" && m.live() {
			f.replaceLocked(m, now, m.wanted)
			continue
		}
		reason := f.brokenFor(m, now)
		confirmed := reason != "" && f.confirmed(m)
		if reason == "" && unhealthy == 0 && wanted-healthy < budget {
			reason = f.tooOld(m, now)
			confirmed = reason != ""
		}
		if confirmed && repairs < budget {
			if m.verdict.Health == endpoint.Healthy {
				healthy--
			}
			m.repair = true
			repairs++
			f.replaceLocked(m, now, reason)
		}
	}
}

// tooOld says that a member has reached its age, if so. Age waits until all that
// serve are healthy, and until what replaces the last ones serves.
func (f *Fleet) tooOld(m *member, now time.Time) string {
	limit := m.pool.ageLimit(m.uid)
	if limit == 0 || m.phase != PhaseServing || now.Sub(m.created) < limit {
		return ""
	}
	return fmt.Sprintf("it is older than %v", limit.Round(time.Second))
}

// brokenFor says why a serving member is to be replaced for its health, if so.
func (f *Fleet) brokenFor(m *member, now time.Time) string {
	switch {
	case m.phase != PhaseServing || m.verdict.Health == endpoint.Healthy:
	case !m.wasHealthy && now.Sub(m.since) >= f.cfg.BootTimeout:
		return fmt.Sprintf("not healthy %v after it ran: %s", f.cfg.BootTimeout, m.verdict.Reason)
	case m.wasHealthy && m.verdict.Health == endpoint.Unhealthy && now.Sub(m.verdict.Since) >= f.cfg.UnhealthyTimeout:
		return fmt.Sprintf("unhealthy for %v: %s", f.cfg.UnhealthyTimeout, m.verdict.Reason)
	}
	return ""
}

// confirmed tells whether a probe failed after the member's time was up. If not,
// it asks for one: the longer a proxy fails, the rarer it is probed, and it may
// have recovered.
func (f *Fleet) confirmed(m *member) bool {
	timeout := f.cfg.UnhealthyTimeout
	since := m.verdict.Since
	if !m.wasHealthy {
		timeout, since = f.cfg.BootTimeout, m.since
	}
	status, known := f.engine.Get(m.endpointID)
	late := !status.Last.Started.Before(since.Add(timeout))
	if known && !late {
		f.engine.ProbeNow(m.endpointID)
	}
	return !known || late && status.Failures > 0
}

// condemnAllLocked has everything deleted.
func (f *Fleet) condemnAllLocked(now time.Time) {
	for _, m := range f.members.all {
		if m.busy || m.phase == PhaseDeleting {
			continue
		}
		m.enter(PhaseDeleting, now, "the fleet is destroyed")
	}
}

// startStepsLocked begins the call of every member that is due.
func (f *Fleet) startStepsLocked(now time.Time) {
	calls := 0
	for _, m := range f.members.all {
		if m.busy && m.phase != PhaseCreating {
			calls++
		}
	}
	for _, m := range f.members.all {
		if m.busy || m.due.After(now) {
			continue
		}
		ctx := f.ctx
		if m.phase == PhaseCreating {
			if f.waitForRoomLocked(m, now) {
				continue
			}
			ctx = f.creates
		} else if calls++; calls > maxCalls {
			continue
		}
		f.startLocked(ctx, m)
	}
}

func (f *Fleet) startLocked(ctx context.Context, m *member) {
	m.busy = true
	next := f.stepLocked(m)
	f.work.Go(func() {
		apply := next(ctx)
		f.mu.Lock()
		defer f.mu.Unlock()
		m.busy = false
		apply(time.Now())
		f.wake()
	})
}

// nextLocked is when something becomes due: a call, a list, or a verdict on an
// unhealthy proxy.
func (f *Fleet) nextLocked(now time.Time) time.Time {
	next := f.nextList
	if f.inheritAfter.After(now) && !f.inherited {
		next = earlier(next, f.inheritAfter)
	}
	for _, p := range f.poolOrder {
		if p.growAfter.After(now) {
			next = earlier(next, p.growAfter)
		}
	}
	for _, m := range f.members.all {
		if !m.busy {
			next = earlier(next, m.due)
		}
		if m.phase == PhaseServing && m.verdict.Health != endpoint.Healthy {
			next = earlier(next, now.Add(f.cfg.PollInterval))
		}
	}
	return later(next, now.Add(10*time.Millisecond))
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// listIfDueLocked starts a list by tag.
func (f *Fleet) listIfDueLocked(now time.Time) {
	if f.listing || f.nextList.After(now) {
		return
	}
	f.listing = true
	f.nextList = now.Add(f.cfg.ListInterval)
	f.work.Go(func() {
		_ = f.list(f.ctx)
		f.mu.Lock()
		defer f.mu.Unlock()
		f.listing = false
		if !f.listed {
			f.nextList = time.Now().Add(f.cfg.PollInterval)
		}
		f.wake()
	})
}

// list adopts what carries the tag and is not in the record: what a former
// fleet left, or a call of Create that landed late.
func (f *Fleet) list(ctx context.Context) error {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, f.cfg.CallTimeout)
	defer cancel()
	seen, err := f.cfg.Provider.ListByTag(ctx, f.cfg.Tag)
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil && f.ctx.Err() == nil {
		f.eventLocked(nil, Event{Type: CallFailed, Reason: "ListByTag", Err: err})
	}
	for _, in := range seen {
		if !f.forgotten[in.UID].After(began) { // else the list is older than its end
			f.adoptLocked(in, began)
		}
	}
	maps.DeleteFunc(f.forgotten, func(_ string, at time.Time) bool { return at.Before(began) })
	f.whole = f.whole || err == nil
	var partial *provider.PartialError
	if err == nil || errors.As(err, &partial) && f.cfg.AdoptTimeout > 0 && time.Since(f.began) >= f.cfg.AdoptTimeout {
		f.listed = true
	}
	return err
}

func (f *Fleet) adoptLocked(in provider.Instance, listed time.Time) {
	if m, known := f.members.byUID[in.UID]; known {
		if m.id == "" {
			m.id = in.ID
		}
		return
	}
	now := time.Now()
	m := &member{
		uid: in.UID, id: in.ID, created: cmp.Or(in.CreatedAt, listed),
		req: provider.CreateRequest{UID: in.UID, Tag: in.Tag}, adopted: true, unseen: true, pool: f.pools[in.Metadata[poolKey]],
	}
	if m.pool == nil {
		m.pool = f.stray // of a pool that is no more: it ends with its leases
	}
	m.enter(PhaseBooting, now, "")
	m.saw(in.State, now)
	f.members.add(m)
	f.eventLocked(m, Event{Type: Adopted, Reason: string(in.State)})
}
