package fakelibvirt

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/digitalocean/go-libvirt"
	"libvirt.org/go/libvirtxml"
)

// ErrCut is what calls of a cut connection return, as go-libvirt's do.
var ErrCut = libvirt.ErrInterrupted

// Conn is one connection to a Host.
type Conn struct {
	h *Host

	once sync.Once
	cut  chan struct{}
	// OnCut, if set, is called when the connection is cut.
	OnCut func(error)
}

// Connect makes a connection.
func (h *Host) Connect() *Conn { return &Conn{h: h, cut: make(chan struct{})} }

// Cut ends the connection: calls under way and later ones return ErrCut.
func (c *Conn) Cut() {
	first := false
	c.once.Do(func() {
		first = true
		close(c.cut)
	})
	if first && c.OnCut != nil { // which may cut in its turn
		c.OnCut(io.EOF)
	}
}

// begin counts a call in, and lets Before have its way.
func (c *Conn) begin(rpc, object string) (Call, error) {
	c.h.mu.Lock()
	c.h.calls = append(c.h.calls, rpc)
	call := Call{RPC: rpc, Object: object, Number: len(c.h.calls)}
	before := c.h.Before
	c.h.mu.Unlock()
	return call, c.hook(before, call)
}

// hook runs a hook, which a cut ends early.
func (c *Conn) hook(f func(Call) error, call Call) error {
	select {
	case <-c.cut:
		return ErrCut
	default:
	}
	if f == nil {
		return nil
	}
	done := make(chan error, 1)
	go func() { done <- f(call) }()
	select {
	case err := <-done:
		if errors.Is(err, ErrCut) {
			c.Cut()
		}
		return err
	case <-c.cut:
		return ErrCut
	}
}

// do runs the effect of one call.
func do[T any](c *Conn, rpc, object string, effect func(*Host) (T, error)) (out T, err error) {
	call, err := c.begin(rpc, object)
	if err != nil {
		return out, err
	}
	c.h.mu.Lock()
	out, err = effect(c.h)
	after := c.h.After
	c.h.mu.Unlock()
	if hookErr := c.hook(after, call); hookErr != nil {
		var none T
		return none, hookErr
	}
	return out, err
}

func run(c *Conn, rpc, object string, effect func(*Host) error) error {
	_, err := do(c, rpc, object, func(h *Host) (struct{}, error) { return struct{}{}, effect(h) })
	return err
}

// ConnectGetCapabilities implements the function of go-libvirt.
func (c *Conn) ConnectGetCapabilities() (string, error) {
	return do(c, "virConnectGetCapabilities", "", func(h *Host) (string, error) {
		if h.Capabilities == "" {
			return emulationOnly, nil
		}
		return h.Capabilities, nil
	})
}

// ConnectGetAllDomainStats implements the function of go-libvirt, for the memory
// of all domains.
func (c *Conn) ConnectGetAllDomainStats([]libvirt.Domain, uint32, uint32) ([]libvirt.DomainStatsRecord, error) {
	return do(c, "virConnectGetAllDomainStats", "", func(h *Host) ([]libvirt.DomainStatsRecord, error) {
		var all []libvirt.DomainStatsRecord
		for _, name := range sortedKeys(h.domains) {
			d := h.domains[name]
			r := libvirt.DomainStatsRecord{Dom: d.handle(name)}
			if d.XML.Memory != nil {
				r.Params = []libvirt.TypedParam{{Field: "balloon.maximum", Value: *libvirt.NewTypedParamValueUllong(uint64(d.XML.Memory.Value) >> 10)}}
			}
			all = append(all, r)
		}
		return all, nil
	})
}

