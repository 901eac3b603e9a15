package kvm

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"github.com/digitalocean/go-libvirt"

	"github.com/egressfleet/egress/provider"
)

// ListByTag implements [provider.Provider]. It asks all hosts at the same time.
// The metadata of a domain is read once, so that a later list of a host costs
// two calls however many instances it has.
func (p *Provider) ListByTag(ctx context.Context, tag string) ([]provider.Instance, error) {
	if err := provider.ValidTag(tag); err != nil {
		return nil, p.failure("ListByTag", "", "", provider.Permanentf(provider.CodeInvalidRequest, "%w", err))
	}
	ctx, leave, err := p.life.Enter(ctx)
	if err != nil {
		return nil, p.failure("ListByTag", "", "", err)
	}
	defer leave()
	ctx, end := p.cfg.Trace.operation(ctx, OperationInfo{Op: "ListByTag", Provider: p.cfg.Name})
	var found listing
	var hosts sync.WaitGroup
	for _, h := range p.order {
		hosts.Go(func() {
			l := &hostListing{listing: &found, o: &operation{p: p, host: h}, tag: tag}
			if err := l.run(p.withLogger(ctx, h, "")); err != nil {
				found.miss(h.Name, p.failure("ListByTag", "", h.Name, err))
			}
		})
	}
	hosts.Wait()
	instances, err := found.result()
	end(err)
	return instances, err
}

// listing gathers what the hosts have.
type listing struct {
	mu        sync.Mutex
	instances []provider.Instance
	missing   []provider.Missing
}

func (l *listing) add(in provider.Instance) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.instances = append(l.instances, in)
}

func (l *listing) miss(scope string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.missing = append(l.missing, provider.Missing{Scope: scope, Err: err})
}

// result is in the order of the IDs, whichever host was first.
func (l *listing) result() ([]provider.Instance, error) {
	slices.SortFunc(l.instances, func(a, b provider.Instance) int { return cmp.Compare(a.ID, b.ID) })
	slices.SortFunc(l.missing, func(a, b provider.Missing) int { return cmp.Compare(a.Scope, b.Scope) })
	if len(l.missing) == 0 {
		return l.instances, nil
	}
	return l.instances, &provider.PartialError{Missing: l.missing}
}

// hostListing is the list of one host.
type hostListing struct {
	*listing
	o   *operation
	tag string
}

// run reads the host's domains in two calls: all of them, whose ID tells
// whether they run, and those that are in a state of another kind.
func (l *hostListing) run(ctx context.Context) error {
	c := l.o.client()
	domains, err := c.listDomains(ctx, 0)
	if err != nil {
		return err
	}
	odd, err := c.listDomains(ctx, libvirt.ConnectListDomainsPaused|libvirt.ConnectListDomainsOther)
	if err != nil {
		return err
	}
	l.o.host.seen.keepOnly(domains)
	isOdd := make(map[string]bool, len(odd))
	for _, dom := range odd {
		isOdd[dom.Name] = true
	}
	var readers sync.WaitGroup
	for _, dom := range domains {
		if provider.IsName(dom.Name) {
			readers.Go(func() { l.read(ctx, dom, isOdd[dom.Name]) })
		}
	}
	readers.Wait()
	return nil
}

// read adds one domain if it carries the tag.
func (l *hostListing) read(ctx context.Context, dom libvirt.Domain, odd bool) {
	in, ok, err := l.instance(ctx, dom, odd)
	switch {
	case isForeign(err):
	case err != nil:
		id := ids.Format(l.o.host.Name, dom.Name)
		l.miss(id, l.o.p.failure("ListByTag", id, "", err))
	case ok:
		l.add(in)
	}
}

// isForeign tells of a listed domain that is gone since, or was never ours.
func isForeign(err error) bool {
	return isLibvirt(err, libvirt.ErrNoDomain) || provider.HasCode(err, provider.CodeCollision)
}

func (l *hostListing) instance(ctx context.Context, dom libvirt.Domain, odd bool) (in provider.Instance, ok bool, err error) {
	r, err := l.o.readRecord(ctx, dom)
	if err != nil || r.Tag != l.tag {
		return in, false, err
	}
	s := listedState(dom)
	if odd {
		if s, err = l.o.client().domainState(ctx, dom); err != nil {
			return in, false, err
		}
	}
	in = r.instance(l.o.host.Name, dom.Name)
	in.State, in.Reason = r.state(s)
	return in, true, nil
}

// listedState is what the ID of a listed domain tells.
func listedState(dom libvirt.Domain) domainState {
	if dom.ID >= 0 {
		return domainState{state: libvirt.DomainRunning}
	}
	return domainState{state: libvirt.DomainShutoff}
}
