package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/health"
	"github.com/egressfleet/egress/lease"
	"github.com/egressfleet/egress/provider"
)

// ErrClosed says that the fleet was closed.
var ErrClosed = errors.New("fleet closed")

// Fleet keeps proxies alive. It is safe for concurrent use.
type Fleet struct {
	cfg    Config
	engine *health.Engine

	ctx    context.Context // of the loop and its calls
	cancel context.CancelFunc
	work   sync.WaitGroup // the loop, and all that it started
	kick   chan struct{}  // wakes the loop

	events      eventQueue
	creates     context.Context // of calls of Create: Destroy ends them early
	stopCreates context.CancelFunc

	// mu guards all below. No provider, inventory or hook is called under it.
	mu         sync.Mutex
	members    record
	byEndpoint map[string]*member
	began      time.Time
	listed     bool // a whole list was seen, or AdoptTimeout is over
	whole      bool // a whole list was seen
	listing    bool
	nextList   time.Time
	destroying bool
	forgotten  map[string]time.Time // UIDs by when they were, since the list before last
	counts     map[EventType]int64
	shortages  map[provider.Placement]*shortage
	pools      map[string]*pool
	poolOrder  []*pool
	// leased are the endpoints that were at leasedAt; asking while that is found out.
	leased   map[string]bool
	leasedAt time.Time
	asking   bool
	stray    *pool // of adopted instances whose pool is no more
	// inherited is true once it is known what a former process left in the store,
	// inheriting while that is found out; after a failure not before inheritAfter.
	inherited, inheriting bool
	inheritAfter          time.Time
}

// New starts a fleet. Close it. The error lists all that is wrong with cfg.
func New(cfg Config) (*Fleet, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("fleet.Config: %w", err)
	}
	f := &Fleet{
		cfg: cfg, kick: make(chan struct{}, 1),
		members: newRecord(), byEndpoint: map[string]*member{}, forgotten: map[string]time.Time{},
		began: time.Now(), counts: map[EventType]int64{}, shortages: map[provider.Placement]*shortage{}, pools: map[string]*pool{}, stray: &pool{},
	}
	for _, p := range cfg.Pools {
		state := &pool{Pool: p}
		f.pools[p.Name], f.poolOrder = state, append(f.poolOrder, state)
	}
	cfg.Health = f.followed(cfg.Health)
	if f.engine, err = health.NewEngine(cfg.Health); err != nil {
		return nil, fmt.Errorf("fleet.Config: health: %w", err)
	}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	f.creates, f.stopCreates = context.WithCancel(f.ctx)
	f.events.start(cfg.OnEvent)
	f.work.Go(f.loop)
	f.work.Go(f.followReports)
	f.work.Go(f.watch)
	return f, nil
}

// followed has the fleet told of verdicts and egress addresses before the
// caller's own hooks.
func (f *Fleet) followed(cfg health.EngineConfig) health.EngineConfig {
	onTransition, onEgress := cfg.OnTransition, cfg.OnEgressChange
	cfg.OnTransition = func(t health.Transition) error {
		err := f.onTransition(t)
		if err == nil && onTransition != nil {
			err = onTransition(t)
		}
		return err
	}
	cfg.OnEgressChange = func(c health.EgressChange) {
		f.onEgressChange(c)
		if onEgress != nil {
			onEgress(c)
		}
	}
	return cfg
}

// CloseMode says what becomes of the instances when a fleet is closed.
type CloseMode int

// The ways to close.
const (
	// Keep leaves them running: the next fleet of the tag adopts them.
	Keep CloseMode = iota
	// Destroy deletes them, and waits until all are gone.
	Destroy
)

// Close ends the fleet. With Destroy it revokes the leases, deletes every
// instance of the tag and waits until they are gone or ctx ends; then the error
// names what is left. Afterwards nothing of the fleet runs.
func (f *Fleet) Close(ctx context.Context, mode CloseMode) error {
	var err error
	if mode == Destroy {
		err = f.destroy(ctx)
	}
	f.cancel()
	f.work.Wait()
	f.engine.Close()
	f.events.stop()
	return err
}

