package kvm_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/kvm"
	"github.com/egressfleet/egress/provider"
)

const wholeConfig = `{
  "sshKeyFile": "/etc/egress/id", "knownHostsFile": "/etc/egress/known_hosts", "insecureIgnoreHostKey": false,
  "diskSizeGb": 20, "vendorData": "#cloud-config\n", "installGuestAgent": false, "autostart": false,
  "domainType": "qemu", "cpuModel": "Nehalem",
  "images": {"debian13": {"url": "https://example.com/d.qcow2",
    "sha256": "0000000000000000000000000000000000000000000000000000000000000000", "format": "qcow2", "firmware": "uefi"}},
  "machineTypes": {"small": {"vcpus": 1, "memoryMiB": 1024}},
  "hosts": [{"name": "kvm1", "address": "kvm1.example.com:22", "user": "root", "socket": "/var/run/libvirt/libvirt-sock",
    "pool": "default", "bridge": "br0"},
    {"name": "kvm2", "address": "qemu+ssh://root@kvm2/system", "jump": "gate@bastion:2222", "sshKeyFile": "/k", "knownHostsFile": "/n",
    "keepFreeMiB": -1, "maxInstances": 20, "network": "default", "mtu": 1400,
    "addresses": ["10.0.0.10-10.0.0.99/24", "2001:db8::10-2001:db8::99/64"], "gateways": ["10.0.0.1"], "nameservers": ["10.0.0.1"]},
    {"name": "kvm3", "address": "local", "bridge": "ovs0", "openVSwitch": true, "vlan": 42},
    {"name": "kvm4", "address": "local", "macvtap": "eno1"}],
  "sshAgent": true, "preferIPv6": true,
  "timeouts": {"dial": "5s", "call": "1m", "grace": "3s", "keepalive": "20s", "address": "2s", "place": "2s", "stall": "10s", "imageTakeover": "30s"}
}`

func parseConfig(t *testing.T, text string) kvm.Config {
	t.Helper()
	var c kvm.Config
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	require.NoError(t, d.Decode(&c))
	return c
}

func TestConfigLoads(t *testing.T) {
	c := parseConfig(t, wholeConfig)
	require.NoError(t, c.Validate())
	assert.Equal(t, 20, c.DiskSizeGiB)
	assert.Equal(t, provider.Off, c.InstallGuestAgent)
	assert.Equal(t, provider.Duration(5*time.Second), c.Timeouts.Dial)

	text, err := json.Marshal(c)
	require.NoError(t, err)
	assert.Equal(t, c, parseConfig(t, string(text)))
}

func TestConfigTellsAllProblems(t *testing.T) {
	err := kvm.Config{
		DiskSizeGiB: -1, DomainType: "xen",
		Images: map[string]kvm.Image{
			"a/b": {URL: "https://user:hunter2@/x", SHA256: "12", SHA512: "zz", Format: "vmdk", Firmware: "coreboot"},
		},
		MachineTypes: map[string]kvm.MachineType{"none": {}},
		Hosts: []kvm.Host{
			{Name: "a/b", Address: "h:1:2"}, {Name: "x", Address: "h", User: "u", Bridge: "b", Socket: "rel"}, {Name: "x", Address: "h:22", User: "u", Bridge: "b"},
		},
		Timeouts: kvm.Timeouts{Dial: -1, Stall: provider.Duration(time.Hour)},
	}.Validate()
	for _, want := range []string{
		"sshKeyFile: ", "knownHostsFile: ", "diskSizeGb: -1: ", `domainType: "xen": `,
		`images.a/b: "a/b": `, "images.a/b.url: ", `images.a/b.sha256: "12": `, `images.a/b.sha512: "zz": `, `images.a/b.format: "vmdk": `, `images.a/b.firmware: "coreboot": `,
		"machineTypes.none.vcpus: 0: ", "machineTypes.none.memoryMiB: 0: ",
		`hosts[0].name: "a/b": `, "hosts[0].bridge: ", "hosts[0].user: ", `hosts[0].address: "h:1:2": `, `hosts[1].socket: "rel": `, `hosts[2].name: "x": `,
		"timeouts.dial: -1ns: ", "timeouts.imageTakeover: ",
	} {
		assert.ErrorContains(t, err, want)
	}
	assert.NotContains(t, err.Error(), "hunter2")
	_, err = kvm.New(kvm.Config{})
	assert.ErrorContains(t, err, "hosts: give at least one")
	assert.ErrorContains(t, err, "machineTypes: give at least one")
}

func TestLocalHostsNeedNoSSH(t *testing.T) {
	types := map[string]kvm.MachineType{"s": {VCPUs: 1, MemoryMiB: 512}}
	assert.NoError(t, kvm.Config{MachineTypes: types, Hosts: []kvm.Host{{Name: "here", Address: "local", Bridge: "br0"}}}.Validate())
	assert.NoError(t, kvm.Config{MachineTypes: types, Hosts: []kvm.Host{{Name: "here", Socket: "/run/s", Bridge: "br0"}}}.Validate())
	assert.ErrorContains(t, kvm.Config{MachineTypes: types, Hosts: []kvm.Host{{Name: "here", Bridge: "br0"}}}.Validate(), "hosts[0].address: ")
}

// TestConfigIsCopied checks that nobody can change it afterwards.
func TestConfigIsCopied(t *testing.T) {
	r := newRig(t)
	r.cfg.MachineTypes["small"] = kvm.MachineType{VCPUs: 99, MemoryMiB: 9999}
	r.cfg.Images["debian"] = kvm.Image{URL: "https://example.com/other"}
	r.cfg.Hosts[0].Bridge = "other"
	mustCreate(t, r, r.Provider, request("u1"))
	d, _ := r.host().Domain(provider.Name("u1"))
	assert.EqualValues(t, 1, d.XML.VCPU.Value)
	assert.Equal(t, "br0", d.XML.Devices.Interfaces[0].Source.Bridge.Bridge)
}

func TestOddHostsAreRefused(t *testing.T) {
	good := kvm.Host{Name: "a", Address: "h:22", User: "u", Bridge: "br0"}
	types := map[string]kvm.MachineType{"small": {VCPUs: 1, MemoryMiB: 512}}
	validate := func(h kvm.Host) error {
		return kvm.Config{SSHKeyFile: "k", KnownHostsFile: "k", MachineTypes: types, Hosts: []kvm.Host{h}}.Validate()
	}
	require.NoError(t, validate(good))
	for _, address := range []string{"h:", ":22", "h:99999", "h:-1", "127.0.0.1:0", "h h:22", "u@h:22", "h/x:22"} {
		h := good
		h.Address = address
		assert.ErrorContains(t, validate(h), "hosts[0].address: ", address)
	}
	for field, h := range map[string]kvm.Host{
		"bridge": {Name: "a", Address: "h:22", User: "u", Bridge: "a b/../c"},
		"pool":   {Name: "a", Address: "h:22", User: "u", Bridge: "br0", Pool: "a\nb"},
		"user":   {Name: "a", Address: "h:22", User: "u\n", Bridge: "br0"},
	} {
		assert.ErrorContains(t, validate(h), "hosts[0]."+field+": ", field)
	}
	cfg := kvm.Config{SSHKeyFile: "k", KnownHostsFile: "k", MachineTypes: map[string]kvm.MachineType{"": types["small"]}, Hosts: []kvm.Host{good}}
	assert.ErrorContains(t, cfg.Validate(), "machineTypes: a machine type has no name")
}
