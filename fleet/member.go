package fleet

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/lease"
	"github.com/egressfleet/egress/provider"
)

// member is the record of one instance. The fleet's lock guards it.
type member struct {
	uid     string
	id      string
	pool    *pool
	req     provider.CreateRequest // what Config.Request said, once asked
	phase   Phase
	since   time.Time // in this phase
	created time.Time
	reason  string

	// due is when its next call may begin; busy is while one is under way.
	due      time.Time
	busy     bool
	failures int // calls that failed in a row

	state      provider.State
	stateSince time.Time

	endpointID string
	endpoint   endpoint.Endpoint
	generation uint64
	verdict    endpoint.Verdict
	wasHealthy bool
	// adopted is one that a list by tag has shown; unseen before its first look: it
	// may be leased.
	adopted, unseen bool
	// withheld is one that a former process was draining: the store leases it to nobody.
	withheld bool
	// patient lets leases end in their own time, however long: it is surplus,
	// not broken.
	patient bool
	// repair counts it against the budget for replacing what is unhealthy or old.
	repair bool
	// wanted is why the caller wants it replaced, if so.
	wanted string
	// telling is full while the inventory is told of a verdict on this generation.
	telling chan struct{}
}

func (m *member) status() Status {
	return Status{
		UID: m.uid, ID: m.id, EndpointID: m.endpointID, Pool: m.pool.Name, Placement: m.req.Placement,
		Phase: m.phase, Since: m.since, State: m.state, Verdict: m.verdict, Reason: m.reason,
	}
}

// live tells whether it counts towards the fleet's size.
func (m *member) live() bool {
	return m.phase == PhaseCreating || m.phase == PhaseBooting || m.phase == PhaseServing
}

func (m *member) enter(p Phase, now time.Time, reason string) {
	m.phase, m.since, m.reason = p, now, reason
	m.failures, m.due = 0, now
}

func (m *member) saw(s provider.State, now time.Time) {
	if m.state != s {
		m.state, m.stateSince = s, now
	}
}

// step makes the next call for a member and returns what to do with its answer,
// under the lock. It is run without.
type step func(ctx context.Context) (apply func(now time.Time))

// stepLocked chooses the step for the member's phase.
func (f *Fleet) stepLocked(m *member) step {
	switch m.phase {
	case PhaseCreating:
		return f.create(m)
	case PhaseBooting, PhaseServing:
		return f.look(m)
	case PhaseDraining:
		return f.drain(m)
	}
	return f.remove(m)
}

// create calls Create. The request is recorded before, and stays the same.
func (f *Fleet) create(m *member) step {
	req, asked := m.req, m.req.UID != ""
	return func(ctx context.Context) func(time.Time) {
		if !asked {
			var err error
			if req, err = m.pool.request(m.uid, f.cfg.Tag); err != nil {
				return func(now time.Time) { f.failedLocked(m, now, "Request", err) }
			}
			if req, err = f.choose(ctx, m, req); err != nil {
				return func(now time.Time) { f.failedLocked(m, now, "Place", err) }
			}
		}
		ctx, cancel := context.WithTimeout(ctx, f.cfg.CreateTimeout)
		defer cancel()
		id, err := f.cfg.Provider.Create(ctx, req)
		return func(now time.Time) { f.createdLocked(m, now, id, err) }
	}
}

func (f *Fleet) createdLocked(m *member, now time.Time, id string, err error) {
	if id != "" {
		m.id = id
	}
	switch {
	case err == nil:
		m.enter(PhaseBooting, now, "")
		m.saw(provider.StateProvisioning, now)
		f.eventLocked(m, Event{Type: Created})
	case provider.HasCode(err, provider.CodeCollision):
		// Somebody else's: leave it alone and draw another UID.
		f.failedLocked(m, now, "Create", err)
		f.forgetLocked(m)
	case errors.Is(err, provider.ErrQuotaExceeded) && f.ctx.Err() == nil:
		f.noRoomLocked(m, now, err)
	default:
		f.failedLocked(m, now, "Create", err)
	}
}

