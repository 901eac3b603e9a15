package gcp_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/fleet"
	"github.com/egressfleet/egress/gcp"
	"github.com/egressfleet/egress/health"
	"github.com/egressfleet/egress/internal/fakecompute"
	"github.com/egressfleet/egress/lease"
	"github.com/egressfleet/egress/provider"
)

// A zone without room accepts every insert and drops it. A fleet asks why, goes to
// the other zone, and does not run into the stockout again.
func TestAFleetGoesElsewhereAfterAStockout(t *testing.T) {
	const size = 4
	r := newRig(t, func(c *gcp.Config, f *fakecompute.Config) {
		c.MachineType, c.Image = "e2-small", debian
		f.OperationDelay, f.BootDelay = 5*time.Millisecond, 10*time.Millisecond
	})
	r.server.SetBefore(func(c fakecompute.Call) (f fakecompute.Fault) {
		if c.Method == "instances.insert" && c.Zone == zoneA {
			f.Operation = stockout
		}
		return f
	})
	store, err := lease.NewMemory(lease.MemoryConfig{})
	require.NoError(t, err)
	defer store.Close()
	f, err := fleet.New(fleet.Config{
		Provider: r, Tag: "tag-1", Size: size, Inventory: store,
		Request: func(string) (provider.CreateRequest, error) { return provider.CreateRequest{}, nil },
		Endpoint: func(_ string, in provider.Instance) (endpoint.Endpoint, error) {
			u, err := endpoint.NewURL("http", in.Address().String()+":3128", "", "")
			return endpoint.Endpoint{ID: in.Name, URL: u}, err
		},
		Health: health.EngineConfig{InitialJitter: -1, Probe: func(_ context.Context, e endpoint.Endpoint) health.Result {
			return health.Result{EndpointID: e.ID, Generation: e.Generation, Started: time.Now()}
		}},
		PollInterval: 5 * time.Millisecond, ListInterval: 20 * time.Millisecond,
	})
	require.NoError(t, err)
	defer func() { _ = f.Close(context.WithoutCancel(t.Context()), fleet.Destroy) }()

	require.Eventually(t, func() bool {
		list, err := r.ListByTag(t.Context(), "tag-1")
		running := 0
		for _, in := range list {
			if in.State == provider.StateRunning && zoneOf(in.ID) == zoneB {
				running++
			}
		}
		return err == nil && running == size
	}, time.Minute, 10*time.Millisecond)
	inA := 0
	for _, c := range r.server.Calls("instances.insert") {
		if c.Zone == zoneA {
			inA++
		}
	}
	assert.LessOrEqual(t, inA, size, "each of the first ones may have been on its way there, and none after them")
}
