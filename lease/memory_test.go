package lease_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/lease"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func proxy(t testing.TB, id string) endpoint.Endpoint {
	t.Helper()
	url, err := endpoint.NewURL("http", "192.0.2.7:3128", "crawler", "hunter2")
	require.NoError(t, err)
	return endpoint.Endpoint{ID: id, URL: url, Generation: 1}
}

func healthy(generation uint64) endpoint.Verdict {
	return endpoint.Verdict{Health: endpoint.Healthy, Generation: generation}
}

// newMemory returns a store with healthy endpoints of those IDs.
func newMemory(t testing.TB, cfg lease.MemoryConfig, ids ...string) *lease.Memory {
	t.Helper()
	m, err := lease.NewMemory(cfg)
	require.NoError(t, err)
	t.Cleanup(m.Close)
	for _, id := range ids {
		require.NoError(t, m.Put(t.Context(), proxy(t, id)))
		require.NoError(t, m.SetVerdict(t.Context(), id, healthy(1)))
	}
	return m
}

func acquire(t testing.TB, m lease.Store, domain string) *lease.Lease {
	t.Helper()
	l, err := m.TryAcquire(t.Context(), lease.Request{Holder: "test", Domain: domain, TTL: time.Minute})
	require.NoError(t, err)
	return l
}

func TestMemoryConfigReportsEveryBadValue(t *testing.T) {
	_, err := lease.NewMemory(lease.MemoryConfig{LockDelay: -1, DefaultTTL: 2 * time.Hour})
	assert.ErrorContains(t, err, "lockDelay: -1ns: must not be negative")
	assert.ErrorContains(t, err, "defaultTTL: 2h0m0s: must not be longer than maxTTL, 1h0m0s")
}

func TestRequestIsValidated(t *testing.T) {
	m := newMemory(t, lease.MemoryConfig{}, "a")
	_, err := m.Acquire(t.Context(), lease.Request{TTL: -time.Second})
	assert.ErrorContains(t, err, "holder: name who holds the lease")
	assert.ErrorContains(t, err, "ttl: -1s: must not be negative")
}

// haproxy/haproxy#51, traefik/traefik#4544: traffic went to what was never checked.
func TestOnlyTheProvenIsLeased(t *testing.T) {
	m := newMemory(t, lease.MemoryConfig{})
	require.NoError(t, m.Put(t.Context(), proxy(t, "a")))
	_, err := m.TryAcquire(t.Context(), lease.Request{Holder: "test"})
	require.ErrorIs(t, err, lease.ErrNoneFree)
	assert.ErrorContains(t, err, "1 endpoints: 1 not yet proven")

	require.NoError(t, m.SetVerdict(t.Context(), "a", endpoint.Verdict{Health: endpoint.Unhealthy, Generation: 1}))
	_, err = m.TryAcquire(t.Context(), lease.Request{Holder: "test"})
	assert.ErrorContains(t, err, "1 unhealthy")

	require.NoError(t, m.SetVerdict(t.Context(), "a", healthy(1)))
	acquire(t, m, "")
}

func TestVerdictOnAnOlderGenerationIsDropped(t *testing.T) {
	m := newMemory(t, lease.MemoryConfig{}, "a")
	changed := proxy(t, "a")
	changed.Generation = 2
	require.NoError(t, m.Put(t.Context(), changed))
	require.NoError(t, m.SetVerdict(t.Context(), "a", healthy(1)))
	_, err := m.TryAcquire(t.Context(), lease.Request{Holder: "test"})
	require.ErrorIs(t, err, lease.ErrNoneFree)
	require.NoError(t, m.SetVerdict(t.Context(), "a", healthy(2)))
	assert.EqualValues(t, 2, acquire(t, m, "").Endpoint().Generation)
}

func TestEmptyStoreNeverMatches(t *testing.T) {
	m := newMemory(t, lease.MemoryConfig{})
	_, err := m.TryAcquire(t.Context(), lease.Request{Holder: "test"})
	require.ErrorIs(t, err, lease.ErrNoMatch)
	assert.EqualError(t, err, "no lease (no endpoints)")
}

func TestLeasesAreExclusiveAndRotate(t *testing.T) {
	m := newMemory(t, lease.MemoryConfig{}, "a", "b", "c")
	var order []string
	for range 6 {
		l := acquire(t, m, "")
		order = append(order, l.Endpoint().ID)
		require.NoError(t, l.Release(t.Context()))
	}
	assert.Equal(t, []string{"a", "b", "c", "a", "b", "c"}, order)

	for range 3 {
		acquire(t, m, "")
	}
	_, err := m.TryAcquire(t.Context(), lease.Request{Holder: "test"})
	var unavailable *lease.UnavailableError
	require.ErrorAs(t, err, &unavailable)
	assert.Equal(t, 3, unavailable.Counts.Leased)
	assert.Positive(t, unavailable.RetryAfter, "a lease ends by itself")
}

func TestReleaseUnusedKeepsItsTurn(t *testing.T) {
	m := newMemory(t, lease.MemoryConfig{}, "a", "b")
	require.NoError(t, acquire(t, m, "").ReleaseUnused(t.Context()))
	assert.Equal(t, "a", acquire(t, m, "").Endpoint().ID)
}

func TestTokensRise(t *testing.T) {
	m := newMemory(t, lease.MemoryConfig{}, "a")
	last := time.Now().Add(-time.Minute).UnixMicro()
	for range 100 {
		l := acquire(t, m, "")
		require.Greater(t, l.Key().Token, last)
		last = l.Key().Token
		require.NoError(t, l.Release(t.Context()))
	}
}

