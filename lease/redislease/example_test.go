package redislease_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/egressfleet/egress/lease"
	"github.com/egressfleet/egress/lease/leasemetrics"
	"github.com/egressfleet/egress/lease/redislease"
)

// A crawler on one of many machines leases through a server behind TLS.
func ExampleNew() {
	client := redis.NewUniversalClient(&redis.UniversalOptions{
		Addrs:     []string{"redis.internal:6379"},
		Username:  "crawlers",
		Password:  "secret",
		TLSConfig: &tls.Config{MinVersion: tls.VersionTLS12},
	})
	defer client.Close()
	store, err := redislease.New(redislease.Config{Client: client, Fleet: "eu"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()
	if err := leasemetrics.Register(store, prometheus.Labels{"fleet": "eu"}, prometheus.NewRegistry()); err != nil {
		fmt.Println(err)
	}

	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	l, err := store.Acquire(ctx, lease.Request{Holder: "crawler-1", Domain: "example.com"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = l.Release(ctx) }()
	fmt.Println("fetching through", l.Endpoint().ID)
}

// Sentinels name the server; a Cluster is found from any of its nodes.
func ExampleNew_sentinel() {
	client := redis.NewUniversalClient(&redis.UniversalOptions{
		Addrs:      []string{"sentinel-1:26379", "sentinel-2:26379", "sentinel-3:26379"},
		MasterName: "egress",
	})
	defer client.Close()
	_, err := redislease.New(redislease.Config{Client: client, Fleet: "of many/words"})
	fmt.Println(err)
	// Output: redislease.Config: fleet: "of many/words": must match ^[A-Za-z0-9][A-Za-z0-9_.-]*$: it becomes part of every key
}
