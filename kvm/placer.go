package kvm

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/egressfleet/egress/provider"
)

var _ provider.Placer = (*Provider)(nil)

// Place implements [provider.Placer]. It asks all hosts at the same time what
// they have left, for [Timeouts].Place, and takes the one with room for the most
// instances of the size: by memory that is neither in use nor promised to a
// domain, and by [Host].MaxInstances. Among equal ones the UID decides. What it
// chose lately counts as if it were there, so that several calls in a row do not
// all get the same host. Machine type and image are filled in where there is
// one.
func (p *Provider) Place(ctx context.Context, req provider.PlaceRequest) (provider.Placement, error) {
	fail := func(err error) (provider.Placement, error) {
		return provider.Placement{}, p.failure("Place", "", "", err)
	}
	ctx, leave, err := p.life.Enter(ctx)
	if err != nil {
		return fail(err)
	}
	defer leave()
	ctx, end := p.cfg.Trace.operation(ctx, OperationInfo{Op: "Place", Provider: p.cfg.Name})
	out, err := p.choose(ctx, req)
	end(err)
	if err != nil {
		return fail(err)
	}
	return out, nil
}

func (p *Provider) choose(ctx context.Context, req provider.PlaceRequest) (out provider.Placement, err error) {
	out = req.Placement
	machine, err := pick("machineType", out.MachineType, p.cfg.MachineTypes)
	if err != nil {
		return out, err
	}
	out.MachineType = or(out.MachineType, only(p.cfg.MachineTypes))
	if _, err := p.image(out.Image); err != nil {
		return out, err
	}
	out.Image = or(out.Image, only(p.cfg.Images))
	hosts := p.order
	if out.Zone != "" {
		h, err := pick("zone", out.Zone, p.hosts)
		if err != nil {
			return out, err
		}
		hosts = []*host{h}
	}
	candidates := p.survey(ctx, hosts, machine, out, req)
	if err := ctx.Err(); err != nil {
		return out, err
	}
	best, err := p.best(candidates, machine, req.UID)
	if err != nil {
		return out, err
	}
	out.Zone = best.Name
	return out, nil
}

// only is the key of a map that has one.
func only[V any](from map[string]V) string {
	if len(from) != 1 {
		return ""
	}
	for key := range from {
		return key
	}
	return ""
}

// candidate is a host with what it has left, or why it is none.
type candidate struct {
	*host
	room room
	err  error
}

// survey measures the hosts that are not avoided.
func (p *Provider) survey(ctx context.Context, hosts []*host, machine MachineType, want provider.Placement, req provider.PlaceRequest) []candidate {
	all := make([]candidate, len(hosts))
	var asking sync.WaitGroup
	for i, h := range hosts {
		all[i].host = h
		want.Zone = h.Name
		if slices.ContainsFunc(req.Avoid, func(a provider.Placement) bool { return covers(a, want) }) {
			all[i].err = provider.Quotaf(codeHostFull, "it had no room lately")
			continue
		}
		asking.Go(func() { all[i].room, all[i].err = p.measureFor(ctx, h, machine, req.UID) })
	}
	asking.Wait()
	return all
}

// covers tells whether a placement to avoid is about that one. What it leaves open
// counts for all, but for the zone.
func covers(avoid, place provider.Placement) bool {
	return avoid.Zone == place.Zone &&
		(avoid.MachineType == "" || avoid.MachineType == place.MachineType) &&
		(avoid.Image == "" || avoid.Image == place.Image)
}

func (p *Provider) measureFor(ctx context.Context, h *host, machine MachineType, uid string) (room, error) {
	outer := ctx
	ctx, cancel := context.WithTimeout(p.withLogger(ctx, h, ""), time.Duration(p.cfg.Timeouts.Place))
	defer cancel()
	f, err := p.factsOf(ctx, h)
	if err != nil {
		return room{}, tooSlow(outer, ctx, p.cfg.Timeouts.Place, err)
	}
	o := &operation{p: p, host: h, name: provider.Name(uid)}
	r, err := o.measure(ctx, f.pool, true)
	if err != nil {
		return r, tooSlow(outer, ctx, p.cfg.Timeouts.Place, err)
	}
	r.add(h.chosen.pending(r.names, o.name))
	return r, r.lacks(h, machine)
}

func tooSlow(outer, ctx context.Context, timeout provider.Duration, err error) error {
	if ctx.Err() == nil || outer.Err() != nil {
		return err
	}
	return provider.Transientf(codeNoAnswer, "it has not answered for %s", timeout)
}

// add counts instances that are on their way.
func (r *room) add(memories []uint64) {
	r.instances += len(memories)
	for _, m := range memories {
		r.promised += m
	}
}

// best is the host with room for most. Where there is none the error tells of
// every host.
func (p *Provider) best(all []candidate, machine MachineType, uid string) (*host, error) {
	var best *host
	var most, rank uint64
	for _, c := range all {
		if c.err != nil {
			continue
		}
		n, tie := c.slots(machine), tieBreak(uid, c.Name)
		if best == nil || n > most || n == most && tie > rank {
			best, most, rank = c.host, n, tie
		}
	}
	if best == nil {
		return nil, noneLeft(all)
	}
	best.chosen.add(provider.Name(uid), uint64(max(machine.MemoryMiB, 0))*mib)
	return best, nil
}

// slots is how many instances of the size fit, 0 also for a host whose memory is
// promised away but not in use.
func (c candidate) slots(machine MachineType) uint64 {
	n := ^uint64(0)
	if c.room.memory.total > 0 {
		n = c.room.freeBytes() / (uint64(max(machine.MemoryMiB, 1)) * mib)
	}
	if limit := c.limit(); limit > 0 {
		n = min(n, uint64(max(limit-c.room.instances, 0))) //nolint:gosec // not negative.
	}
	return n
}

func tieBreak(uid, host string) uint64 {
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(uid + "\x00" + host))
	// The last bytes of FNV are mixed little.
	return hash.Sum64() * 0x9e3779b97f4a7c15
}

// noneLeft is ErrQuotaExceeded where a host answered that it is full. Otherwise
// none answered, and it is as permanent as the least of their errors.
func noneLeft(all []candidate) error {
	var texts []string
	var worst *provider.Error
	for _, c := range all {
		known := classify(c.err)
		texts = append(texts, fmt.Sprintf("%s: %v", c.Name, known.Err))
		if worst == nil || severity(known) > severity(worst) {
			worst = known
		}
	}
	return &provider.Error{Class: worst.Class, Code: worst.Code, Err: fmt.Errorf("no host has room: %s", strings.Join(texts, "; "))}
}

func severity(e *provider.Error) int {
	switch {
	case errors.Is(e, provider.ErrQuotaExceeded):
		return 2
	case errors.Is(e, provider.ErrPermanent):
		return 0
	}
	return 1
}

// chosenFor is how long a choice counts that nothing was made of.
const chosenFor = time.Minute

// choices are what Place chose lately on one host. The zero value is ready.
type choices struct {
	mu  sync.Mutex
	all map[string]choice // by instance name
}

type choice struct {
	memory uint64
	until  time.Time
}

func (c *choices) add(name string, memory uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all == nil {
		c.all = map[string]choice{}
	}
	c.all[name] = choice{memory, time.Now().Add(chosenFor)}
}

// pending are the memories of the choices that are not among the existing ones,
// but for that of the name itself.
func (c *choices) pending(existing map[string]bool, but string) (memories []uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, made := range c.all {
		switch {
		case existing[name] || !time.Now().Before(made.until):
			delete(c.all, name)
		case name != but:
			memories = append(memories, made.memory)
		}
	}
	return memories
}
