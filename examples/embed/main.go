// Command embed is the example of the README: a fleet of three proxies, and one
// request through one of them.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/egressfleet/egress/fleet"
	"github.com/egressfleet/egress/health"
	"github.com/egressfleet/egress/lease"
	"github.com/egressfleet/egress/provider/local"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := fetch(ctx, "https://example.com/"); err != nil {
		log.Fatal(err)
	}
}

func fetch(ctx context.Context, page string) error {
	p, err1 := local.New(local.Config{Username: "crawler", Password: "secret"}) // kvm.New makes VMs
	prober, err2 := health.NewProber(health.ProbeConfig{URL: page})
	store, err3 := lease.NewMemory(lease.MemoryConfig{})
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	f, err := fleet.New(fleet.Config{
		Provider: p, Tag: "readme", Size: 3, Endpoint: p.Endpoint, Inventory: store,
		Health: health.EngineConfig{Probe: prober.Probe},
	})
	if err != nil {
		return err
	}
	defer f.Close(context.Background(), fleet.Destroy)
	l, err := store.Acquire(ctx, lease.Request{Holder: "readme", Domain: "example.com"})
	if err != nil {
		return err
	}
	defer l.Release(ctx)
	resp, err := l.Client().Get(page)
	_ = l.Report(ctx, lease.Judge(resp, err))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = fmt.Println(resp.Status, "through", l.Endpoint().URL)
	return err
}
