package health_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"time"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/health"
	"github.com/egressfleet/egress/internal/connectproxy"
)

// loopback starts a target and a proxy that stand for yours.
func loopback() (target *httptest.Server, proxy *connectproxy.Proxy, e endpoint.Endpoint) {
	target = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"origin": "192.0.2.99"}`)
	}))
	proxy, err := connectproxy.Start(connectproxy.Config{})
	if err != nil {
		panic(err)
	}
	url, err := endpoint.NewURL("http", proxy.Addr().String(), "", "")
	if err != nil {
		panic(err)
	}
	return target, proxy, endpoint.Endpoint{ID: "proxy-1", URL: url}
}

func ExampleProber_Probe() {
	target, proxy, e := loopback()
	defer target.Close()
	defer proxy.Close()

	prober, err := health.NewProber(health.ProbeConfig{
		URL:       target.URL,
		Echo:      health.EchoJSON,
		Transport: endpoint.TransportConfig{TargetRoots: target.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	result := prober.Probe(context.Background(), e)
	fmt.Println(result.Status, result.EgressIP, result.Err)

	proxy.Close()
	result = prober.Probe(context.Background(), e)
	fmt.Println("failed in stage", result.Stage())
	// Output:
	// 200 192.0.2.99 <nil>
	// failed in stage dial
}

func ExampleNewEngine() {
	// A Prober's Probe goes here; this one always succeeds.
	probe := func(_ context.Context, e endpoint.Endpoint) health.Result {
		return health.Result{EndpointID: e.ID, EgressIP: netip.MustParseAddr("192.0.2.99")}
	}
	told := make(chan health.Transition)
	engine, err := health.NewEngine(health.EngineConfig{
		Probe:         probe,
		Interval:      10 * time.Second,
		InitialJitter: -1, // at once; spread first probes where there are many
		OnTransition:  func(t health.Transition) error { told <- t; return nil },
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer engine.Close()

	url, _ := endpoint.ParseURL("http://192.0.2.7:3128")
	if err := engine.Put(endpoint.Endpoint{ID: "proxy-1", URL: url}); err != nil {
		fmt.Println(err)
		return
	}
	t := <-told
	fmt.Println(t.Endpoint.ID, t.From, "->", t.Verdict.Health, t.Verdict.EgressIP)
	// Output: proxy-1 Unknown -> Healthy 192.0.2.99
}
