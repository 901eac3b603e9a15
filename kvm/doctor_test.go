package kvm_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/digitalocean/go-libvirt"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/internal/fakelibvirt"
	"github.com/egressfleet/egress/kvm"
	"github.com/egressfleet/egress/provider"
)

// diagnose returns the findings of kvm1 by their check.
func diagnose(t *testing.T, p *kvm.Provider) map[string]provider.Finding {
	t.Helper()
	findings, err := p.Diagnose(testContext(t))
	require.NoError(t, err)
	byCheck := map[string]provider.Finding{}
	for _, f := range findings {
		assert.Equal(t, "kvm1", f.Scope)
		assert.NotEmpty(t, f.Evidence, f.Check)
		assert.NotContains(t, byCheck, f.Check)
		if f.Status == provider.FindingFailure || f.Status == provider.FindingWarning {
			assert.NotEmpty(t, f.Remedy, f.Check)
		}
		byCheck[f.Check] = f
	}
	return byCheck
}

func TestDiagnoseAHealthyHost(t *testing.T) {
	r := newRig(t)
	r.host().Capabilities = fakelibvirt.WithKVM
	mustCreate(t, r, r.Provider, request("u1"))
	r.host().ForgetCalls()
	findings := diagnose(t, r.Provider)
	for _, f := range findings {
		assert.Equal(t, provider.FindingOK, f.Status, "%+v", f)
	}
	for check, evidence := range map[string]string{
		"libvirt": "libvirt 9.0.0, QEMU 7.2.19", "virtualization": "domain type kvm", "pool": "default is active in /var/lib/libvirt/images/default",
		"image debian": blankVolume() + " is there", "network": "br0 is there", "socket": "answers", "memory": "needs 256", "space": "are free",
		"clock": "this machine's", "firmware": "UEFI",
	} {
		assert.Contains(t, findings[check].Evidence, evidence, check)
	}
	assert.Len(t, findings, 10)
	for _, call := range r.host().Calls() {
		assert.NotContains(t, []string{"virStorageVolCreateXML", "virStorageVolUpload", "virDomainDefineXMLFlags", "virStoragePoolCreateXML"}, call, "it changes nothing")
	}
}

