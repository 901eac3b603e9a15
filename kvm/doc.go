// Package kvm is a [provider.Provider] on hosts that you own: it makes virtual
// machines with libvirt, over SSH or a local socket.
//
// A host needs sshd and libvirtd, an active storage pool of type dir and a
// bridge, a network of libvirt or an interface for macvtap; nothing of ours is installed there, and no libvirt library is needed
// here.
//
//	p, err := kvm.New(kvm.Config{
//		SSHKeyFile:     "/etc/egress/id_ed25519",
//		KnownHostsFile: "/etc/egress/known_hosts",
//		Hosts: []kvm.Host{{
//			Name: "kvm1", Address: "kvm1.example.com:22", User: "egress", Bridge: "br0",
//		}},
//		MachineTypes: map[string]kvm.MachineType{"small": {VCPUs: 1, MemoryMiB: 1024}},
//		Images: map[string]kvm.Image{"debian13": {
//			URL:    "https://cloud.debian.org/images/cloud/trixie/latest/debian-13-genericcloud-amd64.qcow2",
//			SHA512: "…",
//		}},
//	})
//
// # Placement
//
// Zone is the name of a host and may be empty where only one is configured.
// MachineType is a key of [Config.MachineTypes] and Image a key of
// [Config.Images], each empty only where there is one; Image may also be an
// http or https URL. Region is not read. The ID of an instance
// is hosts/HOST/domains/NAME. A [Provider] is also a [provider.Placer], which
// chooses among the hosts by what they have left.
//
// # What Create does
//
// The image is fetched by this process and streamed into the host's pool, once
// for each host, and verified on the way. Then the steps of one instance are:
//
//	room         memory, space in the pool and the network are looked at
//	base-image   the volume base-KEY-DIGEST.FORMAT and its marker are there
//	define       the domain, whose metadata says that it is being made
//	overlay      the volume NAME.qcow2, backed by the base image
//	seed         the volume NAME-seed.iso, rebuilt until the first start
//	mark         the metadata says that it is made
//	autostart    it comes back when the host reboots
//	start        it runs
//
// The domain comes first and goes last, so that whatever a crash leaves behind
// is seen by ListByTag; the next Create goes on from there. [Trace] shows the
// steps as they happen. Two processes may ask for one image at the same time,
// but shall not work on one UID at the same time; within a process the calls
// that change one instance wait for each other.
//
// # What stays on a host
//
// A deleted instance leaves nothing in the pool. Base images and their markers
// (the same name and ".ok") stay for the next instance. A volume without its
// marker is never used: it is a fetch under way or a broken one, and is taken
// over when it has not grown for [Timeouts].ImageTakeover. An image without
// digest and checksums file is pinned by its first fetch on each host.
//
// [Provider.ListImages], [Provider.PullImage] and [Provider.PruneImages] manage
// base images. [Provider.Sweep] finds what crashes and strangers left,
// [Provider.Diagnose] what keeps a host from working, [Provider.ReadConsole] what
// a guest wrote, and [Provider.Watch] hears of changes.
//
// # The guest
//
// The domain is a q35 machine (on aarch64 a virt one) with UEFI firmware (secure boot off; "bios" per
// image), host-passthrough CPU, virtio disk, network card and random numbers,
// no graphics, and the channel of the guest agent. Where the host has no
// /dev/kvm it is emulated, slowly, with a plain CPU model. The seed is a
// read-only virtio disk, because Debian's cloud kernel has no driver for a SATA
// CD-ROM. The serial console is a pty, "virsh console NAME", and is also logged
// to /var/log/libvirt/qemu/NAME-console.log on the host, which stays until the
// administrator's log rotation takes it. A host that cannot write there gets
// its instances without that log, and a line in ours says so.
//
// Its address is what the guest agent says, a DHCP lease of libvirt, or the
// host's ARP table. On a plain bridge only the agent sees it, so the agent is
// installed by the vendor-data unless [Config.InstallGuestAgent] is off. A static
// address, of [Host].Addresses, is known without asking: such an instance is
// Running as soon as its domain runs.
//
// # Connections
//
// Each host has one SSH connection, made on first use and shared. A call whose
// context ends returns at once; its connection is given up only if libvirtd
// has not answered it [Timeouts].Grace later. The SSH key and known_hosts are
// read at the first dial and again when they changed, so a rotated key needs
// no restart, and a missing one heals when it appears. The key of the file is
// offered first, then those of the agent.
//
// After a failed dial a host is left alone for a while, which grows from a
// quarter of a second to half a minute; calls then fail at once with the same
// error and its RetryAfter. A key file or known_hosts that changes ends that.
//
// # Errors
//
// The Code of a [provider.Error] is the name libvirt's error has in go-libvirt,
// such as "ErrNoStoragePool", or one of ours:
//
//	HostKeyUnknown     known_hosts has no key for the host
//	HostKeyChanged     the host shows another key than known_hosts has
//	KeyMissing         the key file or known_hosts cannot be read (transient)
//	KeyInvalid         the key file or known_hosts cannot be parsed
//	KeyLocked          the key file has a passphrase that is not known
//	AgentUnusable      the SSH agent does not answer or has no key
//	AuthRefused        sshd refuses the user or the key
//	ServerBusy         sshd ends connections before the login
//	ForwardingRefused  sshd forbids forwarding a unix socket, or a jump host TCP
//	SocketUnreachable  libvirt's socket does not answer
//	ConnectionLost     the connection ended during a call
//	NoAnswer           libvirtd or the host does not answer
//	DigestMismatch     the image is not what its digest says
//	BadImage           the image is not of the wanted kind
//	DownloadFailed     the image cannot be fetched
//	FetchingImage      the image is being fetched in the background (transient)
//	ImageInUse         the image cannot be fetched again while it is used
//	VolumeChanged      a volume was changed by somebody else
//	BadPlacement       the placement names what is not configured
//	NoBridge           the host has no such bridge or interface
//	NetworkInactive    the network of libvirt is not started
//	NoVLAN             the bridge cannot have a VLAN tag
//	AddressesExhausted all static addresses are taken
//	AddressConflict    other processes took the static addresses that were chosen
//	NoMemory           the host has too little free memory
//	NoSpace            the pool has too little free space
//	HostFull           the host has as many instances as it may
//	NoConsole          the host keeps no log of the console
//	NoFirmware         the host has no UEFI firmware
//	NoHypervisor       the host has no emulator for the wanted domain type
//	Amended            the AmendDomain hook failed
//	BadMetadata        the metadata of a domain of ours cannot be read
//
// User-data, of which 4 MiB are the most, keys and vendor-data never reach an
// error or a log.
//
// # Logging
//
// V(0) is what an operator must see, V(1) one line for each operation and one
// "libvirt call" for each call of libvirt, V(2) adds XML and addresses to those
// lines. Lines carry provider, host, and name where there is an instance. A
// logger in the context is preferred to [Config.Logger].
package kvm