// failedLocked tells of a failed call and puts the next one off: twice as long
// with each failure, up to a minute, or ten where hurrying is of no use.
func (f *Fleet) failedLocked(m *member, now time.Time, op string, err error) {
	if f.ctx.Err() != nil || f.destroying && errors.Is(err, context.Canceled) {
		m.due = now
		return
	}
	pause, most := f.cfg.PollInterval, time.Minute
	if errors.Is(err, provider.ErrQuotaExceeded) || errors.Is(err, provider.ErrPermanent) {
		pause, most = 30*time.Second, 10*time.Minute
	}
	pause = min(pause<<min(m.failures, 20), most)
	var known *provider.Error
	if errors.As(err, &known) && known.RetryAfter > pause {
		pause = known.RetryAfter
	}
	m.failures++
	m.due = now.Add(pause)
	m.reason = err.Error()
	f.eventLocked(m, Event{Type: CallFailed, Reason: op, Err: err})
}

// look calls Get and follows the rules for each answer.
func (f *Fleet) look(m *member) step {
	id := m.id
	m.unseen = false
	return func(ctx context.Context) func(time.Time) {
		ctx, cancel := context.WithTimeout(ctx, f.cfg.CallTimeout)
		defer cancel()
		in, err := f.cfg.Provider.Get(ctx, id)
		switch {
		case errors.Is(err, provider.ErrNotFound):
			cause := f.whyGone(ctx, id)
			if provider.HasCode(cause, provider.CodeInFlight) {
				return func(now time.Time) { f.notSeenLocked(m, now, cause) }
			}
			return func(now time.Time) { f.goneLocked(m, now, cause) }
		case err != nil:
			return func(now time.Time) { f.notSeenLocked(m, now, err) }
		case in.State == provider.StateRunning:
			return f.serve(m, in)
		}
		if f.overdue(m, in.State) {
			in.Reason += f.lastWords(ctx, id)
		}
		return func(now time.Time) { f.notRunningLocked(m, now, in) }
	}
}

func (f *Fleet) notSeenLocked(m *member, now time.Time, err error) {
	switch {
	case provider.HasCode(err, provider.CodeUnconfigured):
		f.letGoLocked(m, err)
	default:
		m.saw(provider.StateUnknown, now)
		f.failedLocked(m, now, "Get", err)
		if errors.Is(err, provider.ErrPermanent) {
			return // report, never recreate
		}
		f.overdueLocked(m, now, err.Error())
	}
}

func (f *Fleet) notRunningLocked(m *member, now time.Time, in provider.Instance) {
	m.saw(in.State, now)
	m.failures = 0
	m.due = now.Add(f.cfg.PollInterval)
	m.reason = in.Reason
	if in.State == provider.StateStopped || in.State == provider.StateFailed {
		f.replaceLocked(m, now, fmt.Sprintf("it is %s %s", in.State, in.Reason))
		return
	}
	f.overdueLocked(m, now, fmt.Sprintf("it is still %s %s", in.State, in.Reason))
}

// overdueLocked replaces what stays in a state that should pass. A proxy that
// answers is kept: an agent that is out is no reason.
func (f *Fleet) overdueLocked(m *member, now time.Time, reason string) {
	if m.verdict.Health != endpoint.Healthy && now.Sub(m.stateSince) >= f.cfg.BootTimeout {
		f.replaceLocked(m, now, fmt.Sprintf("after %v %s", f.cfg.BootTimeout, reason))
	}
}

