package kvm

import (
	"context"
	"path"
	"slices"
	"sync"

	"github.com/digitalocean/go-libvirt"
	"github.com/go-logr/logr"
	"libvirt.org/go/libvirtxml"

	"github.com/egressfleet/egress/provider"
)

// facts is what holds for a host as long as a connection to it lasts.
type facts struct {
	pool libvirt.StoragePool
	// target is the directory of the pool.
	target     string
	hypervisor Hypervisor
}

// factsCache keeps the facts of one connection. The zero value is empty.
type factsCache struct {
	mu    sync.Mutex
	of    *session
	facts facts
}

func (c *factsCache) get(s *session) (facts, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.facts, c.of == s
}

func (c *factsCache) set(s *session, f facts) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.of, c.facts = s, f
}

// forget makes the next call ask the host again.
func (c *factsCache) forget() { c.set(nil, facts{}) }

// factsOf asks the host once for each connection.
func (p *Provider) factsOf(ctx context.Context, h *host) (facts, error) {
	s, err := h.control.get(ctx)
	if err != nil {
		return facts{}, err
	}
	if f, ok := h.facts.get(s); ok {
		return f, nil
	}
	f, err := p.askFacts(ctx, h)
	if err == nil {
		h.facts.set(s, f)
	}
	return f, err
}

func (p *Provider) askFacts(ctx context.Context, h *host) (f facts, err error) {
	c := h.controlClient()
	if f.pool, f.target, err = findPool(ctx, c, h.Pool); err != nil {
		return f, err
	}
	caps, err := c.capabilities(ctx)
	if err != nil {
		return f, err
	}
	if f.hypervisor, err = parseHypervisor(caps, p.cfg.DomainType); err != nil {
		return f, err
	}
	logr.FromContextOrDiscard(ctx).V(1).Info("domain type chosen", "type", f.hypervisor.Type, "arch", f.hypervisor.Arch, "machine", f.hypervisor.Machine, "path", f.target)
	return f, nil
}

func findPool(ctx context.Context, c client, name string) (pool libvirt.StoragePool, target string, err error) {
	if pool, err = c.lookupPool(ctx, name); err != nil {
		return pool, "", err
	}
	text, err := c.poolXML(ctx, pool)
	if err != nil {
		return pool, "", err
	}
	var xml libvirtxml.StoragePool
	if err := xml.Unmarshal(text); err != nil || xml.Target == nil || !path.IsAbs(xml.Target.Path) {
		return pool, "", provider.Permanentf("", "storage pool %q is of type %q without a directory: use one of type dir", name, xml.Type)
	}
	return pool, xml.Target.Path, nil
}

// Hypervisor is what a host's capabilities say about the machines it can run.
type Hypervisor struct {
	// Type is "kvm" or "qemu".
	Type string
	// Arch is libvirt's name of the architecture: "x86_64", "aarch64".
	Arch string
	// Machine is the kind of machine: "q35", "virt".
	Machine string
	// Emulator is the path of the QEMU binary on the host.
	Emulator string
}

// preferredMachines has the kind of machine for each architecture.
var preferredMachines = map[string]string{archX86: "q35", archARM: "virt", "riscv64": "virt"}

// qemuPackages has what Debian and Ubuntu call QEMU for each architecture.
var qemuPackages = map[string]string{archX86: "qemu-system-x86 (qemu-kvm on RHEL, Fedora)", archARM: "qemu-system-arm and qemu-efi-aarch64 (qemu-kvm on RHEL, Fedora)", "riscv64": "qemu-system-misc"}

// parseHypervisor chooses for the host's own architecture.
func parseHypervisor(capabilities, want string) (Hypervisor, error) {
	var caps libvirtxml.Caps
	if err := caps.Unmarshal(capabilities); err != nil || caps.Host.CPU == nil {
		return Hypervisor{}, provider.Permanentf(codeNoHypervisor, "the host's capabilities cannot be read: %v", err)
	}
	arch := caps.Host.CPU.Arch
	for _, guest := range caps.Guests {
		if guest.OSType != "hvm" || guest.Arch.Name != arch {
			continue
		}
		for _, typ := range []string{typeKVM, typeQEMU} {
			i := slices.IndexFunc(guest.Arch.Domains, func(d libvirtxml.CapsGuestDomain) bool { return d.Type == typ })
			if i >= 0 && (want == typeAuto || want == typ) {
				return guestHypervisor(guest.Arch, guest.Arch.Domains[i])
			}
		}
	}
	if want == typeKVM {
		return Hypervisor{}, provider.Permanentf(codeNoHypervisor, "the host cannot run domains of type kvm: check that /dev/kvm exists there and QEMU is installed, or set domainType to auto")
	}
	return Hypervisor{}, provider.Permanentf(codeNoHypervisor, "the host has no QEMU for %s: install %s there", arch, or(qemuPackages[arch], "QEMU"))
}

// guestHypervisor is what runs domains of that type. Where the type lists no
// machines of its own, it has those of the architecture.
func guestHypervisor(arch libvirtxml.CapsGuestArch, domain libvirtxml.CapsGuestDomain) (Hypervisor, error) {
	machine, ok := preferredMachines[arch.Name]
	if !ok {
		return Hypervisor{}, provider.Permanentf(codeNoHypervisor, "hosts of the architecture %s are not supported, only x86_64, aarch64 and riscv64", arch.Name)
	}
	machines := domain.Machines
	if len(machines) == 0 {
		machines = arch.Machines
	}
	if len(machines) > 0 && !slices.ContainsFunc(machines, func(m libvirtxml.CapsGuestMachine) bool { return m.Name == machine }) {
		return Hypervisor{}, provider.Permanentf(codeNoHypervisor, "the host's QEMU has no machine %s for %s: install a newer one", machine, arch.Name)
	}
	return Hypervisor{Type: domain.Type, Arch: arch.Name, Machine: machine, Emulator: or(domain.Emulator, arch.Emulator)}, nil
}

// checkFirmware refuses a BIOS where there never was one.
func (h Hypervisor) checkFirmware(firmware string) error {
	if firmware == firmwareBIOS && h.Arch != archX86 {
		return provider.Permanentf(codeNoFirmware, "machines of the architecture %s have no BIOS: set the image's firmware to uefi", h.Arch)
	}
	return nil
}

const (
	archX86 = "x86_64"
	archARM = "aarch64"
)

// pool is the pool of the last connection, as far as it is known.
func (c *factsCache) pool() (libvirt.StoragePool, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.facts.pool, c.of != nil
}
