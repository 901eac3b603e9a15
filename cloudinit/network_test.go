package cloudinit_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/cloudinit"
)

// fullNetwork uses every field.
func fullNetwork() cloudinit.Network {
	return cloudinit.Network{Interfaces: []cloudinit.Interface{
		{MAC: "52:54:00:AA:00:01"},
		{
			MAC: "52:54:00:aa:00:02", Name: "lan0", DHCP6: true, MTU: 1400,
			Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.10/24"), netip.MustParsePrefix("2001:db8::10/64")},
			Gateways:  []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")},
			Routes: []cloudinit.Route{{
				To: netip.MustParsePrefix("198.51.100.7/24"), Via: netip.MustParseAddr("203.0.113.1"), Metric: 100, OnLink: true,
			}},
			Nameservers: []netip.Addr{netip.MustParseAddr("192.0.2.53"), netip.MustParseAddr("2001:db8::53")},
			Search:      []string{"no", "example.com"},
		},
	}}
}

func TestNetworkGolden(t *testing.T) {
	doc, err := fullNetwork().YAML()
	require.NoError(t, err)
	golden(t, "network-config.yaml", doc)
}

func TestNetworkOfNothingIsEmpty(t *testing.T) {
	doc, err := cloudinit.Network{}.YAML()
	require.NoError(t, err)
	assert.Empty(t, doc, "so that a seed leaves the file out")
}

func TestNetworkThroughCloudInit(t *testing.T) {
	doc, err := fullNetwork().YAML()
	require.NoError(t, err)
	var units map[string]string
	cloudInitPython(t, &units, `
import json, os, sys, yaml
from cloudinit.net import networkd, network_state
state = network_state.parse_net_config_data(yaml.safe_load(open(sys.argv[1])))
renderer = networkd.Renderer({"network_conf_dir": "/etc/systemd/network/", "resolve_conf_fn": "/etc/resolv.conf"})
networkd.util.chownbyname = lambda *args, **kwargs: None
renderer.render_network_state(state, target=sys.argv[2])
found = {}
for directory, _, names in os.walk(sys.argv[2]):
    for name in names:
        found[name] = open(os.path.join(directory, name)).read()
print(json.dumps(found))
`, tempFile(t, "network-config", doc), t.TempDir())
	all := ""
	for _, content := range units {
		all += content
	}
	for _, want := range []string{
		"MACAddress=52:54:00:aa:00:01", "DHCP=ipv4", "MACAddress=52:54:00:aa:00:02",
		"Address=192.0.2.10/24", "Address=2001:db8::10/64", "Gateway=192.0.2.1", "Gateway=2001:db8::1",
		"DNS=192.0.2.53", "Domains=no example.com",
	} {
		assert.Contains(t, all, want)
	}
}

func TestNetworkValidate(t *testing.T) {
	err := cloudinit.Network{Interfaces: []cloudinit.Interface{
		{MAC: "52:54:00:aa:00:01"},
		{MAC: "52:54:00:AA:00:01", Name: "much-too-long-a-name", MTU: 9, Search: []string{"a b"}},
		{
			Addresses: make([]netip.Prefix, 1), Nameservers: make([]netip.Addr, 1),
			Gateways: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), {}},
			Routes: []cloudinit.Route{
				{Metric: -1},
				{To: netip.MustParsePrefix("2001:db8::/64"), Via: netip.MustParseAddr("192.0.2.1")},
			},
		},
	}}.Validate()
	require.Error(t, err)
	golden(t, "network.errors.txt", []byte(err.Error()+"\n"))
	assert.Len(t, strings.Split(err.Error(), "\n"), 13)
}
