package kvm_test

import (
	"flag"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/internal/fakelibvirt"
	"github.com/egressfleet/egress/kvm"
	"github.com/egressfleet/egress/provider"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(got+"\n"), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, string(want), got+"\n", "run with -update if the change is meant")
}

var sampleRecord = kvm.Record{
	Tag: "tag-a", UID: "uid-1", Stage: "making", MAC: "52:54:12:34:56:78",
	Created: time.Date(2026, 11, 30, 12, 0, 0, 5000, time.UTC), Metadata: map[string]string{"port": "3128", "hash": "a\nb"},
}

func sampleSpec(t *testing.T) kvm.DomainSpec {
	t.Helper()
	element, err := sampleRecord.Element()
	require.NoError(t, err)
	name := provider.Name("uid-1")
	return kvm.DomainSpec{
		Name:       name,
		Hypervisor: kvm.Hypervisor{Type: "kvm", Arch: "x86_64", Machine: "q35", Emulator: "/usr/bin/qemu-system-x86_64"},
		Machine:    kvm.MachineType{VCPUs: 2, MemoryMiB: 1024}, Firmware: "uefi",
		Disk: "/var/lib/libvirt/images/" + name + ".qcow2", Seed: "/var/lib/libvirt/images/" + name + "-seed.iso",
		Bridge: "br0", MAC: sampleRecord.MAC, ConsoleLog: "/var/log/libvirt/qemu/" + name + "-console.log", Metadata: element,
	}
}

func TestDomainXML(t *testing.T) {
	for file, change := range map[string]func(*kvm.DomainSpec){
		"domain-kvm-uefi.xml": func(*kvm.DomainSpec) {},
		"domain-qemu-bios.xml": func(s *kvm.DomainSpec) {
			s.Hypervisor.Type, s.Firmware, s.UUID = "qemu", "bios", "11111111-2222-3333-4444-555555555555"
		},
		"domain-cpu-model.xml": func(s *kvm.DomainSpec) { s.CPUModel, s.ConsoleLog = "Nehalem", "" },
		"domain-aarch64.xml": func(s *kvm.DomainSpec) {
			s.Hypervisor = kvm.Hypervisor{Type: "qemu", Arch: "aarch64", Machine: "virt", Emulator: "/usr/bin/qemu-system-aarch64"}
		},
		"domain-aarch64-kvm.xml": func(s *kvm.DomainSpec) {
			s.Hypervisor = kvm.Hypervisor{Type: "kvm", Arch: "aarch64", Machine: "virt", Emulator: "/usr/bin/qemu-system-aarch64"}
		},
		"domain-network.xml":  func(s *kvm.DomainSpec) { s.Bridge, s.Network, s.MTU = "", "default", 1400 },
		"domain-macvtap.xml":  func(s *kvm.DomainSpec) { s.Bridge, s.Macvtap = "", "eno1" },
		"domain-ovs-vlan.xml": func(s *kvm.DomainSpec) { s.Bridge, s.OpenVSwitch, s.VLAN = "ovsbr0", true, 42 },
		"domain-static.xml": func(s *kvm.DomainSpec) {
			r := sampleRecord
			r.Addresses = []netip.Prefix{netip.MustParsePrefix("10.0.0.10/24"), netip.MustParsePrefix("2001:db8::10/64")}
			element, err := r.Element()
			require.NoError(t, err)
			s.Metadata = element
		},
	} {
		spec := sampleSpec(t)
		change(&spec)
		text, err := spec.Domain().Marshal()
		require.NoError(t, err)
		golden(t, file, text)
		assert.NotContains(t, text, "type='volume'")
	}
}

// TestDomainsAreValid checks the golden files against libvirt's own schema.
func TestDomainsAreValid(t *testing.T) {
	const schema = "/usr/share/libvirt/schemas/domain.rng"
	lint, err := exec.LookPath("xmllint")
	if _, schemaErr := os.Stat(schema); err != nil || schemaErr != nil {
		t.Skip("needs xmllint and " + schema + ": apt-get install libxml2-utils libvirt-clients")
	}
	files, err := filepath.Glob("testdata/domain-*.xml")
	require.NoError(t, err)
	require.Greater(t, len(files), 5)
	out, err := exec.Command(lint, append([]string{"--noout", "--relaxng", schema}, files...)...).CombinedOutput()
	assert.NoError(t, err, "%s", out)
}

