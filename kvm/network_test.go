package kvm_test

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/digitalocean/go-libvirt"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/internal/fakelibvirt"
	"github.com/egressfleet/egress/kvm"
	"github.com/egressfleet/egress/provider"
)

// onNetwork has the rig's host use a network of libvirt.
func onNetwork(c *kvm.Config) { c.Hosts[0].Bridge, c.Hosts[0].Network = "", "nat" }

func TestLibvirtNetwork(t *testing.T) {
	r := newRig(t, onNetwork)
	r.host().SetNetwork("nat", true)
	id := mustCreate(t, r, r.Provider, request("u1"))
	d, _ := r.host().Domain(provider.Name("u1"))
	assert.Equal(t, "nat", d.XML.Devices.Interfaces[0].Source.Network.Network)

	r.host().SetAddresses(provider.Name("u1"), libvirt.DomainInterfaceAddressesSrcLease, libvirt.DomainInterface{
		Addrs: []libvirt.DomainIPAddr{{Addr: "192.168.122.7"}},
	})
	r.host().ForgetCalls()
	in, err := r.Get(testContext(t), id)
	require.NoError(t, err)
	assert.Equal(t, "192.168.122.7", in.Address().String())
	assert.Len(t, r.host().Calls(), 3, "the agent need not be asked: %v", r.host().Calls())
}

func TestNetworkIsChecked(t *testing.T) {
	for _, c := range []struct {
		what  string
		setup func(*fakelibvirt.Host)
		class error
		code  string
		says  string
	}{
		{"missing", func(*fakelibvirt.Host) {}, provider.ErrPermanent, "ErrNoNetwork", "virsh net-define"},
		{"inactive", func(h *fakelibvirt.Host) { h.SetNetwork("nat", false) }, provider.ErrTransient, "NetworkInactive", "virsh net-start nat"},
	} {
		t.Run(c.what, func(t *testing.T) {
			r := newRig(t, onNetwork)
			c.setup(r.host())
			_, err := r.Create(testContext(t), request("u1"))
			require.ErrorIs(t, err, c.class)
			assert.True(t, provider.HasCode(err, c.code), "%v", err)
			assert.ErrorContains(t, err, c.says)
			assert.Empty(t, r.host().DomainNames())
			assert.Empty(t, r.host().Volumes("default"), "nothing is fetched")

			r.host().SetNetwork("nat", true)
			mustCreate(t, r, r.Provider, request("u1"))
		})
	}
}

// TestNetworkStopsLate has the network stop between the check and the start.
func TestNetworkStopsLate(t *testing.T) {
	r := newRig(t, onNetwork)
	r.host().SetNetwork("nat", true)
	r.host().Before = func(c fakelibvirt.Call) error {
		if c.RPC == "virDomainCreate" {
			r.host().SetNetwork("nat", false)
		}
		return nil
	}
	_, err := r.Create(testContext(t), request("u1"))
	require.ErrorIs(t, err, provider.ErrTransient)
	assert.True(t, provider.HasCode(err, "NetworkInactive"), "%v", err)
}

func TestVLANOnAPlainBridge(t *testing.T) {
	r := newRig(t, func(c *kvm.Config) { c.Hosts[0].VLAN = 42 })
	_, err := r.Create(testContext(t), request("u1"))
	require.ErrorIs(t, err, provider.ErrPermanent)
	assert.True(t, provider.HasCode(err, "NoVLAN"), "%v", err)
	assert.ErrorContains(t, err, "openVSwitch: true")
	requireOnlyBase(t, r)

	r = newRig(t, func(c *kvm.Config) { c.Hosts[0].VLAN, c.Hosts[0].OpenVSwitch = 42, true })
	mustCreate(t, r, r.Provider, request("u1"))
}

