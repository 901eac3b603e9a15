package fleet_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/fleet"
	"github.com/egressfleet/egress/lease"
	"github.com/egressfleet/egress/provider/local"
)

// free is how many endpoints the store has to lease.
func (w *world) free() int {
	w.t.Helper()
	stats, err := w.store.Stats(w.t.Context())
	require.NoError(w.t, err)
	return stats.Endpoints.Free
}

// A database that was emptied has all endpoints again, and their verdicts, though
// none of them has changed.
func TestAStoreThatLostItsEndpointsGetsThemAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3, local.HostConfig{})
		w.start()
		w.ready(3)
		for _, s := range w.f.Status() {
			require.NoError(t, w.store.Remove(t.Context(), s.EndpointID))
		}
		time.Sleep(time.Minute)
		assert.Equal(t, 3, w.free())
		assert.Zero(t, w.count(fleet.Replacing))
		assert.Equal(t, 3, w.count(fleet.Creating))
	})
}

// A store that came back with what it knew before is told what is true now.
func TestAStoreWithOldVerdictsIsToldAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, local.HostConfig{})
		w.start()
		w.ready(1)
		v := w.f.Status()[0].Verdict
		v.Health = endpoint.Unhealthy
		require.NoError(t, w.store.SetVerdict(t.Context(), w.f.Status()[0].EndpointID, v))
		require.Zero(t, w.free())
		time.Sleep(time.Minute)
		assert.Equal(t, 1, w.free())
	})
}

// What somebody drained stays so, and what ends is not put in again.
func TestWhatIsDrainedOrDeletedIsNotPutInAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, local.HostConfig{})
		w.start()
		w.ready(2)
		_, err := w.store.Drain(t.Context(), w.f.Status()[0].EndpointID)
		require.NoError(t, err)
		require.NoError(t, w.f.Resize("", 1))
		time.Sleep(10 * time.Minute)
		list, err := w.store.List(t.Context())
		require.NoError(t, err)
		assert.Len(t, list, 1)
	})
}

// deaf is an inventory that fails at times.
type deaf struct {
	lease.Inventory
	fails atomic.Bool
}

func (d *deaf) SetVerdict(ctx context.Context, id string, v endpoint.Verdict) error {
	if d.fails.Load() {
		return errors.New("out of order")
	}
	return d.Inventory.SetVerdict(ctx, id, v)
}

// An inventory that does not answer costs no proxy, and is told of, less and less
// often.
func TestAnInventoryThatFailsCostsNoProxy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, local.HostConfig{})
		d := &deaf{Inventory: w.store}
		w.cfg.Inventory = d
		w.start()
		w.ready(2)
		d.fails.Store(true)
		time.Sleep(time.Hour)
		assert.Equal(t, 2, w.healthy())
		assert.Zero(t, w.count(fleet.Replacing))
		assert.Contains(t, w.f.Status()[0].Reason, "out of order")
		assert.LessOrEqual(t, w.count(fleet.CallFailed), 2*70, "once a minute each")
		d.fails.Store(false)
		time.Sleep(2 * time.Minute)
		assert.NotContains(t, w.f.Status()[0].Reason, "out of order")
	})
}

// slow is an inventory that takes its time over good news, while it is to.
type slow struct {
	lease.Inventory
	dawdles atomic.Bool
}

func (s *slow) SetVerdict(ctx context.Context, id string, v endpoint.Verdict) error {
	if s.dawdles.Load() && v.Health == endpoint.Healthy {
		time.Sleep(time.Minute)
	}
	return s.Inventory.SetVerdict(ctx, id, v)
}

// A reminder that is slow to arrive does not undo the verdict that follows it.
func TestAReminderDoesNotOvertakeAVerdict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, local.HostConfig{})
		s := &slow{Inventory: w.store}
		w.cfg.Inventory = s
		w.start()
		w.ready(1)
		s.dawdles.Store(true)
		time.Sleep(30 * time.Second) // a look has begun
		w.setBad("*", true)
		for range 120 {
			time.Sleep(time.Second)
			if w.healthy() == 0 {
				assert.Zero(t, w.free())
			}
		}
		assert.Zero(t, w.healthy())
	})
}