// NodeGetMemoryStats implements the function of go-libvirt.
func (c *Conn) NodeGetMemoryStats(params, _ int32, _ uint32) ([]libvirt.NodeGetMemoryStats, int32, error) {
	stats, err := do(c, "virNodeGetMemoryStats", "", func(h *Host) ([]libvirt.NodeGetMemoryStats, error) {
		if params != 4 {
			return nil, Errorf(libvirt.ErrInvalidArg, "invalid argument: nparams must be equal to 4")
		}
		total := h.MemoryBytes
		if total == 0 {
			total = 64 << 30
		}
		free := h.FreeBytes
		if free == 0 {
			free = total
		}
		return []libvirt.NodeGetMemoryStats{
			{Field: "total", Value: total >> 10}, {Field: "free", Value: free >> 11},
			{Field: "buffers", Value: 0}, {Field: "cached", Value: free>>10 - free>>11},
		}, nil
	})
	return stats, int32(len(stats)), err //nolint:gosec // four.
}

// NetworkLookupByName implements the function of go-libvirt.
func (c *Conn) NetworkLookupByName(name string) (libvirt.Network, error) {
	return do(c, "virNetworkLookupByName", name, func(h *Host) (libvirt.Network, error) {
		if _, ok := h.networks[name]; !ok {
			return libvirt.Network{}, Errorf(libvirt.ErrNoNetwork, "Network not found: no network with matching name '%s'", name)
		}
		return libvirt.Network{Name: name}, nil
	})
}

// NetworkIsActive implements the function of go-libvirt.
func (c *Conn) NetworkIsActive(network libvirt.Network) (int32, error) {
	return do(c, "virNetworkIsActive", network.Name, func(h *Host) (int32, error) {
		if h.networks[network.Name] {
			return 1, nil
		}
		return 0, nil
	})
}

// ConnectListAllDomains implements the function of go-libvirt.
func (c *Conn) ConnectListAllDomains(_ int32, flags libvirt.ConnectListAllDomainsFlags) ([]libvirt.Domain, uint32, error) {
	list, err := do(c, "virConnectListAllDomains", "", func(h *Host) ([]libvirt.Domain, error) {
		var list []libvirt.Domain
		for _, name := range sortedKeys(h.domains) {
			if d := h.domains[name]; flags == 0 || flags&stateFlag(d.State) != 0 {
				list = append(list, d.handle(name))
			}
		}
		return list, nil
	})
	return list, uint32(len(list)), err //nolint:gosec // few.
}

func stateFlag(state int32) libvirt.ConnectListAllDomainsFlags {
	switch libvirt.DomainState(state) {
	case libvirt.DomainRunning:
		return libvirt.ConnectListDomainsRunning
	case libvirt.DomainPaused:
		return libvirt.ConnectListDomainsPaused
	case libvirt.DomainShutoff:
		return libvirt.ConnectListDomainsShutoff
	}
	return libvirt.ConnectListDomainsOther
}

func (d *Domain) handle(name string) libvirt.Domain {
	return libvirt.Domain{Name: name, UUID: d.UUID, ID: d.id}
}

func (h *Host) domainOf(dom libvirt.Domain) (*Domain, error) {
	d := h.domains[dom.Name]
	if d == nil || d.UUID != dom.UUID {
		return nil, Errorf(libvirt.ErrNoDomain, "Domain not found: no domain with matching uuid (%s)", dom.Name)
	}
	return d, nil
}

// DomainLookupByName implements the function of go-libvirt.
func (c *Conn) DomainLookupByName(name string) (libvirt.Domain, error) {
	return do(c, "virDomainLookupByName", name, func(h *Host) (libvirt.Domain, error) {
		d := h.domains[name]
		if d == nil {
			return libvirt.Domain{}, Errorf(libvirt.ErrNoDomain, "Domain not found: no domain with matching name '%s'", name)
		}
		return d.handle(name), nil
	})
}

