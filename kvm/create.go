package kvm

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"path"
	"strings"
	"time"

	"github.com/digitalocean/go-libvirt"
	"github.com/go-logr/logr"
	"libvirt.org/go/libvirtxml"

	"github.com/egressfleet/egress/cloudinit"
	"github.com/egressfleet/egress/provider"
)

// Create implements [provider.Provider]. It returns when the domain runs, which
// is before its guest has booted. The first Create with an image on a host
// takes as long as the image needs to get there.
func (p *Provider) Create(ctx context.Context, req provider.CreateRequest) (string, error) {
	if err := req.Validate(); err != nil {
		return "", p.failure("Create", "", "", provider.Permanentf(provider.CodeInvalidRequest, "%w", err))
	}
	name := provider.Name(req.UID)
	pl, err := p.place(req.Placement)
	if pl.host == nil {
		return "", p.failure("Create", "", "", err)
	}
	id := ids.Format(pl.host.Name, name)
	if err != nil {
		return id, p.failure("Create", id, pl.host.Name, err)
	}
	return id, p.operate(ctx, "Create", pl.host, name, func(ctx context.Context, o *operation) error {
		seed, err := p.seed(name, req.UserData, nil)
		if err != nil {
			return err
		}
		c := &creation{operation: o, place: pl, req: req, seed: seed}
		return p.exclusively(ctx, pl.host, name, c.run)
	})
}

// maxUserData is the most that a seed takes, in bytes. cloud-init itself has no
// limit; clouds have 16 to 256 KiB, and what is larger is rather a mistake, such as
// an image, that every guest would be sent.
const maxUserData = 4 << 20

// seed builds the disk that cloud-init reads. Its errors quote no document.
func (p *Provider) seed(name string, userData provider.UserData, network []byte) ([]byte, error) {
	if len(userData) > maxUserData {
		return nil, provider.Permanentf(provider.CodeInvalidRequest, "userData has %d bytes, and %d is the most: have the guest fetch what is large", len(userData), maxUserData)
	}
	vendor, err := []byte(p.cfg.VendorData), error(nil)
	if p.cfg.InstallGuestAgent.Or(true) {
		vendor, err = cloudinit.WithGuestAgent(vendor)
	}
	if err != nil {
		return nil, provider.Permanentf(provider.CodeInvalidRequest, "vendorData: %w", err)
	}
	iso, err := cloudinit.Seed{
		MetaData: cloudinit.MetaData{InstanceID: name, LocalHostname: name},
		UserData: userData, VendorData: vendor, NetworkConfig: network,
	}.ISO()
	if err != nil {
		return nil, provider.Permanentf(provider.CodeInvalidRequest, "the seed cannot be built: %w", err)
	}
	return iso, nil
}

// creation is one Create at work.
type creation struct {
	*operation
	place place
	req   provider.CreateRequest
	seed  []byte

	facts  facts
	survey *survey
	base   base
	dom    libvirt.Domain
	// found is whether dom existed, and record what its metadata says or shall
	// say.
	found  bool
	record record
	// mine is whether the domain was never started, so that a failure that
	// cannot heal undoes it.
	mine bool
	// refetched is whether the base image was fetched a second time.
	refetched bool
	// mute leaves out the log of the console, which not every host can write.
	mute bool
}

// step is one step of an operation.
type step struct {
	name string
	run  func(context.Context) error
}