func TestKeysAreCheckedWhole(t *testing.T) {
	m := newMemory(t, lease.MemoryConfig{}, "a")
	l := acquire(t, m, "")
	forged := lease.Key{ID: l.Key().ID, Token: l.Key().Token + 1}
	unknown := lease.Key{ID: "nobody's", Token: 1}
	fault := lease.Outcome{Kind: lease.ProxyFault}

	_, err := m.Renew(t.Context(), forged, 0)
	assert.ErrorIs(t, err, lease.ErrNotHeld)
	assert.ErrorIs(t, m.Release(t.Context(), forged), lease.ErrNotHeld)
	assert.ErrorIs(t, m.Report(t.Context(), forged, fault), lease.ErrNotHeld)
	_, err = m.Renew(t.Context(), unknown, 0)
	assert.ErrorIs(t, err, lease.ErrNotHeld)
	assert.NoError(t, m.Release(t.Context(), unknown), "there is nothing to release")
	assert.NoError(t, m.Report(t.Context(), unknown, fault), "it may be late")
	assert.NoError(t, l.Err(), "nothing of this touched the lease")

	stats, err := m.Stats(t.Context())
	require.NoError(t, err)
	assert.EqualValues(t, 1, stats.LateReports)
	assert.ErrorContains(t, m.Report(t.Context(), l.Key(), lease.Outcome{Kind: "odd"}), `kind: "odd"`)
}

func TestExpiryFreesAfterTheLockDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(t, lease.MemoryConfig{}, "a")
		l := acquire(t, m, "")
		time.Sleep(59 * time.Second)
		require.NoError(t, l.Err(), "never early")
		time.Sleep(time.Second)
		synctest.Wait()
		require.ErrorIs(t, l.Err(), lease.ErrExpired)
		require.ErrorIs(t, l.Err(), lease.ErrLost)
		assert.ErrorIs(t, m.Release(t.Context(), l.Key()), lease.ErrExpired)
		_, err := m.Renew(t.Context(), l.Key(), 0)
		assert.ErrorIs(t, err, lease.ErrExpired)

		asked := time.Now()
		_, err = m.Acquire(t.Context(), lease.Request{Holder: "next"})
		require.NoError(t, err)
		assert.Equal(t, 15*time.Second, time.Since(asked), "the old holder may still be sending")
	})
}

func TestReleaseFreesAtOnce(t *testing.T) {
	m := newMemory(t, lease.MemoryConfig{}, "a")
	require.NoError(t, acquire(t, m, "").Release(t.Context()))
	acquire(t, m, "")
}

func TestRenewExtends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(t, lease.MemoryConfig{MaxTTL: 10 * time.Minute}, "a")
		l := acquire(t, m, "")
		time.Sleep(50 * time.Second)
		require.NoError(t, l.Renew(t.Context(), 24*time.Hour))
		assert.Equal(t, 10*time.Minute, time.Until(l.ExpiresAt()), "the store grants less than asked")
		time.Sleep(10*time.Minute - time.Second)
		require.NoError(t, l.Err())
		time.Sleep(time.Second)
		synctest.Wait()
		assert.ErrorIs(t, l.Err(), lease.ErrExpired)
		assert.ErrorIs(t, l.Renew(t.Context(), 0), lease.ErrLost)
	})
}

func TestAcquireWaitsItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(t, lease.MemoryConfig{}, "a")
		first := acquire(t, m, "")
		var order []int
		var group sync.WaitGroup
		for i := range 5 {
			group.Go(func() {
				l, err := m.Acquire(t.Context(), lease.Request{Holder: fmt.Sprint(i)})
				if assert.NoError(t, err) {
					order = append(order, i) // exclusive: no other goroutine is here
					assert.NoError(t, l.Release(t.Context()))
				}
			})
			synctest.Wait()
		}
		require.NoError(t, first.Release(t.Context()))
		group.Wait()
		assert.Equal(t, []int{0, 1, 2, 3, 4}, order)
	})
}

// One whom the freed endpoint does not satisfy holds up nobody behind.
func TestAcquireSkipsWhomTheEndpointDoesNotSatisfy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(t, lease.MemoryConfig{}, "a")
		l := acquire(t, m, "banned.example")
		require.NoError(t, l.Report(t.Context(), lease.Outcome{Kind: lease.TargetBlocked}))
		served := make(chan string, 2)
		for _, domain := range []string{"banned.example", "other.example"} {
			go func() {
				if l, err := m.Acquire(t.Context(), lease.Request{Holder: domain, Domain: domain, TTL: time.Second}); err == nil {
					served <- domain
					_ = l.Release(t.Context())
				}
			}()
			synctest.Wait()
		}
		require.NoError(t, l.Release(t.Context()))
		assert.Equal(t, "other.example", <-served)
		began := time.Now()
		assert.Equal(t, "banned.example", <-served)
		assert.Equal(t, 5*time.Minute, time.Since(began), "woken by the end of the cooldown")
	})
}

func TestAcquireEndsWithItsContextAndSaysWhy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(t, lease.MemoryConfig{}, "a")
		acquire(t, m, "")
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		_, err := m.Acquire(ctx, lease.Request{Holder: "test"})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, lease.ErrNoneFree)
		assert.EqualError(t, err, "no lease after 3s (1 endpoints: 1 leased); one may be free in 57s")
		stats, _ := m.Stats(t.Context())
		assert.Zero(t, stats.Waiting)
		assert.EqualValues(t, 1, stats.Canceled)
	})
}

