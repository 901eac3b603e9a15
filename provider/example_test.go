package provider_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/egressfleet/egress/provider"
	"github.com/egressfleet/egress/provider/local"
)

// A provider of any kind goes in place of local's.
func Example() {
	p, err := local.New(local.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer p.Close()
	ctx, cancel := context.WithTimeout(context.Background(), provider.BootTimeout)
	defer cancel()

	// Record the UID before Create: it finds again whatever a crash leaves.
	id, err := p.Create(ctx, provider.CreateRequest{
		UID:      "4b1d6a52",
		Tag:      "crawl-eu",
		UserData: provider.UserData("#cloud-config\npackages: [squid]\n"),
	})
	switch {
	case errors.Is(err, provider.ErrQuotaExceeded):
		fmt.Println("retry slowly, or elsewhere")
	case errors.Is(err, provider.ErrPermanent):
		fmt.Println("report it: retrying cannot help")
	case err != nil:
		fmt.Println("call Create again: it goes on where it stopped")
	}
	in, err := provider.WaitRunning(ctx, p, id, provider.WaitOptions{Interval: 10 * time.Millisecond})
	fmt.Println(in.Name, in.State, err)
	fmt.Println(provider.WaitGone(ctx, p, id, provider.WaitOptions{Interval: 10 * time.Millisecond}))
	// Output:
	// proxy-cs3mrctujc7yf6ym Running <nil>
	// <nil>
}

func ExampleName() {
	fmt.Println(provider.Name("4b1d6a52"))
	// Output: proxy-cs3mrctujc7yf6ym
}

func ExampleError() {
	var err error = &provider.Error{
		Class: provider.ErrQuotaExceeded, Op: "Create", Provider: "rack-1", Scope: "pool default",
		Code: "ERR_OPERATION_FAILED", Err: errors.New("3 GiB are free, 10 GiB are needed"),
	}
	fmt.Println(err)
	fmt.Println(errors.Is(err, provider.ErrQuotaExceeded), provider.Class(err))
	// Output:
	// rack-1 Create: pool default: 3 GiB are free, 10 GiB are needed (ERR_OPERATION_FAILED)
	// true quota_exceeded
}