func TestNetworksAreValidated(t *testing.T) {
	for _, c := range []struct {
		change func(*kvm.Host)
		says   string
	}{
		{func(h *kvm.Host) {}, ""},
		{func(h *kvm.Host) { h.Bridge, h.Network = "", "default" }, ""},
		{func(h *kvm.Host) { h.Bridge, h.Macvtap = "", "eno1" }, ""},
		{func(h *kvm.Host) {
			h.Addresses, h.Gateways = []string{"10.0.0.10/24", "10.0.0.20-10.0.0.29/24"}, []string{"10.0.0.1"}
		}, ""},
		{func(h *kvm.Host) { h.Addresses = []string{"10.0.0.0-10.0.0.1/31"} }, ""},
		{func(h *kvm.Host) {
			h.Addresses, h.Nameservers = []string{"2001:db8::-2001:db8::ffff/64"}, []string{"2001:db8::53"}
		}, ""},

		{func(h *kvm.Host) { h.Bridge = "" }, "hosts[0].bridge: give the network bridge"},
		{func(h *kvm.Host) { h.Network = "default" }, "only one of bridge, network and macvtap"},
		{func(h *kvm.Host) { h.Bridge, h.Network = "", "a/b" }, "hosts[0].network: "},
		{func(h *kvm.Host) { h.Bridge, h.Macvtap = "", "a b" }, "hosts[0].macvtap: "},
		{func(h *kvm.Host) { h.Bridge, h.Network, h.OpenVSwitch = "", "default", true }, "hosts[0].openVSwitch: "},
		{func(h *kvm.Host) { h.VLAN = 4095 }, "hosts[0].vlan: 4095: "},
		{func(h *kvm.Host) { h.Bridge, h.Network, h.VLAN = "", "default", 5 }, "the network's own definition"},
		{func(h *kvm.Host) { h.Bridge, h.Macvtap, h.VLAN = "", "eno1", 5 }, "ip link add link eno1 name eno1.5 type vlan id 5"},
		{func(h *kvm.Host) { h.MTU = 50 }, "hosts[0].mtu: 50: "},
		{func(h *kvm.Host) { h.Bridge, h.Macvtap, h.MTU = "", "eno1", 1400 }, "does not work with macvtap"},
		{func(h *kvm.Host) { h.MaxInstances = -1 }, "hosts[0].maxInstances: -1: "},
		{func(h *kvm.Host) { h.Addresses = []string{"10.0.0.10-10.0.0.99"} }, `hosts[0].addresses[0]: "10.0.0.10-10.0.0.99": must be a range`},
		{func(h *kvm.Host) { h.Addresses = []string{"10.0.0.10-2001:db8::1/24"} }, "ends outside of the network 10.0.0.0/24"},
		{func(h *kvm.Host) { h.Addresses = []string{"10.0.0.10-10.0.1.9/24"} }, "ends outside"},
		{func(h *kvm.Host) { h.Addresses = []string{"10.0.0.99-10.0.0.10/24"} }, "ends before it begins"},
		{func(h *kvm.Host) { h.Addresses = []string{"10.0.0.0-10.0.0.10/24"} }, "not for hosts"},
		{func(h *kvm.Host) { h.Addresses = []string{"10.0.0.10-10.0.0.255/24"} }, "not for hosts"},
		{func(h *kvm.Host) { h.Addresses = []string{"127.0.0.1-127.0.0.9/8"} }, "no host can have"},
		{func(h *kvm.Host) { h.Addresses = []string{"x"} }, "must be a range"},
		{func(h *kvm.Host) { h.Addresses = []string{"10.0.0.10-10.0.0.20/24", "10.0.0.20-10.0.0.30/24"} }, `hosts[0].addresses[1]: "10.0.0.20-10.0.0.30/24": overlaps`},
		{func(h *kvm.Host) { h.Gateways = []string{"10.0.0.1"} }, "hosts[0].addresses: give the range"},
		{func(h *kvm.Host) { h.Addresses, h.Gateways = []string{"10.0.0.10/24"}, []string{"10.0.1.1"} }, `hosts[0].gateways[0]: "10.0.1.1": lies in none`},
		{func(h *kvm.Host) {
			h.Addresses, h.Gateways = []string{"10.0.0.10/24"}, []string{"10.0.0.1", "10.0.0.2"}
		}, "a second one of its family"},
		{func(h *kvm.Host) { h.Addresses, h.Nameservers = []string{"10.0.0.10/24"}, []string{"dns"} }, "hosts[0].nameservers[0]: "},
	} {
		h := kvm.Host{Name: "a", Address: "local", Bridge: "br0"}
		c.change(&h)
		err := kvm.Config{MachineTypes: map[string]kvm.MachineType{"s": {VCPUs: 1, MemoryMiB: 64}}, Hosts: []kvm.Host{h}}.Validate()
		if c.says == "" {
			assert.NoError(t, err, "%+v", h)
			continue
		}
		assert.ErrorContains(t, err, c.says, "%+v", h)
	}
}

