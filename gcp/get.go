package gcp

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"time"

	"cloud.google.com/go/compute/apiv1/computepb"

	"github.com/egressfleet/egress/provider"
)

// Get implements [provider.Provider].
func (p *Provider) Get(ctx context.Context, id string) (out provider.Instance, err error) {
	at, err := p.find("Get", id)
	if err != nil {
		return out, err
	}
	err = p.operate(ctx, "Get", at, func(ctx context.Context) error {
		in, err := p.readOwn(ctx, at)
		if err != nil {
			return err
		}
		r, err := readRecord(in)
		if err == nil {
			out = instanceOf(at.zone, in, r)
		}
		return err
	})
	return out, err
}

// read is instances.get.
func (p *Provider) read(ctx context.Context, at place) (*computepb.Instance, error) {
	return call(ctx, p, CallInfo{Method: "instances.get", Scope: at.zone, Name: at.name},
		func(ctx context.Context, c *clients) (*computepb.Instance, error) {
			return c.instances.Get(ctx, &computepb.GetInstanceRequest{Project: p.cfg.Project, Zone: at.zone, Instance: at.name}, retries())
		})
}

// readOwn reads an instance that has our mark. One that the API proves absent is
// ErrNotFound.
func (p *Provider) readOwn(ctx context.Context, at place) (*computepb.Instance, error) {
	in, err := p.read(ctx, at)
	if absent(err, at.name) {
		p.deletions.forget(at)
		known := classify(err)
		known.Class = provider.ErrNotFound
		return nil, known
	}
	if err != nil {
		return nil, err
	}
	if _, err := readRecord(in); errors.Is(err, errNotOurs) {
		return nil, collision("this library has not made it: %w", err)
	}
	return in, nil
}

// states maps Google's. What is not in it is Unknown, and so is REPAIRING: Google
// brings the instance back by itself.
var states = map[string]provider.State{
	"PENDING":        provider.StateProvisioning,
	"PROVISIONING":   provider.StateProvisioning,
	"STAGING":        provider.StateProvisioning,
	"RUNNING":        provider.StateRunning,
	"PENDING_STOP":   provider.StateStopping,
	"STOPPING":       provider.StateStopping,
	"SUSPENDING":     provider.StateStopping,
	"DEPROVISIONING": provider.StateStopping,
	"STOPPED":        provider.StateStopped,
	"TERMINATED":     provider.StateStopped,
	"SUSPENDED":      provider.StateStopped,
	"REPAIRING":      provider.StateUnknown,
}

func stateOf(status string) provider.State { return or(states[status], provider.StateUnknown) }

// instanceOf is the contract's view of an instance.
func instanceOf(zone string, in *computepb.Instance, r record) provider.Instance {
	out := provider.Instance{
		ID: ids.Format(zone, in.GetName()), Name: in.GetName(), UID: r.UID, Tag: r.Tag,
		State: stateOf(in.GetStatus()), Reason: in.GetStatusMessage(),
		Metadata: maps.Clone(r.Metadata), Addresses: addressesOf(in),
	}
	if created, err := time.Parse(time.RFC3339, in.GetCreationTimestamp()); err == nil {
		out.CreatedAt = created
	}
	switch {
	case out.State == provider.StateRunning && !hasItsAddress(in):
		out.State, out.Reason = provider.StateProvisioning, "it runs, and has no address yet"
	case out.State == provider.StateRunning:
		out.Reason = ""
	case out.Reason == "":
		out.Reason = in.GetStatus()
	}
	return out
}

// addressesOf has the external addresses first, and IPv4 before IPv6.
func addressesOf(in *computepb.Instance) []provider.Address {
	var external, internal []provider.Address
	add := func(to *[]provider.Address, t provider.AddressType, text string) {
		if addr, err := netip.ParseAddr(text); err == nil {
			*to = append(*to, provider.Address{Type: t, Addr: addr})
		}
	}
	for _, nic := range in.GetNetworkInterfaces() {
		for _, access := range nic.GetAccessConfigs() {
			add(&external, provider.AddressExternal, access.GetNatIP())
		}
		add(&internal, provider.AddressInternal, nic.GetNetworkIP())
		for _, access := range nic.GetIpv6AccessConfigs() {
			add(&external, provider.AddressExternal, access.GetExternalIpv6())
		}
		if len(nic.GetIpv6AccessConfigs()) == 0 {
			add(&internal, provider.AddressInternal, nic.GetIpv6Address())
		}
	}
	return append(external, internal...)
}

// hasItsAddress tells whether an instance has the address to connect to: an
// external one where it shall have one. That comes a moment after RUNNING.
func hasItsAddress(in *computepb.Instance) bool {
	wantsExternal := false
	for _, nic := range in.GetNetworkInterfaces() {
		wantsExternal = wantsExternal || len(nic.GetAccessConfigs())+len(nic.GetIpv6AccessConfigs()) > 0
	}
	for _, a := range addressesOf(in) {
		if !wantsExternal || a.Type == provider.AddressExternal {
			return true
		}
	}
	return false
}
