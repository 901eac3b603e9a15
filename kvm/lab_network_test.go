package kvm_test

import (
	"context"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"libvirt.org/go/libvirtxml"

	"github.com/egressfleet/egress/kvm"
	"github.com/egressfleet/egress/provider"
)

// labNetwork is a network of libvirt with DHCP and no way out.
const labNetwork = `<network>
  <name>egress-labnet</name>
  <bridge name='virbr-egress'/>
  <ip address='10.253.77.1' netmask='255.255.255.0'>
    <dhcp><range start='10.253.77.50' end='10.253.77.99'/></dhcp>
  </ip>
</network>`

// TestLabNetwork has a guest's firmware ask for an address on a network of
// libvirt, whose lease tells it, and then has the network stop and go.
func TestLabNetwork(t *testing.T) {
	l := newLab(t, func(c *kvm.Config) {
		c.Hosts[0].Bridge, c.Hosts[0].Network, c.Hosts[0].MTU = "", "egress-labnet", 1400
		c.MachineTypes["blank"] = kvm.MachineType{VCPUs: 1, MemoryMiB: 256}
		c.AmendDomain = func(d *libvirtxml.Domain) error {
			d.OS.BootDevices = append(d.OS.BootDevices, libvirtxml.DomainBootDevice{Dev: "network"})
			return nil
		}
	})
	l.blank(t, "labnet", 1<<30+1<<20)
	req := labRequest("lab-net", "lab-tag-net")
	_, err := l.Create(labContext(t), req)
	require.ErrorIs(t, err, provider.ErrPermanent)
	assert.True(t, provider.HasCode(err, "ErrNoNetwork"), "%v", err)

	remove, err := kvm.StartNetwork(labContext(t), l.Provider, "lab", labNetwork)
	if err != nil {
		t.Skipf("the host cannot have a network of libvirt: %v", err)
	}
	t.Cleanup(remove)
	id, err := l.Create(labContext(t), req)
	t.Cleanup(func() { _ = l.Delete(context.Background(), id) })
	require.NoError(t, err)
	start := time.Now()
	in, err := provider.WaitRunning(labContext(t), l, id, provider.WaitOptions{})
	require.NoError(t, err)
	t.Logf("lease %s after %s", in.Address(), time.Since(start))
	assert.True(t, netip.MustParsePrefix("10.253.77.0/24").Contains(in.Address()))
	require.NoError(t, l.Delete(labContext(t), id))

	require.NoError(t, kvm.StopNetwork(labContext(t), l.Provider, "lab", "egress-labnet"))
	_, err = l.Create(labContext(t), req)
	require.ErrorIs(t, err, provider.ErrTransient)
	assert.True(t, provider.HasCode(err, "NetworkInactive"), "%v", err)
	assert.Empty(t, l.volumesOf(t, provider.Name(req.UID)))
}

// TestLabCards has the host accept or refuse what a card is attached to, and
// tells which of the two it was.
func TestLabCards(t *testing.T) {
	for what, c := range map[string]struct {
		change func(*kvm.Host)
		code   string // empty where it starts
	}{
		"mtu":              {func(h *kvm.Host) { h.MTU = 1400 }, ""},
		"no bridge":        {func(h *kvm.Host) { h.Bridge = "egress-nobr" }, "NoBridge"},
		"no interface":     {func(h *kvm.Host) { h.Bridge, h.Macvtap = "", "egress-noif" }, "NoBridge"},
		"no open vswitch":  {func(h *kvm.Host) { h.OpenVSwitch = true }, "any"},
		"vlan on a bridge": {func(h *kvm.Host) { h.VLAN = 42 }, "NoVLAN"},
	} {
		t.Run(what, func(t *testing.T) {
			l := newLab(t, func(cfg *kvm.Config) { c.change(&cfg.Hosts[0]) })
			l.blank(t, "labcard", 1<<30+1<<20)
			req := labRequest("lab-card", "lab-tag-card")
			id, err := l.Create(labContext(t), req)
			t.Cleanup(func() { assert.NoError(t, l.Delete(context.Background(), id)) })
			t.Logf("%v", err)
			switch c.code {
			case "":
				require.NoError(t, err)
			case "any":
				require.Error(t, err)
			case "NoVLAN":
				if err == nil {
					t.Skip("this libvirt can")
				}
				fallthrough
			default:
				require.ErrorIs(t, err, provider.ErrPermanent)
				assert.True(t, provider.HasCode(err, c.code), "%v", err)
				assert.Empty(t, l.volumesOf(t, provider.Name(req.UID)), "nothing is left")
			}
		})
	}
}

