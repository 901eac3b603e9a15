package healthmetrics_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/health"
	"github.com/egressfleet/egress/health/healthmetrics"
	"github.com/egressfleet/egress/internal/promtest"
)

func newEngine(t testing.TB) *health.Engine {
	e, err := health.NewEngine(health.EngineConfig{
		InitialJitter: -1,
		Probe: func(_ context.Context, e endpoint.Endpoint) health.Result {
			return health.Result{EndpointID: e.ID, Timings: health.Timings{Dial: time.Second, Total: 2 * time.Second}}
		},
	})
	require.NoError(t, err)
	t.Cleanup(e.Close)
	return e
}

func TestMetrics(t *testing.T) {
	e := newEngine(t)
	url, err := endpoint.NewURL("http", "192.0.2.7:3128", "", "")
	require.NoError(t, err)
	require.NoError(t, e.Put(endpoint.Endpoint{ID: "a", URL: url}))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, e.WaitReady(ctx, 1))

	reg := prometheus.NewRegistry()
	require.NoError(t, healthmetrics.Register(e, nil, reg))
	assert.Error(t, healthmetrics.Register(e, nil, reg))
	got := promtest.Values(t, reg)
	for key, want := range map[string]float64{
		"egress_health_endpoints Healthy": 1, "egress_health_endpoints Unknown": 0, "egress_health_probes_ok_total": 1,
		"egress_health_target_suspended default": 0,
	} {
		value, ok := got[key]
		assert.True(t, ok, key)
		assert.Equal(t, want, value, key)
	}
	assert.InEpsilon(t, 2, got["egress_health_probe_seconds 0.5 total"], 0.07)
	assert.InEpsilon(t, 1, got["egress_health_probe_seconds 0.99 dial"], 0.07)
}

func ExampleRegister() {
	engine, err := health.NewEngine(health.EngineConfig{
		Probe: func(_ context.Context, e endpoint.Endpoint) health.Result { return health.Result{EndpointID: e.ID} },
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer engine.Close()
	fmt.Println(healthmetrics.Register(engine, nil, prometheus.NewRegistry()))
	// Output: <nil>
}
