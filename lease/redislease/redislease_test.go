package redislease_test

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/internal/redistest"
	"github.com/egressfleet/egress/lease"
	"github.com/egressfleet/egress/lease/leasemetrics"
	"github.com/egressfleet/egress/lease/redislease"
)

func options(server *redistest.Server) *redis.Options {
	return &redis.Options{
		Network: "unix", Addr: server.Socket, MaxRetries: 1, DialTimeout: time.Second,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
}

func connect(t *testing.T, server *redistest.Server) *redis.Client {
	t.Helper()
	client := redis.NewClient(options(server))
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// open returns a store as a process of its own would have it.
func open(t *testing.T, server *redistest.Server, cfg redislease.Config) *redislease.Store {
	t.Helper()
	if cfg.Client == nil {
		cfg.Client = connect(t, server)
	}
	if cfg.Fleet == "" {
		cfg.Fleet = "test"
	}
	s, err := redislease.New(cfg)
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return s
}

// hands is a clock that a test turns.
type hands struct{ micros atomic.Int64 }

func newHands(stores ...*redislease.Store) *hands {
	h := &hands{}
	h.micros.Store(time.Now().UnixMicro())
	for _, s := range stores {
		s.SetClock(h.micros.Load)
	}
	return h
}

func (h *hands) turn(d time.Duration) { h.micros.Add(d.Microseconds()) }

func put(t *testing.T, s lease.Inventory, ids ...string) {
	t.Helper()
	for _, id := range ids {
		putWith(t, s, endpoint.Endpoint{ID: id})
	}
}

func putWith(t *testing.T, s lease.Inventory, e endpoint.Endpoint) {
	t.Helper()
	url, err := endpoint.NewURL("http", "192.0.2.7:3128", "crawler", "hunter2")
	require.NoError(t, err)
	e.URL = url
	require.NoError(t, s.Put(t.Context(), e))
	require.NoError(t, s.SetVerdict(t.Context(), e.ID, endpoint.Verdict{Health: endpoint.Healthy, Generation: e.Generation}))
}

func try(t *testing.T, s lease.Store, req lease.Request) *lease.Lease {
	t.Helper()
	req.Holder = "test"
	l, err := s.TryAcquire(t.Context(), req)
	require.NoError(t, err)
	return l
}

func refused(t *testing.T, s lease.Store, req lease.Request) *lease.UnavailableError {
	t.Helper()
	req.Holder = "test"
	_, err := s.TryAcquire(t.Context(), req)
	var why *lease.UnavailableError
	require.ErrorAs(t, err, &why)
	return why
}

func TestConfigReportsEveryProblem(t *testing.T) {
	_, err := redislease.New(redislease.Config{Fleet: "a}b", LockDelay: -1, PollInterval: -1, DefaultTTL: 2 * time.Hour, MaxHolders: -1})
	for _, path := range []string{"client", "fleet", "lockDelay", "pollInterval", "defaultTTL", "maxHolders"} {
		assert.ErrorContains(t, err, path+":")
	}
}

// 64 processes race for three endpoints: no two hold one, and no token is given
// twice.
func TestRacingProcessesNeverShare(t *testing.T) {
	server := redistest.Start(t)
	put(t, open(t, server, redislease.Config{Fresh: true}), "a", "b", "c")
	var holders [3]atomic.Int32
	var tokens sync.Map
	var group sync.WaitGroup
	for range 64 {
		s := open(t, server, redislease.Config{})
		group.Go(func() {
			for range 5 {
				l, err := s.Acquire(t.Context(), lease.Request{Holder: "racer"})
				if !assert.NoError(t, err) {
					return
				}
				at := &holders[l.Endpoint().ID[0]-'a']
				assert.EqualValues(t, 1, at.Add(1), "holders of one endpoint")
				_, twice := tokens.LoadOrStore(l.Key().Token, true)
				assert.False(t, twice, "a token was given twice")
				at.Add(-1)
				assert.NoError(t, l.Release(t.Context()))
			}
		})
	}
	group.Wait()
	stats, err := open(t, server, redislease.Config{}).Stats(t.Context())
	require.NoError(t, err)
	assert.EqualValues(t, 320, stats.Acquired)
	assert.EqualValues(t, 320, stats.Released, "no update is lost")
	assert.Zero(t, stats.Waiting)
	assert.Equal(t, lease.Counts{Total: 3, Free: 3}, stats.Endpoints)
}

// Racing for what nobody waits for: TryAcquire alone.
func TestRacingTriesGrantOnce(t *testing.T) {
	server := redistest.Start(t)
	put(t, open(t, server, redislease.Config{Fresh: true}), "a")
	var won atomic.Int32
	var group sync.WaitGroup
	for range 64 {
		s := open(t, server, redislease.Config{})
		group.Go(func() {
			if _, err := s.TryAcquire(t.Context(), lease.Request{Holder: "racer"}); err == nil {
				won.Add(1)
			}
		})
	}
	group.Wait()
	assert.EqualValues(t, 1, won.Load())
}

// Tokens differ and rise even where the clock stands still, by the short way and, with
// a session, by the long one.
func TestTokensRiseThoughTheClockStands(t *testing.T) {
	server := redistest.Start(t)
	a, b := open(t, server, redislease.Config{Fresh: true}), open(t, server, redislease.Config{})
	newHands(a, b)
	put(t, a, "w", "x", "y", "z")
	last := int64(0)
	for i, s := range []*redislease.Store{a, b, a, b} {
		token := try(t, s, lease.Request{Session: []string{"", "one", "", "two"}[i]}).Key().Token
		assert.Greater(t, token, last)
		last = token
	}
}

// The server's clock counts, whatever a client's says, and nobody need be there
// when a lease ends.
func TestAnExpiredLeaseIsFreeWithNoProcessAlive(t *testing.T) {
	server := redistest.Start(t)
	cfg := redislease.Config{Fresh: true, LockDelay: time.Millisecond}
	first, err := redislease.New(redislease.Config{Client: connect(t, server), Fleet: "test", Fresh: true, LockDelay: time.Millisecond})
	require.NoError(t, err)
	put(t, first, "a")
	old := try(t, first, lease.Request{TTL: 50 * time.Millisecond})
	assert.GreaterOrEqual(t, old.Key().Token, time.Now().Add(-time.Minute).UnixMicro(), "the server's time")
	first.Close()
	time.Sleep(60 * time.Millisecond)
	l := try(t, open(t, server, cfg), lease.Request{})
	assert.Greater(t, l.Key().Token, old.Key().Token)
}

func TestAWaiterIsWokenByANotification(t *testing.T) {
	server := redistest.Start(t)
	a := open(t, server, redislease.Config{Fresh: true})
	b := open(t, server, redislease.Config{PollInterval: time.Hour})
	put(t, a, "x")
	held := try(t, a, lease.Request{TTL: time.Hour})
	got := waitInBackground(t, b, lease.Request{})
	awaitWaiting(t, a, 1)
	require.NoError(t, held.Release(t.Context()))
	require.NoError(t, (<-got).err)
}

// A lease that was granted to a waiter lasts as long as it asked for, from when it
// learns of it.
func TestAWaiterGetsTheWholeOfItsTime(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, server, redislease.Config{Fresh: true})
	h := newHands(s)
	put(t, s, "a")
	held := try(t, s, lease.Request{})
	wait := waitInBackground(t, s, lease.Request{TTL: 30 * time.Minute})
	awaitWaiting(t, s, 1)
	require.NoError(t, held.Release(t.Context()))
	l := (<-wait).lease
	assert.Equal(t, 30*time.Minute, l.Grant().TTL)
	h.turn(29 * time.Minute)
	require.NoError(t, l.Renew(t.Context(), time.Minute))
}

func TestPollingFindsWhatNotificationsLost(t *testing.T) {
	server := redistest.Start(t)
	a := open(t, server, redislease.Config{Fresh: true})
	b := open(t, server, redislease.Config{PollInterval: 20 * time.Millisecond})
	b.Deafen()
	put(t, a, "x")
	held := try(t, a, lease.Request{})
	got := waitInBackground(t, b, lease.Request{})
	awaitWaiting(t, a, 1)
	require.NoError(t, held.Release(t.Context()))
	require.NoError(t, (<-got).err)
}

type got struct {
	lease *lease.Lease
	err   error
}

func waitInBackground(t *testing.T, s *redislease.Store, req lease.Request) <-chan got {
	t.Helper()
	req.Holder = "waits"
	answer := make(chan got, 1)
	go func() {
		l, err := s.Acquire(t.Context(), req)
		answer <- got{l, err}
	}()
	return answer
}

func awaitWaiting(t *testing.T, s *redislease.Store, n int) {
	t.Helper()
	require.Eventually(t, func() bool {
		stats, err := s.Stats(t.Context())
		return err == nil && stats.Waiting == n
	}, 20*time.Second, 5*time.Millisecond)
}

// Whoever waits is served before whoever comes later, from whatever process, and
// one that wants something else holds up nobody.
func TestFirstComeFirstServedAcrossProcesses(t *testing.T) {
	server := redistest.Start(t)
	owner := open(t, server, redislease.Config{Fresh: true})
	putWith(t, owner, endpoint.Endpoint{ID: "eu", Attributes: map[string]string{"region": "eu"}})
	held := try(t, owner, lease.Request{})
	elsewhere := lease.Selector{{Key: "region", Operator: lease.In, Values: []string{"mars"}}}
	_ = waitInBackground(t, open(t, server, redislease.Config{}), lease.Request{Selector: elsewhere})
	awaitWaiting(t, owner, 1)
	var waits []<-chan got
	for i := range 3 {
		waits = append(waits, waitInBackground(t, open(t, server, redislease.Config{}), lease.Request{Domain: fmt.Sprintf("%d.example", i)}))
		awaitWaiting(t, owner, 2+i)
	}
	for i, wait := range waits {
		require.NoError(t, held.Release(t.Context()))
		refused(t, owner, lease.Request{}) // it overtakes nobody
		next := <-wait
		require.NoError(t, next.err)
		held = next.lease
		awaitWaiting(t, owner, 3-i)
	}
}

// A process that dies while it waits costs those behind it no more than the grace.
func TestAWaiterThatDiedLosesItsPlaceAndWhatItWasGranted(t *testing.T) {
	server := redistest.Start(t)
	a, b := open(t, server, redislease.Config{Fresh: true}), open(t, server, redislease.Config{})
	h := newHands(a, b)
	put(t, a, "x")
	held := try(t, a, lease.Request{TTL: time.Hour})

	dead, err := redislease.New(redislease.Config{Client: connect(t, server), Fleet: "test", PollInterval: 2 * time.Second})
	require.NoError(t, err)
	dead.SetClock(h.micros.Load)
	dead.Deafen()
	gone := waitInBackground(t, dead, lease.Request{})
	awaitWaiting(t, a, 1)
	dead.Close()
	require.ErrorIs(t, (<-gone).err, lease.ErrClosed)

	require.NoError(t, held.Release(t.Context()))
	refused(t, b, lease.Request{})
	h.turn(11 * time.Second)
	try(t, b, lease.Request{})
}

func TestALeaseGivenUpLeaksNothing(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, server, redislease.Config{Fresh: true})
	put(t, s, "a")
	for range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		go cancel()
		if l, err := s.Acquire(ctx, lease.Request{Holder: "fickle", TTL: time.Hour}); err == nil {
			require.NoError(t, l.Release(t.Context()))
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, err := s.Acquire(ctx, lease.Request{Holder: "test"})
	assert.NoError(t, err)
}

// An acquire that arrives after its caller has given it up gets nothing.
func TestAnAcquireThatComesTooLateGetsNothing(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, server, redislease.Config{Fresh: true})
	put(t, s, "a")
	require.NoError(t, try(t, s, lease.Request{}).Release(t.Context())) // the selector is known
	require.False(t, s.AskAfterLeaving(t.Context(), lease.Request{Holder: "late"}), "by the short way")
	s.GoTheLongWay()
	newHands(s)
	require.False(t, s.AskAfterLeaving(t.Context(), lease.Request{Holder: "late", Session: "x"}), "by the long one")
	try(t, s, lease.Request{})
}

