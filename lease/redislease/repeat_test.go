package redislease_test

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/internal/redistest"
	"github.com/egressfleet/egress/lease"
	"github.com/egressfleet/egress/lease/redislease"
)

// A call that is made again gets the lease that the first one got, by whichever way
// each of them goes.
func TestARepetitionGetsTheSameLease(t *testing.T) {
	server := redistest.Start(t)
	short, long := open(t, server, redislease.Config{Fresh: true}), open(t, server, redislease.Config{})
	newHands(short, long)
	long.GoTheLongWay()
	put(t, short, "a", "b", "c", "d", "e")
	require.NoError(t, try(t, short, lease.Request{}).Release(t.Context())) // the selector is known
	for i, ways := range [][2]*redislease.Store{{short, short}, {short, long}, {long, short}, {long, long}} {
		id := fmt.Sprint("id", i)
		first, err := ways[0].AcquireAs(t.Context(), id, lease.Request{Holder: "test", Domain: "x.example"})
		require.NoError(t, err)
		second, err := ways[1].AcquireAs(t.Context(), id, lease.Request{Holder: "test", Domain: "x.example"})
		require.NoError(t, err)
		assert.Equal(t, first.Grant(), second.Grant())
	}
	stats, err := short.Stats(t.Context())
	require.NoError(t, err)
	assert.EqualValues(t, 5, stats.Acquired)
	assert.Equal(t, lease.Counts{Total: 5, Leased: 4, Free: 1}, stats.Endpoints)
}

// What ended is not leased again by a call that comes late, and its holder learns why
// it ended, by both ways.
func TestARepetitionOfWhatExpiredGetsNothing(t *testing.T) {
	server := redistest.Start(t)
	short, long := open(t, server, redislease.Config{Fresh: true}), open(t, server, redislease.Config{})
	h := newHands(short, long)
	long.GoTheLongWay()
	put(t, short, "a", "b")
	require.NoError(t, try(t, short, lease.Request{}).Release(t.Context()))
	l := try(t, short, lease.Request{TTL: time.Second})
	h.turn(time.Minute)
	for _, s := range []*redislease.Store{short, long} {
		_, err := s.AcquireAs(t.Context(), l.Key().ID, lease.Request{Holder: "test"})
		require.Error(t, err)
		require.ErrorIs(t, s.Release(t.Context(), l.Key()), lease.ErrExpired)
		require.ErrorIs(t, s.Release(t.Context(), lease.Key{ID: l.Key().ID, Token: 1}), nil)
	}
	stats, err := short.Stats(t.Context())
	require.NoError(t, err)
	assert.Equal(t, lease.Counts{Total: 2, Free: 2}, stats.Endpoints)
}

// A release whose answer was lost is made again, and takes nothing from the next holder.
func TestARepeatedReleaseTakesNothingFromTheNextHolder(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, server, redislease.Config{Fresh: true})
	newHands(s)
	put(t, s, "a")
	former := try(t, s, lease.Request{})
	require.NoError(t, s.Release(t.Context(), former.Key()))
	next := try(t, s, lease.Request{})
	require.NoError(t, s.Release(t.Context(), former.Key()))
	require.ErrorIs(t, s.Release(t.Context(), lease.Key{ID: next.Key().ID, Token: former.Key().Token}), lease.ErrNotHeld)
	refused(t, s, lease.Request{})
	require.NoError(t, s.Release(t.Context(), next.Key()))
	stats, err := s.Stats(t.Context())
	require.NoError(t, err)
	assert.EqualValues(t, 2, stats.Released)
}

// An endpoint whose attributes change while it is leased is found by the new ones when
// it is released, and not by the former.
func TestAReleaseAfterTheAttributesChanged(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, server, redislease.Config{Fresh: true})
	in := func(region string) lease.Request {
		return lease.Request{Selector: lease.Selector{{Key: "region", Operator: lease.In, Values: []string{region}}}}
	}
	putWith(t, s, endpoint.Endpoint{ID: "a", Attributes: map[string]string{"region": "eu"}})
	putWith(t, s, endpoint.Endpoint{ID: "b", Attributes: map[string]string{"region": "us"}})
	require.NoError(t, try(t, s, in("us")).Release(t.Context()))
	l := try(t, s, in("eu"))
	putWith(t, s, endpoint.Endpoint{ID: "a", Attributes: map[string]string{"region": "us"}})
	require.NoError(t, l.Release(t.Context()))
	require.ErrorIs(t, refused(t, s, in("eu")), lease.ErrNoMatch)
	try(t, s, in("us"))
	try(t, s, in("us"))
}

// Many selectors are asked for: what is kept of them is bounded, and all else that is
// kept beside them stays.
func TestManySelectorsAreForgotten(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, server, redislease.Config{Fresh: true})
	h := newHands(s)
	putWith(t, s, endpoint.Endpoint{ID: "a", Attributes: map[string]string{"region": "0"}})
	putWith(t, s, endpoint.Endpoint{ID: "b", Attributes: map[string]string{"region": "0"}})
	l := try(t, s, lease.Request{Domain: "x.example"})
	require.NoError(t, l.Report(t.Context(), lease.Outcome{Kind: lease.TargetBlocked}))
	require.NoError(t, l.Release(t.Context()))
	for i := range 1100 {
		req := lease.Request{Domain: "x.example", Selector: lease.Selector{{Key: "region", Operator: lease.NotIn, Values: []string{"1", strconv.Itoa(i)}}}}
		if i == 0 {
			refused(t, s, req)
			continue
		}
		for range 2 {
			l := try(t, s, req)
			require.Equal(t, "b", l.Endpoint().ID, "the other one is banned")
			require.NoError(t, l.Release(t.Context()))
		}
	}
	client := connect(t, server)
	assert.Less(t, client.HLen(t.Context(), "egress:{test}:hot").Val(), int64(1010))
	h.turn(3 * time.Hour)
	try(t, s, lease.Request{Domain: "x.example"})
	assert.False(t, client.HExists(t.Context(), "egress:{test}:hot", "d:x.example").Val(), "no ban is left")
}

