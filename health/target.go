package health

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/internal/check"
)

// Target is one of several that an [Engine] probes with.
type Target struct {
	// Name tells it from the others; required.
	Name string
	// Probe makes one probe of it, most often [Prober.Probe].
	Probe func(context.Context, endpoint.Endpoint) Result
	// MaxInFlight bounds the probes of it at one time; the engine's if zero.
	MaxInFlight int
}

// TargetStatus tells how a target fares.
type TargetStatus struct {
	Name string
	// Suspended is whether failures on the target's side do not count: it fails
	// through most of the endpoints that tried it lately.
	Suspended bool
	// Failing of Tried endpoints failed on the target's side when they tried it
	// last.
	Failing, Tried int
}

// leastWitnesses is how many endpoints must have tried a target before it can be
// blamed.
const leastWitnesses = 3

// withTargets makes one target of Probe, and checks the others.
func (c EngineConfig) withTargets(problems *check.Problems) EngineConfig {
	switch {
	case c.Probe == nil && len(c.Targets) == 0:
		problems.Missing("probe", "give the function that probes, such as a Prober's Probe")
	case c.Probe != nil && len(c.Targets) > 0:
		problems.Missing("probe", "leave it out beside targets")
	case c.Probe != nil:
		c.Targets = []Target{{Probe: c.Probe}}
		return c
	}
	names := map[string]bool{}
	for i, t := range c.Targets {
		path := fmt.Sprintf("targets[%d]", i)
		problems.Require(t.Name != "", path+".name", "give the target a name")
		problems.Require(t.Probe != nil, path+".probe", "give the function that probes")
		if names[t.Name] {
			problems.Add(path+".name", t.Name, "is used twice")
		}
		notNegative(problems, path+".maxInFlight", t.MaxInFlight)
		names[t.Name] = true
	}
	return c
}

// target is one at work. The engine's lock guards it but for places.
type target struct {
	Target
	places    chan struct{} // one for each probe in flight; nil for no bound
	failed    map[*subject]bool
	failing   int
	suspended bool
}

func newTarget(t Target) *target {
	state := &target{Target: t, failed: map[*subject]bool{}}
	if t.MaxInFlight > 0 {
		state.places = make(chan struct{}, t.MaxInFlight)
	}
	return state
}

// probe waits for a place, and probes.
func (t *target) probe(ctx context.Context, e endpoint.Endpoint) Result {
	if t.places != nil {
		select {
		case t.places <- struct{}{}:
			defer func() { <-t.places }()
		case <-ctx.Done():
			return Result{EndpointID: e.ID, Generation: e.Generation, Err: ctx.Err()}
		}
	}
	r := t.Probe(ctx, e)
	r.Target = t.Name
	return r
}

// note records how a subject fared with the target, and tells whether that
// changed its suspension.
func (t *target) note(s *subject, failed bool) (changed bool) {
	t.forget(s)
	t.failed[s] = failed
	if failed {
		t.failing++
	}
	was := t.suspended
	t.suspended = len(t.failed) >= leastWitnesses && 2*t.failing > len(t.failed)
	return t.suspended != was
}

func (t *target) forget(s *subject) {
	if t.failed[s] {
		t.failing--
	}
	delete(t.failed, s)
}

func (t *target) status() TargetStatus {
	return TargetStatus{Name: t.Name, Suspended: t.suspended, Failing: t.failing, Tried: len(t.failed)}
}

// Targets returns how each target fares, in their configured order.
func (e *Engine) Targets() []TargetStatus {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := make([]TargetStatus, 0, len(e.targets))
	for _, t := range e.targets {
		all = append(all, t.status())
	}
	return all
}

// onTargetsSide tells whether the target may be at fault: it failed behind the
// tunnel, or the proxy says that it could not reach it.
func onTargetsSide(err error) bool {
	var failed *endpoint.Error
	return errors.As(err, &failed) && (!failed.Stage.OfProxy() || failed.TargetUnreachable())
}

// outcome is what a round came to.
type outcome struct {
	result Result
	// excused is whether a failure does not count, for it is the targets' own.
	excused bool
	// witnesses are endpoints to be probed at once, to learn whose fault it is.
	witnesses []string
}

// tryTargets probes with one target after another, until one answers or the
// proxy itself fails.
func (e *Engine) tryTargets(s *subject, ep endpoint.Endpoint, round int) outcome {
	o := outcome{excused: true}
	for i := range e.targets {
		t := e.targets[(round+i)%len(e.targets)]
		o.result = t.probe(e.ctx, ep)
		if e.ctx.Err() != nil {
			return o
		}
		theirs := onTargetsSide(o.result.Err)
		suspended := e.noteTarget(t, s, o.result.Err, theirs)
		if !theirs {
			o.excused = false
			return o
		}
		o.excused = o.excused && suspended
	}
	if !o.excused {
		o.witnesses = e.witnesses(s)
	}
	return o
}

// noteTarget records a probe with the target. A failure of the proxy says nothing
// about it.
func (e *Engine) noteTarget(t *target, s *subject, err error, theirs bool) (suspended bool) {
	e.mu.Lock()
	changed := false
	if !s.gone && (err == nil || theirs) {
		changed = t.note(s, theirs)
	}
	status := t.status()
	e.mu.Unlock()
	if changed {
		e.cfg.Logger.V(1).Info("probe target", "target", t.Name, "suspended", status.Suspended, "failing", status.Failing, "tried", status.Tried)
		if e.cfg.OnTarget != nil {
			e.cfg.OnTarget(status)
		}
	}
	return status.Suspended
}

// witnesses chooses others that are healthy and were not probed just now, so that
// a target that is down is found out before many are judged by it.
func (e *Engine) witnesses(s *subject) []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	var ids []string
	recent := time.Now().Add(-e.cfg.EdgeInterval)
	for id, other := range e.subjects {
		if other != s && other.verdict.Health == endpoint.Healthy && other.failures == 0 && other.last.Started.Before(recent) {
			ids = append(ids, id)
		}
		if len(ids) == leastWitnesses {
			break
		}
	}
	return ids
}
