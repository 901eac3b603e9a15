// Package fakelibvirt is a hypervisor in memory, for tests of package kvm.
//
// A [Host] keeps domains, pools and volumes, and a [Conn] is one connection to
// it, with the functions of go-libvirt's Libvirt that kvm uses. It refuses what
// real ones refuse, with their codes and words, such as disks of type volume,
// unknown flags, and a start without files; and it gives metadata back in
// any of the forms that versions of libvirt give. Each function can be made to
// fail, to hang, or to lose its connection before or after it had its effect.
//
// [Wire] speaks the little of libvirt's protocol that is needed to connect, for
// tests of the transport.
package fakelibvirt

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/digitalocean/go-libvirt"
	"libvirt.org/go/libvirtxml"
)

// MetadataForm is how a version of libvirt gives an element back.
type MetadataForm int

// The forms.
const (
	// Prefixed has the prefix and its declaration.
	Prefixed MetadataForm = iota
	// Bare has the prefix without its declaration, as of libvirt 11.6.
	Bare
	// Default has the namespace as the default one.
	Default
)

// Host is one hypervisor. All methods are safe for concurrent use. The exported
// fields are set before use.
type Host struct {
	// Form is how metadata comes back.
	Form MetadataForm
	// UndefineFlags are those that undefine knows; all if zero.
	UndefineFlags libvirt.DomainUndefineFlagsValues
	// Capabilities is what the host says of itself; without KVM if empty.
	Capabilities string
	// NoBridges are bridges that do not exist.
	NoBridges []string
	// NoConsoleLogs tells that logs of consoles cannot be written.
	NoConsoleLogs bool
	// NoFirmware tells that no UEFI firmware is installed.
	NoFirmware bool
	// LibVersion is libvirt's own; 9.0.0 if zero.
	LibVersion uint64
	// NoAutostart tells that pools do not start with the host.
	NoAutostart bool
	// PoolBytes is the space of the pool; without limit if zero.
	PoolBytes uint64

	// MemoryBytes and FreeBytes are the memory; 64 GiB, all of it free, if zero.
	MemoryBytes, FreeBytes uint64
	// PoolFree is what the pool says is available; 1 TiB if zero.
	PoolFree uint64

	// Before and After, if set, are called around the effect of each call. An
	// error of Before comes back in place of the effect, one of After in place
	// of the result. They may block.
	Before, After func(Call) error

	mu       sync.Mutex
	domains  map[string]*Domain
	pools    map[string]*pool
	files    map[string][]byte // outside of pools, by path
	calls    []string
	nextID   int32
	watchers map[*Conn]chan libvirt.DomainEventLifecycleMsg
	// addresses by MAC and source.
	addresses map[string]map[uint32][]libvirt.DomainInterface
	networks  map[string]bool // whether active
}

// Call is one call of a function.
type Call struct {
	// RPC is libvirt's name, such as "virDomainCreate".
	RPC string
	// Object is the name of the domain, pool or volume.
	Object string
	// Number counts the calls of the host from 1.
	Number int
}

// Domain is what the host has of one domain.
type Domain struct {
	XML           libvirtxml.Domain
	UUID          libvirt.UUID
	State, Reason int32
	Autostart     bool
	// Seed is what the seed volume held at the start.
	Seed []byte

	id       int32
	metadata map[string]string // inner element by namespace, without prefix
}

type pool struct {
	uuid    libvirt.UUID
	target  string
	stopped bool
	// transient pools are gone when they are stopped.
	transient bool
	volumes   map[string]*volume
}

type volume struct {
	content  []byte
	capacity uint64
	format   string
	backing  string
	changed  time.Time
}

// New returns a host with the active pool "default".
func New() *Host {
	h := &Host{domains: map[string]*Domain{}, pools: map[string]*pool{}, addresses: map[string]map[uint32][]libvirt.DomainInterface{}}
	h.AddPool("default")
	return h
}

// AddPool defines and starts a pool.
func (h *Host) AddPool(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pools[name] = &pool{uuid: newUUID(), target: "/var/lib/libvirt/images/" + name, volumes: map[string]*volume{}}
}

// RemovePool undefines a pool.
func (h *Host) RemovePool(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.pools, name)
}

// StopPool makes a pool inactive.
func (h *Host) StopPool(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pools[name].stopped = true
}

// SetHooks sets Before and After while calls may be under way.
func (h *Host) SetHooks(before, after func(Call) error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.Before, h.After = before, after
}

// SetNetwork defines a network, active or not.
func (h *Host) SetNetwork(name string, active bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.networks == nil {
		h.networks = map[string]bool{}
	}
	h.networks[name] = active
}

// Define adds a domain that somebody else made.
func (h *Host) Define(xml string) error {
	_, err := h.Connect().DomainDefineXMLFlags(xml, 0)
	return err
}

// Domain returns a copy of what the host has of the named domain.
func (h *Host) Domain(name string) (Domain, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	d := h.domains[name]
	if d == nil {
		return Domain{}, false
	}
	return *d, true
}

// DomainNames returns the names of all domains, sorted.
func (h *Host) DomainNames() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return sortedKeys(h.domains)
}

// Volumes returns the names of a pool's volumes, sorted.
func (h *Host) Volumes(poolName string) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return sortedKeys(h.pools[poolName].volumes)
}

// Content returns a copy of a volume's content.
func (h *Host) Content(poolName, name string) []byte {
	h.mu.Lock()
	defer h.mu.Unlock()
	v := h.pools[poolName].volumes[name]
	if v == nil {
		return nil
	}
	return bytes.Clone(v.content)
}