// static gives the rig's host three addresses of IPv4, of which one is the
// gateway's, and more of IPv6.
func static(c *kvm.Config) {
	h := &c.Hosts[0]
	h.Addresses = []string{"2001:db8::10-2001:db8::1f/64", "10.0.0.10-10.0.0.12/24"}
	h.Gateways, h.Nameservers, h.MTU = []string{"10.0.0.11"}, []string{"10.0.0.53"}, 1400
}

func TestStaticAddresses(t *testing.T) {
	r := newRig(t, static)
	id := mustCreate(t, r, r.Provider, request("u1"))
	in, err := r.Get(testContext(t), id)
	require.NoError(t, err)
	assert.Equal(t, provider.StateRunning, in.State, "no agent is needed")
	require.Len(t, in.Addresses, 2)
	assert.True(t, in.Addresses[0].Addr.Is4(), "IPv4 first")
	assert.NotContains(t, r.host().Calls(), "virDomainInterfaceAddresses")

	d, _ := r.host().Domain(provider.Name("u1"))
	seed := string(d.Seed)
	for _, want := range []string{
		"macaddress: \"" + d.XML.Devices.Interfaces[0].MAC.Address, "dhcp4: false", "mtu: 1400", "10.0.0.53",
		in.Addresses[0].Addr.String() + "/24", in.Addresses[1].Addr.String() + "/64", "via: \"10.0.0.11\"",
	} {
		assert.Contains(t, seed, want)
	}

	second := mustCreate(t, r, r.Provider, request("u2"))
	other, err := r.again(t).Get(testContext(t), second)
	require.NoError(t, err)
	assert.NotEqual(t, in.Address(), other.Address())
	for _, a := range []provider.Instance{in, other} {
		assert.NotEqual(t, "10.0.0.11", a.Address().String(), "the gateway's")
	}

	_, err = r.Create(testContext(t), request("u3"))
	require.ErrorIs(t, err, provider.ErrQuotaExceeded)
	assert.True(t, provider.HasCode(err, "AddressesExhausted"), "%v", err)
	assert.ErrorContains(t, err, "all 2 addresses of 10.0.0.10-10.0.0.12/24")
	assert.Len(t, r.host().DomainNames(), 2)

	require.NoError(t, r.Delete(testContext(t), id))
	third := mustCreate(t, r, r.again(t), request("u3"))
	reused, err := r.Get(testContext(t), third)
	require.NoError(t, err)
	assert.Equal(t, in.Address(), reused.Address(), "the one that is free again")
}

func TestPreferIPv6(t *testing.T) {
	r := newRig(t, static, func(c *kvm.Config) { c.PreferIPv6 = true })
	in, err := r.Get(testContext(t), mustCreate(t, r, r.Provider, request("u1")))
	require.NoError(t, err)
	assert.True(t, in.Address().Is6())
}