func TestDiagnose(t *testing.T) {
	for what, c := range map[string]struct {
		spoil    func(*fakelibvirt.Host)
		amend    func(*kvm.Config)
		check    string
		status   provider.FindingStatus
		evidence string
		remedy   string
	}{
		"emulation": {check: "virtualization", status: provider.FindingWarning, evidence: "software emulation", remedy: "modprobe kvm_intel"},
		"emulation, wanted": {
			amend: func(c *kvm.Config) { c.DomainType = "qemu" },
			check: "virtualization", status: provider.FindingOK, evidence: "domain type qemu",
		},
		"no KVM, wanted": {
			amend: func(c *kvm.Config) { c.DomainType = "kvm" },
			check: "virtualization", status: provider.FindingFailure, evidence: "NoHypervisor", remedy: "apt-get install",
		},
		"an old libvirt": {
			spoil: func(h *fakelibvirt.Host) { h.LibVersion = 4_005_000 },
			check: "libvirt", status: provider.FindingWarning, evidence: "libvirt 4.5.0", remedy: "newer",
		},
		"no firmware": {
			spoil: func(h *fakelibvirt.Host) { h.NoFirmware = true },
			check: "firmware", status: provider.FindingFailure, evidence: "no UEFI", remedy: "apt-get install ovmf",
		},
		"no firmware, not wanted": {
			spoil: func(h *fakelibvirt.Host) { h.NoFirmware = true },
			amend: func(c *kvm.Config) {
				c.Images = map[string]kvm.Image{"x": {URL: c.Images["debian"].URL, Firmware: "bios"}}
			},
			check: "firmware", status: provider.FindingOK, evidence: "BIOS",
		},
		"no pool": {
			spoil: func(h *fakelibvirt.Host) { h.RemovePool("default") },
			check: "pool", status: provider.FindingFailure, evidence: "ErrNoStoragePool", remedy: "virsh pool-define-as default",
		},
		"a stopped pool": {
			spoil: func(h *fakelibvirt.Host) { h.StopPool("default") },
			check: "pool", status: provider.FindingFailure, evidence: "not active", remedy: "virsh pool-start default",
		},
		"a pool that will not come back": {
			spoil: func(h *fakelibvirt.Host) { h.NoAutostart = true },
			check: "pool", status: provider.FindingWarning, evidence: "next boot", remedy: "virsh pool-autostart default",
		},
		"a full pool": {
			spoil: func(h *fakelibvirt.Host) { h.PoolFree = 1 << 20 },
			check: "space", status: provider.FindingFailure, evidence: "1 MiB of", remedy: "keepFreeMiB",
		},
		"no bridge": {
			spoil: func(h *fakelibvirt.Host) { h.NoBridges = []string{"br0"} },
			check: "network", status: provider.FindingFailure, evidence: "no interface br0", remedy: "ip -br link",
		},
		"no network": {
			amend: func(c *kvm.Config) { c.Hosts[0].Bridge, c.Hosts[0].Network = "", "crawl" },
			check: "network", status: provider.FindingFailure, evidence: "ErrNoNetwork", remedy: "virsh net-define FILE && virsh net-start crawl",
		},
		"no network, and it is the distribution's": {
			amend: func(c *kvm.Config) { c.Hosts[0].Bridge, c.Hosts[0].Network = "", "default" },
			check: "network", status: provider.FindingFailure, evidence: "ErrNoNetwork", remedy: "virsh net-define /usr/share/libvirt/networks/default.xml",
		},
		"an inactive network": {
			spoil: func(h *fakelibvirt.Host) { h.SetNetwork("crawl", false) },
			amend: func(c *kvm.Config) { c.Hosts[0].Bridge, c.Hosts[0].Network = "", "crawl" },
			check: "network", status: provider.FindingFailure, evidence: "NetworkInactive", remedy: "on the host: virsh net-start crawl && virsh net-autostart crawl",
		},
		"a network of which libvirt does not tell": {
			spoil: func(h *fakelibvirt.Host) {
				h.SetNetwork("crawl", true)
				h.Before = func(c fakelibvirt.Call) error {
					if c.RPC == "virNetworkIsActive" {
						return fakelibvirt.Errorf(libvirt.ErrInternalError, "broken")
					}
					return nil
				}
			},
			amend: func(c *kvm.Config) { c.Hosts[0].Bridge, c.Hosts[0].Network = "", "crawl" },
			check: "network", status: provider.FindingFailure, evidence: "broken", remedy: "journalctl -u libvirtd",
		},
		"an image that is not there yet": {check: "image debian", status: provider.FindingOK, evidence: "not there yet"},
		"a checksums file that is not there": {
			amend: func(c *kvm.Config) {
				c.Images = map[string]kvm.Image{"x": {URL: c.Images["debian"].URL, Checksums: "/nonexistent"}}
			},
			check: "image x", status: provider.FindingWarning, evidence: "no such file", remedy: "images.x.checksums",
		},
		"a huge machine type": {
			amend: func(c *kvm.Config) {
				c.MachineTypes = map[string]kvm.MachineType{"huge": {VCPUs: 1, MemoryMiB: 16 << 20}}
			},
			check: "memory", status: provider.FindingFailure, evidence: "needs 16777216", remedy: "free memory",
		},
	} {
		t.Run(what, func(t *testing.T) {
			r := newRig(t, func(cfg *kvm.Config) {
				if c.amend != nil {
					c.amend(cfg)
				}
			})
			if c.spoil != nil {
				c.spoil(r.host())
			}
			f := diagnose(t, r.Provider)[c.check]
			assert.Equal(t, c.status, f.Status, "%+v", f)
			assert.Contains(t, f.Evidence, c.evidence)
			assert.Contains(t, f.Remedy, c.remedy)
		})
	}
}

// TestDiagnoseTheWay tells at which step the way to libvirt ends.
func TestDiagnoseTheWay(t *testing.T) {
	for code, check := range map[string]string{
		"KeyMissing": "ssh-files", "KeyInvalid": "ssh-files", "NoAnswer": "host", "ServerBusy": "host", "HostKeyUnknown": "ssh-files", "HostKeyChanged": "host-key",
		"AuthRefused": "login", "ForwardingRefused": "forwarding", "SocketUnreachable": "socket",
	} {
		t.Run(code, func(t *testing.T) {
			r := newRig(t, func(c *kvm.Config) {
				c.SSHKeyFile, c.InsecureIgnoreHostKey = "id", true
				c.Hosts[0].Address, c.Hosts[0].User = "kvm1.example.com", "egress"
			})
			kvm.FailDial(r.Provider, "kvm1", func(context.Context) error {
				return &provider.Error{Class: provider.ErrPermanent, Code: code, Err: errors.New("it is as it is")}
			})
			findings := diagnose(t, r.Provider)
			order := []string{"ssh-files", "host", "host-key", "login", "forwarding", "socket"}
			want := provider.FindingOK
			for _, step := range order {
				switch step {
				case check:
					assert.Equal(t, provider.FindingFailure, findings[step].Status)
					assert.Contains(t, findings[step].Evidence, "it is as it is")
					assert.Contains(t, findings[step].Evidence, code)
					want = provider.FindingSkipped
				default:
					assert.Equal(t, want, findings[step].Status, step)
				}
			}
			assert.Equal(t, provider.FindingSkipped, findings["pool"].Status)
		})
	}
}

