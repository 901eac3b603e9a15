package fleet_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/fleet"
	"github.com/egressfleet/egress/health"
	"github.com/egressfleet/egress/lease"
	"github.com/egressfleet/egress/provider/local"
)

func Example() {
	// A site on loopback stands for the one that probes fetch.
	site := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "hello")
	}))
	defer site.Close()
	transport := endpoint.TransportConfig{
		TargetRoots: site.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs,
	}

	// The key would come from your configuration.
	key := []byte("a key of at least 16 random bytes")
	p, err := local.New(local.Config{Credentials: func(uid string) (string, string) {
		password, _ := fleet.DerivePassword(key, uid)
		return "crawler", password
	}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer p.Close()
	prober, err := health.NewProber(health.ProbeConfig{URL: site.URL, Transport: transport})
	if err != nil {
		fmt.Println(err)
		return
	}
	store, err := lease.NewMemory(lease.MemoryConfig{Transport: transport})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()

	f, err := fleet.New(fleet.Config{
		Provider: p, Tag: "docs", Size: 3, Endpoint: p.Endpoint, Inventory: store,
		Health: health.EngineConfig{Probe: prober.Probe, InitialJitter: -1},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	defer f.Close(ctx, fleet.Destroy)
	if err := f.WaitReady(ctx, 3); err != nil {
		fmt.Println(err)
		return
	}

	l, err := store.Acquire(ctx, lease.Request{Holder: "example"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer l.Release(ctx)
	resp, err := l.Client().Get(site.URL)
	_ = l.Report(ctx, lease.Judge(resp, err))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	fmt.Println(resp.Status, "through one of", len(f.Status()))
	// Output: 200 OK through one of 3
}

func ExampleDerivePassword() {
	password, err := fleet.DerivePassword([]byte("a key of at least 16 random bytes"), "6f0c1d")
	fmt.Println(len(password), err)
	_, err = fleet.DerivePassword([]byte("too short"), "6f0c1d")
	fmt.Println(err)
	// Output:
	// 32 <nil>
	// fleet: the key for proxy passwords has less than 16 bytes: draw one with crypto/rand
}
