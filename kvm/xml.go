package kvm

import (
	"libvirt.org/go/libvirtxml"

	"github.com/egressfleet/egress/internal/diskimage"
)

// DomainSpec is everything that makes up a domain of ours. It is plain data, so
// that a definition can be built, compared and tested without a host.
type DomainSpec struct {
	// Name is the domain's, and UUID, if set, that of the one it replaces.
	Name, UUID string
	// Hypervisor says what the host runs it with.
	Hypervisor Hypervisor
	// CPUModel is a CPU model of libvirt. Empty means the host's own CPU under
	// kvm and a plain model under emulation.
	CPUModel string
	// Machine is the size.
	Machine MachineType
	// Firmware is "uefi" or "bios".
	Firmware string
	// Disk and Seed are paths on the host: of a qcow2 overlay and of the seed.
	Disk, Seed string
	// Bridge, Network or Macvtap is what the card is attached to: a network
	// bridge, a network of libvirt, or an interface of the host that is shared by
	// macvtap.
	Bridge, Network, Macvtap string
	// OpenVSwitch tells that Bridge is one of Open vSwitch.
	OpenVSwitch bool
	// VLAN is the tag of the card's traffic, and MTU its largest packet; zero
	// means none and the default.
	VLAN, MTU int
	// MAC is the address of the card.
	MAC string
	// ConsoleLog is the path on the host of the file that the serial console
	// is logged to. Empty means none.
	ConsoleLog string
	// Metadata is the inner XML of the metadata element.
	Metadata string
}

// agentChannel is the name the guest agent knows its port by.
const agentChannel = "org.qemu.guest_agent.0"

// Domain builds the definition. Disks are files by their path and never
// volumes, for which libvirt's AppArmor profile has no rule.
func (s DomainSpec) Domain() *libvirtxml.Domain {
	return &libvirtxml.Domain{
		Type:     s.Hypervisor.Type,
		Name:     s.Name,
		UUID:     s.UUID,
		Metadata: &libvirtxml.DomainMetadata{XML: s.Metadata},
		Memory:   &libvirtxml.DomainMemory{Value: uint(max(s.Machine.MemoryMiB, 0)) << 20, Unit: "bytes"},
		VCPU:     &libvirtxml.DomainVCPU{Placement: "static", Value: uint(max(s.Machine.VCPUs, 0))},
		OS:       s.os(),
		Features: s.features(),
		CPU:      s.cpu(),
		Clock:    &libvirtxml.DomainClock{Offset: "utc"},

		OnPoweroff: "destroy", OnReboot: "restart", OnCrash: "destroy",
		Devices: s.devices(),
	}
}

func (s DomainSpec) os() *libvirtxml.DomainOS {
	os := &libvirtxml.DomainOS{
		Type:        &libvirtxml.DomainOSType{Arch: s.Hypervisor.Arch, Machine: s.Hypervisor.Machine, Type: "hvm"},
		BootDevices: []libvirtxml.DomainBootDevice{{Dev: "hd"}},
	}
	if s.Firmware == firmwareUEFI {
		os.Firmware = "efi"
		os.FirmwareInfo = &libvirtxml.DomainOSFirmwareInfo{
			Features: []libvirtxml.DomainOSFirmwareFeature{{Name: "secure-boot", Enabled: "no"}},
		}
	}
	return os
}

func (s DomainSpec) features() *libvirtxml.DomainFeatureList {
	f := &libvirtxml.DomainFeatureList{ACPI: &libvirtxml.DomainFeature{}}
	if s.Hypervisor.Arch == archX86 {
		f.APIC = &libvirtxml.DomainFeatureAPIC{}
	}
	return f
}

// emulatedCPUs are plain models: the richest one is slower to boot, because
// guests load virtualisation modules for it.
var emulatedCPUs = map[string]string{archX86: "qemu64", archARM: "cortex-a57"}

func (s DomainSpec) cpu() *libvirtxml.DomainCPU {
	model := s.CPUModel
	if model == "" && s.Hypervisor.Type == typeKVM {
		return &libvirtxml.DomainCPU{Mode: "host-passthrough"}
	}
	if model = or(model, emulatedCPUs[s.Hypervisor.Arch]); model == "" {
		return nil
	}
	return &libvirtxml.DomainCPU{Mode: "custom", Match: "exact", Check: "none", Model: &libvirtxml.DomainCPUModel{Value: model}}
}

func (s DomainSpec) devices() *libvirtxml.DomainDeviceList {
	return &libvirtxml.DomainDeviceList{
		Emulator: s.Hypervisor.Emulator,
		Disks: []libvirtxml.DomainDisk{
			fileDisk(s.Disk, diskimage.FormatQCOW2, "vda", nil),
			// A SATA CD-ROM would be invisible to Debian's cloud kernel.
			fileDisk(s.Seed, diskimage.FormatRaw, "vdb", &libvirtxml.DomainDiskReadOnly{}),
		},
		Interfaces: []libvirtxml.DomainInterface{s.card()},
		Serials: []libvirtxml.DomainSerial{{
			Source: &libvirtxml.DomainChardevSource{Pty: &libvirtxml.DomainChardevSourcePty{}},
			Log:    s.consoleLog(),
			Target: s.serialTarget(),
		}},
		Channels: []libvirtxml.DomainChannel{{
			Source: &libvirtxml.DomainChardevSource{UNIX: &libvirtxml.DomainChardevSourceUNIX{}},
			Target: &libvirtxml.DomainChannelTarget{VirtIO: &libvirtxml.DomainChannelTargetVirtIO{Name: agentChannel}},
		}},
		RNGs: []libvirtxml.DomainRNG{{
			Model:   "virtio",
			Backend: &libvirtxml.DomainRNGBackend{Random: &libvirtxml.DomainRNGBackendRandom{Device: "/dev/urandom"}},
		}},
	}
}