func TestAcquireIsWokenByAVerdict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(t, lease.MemoryConfig{})
		got := make(chan string)
		go func() {
			if l, err := m.Acquire(t.Context(), lease.Request{Holder: "test"}); assert.NoError(t, err) {
				got <- l.Endpoint().ID
			}
		}()
		synctest.Wait()
		require.NoError(t, m.Put(t.Context(), proxy(t, "late")))
		require.NoError(t, m.SetVerdict(t.Context(), "late", healthy(1)))
		assert.Equal(t, "late", <-got)
	})
}

func TestABanIsForOneDomainAndOneEndpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(t, lease.MemoryConfig{}, "a", "b")
		l := acquire(t, m, "Shop.Example.")
		require.Equal(t, "a", l.Endpoint().ID)
		require.NoError(t, l.Report(t.Context(), lease.Outcome{Kind: lease.TargetBlocked, Status: 403}))
		require.NoError(t, l.Release(t.Context()))

		// A good probe does not lift it.
		require.NoError(t, m.SetVerdict(t.Context(), "a", healthy(1)))
		for range 2 {
			other := acquire(t, m, "shop.example")
			assert.Equal(t, "b", other.Endpoint().ID)
			require.NoError(t, other.Release(t.Context()))
		}
		assert.Equal(t, "a", acquire(t, m, "news.example").Endpoint().ID)
		list, err := m.List(t.Context())
		require.NoError(t, err)
		assert.Equal(t, map[string]time.Time{"shop.example": time.Now().Add(5 * time.Minute)}, list[0].CoolDomains)
	})
}

func TestCooldownsGrowAndEndWithSuccess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(t, lease.MemoryConfig{}, "a")
		report := func(kind lease.OutcomeKind) time.Duration {
			l, err := m.Acquire(t.Context(), lease.Request{Holder: "test", Domain: "x.example"})
			require.NoError(t, err)
			require.NoError(t, l.Report(t.Context(), lease.Outcome{Kind: kind}))
			require.NoError(t, l.Release(t.Context()))
			asked := time.Now()
			l, err = m.Acquire(t.Context(), lease.Request{Holder: "test", Domain: "x.example"})
			require.NoError(t, err)
			require.NoError(t, l.ReleaseUnused(t.Context()))
			return time.Since(asked)
		}
		for _, want := range []time.Duration{30, 60, 120, 240, 300, 300} {
			assert.Equal(t, want*time.Second, report(lease.ProxyFault))
		}
		assert.Zero(t, report(lease.OK))
		assert.Equal(t, 30*time.Second, report(lease.ProxyFault), "success starts anew")
		for _, want := range []time.Duration{5, 10, 20, 40, 60, 60} {
			assert.Equal(t, want*time.Minute, report(lease.TargetBlocked))
		}
		assert.Zero(t, report(lease.OK))
		assert.Equal(t, 5*time.Minute, report(lease.TargetBlocked), "success starts anew")
	})
}

func TestTheTargetsOwnRetryAfterIsFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(t, lease.MemoryConfig{}, "a")
		l := acquire(t, m, "x.example")
		require.NoError(t, l.Report(t.Context(), lease.Outcome{Kind: lease.TargetBlocked, RetryAfter: 20 * time.Minute}))
		list, _ := m.List(t.Context())
		assert.Equal(t, time.Now().Add(20*time.Minute), list[0].CoolDomains["x.example"])
	})
}

// mjfelecio/metric-scraper#27: failures that were in flight together spent the
// whole budget within 20 ms.
func TestABurstOfFailuresCountsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(t, lease.MemoryConfig{}, "a")
		l := acquire(t, m, "x.example")
		for range 10 {
			require.NoError(t, l.Report(t.Context(), lease.Outcome{Kind: lease.ProxyFault}))
		}
		list, _ := m.List(t.Context())
		assert.Equal(t, time.Now().Add(30*time.Second), list[0].CoolUntil)
	})
}

// TeamHG-Memex/scrapy-rotating-proxies#5: a 404 page killed every proxy.
func TestWhatIsNotTheProxysFaultHasNoConsequence(t *testing.T) {
	m := newMemory(t, lease.MemoryConfig{}, "a")
	for _, kind := range []lease.OutcomeKind{lease.TargetError, lease.Inconclusive, lease.Canceled, lease.OK} {
		l := acquire(t, m, "x.example")
		require.NoError(t, l.Report(t.Context(), lease.Outcome{Kind: kind, Status: 404}))
		require.NoError(t, l.Release(t.Context()))
	}
	acquire(t, m, "x.example")
}

func TestProxyFaultsComeOutAsReports(t *testing.T) {
	m := newMemory(t, lease.MemoryConfig{}, "a")
	ctx, cancel := context.WithCancel(t.Context())
	reports := m.Reports(ctx)
	l := acquire(t, m, "x.example")
	require.NoError(t, l.Report(t.Context(), lease.Outcome{Kind: lease.OK}))
	require.NoError(t, l.Report(t.Context(), lease.Outcome{Kind: lease.ProxyFault, Status: 407}))
	got := <-reports
	assert.Equal(t, "a", got.EndpointID)
	assert.EqualValues(t, 1, got.Generation)
	assert.Equal(t, 407, got.Outcome.Status)
	cancel()
	_, open := <-reports
	assert.False(t, open)
}

func TestASlowReaderOfReportsHoldsUpNobody(t *testing.T) {
	m := newMemory(t, lease.MemoryConfig{}, "a")
	m.Reports(t.Context())
	l := acquire(t, m, "")
	for range 300 {
		require.NoError(t, l.Report(t.Context(), lease.Outcome{Kind: lease.ProxyFault}))
	}
	stats, _ := m.Stats(t.Context())
	assert.EqualValues(t, 300-256, stats.DroppedReports)
}