func TestOverlayXML(t *testing.T) {
	text, err := kvm.OverlaySpec{Name: "x.qcow2", CapacityBytes: 10 << 30, Base: "/p/base.raw", BaseFormat: "raw"}.Volume().Marshal()
	require.NoError(t, err)
	golden(t, "overlay.xml", text)
}

func TestHypervisorFromCapabilities(t *testing.T) {
	h, err := kvm.ParseHypervisor(fakelibvirt.WithKVM, "auto")
	require.NoError(t, err)
	assert.Equal(t, kvm.Hypervisor{Type: "kvm", Arch: "x86_64", Machine: "q35", Emulator: "/usr/bin/qemu-system-x86_64"}, h)
	h, err = kvm.ParseHypervisor(fakelibvirt.WithKVM, "qemu")
	require.NoError(t, err)
	assert.Equal(t, "qemu", h.Type)
	_, err = kvm.ParseHypervisor("<capabilities><host><cpu><arch>x86_64</arch></cpu></host></capabilities>", "kvm")
	require.ErrorIs(t, err, provider.ErrPermanent)
	assert.ErrorContains(t, err, "/dev/kvm")
	_, err = kvm.ParseHypervisor("<capabilities><host><cpu><arch>x86_64</arch></cpu></host></capabilities>", "auto")
	assert.ErrorContains(t, err, "no QEMU for x86_64")
	_, err = kvm.ParseHypervisor("<capabilities><host><cpu><arch>aarch64</arch></cpu></host></capabilities>", "auto")
	assert.ErrorContains(t, err, "qemu-efi-aarch64")
	_, err = kvm.ParseHypervisor("nonsense", "auto")
	assert.True(t, provider.HasCode(err, "NoHypervisor"))
}

// TestHypervisorOfEachArchitecture reads capabilities in the form that libvirt
// gives on such hosts.
func TestHypervisorOfEachArchitecture(t *testing.T) {
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join("testdata", name))
		require.NoError(t, err)
		return string(text)
	}
	arm := kvm.Hypervisor{Type: "kvm", Arch: "aarch64", Machine: "virt", Emulator: "/usr/bin/qemu-system-aarch64"}
	emulated := arm
	emulated.Type = "qemu"
	for _, c := range []struct {
		file, want string
		is         kvm.Hypervisor
	}{
		{"capabilities-aarch64.xml", "auto", arm},
		{"capabilities-aarch64.xml", "qemu", emulated},
		{"capabilities-x86_64.xml", "auto", kvm.Hypervisor{Type: "qemu", Arch: "x86_64", Machine: "q35", Emulator: "/usr/bin/qemu-system-x86_64"}},
	} {
		h, err := kvm.ParseHypervisor(read(c.file), c.want)
		require.NoError(t, err, c.file)
		assert.Equal(t, c.is, h)
	}
	_, err := kvm.ParseHypervisor(strings.ReplaceAll(read("capabilities-aarch64.xml"), "'>virt<", "'>raspi3b<"), "auto")
	require.ErrorIs(t, err, provider.ErrPermanent)
	assert.ErrorContains(t, err, "no machine virt")
	_, err = kvm.ParseHypervisor(strings.ReplaceAll(read("capabilities-aarch64.xml"), "aarch64", "s390x"), "auto")
	assert.ErrorContains(t, err, "s390x are not supported")
}

// TestOnARM makes an instance on an aarch64 host, and refuses a BIOS there before
// any work.
func TestOnARM(t *testing.T) {
	caps, err := os.ReadFile("testdata/capabilities-aarch64.xml")
	require.NoError(t, err)
	r := newRig(t)
	r.host().Capabilities = string(caps)
	mustCreate(t, r, r.Provider, request("u1"))
	d, _ := r.host().Domain(provider.Name("u1"))
	assert.Equal(t, "virt", d.XML.OS.Type.Machine)
	assert.Nil(t, d.XML.Features.APIC)

	image := r.cfg.Images["debian"]
	image.Firmware = "bios"
	r.cfg.Images["debian"] = image
	r.host().ForgetCalls()
	_, err = r.again(t).Create(testContext(t), request("u2"))
	require.ErrorIs(t, err, provider.ErrPermanent)
	assert.True(t, provider.HasCode(err, "NoFirmware"), "%v", err)
	assert.NotContains(t, r.host().Calls(), "virDomainDefineXMLFlags")
}
