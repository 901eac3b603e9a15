package health

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/internal/alarm"
	"github.com/egressfleet/egress/internal/check"
)

// ErrClosed says that the engine was closed.
var ErrClosed = errors.New("health engine closed")

// EngineConfig tunes an [Engine]. Only Probe is required. The names and their
// meaning are those of Envoy's health checks.
type EngineConfig struct {
	// Probe makes one probe, most often [Prober.Probe]. It must return soon after
	// its context ends. It is short for one target without a name.
	Probe func(context.Context, endpoint.Endpoint) Result
	// Targets, instead of Probe, are several: each round begins with another, and
	// goes on to the next where one fails on the target's side.
	Targets []Target
	// Interval between probes of a healthy endpoint; 15 s if zero.
	Interval time.Duration
	// EdgeInterval is the time to the next probe while a verdict may be about to
	// change; 2 s if zero, at most Interval.
	EdgeInterval time.Duration
	// MaxUnhealthyInterval caps the time between probes of an unhealthy endpoint,
	// which begins at EdgeInterval and doubles with each failure; 5 min if zero.
	MaxUnhealthyInterval time.Duration
	// IntervalJitterPercent is by how much each interval varies, up or down;
	// 10 if zero, none if negative, at most 50.
	IntervalJitterPercent int
	// InitialJitter spreads the first probes: each comes at a random moment
	// within it; Interval if zero, none if negative.
	InitialJitter time.Duration
	// HealthyThreshold is how many successes in a row make an unhealthy endpoint
	// healthy; 2 if zero. A new one needs one.
	HealthyThreshold int
	// UnhealthyThreshold is how many failures in a row make an endpoint
	// unhealthy; 3 if zero.
	UnhealthyThreshold int
	// MaxInFlight bounds the probes at one time; 64 if zero.
	MaxInFlight int
	// OnTransition, if set, is told of every change of a verdict, in order for
	// each endpoint. It is called without a lock, and again after an error, less
	// and less often, until it returns nil or the endpoint is removed. The
	// endpoint's next probe waits for it.
	OnTransition func(Transition) error
	// OnEgressChange, if set, is told when a target sees another address of an
	// endpoint than before, and of the first one. It is called without a lock.
	OnEgressChange func(EgressChange)
	// OnTarget, if set, is told when a target is suspended, and when it counts
	// again. It is called without a lock.
	OnTarget func(TargetStatus)
	// OnResult, if set, is told of every probe, in the same way.
	OnResult func(Result)
	// Logger gets a V(1) line for each transition and a V(2) line for each failed
	// probe. The zero value discards.
	Logger logr.Logger
}

func (c EngineConfig) withDefaults() (EngineConfig, error) {
	var problems check.Problems
	c = c.withTargets(&problems)
	notNegative(&problems, "interval", c.Interval)
	notNegative(&problems, "edgeInterval", c.EdgeInterval)
	notNegative(&problems, "maxUnhealthyInterval", c.MaxUnhealthyInterval)
	notNegative(&problems, "healthyThreshold", c.HealthyThreshold)
	notNegative(&problems, "unhealthyThreshold", c.UnhealthyThreshold)
	notNegative(&problems, "maxInFlight", c.MaxInFlight)
	if c.IntervalJitterPercent > 50 {
		problems.Add("intervalJitterPercent", c.IntervalJitterPercent, "must be at most 50")
	}
	c.Interval = cmp.Or(c.Interval, 15*time.Second)
	c.EdgeInterval = min(cmp.Or(c.EdgeInterval, 2*time.Second), c.Interval)
	c.MaxUnhealthyInterval = cmp.Or(c.MaxUnhealthyInterval, 5*time.Minute)
	c.IntervalJitterPercent = max(cmp.Or(c.IntervalJitterPercent, 10), 0)
	c.InitialJitter = max(cmp.Or(c.InitialJitter, c.Interval), 0)
	c.HealthyThreshold = cmp.Or(c.HealthyThreshold, 2)
	c.UnhealthyThreshold = cmp.Or(c.UnhealthyThreshold, 3)
	c.MaxInFlight = cmp.Or(c.MaxInFlight, 64)
	return c, problems.Err()
}

