package kvm

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/egressfleet/egress/provider"
)

// HostImage is a base image in the pool of a host.
type HostImage struct {
	// Host and Volume say where it is.
	Host   string `json:"host"`
	Volume string `json:"volume"`
	// Key is the image's key in the configuration, now or at the time, and "url"
	// for one that a placement named by URL.
	Key string `json:"key"`
	// Format is "qcow2" or "raw".
	Format string `json:"format"`
	// Bytes is the size of its file, and DiskBytes that of its disk.
	Bytes     uint64 `json:"bytes"`
	DiskBytes uint64 `json:"diskBytes"`
	// Whole is whether it arrived and was verified. One that is not is being
	// fetched, or was left by a fetch that broke.
	Whole bool `json:"whole"`
	// Configured is whether a new instance would use it.
	Configured bool `json:"configured"`
	// Users is how many disks are based on it.
	Users int `json:"users"`
	// ChangedAt is when its content changed last, by the host's clock.
	ChangedAt time.Time `json:"changedAt,omitzero"`
}

// ListImages returns the base images of all hosts, in the order of hosts and
// volumes. Hosts that did not answer come back as [*provider.PartialError].
func (p *Provider) ListImages(ctx context.Context) ([]HostImage, error) {
	var mu sync.Mutex
	var images []HostImage
	err := p.withPool(ctx, "ListImages", "", func(ctx context.Context, w imageHost) error {
		all, err := w.inventory(ctx)
		mu.Lock()
		defer mu.Unlock()
		for _, v := range all.bases() {
			images = append(images, w.image(all, v))
		}
		return err
	})
	slices.SortFunc(images, func(a, b HostImage) int {
		return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.Volume, b.Volume))
	})
	return images, err
}

// image describes a base.
func (w imageHost) image(all inventory, v volumeInfo) HostImage {
	parts := basePattern.FindStringSubmatch(v.name)
	return HostImage{
		Host: w.h.Name, Volume: v.name, Key: parts[1], Format: parts[2], Bytes: v.physical, DiskBytes: v.capacity,
		Whole: all.has(v.name + markerSuffix), Configured: w.configured(all)[v.name], Users: all.usersOf(v.path), ChangedAt: v.changed,
	}
}

// configured are the names of the volumes that the configuration means. Of an
// image with a checksums file they are those that it named last.
func (w imageHost) configured(all inventory) map[string]bool {
	names := map[string]bool{}
	for key, image := range w.p.cfg.Images {
		src := imageSource{Image: image, key: key}
		for _, digest := range w.digests(all, src) {
			src.SHA256 = or(src.SHA256, digest)
			for _, format := range src.formats() {
				names[src.volume(format)] = true
			}
			src.SHA256 = image.SHA256
		}
	}
	return names
}

// digests are what an image's checksums file said, to this process or when the
// host got it; of an image without one there is nothing to add.
func (w imageHost) digests(all inventory, src imageSource) []string {
	if src.Checksums == "" {
		return []string{""}
	}
	var digests []string
	if e, ok := w.p.checksums.get(src.URL); ok && e.err == nil {
		digests = append(digests, or(e.source.SHA256, e.source.SHA512))
	}
	for name := range all {
		if digest, ok := src.pinOf(name); ok {
			digests = append(digests, digest)
		}
	}
	return digests
}

// CodeImageInUse marks an image that cannot be fetched again because the disks
// of instances are based on it.
const CodeImageInUse = "ImageInUse"

// PullRequest says which image to fetch.
type PullRequest struct {
	// Host is the name of a host; may be empty where there is only one.
	Host string
	// Image is a key of [Config.Images], or an http or https URL; may be empty
	// where there is only one.
	Image string
	// Again fetches an image again that has neither a digest nor a checksums file,
	// which otherwise stays what the first fetch gave. It must not be in use. A
	// checksums file is always read again.
	Again bool
}

// PullImage fetches an image into the pool of a host, unless it is there, and
// waits for it whatever [Config.ImageFetch] says. An image that is in use is
// ErrPermanent with [CodeImageInUse].
func (p *Provider) PullImage(ctx context.Context, req PullRequest) (HostImage, error) {
	h, err := pick("host", req.Host, p.hosts)
	if err != nil {
		return HostImage{}, p.failure("PullImage", "", "", err)
	}
	src, err := p.image(req.Image)
	if err != nil {
		return HostImage{}, p.failure("PullImage", "", h.Name, err)
	}
	var image HostImage
	err = p.withPool(ctx, "PullImage", h.Name, func(ctx context.Context, w imageHost) error {
		p.checksums.forget(src.URL)
		if req.Again && !src.hasDigest() && src.Checksums == "" {
			if err := w.discard(ctx, src); err != nil {
				return err
			}
		}
		b, err := p.waitForImage(ctx, w, src)
		if err != nil {
			return err
		}
		all, err := w.inventory(ctx)
		image = w.image(all, volumeInfo{name: b.volume, path: b.path, capacity: b.capacity, physical: b.physical, changed: all[b.volume].changed})
		return err
	})
	return image, err
}