// DomainDefineXMLFlags implements the function of go-libvirt.
func (c *Conn) DomainDefineXMLFlags(text string, _ libvirt.DomainDefineFlags) (libvirt.Domain, error) {
	var x libvirtxml.Domain
	if err := x.Unmarshal(text); err != nil {
		return libvirt.Domain{}, Errorf(libvirt.ErrXMLDetail, "(domain_definition):1: %v", err)
	}
	return do(c, "virDomainDefineXMLFlags", x.Name, func(h *Host) (libvirt.Domain, error) { return h.define(x) })
}

func (h *Host) define(x libvirtxml.Domain) (libvirt.Domain, error) {
	if x.OS != nil && x.OS.Firmware == "efi" && h.NoFirmware {
		return libvirt.Domain{}, Errorf(libvirt.ErrOperationFailed, "operation failed: Unable to find any firmware to satisfy 'efi'")
	}
	d := h.domains[x.Name]
	switch {
	case d == nil:
		d = &Domain{UUID: newUUID(), State: int32(libvirt.DomainShutoff), id: -1}
		h.domains[x.Name] = d
	case x.UUID != uuidText(d.UUID):
		return libvirt.Domain{}, Errorf(libvirt.ErrOperationFailed, "operation failed: domain '%s' already exists with uuid %s", x.Name, uuidText(d.UUID))
	}
	defer h.emit(x.Name, libvirt.DomainEventDefined)
	d.XML, d.metadata = x, map[string]string{}
	if x.Metadata == nil || strings.TrimSpace(x.Metadata.XML) == "" {
		return d.handle(x.Name), nil
	}
	return d.handle(x.Name), d.keepMetadata(x.Metadata.XML)
}

func uuidText(u libvirt.UUID) string {
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[0:4], u[4:6], u[6:8], u[8:10], u[10:16])
}

// element is one element of the metadata.
type element struct {
	XMLName xml.Name
	Attrs   []xml.Attr `xml:",any,attr"`
	Inner   string     `xml:",innerxml"`
}

func (d *Domain) keepMetadata(text string) error {
	var all struct {
		Elements []element `xml:",any"`
	}
	if err := xml.Unmarshal([]byte("<metadata>"+text+"</metadata>"), &all); err != nil {
		return Errorf(libvirt.ErrXMLDetail, "(domain_definition): %v", err)
	}
	for _, e := range all.Elements {
		d.metadata[e.XMLName.Space] = e.bare()
	}
	return nil
}

// bare is the element without its namespace.
func (e element) bare() string {
	var attrs strings.Builder
	for _, a := range e.Attrs {
		if a.Name.Local != "xmlns" && a.Name.Space != "xmlns" {
			fmt.Fprintf(&attrs, " %s='%s'", a.Name.Local, a.Value)
		}
	}
	return "<" + e.XMLName.Local + attrs.String() + ">" + e.Inner + "</" + e.XMLName.Local + ">"
}

// DomainGetMetadata implements the function of go-libvirt.
func (c *Conn) DomainGetMetadata(dom libvirt.Domain, typ int32, uri libvirt.OptString, _ libvirt.DomainModificationImpact) (string, error) {
	return do(c, "virDomainGetMetadata", dom.Name, func(h *Host) (string, error) {
		d, err := h.domainOf(dom)
		if err != nil {
			return "", err
		}
		text, ok := "", false
		if typ == int32(libvirt.DomainMetadataElement) && len(uri) == 1 {
			text, ok = d.metadata[uri[0]]
		}
		if !ok {
			return "", Errorf(libvirt.ErrNoDomainMetadata, "metadata not found: Requested metadata element is not present")
		}
		return h.Form.render(text, uri[0]), nil
	})
}

// render gives a bare element the form that a version of libvirt has.
func (f MetadataForm) render(text, uri string) string {
	open, rest, _ := strings.Cut(text, ">")
	name, attrs, _ := strings.Cut(strings.TrimPrefix(open, "<"), " ")
	rest = strings.TrimSuffix(rest, "</"+name+">")
	switch f {
	case Bare:
		return "<egress:" + name + " " + attrs + ">" + rest + "</egress:" + name + ">"
	case Default:
		return "<" + name + " xmlns='" + uri + "' " + attrs + ">" + rest + "</" + name + ">"
	}
	return "<egress:" + name + " xmlns:egress='" + uri + "' " + attrs + ">" + rest + "</egress:" + name + ">"
}