func TestDrainLetsLeasesEnd(t *testing.T) {
	m := newMemory(t, lease.MemoryConfig{}, "a")
	l := acquire(t, m, "")
	held, err := m.Drain(t.Context(), "a")
	require.NoError(t, err)
	assert.Equal(t, 1, held)
	require.NoError(t, l.Err())
	require.NoError(t, l.Release(t.Context()))
	held, err = m.Drain(t.Context(), "a")
	require.NoError(t, err)
	assert.Zero(t, held)
	_, err = m.TryAcquire(t.Context(), lease.Request{Holder: "test"})
	assert.ErrorIs(t, err, lease.ErrNoMatch)
}

func TestRevokeAndRemoveEndLeasesAtOnce(t *testing.T) {
	m := newMemory(t, lease.MemoryConfig{}, "a", "b")
	a, b := acquire(t, m, ""), acquire(t, m, "")
	require.NoError(t, m.Revoke(t.Context(), "a"))
	require.NoError(t, m.Remove(t.Context(), "b"))
	require.NoError(t, m.Remove(t.Context(), "b"))
	assert.ErrorIs(t, a.Err(), lease.ErrRevoked)
	assert.ErrorIs(t, b.Err(), lease.ErrRevoked)
	list, _ := m.List(t.Context())
	require.Len(t, list, 1)
	assert.False(t, list[0].CoolUntil.IsZero(), "lock delay after a revocation")
	assert.ErrorIs(t, m.Revoke(t.Context(), "b"), lease.ErrUnknownEndpoint)
}

// scrapoxy/scrapoxy#47: what was removed came back by a late result.
func TestALateReportDoesNotBringBackWhatWasReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(t, lease.MemoryConfig{}, "a")
		l := acquire(t, m, "")
		changed := proxy(t, "a")
		changed.Generation = 2
		require.NoError(t, m.Put(t.Context(), changed))
		require.NoError(t, l.Err(), "the lease on the former generation goes on")
		require.NoError(t, l.Report(t.Context(), lease.Outcome{Kind: lease.ProxyFault}))
		require.NoError(t, l.Release(t.Context()))
		time.Sleep(time.Hour)
		synctest.Wait()
		_, err := m.TryAcquire(t.Context(), lease.Request{Holder: "test"})
		assert.ErrorContains(t, err, "1 endpoints: 1 not yet proven")
	})
}

func TestCloseEndsEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(t, lease.MemoryConfig{}, "a")
		l := acquire(t, m, "")
		failed := make(chan error)
		go func() {
			_, err := m.Acquire(t.Context(), lease.Request{Holder: "waits"})
			failed <- err
		}()
		synctest.Wait()
		m.Close()
		m.Close()
		assert.ErrorIs(t, <-failed, lease.ErrClosed)
		assert.ErrorIs(t, l.Err(), lease.ErrClosed)
		_, err := m.TryAcquire(t.Context(), lease.Request{Holder: "test"})
		assert.ErrorIs(t, err, lease.ErrClosed)
		assert.ErrorIs(t, m.Put(t.Context(), proxy(t, "b")), lease.ErrClosed)
	})
}

// Many holders at random, over hours of the store's time: never two on one
// endpoint, and nobody waits for ever.
func TestManyHoldersNeverShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ids := []string{"a", "b", "c", "d", "e"}
		m := newMemory(t, lease.MemoryConfig{}, ids...)
		var mu sync.Mutex
		holders := map[string]int{}
		var group sync.WaitGroup
		for worker := range 20 {
			group.Go(func() {
				rng := rand.New(rand.NewPCG(1, uint64(worker)))
				for range 50 {
					l, err := m.Acquire(t.Context(), lease.Request{
						Holder: "test", Domain: fmt.Sprintf("%d.example", rng.IntN(3)), TTL: time.Minute,
					})
					if !assert.NoError(t, err) {
						return
					}
					id := l.Endpoint().ID
					mu.Lock()
					holders[id]++
					assert.Equal(t, 1, holders[id])
					mu.Unlock()
					time.Sleep(time.Duration(rng.Int64N(int64(time.Second))))
					mu.Lock()
					holders[id]--
					mu.Unlock()
					_ = l.Report(t.Context(), lease.Outcome{Kind: []lease.OutcomeKind{
						lease.OK, lease.OK, lease.ProxyFault, lease.TargetBlocked, lease.Inconclusive,
					}[rng.IntN(5)]})
					_ = l.Release(t.Context())
				}
			})
		}
		group.Wait()
		stats, _ := m.Stats(t.Context())
		assert.EqualValues(t, 20*50, stats.Acquired)
		assert.EqualValues(t, 20*50, stats.Released)
	})
}

// request makes a lease, or fails the test.
func request(t testing.TB, m lease.Store, req lease.Request) *lease.Lease {
	t.Helper()
	req.Holder = "test"
	l, err := m.TryAcquire(t.Context(), req)
	require.NoError(t, err)
	return l
}

func selector(t testing.TB, text string) lease.Selector {
	t.Helper()
	s, err := lease.ParseSelector(text)
	require.NoError(t, err)
	return s
}

