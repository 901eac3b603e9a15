package kvm

import (
	"context"
	"encoding/hex"
	"fmt"
	"maps"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/go-logr/logr"
	"libvirt.org/go/libvirtxml"

	"github.com/egressfleet/egress/internal/check"
	"github.com/egressfleet/egress/internal/diskimage"
	"github.com/egressfleet/egress/provider"
)

// Config says which hosts there are and what is made on them. [New] copies it.
// Literals must name their fields.
type Config struct {
	// Name is the provider's name in logs and errors; "kvm" if empty.
	Name string `json:"-"`

	// SSHKeyFile is a private key to log in to the hosts with, see also
	// Passphrase. Required unless each host is local or has its own, or SSHAgent
	// is set. It is read again when it changed.
	SSHKeyFile string `json:"sshKeyFile,omitempty"`
	// SSHAgent also offers the keys of the agent whose socket SSH_AUTH_SOCK
	// names, after that of the key file. They are asked for at each dial.
	// Default false.
	SSHAgent bool `json:"sshAgent,omitempty"`
	// KnownHostsFile has the keys of the hosts, in the form of OpenSSH.
	// Required unless each host is local or has its own, or
	// InsecureIgnoreHostKey is set. It is read again when it changed.
	KnownHostsFile string `json:"knownHostsFile,omitempty"`
	// InsecureIgnoreHostKey accepts any host key: whoever answers in place of
	// the host gets the user-data. Default false.
	InsecureIgnoreHostKey bool `json:"insecureIgnoreHostKey,omitempty"`

	// DiskSizeGiB is the least size of an instance's disk, in GiB; 10 if zero.
	// A disk is never smaller than its image.
	DiskSizeGiB int `json:"diskSizeGb,omitempty"`
	// VendorData is given to every guest as cloud-init's vendor-data. It is not
	// logged.
	VendorData string `json:"vendorData,omitempty"`
	// InstallGuestAgent adds to the vendor-data a script that installs the QEMU
	// guest agent where it is missing. Default on.
	InstallGuestAgent provider.Toggle `json:"installGuestAgent,omitempty"`
	// Autostart starts the instances when their host has rebooted. Default on.
	Autostart provider.Toggle `json:"autostart,omitempty"`
	// DomainType is "kvm", "qemu" (software emulation) or "auto", which takes
	// kvm where the host has it. Default "auto".
	DomainType string `json:"domainType,omitempty"`
	// CPUModel is a CPU model of libvirt for all domains. Empty means the
	// host's own CPU under kvm, and a plain model under emulation.
	CPUModel string `json:"cpuModel,omitempty"`

	// PreferIPv6 has the IPv6 addresses of an instance come before its IPv4 ones.
	// Default false.
	PreferIPv6 bool `json:"preferIPv6,omitempty"`

	// Images are the images by their key, which becomes a part of volume names.
	Images map[string]Image `json:"images,omitempty"`
	// ImageFetch is "foreground" or "background": whether a Create whose host has
	// not got the image yet waits for it, or fails at once with the code
	// FetchingImage, to be tried again. Default "foreground".
	ImageFetch string `json:"imageFetch,omitempty"`
	// MachineTypes are the sizes of instances by their key. At least one.
	MachineTypes map[string]MachineType `json:"machineTypes"`
	// Hosts are the hypervisors. At least one.
	Hosts []Host `json:"hosts"`
	// Timeouts are the times to wait.
	Timeouts Timeouts `json:"timeouts,omitzero"`

	// Logger is used where the context carries none. The zero value discards.
	Logger logr.Logger `json:"-"`
	// Trace, if set, is told of operations, their steps, calls and dials.
	Trace *Trace `json:"-"`
	// AmendDomain, if set, may change the domain before it is defined. It must
	// keep the name and is called again when Create resumes, concurrently for
	// several instances. An error of it is ErrPermanent.
	AmendDomain func(*libvirtxml.Domain) error `json:"-"`
	// Passphrase, if set, is asked for the passphrase of a key file that has
	// one: when the first connection needs it, and again only when the file
	// changed or the answer was no use. What it returns is overwritten and never
	// logged. It shall return when ctx ends, and its error is ErrTransient.
	Passphrase func(ctx context.Context, keyFile string) ([]byte, error) `json:"-"`
	// HTTPClient fetches the images; if nil, one that honours the proxy
	// variables of the environment.
	HTTPClient *http.Client `json:"-"`
	// Progress, if set, is told how much of an image has reached a host, about
	// every half MiB, and shall return soon. One image is told in order.
	Progress func(ImageProgress) `json:"-"`
}

