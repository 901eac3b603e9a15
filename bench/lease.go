package main

import (
	"context"
	"fmt"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/puddle/v2"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/lease"
)

var leaseTargets = []target{
	{"lease-1000-puddle", "<=", 2.5, func() (float64, string, error) {
		ratio, detail := pair(oursAcquire(1000), puddleAcquire(1000))
		return ratio, detail, nil
	}},
	{"lease-100000-1000", "<=", 2, func() (float64, string, error) {
		ratio, detail := pair(oursAcquire(100_000), oursAcquire(1000))
		return ratio, detail, nil
	}},
	{"lease-million-gib", "<=", 1, func() (float64, string, error) {
		before := heap()
		m := filled(1_000_000)
		defer m.Close()
		used := heap() - before
		runtime.KeepAlive(m)
		return float64(used) / (1 << 30), fmt.Sprintf("%d bytes for each of 1,000,000 endpoints", used/1_000_000), nil
	}},
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return int64(s.HeapAlloc)
}

// filled is a store with healthy endpoints, of which half are in each region, and
// one has a domain's ban.
func filled(n int) *lease.Memory {
	m, err := lease.NewMemory(lease.MemoryConfig{})
	must(err)
	ctx := context.Background()
	url, err := endpoint.NewURL("http", "192.0.2.7:3128", "crawler", "secret")
	must(err)
	regions := []map[string]string{{"region": "eu"}, {"region": "us"}}
	for i := range n {
		id := strconv.Itoa(i)
		must(m.Put(ctx, endpoint.Endpoint{ID: id, URL: url, Attributes: regions[i%2]}))
		must(m.SetVerdict(ctx, id, endpoint.Verdict{Health: endpoint.Healthy}))
	}
	l, err := m.TryAcquire(ctx, lease.Request{Holder: "bench", Domain: "example.com"})
	must(err)
	must(l.Report(ctx, lease.Outcome{Kind: lease.TargetBlocked}))
	must(l.Release(ctx))
	return m
}

// oursAcquire is acquire and release by one goroutine, with a selector that half
// of the endpoints match, domain cooldowns and tokens.
func oursAcquire(n int) func(*testing.B) {
	m := filled(n)
	selector, err := lease.ParseSelector("region=eu")
	must(err)
	req := lease.Request{Holder: "bench", Domain: "example.com", Selector: selector, TTL: time.Minute}
	first, err := m.Acquire(context.Background(), req) // it classes the endpoints by region
	must(err)
	must(first.Release(context.Background()))
	return func(b *testing.B) {
		ctx := context.Background()
		for b.Loop() {
			l, err := m.Acquire(ctx, req)
			must(err)
			must(l.Release(ctx))
		}
	}
}

func puddleAcquire(n int) func(*testing.B) {
	p, err := puddle.NewPool(&puddle.Config[int]{
		Constructor: func(context.Context) (int, error) { return 0, nil },
		Destructor:  func(int) {},
		MaxSize:     int32(n),
	})
	must(err)
	ctx := context.Background()
	all := make([]*puddle.Resource[int], n)
	for i := range all {
		all[i], err = p.Acquire(ctx)
		must(err)
	}
	for _, r := range all {
		r.Release()
	}
	return func(b *testing.B) {
		for b.Loop() {
			r, err := p.Acquire(ctx)
			must(err)
			r.Release()
		}
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
