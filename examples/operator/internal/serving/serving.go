// Package serving has proxies probed and leased: it joins a health engine and a
// lease inventory, and tells the controller of every verdict.
//
// The controller is the only one that puts endpoints in, and it runs on the leader
// alone. So of several replicas only the leader probes, and only it changes the
// inventory.
package serving

import (
	"context"
	"errors"
	"hash/maphash"
	"maps"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/examples/operator/api/v1alpha1"
	"github.com/egressfleet/egress/health"
	"github.com/egressfleet/egress/lease"
)

// Config says how to probe and where endpoints are leased from. Health needs a
// probe; its OnTransition and OnEgressChange are Serving's own.
type Config struct {
	Health    health.EngineConfig
	Inventory lease.Inventory
	// Withheld has nothing leased until Withhold has returned.
	Withheld bool
	// Logger gets what the inventory refuses, at V(1).
	Logger logr.Logger
}

// Serving is an engine and an inventory that hold the same endpoints. It is safe
// for concurrent use.
type Serving struct {
	cfg      Config
	engine   *health.Engine
	changes  chan event.GenericEvent
	withheld atomic.Bool
	seed     maphash.Seed
	turns    [64]chan struct{} // each of the endpoints whose IDs hash to it; see confirm
	ctx      context.Context
	cancel   context.CancelFunc
}

// pending is how many verdicts may wait for the controller. One that finds no room
// is told again by the engine.
const pending = 1024

var errBehind = errors.New("the controller is behind: the verdict is told again later")

// New returns a Serving without endpoints. Close it.
func New(cfg Config) (*Serving, error) {
	s := &Serving{cfg: cfg, changes: make(chan event.GenericEvent, pending), seed: maphash.MakeSeed()}
	for i := range s.turns {
		s.turns[i] = make(chan struct{}, 1)
	}
	s.withheld.Store(cfg.Withheld)
	s.ctx, s.cancel = context.WithCancel(context.Background())
	cfg.Health.OnTransition, cfg.Health.OnEgressChange = s.onTransition, s.onEgressChange
	engine, err := health.NewEngine(cfg.Health)
	if err != nil {
		s.cancel()
		return nil, err
	}
	s.engine = engine
	return s, nil
}

// Close ends all probes.
func (s *Serving) Close() {
	s.cancel()
	s.engine.Close()
}

// Engine is the one that probes.
func (s *Serving) Engine() *health.Engine { return s.engine }

// Changes tells of the Proxies whose verdict has changed.
func (s *Serving) Changes() <-chan event.GenericEvent { return s.changes }

// ID is the endpoint's of a Proxy: namespace/name.
func ID(name types.NamespacedName) string { return name.String() }

// Follow turns the proxy faults that holders report into early probes, until ctx
// ends.
func (s *Serving) Follow(ctx context.Context) {
	for r := range s.cfg.Inventory.Reports(ctx) {
		s.engine.ProbeNow(r.EndpointID)
	}
}

// Withhold keeps everything from being leased for a time: leases that a former
// leader gave, and that this one knows nothing of, run out meanwhile. It returns
// when that time, or ctx, is over.
func (s *Serving) Withhold(ctx context.Context, d time.Duration) {
	s.withheld.Store(true)
	select {
	case <-ctx.Done():
		return
	case <-time.After(d):
	}
	s.withheld.Store(false)
	for _, status := range s.engine.Snapshot() {
		if err := s.confirm(status.Endpoint.ID); err != nil {
			s.cfg.Logger.V(1).Info("verdict was not taken", "endpoint", status.Endpoint.ID, "error", err.Error())
		}
	}
}

// Put adds or changes an endpoint, or confirms it to an inventory that may have
// lost it.
func (s *Serving) Put(ctx context.Context, e endpoint.Endpoint) error {
	if err := s.cfg.Inventory.Put(ctx, e); err != nil {
		return err
	}
	now, known := s.engine.Get(e.ID)
	if !known || !same(now.Endpoint, e) {
		return s.engine.Put(e)
	}
	return s.confirm(e.ID)
}

// ProbeNow asks for an early probe.
func (s *Serving) ProbeNow(id string) { s.engine.ProbeNow(id) }

// Verdict returns what is known of an endpoint's generation.
func (s *Serving) Verdict(id string, generation uint64) endpoint.Verdict {
	status, ok := s.engine.Get(id)
	if !ok || status.Endpoint.Generation != generation {
		return endpoint.Verdict{Health: endpoint.Unknown, Generation: generation}
	}
	return status.Verdict
}

// Knows tells whether an endpoint's generation is probed and leased here.
func (s *Serving) Knows(id string, generation uint64) bool {
	status, ok := s.engine.Get(id)
	return ok && status.Endpoint.Generation == generation
}

// Drain ends the leasing of an endpoint and returns how many leases are held.
func (s *Serving) Drain(ctx context.Context, id string) (held int, err error) {
	held, err = s.cfg.Inventory.Drain(ctx, id)
	if errors.Is(err, lease.ErrUnknownEndpoint) {
		return 0, nil
	}
	return held, err
}

// Remove takes an endpoint out, and revokes its leases.
func (s *Serving) Remove(ctx context.Context, id string) error {
	s.engine.Remove(id)
	return s.cfg.Inventory.Remove(ctx, id)
}

func same(a, b endpoint.Endpoint) bool {
	return a.Generation == b.Generation && a.URL.Equal(b.URL) && maps.Equal(a.Attributes, b.Attributes)
}

// confirm tells the inventory what the engine says of an endpoint, unless that must
// wait. Several may do so at a time, and each says what holds when it has its turn: so
// the inventory is told of nothing older after something newer.
func (s *Serving) confirm(id string) error {
	turn := s.turns[maphash.String(s.seed, id)%uint64(len(s.turns))]
	select {
	case turn <- struct{}{}:
		defer func() { <-turn }()
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
	status, ok := s.engine.Get(id)
	v := status.Verdict
	if !ok || v.Health == endpoint.Unknown || v.Health == endpoint.Healthy && s.withheld.Load() {
		return nil
	}
	err := s.cfg.Inventory.SetVerdict(s.ctx, id, v)
	if errors.Is(err, lease.ErrUnknownEndpoint) || errors.Is(err, lease.ErrClosed) {
		return nil
	}
	return err
}

// onTransition passes a verdict on. The engine calls it, and again after an error.
func (s *Serving) onTransition(t health.Transition) error {
	if err := s.confirm(t.Endpoint.ID); err != nil {
		return err
	}
	return s.tell(t.Endpoint.ID)
}

// onEgressChange tells the inventory of an address, which bans are kept by.
func (s *Serving) onEgressChange(c health.EgressChange) {
	status, ok := s.engine.Get(c.Endpoint.ID)
	if !ok || status.Verdict.Health == endpoint.Unknown {
		return // the verdict that follows will carry it
	}
	if err := s.confirm(c.Endpoint.ID); err != nil {
		s.cfg.Logger.V(1).Info("egress address was not taken", "endpoint", c.Endpoint.ID, "error", err.Error())
	}
	_ = s.tell(c.Endpoint.ID)
}

func (s *Serving) tell(id string) error {
	namespace, name, _ := strings.Cut(id, "/")
	px := &v1alpha1.Proxy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	select {
	case s.changes <- event.GenericEvent{Object: px}:
		return nil
	default:
		return errBehind
	}
}
