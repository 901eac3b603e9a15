// Command embed is the example of the README: a fleet of three proxies, and one
// request through one of them.
package main

import (
	"context"
	"fmt"
	"log"

	"github.com/egressfleet/egress/fleet"
	"github.com/egressfleet/egress/health"
	"github.com/egressfleet/egress/lease"
	"github.com/egressfleet/egress/provider/local"
)

func main() {
	ctx := context.Background()
	p, err := local.New(local.Config{Username: "crawler", Password: "secret"}) // kvm.New makes VMs
	check(err)
	prober, err := health.NewProber(health.ProbeConfig{URL: "https://example.com/"})
	check(err)
	store, err := lease.NewMemory(lease.MemoryConfig{})
	check(err)
	f, err := fleet.New(fleet.Config{
		Provider: p, Tag: "readme", Size: 3, Endpoint: p.Endpoint, Inventory: store,
		Health: health.EngineConfig{Probe: prober.Probe},
	})
	check(err)
	defer f.Close(ctx, fleet.Destroy)
	l, err := store.Acquire(ctx, lease.Request{Holder: "readme", Domain: "example.com"})
	check(err)
	defer l.Release(ctx)
	resp, err := l.Client().Get("https://example.com/")
	check(l.Report(ctx, lease.Judge(resp, err)))
	check(err)
	fmt.Println(resp.Status, "through", l.Endpoint().URL)
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
