package kvm

import (
	"context"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/digitalocean/go-libvirt"
	"libvirt.org/go/libvirtxml"

	"github.com/egressfleet/egress/provider"
)

// volumeInfo is what a pool knows of one volume.
type volumeInfo struct {
	name, path, format string
	// backing is the path of the volume that it is based on.
	backing string
	// capacity is the size of its disk in bytes, physical that of its file.
	capacity, physical uint64
	// changed is when its content changed last, by the host's clock.
	changed time.Time
}

// inventory is what a pool has, by the names of the volumes.
type inventory map[string]volumeInfo

// inventory reads the whole pool. What goes while it is read is not in it.
func (w imageHost) inventory(ctx context.Context) (inventory, error) {
	if err := whileBusy(ctx, func() error { return w.c.refreshPool(ctx, w.pool) }); err != nil {
		return nil, err
	}
	vols, err := w.c.listVolumes(ctx, w.pool)
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	all, firstErr := make(inventory, len(vols)), error(nil)
	var readers sync.WaitGroup
	for _, vol := range vols {
		readers.Go(func() {
			info, err := w.volumeInfo(ctx, vol)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				all[info.name] = info
			case !isLibvirt(err, libvirt.ErrNoStorageVol) && !isMissingFile(err) && firstErr == nil:
				firstErr = err
			}
		})
	}
	readers.Wait()
	return all, firstErr
}

func (w imageHost) volumeInfo(ctx context.Context, vol libvirt.StorageVol) (volumeInfo, error) {
	text, err := w.c.volumeXML(ctx, vol)
	if err != nil {
		return volumeInfo{}, err
	}
	return parseVolume(vol.Name, text)
}

// parseVolume reads libvirt's description of a volume.
func parseVolume(name, text string) (volumeInfo, error) {
	var x libvirtxml.StorageVolume
	if err := x.Unmarshal(text); err != nil {
		return volumeInfo{}, err
	}
	info := volumeInfo{name: name, capacity: sizeIn(x.Capacity), physical: sizeIn(x.Physical)}
	if t := x.Target; t != nil {
		info.path = t.Path
		if t.Format != nil {
			info.format = t.Format.Type
		}
		if t.Timestamps != nil {
			info.changed = parseTimestamp(t.Timestamps.Mtime)
		}
	}
	if x.BackingStore != nil {
		info.backing = x.BackingStore.Path
	}
	return info, nil
}

func sizeIn(s *libvirtxml.StorageVolumeSize) uint64 {
	if s == nil {
		return 0
	}
	return s.Value // always in bytes in what libvirt gives out
}

// parseTimestamp reads seconds since the epoch with a fraction; it is zero for
// anything else.
func parseTimestamp(text string) time.Time {
	seconds, fraction, _ := strings.Cut(text, ".")
	s, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil || s < 0 || s > math.MaxInt32<<8 {
		return time.Time{}
	}
	fraction = (fraction + "000000000")[:9]
	ns, _ := strconv.ParseInt(fraction, 10, 64)
	return time.Unix(s, ns)
}

// usersOf counts the volumes that are based on that one.
func (i inventory) usersOf(path string) (n int) {
	for _, v := range i {
		if v.backing == path {
			n++
		}
	}
	return n
}

// age is since a volume changed last; zero where that is not known.
func (v volumeInfo) age() time.Duration {
	if v.changed.IsZero() {
		return 0
	}
	return max(time.Since(v.changed), 0)
}

// basePattern takes the name of a base image's volume apart.
var basePattern = regexp.MustCompile(`^base-([A-Za-z0-9][A-Za-z0-9_.-]*)-(?:[0-9a-f]{16}|url[0-9a-f]{13})\.(qcow2|raw)$`)

// bases are the volumes of base images, whole or not.
func (i inventory) bases() (found []volumeInfo) {
	for _, name := range slices.Sorted(maps.Keys(i)) {
		if basePattern.MatchString(name) {
			found = append(found, i[name])
		}
	}
	return found
}

func (i inventory) has(name string) bool { _, ok := i[name]; return ok }

// withPool calls f for each named host, or for all, at the same time, with its
// pool. What failed comes back as a [provider.PartialError], or as it is where
// one host was named.
func (p *Provider) withPool(ctx context.Context, op, only string, f func(context.Context, imageHost) error) error {
	hosts := p.order
	if only != "" {
		h, err := pick("host", only, p.hosts)
		if err != nil {
			return p.failure(op, "", "", err)
		}
		hosts = []*host{h}
	}
	ctx, leave, err := p.life.Enter(ctx)
	if err != nil {
		return p.failure(op, "", "", err)
	}
	defer leave()
	ctx, end := p.cfg.Trace.operation(ctx, OperationInfo{Op: op, Provider: p.cfg.Name})
	var found listing
	var running sync.WaitGroup
	for _, h := range hosts {
		running.Go(func() {
			ctx := p.withLogger(ctx, h, "")
			facts, err := p.factsOf(ctx, h)
			if err == nil {
				err = f(ctx, p.imageHost(h, facts.pool))
			}
			if err != nil {
				found.miss(h.Name, p.failure(op, "", h.Name, err))
			}
		})
	}
	running.Wait()
	_, err = found.result()
	end(err)
	if only != "" && len(found.missing) > 0 {
		return found.missing[0].Err
	}
	return err
}

var _ provider.Sweeper = (*Provider)(nil)