// TestStaticAddressStays gives a Create that resumes what the first one chose.
func TestStaticAddressStays(t *testing.T) {
	r := newRig(t, static)
	r.host().Before = noSeeds
	_, err := r.Create(testContext(t), request("u1"))
	require.ErrorIs(t, err, provider.ErrTransient)
	first := addressesOf(t, r, "u1")
	require.Len(t, first, 2)
	r.host().Before = nil
	mustCreate(t, r, r.again(t), request("u1"))
	assert.Equal(t, first, addressesOf(t, r, "u1"))

	// One whose range was corrected meanwhile gets another.
	r.host().Before = noSeeds
	_, err = r.Create(testContext(t), request("u2"))
	require.Error(t, err)
	r.host().Before = nil
	r.cfg.Hosts[0].Addresses, r.cfg.Hosts[0].Gateways = []string{"10.0.9.10-10.0.9.99/24"}, nil
	mustCreate(t, r, r.again(t), request("u2"))
	got := addressesOf(t, r, "u2")
	require.Len(t, got, 1)
	assert.True(t, netip.MustParsePrefix("10.0.9.0/24").Contains(got[0].Addr()))
}

// noSeeds fails the upload of seeds.
func noSeeds(c fakelibvirt.Call) error {
	if c.RPC == "virStorageVolUpload" && strings.HasSuffix(c.Object, "-seed.iso") {
		return fakelibvirt.Errorf(libvirt.ErrInternalError, "cut")
	}
	return nil
}

// addressesOf reads the metadata of a domain.
func addressesOf(t *testing.T, r *rig, uid string) []netip.Prefix {
	t.Helper()
	return recordOf(t, r, provider.Name(uid)).Addresses
}

// TestStaticAddressesAreUnique has many Creates at once, of one process and of
// several, share a range: no two get one address.
func TestStaticAddressesAreUnique(t *testing.T) {
	const each = 8
	r := newRig(t, func(c *kvm.Config) {
		c.Hosts[0].Addresses = []string{"10.0.0.1-10.0.0.30/24"}
		c.Timeouts.Grace = provider.Duration(5 * time.Second)
	})
	mustCreate(t, r, r.Provider, request("warm"))
	var work sync.WaitGroup
	for n, p := range []*kvm.Provider{r.Provider, r.again(t), r.again(t)} {
		for i := range each {
			work.Go(func() {
				uid := fmt.Sprintf("u-%d-%d", n, i)
				assert.Eventually(t, func() bool {
					_, err := p.Create(testContext(t), request(uid))
					return err == nil // else a conflict that another try heals
				}, 20*time.Second, time.Millisecond)
			})
		}
	}
	work.Wait()
	owners := map[netip.Prefix]string{}
	for _, name := range r.host().DomainNames() {
		d, _ := r.host().Domain(name)
		for _, a := range recordOf(t, r, name).Addresses {
			assert.Empty(t, owners[a], "%s has two", a)
			owners[a] = name
		}
		assert.Contains(t, string(d.Seed), recordOf(t, r, name).Addresses[0].String(), "the guest was told the same")
	}
	assert.Len(t, owners, 3*each+1)
}

func recordOf(t *testing.T, r *rig, name string) kvm.Record {
	t.Helper()
	conn := r.host().Connect()
	dom, err := conn.DomainLookupByName(name)
	require.NoError(t, err)
	text, err := conn.DomainGetMetadata(dom, int32(libvirt.DomainMetadataElement), libvirt.OptString{kvm.MetadataURI}, 0)
	require.NoError(t, err)
	record, err := kvm.ParseRecord(text)
	require.NoError(t, err)
	return record
}

