package fleetmetrics_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/fleet"
	"github.com/egressfleet/egress/fleet/fleetmetrics"
	"github.com/egressfleet/egress/health"
	"github.com/egressfleet/egress/internal/promtest"
	"github.com/egressfleet/egress/lease"
	"github.com/egressfleet/egress/provider/local"
)

// start returns a fleet on loopback whose probes always succeed.
func start() (f *fleet.Fleet, end func()) {
	p, err := local.New(local.Config{})
	must(err)
	store, err := lease.NewMemory(lease.MemoryConfig{})
	must(err)
	f, err = fleet.New(fleet.Config{
		Provider: p, Tag: "test", Size: 2, Endpoint: p.Endpoint, Inventory: store, PollInterval: 10 * time.Millisecond,
		Health: health.EngineConfig{InitialJitter: -1, Probe: func(_ context.Context, e endpoint.Endpoint) health.Result {
			return health.Result{EndpointID: e.ID, Started: time.Now()}
		}},
	})
	must(err)
	return f, func() {
		_ = f.Close(context.Background(), fleet.Destroy)
		store.Close()
		_ = p.Close()
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func TestMetrics(t *testing.T) {
	f, end := start()
	defer end()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, f.WaitReady(ctx, 2))
	reg := prometheus.NewRegistry()
	require.NoError(t, fleetmetrics.Register(f, nil, reg))
	assert.Error(t, fleetmetrics.Register(f, nil, reg))
	assert.EventuallyWithT(t, func(c *assert.CollectT) {
		got := promtest.Values(t, reg)
		for key, want := range map[string]float64{
			"egress_fleet_wanted ": 2, "egress_fleet_healthy ": 2, "egress_fleet_instances Serving ": 2,
			"egress_fleet_instances Creating ": 0, "egress_fleet_events_total Created": 2,
		} {
			value, ok := got[key]
			assert.True(c, ok, key)
			assert.Equal(c, want, value, key)
		}
	}, time.Minute, 10*time.Millisecond)
}

func ExampleRegister() {
	f, end := start()
	defer end()
	fmt.Println(fleetmetrics.Register(f, prometheus.Labels{"fleet": "crawl-eu"}, prometheus.NewRegistry()))
	// Output: <nil>
}
