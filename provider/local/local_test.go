package local_test

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/internal/proxytest"
	"github.com/egressfleet/egress/provider"
	"github.com/egressfleet/egress/provider/local"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newHost(t *testing.T, cfg local.HostConfig) *local.Host {
	t.Helper()
	host, err := local.NewHost(cfg)
	require.NoError(t, err)
	t.Cleanup(host.Close)
	return host
}

func newProvider(t *testing.T, host *local.Host) *local.Provider {
	t.Helper()
	p, err := local.New(local.Config{
		Host: host, Credentials: func(uid string) (string, string) { return "crawler", "p@:" + uid },
	})
	require.NoError(t, err)
	return p
}

func request(uid string) provider.CreateRequest {
	return provider.CreateRequest{UID: uid, Tag: "test", Metadata: map[string]string{"spec-hash": "1"}}
}

func TestConfigReportsEveryBadValue(t *testing.T) {
	_, err := local.New(local.Config{Username: "a:b", Password: "hunter2", BootDelay: -1, Capacity: -1})
	for _, want := range []string{"bootDelay: -1ns", "capacity: -1", "username: proxy URL: a user name with a colon"} {
		assert.ErrorContains(t, err, want)
	}
	assert.NotContains(t, err.Error(), "hunter2")
	_, err = local.New(local.Config{Host: newHost(t, local.HostConfig{}), Capacity: 1})
	assert.ErrorContains(t, err, "host: leave out")
	_, err = local.NewHost(local.HostConfig{Name: "a/b", Listen: netip.MustParseAddr("192.0.2.7")})
	assert.ErrorContains(t, err, `name: "a/b": becomes a part of provider IDs`)
	assert.ErrorContains(t, err, "listen: 192.0.2.7: must be a loopback address")
}

