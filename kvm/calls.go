package kvm

import (
	"context"
	"io"

	"github.com/digitalocean/go-libvirt"
)

// This file has one method for each function of libvirtAPI, with what its line
// in the log says: names and sizes, never UUIDs.

const uriSystem = string(libvirt.QEMUSystem)

func (c client) capabilities(ctx context.Context) (string, error) {
	return do(ctx, c, rpc{name: "virConnectGetCapabilities", read: true, args: []any{"uri", uriSystem}},
		func(l libvirtAPI) (answer[string], error) {
			xml, err := l.ConnectGetCapabilities()
			return answer[string]{xml, []any{"xmlBytes", len(xml)}, []any{"xml", xml}}, err
		})
}

func (c client) listDomains(ctx context.Context, flags libvirt.ConnectListAllDomainsFlags) ([]libvirt.Domain, error) {
	return do(ctx, c, rpc{name: "virConnectListAllDomains", read: true, args: flagArgs(flags)},
		func(l libvirtAPI) (answer[[]libvirt.Domain], error) {
			domains, _, err := l.ConnectListAllDomains(1, flags)
			return answer[[]libvirt.Domain]{domains, []any{"count", len(domains)}, []any{"names", domainNames(domains)}}, err
		})
}

func domainNames(domains []libvirt.Domain) []string {
	names := make([]string, 0, len(domains))
	for _, d := range domains {
		names = append(names, d.Name)
	}
	return names
}

// domainSizes waits for no domain that is busy.
func (c client) domainSizes(ctx context.Context) ([]domainSize, error) {
	const flags = libvirt.ConnectGetAllDomainsStatsNowait
	return do(ctx, c, rpc{name: "virConnectGetAllDomainStats", read: true, args: flagArgs(flags)},
		func(l libvirtAPI) (answer[[]domainSize], error) {
			records, err := l.ConnectGetAllDomainStats(nil, uint32(libvirt.DomainStatsBalloon), uint32(flags))
			sizes := make([]domainSize, 0, len(records))
			for _, r := range records {
				sizes = append(sizes, sizeOf(r))
			}
			return answer[[]domainSize]{sizes, []any{"count", len(sizes)}, nil}, err
		})
}

func (c client) nodeMemory(ctx context.Context) (memory, error) {
	return do(ctx, c, rpc{name: "virNodeGetMemoryStats", read: true},
		func(l libvirtAPI) (answer[memory], error) {
			stats, _, err := l.NodeGetMemoryStats(nodeMemoryStats, int32(libvirt.NodeMemoryStatsAllCells), 0)
			m := memoryOf(stats)
			return answer[memory]{m, []any{"total", m.total, "available", m.available}, nil}, err
		})
}

func (c client) libVersion(ctx context.Context) (uint64, error) {
	return do(ctx, c, rpc{name: "virConnectGetLibVersion", read: true}, func(l libvirtAPI) (answer[uint64], error) {
		version, err := l.ConnectGetLibVersion()
		return answer[uint64]{version, []any{"version", version}, nil}, err
	})
}

func (c client) hypervisorVersion(ctx context.Context) (uint64, error) {
	return do(ctx, c, rpc{name: "virConnectGetVersion", read: true}, func(l libvirtAPI) (answer[uint64], error) {
		version, err := l.ConnectGetVersion()
		return answer[uint64]{version, []any{"version", version}, nil}, err
	})
}

func (c client) domainCapabilities(ctx context.Context, v Hypervisor) (string, error) {
	r := rpc{name: "virConnectGetDomainCapabilities", read: true, args: []any{"arch", v.Arch, "machine", v.Machine, "type", v.Type}}
	return do(ctx, c, r, func(l libvirtAPI) (answer[string], error) {
		xml, err := l.ConnectGetDomainCapabilities(libvirt.OptString{v.Emulator}, libvirt.OptString{v.Arch}, libvirt.OptString{v.Machine}, libvirt.OptString{v.Type}, 0)
		return answer[string]{xml, []any{"xmlBytes", len(xml)}, []any{"xml", xml}}, err
	})
}

