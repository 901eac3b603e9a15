package kvm

import (
	"context"
	"fmt"
	"time"

	"github.com/digitalocean/go-libvirt"
	"github.com/go-logr/logr"

	"github.com/egressfleet/egress/internal/diskimage"
	"github.com/egressfleet/egress/provider"
)

// markerSuffix makes the name of the volume that says that an image is whole.
const markerSuffix = ".ok"

// base is an image that is whole in the pool of a host.
type base struct {
	volume, path, format string
	// capacity is the size of its disk in bytes, physical that of its file.
	capacity, physical uint64
}

// imageHost is a host at the work on its images.
type imageHost struct {
	p    *Provider
	h    *host
	c    client
	pool libvirt.StoragePool
}

func (p *Provider) imageHost(h *host, pool libvirt.StoragePool) imageHost {
	return imageHost{p: p, h: h, c: h.controlClient(), pool: pool}
}

// ensureImage returns the image's volume, fetching it where the host has none.
func (p *Provider) ensureImage(ctx context.Context, h *host, pool libvirt.StoragePool, src imageSource) (base, error) {
	w := p.imageHost(h, pool)
	if p.cfg.ImageFetch == fetchForeground {
		return p.waitForImage(ctx, w, src)
	}
	return p.lookForImage(ctx, w, src, func(src imageSource) (base, error) {
		return base{}, h.images.poll(p.withLogger(p.life.Context(), h, ""), src.identity(), w.fetchFunc(src))
	})
}

// waitForImage returns the image once it is there.
func (p *Provider) waitForImage(ctx context.Context, w imageHost, src imageSource) (base, error) {
	return p.lookForImage(ctx, w, src, func(src imageSource) (base, error) {
		return w.h.images.do(ctx, src.identity(), w.fetchFunc(src))
	})
}

// lookForImage returns the image where it is there, and else what missing does
// about it.
func (p *Provider) lookForImage(ctx context.Context, w imageHost, src imageSource, missing func(imageSource) (base, error)) (base, error) {
	resolved, err := p.resolve(ctx, src)
	if err != nil {
		return w.pinned(ctx, src, err)
	}
	b, ok, err := w.cached(ctx, resolved)
	if err != nil {
		return base{}, err
	}
	if ok {
		logr.FromContextOrDiscard(ctx).V(1).Info("base image already cached", "pool", w.h.Pool, "volume", b.volume)
		return b, nil
	}
	return missing(resolved)
}

func (w imageHost) fetchFunc(src imageSource) fetchFunc {
	return func(ctx context.Context, f *imageFetch) (base, error) { return w.obtain(ctx, src, f) }
}

// cached looks for the marker, and for the volume unless it was seen before: that
// it is still there shows when an overlay is made on it.
func (w imageHost) cached(ctx context.Context, src imageSource) (b base, ok bool, err error) {
	for _, format := range src.formats() {
		if b, ok, err = w.cachedAs(ctx, src, format); ok || err != nil {
			return b, ok, err
		}
	}
	return base{}, false, nil
}

func (w imageHost) cachedAs(ctx context.Context, src imageSource, format string) (b base, ok bool, err error) {
	b = base{volume: src.volume(format), format: format}
	if ok, err = w.c.exists(ctx, w.pool, b.volume+markerSuffix); !ok || err != nil {
		return b, false, err
	}
	if known, ok := w.h.images.known(b.volume); ok && src.hasDigest() {
		return known, true, nil
	}
	vol, err := w.c.lookupVolume(ctx, w.pool, b.volume)
	if isLibvirt(err, libvirt.ErrNoStorageVol) {
		return b, false, nil
	}
	if err != nil {
		return b, false, err
	}
	if b, err = w.measure(ctx, b, vol); err != nil {
		return b, false, err
	}
	w.h.images.remember(b)
	return b, true, nil
}