// serve puts the endpoint of a running instance where it is probed and leased.
func (f *Fleet) serve(m *member, in provider.Instance) func(time.Time) {
	e, err := f.cfg.Endpoint(m.uid, in)
	if err != nil {
		return func(now time.Time) { f.failedLocked(m, now, "Endpoint", err) }
	}
	if e.ID == "" {
		e.ID = in.Name
	}
	e.Attributes = m.pool.attributes(e.Attributes, f.cfg.Tag)
	if err := f.renamed(m, e.ID); err != nil {
		return func(now time.Time) { f.failedLocked(m, now, "Remove", err) }
	}
	f.mu.Lock()
	same := m.endpointID == e.ID && m.endpoint.URL.Equal(e.URL)
	e.Generation = m.generation
	if !same {
		e.Generation = generationOf(m.uid, e)
		if e.Generation == m.generation {
			e.Generation++ // another account
		}
	}
	m.endpointID, m.endpoint, m.generation = e.ID, e, e.Generation
	f.byEndpoint[e.ID] = m
	if !same {
		m.telling = make(chan struct{}, 1)
		m.verdict = endpoint.Verdict{Health: endpoint.Unknown, Generation: e.Generation, Since: time.Now()}
	}
	f.mu.Unlock()
	if same {
		return f.remind(m, e)
	}
	if err := f.put(m, e); err != nil {
		return func(now time.Time) {
			m.endpointID = ""
			f.failedLocked(m, now, "Put", err)
		}
	}
	return func(now time.Time) { f.servingLocked(m, now) }
}

// put has an endpoint probed, and leased once that has gone well. What a store knew of
// it from a former process is no proof.
func (f *Fleet) put(m *member, e endpoint.Endpoint) error {
	err := f.cfg.Inventory.Put(f.ctx, e)
	if err == nil && m.adopted {
		err = f.cfg.Inventory.SetVerdict(f.ctx, e.ID, endpoint.Verdict{Health: endpoint.Unknown, Generation: e.Generation, Since: time.Now()})
	}
	return errors.Join(err, f.engine.Put(e))
}

// remind tells the inventory again of what it should know. A store that others can
// empty, or that comes back with old data, gets the endpoint and its verdict anew.
func (f *Fleet) remind(m *member, e endpoint.Endpoint) func(time.Time) {
	err := f.undrain(m, e.ID)
	if err == nil {
		err = f.retell(m, e)
	}
	return func(now time.Time) {
		if err != nil && !errors.Is(err, lease.ErrClosed) {
			m.saw(provider.StateRunning, now)
			f.failedLocked(m, now, "SetVerdict", err)
			return
		}
		f.servingLocked(m, now)
	}
}

// retell does so unless the engine is just telling something newer. Before its first
// verdict there is nothing to tell.
func (f *Fleet) retell(m *member, e endpoint.Endpoint) error {
	select {
	case m.telling <- struct{}{}:
		defer func() { <-m.telling }()
	default:
		return nil
	}
	status, ok := f.engine.Get(e.ID)
	if !ok || status.Verdict.Health == endpoint.Unknown {
		return nil
	}
	err := f.cfg.Inventory.SetVerdict(f.ctx, e.ID, status.Verdict)
	if !errors.Is(err, lease.ErrUnknownEndpoint) {
		return err
	}
	if err := f.cfg.Inventory.Put(f.ctx, e); err != nil {
		return err
	}
	return f.cfg.Inventory.SetVerdict(f.ctx, e.ID, status.Verdict)
}

// renamed takes the former endpoint away where the hook gives it another ID.
func (f *Fleet) renamed(m *member, id string) error {
	f.mu.Lock()
	former := m.endpointID
	f.mu.Unlock()
	if former == "" || former == id {
		return nil
	}
	f.engine.Remove(former)
	if err := f.cfg.Inventory.Remove(f.ctx, former); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.byEndpoint[former] == m {
		delete(f.byEndpoint, former)
	}
	return nil
}

func (f *Fleet) servingLocked(m *member, now time.Time) {
	m.saw(provider.StateRunning, now)
	if m.phase == PhaseBooting {
		m.enter(PhaseServing, now, "")
		delete(f.shortages, m.req.Placement) // acceptance alone proves no room
		f.eventLocked(m, Event{Type: Running})
	}
	m.failures = 0
	m.reason = m.verdict.Reason
	m.due = now.Add(10 * f.cfg.PollInterval)
}