// netDevices are the names that libvirt gives to the host's network interfaces.
func (c client) netDevices(ctx context.Context) ([]string, error) {
	const flags = libvirt.ConnectListNodeDevicesCapNet
	return do(ctx, c, rpc{name: "virConnectListAllNodeDevices", read: true, args: flagArgs(flags)},
		func(l libvirtAPI) (answer[[]string], error) {
			devices, _, err := l.ConnectListAllNodeDevices(1, uint32(flags))
			names := make([]string, 0, len(devices))
			for _, d := range devices {
				names = append(names, d.Name)
			}
			return answer[[]string]{names, []any{"count", len(names)}, []any{"names", names}}, err
		})
}

// lifecycleEvents subscribes to the changes of all domains. The channel is closed
// after the end of ctx or of the connection, once the last event was taken.
func (c client) lifecycleEvents(ctx context.Context) (<-chan libvirt.DomainEventLifecycleMsg, error) {
	return do(ctx, c, rpc{name: "virConnectDomainEventRegisterAny", args: []any{"event", "lifecycle"}},
		func(l libvirtAPI) (answer[<-chan libvirt.DomainEventLifecycleMsg], error) {
			events, err := l.LifecycleEvents(ctx)
			return answer[<-chan libvirt.DomainEventLifecycleMsg]{value: events}, err
		})
}

func (c client) lookupDomain(ctx context.Context, name string) (libvirt.Domain, error) {
	return do(ctx, c, rpc{name: "virDomainLookupByName", read: true, args: []any{"domain", name}},
		func(l libvirtAPI) (answer[libvirt.Domain], error) {
			dom, err := l.DomainLookupByName(name)
			return answer[libvirt.Domain]{value: dom}, err
		})
}

func (c client) defineDomain(ctx context.Context, name, xml string, flags libvirt.DomainDefineFlags) (libvirt.Domain, error) {
	r := rpc{name: "virDomainDefineXMLFlags", args: flagArgs(flags, "domain", name, "xmlBytes", len(xml)), bodies: []any{"xml", xml}}
	return do(ctx, c, r, func(l libvirtAPI) (answer[libvirt.Domain], error) {
		dom, err := l.DomainDefineXMLFlags(xml, flags)
		return answer[libvirt.Domain]{value: dom}, err
	})
}

func (c client) metadata(ctx context.Context, dom libvirt.Domain) (string, error) {
	const typ, flags = libvirt.DomainMetadataElement, libvirt.DomainAffectConfig
	r := rpc{name: "virDomainGetMetadata", read: true, args: flagArgs(flags, "domain", dom.Name, "type", int(typ), "uri", metadataURI)}
	return do(ctx, c, r, func(l libvirtAPI) (answer[string], error) {
		text, err := l.DomainGetMetadata(dom, int32(typ), libvirt.OptString{metadataURI}, flags)
		return answer[string]{text, []any{"metadataBytes", len(text)}, []any{"metadata", text}}, err
	})
}

func (c client) setMetadata(ctx context.Context, dom libvirt.Domain, text string) error {
	const typ, flags = libvirt.DomainMetadataElement, libvirt.DomainAffectConfig
	r := rpc{name: "virDomainSetMetadata", args: flagArgs(flags, "domain", dom.Name, "type", int(typ), "uri", metadataURI, "metadataBytes", len(text)), bodies: []any{"metadata", text}}
	return run(ctx, c, r, func(l libvirtAPI) error {
		return l.DomainSetMetadata(dom, int32(typ), libvirt.OptString{text}, libvirt.OptString{metadataPrefix}, libvirt.OptString{metadataURI}, flags)
	})
}

// domainState is a state of libvirt with its reason.
type domainState struct {
	state  libvirt.DomainState
	reason int32
}

