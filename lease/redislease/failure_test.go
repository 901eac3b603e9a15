package redislease_test

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/internal/redistest"
	"github.com/egressfleet/egress/lease"
	"github.com/egressfleet/egress/lease/redislease"
)

// A restart that keeps the data keeps the leases, and the token rises.
func TestARestartWithItsDataKeepsTheLeases(t *testing.T) {
	server := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	s := open(t, server, redislease.Config{Fresh: true})
	put(t, s, "a", "b")
	l := try(t, s, lease.Request{})
	server.Kill()
	require.Error(t, l.Renew(t.Context(), time.Minute))
	require.NoError(t, l.Err(), "the lease goes on as long as its time")
	server.Restart()
	require.NoError(t, l.Renew(t.Context(), time.Minute))
	next := try(t, s, lease.Request{})
	assert.NotEqual(t, l.Endpoint().ID, next.Endpoint().ID)
	assert.Greater(t, next.Key().Token, l.Key().Token)
}

// A restart without data: the holder learns it, and nothing is leased again before
// the longest lease must have ended.
func TestALossOfDataIsAQuarantine(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, server, redislease.Config{Fresh: true, MaxTTL: 10 * time.Minute})
	h := newHands(s)
	put(t, s, "a")
	l := try(t, s, lease.Request{TTL: 6 * time.Second})
	work, stop := l.Keep(t.Context(), 6*time.Second)
	defer stop()
	server.Kill()
	server.Restart()
	<-work.Done()
	require.ErrorIs(t, context.Cause(work), lease.ErrNotHeld)

	put(t, s, "a")
	why := refused(t, s, lease.Request{})
	assert.Equal(t, 1, why.Counts.Cooling)
	assert.Positive(t, why.RetryAfter)
	h.turn(9 * time.Minute)
	refused(t, s, lease.Request{})
	h.turn(2 * time.Minute)
	assert.Greater(t, try(t, s, lease.Request{}).Key().Token, l.Key().Token)
}

// A process that takes the empty database for a new fleet does not hide the loss from
// one that knew the former.
func TestALossIsNoticedThoughAnotherBeganAnew(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, server, redislease.Config{Fresh: true, MaxTTL: 10 * time.Minute})
	h := newHands(s)
	put(t, s, "a")
	try(t, s, lease.Request{})
	require.NoError(t, connect(t, server).FlushAll(t.Context()).Err())
	h.turn(time.Second)
	anew := open(t, server, redislease.Config{Fresh: true, MaxTTL: 10 * time.Minute})
	anew.SetClock(h.micros.Load)
	put(t, anew, "a")
	require.NoError(t, try(t, anew, lease.Request{}).Release(t.Context()))
	refused(t, s, lease.Request{})
	refused(t, anew, lease.Request{})
	h.turn(11 * time.Minute)
	try(t, anew, lease.Request{})
}

// An owner that starts anew with an empty database cannot know whether it was lost.
func TestAnEmptyDatabaseIsALossUnlessItIsFresh(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, server, redislease.Config{MaxTTL: 10 * time.Minute})
	h := newHands(s)
	put(t, s, "a")
	refused(t, s, lease.Request{})
	h.turn(11 * time.Minute)
	try(t, s, lease.Request{})
}

// A replica that takes over without the last writes, and whose clock is behind.
func TestAServerThatForgotTheLastWritesRepeatsNoToken(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, server, redislease.Config{Fresh: true, MaxTTL: 10 * time.Minute})
	h := newHands(s)
	put(t, s, "a", "b")
	client := connect(t, server)
	before, err := client.HGet(t.Context(), "egress:{test}:hot", "state").Result()
	require.NoError(t, err)
	h.turn(time.Hour)
	l := try(t, s, lease.Request{})
	require.NoError(t, client.HSet(t.Context(), "egress:{test}:hot", "state", before).Err())
	require.NoError(t, client.Del(t.Context(), "egress:{test}:l:"+l.Key().ID).Err())
	h.turn(-time.Hour)
	refused(t, s, lease.Request{})
	h.turn(11 * time.Minute)
	assert.Greater(t, try(t, s, lease.Request{}).Key().Token, l.Key().Token)
}

