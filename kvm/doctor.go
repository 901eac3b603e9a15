package kvm

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/digitalocean/go-libvirt"
	"libvirt.org/go/libvirtxml"

	"github.com/egressfleet/egress/provider"
)

var _ provider.Doctor = (*Provider)(nil)

// Diagnose implements [provider.Doctor]. Of each host it examines the way to
// libvirt (ssh-files, host, host-key, login, forwarding, socket), libvirt itself,
// virtualization, firmware, memory, pool, space, network, clock, and the images
// (image KEY).
func (p *Provider) Diagnose(ctx context.Context) ([]provider.Finding, error) {
	caller := ctx
	ctx, leave, err := p.life.Enter(ctx)
	if err != nil {
		return nil, p.failure("Diagnose", "", "", err)
	}
	defer leave()
	ctx, end := p.cfg.Trace.operation(ctx, OperationInfo{Op: "Diagnose", Provider: p.cfg.Name})
	exams := make([]*exam, len(p.order))
	var running sync.WaitGroup
	for i, h := range p.order {
		exams[i] = &exam{operation: &operation{p: p, host: h}}
		running.Go(func() { exams[i].run(p.withLogger(ctx, h, "")) })
	}
	running.Wait()
	var all []provider.Finding
	for _, e := range exams {
		all = append(all, e.findings...)
	}
	end(caller.Err())
	return all, caller.Err()
}

// exam is the examination of one host.
type exam struct {
	*operation
	findings []provider.Finding
}

func (e *exam) add(check string, status provider.FindingStatus, remedy, format string, args ...any) {
	e.findings = append(e.findings, provider.Finding{
		Scope: e.host.Name, Check: check, Status: status, Evidence: fmt.Sprintf(format, args...), Remedy: remedy,
	})
}

// way are the checks between here and libvirt, in the order in which a dial makes
// them, each with the codes of its failures.
var way = []struct {
	check  string
	local  bool // whether it concerns hosts without SSH
	codes  []string
	passed string
}{
	{"ssh-files", false, []string{codeKeyMissing, codeKeyInvalid, codeKeyLocked, codeAgentUnusable, codeHostKeyUnknown}, "the key can be read, and known_hosts has the host"},
	{"host", false, []string{codeNoAnswer, codeServerBusy}, "its sshd answers"},
	{"host-key", false, []string{codeHostKeyChanged}, "it is the one in known_hosts"},
	{"login", false, []string{codeAuthRefused}, "the user may log in"},
	{"forwarding", false, []string{codeForwardingRefused}, "sshd forwards to unix sockets"},
	{"socket", true, nil, "libvirt's socket answers, and the user may use it"},
}

// afterWay are the checks that need libvirt.
var afterWay = []string{"libvirt", "virtualization", "firmware", "memory", "pool", "space", "network", "clock"}

func (e *exam) run(ctx context.Context) {
	start := time.Now()
	_, err := e.host.control.get(ctx)
	if !e.examineWay(err, time.Since(start)) {
		for _, check := range afterWay {
			e.add(check, provider.FindingSkipped, "", "libvirt cannot be asked")
		}
		return
	}
	e.examineLibvirt(ctx)
	hypervisor, ok := e.examineVirtualization(ctx)
	if ok {
		e.examineFirmware(ctx, hypervisor)
	} else {
		e.add("firmware", provider.FindingSkipped, "", "there is no hypervisor")
	}
	e.examineMemory(ctx)
	e.examinePool(ctx)
	e.examineNetwork(ctx)
	e.examineClock(ctx)
}

// examineWay tells how far the connection got.
func (e *exam) examineWay(err error, took time.Duration) bool {
	reached := e.reached(err)
	for i, stage := range way {
		switch {
		case e.host.local() && !stage.local:
		case i < reached:
			e.add(stage.check, provider.FindingOK, "", "%s", stage.passed)
		case i > reached:
			e.add(stage.check, provider.FindingSkipped, "", "an earlier step failed")
		default:
			e.add(stage.check, provider.FindingFailure, e.wayRemedy(err), "%s", classify(err).Error())
		}
	}
	if err == nil {
		last := &e.findings[len(e.findings)-1]
		last.Evidence += fmt.Sprintf(" (%s)", took.Round(time.Millisecond))
	}
	return err == nil
}

// reached is the place of the check that failed, the number of checks for none.
func (e *exam) reached(err error) int {
	if err == nil {
		return len(way)
	}
	last := len(way) - 1
	if e.host.local() {
		return last
	}
	code := classify(err).Code
	for i, stage := range way {
		if slices.Contains(stage.codes, code) {
			return i
		}
	}
	return last
}