func (w imageHost) measure(ctx context.Context, b base, vol libvirt.StorageVol) (base, error) {
	var err error
	if b.path, err = w.c.volumePath(ctx, vol); err != nil {
		return b, err
	}
	size, err := w.c.volumeSize(ctx, vol)
	b.capacity, b.physical = size.capacity, size.physical
	return b, err
}

// obtain fetches the image, or waits for another process that does.
func (w imageHost) obtain(ctx context.Context, src imageSource, f *imageFetch) (base, error) {
	for {
		b, ok, err := w.cached(ctx, src)
		if ok || err != nil {
			return b, err
		}
		free, err := w.awaitOthers(ctx, src)
		if err != nil {
			return base{}, err
		}
		if !free {
			continue
		}
		b, err = w.fetch(ctx, src, f)
		if !isLibvirt(err, libvirt.ErrStorageVolExist) { // else somebody was faster
			return b, err
		}
	}
}

// awaitOthers tells whether the names that the volume may get are free.
func (w imageHost) awaitOthers(ctx context.Context, src imageSource) (free bool, err error) {
	for _, format := range src.formats() {
		if free, err = w.awaitOther(ctx, src.volume(format)); !free || err != nil {
			return false, err
		}
	}
	return true, nil
}

// awaitOther tells whether the volume's name is free. Where it is taken by an
// unfinished image it waits: until that is finished or gone, or has not grown
// for so long that it is removed as broken.
func (w imageHost) awaitOther(ctx context.Context, volume string) (free bool, err error) {
	takeover := time.Duration(w.p.cfg.Timeouts.ImageTakeover)
	pause := min(takeover/4, time.Second)
	var last volumeSize
	for since := time.Now(); ; {
		vol, err := w.c.lookupVolume(ctx, w.pool, volume)
		if isLibvirt(err, libvirt.ErrNoStorageVol) {
			return true, nil
		}
		if err != nil {
			return false, err
		}
		if whole, err := w.c.exists(ctx, w.pool, volume+markerSuffix); whole || err != nil {
			return false, err
		}
		size, err := w.c.volumeSize(ctx, vol)
		if err != nil && !isLibvirt(err, libvirt.ErrNoStorageVol) {
			return false, err
		}
		if size != last {
			last, since = size, time.Now()
		}
		if time.Since(since) > takeover {
			return true, w.c.remove(ctx, w.pool, volume)
		}
		if err := sleep(ctx, pause); err != nil {
			return false, err
		}
	}
}

// fetch brings the image into the pool. On an error nothing of it is left.
func (w imageHost) fetch(ctx context.Context, src imageSource, f *imageFetch) (base, error) {
	image, err := w.p.opener().Open(ctx, src.source())
	if err != nil {
		return base{}, err
	}
	defer image.Close()
	f.follow(image)
	volume := src.volume(image.Format)
	if err := w.checkSpace(ctx, image); err != nil {
		return base{}, err
	}
	// A marker without its volume would make the next partial one trusted.
	if err := w.c.remove(ctx, w.pool, volume+markerSuffix); err != nil {
		return base{}, err
	}
	_, length := image.Progress()
	log := logr.FromContextOrDiscard(ctx)
	log.Info("fetching base image into host pool", "pool", w.h.Pool, "volume", volume, "url", diskimage.Shown(src.URL), "bytes", length)
	start := time.Now()
	// A file that starts empty tells by its size how much has arrived.
	vol, err := w.c.create(ctx, w.pool, rawVolume(volume, 0))
	if err != nil {
		return base{}, err
	}
	b, err := w.fill(ctx, image, vol)
	if err != nil {
		return base{}, w.undo(ctx, volume, w.p.forgetStale(src, err))
	}
	if name, digest := image.Digest(); name != "" {
		log = log.WithValues(name, digest)
	}
	log.Info("base image cached", "volume", b.volume, "bytes", image.Bytes(), "duration", elapsed(start))
	return b, w.pin(ctx, src)
}