// Whoever goes on asking keeps its place, however long it waits.
func TestAWaiterThatAsksKeepsItsPlace(t *testing.T) {
	server := redistest.Start(t)
	a, b := open(t, server, redislease.Config{Fresh: true}), open(t, server, redislease.Config{PollInterval: 5 * time.Millisecond})
	h := newHands(a, b)
	put(t, a, "x")
	held := try(t, a, lease.Request{TTL: time.Hour})
	wait := waitInBackground(t, b, lease.Request{})
	awaitWaiting(t, a, 1)
	for range 5 {
		h.turn(9 * time.Second)
		awaitDue(t, server, h.micros.Load())
	}
	require.NoError(t, held.Release(t.Context()))
	require.NoError(t, (<-wait).err)
	stats, err := a.Stats(t.Context())
	require.NoError(t, err)
	assert.Zero(t, stats.Canceled)
}

// awaitDue waits until the only waiter has asked at that time of the server's.
func awaitDue(t *testing.T, server *redistest.Server, now int64) {
	t.Helper()
	client := connect(t, server)
	require.Eventually(t, func() bool {
		due, err := client.ZRangeWithScores(t.Context(), "egress:{test}:due", 0, -1).Result()
		if err != nil {
			return false
		}
		for _, z := range due {
			if z.Member.(string)[0] == 'w' {
				return int64(z.Score) >= now+(10*time.Second).Microseconds()
			}
		}
		return false
	}, 20*time.Second, 5*time.Millisecond)
}

