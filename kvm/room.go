package kvm

import (
	"context"
	"sync"

	"github.com/digitalocean/go-libvirt"

	"github.com/egressfleet/egress/provider"
)

const mib = 1 << 20

// memory is that of a host, in bytes. Available is what programs could get: free,
// or in caches that give way.
type memory struct{ total, available uint64 }

// space is that of a pool, in bytes, as libvirt last looked.
type space struct {
	capacity, available uint64
	active              bool
}

// room is what a host has left. Zero totals mean that the host cannot tell.
type room struct {
	memory memory
	space  space
	// instances are how many of this package there are, whoever made them.
	instances int
	// promised is the memory of all domains that run or will with the host.
	promised uint64
	// names are those of the instances.
	names map[string]bool
}

// freeBytes is what the host has neither in use nor promised to a domain. It is
// what hosts are compared by: a guest takes its memory only bit by bit.
func (r room) freeBytes() uint64 {
	left := r.memory.total - min(r.memory.total, r.promised)
	return min(left, r.memory.available)
}

// lacks says why one more instance has no room, nil where it has.
func (r room) lacks(h *host, machine MachineType) error {
	need := uint64(max(machine.MemoryMiB, 0)) * mib
	if r.memory.total > 0 && r.memory.available < need {
		return provider.Quotaf(codeNoMemory, "%d MiB of memory are free of %d, and the instance needs %d", r.memory.available/mib, r.memory.total/mib, need/mib)
	}
	if keep := h.keepFree(); r.space.capacity > 0 && r.space.available < keep {
		return h.lacksSpace(r.space, 0)
	}
	if limit := h.limit(); limit > 0 && r.instances >= limit {
		return provider.Quotaf(codeHostFull, "there are %d instances, and %d is the most", r.instances, limit)
	}
	return nil
}

// lacksSpace is the error of a pool that has no room for so many bytes more.
func (h *host) lacksSpace(s space, need uint64) error {
	return provider.Quotaf(codeNoSpace, "the pool %s has %d MiB free of %d, and it needs %d, of which %d are to stay free (hosts[].keepFreeMiB)",
		h.Pool, s.available/mib, s.capacity/mib, (need+h.keepFree())/mib, h.keepFree()/mib)
}

// checkRoom is asked about an upload of which so much did not arrive: libvirtd may end
// one in peace though the pool's file system was full.
func (h *host) checkRoom(ctx context.Context, c client, pool libvirt.StoragePool, missing uint64) error {
	s, err := c.poolSpace(ctx, pool)
	if err == nil && s.capacity > 0 && s.available < missing {
		return h.lacksSpace(s, missing)
	}
	return err
}

// keepFree is what is to stay free in the pool, in bytes.
func (h *host) keepFree() uint64 { return uint64(max(h.KeepFreeMiB, 0)) * mib }

// limit is the most instances that the host may have; zero for no limit.
func (h *host) limit() int {
	limit := h.MaxInstances
	if h.static.none() {
		return limit
	}
	if addresses := h.static.limit(); limit == 0 || addresses < limit {
		return addresses
	}
	return limit
}

// measure asks what the host has left; with all, also what it has promised.
func (o *operation) measure(ctx context.Context, pool libvirt.StoragePool, all bool) (r room, err error) {
	var mu sync.Mutex
	err = inParallel(
		func() error {
			m, err := o.client().nodeMemory(ctx)
			if isLibvirt(err, libvirt.ErrNoSupport) || isLibvirt(err, libvirt.ErrInvalidArg) {
				return nil // it cannot tell
			}
			mu.Lock()
			defer mu.Unlock()
			r.memory = m
			return err
		},
		func() error {
			s, err := o.client().poolSpace(ctx, pool)
			mu.Lock()
			defer mu.Unlock()
			r.space = s
			return err
		},
		func() error { return o.checkNetwork(ctx) },
		func() error {
			names, promised, err := o.domains(ctx, all)
			mu.Lock()
			defer mu.Unlock()
			r.names, r.instances, r.promised = names, len(names), promised
			return err
		},
	)
	return r, err
}

// domains are the instances on the host but this one; with all, also the memory
// that is promised. Without a limit nobody needs the number alone.
func (o *operation) domains(ctx context.Context, all bool) (names map[string]bool, promised uint64, err error) {
	var domains []libvirt.Domain
	switch {
	case all:
		var sizes []domainSize
		if sizes, err = o.client().domainSizes(ctx); err != nil {
			return nil, 0, err
		}
		for _, s := range sizes {
			domains = append(domains, s.Domain)
			if s.ID >= 0 || provider.IsName(s.Name) {
				promised += s.memory
			}
		}
	case o.host.MaxInstances > 0:
		if domains, err = o.client().listDomains(ctx, 0); err != nil {
			return nil, 0, err
		}
	}
	names = map[string]bool{}
	for _, d := range domains {
		if provider.IsName(d.Name) && d.Name != o.name {
			names[d.Name] = true
		}
	}
	return names, promised, nil
}

// inParallel runs all of them to their end.
func inParallel(fs ...func() error) error {
	errs := make([]error, len(fs))
	var all sync.WaitGroup
	for i, f := range fs {
		all.Go(func() { errs[i] = f() })
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// survey is a measurement under way, beside the first steps of a Create.
type survey struct {
	done chan struct{}
	room room
	err  error
}

// startSurvey starts to measure. Whoever starts one waits for it.
func (c *creation) startSurvey(ctx context.Context) *survey {
	s := &survey{done: make(chan struct{})}
	go func() {
		defer close(s.done)
		s.room, s.err = c.measure(ctx, c.facts.pool, false)
	}()
	return s
}

// checkRoom refuses what has no room, before anything is made or fetched.
func (c *creation) checkRoom(context.Context) error {
	<-c.survey.done
	if c.survey.err != nil {
		return c.survey.err
	}
	return c.survey.room.lacks(c.host, c.place.machine)
}

// nodeMemoryStats is how many figures Linux has for a whole host; libvirt wants to
// be asked for as many.
const nodeMemoryStats = 4

func memoryOf(stats []libvirt.NodeGetMemoryStats) (m memory) {
	for _, s := range stats {
		bytes := s.Value << 10
		switch s.Field {
		case "total":
			m.total = bytes
		case "free", "buffers", "cached":
			m.available += bytes
		}
	}
	return m
}

// domainSize is a domain with the memory that it may take.
type domainSize struct {
	libvirt.Domain
	memory uint64
}

func sizeOf(r libvirt.DomainStatsRecord) domainSize {
	size := domainSize{Domain: r.Dom}
	for _, p := range r.Params {
		if p.Field == "balloon.maximum" {
			if kib, ok := p.Value.I.(uint64); ok {
				size.memory = kib << 10
			}
		}
	}
	return size
}