func (c client) domainState(ctx context.Context, dom libvirt.Domain) (domainState, error) {
	return do(ctx, c, rpc{name: "virDomainGetState", read: true, args: []any{"domain", dom.Name}},
		func(l libvirtAPI) (answer[domainState], error) {
			state, reason, err := l.DomainGetState(dom, 0)
			return answer[domainState]{domainState{libvirt.DomainState(state), reason}, []any{"state", state, "reason", reason}, nil}, err
		})
}

func (c client) setAutostart(ctx context.Context, dom libvirt.Domain, on bool) error {
	var autostart int32
	if on {
		autostart = 1
	}
	return run(ctx, c, rpc{name: "virDomainSetAutostart", args: []any{"domain", dom.Name, "autostart", on}},
		func(l libvirtAPI) error { return l.DomainSetAutostart(dom, autostart) })
}

func (c client) startDomain(ctx context.Context, dom libvirt.Domain) error {
	return run(ctx, c, rpc{name: "virDomainCreate", args: []any{"domain", dom.Name}},
		func(l libvirtAPI) error { return l.DomainCreate(dom) })
}

func (c client) destroyDomain(ctx context.Context, dom libvirt.Domain) error {
	return run(ctx, c, rpc{name: "virDomainDestroyFlags", args: []any{"domain", dom.Name}},
		func(l libvirtAPI) error { return l.DomainDestroyFlags(dom, 0) })
}

func (c client) undefineDomain(ctx context.Context, dom libvirt.Domain, flags libvirt.DomainUndefineFlagsValues) error {
	return run(ctx, c, rpc{name: "virDomainUndefineFlags", args: flagArgs(flags, "domain", dom.Name)},
		func(l libvirtAPI) error { return l.DomainUndefineFlags(dom, flags) })
}

func (c client) interfaceAddresses(ctx context.Context, dom libvirt.Domain, source libvirt.DomainInterfaceAddressesSource) ([]libvirt.DomainInterface, error) {
	r := rpc{name: "virDomainInterfaceAddresses", read: true, args: []any{"domain", dom.Name, "source", sourceNames[source]}}
	return do(ctx, c, r, func(l libvirtAPI) (answer[[]libvirt.DomainInterface], error) {
		ifaces, err := l.DomainInterfaceAddresses(dom, uint32(source), 0) //nolint:gosec // a small constant.
		return answer[[]libvirt.DomainInterface]{ifaces, []any{"interfaces", len(ifaces)}, []any{"addresses", addressTexts(ifaces)}}, err
	})
}

func addressTexts(ifaces []libvirt.DomainInterface) []string {
	var texts []string
	for _, i := range ifaces {
		for _, a := range i.Addrs {
			texts = append(texts, i.Name+" "+a.Addr)
		}
	}
	return texts
}

func (c client) lookupNetwork(ctx context.Context, name string) (libvirt.Network, error) {
	return do(ctx, c, rpc{name: "virNetworkLookupByName", read: true, args: []any{"network", name}},
		func(l libvirtAPI) (answer[libvirt.Network], error) {
			network, err := l.NetworkLookupByName(name)
			return answer[libvirt.Network]{value: network}, err
		})
}

func (c client) networkActive(ctx context.Context, network libvirt.Network) (bool, error) {
	return do(ctx, c, rpc{name: "virNetworkIsActive", read: true, args: []any{"network", network.Name}},
		func(l libvirtAPI) (answer[bool], error) {
			active, err := l.NetworkIsActive(network)
			return answer[bool]{active != 0, []any{"active", active != 0}, nil}, err
		})
}

func (c client) lookupPool(ctx context.Context, name string) (libvirt.StoragePool, error) {
	return do(ctx, c, rpc{name: "virStoragePoolLookupByName", read: true, args: []any{"pool", name}},
		func(l libvirtAPI) (answer[libvirt.StoragePool], error) {
			pool, err := l.StoragePoolLookupByName(name)
			return answer[libvirt.StoragePool]{value: pool}, err
		})
}

