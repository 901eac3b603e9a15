package redislease_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/fleet"
	"github.com/egressfleet/egress/health"
	"github.com/egressfleet/egress/internal/redistest"
	"github.com/egressfleet/egress/lease"
	"github.com/egressfleet/egress/lease/redislease"
	"github.com/egressfleet/egress/provider/local"
)

// An owner that goes on as before after the database was emptied has its endpoints
// back, in quarantine, and then they are leased again.
func TestAnOwnerThatGoesOnAfterAFlushLeasesAgain(t *testing.T) {
	server := redistest.Start(t)
	owner := open(t, server, redislease.Config{Fresh: true, MaxTTL: 10 * time.Minute})
	crawler := open(t, server, redislease.Config{MaxTTL: 10 * time.Minute})
	h := newHands(owner, crawler)
	put(t, owner, "a", "b")
	last := try(t, crawler, lease.Request{}).Key().Token
	require.NoError(t, connect(t, server).FlushAll(t.Context()).Err())

	verdict := endpoint.Verdict{Health: endpoint.Healthy}
	require.ErrorIs(t, owner.SetVerdict(t.Context(), "a", verdict), lease.ErrUnknownEndpoint, "it learns what to put again")
	for range 10 {
		put(t, owner, "a", "b")
		assert.Equal(t, 2, refused(t, crawler, lease.Request{}).Counts.Cooling)
		h.turn(59 * time.Second)
	}
	h.turn(11 * time.Second)
	one, two := try(t, crawler, lease.Request{}), try(t, crawler, lease.Request{})
	assert.NotEqual(t, one.Endpoint().ID, two.Endpoint().ID)
	assert.Greater(t, one.Key().Token, last)
	refused(t, owner, lease.Request{})
}

// Nobody has to start a fleet again after the database was emptied: it puts its
// endpoints in by itself, and a crawler that waits gets one after the quarantine.
func TestAFleetFillsAnEmptiedDatabaseAgain(t *testing.T) {
	server := redistest.Start(t)
	cfg := redislease.Config{Fresh: true, DefaultTTL: time.Second, MaxTTL: time.Second, PollInterval: 50 * time.Millisecond}
	store := open(t, server, cfg)
	host, err := local.NewHost(local.HostConfig{WithoutProxies: true})
	require.NoError(t, err)
	defer host.Close()
	p, err := local.New(local.Config{Host: host})
	require.NoError(t, err)
	f, err := fleet.New(fleet.Config{
		Provider: p, Tag: "test", Size: 2, Endpoint: p.Endpoint, Inventory: store, PollInterval: 20 * time.Millisecond,
		Health: health.EngineConfig{InitialJitter: -1, Probe: func(_ context.Context, e endpoint.Endpoint) health.Result {
			return health.Result{EndpointID: e.ID, Generation: e.Generation, Started: time.Now()}
		}},
	})
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close(context.Background(), fleet.Destroy)) }()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	require.NoError(t, f.WaitReady(ctx, 2))
	former, err := store.Acquire(ctx, lease.Request{Holder: "test"})
	require.NoError(t, err)

	require.NoError(t, connect(t, server).FlushAll(t.Context()).Err())
	flushed := time.Now()
	crawler := open(t, server, redislease.Config{Client: cfg.Client, DefaultTTL: time.Second, MaxTTL: time.Second, PollInterval: 50 * time.Millisecond})
	next, err := crawler.Acquire(ctx, lease.Request{Holder: "test"})
	require.NoError(t, err)
	assert.GreaterOrEqual(t, time.Since(flushed), time.Second, "the former lease is over")
	assert.Greater(t, next.Key().Token, former.Key().Token)
}
