package local_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/provider"
	"github.com/egressfleet/egress/provider/local"
	"github.com/egressfleet/egress/provider/providertest"
)

func TestConformance(t *testing.T) {
	providertest.Run(t, harness(newHost(t, local.HostConfig{
		BootDelay: 10 * time.Millisecond, DeleteDelay: 10 * time.Millisecond, Capacity: 40,
	})))
}

// The host knows neither strangers nor a second place, keeps no user-data and
// does not log.
func TestConformanceSkipsOnlyWhatALocalHostHasNot(t *testing.T) {
	h := newHost(t, local.HostConfig{BootDelay: time.Millisecond, Capacity: 40, WithoutProxies: true})
	results, err := providertest.Check(t.Context(), harness(h))
	require.NoError(t, err)
	var skipped []string
	for _, r := range results {
		require.NoError(t, r.Err, r.Name)
		if r.Skipped != "" {
			skipped = append(skipped, r.Name)
		}
	}
	require.Equal(t, []string{
		"user-data-arrives", "collision-with-another-uid", "collision-with-a-stranger", "delete-spares-strangers",
		"strangers-are-not-instances", "slow-place-harms-no-other", "secrets-in-no-log",
	}, skipped)
}

func harness(host *local.Host) providertest.Harness {
	inject := func(f local.Fault) func(context.Context, string) error {
		return func(_ context.Context, id string) error { return host.Inject(id, f) }
	}
	return providertest.Harness{
		New: func() (provider.Provider, error) {
			return local.New(local.Config{Host: host, Username: "crawler", Password: "secret-password"})
		},
		Request: func(uid, tag string) provider.CreateRequest {
			return provider.CreateRequest{UID: uid, Tag: tag, UserData: provider.UserData("#cloud-config\npassword: " + uid + "\n")}
		},
		Timeout: 5 * time.Second, Interval: 2 * time.Millisecond, Settle: 50 * time.Millisecond,
		Unconfigured: "hosts/elsewhere/proxies/" + provider.Name("x"),
		Stop:         inject(local.Stop),
		Crash:        inject(local.Crash),
		Vanish:       inject(local.Vanish),
		Break: func() (func(), error) {
			host.OnCall(func(context.Context, string) error { return errors.New("no route to host") })
			return func() { host.OnCall(nil) }, nil
		},
		Hang:    func() (func(), error) { return hang(host), nil },
		Exhaust: func(ctx context.Context) (func(), error) { return exhaust(ctx, host) },
		Secrets: []string{"secret-password"},
	}
}

// hang holds every call up until it is released or its context ends.
func hang(host *local.Host) (release func()) {
	held := make(chan struct{})
	host.OnCall(func(ctx context.Context, _ string) error {
		select {
		case <-held:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	return func() {
		host.OnCall(nil)
		close(held)
	}
}

// exhaust fills the host.
func exhaust(ctx context.Context, host *local.Host) (restore func(), err error) {
	p, err := local.New(local.Config{Host: host})
	if err != nil {
		return nil, err
	}
	restore = func() {
		all, _ := p.ListByTag(ctx, "filler")
		for _, in := range all {
			_ = host.Inject(in.ID, local.Vanish)
		}
	}
	for i := 0; ; i++ {
		_, err := p.Create(ctx, provider.CreateRequest{UID: "filler-" + string(rune('!'+i)), Tag: "filler"})
		if errors.Is(err, provider.ErrQuotaExceeded) {
			return restore, nil
		}
		if err != nil {
			return nil, err
		}
	}
}