// A release is sent even where the holder's context has ended.
func TestAReleaseSurvivesItsContext(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, server, redislease.Config{Fresh: true})
	put(t, s, "a")
	l := try(t, s, lease.Request{TTL: time.Hour})
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_ = l.Release(ended)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, err := s.Acquire(ctx, lease.Request{Holder: "test"})
	assert.NoError(t, err)
}

func TestFleetsShareNothing(t *testing.T) {
	server := redistest.Start(t)
	a, b := open(t, server, redislease.Config{Fleet: "a", Fresh: true}), open(t, server, redislease.Config{Fleet: "b", Fresh: true})
	put(t, a, "x")
	list, err := b.List(t.Context())
	require.NoError(t, err)
	assert.Empty(t, list)
	assert.ErrorIs(t, refused(t, b, lease.Request{}), lease.ErrNoMatch)
	keys, err := connect(t, server).Keys(t.Context(), "*").Result()
	require.NoError(t, err)
	for _, key := range keys {
		assert.True(t, strings.HasPrefix(key, "egress:{a}:") || strings.HasPrefix(key, "egress:{b}:"), "the key %s", key)
	}
}

// Endpoints behind one address are banned together, whichever process is told.
func TestABanIsForTheEgressAddress(t *testing.T) {
	server := redistest.Start(t)
	a, b := open(t, server, redislease.Config{Fresh: true}), open(t, server, redislease.Config{})
	h := newHands(a, b)
	nat := netip.MustParseAddr("198.51.100.1")
	put(t, a, "alone")
	putWith(t, a, endpoint.Endpoint{ID: "x", EgressIP: nat})
	putWith(t, a, endpoint.Endpoint{ID: "y"})
	require.NoError(t, try(t, a, lease.Request{}).Release(t.Context()))
	ban := func(l *lease.Lease) {
		require.NoError(t, l.Report(t.Context(), lease.Outcome{Kind: lease.TargetBlocked}))
		require.NoError(t, l.Release(t.Context()))
	}
	l := try(t, a, lease.Request{Domain: "shop.example"})
	require.Equal(t, "x", l.Endpoint().ID)
	ban(l)
	l = try(t, b, lease.Request{Domain: "other.example"})
	require.Equal(t, "y", l.Endpoint().ID)
	ban(l)
	require.NoError(t, b.SetVerdict(t.Context(), "y", endpoint.Verdict{Health: endpoint.Healthy, EgressIP: nat}))
	for _, domain := range []string{"shop.example", "other.example"} {
		l := try(t, b, lease.Request{Domain: domain})
		assert.Equal(t, "alone", l.Endpoint().ID, domain)
		why := refused(t, b, lease.Request{Domain: domain})
		assert.Equal(t, lease.Counts{Total: 3, Leased: 1, CoolingForDomain: 2}, why.Counts)
		require.NoError(t, l.Release(t.Context()))
	}
	h.turn(6 * time.Minute)
	assert.NotEqual(t, "alone", try(t, b, lease.Request{Domain: "shop.example"}).Endpoint().ID, "the ban has ended")
}