// TestStaticAddressConflict has another process take the chosen address at the
// same moment: this one takes another.
func TestStaticAddressConflict(t *testing.T) {
	r := newRig(t, static)
	mustCreate(t, r, r.Provider, request("warm"))
	rival := provider.Name("rival")
	var stolen netip.Prefix
	r.host().After = func(c fakelibvirt.Call) error {
		if c.RPC != "virDomainDefineXMLFlags" || c.Object == rival || stolen.IsValid() {
			return nil
		}
		stolen = addressesOf(t, r, "u1")[1]
		element, err := kvm.Record{Tag: "tag-b", UID: "rival", Stage: "making", Created: time.Now(), Addresses: []netip.Prefix{stolen}}.Element()
		require.NoError(t, err)
		return r.host().Define("<domain type='qemu'><name>" + rival + "</name><metadata>" + element + "</metadata></domain>")
	}
	mustCreate(t, r, r.Provider, request("u1"))
	assert.NotEqual(t, stolen, addressesOf(t, r, "u1")[1])
}

// TestStaticAddressesAndStrangers reads no address of what is not ours, and
// does not choose while an instance cannot be read.
func TestStaticAddressesAndStrangers(t *testing.T) {
	r := newRig(t, static)
	require.NoError(t, r.host().Define("<domain type='qemu'><name>"+provider.Name("x")+"</name></domain>"))
	mustCreate(t, r, r.Provider, request("u1"))
	p := r.again(t)
	r.host().Before = func(c fakelibvirt.Call) error {
		if c.RPC == "virDomainGetMetadata" && c.Object == provider.Name("u1") {
			return fakelibvirt.Errorf(libvirt.ErrInternalError, "busy")
		}
		return nil
	}
	_, err := p.Create(testContext(t), request("u2"))
	require.ErrorIs(t, err, provider.ErrTransient)
	assert.NotContains(t, r.host().DomainNames(), provider.Name("u2"))
}

// TestRanges counts addresses and finds each, also where a range crosses the
// middle of IPv6, and counts no more than can ever be used.
func TestRanges(t *testing.T) {
	for text, want := range map[string]uint64{
		"10.0.0.10/24":                                        1,
		"10.0.0.10-10.0.1.9/16":                               256,
		"2001:db8::fff0-2001:db8::1:000f/64":                  32,
		"2001:db8:0:0:ffff:ffff:ffff:fffe-2001:db8:0:1::3/48": 6,
		"2001:db8::-2001:db8::ffff:ffff:ffff:ffff/64":         1<<31 - 1,
		"2001:db8::-2001:db8:ffff::/32":                       1<<31 - 1,
	} {
		size, first, last, err := kvm.ParseRange(text)
		require.NoError(t, err, text)
		assert.Equal(t, want, size, text)
		from, to, ok := strings.Cut(text, "-")
		from, _, _ = strings.Cut(from, "/")
		assert.Equal(t, netip.MustParseAddr(from), first.Addr(), text)
		if ok && want < 1<<30 {
			to, _, _ = strings.Cut(to, "/")
			assert.Equal(t, netip.MustParseAddr(to), last.Addr(), text)
		}
	}
}

// TestDualStack reports all addresses, IPv4 first unless IPv6 is preferred.
func TestDualStack(t *testing.T) {
	for _, prefer := range []bool{false, true} {
		r := newRig(t, func(c *kvm.Config) { c.PreferIPv6 = prefer })
		id := mustCreate(t, r, r.Provider, request("u1"))
		r.host().SetAddresses(provider.Name("u1"), libvirt.DomainInterfaceAddressesSrcAgent, libvirt.DomainInterface{
			Addrs: []libvirt.DomainIPAddr{{Addr: "2001:db8::2"}, {Addr: "10.0.0.5"}, {Addr: "2001:db8::1"}},
		})
		in, err := r.Get(context.Background(), id)
		require.NoError(t, err)
		var got []string
		for _, a := range in.Addresses {
			got = append(got, a.Addr.String())
		}
		want := []string{"10.0.0.5", "2001:db8::2", "2001:db8::1"}
		if prefer {
			want = []string{"2001:db8::2", "2001:db8::1", "10.0.0.5"}
		}
		assert.Equal(t, want, got)
	}
}