func notNegative[T int | int64 | time.Duration](problems *check.Problems, path string, value T) {
	if value < 0 {
		problems.Add(path, value, "must not be negative")
	}
}

// Transition is a change of an endpoint's verdict.
type Transition struct {
	Endpoint endpoint.Endpoint
	From     endpoint.Health
	// Verdict is the new one.
	Verdict endpoint.Verdict
	// Result is the probe that made the change.
	Result Result
}

// EgressChange tells that an endpoint leaves by another address than before.
type EgressChange struct {
	Endpoint endpoint.Endpoint
	// From is zero for the first address that was seen.
	From, To netip.Addr
}

// Status is an endpoint as the engine sees it.
type Status struct {
	Endpoint endpoint.Endpoint
	Verdict  endpoint.Verdict
	// Last is the latest result; its Started is zero before the first.
	Last Result
	// Successes and Failures count those in a row: one of them is zero.
	Successes, Failures int
	// NextProbe is when the next one is due; zero while one is in flight.
	NextProbe time.Time
}

// Engine keeps verdicts on endpoints. It is safe for concurrent use.
type Engine struct {
	cfg    EngineConfig
	ctx    context.Context
	cancel context.CancelFunc
	probes sync.WaitGroup

	// mu guards all below. It is not held while a probe or a hook runs.
	mu       sync.Mutex
	closed   bool
	subjects map[string]*subject
	clock    alarm.Clock[*subject]
	due      []*subject // waiting for a place in flight, first come first served
	inFlight int
	targets  []*target
	latency  latencies
	changed  chan struct{} // closed and replaced at each transition
}

// subject is an endpoint under observation. A changed endpoint is a new subject.
type subject struct {
	endpoint  endpoint.Endpoint
	verdict   endpoint.Verdict
	last      Result
	successes int
	failures  int
	next      alarm.Alarm[*subject]
	probing   bool
	again     bool // ProbeNow came while a probe was in flight
	gone      bool
	round     int // which target comes first
}

// NewEngine returns an engine without endpoints. Close it to end its probes.
func NewEngine(cfg EngineConfig) (*Engine, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("health.EngineConfig: %w", err)
	}
	e := &Engine{cfg: cfg, subjects: map[string]*subject{}, changed: make(chan struct{})}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	e.clock.Fire = e.onAlarm
	for _, t := range cfg.Targets {
		e.targets = append(e.targets, newTarget(t))
	}
	return e, nil
}

// Close ends all probes and returns when none is left, nor any hook running.
// Do not call it from a hook.
func (e *Engine) Close() {
	e.mu.Lock()
	e.closed = true
	e.clock.Stop()
	e.mu.Unlock()
	e.cancel()
	e.probes.Wait()
}

