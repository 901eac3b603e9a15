package kvm

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/digitalocean/go-libvirt"
)

// sourceNames are the sources of addresses, for logs and reasons.
var sourceNames = map[libvirt.DomainInterfaceAddressesSource]string{
	libvirt.DomainInterfaceAddressesSrcAgent: "agent",
	libvirt.DomainInterfaceAddressesSrcLease: "lease",
	libvirt.DomainInterfaceAddressesSrcArp:   "arp",
}

// source is one that may know addresses, and the way to it.
type source struct {
	id libvirt.DomainInterfaceAddressesSource
	client
}

// sources are in the order of asking. On a network of libvirt its leases know an
// address long before the agent does.
func (o *operation) sources() []source {
	agent := source{libvirt.DomainInterfaceAddressesSrcAgent, o.host.agentClient()}
	lease := source{libvirt.DomainInterfaceAddressesSrcLease, o.client()}
	arp := source{libvirt.DomainInterfaceAddressesSrcArp, o.client()}
	if o.host.Network != "" {
		return []source{lease, agent, arp}
	}
	return []source{agent, lease, arp}
}

// addresses asks the sources one after the other, each for a short time, until
// one knows an address of our card. That a source fails is usual: while the
// guest boots, or where the host's network is not libvirt's own. Without an
// address it says what the agent said, which knows most.
func (o *operation) addresses(ctx context.Context, dom libvirt.Domain, mac string) (found []netip.Addr, why string) {
	why = "the guest agent reports none"
	for _, source := range o.sources() {
		ifaces, err := o.askSource(ctx, source.client, dom, source.id)
		if err != nil && source.id == libvirt.DomainInterfaceAddressesSrcAgent {
			why = agentReason(err)
		}
		if found = usable(ifaces, mac); len(found) > 0 || ctx.Err() != nil {
			return found, ""
		}
	}
	return nil, why
}

func (o *operation) askSource(ctx context.Context, c client, dom libvirt.Domain, source libvirt.DomainInterfaceAddressesSource) ([]libvirt.DomainInterface, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(o.p.cfg.Timeouts.Address))
	defer cancel()
	return c.interfaceAddresses(ctx, dom, source)
}

func agentReason(err error) string {
	if isLibvirt(err, libvirt.ErrAgentUnresponsive) || errors.Is(err, context.DeadlineExceeded) {
		return "the guest agent does not answer; the guest may still boot"
	}
	return "guest agent: " + err.Error()
}

// usable are the global addresses of the card with that MAC. What the guest made
// for itself, such as a bridge for containers, has another.
func usable(ifaces []libvirt.DomainInterface, mac string) []netip.Addr {
	var found []netip.Addr
	for _, i := range ifaces {
		if len(i.Hwaddr) == 0 || !strings.EqualFold(i.Hwaddr[0], mac) {
			continue
		}
		for _, a := range i.Addrs {
			addr, err := netip.ParseAddr(a.Addr)
			if err == nil && isGlobal(addr.Unmap()) && !slices.Contains(found, addr.Unmap()) {
				found = append(found, addr.Unmap())
			}
		}
	}
	return found
}

// sortFamilies puts one family before the other.
func sortFamilies(addrs []netip.Addr, ipv6First bool) {
	slices.SortStableFunc(addrs, func(a, b netip.Addr) int {
		if ipv6First {
			a, b = b, a
		}
		return cmp.Compare(a.BitLen(), b.BitLen())
	})
}

// isGlobal includes private networks.
func isGlobal(a netip.Addr) bool { return a.Zone() == "" && a.IsGlobalUnicast() }