// wayRemedy is the command that mends the way, for those whose error does not
// say it.
func (e *exam) wayRemedy(err error) string {
	h := e.host
	switch classify(err).Code {
	case codeKeyMissing, codeKeyInvalid:
		return "put the file there: a key by ssh-keygen -t ed25519 -f " + or(h.SSHKeyFile, or(e.p.cfg.SSHKeyFile, "id_ed25519")) + ", known_hosts by ssh-keyscan " + h.sshHostName()
	case codeKeyLocked, codeAgentUnusable:
		return "eval \"$(ssh-agent)\" && ssh-add " + or(h.SSHKeyFile, e.p.cfg.SSHKeyFile)
	case codeHostKeyUnknown:
		return "run the ssh-keyscan line above, and compare the fingerprint with the host's own"
	case codeHostKeyChanged:
		return "find out why the key changed before you replace its line in known_hosts"
	case codeAuthRefused:
		return "ssh-copy-id -i KEY.pub " + h.User + "@" + h.sshHostName()
	case codeForwardingRefused:
		return "on the host: AllowStreamLocalForwarding yes in sshd_config, then systemctl reload ssh"
	case codeServerBusy:
		return "on the host: raise MaxStartups in sshd_config, then systemctl reload ssh"
	case codeNoAnswer:
		return "check that the host is up and that its sshd is reachable from here"
	}
	return "on the host: apt-get install libvirt-daemon-system && adduser " + or(h.User, "USER") + " libvirt && systemctl start libvirtd"
}

// oldestLibvirt is the first version whose backing files need their format
// named, which is what this package was made for.
const oldestLibvirt = 6_000_000

func (e *exam) examineLibvirt(ctx context.Context) {
	lib, err := e.client().libVersion(ctx)
	if err != nil {
		e.failed("libvirt", err)
		return
	}
	evidence := "libvirt " + versionText(lib)
	if qemu, err := e.client().hypervisorVersion(ctx); err == nil {
		evidence += ", QEMU " + versionText(qemu)
	}
	if lib < oldestLibvirt {
		e.add("libvirt", provider.FindingWarning, "use a newer release of the host's distribution", "%s, which is older than %s", evidence, versionText(oldestLibvirt))
		return
	}
	e.add("libvirt", provider.FindingOK, "", "%s", evidence)
}

// versionText reads libvirt's numbers: a million times the major version, a
// thousand times the minor one, and the release.
func versionText(v uint64) string {
	return fmt.Sprintf("%d.%d.%d", v/1_000_000, v/1000%1000, v%1000)
}

// failed is a check that could not be made for a reason of its own.
func (e *exam) failed(check string, err error) {
	e.add(check, provider.FindingFailure, seeLibvirtd, "%s", classify(err).Error())
}

const seeLibvirtd = "see whether libvirtd works: on the host, journalctl -u libvirtd"

func (e *exam) examineVirtualization(ctx context.Context) (Hypervisor, bool) {
	const check = "virtualization"
	caps, err := e.client().capabilities(ctx)
	var hypervisor Hypervisor
	if err == nil {
		hypervisor, err = parseHypervisor(caps, e.p.cfg.DomainType)
	}
	switch {
	case provider.HasCode(err, codeNoHypervisor):
		e.add(check, provider.FindingFailure, "on the host: apt-get install qemu-system-x86, and look at ls -l /dev/kvm", "%s", classify(err).Error())
		return hypervisor, false
	case err != nil:
		e.failed(check, err)
		return hypervisor, false
	case hypervisor.Type == typeQEMU && e.p.cfg.DomainType == typeAuto:
		e.add(check, provider.FindingWarning, "on the host: enable virtualization in its firmware (or nested virtualization), then modprobe kvm_intel or kvm_amd",
			"software emulation, which is many times slower: there is no KVM (%s, %s)", hypervisor.Arch, hypervisor.Machine)
	default:
		e.add(check, provider.FindingOK, "", "domain type %s (%s, %s)", hypervisor.Type, hypervisor.Arch, hypervisor.Machine)
	}
	return hypervisor, true
}