// card is the network card. libvirt wants to be told of Open vSwitch.
func (s DomainSpec) card() libvirtxml.DomainInterface {
	card := libvirtxml.DomainInterface{
		MAC:    &libvirtxml.DomainInterfaceMAC{Address: s.MAC},
		Source: &libvirtxml.DomainInterfaceSource{Bridge: &libvirtxml.DomainInterfaceSourceBridge{Bridge: s.Bridge}},
		Model:  &libvirtxml.DomainInterfaceModel{Type: "virtio"},
	}
	switch {
	case s.Network != "":
		card.Source = &libvirtxml.DomainInterfaceSource{Network: &libvirtxml.DomainInterfaceSourceNetwork{Network: s.Network}}
	case s.Macvtap != "":
		card.Source = &libvirtxml.DomainInterfaceSource{Direct: &libvirtxml.DomainInterfaceSourceDirect{Dev: s.Macvtap, Mode: "bridge"}}
	}
	if s.OpenVSwitch {
		card.VirtualPort = &libvirtxml.DomainInterfaceVirtualPort{Params: &libvirtxml.DomainInterfaceVirtualPortParams{
			OpenVSwitch: &libvirtxml.DomainInterfaceVirtualPortParamsOpenVSwitch{},
		}}
	}
	if s.VLAN > 0 {
		card.VLan = &libvirtxml.DomainInterfaceVLan{Tags: []libvirtxml.DomainInterfaceVLanTag{{ID: uint(s.VLAN)}}}
	}
	if s.MTU > 0 {
		card.MTU = &libvirtxml.DomainInterfaceMTU{Size: uint(s.MTU)}
	}
	return card
}

// serialTarget is the port that the guest's kernel takes for its console: the
// first one on x86, and the PL011 of ARM's virt machine.
func (s DomainSpec) serialTarget() *libvirtxml.DomainSerialTarget {
	target := &libvirtxml.DomainSerialTarget{Port: new(uint)}
	if s.Hypervisor.Arch == archARM {
		target.Type, target.Model = "system-serial", &libvirtxml.DomainSerialTargetModel{Name: "pl011"}
	}
	return target
}

func (s DomainSpec) consoleLog() *libvirtxml.DomainChardevLog {
	if s.ConsoleLog == "" {
		return nil
	}
	return &libvirtxml.DomainChardevLog{File: s.ConsoleLog, Append: "on"}
}

func fileDisk(path, format, dev string, readOnly *libvirtxml.DomainDiskReadOnly) libvirtxml.DomainDisk {
	return libvirtxml.DomainDisk{
		Device:   "disk",
		Driver:   &libvirtxml.DomainDiskDriver{Name: "qemu", Type: format},
		Source:   &libvirtxml.DomainDiskSource{File: &libvirtxml.DomainDiskSourceFile{File: path}},
		Target:   &libvirtxml.DomainDiskTarget{Dev: dev, Bus: "virtio"},
		ReadOnly: readOnly,
	}
}

// OverlaySpec is a volume that holds what differs from its base.
type OverlaySpec struct {
	// Name is the volume's.
	Name string
	// CapacityBytes is the size of the disk, at least that of the base.
	CapacityBytes uint64
	// Base is the path of the base on the host and BaseFormat its format, which
	// libvirt does not guess.
	Base, BaseFormat string
}

// Volume builds the definition.
func (s OverlaySpec) Volume() *libvirtxml.StorageVolume {
	return &libvirtxml.StorageVolume{
		Name:       s.Name,
		Allocation: bytesOf(0),
		Capacity:   bytesOf(s.CapacityBytes),
		Target:     &libvirtxml.StorageVolumeTarget{Format: formatOf(diskimage.FormatQCOW2)},
		BackingStore: &libvirtxml.StorageVolumeBackingStore{
			Path: s.Base, Format: formatOf(s.BaseFormat),
		},
	}
}

// rawVolume is a volume that is filled by an upload, whatever it will hold.
func rawVolume(name string, capacity uint64) *libvirtxml.StorageVolume {
	return &libvirtxml.StorageVolume{
		Name:       name,
		Allocation: bytesOf(0),
		Capacity:   bytesOf(capacity),
		Target:     &libvirtxml.StorageVolumeTarget{Format: formatOf(diskimage.FormatRaw)},
	}
}

func bytesOf(n uint64) *libvirtxml.StorageVolumeSize {
	return &libvirtxml.StorageVolumeSize{Unit: "bytes", Value: n}
}

func formatOf(format string) *libvirtxml.StorageVolumeTargetFormat {
	return &libvirtxml.StorageVolumeTargetFormat{Type: format}
}
