package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/fleet"
	"github.com/egressfleet/egress/health"
	"github.com/egressfleet/egress/lease"
	"github.com/egressfleet/egress/provider/local"
)

// growthTargets are curves: what one thing costs where there are many, the largest
// number to the smallest.
var growthTargets = []target{
	{"growth-lease-1000000-100", "<=", 6, curve("ns", []int{100, 1000, 10_000, 100_000, 1_000_000}, func(n int) float64 {
		return nsPerOp(oursAcquire(n))
	})},
	{"growth-engine-100000-100", "<=", 3, curve("µs a probe", []int{100, 1000, 10_000, 100_000}, probeCost)},
	{"growth-fleet-2000-10", "<=", 5, curve("µs a look", []int{10, 100, 500, 2000}, lookCost)},
	{"growth-list-500-10", "<=", 10, listCurve},
}

// curve measures one thing at several sizes, three times each by turns.
func curve(unit string, sizes []int, measure func(n int) float64) func() (float64, string, error) {
	return func() (float64, string, error) {
		runs := make([][]float64, len(sizes))
		for range 3 {
			for i, n := range sizes {
				tidy()
				runs[i] = append(runs[i], measure(n))
			}
		}
		var points []string
		for i, n := range sizes {
			points = append(points, fmt.Sprintf("%d: %s %s", n, spread(runs[i]), unit))
		}
		return median(runs[len(runs)-1]) / median(runs[0]), strings.Join(points, "\n  "), nil
	}
}

// growthRate is how many probes or looks there are in a second, whatever the size.
const growthRate = 2000

// probeCost is the CPU time of a probe that itself costs nothing, at some thousand
// probes a second.
func probeCost(n int) float64 {
	url, err := endpoint.NewURL("http", "192.0.2.7:3128", "crawler", "secret")
	must(err)
	var probes atomic.Int64
	e, err := health.NewEngine(health.EngineConfig{
		Interval: time.Duration(n) * time.Second / growthRate,
		Probe: func(_ context.Context, e endpoint.Endpoint) health.Result {
			probes.Add(1)
			return health.Result{EndpointID: e.ID, Started: time.Now()}
		},
	})
	must(err)
	defer e.Close()
	for i := range n {
		must(e.Put(endpoint.Endpoint{ID: strconv.Itoa(i), URL: url}))
	}
	time.Sleep(time.Second)
	before, cpu := probes.Load(), cpuTime()
	time.Sleep(3 * time.Second)
	return float64((cpuTime() - cpu).Microseconds()) / float64(probes.Load()-before)
}

// lookCost is the CPU time of a look at an instance that serves, of a fleet whose
// provider and probes cost nothing, at some thousand looks a second.
func lookCost(n int) float64 {
	ctx := context.Background()
	host, err := local.NewHost(local.HostConfig{WithoutProxies: true})
	must(err)
	defer host.Close()
	p, err := local.New(local.Config{Host: host})
	must(err)
	var looks atomic.Int64
	host.OnCall(func(_ context.Context, op string) error {
		if op == "Get" {
			looks.Add(1)
		}
		return nil
	})
	store, err := lease.NewMemory(lease.MemoryConfig{})
	must(err)
	defer store.Close()
	f, err := fleet.New(fleet.Config{
		Provider: p, Tag: "growth", Size: n, MaxCreating: n, Endpoint: p.Endpoint, Inventory: store,
		PollInterval: max(time.Duration(n)*time.Second/growthRate/10, time.Millisecond),
		Health: health.EngineConfig{Interval: time.Hour, InitialJitter: -1, Probe: func(_ context.Context, e endpoint.Endpoint) health.Result {
			return health.Result{EndpointID: e.ID, Generation: e.Generation, Started: time.Now()}
		}},
	})
	must(err)
	ready, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	must(f.WaitReady(ready, n))
	before, cpu := looks.Load(), cpuTime()
	time.Sleep(3 * time.Second)
	cost := float64((cpuTime() - cpu).Microseconds()) / float64(looks.Load()-before)
	must(f.Close(ctx, fleet.Destroy))
	must(p.Close())
	return cost
}