func (c client) lookupPoolAt(ctx context.Context, path string) (libvirt.StoragePool, error) {
	return do(ctx, c, rpc{name: "virStoragePoolLookupByTargetPath", read: true, args: []any{"path", path}},
		func(l libvirtAPI) (answer[libvirt.StoragePool], error) {
			pool, err := l.StoragePoolLookupByTargetPath(path)
			return answer[libvirt.StoragePool]{value: pool}, err
		})
}

// createPool starts a pool that libvirt forgets when it is stopped.
func (c client) createPool(ctx context.Context, name, xml string) (libvirt.StoragePool, error) {
	r := rpc{name: "virStoragePoolCreateXML", args: []any{"pool", name, "xmlBytes", len(xml)}, bodies: []any{"xml", xml}}
	return do(ctx, c, r, func(l libvirtAPI) (answer[libvirt.StoragePool], error) {
		pool, err := l.StoragePoolCreateXML(xml, 0)
		return answer[libvirt.StoragePool]{value: pool}, err
	})
}

func (c client) stopPool(ctx context.Context, pool libvirt.StoragePool) error {
	return run(ctx, c, rpc{name: "virStoragePoolDestroy", args: []any{"pool", pool.Name}},
		func(l libvirtAPI) error { return l.StoragePoolDestroy(pool) })
}

func (c client) poolXML(ctx context.Context, pool libvirt.StoragePool) (string, error) {
	return do(ctx, c, rpc{name: "virStoragePoolGetXMLDesc", read: true, args: []any{"pool", pool.Name}},
		func(l libvirtAPI) (answer[string], error) {
			xml, err := l.StoragePoolGetXMLDesc(pool, 0)
			return answer[string]{xml, []any{"xmlBytes", len(xml)}, []any{"xml", xml}}, err
		})
}

func (c client) poolSpace(ctx context.Context, pool libvirt.StoragePool) (space, error) {
	return do(ctx, c, rpc{name: "virStoragePoolGetInfo", read: true, args: []any{"pool", pool.Name}},
		func(l libvirtAPI) (answer[space], error) {
			state, capacity, _, available, err := l.StoragePoolGetInfo(pool)
			active := libvirt.StoragePoolState(state) == libvirt.StoragePoolRunning
			return answer[space]{space{capacity, available, active}, []any{"state", state, "capacity", capacity, "available", available}, nil}, err
		})
}

func (c client) poolAutostart(ctx context.Context, pool libvirt.StoragePool) (bool, error) {
	return do(ctx, c, rpc{name: "virStoragePoolGetAutostart", read: true, args: []any{"pool", pool.Name}},
		func(l libvirtAPI) (answer[bool], error) {
			on, err := l.StoragePoolGetAutostart(pool)
			return answer[bool]{on != 0, []any{"autostart", on != 0}, nil}, err
		})
}

func (c client) refreshPool(ctx context.Context, pool libvirt.StoragePool) error {
	return run(ctx, c, rpc{name: "virStoragePoolRefresh", read: true, args: []any{"pool", pool.Name}},
		func(l libvirtAPI) error { return l.StoragePoolRefresh(pool, 0) })
}

func (c client) lookupVolume(ctx context.Context, pool libvirt.StoragePool, name string) (libvirt.StorageVol, error) {
	return do(ctx, c, rpc{name: "virStorageVolLookupByName", read: true, args: []any{"pool", pool.Name, "volume", name}},
		func(l libvirtAPI) (answer[libvirt.StorageVol], error) {
			vol, err := l.StorageVolLookupByName(pool, name)
			return answer[libvirt.StorageVol]{value: vol}, err
		})
}

func (c client) volumePath(ctx context.Context, vol libvirt.StorageVol) (string, error) {
	return do(ctx, c, rpc{name: "virStorageVolGetPath", read: true, args: volumeArgs(vol)},
		func(l libvirtAPI) (answer[string], error) {
			path, err := l.StorageVolGetPath(vol)
			return answer[string]{path, []any{"path", path}, nil}, err
		})
}

