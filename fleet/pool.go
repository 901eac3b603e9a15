package fleet

import (
	"fmt"
	"hash/fnv"
	"maps"
	"time"

	"github.com/egressfleet/egress/internal/check"
	"github.com/egressfleet/egress/provider"
)

// Pool is a part of a fleet whose proxies are made alike.
type Pool struct {
	// Name tells it from the others; it has the form of a tag. It is kept in the
	// instances' metadata, so that a restart finds out what belongs to it.
	Name string
	// Size is how many healthy proxies are wanted. Zero keeps none.
	Size int
	// Request says what to make for a UID, see [Config.Request].
	Request func(uid string) (provider.CreateRequest, error)
	// MaxAge replaces proxies that are older; never if zero. It waits while one is
	// unhealthy, and while a fifth of the fleet is missing or not healthy yet. Each
	// has a limit of its own, up to a tenth shorter or longer, so that those that
	// were made together do not end together.
	MaxAge time.Duration
	// Attributes are added to those of its endpoints, for selectors. "pool" is
	// the name, unless it is given; "tag" is always the fleet's.
	Attributes map[string]string
}

// poolKey is where an instance's metadata has the pool's name.
const poolKey = "egress-pool"

// pool is a Pool at work. The fleet's lock guards it.
type pool struct {
	Pool
	stillborn int // instances in a row that ended without ever being healthy
	growAfter time.Time
}

// withPools makes one pool of the fields for one, and checks the others.
func (c Config) withPools(problems *check.Problems) Config {
	if len(c.Pools) == 0 {
		if c.Size < 0 {
			problems.Add("size", c.Size, "must not be negative")
		}
		notNegative(problems, "maxAge", c.MaxAge)
		c.Pools = []Pool{{Size: c.Size, Request: c.Request, MaxAge: c.MaxAge}}
		return c
	}
	problems.Require(c.Size == 0 && c.Request == nil && c.MaxAge == 0, "pools", "leave out size, request and maxAge: each pool has its own")
	names := map[string]bool{}
	for i, p := range c.Pools {
		path := fmt.Sprintf("pools[%d]", i)
		problems.Within(path+".name", provider.ValidTag(p.Name))
		if names[p.Name] {
			problems.Add(path+".name", p.Name, "is used twice")
		}
		if p.Size < 0 {
			problems.Add(path+".size", p.Size, "must not be negative")
		}
		notNegative(problems, path+".maxAge", p.MaxAge)
		names[p.Name] = true
		c.Size += p.Size
	}
	return c
}

func notNegative(problems *check.Problems, path string, d time.Duration) {
	if d < 0 {
		problems.Add(path, d, "must not be negative")
	}
}

// request asks what to make for a UID.
func (p *pool) request(uid, tag string) (req provider.CreateRequest, err error) {
	if p.Request != nil {
		req, err = p.Request(uid)
	}
	req.UID, req.Tag = uid, tag
	if p.Name != "" {
		metadata := map[string]string{poolKey: p.Name}
		for key, value := range req.Metadata {
			metadata[key] = value
		}
		req.Metadata = metadata
	}
	return req, err
}

// ageLimit is when an instance of that UID is to be replaced; zero for never.
func (p *pool) ageLimit(uid string) time.Duration {
	if p.MaxAge == 0 {
		return 0
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(uid))
	spread := float64(h.Sum32())/(1<<32)*0.2 - 0.1
	return p.MaxAge + time.Duration(spread*float64(p.MaxAge))
}

// Resize changes how many proxies of a pool are wanted; the pool of a fleet
// without pools is "". What is too many ends once its leases have ended. It is an
// error to want more than MaxSize in all, where that was set.
func (f *Fleet) Resize(name string, size int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	p, ok := f.pools[name]
	if !ok {
		return fmt.Errorf("fleet: there is no pool %q", name)
	}
	total := f.wantedLocked() - p.Size + size
	switch {
	case size < 0:
		return fmt.Errorf("fleet: size: %d: must not be negative", size)
	case f.cfg.MaxSize > 0 && total > f.cfg.MaxSize:
		return fmt.Errorf("fleet: size: %d: all pools would have %d, more than maxSize, %d", size, total, f.cfg.MaxSize)
	}
	p.Size = size
	f.wake()
	return nil
}

// wantedLocked is the size of all pools.
func (f *Fleet) wantedLocked() (n int) {
	for _, p := range f.pools {
		n += p.Size
	}
	return n
}

// ceilingLocked is how many instances there may be.
func (f *Fleet) ceilingLocked() int {
	if f.cfg.MaxSize > 0 {
		return f.cfg.MaxSize
	}
	wanted := f.wantedLocked()
	return wanted + share(wanted)
}

// Replace ends the instance with that UID or ID, after its leases, and so has
// another made.
func (f *Fleet) Replace(uidOrID, reason string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range f.members.all {
		if m.uid != uidOrID && m.id != uidOrID {
			continue
		}
		if m.live() {
			m.wanted = reason
			f.wake()
		}
		return nil
	}
	return fmt.Errorf("fleet: there is no instance %q", uidOrID)
}

// attributes adds those of the pool to an endpoint's own, which come first, and the
// fleet's tag, which no other may take the place of.
func (p *pool) attributes(own map[string]string, tag string) map[string]string {
	all := map[string]string{}
	if p.Name != "" {
		all["pool"] = p.Name
	}
	maps.Copy(all, p.Attributes)
	maps.Copy(all, own)
	all[tagKey] = tag
	return all
}

// Sizes returns how many proxies are wanted of each pool.
func (f *Fleet) Sizes() map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	sizes := map[string]int{}
	for name, p := range f.pools {
		sizes[name] = p.Size
	}
	return sizes
}