func TestSelectorsChooseByAttributes(t *testing.T) {
	m := newMemory(t, lease.MemoryConfig{})
	for id, region := range map[string]string{"a": "eu", "b": "us"} {
		e := proxy(t, id)
		e.Attributes = map[string]string{"region": region}
		require.NoError(t, m.Put(t.Context(), e))
		require.NoError(t, m.SetVerdict(t.Context(), id, healthy(1)))
	}
	l := request(t, m, lease.Request{Selector: selector(t, "region=us")})
	assert.Equal(t, "b", l.Endpoint().ID)
	_, err := m.TryAcquire(t.Context(), lease.Request{Holder: "test", Selector: selector(t, "region=us")})
	require.ErrorIs(t, err, lease.ErrNoneFree)
	assert.ErrorContains(t, err, "2 endpoints: 1 not selected, 1 leased")
	_, err = m.TryAcquire(t.Context(), lease.Request{Holder: "test", Selector: selector(t, "region=mars")})
	require.ErrorIs(t, err, lease.ErrNoMatch)
	_, err = m.TryAcquire(t.Context(), lease.Request{Holder: "test", Selector: lease.Selector{{Key: "a", Operator: "="}}})
	assert.ErrorContains(t, err, `selector[0].operator: "=": must be In, NotIn, Exists or DoesNotExist`)
}

func TestAChangeOfAttributesWakesWhoWaitsForThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(t, lease.MemoryConfig{}, "a")
		got := make(chan string)
		go func() {
			l, err := m.Acquire(t.Context(), lease.Request{Holder: "test", Selector: selector(t, "fast")})
			if assert.NoError(t, err) {
				got <- l.Endpoint().ID
			}
		}()
		synctest.Wait()
		e := proxy(t, "a")
		e.Attributes = map[string]string{"fast": "yes"}
		require.NoError(t, m.Put(t.Context(), e))
		assert.Equal(t, "a", <-got)
	})
}

// mjfelecio/metric-scraper#4: a proxy swallowed 30 requests before it was known
// to be dead.
func TestSharingBeginsAfterASuccessAndEndsWithAFault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(t, lease.MemoryConfig{MaxHolders: 3}, "a")
		full := func() bool {
			_, err := m.TryAcquire(t.Context(), lease.Request{Holder: "test"})
			return errors.Is(err, lease.ErrNoneFree)
		}
		first := acquire(t, m, "")
		require.True(t, full(), "new: one holder")
		require.NoError(t, first.Report(t.Context(), lease.Outcome{Kind: lease.OK}))
		second, third := acquire(t, m, ""), acquire(t, m, "")
		require.True(t, full(), "three holders at most")

		// One outage of all three counts once.
		for _, l := range []*lease.Lease{first, second, third} {
			require.NoError(t, l.Report(t.Context(), lease.Outcome{Kind: lease.ProxyFault}))
			require.NoError(t, l.Release(t.Context()))
		}
		list, _ := m.List(t.Context())
		assert.Equal(t, time.Now().Add(30*time.Second), list[0].CoolUntil)
		assert.True(t, list[0].Probation)
		time.Sleep(30 * time.Second)
		synctest.Wait()
		again := acquire(t, m, "")
		require.True(t, full(), "after a fault: one holder")
		require.NoError(t, third.Report(t.Context(), lease.Outcome{Kind: lease.OK}), "late: it changes nothing")
		require.True(t, full())
		require.NoError(t, again.Report(t.Context(), lease.Outcome{Kind: lease.OK}))
		require.False(t, full())
	})
}

func TestHoldersOfOneEndpointWakeTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(t, lease.MemoryConfig{MaxHolders: 3}, "a")
		first := acquire(t, m, "")
		var group sync.WaitGroup
		for range 2 {
			group.Go(func() {
				_, err := m.Acquire(t.Context(), lease.Request{Holder: "test"})
				assert.NoError(t, err)
			})
		}
		synctest.Wait()
		require.NoError(t, first.Report(t.Context(), lease.Outcome{Kind: lease.OK}))
		group.Wait()
		list, _ := m.List(t.Context())
		assert.Len(t, list[0].Leases, 3)
	})
}

func TestASessionStaysWithItsEndpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(t, lease.MemoryConfig{}, "a", "b", "c")
		in := func(session string) lease.Request {
			return lease.Request{Holder: "test", Session: session, Domain: "x.example"}
		}
		l := request(t, m, in("s"))
		home := l.Endpoint().ID
		require.NoError(t, l.Release(t.Context()))
		for range 3 {
			other := acquire(t, m, "")
			require.NoError(t, other.Release(t.Context()))
			l = request(t, m, in("s"))
			assert.Equal(t, home, l.Endpoint().ID)
			require.NoError(t, l.Release(t.Context()))
		}
		// While another holds it, the session waits.
		l = request(t, m, in("s"))
		_, err := m.TryAcquire(t.Context(), in("s"))
		require.ErrorIs(t, err, lease.ErrNoneFree)
		waited := make(chan string)
		go func() {
			if l, err := m.Acquire(t.Context(), in("s")); assert.NoError(t, err) {
				waited <- l.Endpoint().ID
			}
		}()
		synctest.Wait()
		// When it is of no use any more, the session moves.
		require.NoError(t, l.Report(t.Context(), lease.Outcome{Kind: lease.TargetBlocked}))
		assert.NotEqual(t, home, <-waited)

		l = request(t, m, in("forgotten"))
		home = l.Endpoint().ID
		require.NoError(t, l.Release(t.Context()))
		time.Sleep(31 * time.Minute)
		synctest.Wait()
		require.NoError(t, request(t, m, lease.Request{Selector: nil}).Release(t.Context()))
		l = request(t, m, in("forgotten"))
		assert.NotEmpty(t, home)
		assert.NotNil(t, l)
	})
}

