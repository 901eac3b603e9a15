package health_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/health"
)

// site is a target that can be down, for all or for some endpoints.
type site struct {
	mu     sync.Mutex
	down   map[string]bool // by endpoint ID; "*" for all
	stage  endpoint.Stage
	probes map[string]int
}

func newSite() *site {
	return &site{down: map[string]bool{}, stage: endpoint.StageStatus, probes: map[string]int{}}
}

func (s *site) set(id string, down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down[id] = down
}

func (s *site) count(id string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.probes[id]
}

func (s *site) probe(_ context.Context, e endpoint.Endpoint) health.Result {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.probes[e.ID]++
	r := health.Result{EndpointID: e.ID, Generation: e.Generation, Started: time.Now()}
	if s.down[e.ID] || s.down["*"] {
		r.Err = &endpoint.Error{Stage: s.stage, Err: errors.New("503")}
	}
	return r
}

func putMany(t *testing.T, e *health.Engine, n int) {
	t.Helper()
	for i := range n {
		require.NoError(t, e.Put(proxy(t, fmt.Sprint(i), 0)))
	}
	synctest.Wait()
}

func healthyOf(e *health.Engine) int {
	n := 0
	for _, s := range e.Snapshot() {
		if s.Verdict.Health == endpoint.Healthy {
			n++
		}
	}
	return n
}

// diegosouzapw/OmniRoute#6296, #8411: the target's own failures made every proxy
// dead.
func TestATargetThatIsDownForMostIsSuspended(t *testing.T) {
	for _, n := range []int{4, 50} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSite()
				var told []health.TargetStatus
				e, _ := start(t, func(c *health.EngineConfig) {
					c.Probe = s.probe
					c.InitialJitter, c.IntervalJitterPercent = 0, 0
					c.OnTarget = func(st health.TargetStatus) { told = append(told, st) }
				})
				putMany(t, e, n)
				time.Sleep(time.Minute)
				require.Equal(t, n, healthyOf(e))
				s.set("*", true)
				time.Sleep(10 * time.Minute)
				assert.Equal(t, n, healthyOf(e), "nobody is judged by a target that is down")
				require.Len(t, e.Targets(), 1)
				assert.True(t, e.Targets()[0].Suspended)
				s.set("*", false)
				time.Sleep(time.Minute)
				e.Close()
				assert.Equal(t, n, healthyOf(e))
				require.Len(t, told, 2)
				assert.True(t, told[0].Suspended)
				assert.False(t, told[1].Suspended)
			})
		})
	}
}

func TestATargetThatFailsThroughOneCountsAgainstThatOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite()
		e, _ := start(t, func(c *health.EngineConfig) { c.Probe = s.probe })
		putMany(t, e, 5)
		s.set("3", true)
		time.Sleep(time.Minute)
		assert.Equal(t, 4, healthyOf(e))
		st, _ := e.Get("3")
		assert.Equal(t, endpoint.Unhealthy, st.Verdict.Health)
	})
}

func TestFailuresOfTheProxyAlwaysCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite()
		s.stage = endpoint.StageDial
		e, _ := start(t, func(c *health.EngineConfig) { c.Probe = s.probe })
		putMany(t, e, 5)
		s.set("*", true)
		time.Sleep(time.Minute)
		assert.Zero(t, healthyOf(e))
		assert.False(t, e.Targets()[0].Suspended)
	})
}

func TestAProxyThatReachesAnyTargetIsHealthy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newSite(), newSite()
		e, _ := start(t, func(c *health.EngineConfig) {
			c.Probe = nil
			c.Targets = []health.Target{{Name: "a", Probe: a.probe}, {Name: "b", Probe: b.probe}}
		})
		putMany(t, e, 2)
		time.Sleep(5 * time.Minute)
		assert.InDelta(t, a.count("0"), b.count("0"), 1, "the rounds take turns")
		a.set("*", true)
		time.Sleep(5 * time.Minute)
		assert.Equal(t, 2, healthyOf(e))
		b.set("0", true)
		time.Sleep(time.Minute)
		assert.Equal(t, 1, healthyOf(e), "neither through 0; b through 1")
	})
}