// DomainSetMetadata implements the function of go-libvirt.
func (c *Conn) DomainSetMetadata(dom libvirt.Domain, typ int32, text, key, uri libvirt.OptString, _ libvirt.DomainModificationImpact) error {
	return run(c, "virDomainSetMetadata", dom.Name, func(h *Host) error {
		d, err := h.domainOf(dom)
		if err != nil {
			return err
		}
		if typ != int32(libvirt.DomainMetadataElement) || len(text) != 1 || len(key) != 1 || len(uri) != 1 {
			return Errorf(libvirt.ErrInvalidArg, "invalid argument: key and uri are required for an element")
		}
		var e element
		if err := xml.Unmarshal([]byte(text[0]), &e); err != nil {
			return Errorf(libvirt.ErrXMLDetail, "(metadata): %v", err)
		}
		d.metadata[uri[0]] = e.bare()
		return nil
	})
}

// DomainGetState implements the function of go-libvirt.
func (c *Conn) DomainGetState(dom libvirt.Domain, _ uint32) (state, reason int32, err error) {
	d, err := do(c, "virDomainGetState", dom.Name, func(h *Host) (Domain, error) {
		d, err := h.domainOf(dom)
		if err != nil {
			return Domain{}, err
		}
		return *d, nil
	})
	return d.State, d.Reason, err
}

// DomainSetAutostart implements the function of go-libvirt.
func (c *Conn) DomainSetAutostart(dom libvirt.Domain, autostart int32) error {
	return run(c, "virDomainSetAutostart", dom.Name, func(h *Host) error {
		d, err := h.domainOf(dom)
		if err == nil {
			d.Autostart = autostart != 0
		}
		return err
	})
}

// DomainCreate implements the function of go-libvirt.
func (c *Conn) DomainCreate(dom libvirt.Domain) error {
	return run(c, "virDomainCreate", dom.Name, func(h *Host) error {
		d, err := h.domainOf(dom)
		if err != nil {
			return err
		}
		if d.id >= 0 {
			return Errorf(libvirt.ErrOperationInvalid, "Requested operation is not valid: domain is already running")
		}
		if err := h.start(d); err != nil {
			d.State, d.Reason = int32(libvirt.DomainShutoff), int32(libvirt.DomainShutoffFailed)
			return err
		}
		d.State, d.Reason, d.id = int32(libvirt.DomainRunning), 1, h.idFor(libvirt.DomainRunning)
		h.emit(dom.Name, libvirt.DomainEventStarted)
		return nil
	})
}

// start checks what QEMU and the host would.
func (h *Host) start(d *Domain) error {
	for _, disk := range d.XML.Devices.Disks {
		if disk.Source == nil || disk.Source.File == nil {
			return Errorf(libvirt.ErrInternalError, "internal error: process exited while connecting to monitor: Could not open: Permission denied")
		}
		file := h.fileOf(disk.Source.File.File)
		if file == nil {
			return Errorf(libvirt.ErrSystemError, "Cannot access storage file '%s': No such file or directory", disk.Source.File.File)
		}
		if file.backing != "" && h.fileOf(file.backing) == nil {
			return Errorf(libvirt.ErrSystemError, "Cannot access backing file '%s' of storage file '%s': No such file or directory", file.backing, disk.Source.File.File)
		}
		if disk.ReadOnly != nil {
			d.Seed = slices.Clone(file.content)
		}
	}
	for _, serial := range d.XML.Devices.Serials {
		if h.NoConsoleLogs && serial.Log != nil {
			return Errorf(libvirt.ErrSystemError, "Unable to open file: %s: No such file or directory", serial.Log.File)
		}
	}
	for _, i := range d.XML.Devices.Interfaces {
		if err := h.plug(i); err != nil {
			return err
		}
	}
	return nil
}

