// Command embed is the example of the README: a fleet of three proxies, and one
// request through one of them.
package main

import (
	"context"
	"fmt"
	"time"

	"github.com/egressfleet/egress/fleet"
	"github.com/egressfleet/egress/health"
	"github.com/egressfleet/egress/lease"
	"github.com/egressfleet/egress/provider/local"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	p := must(local.New(local.Config{Username: "crawler", Password: "secret"})) // kvm.New makes VMs
	prober := must(health.NewProber(health.ProbeConfig{URL: "https://example.com/"}))
	store := must(lease.NewMemory(lease.MemoryConfig{}))
	f := must(fleet.New(fleet.Config{
		Provider: p, Tag: "readme", Size: 3, Endpoint: p.Endpoint, Inventory: store,
		Health: health.EngineConfig{Probe: prober.Probe},
	}))
	defer f.Close(context.Background(), fleet.Destroy) // also when must panics
	l := must(store.Acquire(ctx, lease.Request{Holder: "readme", Domain: "example.com"}))
	defer l.Release(ctx)
	resp, err := l.Client().Get("https://example.com/")
	_ = l.Report(ctx, lease.Judge(resp, err))
	defer must(resp, err).Body.Close()
	fmt.Println(resp.Status, "through", l.Endpoint().URL)
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