// A replica that takes over without the last renewal believes the lease to be over
// before its holder does. The process that saw the renewal tells.
func TestALostRenewalIsAQuarantine(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, server, redislease.Config{Fresh: true, MaxTTL: 10 * time.Minute})
	h := newHands(s)
	put(t, s, "a")
	l := try(t, s, lease.Request{TTL: time.Minute})
	client := connect(t, server)
	before := map[string]string{}
	for _, key := range client.Keys(t.Context(), "*").Val() {
		before[key] = client.Dump(t.Context(), key).Val()
	}
	h.turn(20 * time.Second)
	require.NoError(t, l.Renew(t.Context(), 10*time.Minute))
	require.NoError(t, client.FlushAll(t.Context()).Err())
	for key, value := range before {
		require.NoError(t, client.Restore(t.Context(), key, 0, value).Err())
	}
	h.turn(9 * time.Minute)
	require.NoError(t, l.Err())
	assert.Equal(t, 1, refused(t, s, lease.Request{}).Counts.Cooling)
	h.turn(11 * time.Minute)
	assert.Greater(t, try(t, s, lease.Request{}).Key().Token, l.Key().Token)
}

// Waits outlast a server that is away.
func TestAWaitGoesOnWhileTheServerIsAway(t *testing.T) {
	server := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	a := open(t, server, redislease.Config{Fresh: true, PollInterval: 50 * time.Millisecond})
	put(t, a, "x")
	held := try(t, a, lease.Request{TTL: time.Hour})
	wait := waitInBackground(t, open(t, server, redislease.Config{PollInterval: 50 * time.Millisecond}), lease.Request{})
	awaitWaiting(t, a, 1)
	server.Kill()
	require.Error(t, a.Revoke(t.Context(), "x"))
	server.Restart()
	require.NoError(t, held.Release(t.Context()))
	require.NoError(t, (<-wait).err)
}

// The holder stops when its time is over, though nobody answers.
func TestAHolderLearnsInTimeWithoutTheServer(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, server, redislease.Config{Fresh: true})
	put(t, s, "a")
	l := try(t, s, lease.Request{TTL: time.Second})
	work, stop := l.Keep(t.Context(), time.Second)
	defer stop()
	server.Freeze()
	defer server.Thaw()
	<-work.Done()
	require.ErrorIs(t, context.Cause(work), lease.ErrExpired)
	_, err := l.ProxyURL()
	require.ErrorIs(t, err, lease.ErrLost)
}

// Every call returns with its context though the server hangs.
func TestEveryCallEndsWithItsContext(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, server, redislease.Config{Fresh: true, CallTimeout: 20 * time.Second})
	put(t, s, "a")
	l := try(t, s, lease.Request{TTL: time.Hour})
	server.Freeze()
	defer server.Thaw()
	for name, call := range map[string]func(context.Context) error{
		"TryAcquire": func(ctx context.Context) error { _, err := s.TryAcquire(ctx, lease.Request{Holder: "h"}); return err },
		"Acquire":    func(ctx context.Context) error { _, err := s.Acquire(ctx, lease.Request{Holder: "h"}); return err },
		"Renew":      func(ctx context.Context) error { _, err := s.Renew(ctx, l.Key(), 0); return err },
		"Release":    func(ctx context.Context) error { return s.Release(ctx, l.Key()) },
		"Report":     func(ctx context.Context) error { return s.Report(ctx, l.Key(), lease.Outcome{Kind: lease.OK}) },
		"List":       func(ctx context.Context) error { _, err := s.List(ctx); return err },
		"Stats":      func(ctx context.Context) error { _, err := s.Stats(ctx); return err },
		"Put":        func(ctx context.Context) error { return s.Put(ctx, l.Endpoint()) },
		"Remove":     func(ctx context.Context) error { return s.Remove(ctx, "a") },
		"SetVerdict": func(ctx context.Context) error { return s.SetVerdict(ctx, "a", endpoint.Verdict{}) },
		"Drain":      func(ctx context.Context) error { _, err := s.Drain(ctx, "a"); return err },
		"Revoke":     func(ctx context.Context) error { return s.Revoke(ctx, "a") },
		"Reports":    func(ctx context.Context) error { <-s.Reports(ctx); return ctx.Err() },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		assert.ErrorIs(t, call(ctx), context.DeadlineExceeded, name)
		cancel()
	}
}