// TestLabStaticAddresses has Creates of two processes share a range.
func TestLabStaticAddresses(t *testing.T) {
	l := newLab(t, func(c *kvm.Config) { c.Hosts[0].Addresses = []string{"10.77.0.10-10.77.0.13/24"} })
	l.blank(t, "labstatic", 1<<30+1<<20)
	var mu sync.Mutex
	var ids []string
	t.Cleanup(func() {
		for _, id := range ids {
			assert.NoError(t, l.Delete(context.Background(), id))
		}
	})
	var work sync.WaitGroup
	for i, p := range []*kvm.Provider{l.Provider, l.Provider, l.again(t), l.again(t)} {
		work.Go(func() {
			id, err := p.Create(labContext(t), labRequest("lab-static-"+strconv.Itoa(i), "lab-tag-static"))
			assert.NoError(t, err)
			mu.Lock()
			defer mu.Unlock()
			ids = append(ids, id)
		})
	}
	work.Wait()
	seen := map[netip.Addr]bool{}
	for _, id := range ids {
		in, err := l.again(t).Get(labContext(t), id)
		require.NoError(t, err)
		assert.Equal(t, provider.StateRunning, in.State)
		seen[in.Address()] = true
	}
	assert.Len(t, seen, 4)
	_, err := l.Create(labContext(t), labRequest("lab-static-5", "lab-tag-static"))
	require.ErrorIs(t, err, provider.ErrQuotaExceeded)
	assert.True(t, provider.HasCode(err, "AddressesExhausted"), "%v", err)
}

// TestLabRoom asks the host for more than it has, and places what it has.
func TestLabRoom(t *testing.T) {
	l := newLab(t, func(c *kvm.Config) {
		c.MachineTypes["huge"] = kvm.MachineType{VCPUs: 1, MemoryMiB: 16 << 20}
		c.Hosts = append(c.Hosts, c.Hosts[0])
		c.Hosts[1].Name, c.Hosts[1].KeepFreeMiB = "full", 1<<30
	})
	l.blank(t, "labroom", 1<<30+1<<20)
	req := labRequest("lab-room", "lab-tag-room")
	got, err := l.Place(labContext(t), provider.PlaceRequest{UID: req.UID, Placement: req.Placement})
	require.NoError(t, err)
	assert.Equal(t, provider.Placement{Zone: "lab", MachineType: "blank", Image: "labroom"}, got)

	for code, place := range map[string]provider.Placement{
		"NoMemory": {Zone: "lab", MachineType: "huge"}, "NoSpace": {Zone: "full", MachineType: "blank"},
	} {
		req.Placement = place
		_, err := l.Create(labContext(t), req)
		require.ErrorIs(t, err, provider.ErrQuotaExceeded)
		assert.True(t, provider.HasCode(err, code), "%v", err)
		t.Log(err)
		_, err = l.Place(labContext(t), provider.PlaceRequest{UID: req.UID, Placement: place})
		require.ErrorIs(t, err, provider.ErrQuotaExceeded)
	}
	assert.Empty(t, l.volumesOf(t, "base-labroom-", provider.Name(req.UID)), "nothing was fetched")
}

// TestLabFullStaticBoot boots a guest with a static address, through a jump host,
// and reaches it there.
func TestLabFullStaticBoot(t *testing.T) {
	url := os.Getenv("KVM_TEST_IMAGE_URL")
	if url == "" || os.Getenv("EGRESS_LAB_FULL") == "" {
		t.Skip("boots one more guest: make lab-test FULL=1")
	}
	if !strings.HasPrefix(url, "http://10.77.0.1:") {
		t.Skip("knows the addresses of the lab only")
	}
	const address = "10.77.0.20"
	l := newLab(t, func(c *kvm.Config) {
		h := &c.Hosts[0]
		c.Images = map[string]kvm.Image{"lab": {URL: url, SHA256: os.Getenv("KVM_TEST_IMAGE_SHA256")}}
		h.Addresses, h.Nameservers = []string{address + "/24"}, []string{"10.77.0.1"}
		if h.Address != "local" {
			h.Jump = h.User + "@" + h.Address
		}
		c.Timeouts = kvm.Timeouts{}
	})
	ctx, cancel := context.WithTimeout(t.Context(), labTimeout(t))
	defer cancel()
	start := time.Now()
	id, err := l.Create(ctx, provider.CreateRequest{
		UID: "lab-static-boot-" + strconv.Itoa(os.Getpid()), Tag: labTag("lab-tag-static-boot"), UserData: provider.UserData(bootUserData),
		Placement: provider.Placement{MachineType: "small"},
	})
	t.Cleanup(func() { _ = l.Delete(context.Background(), id) })
	require.NoError(t, err)
	in, err := l.Get(ctx, id)
	require.NoError(t, err)
	require.Equal(t, address, in.Address().String())
	waitTCP(t, ctx, net.JoinHostPort(address, "22"))
	t.Logf("TCP after %s", time.Since(start))
	assert.Equal(t, bootUserData, fetchUserData(t, ctx, "http://"+net.JoinHostPort(address, "8099")+"/user-data.txt"))
}