// destroy has the loop delete everything, and then looks once more by tag for
// what a call of Create that was cut short may have left.
func (f *Fleet) destroy(ctx context.Context) error {
	f.mu.Lock()
	f.destroying = true
	f.mu.Unlock()
	f.stopCreates()
	f.wake()
	ticker := time.NewTicker(min(f.cfg.PollInterval, time.Second))
	defer ticker.Stop()
	for {
		var err error
		if f.left() == nil {
			if err = f.list(ctx); err == nil && f.left() == nil {
				err = f.inherit(ctx)
			}
			if err == nil && f.left() == nil {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("fleet: not everything is deleted: %w%w", errors.Join(ctx.Err(), err), errLeft(f.left()))
		case <-f.ctx.Done():
			return ErrClosed
		case <-ticker.C:
		}
	}
}

// errLeft names what is left, for errors.
type errLeft []string

func (e errLeft) Error() string {
	if len(e) == 0 {
		return ""
	}
	return fmt.Sprintf(": %q are left", []string(e))
}

func (f *Fleet) left() []string {
	var ids []string
	for _, s := range f.Status() {
		ids = append(ids, cmp.Or(s.ID, "UID "+s.UID))
	}
	return ids
}

// Status returns every instance, the oldest first.
func (f *Fleet) Status() []Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := make([]Status, 0, f.members.len())
	for _, m := range f.members.all {
		all = append(all, m.status())
	}
	for i := range all {
		f.explain(&all[i])
	}
	return all
}

// explain gives a proxy that is not healthy its latest failure as the reason.
func (f *Fleet) explain(s *Status) {
	if s.Phase != PhaseServing || s.Verdict.Health == endpoint.Healthy {
		return
	}
	if st, ok := f.engine.Get(s.EndpointID); ok && st.Last.Err != nil {
		s.Reason = st.Last.Err.Error()
	}
}

// WaitReady blocks until at least n proxies are healthy. When ctx ends first,
// the error tells how many were, and what holds up the others.
func (f *Fleet) WaitReady(ctx context.Context, n int) error {
	err := f.engine.WaitReady(ctx, n)
	if errors.Is(err, health.ErrClosed) {
		return ErrClosed
	}
	if err == nil {
		return nil
	}
	for _, s := range f.Status() {
		if s.Verdict.Health != endpoint.Healthy {
			err = fmt.Errorf("%w; %s is %s: %s", err, cmp.Or(s.ID, s.UID), s.Phase, cmp.Or(s.Reason, "no reason known"))
		}
	}
	return err
}

// Engine is the one that probes the fleet's endpoints.
func (f *Fleet) Engine() *health.Engine { return f.engine }

// wake makes the loop look again.
func (f *Fleet) wake() {
	select {
	case f.kick <- struct{}{}:
	default:
	}
}

func (f *Fleet) loop() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-f.ctx.Done():
			return
		case <-f.kick:
		case <-timer.C:
		}
		f.mu.Lock()
		next := f.reconcileLocked(time.Now())
		f.mu.Unlock()
		timer.Reset(time.Until(next))
	}
}

// followReports turns proxy faults that holders report into early probes.
func (f *Fleet) followReports() {
	for r := range f.cfg.Inventory.Reports(f.ctx) {
		f.engine.ProbeNow(r.EndpointID)
	}
}