// VMs behind one NAT are banned together.
func TestABanHoldsForAllBehindOneAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(t, lease.MemoryConfig{}, "a", "b", "c", "loop-1", "loop-2")
		for id, address := range map[string]string{
			"a": "192.0.2.1", "b": "192.0.2.1", "c": "192.0.2.2", "loop-1": "127.0.0.1", "loop-2": "127.0.0.1",
		} {
			v := healthy(1)
			v.EgressIP = netip.MustParseAddr(address)
			require.NoError(t, m.SetVerdict(t.Context(), id, v))
		}
		blocked := map[string]bool{}
		for _, id := range []string{"a", "loop-1"} {
			for {
				l := acquire(t, m, "x.example")
				if l.Endpoint().ID == id {
					require.NoError(t, l.Report(t.Context(), lease.Outcome{Kind: lease.TargetBlocked}))
					require.NoError(t, l.Release(t.Context()))
					break
				}
				require.NoError(t, l.Release(t.Context()))
			}
		}
		list, _ := m.List(t.Context())
		for _, s := range list {
			blocked[s.Endpoint.ID] = s.CoolDomains != nil
		}
		assert.Equal(t, map[string]bool{"a": true, "b": true, "c": false, "loop-1": true, "loop-2": false}, blocked)

		// What is known of an endpoint follows it to its address, and stays there.
		v := healthy(1)
		v.EgressIP = netip.MustParseAddr("192.0.2.2")
		require.NoError(t, m.SetVerdict(t.Context(), "loop-1", v))
		require.NoError(t, m.Remove(t.Context(), "a"))
		require.NoError(t, m.Remove(t.Context(), "b"))
		require.NoError(t, m.Put(t.Context(), proxy(t, "d")))
		v.EgressIP = netip.MustParseAddr("192.0.2.1")
		require.NoError(t, m.SetVerdict(t.Context(), "d", v))
		list, _ = m.List(t.Context())
		for _, s := range list {
			assert.Equal(t, s.Endpoint.ID != "loop-2", s.CoolDomains != nil, s.Endpoint.ID)
		}
	})
}

// etcd-io/etcd#13294: leases that are renewed for ever never end.
func TestALeaseHasALongestLifetime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(t, lease.MemoryConfig{MaxLifetime: 10 * time.Minute}, "a")
		l := acquire(t, m, "")
		began := time.Now()
		for l.Renew(t.Context(), time.Minute) == nil {
			time.Sleep(30 * time.Second)
		}
		assert.Equal(t, 10*time.Minute, time.Since(began))
		assert.ErrorIs(t, l.Err(), lease.ErrExpired)
	})
}

func TestParseSelector(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "a=b": "a=b", "a == b": "a=b", "a!=b": "a notin (b)", "a in (b, c)": "a in (b,c)",
		"a notin (b),c , !d": "a notin (b),c,!d", "a in (b,c),d in (e)": "a in (b,c),d=e",
		"a in ()": "a in ()", "a in (,b)": "a in (,b)", "a notin ()": "a notin ()", // an empty value
		"a in (b c)": "a in (b c)", "a in (!)": "a in (!)",
	} {
		s, err := lease.ParseSelector(text)
		require.NoError(t, err, text)
		assert.Equal(t, want, s.String())
		again, err := lease.ParseSelector(s.String())
		require.NoError(t, err)
		assert.Equal(t, s, again)
	}
	for _, text := range []string{",", "a=b,", "a b", "a in", "a in b", "=b", "!", "a in (b", "a=(b)", "a="} {
		_, err := lease.ParseSelector(text)
		assert.Error(t, err, text)
	}
}

func TestSelectorMatches(t *testing.T) {
	attributes := map[string]string{"region": "eu", "fast": ""}
	for text, want := range map[string]bool{
		"": true, "region=eu": true, "region=us": false, "region in (us,eu)": true, "region!=eu": false,
		"region notin (us)": true, "tier notin (x)": true, "tier=x": false, "fast": true, "slow": false,
		"!slow": true, "!fast": false, "region=eu,fast": true, "region=eu,slow": false,
	} {
		assert.Equal(t, want, selector(t, text).Matches(attributes), text)
	}
}

// A time to live beyond all that a clock counts is long, and not long past.
func TestALeaseMayBeForEver(t *testing.T) {
	m := newMemory(t, lease.MemoryConfig{MaxTTL: math.MaxInt64, MaxLifetime: math.MaxInt64}, "a")
	l, err := m.TryAcquire(t.Context(), lease.Request{Holder: "test", TTL: math.MaxInt64})
	require.NoError(t, err)
	require.NoError(t, l.Err())
	require.NoError(t, l.Renew(t.Context(), math.MaxInt64))
	require.NoError(t, l.Err())
	assert.Greater(t, time.Until(l.ExpiresAt()), 100*365*24*time.Hour)
	require.NoError(t, l.Release(t.Context()))
}

func FuzzParseSelector(f *testing.F) {
	f.Add("a in (b,c),!d")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := lease.ParseSelector(text)
		if err != nil {
			return
		}
		again, err := lease.ParseSelector(s.String())
		require.NoError(t, err, s.String())
		assert.Equal(t, s, again)
	})
}

func TestKeepRenewsUntilTheWorkIsDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(t, lease.MemoryConfig{}, "a")
		l := acquire(t, m, "")
		work, stop := l.Keep(t.Context(), time.Minute)
		time.Sleep(time.Hour)
		require.NoError(t, work.Err())
		stats, _ := m.Stats(t.Context())
		assert.Less(t, stats.Renewed, int64(200))
		stop()
		require.NoError(t, l.Err(), "the lease is not released")
		time.Sleep(time.Minute)
		assert.ErrorIs(t, l.Err(), lease.ErrExpired, "and not renewed any more")
	})
}

