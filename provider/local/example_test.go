package local_test

import (
	"context"
	"fmt"
	"time"

	"github.com/egressfleet/egress/provider"
	"github.com/egressfleet/egress/provider/local"
)

func Example() {
	host, err := local.NewHost(local.HostConfig{BootDelay: 10 * time.Millisecond})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer host.Close()
	p, err := local.New(local.Config{Host: host, Username: "crawler", Password: "secret"})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := context.Background()
	id, err := p.Create(ctx, provider.CreateRequest{UID: "6f0c1d", Tag: "docs"})
	if err != nil {
		fmt.Println(err)
		return
	}
	in, err := provider.WaitRunning(ctx, p, id, provider.WaitOptions{Interval: 5 * time.Millisecond})
	if err != nil {
		fmt.Println(err)
		return
	}
	proxy, err := p.Endpoint(in.UID, in)
	fmt.Println(in.State, in.Address(), proxy.URL.Scheme(), err)

	// Now it goes wrong.
	_ = host.Inject(id, local.Crash)
	in, err = p.Get(ctx, id)
	fmt.Println(in.State, in.Reason, err)
	// Output:
	// Running 127.0.0.1 http <nil>
	// Failed the guest crashed <nil>
}
