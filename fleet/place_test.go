package fleet_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/fleet"
	"github.com/egressfleet/egress/provider"
	"github.com/egressfleet/egress/provider/local"
)

// zones is a provider with places that run out of room.
type zones struct {
	provider.Provider
	mu    sync.Mutex
	full  map[string]bool
	calls map[string]int
}

func (z *zones) Create(ctx context.Context, req provider.CreateRequest) (string, error) {
	z.mu.Lock()
	z.calls[req.Placement.Zone]++
	full := z.full[req.Placement.Zone]
	z.mu.Unlock()
	if full {
		return "", &provider.Error{Class: provider.ErrQuotaExceeded, Scope: req.Placement.Zone, Err: errors.New("no room")}
	}
	req.Placement.Zone = ""
	return z.Provider.Create(ctx, req)
}

func (z *zones) set(zone string, full bool) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.full[zone] = full
}

func (z *zones) count(zone string) int {
	z.mu.Lock()
	defer z.mu.Unlock()
	return z.calls[zone]
}

// choosing is zones that can choose one.
type choosing struct{ *zones }

func (c choosing) Place(_ context.Context, req provider.PlaceRequest) (provider.Placement, error) {
	for _, zone := range []string{"a", "b"} {
		p := provider.Placement{Zone: zone}
		if !slices.Contains(req.Avoid, p) {
			return p, nil
		}
	}
	return provider.Placement{}, &provider.Error{Class: provider.ErrQuotaExceeded, Err: errors.New("no zone is left")}
}

func newZones(w *world) *zones {
	return &zones{Provider: w.p, full: map[string]bool{}, calls: map[string]int{}}
}

func TestAPlaceWithoutRoomIsLeftAloneByAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 4, local.HostConfig{})
		z := newZones(w)
		z.set("a", true)
		w.cfg.Provider = z
		w.cfg.Request = func(string) (provider.CreateRequest, error) {
			return provider.CreateRequest{Placement: provider.Placement{Zone: "a"}}, nil
		}
		w.start()
		time.Sleep(time.Hour)
		assert.Less(t, z.count("a"), 40, "four members, at most every 15 minutes after a while")
		assert.Equal(t, 4, w.count(fleet.Creating), "and no others instead")
		z.set("a", false)
		w.ready(4)
	})
}

func TestAPlacerIsAskedForAnotherPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 4, local.HostConfig{})
		z := newZones(w)
		z.set("a", true)
		w.cfg.Provider = choosing{z}
		w.start()
		w.ready(4)
		for _, s := range w.f.Status() {
			assert.Equal(t, "b", s.Placement.Zone, "recorded before Create")
		}
		assert.LessOrEqual(t, z.count("a"), 4)

		z.set("b", true)
		require.NoError(t, w.f.Resize("", 5))
		time.Sleep(time.Hour)
		assert.Len(t, w.instances(), 4)
		assert.Less(t, z.count("a")+z.count("b"), 60, "both are left alone")
		z.set("a", false)
		w.ready(5)
	})
}
