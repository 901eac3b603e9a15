package leasehttp_test

import (
	"context"
	"fmt"
	"net/http/httptest"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/lease"
	"github.com/egressfleet/egress/lease/leasehttp"
)

func Example() {
	ctx := context.Background()
	store, err := lease.NewMemory(lease.MemoryConfig{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()
	url, _ := endpoint.NewURL("http", "192.0.2.7:3128", "crawler", "secret")
	_ = store.Put(ctx, endpoint.Endpoint{ID: "proxy-1", URL: url})
	_ = store.SetVerdict(ctx, "proxy-1", endpoint.Verdict{Health: endpoint.Healthy})

	// The server. Yours has TLS, and a token drawn at random.
	handler, err := leasehttp.NewHandler(leasehttp.HandlerConfig{
		Store: store, Clients: map[string]string{"crawler-1": "a-token-of-32-random-characters!"},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer handler.Close()
	server := httptest.NewServer(handler)
	defer server.Close()

	// A crawler elsewhere. It uses the client as any other store.
	client, err := leasehttp.NewClient(leasehttp.ClientConfig{
		URL: server.URL, Token: "a-token-of-32-random-characters!", HTTPClient: server.Client(),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	l, err := client.Acquire(ctx, lease.Request{Holder: "worker-7", Domain: "example.com"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer l.Release(ctx)
	fmt.Println(l.Endpoint().ID, l.Endpoint().URL)
	// Output: proxy-1 http://***@192.0.2.7:3128
}
