package kvm

import (
	"context"
	"net/netip"
	"sync"

	"github.com/digitalocean/go-libvirt"

	"github.com/egressfleet/egress/provider"
)

// Get implements [provider.Provider]. It asks for the addresses of a running
// instance, which can take as long as the three sources may, see
// [Timeouts].Address.
func (p *Provider) Get(ctx context.Context, id string) (out provider.Instance, err error) {
	h, name, err := p.find("Get", id)
	if err != nil {
		return out, err
	}
	err = p.operate(ctx, "Get", h, name, func(ctx context.Context, o *operation) error {
		out, err = o.get(ctx)
		return err
	})
	return out, err
}

func (o *operation) get(ctx context.Context) (provider.Instance, error) {
	dom, err := o.client().lookupDomain(ctx, o.name)
	if err != nil {
		return provider.Instance{}, err
	}
	r, err := o.readRecord(ctx, dom)
	if err != nil {
		return provider.Instance{}, err
	}
	s, err := o.client().domainState(ctx, dom)
	if err != nil {
		return provider.Instance{}, err
	}
	in := r.instance(o.host.Name, dom.Name)
	in.State, in.Reason = r.state(s)
	if in.State == provider.StateRunning {
		if err := o.addAddresses(ctx, dom, r, &in); err != nil {
			return provider.Instance{}, err
		}
	}
	o.log.V(1).Info("KVM domain fetched", "state", in.State, "ip", addressText(in.Address()), "uid", in.UID)
	return in, nil
}

// addressText is empty for no address.
func addressText(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

// addAddresses asks for the addresses, unless they are static and known. Without
// one the instance is not yet usable.
func (o *operation) addAddresses(ctx context.Context, dom libvirt.Domain, r record, in *provider.Instance) error {
	var addrs []netip.Addr
	var why string
	for _, p := range r.Addresses {
		addrs = append(addrs, p.Addr())
	}
	if len(addrs) == 0 {
		addrs, why = o.addresses(ctx, dom, r.MAC)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	sortFamilies(addrs, o.p.cfg.PreferIPv6)
	for _, a := range addrs {
		in.Addresses = append(in.Addresses, provider.Address{Type: provider.AddressInternal, Addr: a})
	}
	if len(addrs) == 0 {
		in.State, in.Reason = provider.StateProvisioning, "no address yet: "+why
	}
	return nil
}

func (r record) instance(host, name string) provider.Instance {
	r = r.clone()
	return provider.Instance{
		ID: ids.Format(host, name), Name: name,
		UID: r.UID, Tag: r.Tag, CreatedAt: r.Created, Metadata: r.Metadata,
	}
}

// state translates libvirt's. A domain that was never started is on its way.
func (r record) state(s domainState) (provider.State, string) {
	if r.Stage == stageMaking && (s.state == libvirt.DomainShutoff || s.state == libvirt.DomainNostate) {
		return provider.StateProvisioning, "it is being made; if nobody does, Create finishes it"
	}
	switch s.state {
	case libvirt.DomainRunning, libvirt.DomainBlocked:
		return provider.StateRunning, ""
	case libvirt.DomainShutdown:
		return provider.StateStopping, "the guest shuts down"
	case libvirt.DomainShutoff:
		return provider.StateStopped, shutoffReasons[libvirt.DomainShutoffReason(s.reason)]
	case libvirt.DomainCrashed:
		return provider.StateFailed, "the guest crashed"
	case libvirt.DomainPaused:
		return provider.StateUnknown, "paused" + pausedReasons[libvirt.DomainPausedReason(s.reason)]
	case libvirt.DomainPmsuspended:
		return provider.StateUnknown, "suspended by the guest"
	}
	return provider.StateUnknown, "libvirt cannot tell its state"
}

var shutoffReasons = map[libvirt.DomainShutoffReason]string{
	libvirt.DomainShutoffShutdown:     "the guest shut down",
	libvirt.DomainShutoffDestroyed:    "it was destroyed on the host",
	libvirt.DomainShutoffCrashed:      "QEMU ended by itself; see /var/log/libvirt/qemu on the host",
	libvirt.DomainShutoffFailed:       "it failed to start; see /var/log/libvirt/qemu on the host",
	libvirt.DomainShutoffSaved:        "it was saved on the host",
	libvirt.DomainShutoffMigrated:     "it was migrated away",
	libvirt.DomainShutoffFromSnapshot: "it was reverted to a snapshot",
	libvirt.DomainShutoffDaemon:       "libvirtd stopped it",
}

var pausedReasons = map[libvirt.DomainPausedReason]string{
	libvirt.DomainPausedUser:           " on the host",
	libvirt.DomainPausedIoerror:        " by an I/O error: the host's disk may be full or broken",
	libvirt.DomainPausedMigration:      " for a migration",
	libvirt.DomainPausedSave:           " to be saved",
	libvirt.DomainPausedDump:           " for a dump",
	libvirt.DomainPausedWatchdog:       " by the watchdog",
	libvirt.DomainPausedShuttingDown:   " while it shuts down",
	libvirt.DomainPausedSnapshot:       " for a snapshot",
	libvirt.DomainPausedFromSnapshot:   " after a snapshot",
	libvirt.DomainPausedCrashed:        " because the guest crashed",
	libvirt.DomainPausedStartingUp:     " while it starts",
	libvirt.DomainPausedPostcopy:       " for a migration",
	libvirt.DomainPausedPostcopyFailed: " by a migration that failed",
	libvirt.DomainPausedAPIError:       " by an error of libvirt",
}

// recordCache keeps the metadata of domains that are made: it never changes
// any more. The zero value is ready.
type recordCache struct {
	mu      sync.Mutex
	records map[string]cachedRecord // by the domain's name
}

type cachedRecord struct {
	uuid   libvirt.UUID
	record record
}

func (c *recordCache) get(dom libvirt.Domain) (record, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r, ok := c.records[dom.Name]
	return r.record, ok && r.uuid == dom.UUID
}

// put keeps what is final.
func (c *recordCache) put(dom libvirt.Domain, r record) {
	if r.Stage != stageMade {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.records == nil {
		c.records = map[string]cachedRecord{}
	}
	c.records[dom.Name] = cachedRecord{dom.UUID, r.clone()}
}

func (c *recordCache) drop(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.records, name)
}

// keepOnly forgets what a complete list does not have.
func (c *recordCache) keepOnly(domains []libvirt.Domain) {
	c.mu.Lock()
	defer c.mu.Unlock()
	alive := make(map[string]bool, len(domains))
	for _, d := range domains {
		alive[d.Name] = true
	}
	for name := range c.records {
		if !alive[name] {
			delete(c.records, name)
		}
	}
}
