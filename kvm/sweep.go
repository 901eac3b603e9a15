package kvm

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/digitalocean/go-libvirt"

	"github.com/egressfleet/egress/provider"
)

// Sweep implements [provider.Sweeper]. It removes domains of the tag that
// nobody finished making or deleting, or that have no owner; unfinished images
// that no longer grow, and markers without an image. Volumes of instances whose
// domain is gone are reported and stay: nothing tells whose they were.
func (p *Provider) Sweep(ctx context.Context, req provider.SweepRequest) ([]provider.Leftover, error) {
	if err := provider.ValidTag(req.Tag); err != nil {
		return nil, p.failure("Sweep", "", "", provider.Permanentf(provider.CodeInvalidRequest, "%w", err))
	}
	if req.MinAge <= 0 {
		req.MinAge = provider.DefaultSweepAge
	}
	var found sweepings
	err := p.withPool(ctx, "Sweep", "", func(ctx context.Context, w imageHost) error {
		// Volumes first: one that is made meanwhile is not seen without its domain.
		all, err := w.inventory(ctx)
		if err != nil {
			return err
		}
		domains, err := w.c.listDomains(ctx, 0)
		if err != nil {
			return err
		}
		s := sweep{imageHost: w, req: req, all: all, domains: map[string]bool{}}
		for _, dom := range domains {
			s.domains[dom.Name] = true
		}
		found.add(s.sweepDomains(ctx, domains)...)
		found.add(s.sweepImages(ctx)...)
		found.add(s.reportVolumes(ctx)...)
		return nil
	})
	return found.sorted(), err
}

// sweep is one host being swept.
type sweep struct {
	imageHost
	req     provider.SweepRequest
	all     inventory
	domains map[string]bool
}

func (s sweep) sweepDomains(ctx context.Context, domains []libvirt.Domain) (found []provider.Leftover) {
	var mu sync.Mutex
	var running sync.WaitGroup
	for _, dom := range domains {
		if !provider.IsName(dom.Name) {
			continue
		}
		running.Go(func() {
			if left, ok := s.sweepDomain(ctx, dom); ok {
				mu.Lock()
				defer mu.Unlock()
				found = append(found, left)
			}
		})
	}
	running.Wait()
	return found
}

// sweepDomain looks at one domain. One that is not the tag's, or whole, or
// cannot be read, is nothing to tell.
func (s sweep) sweepDomain(ctx context.Context, dom libvirt.Domain) (left provider.Leftover, ok bool) {
	o := &operation{p: s.p, host: s.h}
	r, err := o.readRecord(ctx, dom)
	if err != nil || r.Tag != s.req.Tag {
		return left, false
	}
	reason := s.whyLeft(r, dom)
	if reason == "" {
		return left, false
	}
	left = provider.Leftover{Scope: s.h.Name, Kind: "domain", Name: dom.Name, Age: max(time.Since(r.Created), 0), Reason: reason}
	if left.Age < s.req.MinAge {
		left.Reason += fmt.Sprintf("; kept: it is younger than %s", s.req.MinAge)
		return left, true
	}
	left.Removed = true
	if !s.req.DryRun {
		s.take(ctx, &left, func() error { return s.p.Delete(ctx, ids.Format(s.h.Name, dom.Name)) })
	}
	return left, true
}

// whyLeft says why a domain of the tag is left over; empty if it is not.
func (s sweep) whyLeft(r record, dom libvirt.Domain) string {
	hasVolumes := s.all.has(overlayName(dom.Name)) && s.all.has(seedName(dom.Name))
	switch {
	case r.Stage == stageMaking:
		return "nobody finished making it"
	case !hasVolumes && dom.ID < 0:
		return "its volumes are gone: nobody finished deleting it"
	case s.req.Owned != nil && !s.req.Owned(r.instance(s.h.Name, dom.Name)):
		return "it has no owner"
	}
	return ""
}

// sweepImages takes unfinished images that nobody works on.
func (s sweep) sweepImages(ctx context.Context) (found []provider.Leftover) {
	limit := max(s.req.MinAge, time.Duration(s.p.cfg.Timeouts.ImageTakeover))
	for _, name := range slices.Sorted(maps.Keys(s.all)) {
		v := s.all[name]
		image, isMarker := strings.CutSuffix(name, markerSuffix)
		left := provider.Leftover{Scope: s.h.Name, Kind: "image", Name: name, Age: v.age()}
		switch {
		case !basePattern.MatchString(image):
			continue
		case isMarker && !s.all.has(image):
			left.Kind, left.Reason = "marker", "its image is gone"
		case !isMarker && !s.all.has(name+markerSuffix):
			left.Reason = "a fetch that was not finished"
		default:
			continue
		}
		if left.Age < limit {
			left.Reason += fmt.Sprintf("; kept: it changed within %s", limit)
		} else if left.Removed = true; !s.req.DryRun {
			s.take(ctx, &left, func() error { return s.c.remove(ctx, s.pool, name) })
		}
		found = append(found, left)
	}
	return found
}

// reportVolumes finds disks and seeds without their domain. What went with its
// domain a moment ago is nothing to tell.
func (s sweep) reportVolumes(ctx context.Context) (found []provider.Leftover) {
	for _, name := range slices.Sorted(maps.Keys(s.all)) {
		instance, ok := instanceOf(name)
		if !ok || s.domains[instance] {
			continue
		}
		if still, err := s.c.exists(ctx, s.pool, name); err == nil && !still {
			continue
		}
		found = append(found, provider.Leftover{
			Scope: s.h.Name, Kind: "volume", Name: name, Age: s.all[name].age(),
			Reason: fmt.Sprintf("its domain is gone, so that nothing tells whose it is; kept: if it is of no use to anybody, run virsh vol-delete --pool %s %s", s.h.Pool, name),
		})
	}
	return found
}

// instanceOf is the name of the instance whose volume has that name.
func instanceOf(volume string) (string, bool) {
	for _, suffix := range []string{seedName(""), overlayName("")} {
		if name, ok := strings.CutSuffix(volume, suffix); ok && provider.IsName(name) {
			return name, true
		}
	}
	return "", false
}
