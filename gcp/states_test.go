package gcp_test

import (
	"maps"
	"net/netip"
	"slices"
	"testing"

	"cloud.google.com/go/compute/apiv1/computepb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/egressfleet/egress/gcp"
	"github.com/egressfleet/egress/provider"
)

func TestStates(t *testing.T) {
	for status, want := range map[string]provider.State{
		"PENDING": provider.StateProvisioning, "PROVISIONING": provider.StateProvisioning, "STAGING": provider.StateProvisioning,
		"RUNNING":      provider.StateRunning,
		"PENDING_STOP": provider.StateStopping, "STOPPING": provider.StateStopping, "SUSPENDING": provider.StateStopping, "DEPROVISIONING": provider.StateStopping,
		"STOPPED": provider.StateStopped, "TERMINATED": provider.StateStopped, "SUSPENDED": provider.StateStopped,
		"REPAIRING": provider.StateUnknown, "": provider.StateUnknown, "SOMETHING_NEW": provider.StateUnknown,
	} {
		t.Run(status, func(t *testing.T) {
			r := newRig(t, nil)
			id, err := r.Create(t.Context(), request("uid-1"))
			require.NoError(t, err)
			in, err := r.Get(t.Context(), id)
			require.NoError(t, err)
			require.Equal(t, provider.StateRunning, in.State)
			if status != "" && status != "SOMETHING_NEW" { // which the server has not
				r.server.SetStatus(zoneA, nameOf(id), status)
				in, err = r.Get(t.Context(), id)
				require.NoError(t, err)
				assert.Equal(t, want, in.State)
				if want != provider.StateRunning {
					assert.Equal(t, status, in.Reason)
				}
				return
			}
			assert.Equal(t, want, gcp.InstanceOf(&computepb.Instance{Status: &status}).State)
		})
	}
}

// A state that Google adds must be thought about.
func TestEveryStateOfTheAPIIsMapped(t *testing.T) {
	var theirs []string
	for status := range computepb.Instance_Status_value {
		if status != "UNDEFINED_STATUS" {
			theirs = append(theirs, status)
		}
	}
	assert.ElementsMatch(t, theirs, slices.Collect(maps.Keys(gcp.States)))
}

func nic(change func(*computepb.NetworkInterface)) *computepb.Instance {
	n := &computepb.NetworkInterface{NetworkIP: proto.String("10.0.0.2")}
	change(n)
	return &computepb.Instance{Status: proto.String("RUNNING"), NetworkInterfaces: []*computepb.NetworkInterface{n}}
}

func TestAddresses(t *testing.T) {
	access := func(field *[]*computepb.AccessConfig, v4, v6 string) {
		c := &computepb.AccessConfig{}
		if v4 != "" {
			c.NatIP = &v4
		}
		if v6 != "" {
			c.ExternalIpv6 = &v6
		}
		*field = append(*field, c)
	}
	for name, c := range map[string]struct {
		in    *computepb.Instance
		state provider.State
		want  []string
	}{
		"internal alone":     {nic(func(*computepb.NetworkInterface) {}), provider.StateRunning, []string{"10.0.0.2"}},
		"external":           {nic(func(n *computepb.NetworkInterface) { access(&n.AccessConfigs, "203.0.113.9", "") }), provider.StateRunning, []string{"203.0.113.9", "10.0.0.2"}},
		"external that lags": {nic(func(n *computepb.NetworkInterface) { access(&n.AccessConfigs, "", "") }), provider.StateProvisioning, []string{"10.0.0.2"}},
		"external of both": {nic(func(n *computepb.NetworkInterface) {
			access(&n.AccessConfigs, "203.0.113.9", "")
			access(&n.Ipv6AccessConfigs, "", "2001:db8::1")
		}), provider.StateRunning, []string{"203.0.113.9", "2001:db8::1", "10.0.0.2"}},
		"internal IPv6":            {nic(func(n *computepb.NetworkInterface) { n.Ipv6Address = proto.String("fd20::2") }), provider.StateRunning, []string{"10.0.0.2", "fd20::2"}},
		"no interface, no address": {&computepb.Instance{Status: proto.String("RUNNING")}, provider.StateProvisioning, nil},
	} {
		t.Run(name, func(t *testing.T) {
			in := gcp.InstanceOf(c.in)
			assert.Equal(t, c.state, in.State)
			var got []string
			for _, a := range in.Addresses {
				got = append(got, a.Addr.String())
			}
			assert.Equal(t, c.want, got)
			if len(c.want) > 0 {
				assert.Equal(t, netip.MustParseAddr(c.want[0]), in.Address())
			}
		})
	}
}
