package fleet_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/fleet"
	"github.com/egressfleet/egress/lease"
	"github.com/egressfleet/egress/provider"
	"github.com/egressfleet/egress/provider/local"
)

// scrapoxy/scrapoxy#30, #94: scaling down took the wrong ones, and scaling up
// killed healthy ones.
func TestResizeTakesTheIdleFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 5, local.HostConfig{})
		w.start()
		w.ready(5)
		var held []*lease.Lease
		for range 2 {
			l, err := w.store.TryAcquire(t.Context(), lease.Request{Holder: "test", TTL: time.Hour})
			require.NoError(t, err)
			held = append(held, l)
		}
		require.NoError(t, w.f.Resize("", 2))
		time.Sleep(10 * time.Minute)
		assert.Len(t, w.instances(), 2)
		for _, l := range held {
			assert.NoError(t, l.Err(), "never a leased one while there are others")
		}
		before := w.instances()
		require.NoError(t, w.f.Resize("", 4))
		w.ready(4)
		assert.Subset(t, w.instances(), before, "growing ends nothing")
		assert.ErrorContains(t, w.f.Resize("", -1), "must not be negative")
		assert.ErrorContains(t, w.f.Resize("other", 1), `there is no pool "other"`)
	})
}

func TestResizeHoldsToTheCeiling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, local.HostConfig{})
		w.cfg.MaxSize = 3
		w.start()
		assert.ErrorContains(t, w.f.Resize("", 4), "more than maxSize, 3")
		require.NoError(t, w.f.Resize("", 3))
		w.ready(3)
	})
}

func TestPoolsAreKeptApartAndAdopted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 0, local.HostConfig{})
		w.cfg.Pools = []fleet.Pool{
			{Name: "eu", Size: 2, Attributes: map[string]string{"region": "eu"}},
			{Name: "us", Size: 3, Request: func(string) (provider.CreateRequest, error) {
				return provider.CreateRequest{Metadata: map[string]string{"own": "x"}}, nil
			}},
		}
		w.start()
		w.ready(5)
		count := func() map[string]int {
			n := map[string]int{}
			for _, s := range w.f.Status() {
				n[s.Pool]++
			}
			return n
		}
		assert.Equal(t, map[string]int{"eu": 2, "us": 3}, count())
		l, err := w.store.TryAcquire(t.Context(), lease.Request{Holder: "test", Selector: lease.Selector{
			{Key: "region", Operator: lease.In, Values: []string{"eu"}}, {Key: "pool", Operator: lease.In, Values: []string{"eu"}},
		}})
		require.NoError(t, err)
		require.NoError(t, l.Release(t.Context()))

		// A restart without one of the pools: its instances end, the others stay.
		require.NoError(t, w.f.Close(t.Context(), fleet.Keep))
		w.cfg.Pools = w.cfg.Pools[1:]
		w.start()
		time.Sleep(10 * time.Minute)
		assert.Equal(t, map[string]int{"us": 3}, count())
		for _, in := range w.instances() {
			assert.Equal(t, "x", in.Metadata["own"])
		}
	})
}

func TestPoolsAreChecked(t *testing.T) {
	_, err := fleet.New(fleet.Config{Size: 1, Pools: []fleet.Pool{{Name: "a"}, {Name: "eu", Size: -1, MaxAge: -1}, {Name: "eu"}}})
	for _, want := range []string{
		"pools: leave out size", `pools[0].name: "a": must be`, "pools[1].size: -1", "pools[1].maxAge: -1ns", `pools[2].name: "eu": is used twice`,
	} {
		assert.ErrorContains(t, err, want)
	}
}

func TestReplace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, local.HostConfig{})
		w.start()
		w.ready(2)
		id := w.instances()[0].ID
		require.NoError(t, w.f.Replace(id, "its address is burnt"))
		time.Sleep(time.Minute)
		assert.Equal(t, 2, w.healthy())
		for _, in := range w.instances() {
			assert.NotEqual(t, id, in.ID)
		}
		assert.Error(t, w.f.Replace(id, "again"))
	})
}

func TestTheOldAreReplacedAFewAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 10, local.HostConfig{BootDelay: 30 * time.Second, DeleteDelay: 30 * time.Second})
		w.cfg.MaxAge = time.Hour
		w.start()
		w.ready(10)
		time.Sleep(50 * time.Minute)
		assert.Zero(t, w.count(fleet.Replacing))
		least := 10
		for range 25 * 6 {
			time.Sleep(10 * time.Second)
			least = min(least, w.healthy())
		}
		assert.GreaterOrEqual(t, least, 8, "a fifth at a time")
		assert.Equal(t, 10, w.count(fleet.Replacing), "each once")
		limits := map[string]bool{}
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, e := range w.events {
			if e.Type == fleet.Replacing {
				limits[e.Reason] = true
			}
		}
		assert.Greater(t, len(limits), 5, "each has a limit of its own: %v", limits)
	})
}

func TestAgeWaitsUntilAllAreHealthy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 5, local.HostConfig{})
		w.cfg.MaxAge = time.Hour
		w.cfg.UnhealthyTimeout = 10 * time.Hour
		w.start()
		w.ready(5)
		time.Sleep(30 * time.Minute)
		sick := w.f.Status()[0].EndpointID
		w.setBad(sick, true)
		time.Sleep(2 * time.Hour)
		assert.Zero(t, w.count(fleet.Replacing))
		w.setBad(sick, false)
		time.Sleep(30 * time.Minute)
		assert.Equal(t, 5, w.count(fleet.Replacing))
	})
}