func TestTargetsAreChecked(t *testing.T) {
	s := newSite()
	_, err := health.NewEngine(health.EngineConfig{
		Probe: s.probe, Targets: []health.Target{{Name: "a", Probe: s.probe}, {Name: "a", MaxInFlight: -1}, {}},
	})
	for _, want := range []string{
		"probe: leave it out beside targets",
	} {
		assert.ErrorContains(t, err, want)
	}
	_, err = health.NewEngine(health.EngineConfig{Targets: []health.Target{{Name: "a", Probe: s.probe}, {Name: "a", MaxInFlight: -1}, {}}})
	for _, want := range []string{
		`targets[1].name: "a": is used twice`, "targets[1].probe: give the function", "targets[1].maxInFlight: -1",
		"targets[2].name: give the target a name",
	} {
		assert.ErrorContains(t, err, want)
	}
}

func TestProbesOfATargetAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var now, most atomic.Int64
		e, _ := start(t, func(c *health.EngineConfig) {
			c.Probe = nil
			c.Targets = []health.Target{{Name: "a", MaxInFlight: 3, Probe: func(_ context.Context, e endpoint.Endpoint) health.Result {
				most.Store(max(most.Load(), now.Add(1)))
				time.Sleep(time.Second)
				now.Add(-1)
				return health.Result{EndpointID: e.ID}
			}}}
		})
		for i := range 20 {
			require.NoError(t, e.Put(proxy(t, fmt.Sprint(i), 0)))
		}
		require.NoError(t, e.WaitReady(t.Context(), 20))
		assert.EqualValues(t, 3, most.Load())
	})
}

func TestATransitionIsToldUntilItIsTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls []time.Duration
		began := time.Now()
		e, s := start(t, func(c *health.EngineConfig) {
			c.OnTransition = func(health.Transition) error {
				calls = append(calls, time.Since(began).Round(100*time.Millisecond))
				if len(calls) < 4 {
					return errors.New("not now")
				}
				return nil
			}
		})
		require.NoError(t, e.Put(proxy(t, "a", 0)))
		time.Sleep(10 * time.Second)
		e.Close()
		assert.Equal(t, []time.Duration{0, 100 * time.Millisecond, 300 * time.Millisecond, 700 * time.Millisecond}, calls)
		assert.Len(t, s.at(), 1, "the next probe waits")
	})
}

func TestATransitionThatIsNeverTakenHoldsUpNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, s := start(t, func(c *health.EngineConfig) {
			c.MaxInFlight = 1
			c.OnTransition = func(tr health.Transition) error {
				if tr.Endpoint.ID == "0" {
					return errors.New("never")
				}
				return nil
			}
		})
		putMany(t, e, 3)
		time.Sleep(time.Minute)
		assert.Greater(t, len(s.at()), 8)
		e.Remove("0")
		time.Sleep(time.Minute)
		e.Close()
	})
}

func TestAChangeOfTheEgressAddressIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []string
		addresses := []string{"192.0.2.1", "192.0.2.1", "192.0.2.2", "192.0.2.2"}
		e, _ := start(t, func(c *health.EngineConfig) {
			c.Probe = func(_ context.Context, e endpoint.Endpoint) health.Result {
				r := health.Result{EndpointID: e.ID}
				if len(addresses) > 0 {
					r.EgressIP, addresses = netip.MustParseAddr(addresses[0]), addresses[1:]
				}
				return r
			}
			c.OnEgressChange = func(ch health.EgressChange) { told = append(told, fmt.Sprint(ch.From, " ", ch.To)) }
		})
		require.NoError(t, e.Put(proxy(t, "a", 0)))
		time.Sleep(2 * time.Minute)
		e.Close()
		assert.Equal(t, []string{"invalid IP 192.0.2.1", "192.0.2.1 192.0.2.2"}, told)
		st, _ := e.Get("a")
		assert.Equal(t, "192.0.2.2", st.Verdict.EgressIP.String())
	})
}

func TestLatencyByStage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n atomic.Int64
		e, _ := start(t, func(c *health.EngineConfig) {
			c.Probe = func(_ context.Context, e endpoint.Endpoint) health.Result {
				d := time.Duration(n.Add(1)) * time.Millisecond
				return health.Result{EndpointID: e.ID, Timings: health.Timings{Dial: d, Total: 10 * d}}
			}
		})
		putMany(t, e, 100)
		latency := e.Latency()
		within := func(want, got time.Duration) {
			assert.InEpsilon(t, float64(want), float64(got), 0.07)
		}
		assert.EqualValues(t, 100, latency[0].Count)
		within(50*time.Millisecond, latency[endpoint.StageDial].P50)
		within(90*time.Millisecond, latency[endpoint.StageDial].P90)
		within(990*time.Millisecond, latency[0].P99)
		_, reached := latency[endpoint.StageBody]
		assert.False(t, reached)
	})
}
