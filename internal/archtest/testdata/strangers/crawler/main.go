// A crawler that embeds a fleet, as somebody writes it who has the module alone.
package main

import (
	"context"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/fleet"
	"github.com/egressfleet/egress/health"
	"github.com/egressfleet/egress/lease"
	"github.com/egressfleet/egress/provider/local"
)

func main() {
	site := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.URL.Path) }))
	defer site.Close()
	roots := x509.NewCertPool()
	roots.AddCert(site.Certificate())
	transport := endpoint.TransportConfig{TargetRoots: roots}

	p, err := local.New(local.Config{
		Username: "crawler", Password: "secret",
		Resolve: map[string]string{"example.com": site.Listener.Addr().String()},
	})
	check(err)
	prober, err := health.NewProber(health.ProbeConfig{URL: "https://example.com/health", Transport: transport})
	check(err)
	store, err := lease.NewMemory(lease.MemoryConfig{Transport: transport})
	check(err)
	f, err := fleet.New(fleet.Config{
		Provider: p, Tag: "stranger", Size: 3, Endpoint: p.Endpoint, Inventory: store,
		Health: health.EngineConfig{Probe: prober.Probe},
	})
	check(err)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	for page := range 10 {
		l, err := store.Acquire(ctx, lease.Request{Holder: "stranger", Domain: "example.com"})
		check(err)
		resp, err := l.Client().Get(fmt.Sprintf("https://example.com/page/%d", page))
		check(l.Report(ctx, lease.Judge(resp, err)))
		check(err)
		body, err := io.ReadAll(resp.Body)
		check(err)
		check(resp.Body.Close())
		check(l.Release(ctx))
		fmt.Println(resp.StatusCode, string(body))
	}
	check(f.Close(ctx, fleet.Destroy))
	check(p.Close())
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