// plug checks what a card is attached to.
func (h *Host) plug(i libvirtxml.DomainInterface) error {
	switch {
	case i.Source.Bridge != nil && slices.Contains(h.NoBridges, i.Source.Bridge.Bridge):
		return Errorf(libvirt.ErrSystemError, "Cannot get interface MTU on '%s': No such device", i.Source.Bridge.Bridge)
	case i.Source.Bridge != nil && i.VLan != nil && i.VirtualPort == nil:
		return Errorf(libvirt.ErrConfigUnsupported, "unsupported configuration: interface %s - vlan tag not supported for this connection type", i.MAC.Address)
	case i.Source.Network != nil && !h.networks[i.Source.Network.Network]:
		return Errorf(libvirt.ErrOperationInvalid, "Requested operation is not valid: network '%s' is not active", i.Source.Network.Network)
	}
	return nil
}

// DomainDestroyFlags implements the function of go-libvirt.
func (c *Conn) DomainDestroyFlags(dom libvirt.Domain, _ libvirt.DomainDestroyFlagsValues) error {
	return run(c, "virDomainDestroyFlags", dom.Name, func(h *Host) error {
		d, err := h.domainOf(dom)
		if err != nil {
			return err
		}
		if d.id < 0 {
			return Errorf(libvirt.ErrOperationInvalid, "Requested operation is not valid: domain is not running")
		}
		d.State, d.Reason, d.id = int32(libvirt.DomainShutoff), int32(libvirt.DomainShutoffDestroyed), -1
		h.emit(dom.Name, libvirt.DomainEventStopped)
		return nil
	})
}

// DomainUndefineFlags implements the function of go-libvirt.
func (c *Conn) DomainUndefineFlags(dom libvirt.Domain, flags libvirt.DomainUndefineFlagsValues) error {
	return run(c, "virDomainUndefineFlags", dom.Name, func(h *Host) error {
		d, err := h.domainOf(dom)
		if err != nil {
			return err
		}
		if unknown := flags &^ h.UndefineFlags; h.UndefineFlags != 0 && unknown != 0 {
			return Errorf(libvirt.ErrInvalidArg, "invalid argument: unsupported flags (0x%x) in function qemuDomainUndefineFlags", int(unknown))
		}
		if d.XML.OS != nil && d.XML.OS.Firmware == "efi" && flags&libvirt.DomainUndefineNvram == 0 {
			return Errorf(libvirt.ErrOperationInvalid, "Requested operation is not valid: cannot undefine domain with nvram")
		}
		h.emit(dom.Name, libvirt.DomainEventUndefined)
		delete(h.domains, dom.Name)
		return nil
	})
}

// DomainInterfaceAddresses implements the function of go-libvirt.
func (c *Conn) DomainInterfaceAddresses(dom libvirt.Domain, source, _ uint32) ([]libvirt.DomainInterface, error) {
	return do(c, "virDomainInterfaceAddresses", dom.Name, func(h *Host) ([]libvirt.DomainInterface, error) {
		if _, err := h.domainOf(dom); err != nil {
			return nil, err
		}
		found, ok := h.addresses[dom.Name][source]
		switch {
		case ok:
			return found, nil
		case source == uint32(libvirt.DomainInterfaceAddressesSrcAgent):
			return nil, Errorf(libvirt.ErrAgentUnresponsive, "Guest agent is not responding: QEMU guest agent is not connected")
		case source == uint32(libvirt.DomainInterfaceAddressesSrcArp):
			return nil, Errorf(libvirt.ErrInternalError, "internal error: wrong nlmsg len")
		}
		return nil, nil
	})
}