// Capacity returns the capacity that a volume was made with.
func (h *Host) Capacity(poolName, name string) uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.pools[poolName].volumes[name].capacity
}

// PutVolume adds or replaces a volume behind everybody's back.
func (h *Host) PutVolume(poolName, name string, content []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pools[poolName].volumes[name] = &volume{content: bytes.Clone(content), capacity: uint64(len(content)), format: "raw", changed: time.Now()}
}

// PutFile puts a file on the host, outside of its pools.
func (h *Host) PutFile(path string, content []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.files == nil {
		h.files = map[string][]byte{}
	}
	h.files[path] = bytes.Clone(content)
}

// Pools returns the names of the pools, sorted.
func (h *Host) Pools() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return sortedKeys(h.pools)
}

// Age makes a volume's last change so much older.
func (h *Host) Age(poolName, name string, by time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	v := h.pools[poolName].volumes[name]
	v.changed = v.changed.Add(-by)
}

// RemoveVolume removes a volume behind everybody's back.
func (h *Host) RemoveVolume(poolName, name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.pools[poolName].volumes, name)
}

// SetState puts a domain into a state.
func (h *Host) SetState(name string, state libvirt.DomainState, reason int32) {
	h.mu.Lock()
	defer h.mu.Unlock()
	d := h.domains[name]
	d.State, d.Reason = int32(state), reason
	d.id = h.idFor(state)
}

// idFor gives an ID to what is active.
func (h *Host) idFor(state libvirt.DomainState) int32 {
	if state == libvirt.DomainShutoff || state == libvirt.DomainCrashed {
		return -1
	}
	h.nextID++
	return h.nextID
}

// SetAddresses says what a source knows of a domain's card. The name "eth0" and
// the card's own MAC are filled in where ifaces has none.
func (h *Host) SetAddresses(name string, source libvirt.DomainInterfaceAddressesSource, ifaces ...libvirt.DomainInterface) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range ifaces {
		if len(ifaces[i].Hwaddr) == 0 {
			ifaces[i].Name = "eth0"
			ifaces[i].Hwaddr = libvirt.OptString{h.domains[name].XML.Devices.Interfaces[0].MAC.Address}
		}
	}
	if h.addresses[name] == nil {
		h.addresses[name] = map[uint32][]libvirt.DomainInterface{}
	}
	h.addresses[name][uint32(source)] = ifaces //nolint:gosec // a small constant.
}

// Calls returns the names of all calls so far, in their order.
func (h *Host) Calls() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.calls)
}

// ForgetCalls empties Calls.
func (h *Host) ForgetCalls() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls = nil
}

// Errorf makes an error of libvirt.
func Errorf(code libvirt.ErrorNumber, format string, args ...any) error {
	return libvirt.Error{Code: uint32(code), Message: fmt.Sprintf(format, args...)} //nolint:gosec // small.
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func newUUID() (u libvirt.UUID) {
	_, _ = rand.Read(u[:])
	return u
}

// virtualSize is what libvirt reads in a qcow2 header.
func virtualSize(content []byte) (uint64, bool) {
	if len(content) < 32 || !bytes.HasPrefix(content, []byte("QFI\xfb")) {
		return 0, false
	}
	return binary.BigEndian.Uint64(content[24:]), true
}

// poolOf finds a pool by what a client knows of it.
func (h *Host) poolOf(p libvirt.StoragePool) (*pool, error) {
	found := h.pools[p.Name]
	if found == nil || found.uuid != p.UUID {
		return nil, Errorf(libvirt.ErrNoStoragePool, "Storage pool not found: no storage pool with matching uuid (%s)", p.Name)
	}
	return found, found.active(p.Name)
}

func (p *pool) active(name string) error {
	if p.stopped {
		return Errorf(libvirt.ErrOperationInvalid, "Requested operation is not valid: storage pool '%s' is not active", name)
	}
	return nil
}

func (h *Host) volumeOf(v libvirt.StorageVol) (*volume, error) {
	p := h.pools[v.Pool]
	if p == nil {
		return nil, Errorf(libvirt.ErrNoStoragePool, "Storage pool not found: no storage pool with matching name '%s'", v.Pool)
	}
	if err := p.active(v.Pool); err != nil {
		return nil, err
	}
	found := p.volumes[v.Name]
	if found == nil {
		return nil, Errorf(libvirt.ErrNoStorageVol, "Storage volume not found: no storage vol with matching key %s", v.Key)
	}
	return found, nil
}

// fileOf finds a volume by its path.
func (h *Host) fileOf(path string) *volume {
	for _, p := range h.pools {
		if name, ok := strings.CutPrefix(path, p.target+"/"); ok {
			return p.volumes[name]
		}
	}
	return nil
}

func (h *Host) used() (n uint64) {
	for _, p := range h.pools {
		for _, v := range p.volumes {
			n += uint64(len(v.content))
		}
	}
	return n
}

// emulationOnly is the capabilities of a host without /dev/kvm.
const emulationOnly = `<capabilities>
  <host><cpu><arch>x86_64</arch></cpu></host>
  <guest>
    <os_type>hvm</os_type>
    <arch name='x86_64'>
      <wordsize>64</wordsize>
      <emulator>/usr/bin/qemu-system-x86_64</emulator>
      <machine maxCpus='288' canonical='pc-q35-7.2'>q35</machine>
      <domain type='qemu'/>
    </arch>
  </guest>
</capabilities>`

// WithKVM is the capabilities of a host that has it.
var WithKVM = strings.Replace(emulationOnly, "<domain type='qemu'/>", "<domain type='qemu'/><domain type='kvm'/>", 1)