// Host is one hypervisor.
type Host struct {
	// Name is unique and becomes a part of provider IDs. Required.
	Name string `json:"name"`
	// Address is host:port of its sshd, port 22 if left out. "local" is this
	// machine's own libvirt, by its socket without SSH. Required, but an empty
	// one with Socket set is local too. It may also be a URI of libvirt:
	// qemu+ssh://user@host:port/system with the parameters keyfile, known_hosts,
	// socket and no_verify, or qemu:///system and qemu+unix:///system with the
	// parameter socket. Other parameters are errors.
	Address string `json:"address,omitempty"`
	// User is the account to log in as. Required unless the host is local or
	// its URI has it.
	User string `json:"user,omitempty"`
	// Jump is an SSH server to go through, as user@host:port; without a user it
	// is that of the host, and port 22 if left out. It gets the host's key, and
	// its own host key is looked up in the host's known_hosts. Hosts with the
	// same jump share one connection to it. Empty means none.
	Jump string `json:"jump,omitempty"`
	// SSHKeyFile and KnownHostsFile are used in place of the provider's, for
	// this host and its jump.
	SSHKeyFile     string `json:"sshKeyFile,omitempty"`
	KnownHostsFile string `json:"knownHostsFile,omitempty"`
	// Socket is the path of libvirt's socket there. Empty means
	// /var/run/libvirt/libvirt-sock, and where that does not answer
	// virtqemud-sock beside it.
	Socket string `json:"socket,omitempty"`
	// Pool is a storage pool of type dir; "default" if empty.
	Pool string `json:"pool,omitempty"`
	// KeepFreeMiB is the space of the pool below which nothing is made there: disks
	// grow as they are written to. Default 512; negative for no such bound.
	KeepFreeMiB int `json:"keepFreeMiB,omitempty"`
	// MaxInstances is the most instances of this package that the host may have,
	// of all tags. Zero means no limit.
	MaxInstances int `json:"maxInstances,omitempty"`
	// Bridge is the network bridge of the instances. Required, unless Network or
	// Macvtap is given in its place.
	Bridge string `json:"bridge,omitempty"`
	// Network is a network of libvirt, which must be active. Where it has DHCP,
	// its leases tell the addresses of the instances.
	Network string `json:"network,omitempty"`
	// Macvtap is a network interface of the host that the instances share, in
	// mode bridge: they reach what it reaches, but not the host itself.
	Macvtap string `json:"macvtap,omitempty"`
	// OpenVSwitch tells that Bridge is one of Open vSwitch. Default false.
	OpenVSwitch bool `json:"openVSwitch,omitempty"`
	// VLAN is the tag of the instances' traffic, 1 to 4094. It needs a bridge of
	// Open vSwitch, or libvirt 11 and a bridge that filters VLANs. Zero means
	// none.
	VLAN int `json:"vlan,omitempty"`
	// MTU is the largest packet of the instances' cards in bytes. Not with
	// Macvtap. Zero means that of the bridge or network.
	MTU int `json:"mtu,omitempty"`
	// Addresses are ranges that instances get static addresses from, one of IPv4
	// and one of IPv6 as far as there are such, as "10.0.0.10-10.0.0.99/24". They
	// are the instances' alone: no DHCP server and no other host may give them
	// out. Empty means DHCP.
	Addresses []string `json:"addresses,omitempty"`
	// Gateways are the routers for Addresses, at most one for IPv4 and one for
	// IPv6, and Nameservers the DNS servers. Empty means none.
	Gateways    []string `json:"gateways,omitempty"`
	Nameservers []string `json:"nameservers,omitempty"`

	// noVerify accepts any key of the host, but not of its jump. It is the
	// parameter no_verify of a URI.
	noVerify bool
}