func TestTheWholeLife(t *testing.T) {
	target := proxytest.TLSTarget(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	host := newHost(t, local.HostConfig{BootDelay: 50 * time.Millisecond, DeleteDelay: 50 * time.Millisecond, Resolve: target.Resolve})
	p := newProvider(t, host)
	id, err := p.Create(t.Context(), request("a"))
	require.NoError(t, err)
	assert.Equal(t, "hosts/local/proxies/"+provider.Name("a"), id)
	again, err := p.Create(t.Context(), request("a"))
	require.NoError(t, err)
	assert.Equal(t, id, again)
	in, err := p.Get(t.Context(), id)
	require.NoError(t, err)
	assert.Equal(t, provider.StateProvisioning, in.State)
	assert.Empty(t, in.Addresses)

	// A restart of the operator: the host goes on.
	p = newProvider(t, host)
	wait := provider.WaitOptions{Interval: 10 * time.Millisecond}
	in, err = provider.WaitRunning(t.Context(), p, id, wait)
	require.NoError(t, err)
	assert.Equal(t, "a", in.UID)
	assert.Equal(t, map[string]string{"spec-hash": "1"}, in.Metadata)
	e, err := p.Endpoint(in.UID, in)
	require.NoError(t, err)
	resp, err := proxytest.Client(t, e.URL, endpoint.TransportConfig{TargetRoots: target.Roots}).Get(target.URL)
	require.NoError(t, err)
	_ = resp.Body.Close()

	all, err := p.ListByTag(t.Context(), "test")
	require.NoError(t, err)
	assert.Len(t, all, 1)
	all, err = p.ListByTag(t.Context(), "other")
	require.NoError(t, err)
	assert.Empty(t, all)

	require.NoError(t, p.Delete(t.Context(), id))
	_, err = p.Create(t.Context(), request("a"))
	assert.ErrorIs(t, err, provider.ErrTransient, "still being deleted")
	require.NoError(t, provider.WaitGone(t.Context(), p, id, wait))
	require.NoError(t, p.Delete(t.Context(), id), "deleting what is gone is nil")
}

func TestWhatIsWrongWithARequestOrID(t *testing.T) {
	p := newProvider(t, newHost(t, local.HostConfig{}))
	id, err := p.Create(t.Context(), request("a"))
	require.NoError(t, err)
	other := request("a")
	other.Tag = "other"
	_, err = p.Create(t.Context(), other)
	assert.True(t, provider.HasCode(err, provider.CodeCollision), err)
	_, err = p.Create(t.Context(), provider.CreateRequest{})
	assert.True(t, provider.HasCode(err, provider.CodeInvalidRequest), err)
	elsewhere := request("b")
	elsewhere.Placement.Zone = "mars"
	_, err = p.Create(t.Context(), elsewhere)
	assert.ErrorIs(t, err, provider.ErrPermanent)
	assert.ErrorContains(t, err, `placement.zone: "mars"`)
	_, err = p.Get(t.Context(), "hosts/mars/proxies/"+provider.Name("a"))
	assert.True(t, provider.HasCode(err, provider.CodeUnconfigured), err)
	assert.True(t, provider.HasCode(p.Delete(t.Context(), "nonsense"), provider.CodeMalformedID))
	_, err = p.Get(t.Context(), id[:len(id)-1]+"7")
	assert.ErrorIs(t, err, provider.ErrNotFound)
	_, err = p.ListByTag(t.Context(), "BAD")
	assert.ErrorIs(t, err, provider.ErrPermanent)
}

func TestCapacityIsAQuota(t *testing.T) {
	p := newProvider(t, newHost(t, local.HostConfig{Capacity: 1}))
	_, err := p.Create(t.Context(), request("a"))
	require.NoError(t, err)
	_, err = p.Create(t.Context(), request("b"))
	require.ErrorIs(t, err, provider.ErrQuotaExceeded)
	assert.ErrorContains(t, err, "1 of 1 instances are in use")
	_, err = p.Create(t.Context(), request("a"))
	assert.NoError(t, err, "what exists still counts as created")
}

func TestFaults(t *testing.T) {
	target := proxytest.TLSTarget(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for fault, want := range map[local.Fault]struct {
		state provider.State
		stage endpoint.Stage
	}{
		local.Sound:     {provider.StateRunning, 0},
		local.Stop:      {provider.StateStopped, endpoint.StageDial},
		local.Crash:     {provider.StateFailed, endpoint.StageDial},
		local.Vanish:    {"", endpoint.StageDial},
		local.ProxyDown: {provider.StateRunning, endpoint.StageDial},
		local.Hang:      {provider.StateRunning, endpoint.StageConnect},
		local.Refuse:    {provider.StateRunning, endpoint.StageConnect},
		local.Impostor:  {provider.StateRunning, endpoint.StageTargetTLS},
	} {
		t.Run(string(fault), func(t *testing.T) {
			host := newHost(t, local.HostConfig{Resolve: target.Resolve})
			p := newProvider(t, host)
			id, err := p.Create(t.Context(), request("a"))
			require.NoError(t, err)
			in, err := p.Get(t.Context(), id)
			require.NoError(t, err)
			e, err := p.Endpoint("a", in)
			require.NoError(t, err)
			require.NoError(t, host.Inject(id, fault))

			in, err = p.Get(t.Context(), id)
			if fault == local.Vanish {
				assert.ErrorIs(t, err, provider.ErrNotFound)
			} else {
				require.NoError(t, err)
				assert.Equal(t, want.state, in.State)
			}
			client := proxytest.Client(t, e.URL, endpoint.TransportConfig{TargetRoots: target.Roots})
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer cancel()
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, target.URL, nil)
			require.NoError(t, err)
			resp, err := client.Do(req)
			if want.stage == 0 {
				require.NoError(t, err)
				_ = resp.Body.Close()
				return
			}
			var failed *endpoint.Error
			require.ErrorAs(t, err, &failed)
			assert.Equal(t, want.stage, failed.Stage)
		})
	}
	assert.ErrorIs(t, newHost(t, local.HostConfig{}).Inject("hosts/local/proxies/"+provider.Name("x"), local.Stop), provider.ErrNotFound)
}

func TestCallsFailAndHangOnDemand(t *testing.T) {
	host := newHost(t, local.HostConfig{})
	p := newProvider(t, host)
	host.OnCall(func(_ context.Context, op string) error {
		if op == "Create" {
			return errors.New("no route to host")
		}
		return nil
	})
	_, err := p.Create(t.Context(), request("a"))
	assert.ErrorIs(t, err, provider.ErrTransient)
	assert.EqualError(t, err, "local Create: no route to host")

	host.OnCall(func(ctx context.Context, _ string) error { <-ctx.Done(); return ctx.Err() })
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err = p.ListByTag(ctx, "test")
	assert.ErrorIs(t, err, context.DeadlineExceeded)
}

func TestTheTargetCanTellProxiesApart(t *testing.T) {
	var host *local.Host
	seen := make(chan string, 2)
	target := proxytest.TLSTarget(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		id, _ := host.Origin(netip.MustParseAddrPort(r.RemoteAddr))
		seen <- id
	}))
	host = newHost(t, local.HostConfig{Resolve: target.Resolve})
	p := newProvider(t, host)
	for _, uid := range []string{"a", "b"} {
		id, err := p.Create(t.Context(), request(uid))
		require.NoError(t, err)
		in, err := p.Get(t.Context(), id)
		require.NoError(t, err)
		e, err := p.Endpoint(uid, in)
		require.NoError(t, err)
		resp, err := proxytest.Client(t, e.URL, endpoint.TransportConfig{TargetRoots: target.Roots}).Get(target.URL)
		require.NoError(t, err)
		_ = resp.Body.Close()
		assert.Equal(t, id, <-seen)
	}
	_, ok := host.Origin(netip.MustParseAddrPort("127.0.0.1:1"))
	assert.False(t, ok)
}