// onTransition passes a verdict on. The engine calls it, and again after an error.
func (f *Fleet) onTransition(t health.Transition) error {
	err := f.tell(t.Endpoint.ID, t.Verdict)
	if err != nil && !errors.Is(err, lease.ErrUnknownEndpoint) && !errors.Is(err, lease.ErrClosed) {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	m, ok := f.byEndpoint[t.Endpoint.ID]
	if !ok || m.generation != t.Verdict.Generation {
		return nil
	}
	m.verdict = t.Verdict
	if t.Verdict.Health == endpoint.Healthy {
		m.wasHealthy = true
		m.pool.stillborn, m.pool.growAfter = 0, time.Time{}
	}
	f.eventLocked(m, Event{Type: Verdict, Health: t.Verdict.Health, Reason: t.Verdict.Reason})
	f.wake()
	return nil
}

// onEgressChange tells the inventory of an address, which bans are kept by.
func (f *Fleet) onEgressChange(c health.EgressChange) {
	status, ok := f.engine.Get(c.Endpoint.ID)
	if !ok || status.Verdict.Health == endpoint.Unknown {
		return // the verdict that follows will carry it
	}
	if err := f.tell(c.Endpoint.ID, status.Verdict); err != nil {
		f.cfg.Logger.V(1).Info("egress address was not taken", "endpoint", c.Endpoint.ID, "error", err.Error())
	}
}

// tell passes what the engine has found out to the inventory. While it does, nothing
// older is told of the same generation.
func (f *Fleet) tell(id string, v endpoint.Verdict) error {
	if telling := f.tellingOf(id, v.Generation); telling != nil {
		select {
		case telling <- struct{}{}:
			defer func() { <-telling }()
		case <-f.ctx.Done():
			return f.ctx.Err()
		}
	}
	return f.cfg.Inventory.SetVerdict(f.ctx, id, v)
}

func (f *Fleet) tellingOf(id string, generation uint64) chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	if m, ok := f.byEndpoint[id]; ok && m.generation == generation {
		return m.telling
	}
	return nil
}

// EventCounts returns how many events of each type there were.
func (f *Fleet) EventCounts() map[EventType]int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.counts)
}

// eventLocked logs an event and queues it for the hook.
func (f *Fleet) eventLocked(m *member, e Event) {
	e.Time = time.Now()
	f.counts[e.Type]++
	if m != nil {
		e.UID, e.ID = m.uid, m.id
	}
	level := 1
	switch {
	case e.Type == Replacing, e.Type == LetGo, e.Type == CallFailed && errors.Is(e.Err, provider.ErrPermanent):
		level = 0
	}
	if log := f.cfg.Logger.V(level); log.Enabled() {
		values := []any{"tag", f.cfg.Tag, "uid", e.UID, "id", e.ID}
		if e.Reason != "" {
			values = append(values, "reason", e.Reason)
		}
		if e.Err != nil {
			values = append(values, "error", e.Err.Error(), "class", provider.Class(e.Err))
		}
		log.Info("fleet: "+string(e.Type), values...)
	}
	f.events.put(e)
}

// eventQueue hands events to the hook in order, by a goroutine of its own, so
// that no lock is held while it runs.
type eventQueue struct {
	hook func(Event)
	work sync.WaitGroup

	mu     sync.Mutex
	queue  []Event
	closed bool
	filled *sync.Cond
}

func (q *eventQueue) start(hook func(Event)) {
	q.hook, q.filled = hook, sync.NewCond(&q.mu)
	if hook != nil {
		q.work.Go(q.run)
	}
}

func (q *eventQueue) put(e Event) {
	if q.hook == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.queue = append(q.queue, e)
	q.filled.Signal()
}

// stop returns after the hook was told of everything.
func (q *eventQueue) stop() {
	q.mu.Lock()
	q.closed = true
	q.filled.Signal()
	q.mu.Unlock()
	q.work.Wait()
}

func (q *eventQueue) run() {
	for {
		q.mu.Lock()
		for len(q.queue) == 0 && !q.closed {
			q.filled.Wait()
		}
		batch := q.queue
		q.queue = nil
		q.mu.Unlock()
		if len(batch) == 0 {
			return
		}
		for _, e := range batch {
			q.hook(e)
		}
	}
}