// Put adds an endpoint, or changes one. A new generation or URL begins anew as
// Unknown; anything else keeps its verdict.
func (e *Engine) Put(ep endpoint.Endpoint) error {
	if err := ep.Validate(); err != nil {
		return fmt.Errorf("endpoint: %w", err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return ErrClosed
	}
	s, known := e.subjects[ep.ID]
	if known && s.endpoint.Generation == ep.Generation && s.endpoint.URL.Equal(ep.URL) {
		if !ep.EgressIP.IsValid() {
			ep.EgressIP = s.endpoint.EgressIP
		}
		s.endpoint = ep.Clone()
		return nil
	}
	if known {
		e.forgetLocked(s)
	}
	s = &subject{endpoint: ep.Clone(), verdict: endpoint.Verdict{
		Health: endpoint.Unknown, Generation: ep.Generation, Since: time.Now(),
	}}
	s.next.About = s
	e.subjects[ep.ID] = s
	e.clock.Set(&s.next, time.Now().Add(randomUpTo(e.cfg.InitialJitter)))
	return nil
}

// Remove ends the observation of an endpoint. Unknown IDs are ignored.
func (e *Engine) Remove(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s, ok := e.subjects[id]; ok {
		e.forgetLocked(s)
	}
}

func (e *Engine) forgetLocked(s *subject) {
	s.gone = true
	for _, t := range e.targets {
		t.forget(s)
	}
	e.clock.Clear(&s.next)
	delete(e.subjects, s.endpoint.ID)
}

// ProbeNow asks for a probe at once, as after a report of a fault. Unknown IDs
// are ignored.
func (e *Engine) ProbeNow(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s, ok := e.subjects[id]
	switch {
	case !ok || e.closed:
	case s.probing:
		s.again = true
	case s.next.IsSet(): // else it is due already
		e.clock.Set(&s.next, time.Now())
	}
}

// Get returns the status of one endpoint.
func (e *Engine) Get(id string) (Status, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s, ok := e.subjects[id]
	if !ok {
		return Status{}, false
	}
	return s.status(), true
}

// Snapshot returns the status of every endpoint, ordered by ID.
func (e *Engine) Snapshot() []Status {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := make([]Status, 0, len(e.subjects))
	for _, id := range slices.Sorted(maps.Keys(e.subjects)) {
		all = append(all, e.subjects[id].status())
	}
	return all
}

func (s *subject) status() Status {
	st := Status{
		Endpoint: s.endpoint.Clone(), Verdict: s.verdict, Last: s.last,
		Successes: s.successes, Failures: s.failures,
	}
	if s.next.IsSet() {
		st.NextProbe = s.next.At()
	}
	return st
}

// WaitReady blocks until at least n endpoints are healthy. When ctx ends first,
// the error tells how many were.
func (e *Engine) WaitReady(ctx context.Context, n int) error {
	for {
		healthy, changed := e.healthy()
		if healthy >= n {
			return nil
		}
		select {
		case <-changed:
		case <-e.ctx.Done():
			return ErrClosed
		case <-ctx.Done():
			return fmt.Errorf("%d of %d endpoints are healthy: %w", healthy, n, ctx.Err())
		}
	}
}

func (e *Engine) healthy() (n int, changed <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range e.subjects {
		if s.verdict.Health == endpoint.Healthy {
			n++
		}
	}
	return n, e.changed
}

// onAlarm runs when a probe is due.
func (e *Engine) onAlarm() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return
	}
	now := time.Now()
	for a := e.clock.Due(now); a != nil; a = e.clock.Due(now) {
		e.due = append(e.due, a.About)
	}
	e.clock.Rearm()
	e.startLocked()
}

// startLocked starts as many probes as may be in flight.
func (e *Engine) startLocked() {
	for len(e.due) > 0 && e.inFlight < e.cfg.MaxInFlight && !e.closed {
		s := e.due[0]
		e.due[0] = nil
		e.due = e.due[1:]
		if s.gone {
			continue
		}
		e.inFlight++
		s.probing = true
		s.round++
		round, ep := s.round, s.endpoint.Clone()
		e.probes.Go(func() { e.probe(s, ep, round) })
	}
}

// probe makes one round for a subject, and tells what came of it.
func (e *Engine) probe(s *subject, ep endpoint.Endpoint, round int) {
	outcome := e.tryTargets(s, ep, round)
	e.leave()
	if told := e.record(s, outcome); told != nil {
		e.tell(s, told)
	}
	e.finish(s)
}

// news is what a round brought that others want to know.
type news struct {
	result     Result
	transition *Transition
	egress     *EgressChange
	witnesses  []string
}

// record takes the outcome of a round in. What is late, or was cut off by Close,
// is dropped.
func (e *Engine) record(s *subject, o outcome) *news {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s.gone || e.ctx.Err() != nil {
		return nil
	}
	n := &news{result: o.result, witnesses: o.witnesses}
	s.last = o.result
	e.latency.add(o.result)
	n.egress = e.egressLocked(s, o.result)
	if o.excused {
		return n
	}
	if o.result.Err == nil {
		s.successes, s.failures = s.successes+1, 0
	} else {
		s.successes, s.failures = 0, s.failures+1
	}
	n.transition = e.judgeLocked(s, o.result)
	return n
}

func (e *Engine) egressLocked(s *subject, r Result) *EgressChange {
	from := s.endpoint.EgressIP
	if !r.EgressIP.IsValid() || r.EgressIP == from {
		return nil
	}
	s.endpoint.EgressIP, s.verdict.EgressIP = r.EgressIP, r.EgressIP
	return &EgressChange{Endpoint: s.endpoint.Clone(), From: from, To: r.EgressIP}
}

