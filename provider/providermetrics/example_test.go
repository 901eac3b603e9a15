package providermetrics_test

import (
	"context"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/egressfleet/egress/provider"
	"github.com/egressfleet/egress/provider/local"
	"github.com/egressfleet/egress/provider/providermetrics"
)

func Example() {
	rack, err := local.New(local.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer rack.Close()
	registry := prometheus.NewRegistry()
	p, err := providermetrics.New(rack, "rack-1", registry)
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = p.Create(context.Background(), provider.CreateRequest{UID: "4b1d6a52", Tag: "crawl-eu"})
	fmt.Println(err)

	families, err := registry.Gather()
	for _, f := range families {
		fmt.Println(f.GetName(), len(f.GetMetric()), err)
	}
	// Output:
	// <nil>
	// egress_provider_call_duration_seconds 1 <nil>
	// egress_provider_calls_in_flight 1 <nil>
	// egress_provider_calls_total 1 <nil>
}
