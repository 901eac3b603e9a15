package kvm_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/digitalocean/go-libvirt"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/internal/fakelibvirt"
	"github.com/egressfleet/egress/kvm"
	"github.com/egressfleet/egress/provider"
)

func TestStates(t *testing.T) {
	r := newRig(t)
	id := mustCreate(t, r, r.Provider, request("u1"))
	name := provider.Name("u1")
	r.host().SetAddresses(name, libvirt.DomainInterfaceAddressesSrcAgent, libvirt.DomainInterface{Addrs: []libvirt.DomainIPAddr{{Addr: "10.0.0.5"}}})
	for _, c := range []struct {
		state  libvirt.DomainState
		reason int32
		want   provider.State
		says   string
	}{
		{libvirt.DomainRunning, 1, provider.StateRunning, ""},
		{libvirt.DomainBlocked, 0, provider.StateRunning, ""},
		{libvirt.DomainNostate, 0, provider.StateUnknown, "cannot tell"},
		{libvirt.DomainPaused, int32(libvirt.DomainPausedIoerror), provider.StateUnknown, "I/O error"},
		{libvirt.DomainPmsuspended, 0, provider.StateUnknown, "suspended"},
		{libvirt.DomainShutdown, 0, provider.StateStopping, "shuts down"},
		{libvirt.DomainShutoff, int32(libvirt.DomainShutoffShutdown), provider.StateStopped, "shut down"},
		{libvirt.DomainCrashed, 0, provider.StateFailed, "crashed"},
	} {
		r.host().SetState(name, c.state, c.reason)
		in, err := r.Get(testContext(t), id)
		require.NoError(t, err)
		assert.Equal(t, c.want, in.State, c.state)
		assert.Contains(t, in.Reason, c.says)

		l, err := r.ListByTag(testContext(t), "tag-a")
		require.NoError(t, err)
		require.Len(t, l, 1)
		assert.Equal(t, c.want, l[0].State, "list: %v", c.state)
	}
}

func TestBeingMade(t *testing.T) {
	r := newRig(t)
	r.host().Before = failOn("virDomainSetMetadata", errors.New("cut"))
	id, err := r.Create(testContext(t), request("u1"))
	require.Error(t, err)
	in, err := r.Get(testContext(t), id)
	require.NoError(t, err)
	assert.Equal(t, provider.StateProvisioning, in.State)
	assert.Contains(t, in.Reason, "being made")
}

func TestAddressSources(t *testing.T) {
	agent, lease, arp := libvirt.DomainInterfaceAddressesSrcAgent, libvirt.DomainInterfaceAddressesSrcLease, libvirt.DomainInterfaceAddressesSrcArp
	card := func(addrs ...string) libvirt.DomainInterface {
		var i libvirt.DomainInterface
		for _, a := range addrs {
			i.Addrs = append(i.Addrs, libvirt.DomainIPAddr{Addr: a})
		}
		return i
	}
	other := libvirt.DomainInterface{Hwaddr: libvirt.OptString{"02:42:00:00:00:01"}, Addrs: []libvirt.DomainIPAddr{{Addr: "172.17.0.1"}}}
	for _, c := range []struct {
		what string
		set  map[libvirt.DomainInterfaceAddressesSource][]libvirt.DomainInterface
		want string
	}{
		{"agent first", map[libvirt.DomainInterfaceAddressesSource][]libvirt.DomainInterface{agent: {other, card("10.0.0.1")}, lease: {card("10.0.0.2")}}, "10.0.0.1"},
		{"lease", map[libvirt.DomainInterfaceAddressesSource][]libvirt.DomainInterface{lease: {card("10.0.0.2")}}, "10.0.0.2"},
		{"arp", map[libvirt.DomainInterfaceAddressesSource][]libvirt.DomainInterface{arp: {card("10.0.0.3")}}, "10.0.0.3"},
		{"the agent has only others", map[libvirt.DomainInterfaceAddressesSource][]libvirt.DomainInterface{agent: {other}, lease: {card("10.0.0.2")}}, "10.0.0.2"},
		{"none is global", map[libvirt.DomainInterfaceAddressesSource][]libvirt.DomainInterface{agent: {card("169.254.1.1", "fe80::1", "127.0.0.1", "224.0.0.1", "bogus")}}, ""},
		{"IPv6 alone", map[libvirt.DomainInterfaceAddressesSource][]libvirt.DomainInterface{agent: {card("fe80::1", "2001:db8::1")}}, "2001:db8::1"},
	} {
		t.Run(c.what, func(t *testing.T) {
			r := newRig(t)
			id := mustCreate(t, r, r.Provider, request("u1"))
			for source, ifaces := range c.set {
				r.host().SetAddresses(provider.Name("u1"), source, ifaces...)
			}
			in, err := r.Get(testContext(t), id)
			require.NoError(t, err)
			if c.want == "" {
				assert.Equal(t, provider.StateProvisioning, in.State)
				return
			}
			assert.Equal(t, provider.StateRunning, in.State)
			assert.Equal(t, c.want, in.Address().String())
		})
	}
}