func TestANewGenerationBeginsAnewAndFormerLeasesGoOn(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, server, redislease.Config{Fresh: true})
	putWith(t, s, endpoint.Endpoint{ID: "x", Generation: 1})
	former := try(t, s, lease.Request{})
	url, err := endpoint.NewURL("http", "192.0.2.8:3128", "", "")
	require.NoError(t, err)
	require.NoError(t, s.Put(t.Context(), endpoint.Endpoint{ID: "x", Generation: 2, URL: url}))
	refused(t, s, lease.Request{})
	grant, err := s.Renew(t.Context(), former.Key(), time.Minute)
	require.NoError(t, err)
	assert.Equal(t, former.Endpoint(), grant.Endpoint, "what the holder has, not what has taken its place")
	require.NoError(t, s.SetVerdict(t.Context(), "x", endpoint.Verdict{Health: endpoint.Healthy, Generation: 1}))
	refused(t, s, lease.Request{})
	require.NoError(t, s.SetVerdict(t.Context(), "x", endpoint.Verdict{Health: endpoint.Healthy, Generation: 2}))
	assert.EqualValues(t, 2, try(t, s, lease.Request{}).Endpoint().Generation)
	held, err := s.Drain(t.Context(), "x")
	require.NoError(t, err)
	assert.Equal(t, 2, held)
	require.NoError(t, s.Revoke(t.Context(), "x"))
	require.ErrorIs(t, former.Renew(t.Context(), time.Minute), lease.ErrExpired)
	held, err = s.Drain(t.Context(), "x")
	require.NoError(t, err)
	assert.Zero(t, held)
}