// runSteps runs them in order, each told to the trace.
func (o *operation) runSteps(ctx context.Context, steps []step) error {
	for _, s := range steps {
		ctx, end := o.p.cfg.Trace.step(ctx, StepInfo{OperationInfo: o.info, Step: s.name})
		err := s.run(ctx)
		end(err)
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *creation) run(ctx context.Context) error {
	var err error
	if c.facts, err = c.p.factsOf(ctx, c.host); err != nil {
		return err
	}
	if err := c.facts.hypervisor.checkFirmware(c.place.image.Firmware); err != nil {
		return err
	}
	c.survey = c.startSurvey(ctx)
	defer func() { <-c.survey.done }()
	steps, err := c.plan(ctx)
	if err == nil {
		err = c.runSteps(ctx, steps)
	}
	if err != nil {
		return c.failed(ctx, err)
	}
	c.log.V(1).Info("KVM domain ensured running")
	return nil
}

// plan looks at what exists and returns the steps that are left.
func (c *creation) plan(ctx context.Context) ([]step, error) {
	start := []step{{"autostart", c.autostart}, {"start", c.startDomain}}
	finish := append([]step{{"mark", c.mark}}, start...)
	whole := append([]step{{"room", c.checkRoom}, {"base-image", c.baseImage}, {"define", c.define}, {"overlay", c.overlay}, {"seed", c.uploadSeed}}, finish...)

	if err := c.find(ctx); err != nil || !c.found {
		return whole, err
	}
	active, err := c.active(ctx)
	if err != nil {
		return nil, err
	}
	c.mine = c.record.Stage == stageMaking
	switch {
	case active && c.mine:
		return finish, nil
	case active:
		return nil, nil
	case c.mine:
		return whole, nil
	}
	// A deletion that was cut off has taken the volumes already.
	if ok, err := c.hasVolumes(ctx); ok || err != nil {
		return start, err
	}
	c.record.Stage = stageMaking
	return whole, nil
}

// find looks for a domain with our name, and refuses one that is not ours.
func (c *creation) find(ctx context.Context) (err error) {
	c.dom, err = c.client().lookupDomain(ctx, c.name)
	if isLibvirt(err, libvirt.ErrNoDomain) {
		return nil
	}
	if err != nil {
		return err
	}
	if c.record, err = c.readRecord(ctx, c.dom); err != nil {
		return err
	}
	if c.record.UID != c.req.UID || c.record.Tag != c.req.Tag {
		return collision("domain %s belongs to tag %q and uid %q", c.name, c.record.Tag, c.record.UID)
	}
	c.found = true
	return nil
}

func collision(format string, args ...any) error {
	return provider.Permanentf(provider.CodeCollision, format, args...)
}

// readRecord reads the metadata of a domain that has a name of ours. One that
// has not our metadata is a collision.
func (o *operation) readRecord(ctx context.Context, dom libvirt.Domain) (record, error) {
	if r, ok := o.host.seen.get(dom); ok {
		return r, nil
	}
	text, err := o.client().metadata(ctx, dom)
	if isLibvirt(err, libvirt.ErrNoDomainMetadata) {
		return record{}, collision("domain %s was not made by this library: it has no metadata of ours", dom.Name)
	}
	if err != nil {
		return record{}, err
	}
	r, err := parseRecord(text)
	if errors.Is(err, errNotOurs) {
		return record{}, collision("domain %s: %w", dom.Name, err)
	}
	if err != nil {
		return record{}, provider.Permanentf(codeBadMetadata, "domain %s: %w", dom.Name, err)
	}
	if provider.Name(r.UID) != dom.Name {
		return record{}, collision("domain %s has the metadata of another domain, uid %q", dom.Name, r.UID)
	}
	o.host.seen.put(dom, r)
	return r, nil
}

func (c *creation) active(ctx context.Context) (bool, error) {
	s, err := c.client().domainState(ctx, c.dom)
	return s.state != libvirt.DomainShutoff && s.state != libvirt.DomainCrashed, err
}

func (c *creation) hasVolumes(ctx context.Context) (bool, error) {
	for _, name := range []string{overlayName(c.name), seedName(c.name)} {
		if ok, err := c.client().exists(ctx, c.facts.pool, name); !ok || err != nil {
			return false, err
		}
	}
	return true, nil
}

func (c *creation) baseImage(ctx context.Context) (err error) {
	c.base, err = c.p.ensureImage(ctx, c.host, c.facts.pool, c.place.image)
	return err
}

// define makes the domain, or makes it anew: what it was defined with by an
// earlier attempt may have been corrected in the configuration.
func (c *creation) define(ctx context.Context) error {
	if c.record.UID == "" {
		mac, err := newMAC()
		if err != nil {
			return err
		}
		c.record = record{Tag: c.req.Tag, UID: c.req.UID, Stage: stageMaking, Created: time.Now().UTC().Round(0), MAC: mac, Metadata: c.req.Metadata}
	}
	if c.host.static.none() {
		c.record.Addresses = nil
		return c.defineOnce(ctx)
	}
	return c.defineAddressed(ctx)
}

func (c *creation) defineOnce(ctx context.Context) error {
	c.host.seen.drop(c.name)
	text, err := c.definition()
	if err != nil {
		return err
	}
	if c.dom, err = c.client().defineDomain(ctx, c.name, text, 0); err != nil {
		return err
	}
	c.mine, c.found = true, true
	c.log.V(1).Info("domain defined", "uid", c.req.UID, "firmware", c.place.image.Firmware)
	return nil
}

// The log of a console: consoleDirectory is where the host's log rotation and
// security profiles expect it.
const (
	consoleDirectory = "/var/log/libvirt/qemu"
	consoleSuffix    = "-console.log"
)

// definition is the domain's XML, as the hook amended it.
func (c *creation) definition() (string, error) {
	element, err := c.record.element()
	if err != nil {
		return "", err
	}
	spec := DomainSpec{
		Name: c.name, Hypervisor: c.facts.hypervisor, CPUModel: c.p.cfg.CPUModel,
		Machine: c.place.machine, Firmware: c.place.image.Firmware,
		Disk: path.Join(c.facts.target, overlayName(c.name)), Seed: path.Join(c.facts.target, seedName(c.name)),
		Bridge: c.host.Bridge, Network: c.host.Network, Macvtap: c.host.Macvtap,
		OpenVSwitch: c.host.OpenVSwitch, VLAN: c.host.VLAN, MTU: c.host.MTU, MAC: c.record.MAC,
		Metadata: element,
	}
	if !c.mute {
		spec.ConsoleLog = path.Join(consoleDirectory, c.name+consoleSuffix)
	}
	if c.found {
		spec.UUID = uuidText(c.dom.UUID)
	}
	domain := spec.Domain()
	if err := c.amend(domain, element); err != nil {
		return "", err
	}
	return domain.Marshal()
}

// amend runs the hook, and follows it where it chose another MAC.
func (c *creation) amend(domain *libvirtxml.Domain, element string) error {
	if c.p.cfg.AmendDomain == nil {
		return nil
	}
	if err := c.p.cfg.AmendDomain(domain); err != nil {
		return provider.Permanentf(codeAmended, "AmendDomain: %w", err)
	}
	if domain.Name != c.name || domain.Metadata == nil || !strings.Contains(domain.Metadata.XML, element) {
		return provider.Permanentf(codeAmended, "AmendDomain must keep the name and the metadata of the domain")
	}
	if domain.Devices == nil || len(domain.Devices.Interfaces) == 0 || domain.Devices.Interfaces[0].MAC == nil {
		return provider.Permanentf(codeAmended, "AmendDomain must leave a network card with a MAC address")
	}
	c.record.MAC = strings.ToLower(domain.Devices.Interfaces[0].MAC.Address)
	changed, err := c.record.element()
	domain.Metadata.XML = strings.Replace(domain.Metadata.XML, element, changed, 1)
	return err
}

func uuidText(u libvirt.UUID) string {
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[0:4], u[4:6], u[6:8], u[8:10], u[10:16])
}