// discard removes an image that nothing is based on.
func (w imageHost) discard(ctx context.Context, src imageSource) error {
	all, err := w.inventory(ctx)
	if err != nil {
		return err
	}
	for _, format := range src.formats() {
		v, ok := all[src.volume(format)]
		if !ok {
			continue
		}
		if n := all.usersOf(v.path); n > 0 {
			return provider.Permanentf(CodeImageInUse, "the disks of %d instances are based on %s: replace them first, or give the image a digest, so that the new one gets a name of its own", n, v.name)
		}
		if err := w.removeBase(ctx, v.name); err != nil {
			return err
		}
	}
	return nil
}

// removeBase removes an image, its marker first.
func (w imageHost) removeBase(ctx context.Context, volume string) error {
	w.h.images.forget(volume)
	if err := w.c.remove(ctx, w.pool, volume+markerSuffix); err != nil {
		return err
	}
	return w.c.remove(ctx, w.pool, volume)
}

// PruneRequest says which images to remove.
type PruneRequest struct {
	// Host is the name of a host; all if empty.
	Host string
	// Configured removes those too that new instances would use.
	Configured bool
	// MinAge is for how long an image must not have changed;
	// [provider.DefaultSweepAge] if zero, so that one which was just fetched for
	// an instance is left alone.
	MinAge time.Duration
	// DryRun removes nothing.
	DryRun bool
}

// PruneImages removes base images that no disk is based on. An instance that is
// being made of one at the same time fetches it again.
func (p *Provider) PruneImages(ctx context.Context, req PruneRequest) ([]provider.Leftover, error) {
	req.MinAge = or(req.MinAge, provider.DefaultSweepAge)
	var found sweepings
	err := p.withPool(ctx, "PruneImages", req.Host, func(ctx context.Context, w imageHost) error {
		all, err := w.inventory(ctx)
		if err != nil {
			return err
		}
		configured := w.configured(all)
		for _, v := range all.bases() {
			found.add(w.prune(ctx, all, v, configured[v.name] && !req.Configured, req))
		}
		return nil
	})
	return found.sorted(), err
}

// prune decides about one image, and removes it.
func (w imageHost) prune(ctx context.Context, all inventory, v volumeInfo, wanted bool, req PruneRequest) provider.Leftover {
	left := provider.Leftover{Scope: w.h.Name, Kind: "image", Name: v.name, Age: v.age()}
	users := all.usersOf(v.path)
	switch {
	case users > 0:
		left.Reason = fmt.Sprintf("kept: %d disks are based on it", users)
	case wanted:
		left.Reason = "kept: the configuration uses it"
	case left.Age < req.MinAge:
		left.Reason = fmt.Sprintf("kept: it is younger than %s", req.MinAge)
	default:
		left.Reason, left.Removed = "no disk is based on it", true
		if !req.DryRun {
			w.take(ctx, &left, func() error { return w.removeBase(ctx, v.name) })
		}
	}
	return left
}

// take removes a leftover, and says how that went.
func (w imageHost) take(ctx context.Context, left *provider.Leftover, remove func() error) {
	if err := remove(); err != nil {
		left.Removed, left.Err = false, err
		left.Reason += "; it could not be removed: " + err.Error()
		return
	}
	logr.FromContextOrDiscard(ctx).Info("removed what was left over", "kind", left.Kind, "leftover", left.Name, "reason", left.Reason, "age", left.Age.Round(time.Second).String())
}

// sweepings gathers what the hosts have.
type sweepings struct {
	mu    sync.Mutex
	found []provider.Leftover
}

func (l *sweepings) add(left ...provider.Leftover) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.found = append(l.found, left...)
}

// sorted is in the order of hosts, kinds and names.
func (l *sweepings) sorted() []provider.Leftover {
	slices.SortFunc(l.found, func(a, b provider.Leftover) int {
		return cmp.Or(cmp.Compare(a.Scope, b.Scope), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
	})
	return l.found
}