// TestDiagnoseTheClock compares the host's with this machine's. An answer may take
// some seconds.
func TestDiagnoseTheClock(t *testing.T) {
	now := func(off time.Duration) func() string {
		return func() string { return strconv.FormatInt(time.Now().Add(off).Unix(), 10) }
	}
	for what, c := range map[string]struct {
		date     func() string // nil for a user without a shell
		status   provider.FindingStatus
		evidence string
		off      time.Duration
		remedy   string
	}{
		"an hour ahead":    {now(time.Hour), provider.FindingWarning, "differs from this machine's by", time.Hour, "timedatectl set-ntp true"},
		"an hour behind":   {now(-time.Hour), provider.FindingWarning, "differs from this machine's by", -time.Hour, "timedatectl set-ntp true"},
		"too far behind":   {now(-45 * time.Second), provider.FindingWarning, "differs from this machine's by", -45 * time.Second, "timedatectl set-ntp true"},
		"within tolerance": {now(-15 * time.Second), provider.FindingOK, "agrees", 0, ""},
		"a word":           {func() string { return "soon" }, provider.FindingSkipped, "no shell", 0, "timedatectl"},
		"no shell":         {nil, provider.FindingSkipped, "no shell", 0, "timedatectl"},
	} {
		t.Run(what, func(t *testing.T) {
			r := newSSHRig(t, nil)
			if c.date != nil {
				r.server.Shell(func(command string) string {
					if command == "date +%s" {
						return c.date()
					}
					return ""
				})
			}
			f := diagnose(t, r.Provider)["clock"]
			assert.Equal(t, c.status, f.Status, "%+v", f)
			assert.Contains(t, f.Evidence, c.evidence)
			assert.Contains(t, f.Remedy, c.remedy)
			if c.off != 0 {
				off, err := time.ParseDuration(f.Evidence[strings.LastIndex(f.Evidence, " ")+1:])
				require.NoError(t, err)
				assert.InDelta(t, c.off.Seconds(), off.Seconds(), 10)
			}
		})
	}
}

// TestDiagnoseEndsWithItsContext returns what it has.
func TestDiagnoseEndsWithItsContext(t *testing.T) {
	r := newRig(t)
	ctx, cancel := context.WithCancel(t.Context())
	r.host().Before = func(c fakelibvirt.Call) error {
		if c.RPC == "virStoragePoolGetInfo" {
			cancel()
			<-ctx.Done()
			return fakelibvirt.Errorf(libvirt.ErrInternalError, "too late")
		}
		return nil
	}
	findings, err := r.Diagnose(ctx)
	require.ErrorIs(t, err, context.Canceled)
	assert.NotEmpty(t, findings)
}

// An examination of all hosts, as a person wants to read it.
func ExampleProvider_Diagnose() {
	p, err := kvm.New(kvm.Config{
		SSHKeyFile: "/nonexistent/id_ed25519", KnownHostsFile: "/nonexistent/known_hosts",
		Hosts:        []kvm.Host{{Name: "kvm1", Address: "kvm1.example.com", User: "egress", Bridge: "br0"}},
		MachineTypes: map[string]kvm.MachineType{"small": {VCPUs: 1, MemoryMiB: 1024}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = p.Close() }()
	findings, err := p.Diagnose(context.Background())
	if err != nil {
		fmt.Println(err)
	}
	for _, f := range findings[:3] {
		fmt.Printf("%s %-9s %-8s %s\n", f.Scope, f.Check, f.Status, f.Evidence)
		if f.Remedy != "" {
			fmt.Println("  do:", f.Remedy)
		}
	}
	// Output:
	// kvm1 ssh-files failure  cannot read ssh material: stat /nonexistent/known_hosts: no such file or directory (KeyMissing)
	//   do: put the file there: a key by ssh-keygen -t ed25519 -f /nonexistent/id_ed25519, known_hosts by ssh-keyscan kvm1.example.com
	// kvm1 host      skipped  an earlier step failed
	// kvm1 host-key  skipped  an earlier step failed
}
