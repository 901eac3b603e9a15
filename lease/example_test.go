package lease_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/lease"
)

// open returns a store with two proxies that were proven good. An owner, such
// as a fleet, does this.
func open() *lease.Memory {
	store, err := lease.NewMemory(lease.MemoryConfig{DefaultTTL: time.Minute})
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	for i := range 2 {
		url, err := endpoint.NewURL("http", fmt.Sprintf("192.0.2.%d:3128", i+1), "crawler", "secret")
		if err != nil {
			panic(err)
		}
		id := fmt.Sprintf("proxy-%d", i+1)
		_ = store.Put(ctx, endpoint.Endpoint{ID: id, URL: url})
		_ = store.SetVerdict(ctx, id, endpoint.Verdict{Health: endpoint.Healthy})
	}
	return store
}

func Example() {
	store := open()
	defer store.Close()
	ctx := context.Background()

	l, err := store.Acquire(ctx, lease.Request{Holder: "crawler-1", Domain: "example.com"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer l.Release(ctx)
	fmt.Println("leased", l.Endpoint().ID)

	// l.Client() is an *http.Client that goes through the proxy and nowhere
	// else, as long as the lease is held.
	resp := &http.Response{StatusCode: http.StatusTooManyRequests, Header: http.Header{"Retry-After": {"600"}}}
	outcome := lease.Judge(resp, nil)
	fmt.Println(outcome.Kind, outcome.RetryAfter)
	_ = l.Report(ctx, outcome)
	_ = l.Release(ctx)

	// The site blocks that proxy; others still serve it.
	l, err = store.Acquire(ctx, lease.Request{Holder: "crawler-1", Domain: "example.com"})
	if err == nil {
		fmt.Println("leased", l.Endpoint().ID)
	}
	// Output:
	// leased proxy-1
	// target_blocked 10m0s
	// leased proxy-2
}

func ExampleMemory_TryAcquire() {
	store := open()
	defer store.Close()
	ctx := context.Background()
	for range 2 {
		_, _ = store.TryAcquire(ctx, lease.Request{Holder: "crawler-1"})
	}
	_, err := store.TryAcquire(ctx, lease.Request{Holder: "crawler-2"})
	fmt.Println(errors.Is(err, lease.ErrNoneFree))

	var unavailable *lease.UnavailableError
	if errors.As(err, &unavailable) {
		fmt.Println(unavailable.Counts)
		fmt.Println("a hint:", unavailable.RetryAfter.Round(time.Second))
	}
	// Output:
	// true
	// 2 endpoints: 2 leased
	// a hint: 1m0s
}

func ExampleLease_Renew() {
	store := open()
	defer store.Close()
	ctx := context.Background()
	l, err := store.Acquire(ctx, lease.Request{Holder: "crawler-1", TTL: 30 * time.Second})
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := l.Renew(ctx, 5*time.Minute); errors.Is(err, lease.ErrLost) {
		return // stop: another may hold the proxy now
	}
	fmt.Println(time.Until(l.ExpiresAt()).Round(time.Second))
	// Output: 5m0s
}

func ExampleJudge() {
	outcome := lease.Judge(nil, &endpoint.Error{
		Stage: endpoint.StageConnect, Status: 407, Err: errors.New("refused"),
	})
	fmt.Println(outcome.Kind)
	// Output: proxy_fault
}
