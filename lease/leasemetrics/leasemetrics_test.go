package leasemetrics_test

import (
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/internal/promtest"
	"github.com/egressfleet/egress/lease"
	"github.com/egressfleet/egress/lease/leasemetrics"
)

func TestMetrics(t *testing.T) {
	store, err := lease.NewMemory(lease.MemoryConfig{})
	require.NoError(t, err)
	url, err := endpoint.NewURL("http", "192.0.2.7:3128", "", "")
	require.NoError(t, err)
	for _, id := range []string{"a", "b"} {
		require.NoError(t, store.Put(t.Context(), endpoint.Endpoint{ID: id, URL: url}))
		require.NoError(t, store.SetVerdict(t.Context(), id, endpoint.Verdict{Health: endpoint.Healthy}))
	}
	l, err := store.TryAcquire(t.Context(), lease.Request{Holder: "test"})
	require.NoError(t, err)
	require.NoError(t, l.Report(t.Context(), lease.Outcome{Kind: lease.OK}))

	reg := prometheus.NewRegistry()
	require.NoError(t, leasemetrics.Register(store, prometheus.Labels{"store": "main"}, reg))
	assert.Error(t, leasemetrics.Register(store, prometheus.Labels{"store": "main"}, reg))
	require.NoError(t, leasemetrics.Register(store, prometheus.Labels{"store": "other"}, reg))
	got := promtest.Values(t, reg)
	for key, want := range map[string]float64{
		"egress_lease_up main": 1, "egress_lease_endpoints leased main": 1, "egress_lease_endpoints free main": 1,
		"egress_lease_events_total acquired main": 1, "egress_lease_outcomes_total ok main": 1, "egress_lease_waiting main": 0,
	} {
		value, ok := got[key]
		assert.True(t, ok, key)
		assert.Equal(t, want, value, key)
	}
}

func ExampleRegister() {
	store, err := lease.NewMemory(lease.MemoryConfig{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()
	reg := prometheus.NewRegistry() // or prometheus.DefaultRegisterer
	fmt.Println(leasemetrics.Register(store, prometheus.Labels{"store": "main"}, reg))
	// Output: <nil>
}