// Image is where a disk image comes from.
type Image struct {
	// URL is an http, https or file URL, or an absolute path of this machine. The
	// file may be packed with gzip, xz or zstd. Required.
	URL string `json:"url"`
	// SHA256 and SHA512 are digests of that file in hexadecimal; each that is
	// given is checked. With neither, and without Checksums, the image is what the
	// first fetch on each host gave.
	SHA256 string `json:"sha256,omitempty"`
	SHA512 string `json:"sha512,omitempty"`
	// Checksums is the place, as URL, of a file of checksums such as SHA256SUMS
	// that names the image. It is read again after an hour, so that where an
	// image is published anew under one URL, new instances get the new one. While
	// it cannot be read, a host goes on with the image it got last.
	Checksums string `json:"checksums,omitempty"`
	// Format is "qcow2" or "raw"; the default is what the file shows itself to
	// be. A raw disk without a partition table must be said to be raw.
	Format string `json:"format,omitempty"`
	// Firmware is "uefi" or "bios". Default "uefi".
	Firmware string `json:"firmware,omitempty"`
}

// MachineType is the size of an instance.
type MachineType struct {
	// VCPUs is the number of virtual processors. Required.
	VCPUs int `json:"vcpus"`
	// MemoryMiB is the memory in MiB. Required.
	MemoryMiB int `json:"memoryMiB"`
}

// Timeouts are the times to wait. Zero means the default.
type Timeouts struct {
	// Dial is for connecting to a host, whole. Default 15s.
	Dial provider.Duration `json:"dial,omitempty"`
	// Call is for one call of libvirt that has no deadline of its own, uploads
	// excepted. Default 2m.
	Call provider.Duration `json:"call,omitempty"`
	// Grace is how long after its caller left an unanswered call condemns the
	// connection. Default 10s.
	Grace provider.Duration `json:"grace,omitempty"`
	// Keepalive is how often an SSH server must show that it is there; one that
	// missed it is dropped. Default 15s.
	Keepalive provider.Duration `json:"keepalive,omitempty"`
	// Address is for each source of a guest's address. Default 3s.
	Address provider.Duration `json:"address,omitempty"`
	// Place is how long a host may take to tell what it has left. Default 5s.
	Place provider.Duration `json:"place,omitempty"`
	// Stall is how long an image's server may send nothing. Default 30s.
	Stall provider.Duration `json:"stall,omitempty"`
	// ImageTakeover is how long an unfinished image in a pool must not have
	// grown before it is taken for broken and fetched again. Longer than Stall.
	// Default 1m.
	ImageTakeover provider.Duration `json:"imageTakeover,omitempty"`
}

// ImageProgress tells how much of an image has reached a host.
type ImageProgress struct {
	// Host and Volume are where it goes.
	Host, Volume string
	// Bytes are read so far of the file as it is published, packed or not; Total
	// is its length, -1 where the server does not tell it.
	Bytes, Total int64
}

const (
	firmwareUEFI = "uefi"
	firmwareBIOS = "bios"

	fetchForeground = "foreground"
	fetchBackground = "background"

	typeAuto     = "auto"
	typeKVM      = "kvm"
	typeQEMU     = "qemu"
	addressLocal = "local"
)