// replaceLocked begins the end of a member: by draining, if it may be leased.
func (f *Fleet) replaceLocked(m *member, now time.Time, reason string) {
	next := PhaseDeleting
	if m.endpointID != "" {
		next = PhaseDraining
	}
	f.endLocked(m, now, next, reason)
}

// endLocked tells of the end of a member. Those that end without ever having
// been healthy slow down the making of more: it may be in vain again.
func (f *Fleet) endLocked(m *member, now time.Time, next Phase, reason string) {
	m.enter(next, now, reason)
	f.eventLocked(m, Event{Type: Replacing, Reason: reason})
	if !m.patient {
		f.slowDownLocked(m, now)
	}
}

func (f *Fleet) slowDownLocked(m *member, now time.Time) {
	if m.wasHealthy {
		return
	}
	m.pool.stillborn++
	m.pool.growAfter = now.Add(min(f.cfg.PollInterval<<min(m.pool.stillborn, 20), 5*time.Minute))
}

// drain waits for leases to end, but not for ever.
func (f *Fleet) drain(m *member) step {
	id, over := m.endpointID, f.destroying || !m.patient && time.Since(m.since) >= f.cfg.DrainTimeout
	return func(ctx context.Context) func(time.Time) {
		held, err := f.cfg.Inventory.Drain(ctx, id)
		return func(now time.Time) {
			if held == 0 || err != nil || over {
				m.enter(PhaseDeleting, now, m.reason)
				return
			}
			m.due = now.Add(f.cfg.PollInterval)
		}
	}
}

// remove takes the endpoint away, then repeats Delete until Get says not found.
func (f *Fleet) remove(m *member) step {
	id, endpointID := m.id, m.endpointID
	return func(ctx context.Context) func(time.Time) {
		if endpointID != "" {
			f.engine.Remove(endpointID)
			if err := f.cfg.Inventory.Remove(ctx, endpointID); err != nil {
				return func(now time.Time) { f.failedLocked(m, now, "Remove", err) }
			}
		}
		if id == "" {
			return func(time.Time) { f.forgetLocked(m) }
		}
		ctx, cancel := context.WithTimeout(ctx, f.cfg.CallTimeout)
		defer cancel()
		err := f.cfg.Provider.Delete(ctx, id)
		if err == nil {
			_, err = f.cfg.Provider.Get(ctx, id)
		}
		return func(now time.Time) { f.removedLocked(m, now, err) }
	}
}

func (f *Fleet) removedLocked(m *member, now time.Time, err error) {
	switch {
	case errors.Is(err, provider.ErrNotFound):
		f.eventLocked(m, Event{Type: Deleted, Reason: m.reason})
		f.forgetLocked(m)
	case provider.HasCode(err, provider.CodeUnconfigured):
		f.letGoLocked(m, err)
	case err == nil:
		m.failures = 0
		m.due = now.Add(f.cfg.PollInterval)
	default:
		reason := m.reason
		f.failedLocked(m, now, "Delete", err)
		m.reason = reason
	}
}

// letGoLocked gives up an instance in a place that is not configured any more.
func (f *Fleet) letGoLocked(m *member, err error) {
	f.eventLocked(m, Event{Type: LetGo, Reason: "its host or zone is not configured any more; delete it by hand", Err: err})
	f.slowDownLocked(m, time.Now())
	if m.endpointID != "" {
		m.id = "" // all that is left to do is to take the endpoint away
		m.enter(PhaseDeleting, time.Now(), "let go")
		return
	}
	f.forgetLocked(m)
}

func (f *Fleet) forgetLocked(m *member) {
	f.members.remove(m)
	f.forgotten[m.uid] = time.Now()
	if f.byEndpoint[m.endpointID] == m {
		delete(f.byEndpoint, m.endpointID)
	}
}
