package providertest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/egressfleet/egress/provider"
	"github.com/egressfleet/egress/provider/local"
	"github.com/egressfleet/egress/provider/providertest"
)

// The test of a provider is one call. The more of the harness is there, the
// more is checked.
func ExampleRun() {
	_ = func(t *testing.T) { // func TestConformance(t *testing.T) {
		host, err := local.NewHost(local.HostConfig{BootDelay: 10 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(host.Close)
		providertest.Run(t, providertest.Harness{
			New: func() (provider.Provider, error) { return local.New(local.Config{Host: host}) },
			Request: func(uid, tag string) provider.CreateRequest {
				return provider.CreateRequest{UID: uid, Tag: tag, UserData: provider.UserData("#cloud-config\n")}
			},
			Stop: func(_ context.Context, id string) error { return host.Inject(id, local.Stop) },
		})
	}
}

// forgetful is a provider whose Delete of nothing is an error.
type forgetful struct{ provider.Provider }

func (f forgetful) Delete(ctx context.Context, id string) error {
	if _, err := f.Get(ctx, id); errors.Is(err, provider.ErrNotFound) {
		return err
	}
	return f.Provider.Delete(ctx, id)
}

// Check is for callers without a testing.T. Here it finds what is wrong with a
// provider whose Delete is not idempotent.
func ExampleCheck() {
	host, err := local.NewHost(local.HostConfig{WithoutProxies: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer host.Close()
	results, err := providertest.Check(context.Background(), providertest.Harness{
		New: func() (provider.Provider, error) {
			p, err := local.New(local.Config{Host: host})
			return forgetful{p}, err
		},
		Request: func(uid, tag string) provider.CreateRequest { return provider.CreateRequest{UID: uid, Tag: tag} },
		Settle:  50 * time.Millisecond, Interval: time.Millisecond,
	})
	for _, r := range results {
		if r.Err != nil {
			fmt.Println(r.Name)
		}
	}
	fmt.Println(err)
	// Output:
	// delete-of-nothing
	// <nil>
}