// newMAC draws a new address each time, so that no lease of a predecessor is
// taken for the instance's own. 52:54 is locally administered.
func newMAC() (string, error) {
	mac := net.HardwareAddr{0x52, 0x54, 0, 0, 0, 0}
	_, err := rand.Read(mac[2:])
	return mac.String(), err
}

// overlay makes the disk. One that exists is whole: libvirt makes it at once.
func (c *creation) overlay(ctx context.Context) error {
	spec := OverlaySpec{
		Name:          overlayName(c.name),
		CapacityBytes: max(uint64(c.p.cfg.DiskSizeGiB)<<30, c.base.capacity), //nolint:gosec // validated.
		Base:          c.base.path, BaseFormat: c.base.format,
	}
	_, err := c.client().create(ctx, c.facts.pool, spec.Volume())
	switch {
	case isLibvirt(err, libvirt.ErrStorageVolExist):
		c.log.V(1).Info("overlay volume already exists", "volume", spec.Name)
		return nil
	case isMissingFile(err) && !c.refetched:
		return c.overlayOnNewBase(ctx)
	case err != nil:
		return err
	}
	c.log.V(1).Info("overlay volume created", "volume", spec.Name)
	return nil
}

// overlayOnNewBase fetches the base image again, whose file somebody removed,
// perhaps without libvirt knowing.
func (c *creation) overlayOnNewBase(ctx context.Context) error {
	c.refetched = true
	c.host.images.forget(c.base.volume)
	if err := whileBusy(ctx, func() error { return c.client().refreshPool(ctx, c.facts.pool) }); err != nil {
		return err
	}
	if err := c.baseImage(ctx); err != nil {
		return err
	}
	return c.overlay(ctx)
}

