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
	return f.nextLocked(now)
}

// growLocked records new members for what is missing, within all limits.
func (f *Fleet) growLocked(now time.Time) {
	if f.growAfter.After(now) {
		return
	}
	live, creating := f.countLocked()
	for live < f.cfg.Size && creating < f.cfg.MaxCreating && len(f.members) < f.cfg.MaxSize {
		m := &member{uid: rand.Text(), created: now}
		m.enter(PhaseCreating, now, "")
		f.members[m.uid] = m
		f.eventLocked(m, Event{Type: Creating})
		live, creating = live+1, creating+1
	}
}

func (f *Fleet) countLocked() (live, creating int) {
	for _, m := range f.members {
		if m.live() {
			live++
		}
		if m.phase == PhaseCreating || m.phase == PhaseBooting {
			creating++
		}
	}
	return live, creating
}

// shrinkLocked condemns what is more than wanted, as an adoption may bring: what
// does not serve before what does, the oldest first. Leases end in their own
// time.
func (f *Fleet) shrinkLocked(now time.Time) {
	live, _ := f.countLocked()
	candidates := f.orderLocked()
	slices.SortStableFunc(candidates, func(a, b *member) int {
		return cmp.Compare(rank(a), rank(b))
	})
	for _, m := range candidates {
		if live <= f.cfg.Size {
			return
		}
		if m.live() && !m.busy && !m.unseen {
			m.patient = true
			f.replaceLocked(m, now, "more instances exist than are wanted")
			live--
		}
	}
}

func rank(m *member) int {
	switch {
	case m.phase != PhaseServing:
		return 0
	case m.verdict.Health != endpoint.Healthy:
		return 1
	}
	return 2
}

// repairLocked condemns proxies that stay unhealthy, as far as the budget goes.
func (f *Fleet) repairLocked(now time.Time) {
	unhealthy, repairs, budget := 0, 0, share(f.cfg.Size)
	for _, m := range f.members {
		if m.phase == PhaseServing && m.verdict.Health != endpoint.Healthy {
			unhealthy++
		}
		if m.repair {
			repairs++
		}
	}
	if 2*unhealthy > f.cfg.Size {
		budget = 1
	}
	for _, m := range f.orderLocked() {
		if repairs >= budget {
			return
		}
		if reason := f.brokenFor(m, now); reason != "" && !m.busy && f.confirmed(m) {
			m.repair = true
			repairs++
			f.replaceLocked(m, now, reason)
		}
	}
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
	for _, m := range f.members {
		if m.busy || m.phase == PhaseDeleting {
			continue
		}
		m.enter(PhaseDeleting, now, "the fleet is destroyed")
	}
}

// startStepsLocked begins the call of every member that is due.
func (f *Fleet) startStepsLocked(now time.Time) {
	calls := 0
	for _, m := range f.members {
		if m.busy && m.phase != PhaseCreating {
			calls++
		}
	}
	for _, m := range f.orderLocked() {
		if m.busy || m.due.After(now) {
			continue
		}
		ctx := f.ctx
		if m.phase == PhaseCreating {
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
	if f.growAfter.After(now) {
		next = earlier(next, f.growAfter)
	}
	for _, m := range f.members {
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
	var partial *provider.PartialError
	if err == nil || errors.As(err, &partial) && time.Since(f.began) >= f.cfg.AdoptTimeout {
		f.listed = true
	}
	return err
}

func (f *Fleet) adoptLocked(in provider.Instance, listed time.Time) {
	if m, known := f.members[in.UID]; known {
		if m.id == "" {
			m.id = in.ID
		}
		return
	}
	now := time.Now()
	m := &member{
		uid: in.UID, id: in.ID, created: cmp.Or(in.CreatedAt, listed),
		req: provider.CreateRequest{UID: in.UID, Tag: in.Tag}, unseen: true,
	}
	m.enter(PhaseBooting, now, "")
	m.saw(in.State, now)
	f.members[in.UID] = m
	f.eventLocked(m, Event{Type: Adopted, Reason: string(in.State)})
}