// Full memory refuses what is new, and lets holders go on and let go.
func TestFullMemoryRefusesOnlyWhatIsNew(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, server, redislease.Config{Fresh: true})
	put(t, s, "a", "b")
	l := try(t, s, lease.Request{})
	admin := connect(t, server)
	require.NoError(t, admin.ConfigSet(t.Context(), "maxmemory", "1").Err())
	_, err := s.TryAcquire(t.Context(), lease.Request{Holder: "test"})
	require.ErrorContains(t, err, "OOM")
	require.ErrorContains(t, s.Put(t.Context(), l.Endpoint()), "OOM")
	require.NoError(t, l.Renew(t.Context(), time.Minute))
	require.NoError(t, l.Report(t.Context(), lease.Outcome{Kind: lease.ProxyFault}))
	require.NoError(t, s.SetVerdict(t.Context(), "a", endpoint.Verdict{Health: endpoint.Unhealthy}))
	require.NoError(t, l.Release(t.Context()))
	wait := waitInBackground(t, s, lease.Request{})
	require.NoError(t, admin.ConfigSet(t.Context(), "maxmemory", "0").Err())
	require.NoError(t, (<-wait).err, "it heals by itself")
}

// A call whose answer was lost is made again, and gives the same lease.
func TestALostAnswerLeasesOnce(t *testing.T) {
	server := redistest.Start(t)
	put(t, open(t, server, redislease.Config{Fresh: true}), "a", "b")
	opt := options(server)
	opt.MaxRetries = 3
	var calls atomic.Int32
	opt.Dialer = func(ctx context.Context, _, _ string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", server.Socket)
		return &losing{Conn: conn, calls: &calls}, err
	}
	client := redis.NewClient(opt)
	t.Cleanup(func() { _ = client.Close() })
	s := open(t, server, redislease.Config{Client: client})
	for range 5 {
		l, err := s.Acquire(t.Context(), lease.Request{Holder: "test"})
		require.NoError(t, err)
		require.NoError(t, l.Release(t.Context()))
	}
	stats, err := s.Stats(t.Context())
	require.NoError(t, err)
	assert.EqualValues(t, 5, stats.Acquired)
	assert.EqualValues(t, 5, stats.Released)
	assert.Greater(t, calls.Load(), int32(10), "answers were lost")
}

// losing loses the answer to every other script, after the server has run it.
type losing struct {
	net.Conn
	calls *atomic.Int32
	lose  bool
}

func (c *losing) Write(p []byte) (int, error) {
	c.lose = strings.Contains(string(p), "evalsha") && c.calls.Add(1)%2 == 0
	return c.Conn.Write(p)
}

func (c *losing) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.lose {
		_ = c.Close()
		return 0, net.ErrClosed
	}
	return n, err
}

// The server forgets its scripts: they are sent again.
func TestForgottenScriptsAreSentAgain(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, server, redislease.Config{Fresh: true})
	put(t, s, "a")
	require.NoError(t, connect(t, server).ScriptFlush(t.Context()).Err())
	require.NoError(t, try(t, s, lease.Request{}).Release(t.Context()))
}

// A client that is closed before its store ends its waits, and its listener, which asked
// a closed channel again and again.
func TestAClosedClientEndsWhatWaitsForIt(t *testing.T) {
	server := redistest.Start(t)
	client := redis.NewClient(options(server))
	s, err := redislease.New(redislease.Config{Client: client, Fleet: "closed", Fresh: true})
	require.NoError(t, err)
	defer s.Close()
	require.NoError(t, client.Close())
	_, err = s.Acquire(t.Context(), lease.Request{Holder: "h"})
	require.ErrorIs(t, err, redis.ErrClosed)
	messages := make(chan any)
	close(messages)
	s.Follow(messages)
}