func (e *exam) examineFirmware(ctx context.Context, v Hypervisor) {
	const check = "firmware"
	wanted := func(i Image) bool { return i.Firmware == firmwareUEFI }
	if images := e.p.cfg.Images; len(images) > 0 && !slices.ContainsFunc(slices.Collect(maps.Values(images)), wanted) {
		e.add(check, provider.FindingOK, "", "all images boot with a BIOS")
		return
	}
	text, err := e.client().domainCapabilities(ctx, v)
	if err != nil {
		e.failed(check, err)
		return
	}
	if !offersUEFI(text) {
		e.add(check, provider.FindingFailure, "on the host: apt-get install ovmf (edk2-ovmf on RHEL and Fedora), or set the images' firmware to bios", "libvirt knows of no UEFI firmware for %s", v.Machine)
		return
	}
	e.add(check, provider.FindingOK, "", "UEFI is there")
}

// offersUEFI reads libvirt's description of what it can give a domain.
func offersUEFI(text string) bool {
	var caps libvirtxml.DomainCaps
	if err := caps.Unmarshal(text); err != nil || caps.OS == nil {
		return false
	}
	for _, enum := range caps.OS.Enums {
		if enum.Name == "firmware" {
			return slices.Contains(enum.Values, "efi")
		}
	}
	return false
}

func (e *exam) examineMemory(ctx context.Context) {
	const check = "memory"
	m, err := e.client().nodeMemory(ctx)
	if err != nil {
		e.failed(check, err)
		return
	}
	need := uint64(0)
	for _, machine := range e.p.cfg.MachineTypes {
		if size := uint64(max(machine.MemoryMiB, 0)) * mib; need == 0 || size < need {
			need = size
		}
	}
	status, remedy := provider.FindingOK, ""
	if m.available < need {
		status, remedy = provider.FindingFailure, "free memory on the host, or use a smaller machine type"
	}
	e.add(check, status, remedy, "%d MiB of %d available, the smallest machine type needs %d", m.available/mib, m.total/mib, need/mib)
}

// examinePool looks at the pool, and at what is in it.
func (e *exam) examinePool(ctx context.Context) {
	pool, target, err := findPool(ctx, e.client(), e.host.Pool)
	var room space
	if err == nil {
		room, err = e.client().poolSpace(ctx, pool)
	}
	if err == nil && !room.active {
		err = errPoolStopped
	}
	if err != nil {
		e.add("pool", provider.FindingFailure, e.poolRemedy(err), "%s", classify(err).Error())
		e.add("space", provider.FindingSkipped, "", "there is no active pool")
		return
	}
	autostart, err := e.client().poolAutostart(ctx, pool)
	if err == nil && !autostart {
		e.add("pool", provider.FindingWarning, "on the host: virsh pool-autostart "+pool.Name, "%s is active in %s, and will not be after the next boot", pool.Name, target)
	} else {
		e.add("pool", provider.FindingOK, "", "%s is active in %s", pool.Name, target)
	}
	e.examineSpace(room)
	e.examineImages(ctx, pool)
}

var errPoolStopped = errors.New("the storage pool is not active")

func (e *exam) poolRemedy(err error) string {
	name := e.host.Pool
	if isLibvirt(err, libvirt.ErrNoStoragePool) {
		return fmt.Sprintf("on the host: virsh pool-define-as %s dir --target /var/lib/libvirt/images && virsh pool-start %s && virsh pool-autostart %s", name, name, name)
	}
	return fmt.Sprintf("on the host: virsh pool-start %s && virsh pool-autostart %s", name, name)
}

func (e *exam) examineSpace(room space) {
	status, remedy := provider.FindingOK, ""
	if room.available < e.host.keepFree() {
		status, remedy = provider.FindingFailure, "free space in the pool (PruneImages removes unused images), or lower hosts[].keepFreeMiB"
	}
	e.add("space", status, remedy, "%d MiB of %d are free, %d are kept free", room.available/mib, room.capacity/mib, e.host.keepFree()/mib)
}

// examineImages tells which images are there.
func (e *exam) examineImages(ctx context.Context, pool libvirt.StoragePool) {
	w := e.p.imageHost(e.host, pool)
	for _, key := range slices.Sorted(maps.Keys(e.p.cfg.Images)) {
		check := "image " + key
		src, err := e.p.resolve(ctx, imageSource{Image: e.p.cfg.Images[key], key: key})
		if err != nil {
			e.add(check, provider.FindingWarning, "correct images."+key+".checksums, or see why it cannot be read", "%s", classify(err).Error())
			continue
		}
		b, ok, err := w.cached(ctx, src)
		switch {
		case err != nil:
			e.failed(check, err)
		case ok:
			e.add(check, provider.FindingOK, "", "%s is there, %d MiB", b.volume, b.physical/mib)
		default:
			e.add(check, provider.FindingOK, "", "not there yet: the first instance fetches it")
		}
	}
}

