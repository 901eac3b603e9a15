package health_test

import (
	"context"
	"errors"
	"fmt"
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

var errProbe = errors.New("refused")

// stub probes by a switch and writes down what it did.
type stub struct {
	mu     sync.Mutex
	bad    map[string]bool
	probes []time.Duration
	began  time.Time
	take   time.Duration
}

func (s *stub) probe(ctx context.Context, e endpoint.Endpoint) health.Result {
	s.mu.Lock()
	s.probes = append(s.probes, time.Since(s.began))
	bad, take := s.bad[e.ID], s.take
	s.mu.Unlock()
	r := health.Result{EndpointID: e.ID, Generation: e.Generation, Started: time.Now()}
	select {
	case <-time.After(take):
	case <-ctx.Done():
		r.Err = ctx.Err()
		return r
	}
	if bad {
		r.Err = errProbe
	}
	return r
}

func (s *stub) set(id string, bad bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bad[id] = bad
}

func (s *stub) at() []time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]time.Duration(nil), s.probes...)
}

// start returns an engine without jitter over a stub, in a synctest bubble.
func start(t *testing.T, change func(*health.EngineConfig)) (*health.Engine, *stub) {
	t.Helper()
	s := &stub{bad: map[string]bool{}, began: time.Now()}
	cfg := health.EngineConfig{Probe: s.probe, InitialJitter: -1, IntervalJitterPercent: -1}
	if change != nil {
		change(&cfg)
	}
	e, err := health.NewEngine(cfg)
	require.NoError(t, err)
	t.Cleanup(e.Close)
	return e, s
}

func proxy(t testing.TB, id string, generation uint64) endpoint.Endpoint {
	t.Helper()
	url, err := endpoint.NewURL("http", "192.0.2.7:3128", "", "")
	require.NoError(t, err)
	return endpoint.Endpoint{ID: id, URL: url, Generation: generation}
}

func seconds(values ...int) []time.Duration {
	var all []time.Duration
	for _, v := range values {
		all = append(all, time.Duration(v)*time.Second)
	}
	return all
}

func TestEngineConfigReportsEveryBadValue(t *testing.T) {
	_, err := health.NewEngine(health.EngineConfig{Interval: -1, MaxInFlight: -1, IntervalJitterPercent: 90})
	for _, want := range []string{
		"probe: give the function", "interval: -1ns: must not be negative",
		"maxInFlight: -1: must not be negative", "intervalJitterPercent: 90: must be at most 50",
	} {
		assert.ErrorContains(t, err, want)
	}
}

// haproxy/haproxy#51, caddyserver/caddy#6410: what was never checked got traffic.
func TestANewEndpointIsUnknownAndOneSuccessAdmits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var transitions []health.Transition
		e, s := start(t, func(c *health.EngineConfig) {
			c.OnTransition = func(tr health.Transition) error { transitions = append(transitions, tr); return nil }
		})
		s.take = time.Second
		require.NoError(t, e.Put(proxy(t, "a", 3)))
		got, ok := e.Get("a")
		require.True(t, ok)
		assert.Equal(t, endpoint.Unknown, got.Verdict.Health)
		require.NoError(t, e.WaitReady(t.Context(), 1))
		synctest.Wait()
		require.Len(t, transitions, 1)
		assert.Equal(t, endpoint.Unknown, transitions[0].From)
		assert.Equal(t, endpoint.Healthy, transitions[0].Verdict.Health)
		assert.EqualValues(t, 3, transitions[0].Verdict.Generation)
		assert.Equal(t, time.Now(), transitions[0].Verdict.Since)
	})
}