// judgeLocked returns the transition that follows from the counts, if any.
func (e *Engine) judgeLocked(s *subject, r Result) *Transition {
	from := s.verdict.Health
	to := e.next(s)
	if to == from {
		return nil
	}
	s.verdict = endpoint.Verdict{
		Health: to, Reason: reason(r), Generation: s.endpoint.Generation,
		EgressIP: s.endpoint.EgressIP, Since: time.Now(),
	}
	close(e.changed)
	e.changed = make(chan struct{})
	return &Transition{Endpoint: s.endpoint.Clone(), From: from, Verdict: s.verdict, Result: r}
}

// tell calls the hooks.
func (e *Engine) tell(s *subject, n *news) {
	r := n.result
	if e.cfg.OnResult != nil {
		e.cfg.OnResult(r)
	}
	if r.Err != nil {
		e.cfg.Logger.V(2).Info("probe failed", "endpoint", r.EndpointID, "target", r.Target, "stage", r.Stage().String(), "error", r.Err.Error())
	}
	for _, id := range n.witnesses {
		e.ProbeNow(id)
	}
	if n.egress != nil && e.cfg.OnEgressChange != nil {
		e.cfg.OnEgressChange(*n.egress)
	}
	if t := n.transition; t != nil {
		e.cfg.Logger.V(1).Info("verdict", "endpoint", r.EndpointID, "from", t.From, "to", t.Verdict.Health, "reason", t.Verdict.Reason)
		e.deliver(s, *t)
	}
}

// deliver repeats a transition until it is taken.
func (e *Engine) deliver(s *subject, t Transition) {
	if e.cfg.OnTransition == nil {
		return
	}
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 10*time.Second) {
		err := e.cfg.OnTransition(t)
		if err == nil {
			return
		}
		e.cfg.Logger.V(1).Info("verdict was not taken; trying again", "endpoint", t.Endpoint.ID, "error", err.Error(), "pause", pause)
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-e.ctx.Done():
		}
		timer.Stop()
		if e.ctx.Err() != nil || e.isGone(s) {
			return
		}
	}
}

func (e *Engine) isGone(s *subject) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return s.gone
}

// next is the health that follows from the counts.
func (e *Engine) next(s *subject) endpoint.Health {
	health := s.verdict.Health
	switch {
	case health == endpoint.Unknown && s.successes > 0:
		return endpoint.Healthy
	case health == endpoint.Unhealthy && s.successes >= e.cfg.HealthyThreshold:
		return endpoint.Healthy
	case health != endpoint.Unhealthy && s.failures >= e.cfg.UnhealthyThreshold:
		return endpoint.Unhealthy
	}
	return health
}

func reason(r Result) string {
	if r.Err == nil {
		return fmt.Sprintf("probe succeeded in %v", r.Timings.Total.Round(time.Millisecond))
	}
	return r.Err.Error()
}

// leave gives the place in flight to the next.
func (e *Engine) leave() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.inFlight--
	e.startLocked()
}

// finish sets the next probe.
func (e *Engine) finish(s *subject) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s.probing = false
	if !s.gone && !e.closed {
		in := e.intervalAfter(s)
		if s.again {
			s.again, in = false, 0
		}
		e.clock.Set(&s.next, time.Now().Add(in))
	}
}

func (e *Engine) intervalAfter(s *subject) time.Duration {
	in := e.cfg.Interval
	switch {
	case s.verdict.Health != endpoint.Unhealthy && s.failures > 0,
		s.verdict.Health == endpoint.Unhealthy && s.successes > 0:
		in = e.cfg.EdgeInterval
	case s.verdict.Health == endpoint.Unhealthy:
		in = e.cfg.EdgeInterval << min(max(s.failures-e.cfg.UnhealthyThreshold, 0), 20)
		in = min(in, e.cfg.MaxUnhealthyInterval)
	}
	spread := in * time.Duration(e.cfg.IntervalJitterPercent) / 100
	return in - spread + randomUpTo(2*spread)
}

func randomUpTo(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return rand.N(d)
}