func TestKeepCancelsTheWorkWhenTheLeaseIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(t, lease.MemoryConfig{}, "a")
		l := acquire(t, m, "")
		work, stop := l.Keep(t.Context(), time.Minute)
		defer stop()
		time.Sleep(10 * time.Minute)
		require.NoError(t, m.Revoke(t.Context(), "a"))
		<-work.Done()
		assert.ErrorIs(t, context.Cause(work), lease.ErrRevoked)
		assert.ErrorIs(t, context.Cause(work), lease.ErrLost)
	})
}

// The cooldown had passed, its alarm had not rung yet, and the store panicked.
func TestASessionThatComesBackBeforeItsAlarm(t *testing.T) {
	m := newMemory(t, lease.MemoryConfig{LockDelay: time.Millisecond, ProxyCooldown: time.Millisecond, MaxProxyCooldown: time.Millisecond}, "a")
	for deadline := time.Now().Add(200 * time.Millisecond); time.Now().Before(deadline); {
		l, err := m.TryAcquire(t.Context(), lease.Request{Holder: "test", Session: "s"})
		if err != nil {
			continue
		}
		require.NoError(t, l.Report(t.Context(), lease.Outcome{Kind: lease.ProxyFault}))
		require.NoError(t, l.Release(t.Context()))
	}
}

func TestTheEndOfASessionWakesWhoWaitsForIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(t, lease.MemoryConfig{SessionTTL: time.Minute}, "a", "b")
		request(t, m, lease.Request{Session: "s", TTL: time.Hour})
		asked := time.Now()
		l, err := m.Acquire(t.Context(), lease.Request{Holder: "test", Session: "s"})
		require.NoError(t, err)
		assert.Equal(t, "b", l.Endpoint().ID)
		assert.Equal(t, time.Minute, time.Since(asked))
	})
}

func TestABanOutlivesAChangeOfGeneration(t *testing.T) {
	m := newMemory(t, lease.MemoryConfig{})
	e := proxy(t, "a")
	e.EgressIP = netip.MustParseAddr("192.0.2.1")
	require.NoError(t, m.Put(t.Context(), e))
	require.NoError(t, m.SetVerdict(t.Context(), "a", healthy(1)))
	l := acquire(t, m, "x.example")
	e.Generation = 2
	require.NoError(t, m.Put(t.Context(), e))
	require.NoError(t, m.SetVerdict(t.Context(), "a", healthy(2)))
	require.NoError(t, l.Report(t.Context(), lease.Outcome{Kind: lease.TargetBlocked}))
	_, err := m.TryAcquire(t.Context(), lease.Request{Holder: "test", Domain: "x.example"})
	assert.ErrorIs(t, err, lease.ErrNoneFree)
}

func TestPutKeepsTheAddressThatAProbeFoundOut(t *testing.T) {
	m := newMemory(t, lease.MemoryConfig{}, "a")
	v := healthy(1)
	v.EgressIP = netip.MustParseAddr("192.0.2.1")
	require.NoError(t, m.SetVerdict(t.Context(), "a", v))
	require.NoError(t, m.Put(t.Context(), proxy(t, "a")))
	list, err := m.List(t.Context())
	require.NoError(t, err)
	assert.Equal(t, v.EgressIP, list[0].Endpoint.EgressIP)
}

// An ordinary lease moves no alarm: the one of its slot still stands from before,
// and what it finds when it rings is another lease, with an end of its own.
func TestAnAlarmThatStandsFindsTheNextLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(t, lease.MemoryConfig{MaxHolders: 2}, "a")
		lent := func(ttl time.Duration) *lease.Lease {
			return request(t, m, lease.Request{TTL: ttl})
		}
		first := lent(time.Minute)
		require.NoError(t, first.Report(t.Context(), lease.Outcome{Kind: lease.OK}))
		require.NoError(t, first.Release(t.Context()))
		time.Sleep(30 * time.Second)
		long, short := lent(10*time.Minute), lent(20*time.Second)
		time.Sleep(20 * time.Second)
		synctest.Wait()
		require.ErrorIs(t, short.Err(), lease.ErrExpired, "before the alarm that stood")
		require.NoError(t, long.Err())
		time.Sleep(10*time.Minute - 21*time.Second)
		synctest.Wait()
		require.NoError(t, long.Err(), "the alarm that stood has rung")
		time.Sleep(time.Second)
		synctest.Wait()
		list, err := m.List(t.Context())
		require.NoError(t, err)
		assert.Empty(t, list[0].Leases)
		stats, err := m.Stats(t.Context())
		require.NoError(t, err)
		assert.EqualValues(t, 2, stats.Expired)
	})
}

func TestALeaseThatIsRenewedByItsKeyIsRenewedForItsHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(t, lease.MemoryConfig{}, "a")
		l := acquire(t, m, "")
		_, err := m.Renew(t.Context(), l.Key(), 10*time.Minute)
		require.NoError(t, err)
		assert.Equal(t, 10*time.Minute, time.Until(l.ExpiresAt()))
		time.Sleep(9 * time.Minute)
		assert.NoError(t, l.Err())
	})
}

// What a holder keeps of a lease that has ended tells what it was.
func TestALeaseThatHasEndedKeepsItsIdentity(t *testing.T) {
	m := newMemory(t, lease.MemoryConfig{}, "a", "b")
	l := acquire(t, m, "x.example")
	before := l.Grant()
	require.NoError(t, l.Release(t.Context()))
	for range 3 {
		next := acquire(t, m, "y.example")
		assert.NotEqual(t, before.Key, next.Key())
		require.NoError(t, next.Release(t.Context()))
	}
	assert.Equal(t, before, l.Grant())
	assert.ErrorIs(t, l.Err(), lease.ErrReleased)
}