// Validate reports every problem of c at once, each with the path of its
// field. [New] calls it.
func (c Config) Validate() error {
	var problems check.Problems
	c.checkSSH(&problems)
	c.checkDefaults(&problems)
	problems.Require(len(c.MachineTypes) > 0, "machineTypes", "give at least one, such as small: {vcpus: 1, memoryMiB: 1024}")
	for _, key := range slices.Sorted(maps.Keys(c.MachineTypes)) {
		problems.Require(key != "", "machineTypes", "a machine type has no name")
		problems.Within(fmt.Sprintf("machineTypes.%s", key), c.MachineTypes[key].validate())
	}
	for _, key := range slices.Sorted(maps.Keys(c.Images)) {
		path := fmt.Sprintf("images.%s", key)
		problems.Within(path, c.Images[key].validate())
		if !volumePartPattern.MatchString(key) {
			problems.Add(path, key, "becomes a part of volume names, so it must begin with a letter or digit and hold only letters, digits, and the characters _ . -")
		}
	}
	c.checkHosts(&problems)
	return problems.Err()
}

var volumePartPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]*$`)

func (c Config) checkSSH(problems *check.Problems) {
	lacksKey, lacksKnown := false, false
	for _, h := range c.Hosts {
		h, err := h.expanded()
		if err != nil || h.local() {
			continue
		}
		lacksKey = lacksKey || h.SSHKeyFile == ""
		lacksKnown = lacksKnown || h.KnownHostsFile == "" && (!h.noVerify || h.Jump != "")
	}
	problems.Require(!lacksKey || c.SSHKeyFile != "" || c.SSHAgent, "sshKeyFile",
		"give the path of a private key to log in to the hosts with, or set sshAgent")
	problems.Require(!lacksKnown || c.KnownHostsFile != "" || c.InsecureIgnoreHostKey, "knownHostsFile",
		"give the path of a known_hosts file, as ssh-keyscan prints it, or set insecureIgnoreHostKey on a network you trust")
}

func (c Config) checkDefaults(problems *check.Problems) {
	if c.DiskSizeGiB < 0 || c.DiskSizeGiB > 64<<10 {
		problems.Add("diskSizeGb", c.DiskSizeGiB, "must lie between 1 and 65536, or be left out for 10")
	}
	if !slices.Contains([]string{"", typeAuto, typeKVM, typeQEMU}, c.DomainType) {
		problems.Add("domainType", c.DomainType, "must be kvm, qemu or auto")
	}
	if !slices.Contains([]string{"", fetchForeground, fetchBackground}, c.ImageFetch) {
		problems.Add("imageFetch", c.ImageFetch, "must be foreground or background")
	}
	problems.Within("timeouts", c.Timeouts.validate())
}

func (c Config) checkHosts(problems *check.Problems) {
	problems.Require(len(c.Hosts) > 0, "hosts", "give at least one")
	seen := map[string]bool{}
	for i, h := range c.Hosts {
		path := fmt.Sprintf("hosts[%d]", i)
		problems.Within(path, h.validate())
		if h.Name != "" && seen[h.Name] {
			problems.Add(path+".name", h.Name, "is the name of another host too")
		}
		seen[h.Name] = true
	}
}

func (h Host) validate() error {
	var problems check.Problems
	problems.Within("name", provider.ValidIDPart(h.Name))
	if h.MaxInstances < 0 {
		problems.Add("maxInstances", h.MaxInstances, "must be positive, or be left out for no limit")
	}
	h.checkNetwork(&problems)
	if strings.ContainsFunc(h.Pool, isNameBreaker) {
		problems.Add("pool", h.Pool, "must be the name of a storage pool, without slashes and control characters")
	}
	plain, err := h.expanded()
	if err != nil {
		problems.Within("address", err)
		return problems.Err()
	}
	plain.checkWay(&problems)
	return problems.Err()
}

// checkWay checks how the host is reached. Its address is no URI any more.
func (h Host) checkWay(problems *check.Problems) {
	if h.Socket != "" && !strings.HasPrefix(h.Socket, "/") {
		problems.Add("socket", h.Socket, "must be an absolute path")
	}
	if h.local() {
		problems.Require(h.Jump == "", "jump", "is for a host that is reached by SSH, and this one is local")
		problems.Require(h.SSHKeyFile+h.KnownHostsFile == "", "sshKeyFile", "and knownHostsFile are for a host that is reached by SSH, and this one is local")
		return
	}
	problems.Require(h.User != "", "user", "give the account to log in as")
	if !validUser(h.User) {
		addWay(problems, "user", h.User, h.User, "must be the name of an account")
	}
	if h.Jump != "" {
		user, address, ok := strings.Cut(h.Jump, "@")
		if !ok {
			user, address = h.User, h.Jump
		}
		if user == "" && ok || !validUser(user) || !validSSHAddress(withPort(address)) {
			addWay(problems, "jump", h.Jump, accountOf(h.Jump), "must be user@host:port of an SSH server, of which user and port may be left out")
		}
	}
	if h.Address == "" {
		problems.Missing("address", "give host:port of its sshd, or local for this machine's own libvirt")
	} else if !validSSHAddress(h.sshAddress()) {
		addWay(problems, "address", h.Address, accountOf(h.Address), "must be host:port of its sshd, or local for this machine's own libvirt")
	}
}

func validUser(user string) bool {
	return !strings.ContainsFunc(user, func(r rune) bool { return unicode.IsControl(r) || unicode.IsSpace(r) || r == '@' || r == ':' })
}

// isNameBreaker tells of characters that no name of libvirt should have.
func isNameBreaker(r rune) bool { return unicode.IsControl(r) || r == '/' }

// interfacePattern is what Linux takes as the name of an interface, IFNAMSIZ less
// the final zero, and a bit narrower.
var interfacePattern = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,15}$`)