// uploadSeed makes the seed in place of any there is: one that was cut off by a
// crash must not reach a guest.
func (c *creation) uploadSeed(ctx context.Context) error {
	if err := c.addressSeed(); err != nil {
		return err
	}
	want := uint64(len(c.seed))
	vol, err := c.client().recreate(ctx, c.facts.pool, rawVolume(seedName(c.name), want))
	if err != nil {
		return err
	}
	var sent int64
	err = whileBusy(ctx, func() (err error) {
		sent, err = c.host.upload(ctx, vol, bytes.NewReader(c.seed), want)
		return err
	})
	if err != nil {
		return err
	}
	size, err := c.client().volumeSize(ctx, vol)
	if err != nil {
		return err
	}
	if size.physical < want {
		if err := c.host.checkRoom(ctx, c.client(), c.facts.pool, want-size.physical); err != nil {
			return err
		}
	}
	if sent != int64(len(c.seed)) || size.physical != want {
		return provider.Transientf(codeVolumeChanged, "the seed has %d bytes in the pool and %d were sent, wanted %d: somebody else changed it", size.physical, sent, want)
	}
	c.log.V(1).Info("seed volume uploaded", "volume", vol.Name, "bytes", sent)
	return nil
}

// addressSeed builds the seed anew where the guest has static addresses, which are
// known only now.
func (c *creation) addressSeed() error {
	network, err := c.host.static.config(c.record.MAC, c.host.MTU, c.record.Addresses)
	if err != nil || len(network) == 0 {
		return err
	}
	c.seed, err = c.p.seed(c.name, c.req.UserData, network)
	return err
}

func (c *creation) mark(ctx context.Context) error {
	c.record.Stage = stageMade
	text, err := c.record.bare()
	if err != nil {
		return err
	}
	if err := c.client().setMetadata(ctx, c.dom, text); err != nil {
		return err
	}
	c.host.seen.put(c.dom, c.record)
	return nil
}

func (c *creation) autostart(ctx context.Context) error {
	if !c.p.cfg.Autostart.Or(true) {
		return nil
	}
	return c.client().setAutostart(ctx, c.dom, true)
}

func (c *creation) startDomain(ctx context.Context) error {
	err := c.client().startDomain(ctx, c.dom)
	if isConsoleLog(err) && !c.mute {
		return c.startMute(ctx, err)
	}
	if isLibvirt(err, libvirt.ErrOperationInvalid) {
		if active, stateErr := c.active(ctx); stateErr == nil && active {
			return nil
		}
	}
	return err
}

// startMute starts the domain without the log of its console.
func (c *creation) startMute(ctx context.Context, cause error) error {
	c.log.Info("the console cannot be logged on this host; the instance starts without its log", "path", consoleDirectory, "error", cause.Error())
	mine := c.mine
	c.mute = true
	if err := c.define(ctx); err != nil {
		return err
	}
	c.mine = mine
	return c.startDomain(ctx)
}

// failed decides what becomes of the parts. What may heal keeps them for the
// next Create.
func (c *creation) failed(ctx context.Context, cause error) error {
	if isLibvirt(cause, libvirt.ErrNoStoragePool) {
		c.host.facts.forget()
	}
	class := classify(cause).Class
	vanished := isLibvirt(cause, libvirt.ErrNoDomain)
	if vanished {
		cause = &provider.Error{Class: provider.ErrTransient, Code: "ErrNoDomain", Err: fmt.Errorf("the domain was deleted while it was being made: %w", cause)}
	}
	giveUp := c.mine && (errors.Is(class, provider.ErrPermanent) || errors.Is(class, provider.ErrQuotaExceeded))
	if !giveUp && !vanished {
		return cause
	}
	logr.FromContextOrDiscard(ctx).V(1).Info("undoing what was made", "error", cause.Error())
	if err := c.erase(ctx); err != nil {
		return fmt.Errorf("%w (and what was made could not be removed: %v)", cause, err) //nolint:errorlint // one cause.
	}
	return cause
}