func (e *exam) examineNetwork(ctx context.Context) {
	const check = "network"
	if e.host.Network != "" {
		if err := e.checkNetwork(ctx); err != nil {
			e.add(check, provider.FindingFailure, e.networkRemedy(err), "%s", classify(err).Error())
			return
		}
		e.add(check, provider.FindingOK, "", "%s is active", e.host.Network)
		return
	}
	name := or(e.host.Bridge, e.host.Macvtap)
	switch found, known := e.hasInterface(ctx, name); {
	case !known:
		e.add(check, provider.FindingSkipped, "on the host: ip -br link show "+name, "this host's libvirt does not tell its network interfaces")
	case !found:
		e.add(check, provider.FindingFailure, "make it on the host, or correct the configuration: ip -br link shows what there is", "the host has no interface %s", name)
	default:
		e.add(check, provider.FindingOK, "", "%s is there", name)
	}
}

// networkRemedy is the command that mends a network of libvirt.
func (e *exam) networkRemedy(err error) string {
	name := e.host.Network
	start := fmt.Sprintf("virsh net-start %[1]s && virsh net-autostart %[1]s", name)
	switch {
	case provider.HasCode(err, codeNetworkInactive):
		return "on the host: " + start
	case !isLibvirt(err, libvirt.ErrNoNetwork):
		return seeLibvirtd
	case name == "default":
		return "on the host: virsh net-define " + defaultNetwork + " (of the package libvirt-daemon-config-network) && " + start
	}
	return "correct hosts[].network (virsh net-list --all on the host shows what there is), or define it by a file like " +
		defaultNetwork + ": virsh net-define FILE && " + start
}

// defaultNetwork is where distributions put the definition of libvirt's own network.
const defaultNetwork = "/usr/share/libvirt/networks/default.xml"

// hasInterface asks libvirt, which does not always see what was made since, and
// then the host itself.
func (e *exam) hasInterface(ctx context.Context, name string) (found, known bool) {
	devices, err := e.client().netDevices(ctx)
	known = err == nil && len(devices) > 0
	if slices.ContainsFunc(devices, func(d string) bool { return isNetDevice(d, name) }) {
		return true, true
	}
	if e.host.local() {
		_, err := net.InterfaceByName(name)
		return err == nil, known || err == nil
	}
	switch e.host.shell(ctx, "if ip link show dev "+shellQuote(name)+" > /dev/null 2>&1; then echo yes; else command -v ip > /dev/null && echo no; fi") {
	case "yes":
		return true, true
	case "no":
		return false, true
	}
	return false, known
}

// isNetDevice tells whether a device of libvirt is the network interface of that
// name: net_NAME_ADDRESS, in which other characters than letters and digits have
// become underscores.
func isNetDevice(device, name string) bool {
	clean := strings.Map(func(r rune) rune {
		if (r >= '0' && r <= '9') || (r >= 'a' && r <= 'z') || (r >= 'A' && r <= 'Z') {
			return r
		}
		return '_'
	}, name)
	address, ok := strings.CutPrefix(device, "net_"+clean+"_")
	return ok && len(address) == len("00_00_00_00_00_00")
}

// Clocks that differ by this much break TLS and logs.
const clockTolerance = 30 * time.Second

func (e *exam) examineClock(ctx context.Context) {
	const check = "clock"
	before := time.Now()
	if e.host.local() {
		e.add(check, provider.FindingOK, "", "it is this machine's")
		return
	}
	text := e.host.shell(ctx, "date +%s")
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		e.add(check, provider.FindingSkipped, "on the host: timedatectl", "the user has no shell to ask")
		return
	}
	off := time.Unix(seconds, 0).Sub(before).Round(time.Second)
	if off.Abs() > clockTolerance {
		e.add(check, provider.FindingWarning, "on the host: timedatectl set-ntp true; or correct this machine's clock", "it differs from this machine's by %s", off)
		return
	}
	e.add(check, provider.FindingOK, "", "it agrees with this machine's")
}

// shell runs a command on the host as the user, and returns what it prints;
// empty where that cannot be done.
func (h *hostConn) shell(ctx context.Context, command string) string {
	t, ok := h.transport.(sshTransport)
	if !ok {
		return ""
	}
	link, err := t.link.get(ctx)
	if err != nil {
		return ""
	}
	return link.run(ctx, command)
}

// sshHostName is the host's name without its port.
func (h Host) sshHostName() string {
	name, _, found := strings.Cut(h.Address, ":")
	if !found || strings.Contains(h.Address, "://") {
		return h.Address
	}
	return name
}
