// The server's side of an operator: it keeps a record of its own, follows the contract
// of a provider by itself, and leases over HTTP, from memory or from Redis.
package main

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/health"
	"github.com/egressfleet/egress/lease"
	"github.com/egressfleet/egress/lease/leasehttp"
	"github.com/egressfleet/egress/lease/redislease"
	"github.com/egressfleet/egress/provider"
	"github.com/egressfleet/egress/provider/local"
)

type store interface {
	lease.Store
	lease.Inventory
	Close()
}

func open() (store, error) {
	if addr := os.Getenv("REDIS"); addr != "" {
		return redislease.New(redislease.Config{Client: redis.NewClient(&redis.Options{Addr: addr}), Fleet: "stranger", Fresh: true})
	}
	return lease.NewMemory(lease.MemoryConfig{})
}

func main() {
	site := httptest.NewTLSServer(http.NotFoundHandler())
	defer site.Close()
	roots := x509.NewCertPool()
	roots.AddCert(site.Certificate())
	transport := endpoint.TransportConfig{TargetRoots: roots}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	s, err := open()
	check(err)
	defer s.Close()
	p, err := local.New(local.Config{Resolve: map[string]string{"example.com": site.Listener.Addr().String()}})
	check(err)
	defer p.Close()

	const uid, tag = "proxy-1-incarnation-1", "stranger" // recorded before Create
	id, err := p.Create(ctx, provider.CreateRequest{UID: uid, Tag: tag})
	check(err)
	in, err := provider.WaitRunning(ctx, p, id, provider.WaitOptions{})
	check(err)
	ep, err := p.Endpoint(uid, in)
	check(err)
	ep.ID, ep.Generation = "crawl/proxy-1", 1
	check(s.Put(ctx, ep))
	prober, err := health.NewProber(health.ProbeConfig{URL: "https://example.com/", ExpectedStatuses: []int{404}, Transport: transport})
	check(err)
	if result := prober.Probe(ctx, ep); result.Err != nil {
		log.Fatal(result.Err)
	}
	check(s.SetVerdict(ctx, ep.ID, endpoint.Verdict{Health: endpoint.Healthy, Generation: 1, Since: time.Now()}))

	handler, err := leasehttp.NewHandler(leasehttp.HandlerConfig{Store: s, Clients: map[string]string{"crawler": "0123456789abcdef"}})
	check(err)
	defer handler.Close()
	api := httptest.NewServer(handler)
	defer api.Close()
	client, err := leasehttp.NewClient(leasehttp.ClientConfig{URL: api.URL, Token: "0123456789abcdef", Transport: transport})
	check(err)
	l, err := client.Acquire(ctx, lease.Request{Holder: "stranger"})
	check(err)
	resp, err := l.Client().Get("https://example.com/")
	check(err)
	check(resp.Body.Close())
	check(l.Release(ctx))
	fmt.Println(resp.StatusCode, "through", l.Endpoint().ID)

	held, err := s.Drain(ctx, ep.ID)
	check(err)
	check(s.Remove(ctx, ep.ID))
	check(provider.WaitGone(ctx, p, id, provider.WaitOptions{}))
	_, err = p.Get(ctx, id)
	fmt.Println(held, "held,", errors.Is(err, provider.ErrNotFound))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