// TestHungAgent costs a Get its own short deadline and no more, and hinders
// nobody else.
func TestHungAgent(t *testing.T) {
	r := newRig(t)
	id := mustCreate(t, r, r.Provider, request("u1"))
	release := make(chan struct{})
	defer close(release)
	r.host().Before = func(c fakelibvirt.Call) error {
		if c.RPC == "virDomainInterfaceAddresses" {
			<-release
		}
		return nil
	}
	start := time.Now()
	in, err := r.Get(testContext(t), id)
	require.NoError(t, err)
	assert.Equal(t, provider.StateProvisioning, in.State)
	assert.Contains(t, in.Reason, "does not answer")
	assert.Less(t, time.Since(start), time.Second)
}

func TestListByTag(t *testing.T) {
	r := newRig(t, func(c *kvm.Config) {
		c.Hosts = append(c.Hosts, kvm.Host{Name: "kvm2", Address: "local", Bridge: "br0"})
	})
	for i, host := range []string{"kvm1", "kvm1", "kvm2"} {
		req := request(string(rune('a' + i)))
		req.Placement.Zone = host
		if i == 1 {
			req.Tag = "tag-b"
		}
		_, err := r.Create(testContext(t), req)
		require.NoError(t, err)
	}
	require.NoError(t, r.host().Define("<domain type='qemu'><name>somebody-elses</name></domain>"))
	require.NoError(t, r.host().Define("<domain type='qemu'><name>"+provider.Name("stranger")+"</name></domain>"))
	for tag, want := range map[string][]string{"tag-a": {"a", "c"}, "tag-b": {"b"}, "tag-c": {}} {
		l, err := r.ListByTag(testContext(t), tag)
		require.NoError(t, err)
		uids := []string{}
		for _, in := range l {
			uids = append(uids, in.UID)
			assert.Equal(t, tag, in.Tag)
			assert.Equal(t, provider.StateRunning, in.State)
		}
		assert.ElementsMatch(t, want, uids)
	}
}

// TestListIsCheap reads the metadata of what can be ours, once.
func TestListIsCheap(t *testing.T) {
	r := newRig(t)
	const ours = 20
	for i := range ours {
		_, err := r.Create(testContext(t), request(string(rune('a'+i))))
		require.NoError(t, err)
	}
	for i := range 100 {
		require.NoError(t, r.host().Define("<domain type='qemu'><name>other-"+string(rune('A'+i))+"</name></domain>"))
	}
	p := r.again(t)
	r.host().ForgetCalls()
	l, err := p.ListByTag(testContext(t), "tag-a")
	require.NoError(t, err)
	assert.Len(t, l, ours)
	assert.Len(t, r.host().Calls(), ours+2)
	r.host().ForgetCalls()
	_, err = p.ListByTag(testContext(t), "tag-a")
	require.NoError(t, err)
	assert.Len(t, r.host().Calls(), 2)
}

func TestListIsPartial(t *testing.T) {
	r := newRig(t, func(c *kvm.Config) {
		c.Hosts = append(c.Hosts, kvm.Host{Name: "kvm2", Address: "local", Bridge: "br0"})
	})
	req := request("u1")
	req.Placement.Zone = "kvm1"
	_, err := r.Create(testContext(t), req)
	require.NoError(t, err)
	kvm.FailDial(r.Provider, "kvm2", func(context.Context) error { return errors.New("no route") })

	l, err := r.ListByTag(testContext(t), "tag-a")
	assert.Len(t, l, 1)
	var partial *provider.PartialError
	require.ErrorAs(t, err, &partial)
	require.Len(t, partial.Missing, 1)
	assert.Equal(t, "kvm2", partial.Missing[0].Scope)
	require.ErrorIs(t, err, provider.ErrTransient)
}

// TestListTellsUnreadable reports an instance whose metadata cannot be read.
func TestListTellsUnreadable(t *testing.T) {
	r := newRig(t)
	mustCreate(t, r, r.Provider, request("u1"))
	p := r.again(t)
	r.host().Before = failOn("virDomainGetMetadata", errors.New("cut"))
	l, err := p.ListByTag(testContext(t), "tag-a")
	assert.Empty(t, l)
	var partial *provider.PartialError
	require.ErrorAs(t, err, &partial)
	assert.Equal(t, "hosts/kvm1/domains/"+provider.Name("u1"), partial.Missing[0].Scope)
}

// TestSlowHostHarmsNoOther hangs one host.
func TestSlowHostHarmsNoOther(t *testing.T) {
	r := newRig(t, func(c *kvm.Config) {
		c.Hosts = append(c.Hosts, kvm.Host{Name: "kvm2", Address: "local", Bridge: "br0"})
	})
	kvm.FailDial(r.Provider, "kvm2", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := r.ListByTag(ctx, "tag-a")
		done <- err
	}()
	req := request("u1")
	req.Placement.Zone = "kvm1"
	start := time.Now()
	_, err := r.Create(testContext(t), req)
	require.NoError(t, err)
	assert.Less(t, time.Since(start), 250*time.Millisecond)
	require.ErrorIs(t, <-done, context.DeadlineExceeded)
}