// What a domain has all skip in one class is not skipped in another.
func TestASkipIsForOneClass(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, server, redislease.Config{Fresh: true})
	newHands(s)
	for id, region := range map[string]string{"a": "eu", "b": "eu", "c": "us", "d": "us"} {
		putWith(t, s, endpoint.Endpoint{ID: id, Attributes: map[string]string{"region": region}})
	}
	get := func(region, domain string) *lease.Lease {
		return try(t, s, lease.Request{Domain: domain, Selector: lease.Selector{{Key: "region", Operator: lease.In, Values: []string{region}}}})
	}
	first := get("us", "")
	require.NoError(t, first.Release(t.Context()))
	l := get("eu", "x.example")
	require.NoError(t, l.Report(t.Context(), lease.Outcome{Kind: lease.TargetBlocked}))
	require.NoError(t, l.Release(t.Context()))
	require.NoError(t, get("us", "").Release(t.Context())) // used later than what is banned
	require.NoError(t, get("eu", "").Release(t.Context()))
	other := get("eu", "x.example") // it makes the others skip
	assert.NotEqual(t, l.Endpoint().ID, other.Endpoint().ID)
	require.NoError(t, other.Release(t.Context()))
	for range 2 {
		l := get("us", "x.example")
		assert.Equal(t, first.Endpoint().ID, l.Endpoint().ID)
		require.NoError(t, l.Release(t.Context()))
		require.NoError(t, get("us", "").Release(t.Context())) // and the first is first again
	}
}

// banned returns a store of four endpoints of which x.example bans those two, and skips
// them.
func banned(t *testing.T) (s *redislease.Store, h *hands, two []string) {
	t.Helper()
	s = open(t, redistest.Start(t), redislease.Config{Fresh: true})
	h = newHands(s)
	put(t, s, "a", "b", "c", "d")
	for range 2 {
		l := try(t, s, lease.Request{Domain: "x.example"})
		two = append(two, l.Endpoint().ID)
		require.NoError(t, l.Report(t.Context(), lease.Outcome{Kind: lease.TargetBlocked}))
		require.NoError(t, l.Release(t.Context()))
	}
	for range 2 { // the banned become the least recently used
		require.NoError(t, try(t, s, lease.Request{}).Release(t.Context()))
	}
	for range 2 {
		require.NoError(t, try(t, s, lease.Request{Domain: "x.example"}).Release(t.Context()))
	}
	return s, h, two
}

// What was skipped is had again when its ban has ended.
func TestASkipEndsWithTheBan(t *testing.T) {
	s, h, two := banned(t)
	h.turn(6 * time.Minute)
	for _, id := range two {
		l := try(t, s, lease.Request{Domain: "x.example"})
		assert.Equal(t, id, l.Endpoint().ID)
		require.NoError(t, l.Release(t.Context()))
	}
}

// What comes back to its place among those that are skipped is not skipped with them.
func TestASkipLeavesOutWhatComesBack(t *testing.T) {
	s, _, two := banned(t)
	first := try(t, s, lease.Request{})
	require.Equal(t, two[0], first.Endpoint().ID)
	second := try(t, s, lease.Request{})
	require.Equal(t, two[1], second.Endpoint().ID)
	third := try(t, s, lease.Request{})
	fourth := try(t, s, lease.Request{})
	require.NoError(t, first.Release(t.Context()))
	require.NoError(t, second.Release(t.Context()))
	refused(t, s, lease.Request{Domain: "x.example"}) // it has all skip those two
	require.NoError(t, third.Release(t.Context()))
	require.NoError(t, s.ReleaseUnused(t.Context(), fourth.Key())) // it was used before both
	for _, l := range []*lease.Lease{fourth, third} {
		next := try(t, s, lease.Request{Domain: "x.example"})
		assert.Equal(t, l.Endpoint().ID, next.Endpoint().ID)
		require.NoError(t, next.Release(t.Context()))
	}
}

// What was leased before all that is skipped is not skipped when it is released.
func TestASkipLeavesOutWhatIsReleased(t *testing.T) {
	s := open(t, redistest.Start(t), redislease.Config{Fresh: true})
	newHands(s)
	put(t, s, "a", "b", "c", "d")
	before := try(t, s, lease.Request{})
	for range 2 {
		l := try(t, s, lease.Request{Domain: "x.example"})
		require.NoError(t, l.Report(t.Context(), lease.Outcome{Kind: lease.TargetBlocked}))
		require.NoError(t, l.Release(t.Context()))
	}
	for _, domain := range []string{"", "x.example"} {
		require.NoError(t, try(t, s, lease.Request{Domain: domain}).Release(t.Context()))
	}
	require.NoError(t, before.Release(t.Context()))
	assert.Equal(t, before.Endpoint().ID, try(t, s, lease.Request{Domain: "x.example"}).Endpoint().ID)
}

// A token is at least the server's time, by the short way too.
func TestATokenIsAtLeastTheTime(t *testing.T) {
	s := open(t, redistest.Start(t), redislease.Config{Fresh: true})
	h := newHands(s)
	put(t, s, "a")
	for range 2 {
		h.turn(time.Second)
		l := try(t, s, lease.Request{})
		assert.Equal(t, h.micros.Load(), l.Key().Token)
		require.NoError(t, l.Release(t.Context()))
	}
}
