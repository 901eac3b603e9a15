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
		l := try(t, s, req)
		require.Equal(t, "b", l.Endpoint().ID, "the other one is banned")
		require.NoError(t, l.Release(t.Context()))
	}
	client := connect(t, server)
	assert.Less(t, client.HLen(t.Context(), "egress:{test}:hot").Val(), int64(1010))
	h.turn(3 * time.Hour)
	try(t, s, lease.Request{Domain: "x.example"})
	assert.False(t, client.HExists(t.Context(), "egress:{test}:hot", "d:x.example").Val(), "no ban is left")
}