// volumeSize is what libvirt knows of a volume's size, in bytes: capacity is the
// size of the disk in it, and physical that of its file.
type volumeSize struct{ capacity, physical uint64 }

func (c client) volumeSize(ctx context.Context, vol libvirt.StorageVol) (volumeSize, error) {
	const flags = libvirt.StorageVolGetPhysical
	return do(ctx, c, rpc{name: "virStorageVolGetInfoFlags", read: true, args: flagArgs(flags, volumeArgs(vol)...)},
		func(l libvirtAPI) (answer[volumeSize], error) {
			_, capacity, physical, err := l.StorageVolGetInfoFlags(vol, uint32(flags))
			return answer[volumeSize]{volumeSize{capacity, physical}, []any{"capacity", capacity, "physical", physical}, nil}, err
		})
}

func (c client) createVolume(ctx context.Context, pool libvirt.StoragePool, name, xml string) (libvirt.StorageVol, error) {
	r := rpc{name: "virStorageVolCreateXML", args: []any{"pool", pool.Name, "volume", name, "xmlBytes", len(xml)}, bodies: []any{"xml", xml}}
	return do(ctx, c, r, func(l libvirtAPI) (answer[libvirt.StorageVol], error) {
		vol, err := l.StorageVolCreateXML(pool, xml, 0)
		return answer[libvirt.StorageVol]{value: vol}, err
	})
}

func (c client) deleteVolume(ctx context.Context, vol libvirt.StorageVol) error {
	return run(ctx, c, rpc{name: "virStorageVolDelete", args: volumeArgs(vol)},
		func(l libvirtAPI) error { return l.StorageVolDelete(vol, 0) })
}

// uploadVolume sends all of stream to the volume from offset on. Length 0 sets
// no limit.
func (c client) uploadVolume(ctx context.Context, vol libvirt.StorageVol, stream io.Reader, offset, length uint64) error {
	return run(ctx, c, rpc{name: "virStorageVolUpload", args: append(volumeArgs(vol), "offset", offset, "length", length)},
		func(l libvirtAPI) error { return l.StorageVolUpload(vol, stream, offset, length, 0) })
}

// downloadVolume writes length bytes of the volume from offset on to w.
func (c client) downloadVolume(ctx context.Context, vol libvirt.StorageVol, w io.Writer, offset, length uint64) error {
	return run(ctx, c, rpc{name: "virStorageVolDownload", args: append(volumeArgs(vol), "offset", offset, "length", length)},
		func(l libvirtAPI) error { return l.StorageVolDownload(vol, w, offset, length, 0) })
}

func (c client) listVolumes(ctx context.Context, pool libvirt.StoragePool) ([]libvirt.StorageVol, error) {
	return do(ctx, c, rpc{name: "virStoragePoolListAllVolumes", read: true, args: []any{"pool", pool.Name}},
		func(l libvirtAPI) (answer[[]libvirt.StorageVol], error) {
			vols, _, err := l.StoragePoolListAllVolumes(pool, 1, 0)
			return answer[[]libvirt.StorageVol]{vols, []any{"count", len(vols)}, []any{"names", volumeNames(vols)}}, err
		})
}

func volumeNames(vols []libvirt.StorageVol) []string {
	names := make([]string, 0, len(vols))
	for _, v := range vols {
		names = append(names, v.Name)
	}
	return names
}

func (c client) volumeXML(ctx context.Context, vol libvirt.StorageVol) (string, error) {
	return do(ctx, c, rpc{name: "virStorageVolGetXMLDesc", read: true, args: volumeArgs(vol)},
		func(l libvirtAPI) (answer[string], error) {
			xml, err := l.StorageVolGetXMLDesc(vol, 0)
			return answer[string]{xml, []any{"xmlBytes", len(xml)}, []any{"xml", xml}}, err
		})
}

func volumeArgs(vol libvirt.StorageVol) []any { return []any{"pool", vol.Pool, "volume", vol.Name} }