// traefik/traefik#12390, envoyproxy/envoy#7171: one failure threw a good
// backend out.
func TestThresholds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []endpoint.Health
		e, s := start(t, func(c *health.EngineConfig) {
			c.OnTransition = func(tr health.Transition) error { told = append(told, tr.Verdict.Health); return nil }
		})
		began := time.Now()
		require.NoError(t, e.Put(proxy(t, "a", 1)))
		healthyAt := func() bool { st, _ := e.Get("a"); return st.Verdict.Health == endpoint.Healthy }
		time.Sleep(14 * time.Second)
		s.set("a", true)
		time.Sleep(4 * time.Second) // 15 s and 17 s fail
		assert.True(t, healthyAt(), "two failures are not enough")
		time.Sleep(2 * time.Second) // 19 s is the third
		assert.False(t, healthyAt())
		s.set("a", false)
		time.Sleep(2 * time.Second) // 21 s is the first success
		assert.False(t, healthyAt(), "one success is not enough")
		time.Sleep(2 * time.Second) // 23 s is the second
		assert.True(t, healthyAt())
		assert.Equal(t, []endpoint.Health{endpoint.Healthy, endpoint.Unhealthy, endpoint.Healthy}, told)
		assert.Equal(t, seconds(0, 15, 17, 19, 21, 23), s.at())
		assert.Equal(t, 24*time.Second, time.Since(began))
	})
}

func TestASuccessStartsTheCountOfFailuresAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		probes := 0
		e, _ := start(t, func(c *health.EngineConfig) {
			c.Probe = func(_ context.Context, e endpoint.Endpoint) health.Result {
				probes++
				r := health.Result{EndpointID: e.ID}
				if probes%3 != 1 {
					r.Err = errProbe
				}
				return r
			}
			c.OnTransition = func(tr health.Transition) error {
				assert.Equal(t, endpoint.Healthy, tr.Verdict.Health, "after %d probes", probes)
				return nil
			}
		})
		require.NoError(t, e.Put(proxy(t, "a", 0)))
		time.Sleep(5 * time.Minute)
		e.Close()
		assert.Greater(t, probes, 40)
	})
}

func TestUnhealthyIsProbedLessAndLess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, s := start(t, nil)
		s.set("a", true)
		require.NoError(t, e.Put(proxy(t, "a", 1)))
		time.Sleep(20 * time.Minute)
		assert.Equal(t, seconds(0, 2, 4, 6, 10, 18, 34, 66, 130, 258, 514, 814, 1114), s.at())
	})
}

// envoyproxy/envoy#4132, #10498: all first probes fired in one instant.
func TestFirstProbesAreSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, s := start(t, func(c *health.EngineConfig) { c.InitialJitter = 0; c.IntervalJitterPercent = 0 })
		for i := range 1000 {
			require.NoError(t, e.Put(proxy(t, fmt.Sprint(i), 1)))
		}
		time.Sleep(15 * time.Second)
		synctest.Wait()
		perSecond := map[int]int{}
		for _, at := range s.at()[:1000] {
			perSecond[int(at/time.Second)]++
		}
		assert.Len(t, perSecond, 15)
		for second, n := range perSecond {
			assert.Less(t, n, 150, "second %d", second)
		}
	})
}

// Endpoints that were put in together do not stay together.
func TestEachIntervalVaries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, s := start(t, func(c *health.EngineConfig) { c.IntervalJitterPercent = 20 })
		require.NoError(t, e.Put(proxy(t, "a", 1)))
		time.Sleep(time.Hour)
		e.Close()
		intervals := map[time.Duration]bool{}
		least, most, at := time.Hour, time.Duration(0), s.at()
		for i := range len(at) - 1 {
			d := at[i+1] - at[i]
			intervals[d] = true
			least, most = min(least, d), max(most, d)
		}
		assert.Greater(t, len(intervals), 100)
		assert.GreaterOrEqual(t, least, 12*time.Second)
		assert.Less(t, least, 13*time.Second)
		assert.LessOrEqual(t, most, 18*time.Second)
		assert.Greater(t, most, 17*time.Second)
	})
}

func TestProbesInFlightAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var now, most atomic.Int64
		e, _ := start(t, func(c *health.EngineConfig) {
			c.MaxInFlight = 7
			c.Probe = func(_ context.Context, e endpoint.Endpoint) health.Result {
				most.Store(max(most.Load(), now.Add(1)))
				time.Sleep(time.Second)
				now.Add(-1)
				return health.Result{EndpointID: e.ID}
			}
		})
		for i := range 100 {
			require.NoError(t, e.Put(proxy(t, fmt.Sprint(i), 0)))
		}
		began := time.Now()
		require.NoError(t, e.WaitReady(t.Context(), 100))
		assert.EqualValues(t, 7, most.Load())
		assert.Equal(t, 15*time.Second, time.Since(began), "100 probes of 1 s, 7 at a time")
	})
}

// scrapoxy/scrapoxy#47: the result of a probe in flight brought back what had
// been removed.
func TestResultsForTheRemovedAndTheChangedAreDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told atomic.Int64
		e, s := start(t, func(c *health.EngineConfig) {
			c.OnTransition = func(health.Transition) error { told.Add(1); return nil }
		})
		s.take = 10 * time.Second
		require.NoError(t, e.Put(proxy(t, "removed", 1)))
		require.NoError(t, e.Put(proxy(t, "changed", 1)))
		time.Sleep(time.Second)
		e.Remove("removed")
		require.NoError(t, e.Put(proxy(t, "changed", 2)))
		time.Sleep(9500 * time.Millisecond)
		_, known := e.Get("removed")
		assert.False(t, known)
		st, _ := e.Get("changed")
		assert.Equal(t, endpoint.Unknown, st.Verdict.Health)
		assert.Zero(t, told.Load())
		time.Sleep(time.Second)
		st, _ = e.Get("changed")
		assert.Equal(t, endpoint.Healthy, st.Verdict.Health)
		assert.EqualValues(t, 2, st.Verdict.Generation)
	})
}

func TestPutOfTheSameKeepsTheVerdict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, s := start(t, nil)
		require.NoError(t, e.Put(proxy(t, "a", 1)))
		synctest.Wait()
		same := proxy(t, "a", 1)
		same.Attributes = map[string]string{"region": "eu"}
		require.NoError(t, e.Put(same))
		st, _ := e.Get("a")
		assert.Equal(t, endpoint.Healthy, st.Verdict.Health)
		assert.Equal(t, same.Attributes, st.Endpoint.Attributes)
		assert.Len(t, s.at(), 1)
	})
}

func TestProbeNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, s := start(t, nil)
		s.take = time.Second
		require.NoError(t, e.Put(proxy(t, "a", 1)))
		time.Sleep(5 * time.Second)
		e.ProbeNow("a")
		e.ProbeNow("nobody")
		synctest.Wait()
		e.ProbeNow("a") // in flight: once more after it
		time.Sleep(5 * time.Second)
		assert.Equal(t, seconds(0, 5, 6), s.at())
	})
}

func TestWaitReadyEndsWithItsContextAndSaysHowMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, s := start(t, nil)
		s.set("b", true)
		require.NoError(t, e.Put(proxy(t, "a", 1)))
		require.NoError(t, e.Put(proxy(t, "b", 1)))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err := e.WaitReady(ctx, 2)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.ErrorContains(t, err, "1 of 2 endpoints are healthy")
	})
}

func TestCloseEndsProbesInFlightWithoutAVerdict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, s := start(t, func(c *health.EngineConfig) {
			c.OnTransition = func(health.Transition) error { t.Error("a probe that was cut off made a verdict"); return nil }
		})
		s.take = time.Hour
		require.NoError(t, e.Put(proxy(t, "a", 1)))
		synctest.Wait()
		began := time.Now()
		e.Close()
		e.Close()
		assert.Zero(t, time.Since(began))
		assert.ErrorIs(t, e.Put(proxy(t, "b", 1)), health.ErrClosed)
		assert.ErrorIs(t, e.WaitReady(t.Context(), 1), health.ErrClosed)
		require.Len(t, e.Snapshot(), 1)
	})
}