func validSSHAddress(address string) bool {
	host, port, err := net.SplitHostPort(address)
	if err != nil || host == "" || strings.ContainsFunc(host, func(r rune) bool { return unicode.IsControl(r) || unicode.IsSpace(r) || r == '/' || r == '@' }) {
		return false
	}
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && n > 0
}

// local tells whether the host is reached by a socket of this machine.
func (h Host) local() bool {
	return h.Address == addressLocal || h.Address == "" && h.Socket != ""
}

// addWay reports a way to a server, or an account on it. Where the account seems to
// have a password in it, the value is not shown.
func addWay(problems *check.Problems, path, value, account, problem string) {
	if strings.Contains(account, ":") {
		problems.Missing(path, problem+"; a password is not used: log in by a key")
		return
	}
	problems.Add(path, value, problem)
}

// accountOf is what stands before the last '@'.
func accountOf(address string) string { return address[:max(strings.LastIndexByte(address, '@'), 0)] }

// sshAddress is Address with its port.
func (h Host) sshAddress() string { return withPort(h.Address) }

// sockets are the paths to try, in order.
func (h Host) sockets() []string {
	if h.Socket != "" {
		return []string{h.Socket}
	}
	return slices.Clone(defaultSockets)
}

func (i Image) validate() error {
	var problems check.Problems
	problems.Within("url", diskimage.ValidURL(i.URL))
	checkDigest(&problems, "sha256", i.SHA256, 32)
	checkDigest(&problems, "sha512", i.SHA512, 64)
	if i.Checksums != "" {
		problems.Within("checksums", diskimage.ValidURL(i.Checksums))
		problems.Require(i.SHA256+i.SHA512 == "", "checksums", "give checksums or a digest, not both")
	}
	if !slices.Contains([]string{"", diskimage.FormatQCOW2, diskimage.FormatRaw}, i.Format) {
		problems.Add("format", i.Format, "must be qcow2 or raw")
	}
	if !slices.Contains([]string{"", firmwareUEFI, firmwareBIOS}, i.Firmware) {
		problems.Add("firmware", i.Firmware, "must be uefi or bios")
	}
	return problems.Err()
}