// A holder of the former generation that is blocked has its address banned, behind
// which others stand, and not the endpoint that has taken its place.
func TestABlockOfAFormerGenerationBansItsAddress(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, server, redislease.Config{Fresh: true})
	nat := netip.MustParseAddr("198.51.100.1")
	putWith(t, s, endpoint.Endpoint{ID: "x", Generation: 1, EgressIP: nat})
	former := try(t, s, lease.Request{Domain: "shop.example"})
	putWith(t, s, endpoint.Endpoint{ID: "y", EgressIP: nat})
	putWith(t, s, endpoint.Endpoint{ID: "x", Generation: 2})
	require.NoError(t, former.Report(t.Context(), lease.Outcome{Kind: lease.TargetBlocked}))
	assert.Equal(t, "x", try(t, s, lease.Request{Domain: "shop.example"}).Endpoint().ID)
	refused(t, s, lease.Request{Domain: "shop.example"})
	assert.Equal(t, "y", try(t, s, lease.Request{Domain: "other.example"}).Endpoint().ID)
}

// The owner in one process hears what holders in others report.
func TestReportsCrossProcesses(t *testing.T) {
	server := redistest.Start(t)
	owner, holder := open(t, server, redislease.Config{Fresh: true, PollInterval: time.Hour}), open(t, server, redislease.Config{})
	put(t, owner, "a")
	ctx, cancel := context.WithCancel(t.Context())
	reports := owner.Reports(ctx)
	require.NoError(t, try(t, holder, lease.Request{}).Report(t.Context(), lease.Outcome{Kind: lease.ProxyFault, Status: 407}))
	r := <-reports
	assert.Equal(t, "a", r.EndpointID)
	assert.Equal(t, "test", r.Holder)
	assert.Equal(t, 407, r.Outcome.Status)
	cancel()
	_, open := <-reports
	assert.False(t, open)
}

func TestMetricsAreThoseOfAnyStore(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, server, redislease.Config{Fresh: true})
	put(t, s, "a", "b")
	l := try(t, s, lease.Request{})
	require.NoError(t, l.Report(t.Context(), lease.Outcome{Kind: lease.OK}))
	registry := prometheus.NewRegistry()
	require.NoError(t, leasemetrics.Register(s, nil, registry))
	require.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP egress_lease_up Whether the store answered.
# TYPE egress_lease_up gauge
egress_lease_up 1
# HELP egress_lease_outcomes_total Reports by their outcome.
# TYPE egress_lease_outcomes_total counter
egress_lease_outcomes_total{outcome="ok"} 1
`), "egress_lease_up", "egress_lease_outcomes_total"))
}

func netipOf(text string) netip.Addr { return netip.MustParseAddr(text) }
