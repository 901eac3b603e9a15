package providertest_test

import (
	"context"
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