func checkDigest(problems *check.Problems, path, digest string, size int) {
	if raw, err := hex.DecodeString(digest); digest != "" && (err != nil || len(raw) != size) {
		problems.Add(path, digest, fmt.Sprintf("must be %d hexadecimal digits", 2*size))
	}
}

func (m MachineType) validate() error {
	var problems check.Problems
	if m.VCPUs < 1 || m.VCPUs > 1024 {
		problems.Add("vcpus", m.VCPUs, "must lie between 1 and 1024")
	}
	if m.MemoryMiB < 64 || m.MemoryMiB > 16<<20 {
		problems.Add("memoryMiB", m.MemoryMiB, "must lie between 64 and 16777216")
	}
	return problems.Err()
}

func (t Timeouts) validate() error {
	var problems check.Problems
	for _, field := range []struct {
		name  string
		value provider.Duration
	}{
		{"dial", t.Dial}, {"call", t.Call}, {"grace", t.Grace}, {"keepalive", t.Keepalive},
		{"address", t.Address}, {"place", t.Place}, {"stall", t.Stall}, {"imageTakeover", t.ImageTakeover},
	} {
		if field.value < 0 {
			problems.Add(field.name, field.value, "must be positive, or be left out for the default")
		}
	}
	if d := t.withDefaults(); d.ImageTakeover <= d.Stall {
		problems.Add("imageTakeover", d.ImageTakeover, fmt.Sprintf("must be longer than stall (%s), or a slow fetch is taken for a broken one", d.Stall))
	}
	return problems.Err()
}

func (t Timeouts) withDefaults() Timeouts {
	or := func(d provider.Duration, def time.Duration) provider.Duration { return provider.Duration(d.Or(def)) }
	return Timeouts{
		Dial: or(t.Dial, 15*time.Second), Call: or(t.Call, 2*time.Minute),
		Grace: or(t.Grace, 10*time.Second), Keepalive: or(t.Keepalive, 15*time.Second),
		Address: or(t.Address, 3*time.Second), Place: or(t.Place, 5*time.Second), Stall: or(t.Stall, 30*time.Second),
		ImageTakeover: or(t.ImageTakeover, time.Minute),
	}
}

// withDefaults returns a deep copy in which every default is filled in.
func (c Config) withDefaults() Config {
	c.Images = maps.Clone(c.Images)
	for key, image := range c.Images {
		c.Images[key] = image.withDefaults()
	}
	c.MachineTypes = maps.Clone(c.MachineTypes)
	c.Hosts = slices.Clone(c.Hosts)
	for i := range c.Hosts {
		if plain, err := c.Hosts[i].expanded(); err == nil { // as Validate has seen
			c.Hosts[i] = plain
		}
		h := &c.Hosts[i]
		h.Addresses, h.Gateways, h.Nameservers = slices.Clone(h.Addresses), slices.Clone(h.Gateways), slices.Clone(h.Nameservers)
		h.Pool, h.KeepFreeMiB = or(h.Pool, "default"), or(h.KeepFreeMiB, 512)
	}
	if c.Trace != nil {
		trace := *c.Trace
		c.Trace = &trace
	}
	c.Name = or(c.Name, "kvm")
	c.DiskSizeGiB = or(c.DiskSizeGiB, 10)
	c.DomainType = or(c.DomainType, typeAuto)
	c.ImageFetch = or(c.ImageFetch, fetchForeground)
	c.Timeouts = c.Timeouts.withDefaults()
	if c.Logger.GetSink() == nil {
		c.Logger = logr.Discard()
	}
	return c
}

func (i Image) withDefaults() Image {
	i.SHA256, i.SHA512 = strings.ToLower(i.SHA256), strings.ToLower(i.SHA512)
	i.Firmware = or(i.Firmware, firmwareUEFI)
	return i
}

func or[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}