// Leases that were held together, on several endpoints behind one address, find
// out about one ban.
func TestABanThatManyFindOutCountsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(t, lease.MemoryConfig{}, "a", "b", "c")
		v := healthy(1)
		v.EgressIP = netip.MustParseAddr("192.0.2.1")
		var held []*lease.Lease
		for _, id := range []string{"a", "b", "c"} {
			require.NoError(t, m.SetVerdict(t.Context(), id, v))
			held = append(held, acquire(t, m, "x.example"))
		}
		for _, l := range held {
			require.NoError(t, l.Report(t.Context(), lease.Outcome{Kind: lease.TargetBlocked}))
			time.Sleep(time.Second)
		}
		list, err := m.List(t.Context())
		require.NoError(t, err)
		assert.Equal(t, 5*time.Minute-3*time.Second, time.Until(list[0].CoolDomains["x.example"]))
	})
}

func TestALeaseShowsTheEndpointAsItWasLent(t *testing.T) {
	m := newMemory(t, lease.MemoryConfig{}, "a")
	l := acquire(t, m, "")
	v := healthy(1)
	v.EgressIP = netip.MustParseAddr("192.0.2.1")
	require.NoError(t, m.SetVerdict(t.Context(), "a", v))
	assert.False(t, l.Endpoint().EgressIP.IsValid())
	list, err := m.List(t.Context())
	require.NoError(t, err)
	assert.Equal(t, v.EgressIP, list[0].Endpoint.EgressIP)
}

func TestALeaseOnAFormerGenerationExpiresToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(t, lease.MemoryConfig{}, "a")
		acquire(t, m, "")
		changed := proxy(t, "a")
		changed.Generation = 2
		require.NoError(t, m.Put(t.Context(), changed))
		held, err := m.Drain(t.Context(), "a")
		require.NoError(t, err)
		require.Equal(t, 1, held)
		time.Sleep(time.Minute)
		synctest.Wait()
		held, err = m.Drain(t.Context(), "a")
		require.NoError(t, err)
		assert.Zero(t, held)
	})
}

// shared returns two leases on one endpoint.
func shared(t *testing.T) (m *lease.Memory, first, second *lease.Lease) {
	t.Helper()
	m = newMemory(t, lease.MemoryConfig{MaxHolders: 2}, "a")
	first = acquire(t, m, "x.example")
	require.NoError(t, first.Report(t.Context(), lease.Outcome{Kind: lease.OK}))
	return m, first, acquire(t, m, "x.example")
}

// again waits for the endpoint, and tells how long that took.
func again(t *testing.T, m *lease.Memory) (*lease.Lease, time.Duration) {
	t.Helper()
	asked := time.Now()
	l, err := m.Acquire(t.Context(), lease.Request{Holder: "test", Domain: "x.example"})
	require.NoError(t, err)
	return l, time.Since(asked)
}

// A success that was under way when the trouble began says nothing about it.
func TestASuccessFromBeforeAFailureProvesNothing(t *testing.T) {
	for kind, want := range map[lease.OutcomeKind]time.Duration{
		lease.ProxyFault: time.Minute, lease.TargetBlocked: 10 * time.Minute,
	} {
		t.Run(string(kind), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, first, second := shared(t)
				require.NoError(t, first.Report(t.Context(), lease.Outcome{Kind: kind}))
				require.NoError(t, second.Report(t.Context(), lease.Outcome{Kind: lease.OK}))
				require.NoError(t, first.Release(t.Context()))
				require.NoError(t, second.Release(t.Context()))
				l, _ := again(t, m)
				require.NoError(t, l.Report(t.Context(), lease.Outcome{Kind: kind}))
				require.NoError(t, l.Release(t.Context()))
				_, waited := again(t, m)
				assert.Equal(t, want, waited, "it grows")
			})
		})
	}
}

// envoyproxy/envoy#6016: ejection times grew for ever.
func TestABanIsForgottenInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(t, lease.MemoryConfig{}, "a")
		for range 3 {
			l, _ := again(t, m)
			require.NoError(t, l.Report(t.Context(), lease.Outcome{Kind: lease.TargetBlocked}))
			require.NoError(t, l.Release(t.Context()))
			l, waited := again(t, m)
			assert.Equal(t, 5*time.Minute, waited)
			require.NoError(t, l.Release(t.Context()))
			time.Sleep(time.Hour + time.Second)
		}
	})
}

func TestWhoWaitsForAnEndpointThatIsReplacedMayHaveAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(t, lease.MemoryConfig{}, "a", "b")
		require.Equal(t, "a", request(t, m, lease.Request{Session: "s"}).Endpoint().ID)
		got := make(chan string, 1)
		go func() {
			if l, err := m.Acquire(t.Context(), lease.Request{Holder: "test", Session: "s"}); assert.NoError(t, err) {
				got <- l.Endpoint().ID
			}
		}()
		synctest.Wait()
		require.Empty(t, got)
		changed := proxy(t, "a")
		changed.Generation = 2
		require.NoError(t, m.Put(t.Context(), changed))
		synctest.Wait()
		require.Len(t, got, 1, "at once")
		assert.Equal(t, "b", <-got)
	})
}

func TestPutDoesNotUndoADrain(t *testing.T) {
	m := newMemory(t, lease.MemoryConfig{}, "a")
	_, err := m.Drain(t.Context(), "a")
	require.NoError(t, err)
	changed := proxy(t, "a")
	changed.Generation = 2
	require.NoError(t, m.Put(t.Context(), changed))
	require.NoError(t, m.SetVerdict(t.Context(), "a", healthy(2)))
	_, err = m.TryAcquire(t.Context(), lease.Request{Holder: "test"})
	assert.ErrorIs(t, err, lease.ErrNoMatch)
}