// checkSpace refuses an image that the pool has no room for, before anything is
// sent. A packed one needs more, which shows when it is unpacked.
func (w imageHost) checkSpace(ctx context.Context, image *diskimage.Image) error {
	space, err := w.c.poolSpace(ctx, w.pool)
	if err != nil {
		return err
	}
	_, length := image.Progress()
	need := uint64(max(length, 0)) //nolint:gosec // not negative.
	if space.capacity > 0 && space.available < need+w.h.keepFree() {
		return w.h.lacksSpace(space, need)
	}
	return nil
}

// fill sends the image into its volume, checks it, and writes the marker last.
func (w imageHost) fill(ctx context.Context, image *diskimage.Image, vol libvirt.StorageVol) (base, error) {
	refresh := func() error { return whileBusy(ctx, func() error { return w.c.refreshPool(ctx, w.pool) }) }
	sent, err := w.h.uploadImage(ctx, vol, image, image.Length(), refresh, w.progress(vol.Name, image))
	if err != nil {
		return base{}, err
	}
	if err := image.Verify(); err != nil {
		return base{}, err
	}
	b, err := w.settle(ctx, image, vol.Name, sent)
	if err != nil {
		return base{}, err
	}
	if _, err = w.c.create(ctx, w.pool, rawVolume(vol.Name+markerSuffix, 0)); err == nil {
		w.h.images.remember(b)
	}
	return b, err
}

// progress tells the hook of each packet, if there is one.
func (w imageHost) progress(volume string, image *diskimage.Image) func() {
	if w.p.cfg.Progress == nil {
		return nil
	}
	return func() {
		done, total := image.Progress()
		w.p.cfg.Progress(ImageProgress{Host: w.h.Name, Volume: volume, Bytes: done, Total: total})
	}
}

// settle has libvirt read the volume anew, as it does by itself a moment after
// an upload, and compares what it finds with what was sent: an upload into a
// volume that was deleted meanwhile succeeds too.
func (w imageHost) settle(ctx context.Context, image *diskimage.Image, volume string, sent int64) (base, error) {
	if err := whileBusy(ctx, func() error { return w.c.refreshPool(ctx, w.pool) }); err != nil {
		return base{}, err
	}
	vol, err := w.c.lookupVolume(ctx, w.pool, volume)
	if isLibvirt(err, libvirt.ErrNoStorageVol) {
		return base{}, provider.Transientf(codeVolumeChanged, "volume %s is gone after its upload: somebody else removed it", volume)
	}
	if err != nil {
		return base{}, err
	}
	b, err := w.measure(ctx, base{volume: volume, format: image.Format}, vol)
	if err != nil {
		return base{}, err
	}
	if b.physical < uint64(sent) { //nolint:gosec // a count.
		if err := w.h.checkRoom(ctx, w.c, w.pool, uint64(sent)-b.physical); err != nil { //nolint:gosec // positive.
			return base{}, err
		}
	}
	if want := image.Capacity(); b.capacity != want || b.physical != uint64(sent) { //nolint:gosec // a count.
		return base{}, provider.Transientf(codeVolumeChanged, "volume %s has a disk of %d and a file of %d bytes after the upload, wanted %d and %d: somebody else changed it",
			b.volume, b.capacity, b.physical, want, sent)
	}
	return b, nil
}

// cleanupTime bounds what is done after a failure whose context has ended.
const cleanupTime = 5 * time.Second

// undo removes the unfinished volume. One that somebody else changed is theirs.
func (w imageHost) undo(ctx context.Context, volume string, cause error) error {
	w.h.images.forget(volume)
	if provider.HasCode(cause, codeVolumeChanged) {
		return cause
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTime)
	defer cancel()
	if err := w.c.remove(ctx, w.pool, volume); err != nil {
		return fmt.Errorf("%w (and the broken volume %s could not be removed: %v)", cause, volume, err) //nolint:errorlint // one cause.
	}
	return cause
}

// opener opens images as the configuration says.
func (p *Provider) opener() diskimage.Opener {
	return diskimage.Opener{Client: p.cfg.HTTPClient, Stall: time.Duration(p.cfg.Timeouts.Stall)}
}
