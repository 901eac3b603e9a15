package kvm

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/digitalocean/go-libvirt"
	"github.com/go-logr/logr"
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

// ensureImage returns the image's volume, fetching it where the host has none.
func (p *Provider) ensureImage(ctx context.Context, h *host, pool libvirt.StoragePool, src imageSource) (base, error) {
	w := imageHost{p: p, h: h, c: h.controlClient(), pool: pool}
	b, ok, err := w.cached(ctx, src)
	if err != nil {
		return base{}, err
	}
	if ok {
		logr.FromContextOrDiscard(ctx).V(1).Info("base image already cached", "pool", h.Pool, "volume", b.volume)
		return b, nil
	}
	return h.images.do(ctx, src.volume(), func(ctx context.Context) (base, error) { return w.obtain(ctx, src) })
}

// cached looks for the marker, and for the volume unless it was seen before: that
// it is still there shows when an overlay is made on it.
func (w imageHost) cached(ctx context.Context, src imageSource) (b base, ok bool, err error) {
	b = base{volume: src.volume(), format: src.Format}
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
func (w imageHost) obtain(ctx context.Context, src imageSource) (base, error) {
	for {
		b, ok, err := w.cached(ctx, src)
		if ok || err != nil {
			return b, err
		}
		free, err := w.awaitOther(ctx, src.volume())
		if err != nil {
			return base{}, err
		}
		if !free {
			continue
		}
		b, err = w.fetch(ctx, src)
		if !isLibvirt(err, libvirt.ErrStorageVolExist) { // else somebody was faster
			return b, err
		}
	}
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
func (w imageHost) fetch(ctx context.Context, src imageSource) (base, error) {
	// A marker without its volume would make the next partial one trusted.
	if err := w.c.remove(ctx, w.pool, src.volume()+markerSuffix); err != nil {
		return base{}, err
	}
	d, err := w.p.download(ctx, src)
	if err != nil {
		return base{}, err
	}
	defer d.close()
	log := logr.FromContextOrDiscard(ctx)
	log.Info("fetching base image into host pool", "pool", w.h.Pool, "volume", src.volume(), "url", src.shownURL(), "bytes", d.length)
	start := time.Now()
	// A file that starts empty tells by its size how much has arrived.
	vol, err := w.c.create(ctx, w.pool, rawVolume(src.volume(), 0))
	if err != nil {
		return base{}, err
	}
	b, sent, err := w.fill(ctx, src, d, vol)
	if err != nil {
		return base{}, w.undo(ctx, src.volume(), err)
	}
	log.Info("base image cached", "volume", b.volume, "sha256", d.sha256(), "bytes", sent, "duration", elapsed(start))
	return b, nil
}

// fill sends the image into its volume, checks it, and writes the marker last.
func (w imageHost) fill(ctx context.Context, src imageSource, d *download, vol libvirt.StorageVol) (base, int64, error) {
	sent, err := w.h.upload(ctx, vol, d, uint64(max(d.length, 0)), w.progress(src, d)) //nolint:gosec // not negative.
	if err != nil {
		return base{}, sent, err
	}
	if err := d.verify(src, sent); err != nil {
		return base{}, sent, err
	}
	b, err := w.settle(ctx, src, d, sent)
	if err != nil {
		return base{}, sent, err
	}
	if _, err = w.c.create(ctx, w.pool, rawVolume(src.volume()+markerSuffix, 0)); err == nil {
		w.h.images.remember(b)
	}
	return b, sent, err
}

func (w imageHost) progress(src imageSource, d *download) func(int) {
	if w.p.cfg.Progress == nil {
		return nil
	}
	told := ImageProgress{Host: w.h.Name, Volume: src.volume(), Total: d.length}
	return func(n int) {
		told.Bytes += int64(n)
		w.p.cfg.Progress(told)
	}
}

// settle has libvirt read the volume anew, as it does by itself a moment after
// an upload, and compares what it finds with what was sent: an upload into a
// volume that was deleted meanwhile succeeds too.
func (w imageHost) settle(ctx context.Context, src imageSource, d *download, sent int64) (base, error) {
	if err := whileBusy(ctx, func() error { return w.c.refreshPool(ctx, w.pool) }); err != nil {
		return base{}, err
	}
	vol, err := w.c.lookupVolume(ctx, w.pool, src.volume())
	if err != nil {
		return base{}, err
	}
	b, err := w.measure(ctx, base{volume: src.volume(), format: src.Format}, vol)
	if err != nil {
		return base{}, err
	}
	if want := d.capacity(sent); b.capacity != want || b.physical != uint64(sent) { //nolint:gosec // a count.
		return base{}, transient(codeVolumeChanged, "volume %s has a disk of %d and a file of %d bytes after the upload, wanted %d and %d: somebody else changed it",
			b.volume, b.capacity, b.physical, want, sent)
	}
	return b, nil
}

// cleanupTime bounds what is done after a failure whose context has ended.
const cleanupTime = 5 * time.Second

func (w imageHost) undo(ctx context.Context, volume string, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTime)
	defer cancel()
	w.h.images.forget(volume)
	if err := w.c.remove(ctx, w.pool, volume); err != nil {
		return fmt.Errorf("%w (and the broken volume %s could not be removed: %v)", cause, volume, err) //nolint:errorlint // one cause.
	}
	return cause
}

// imageFetches are the fetches of one host: one for each image, however many
// want it. The zero value is ready.
type imageFetches struct {
	mu      sync.Mutex
	running map[string]*imageFetch
	bases   map[string]base // sizes of images that were seen whole
	done    sync.WaitGroup
}

type imageFetch struct {
	finished chan struct{}
	base     base
	err      error
	waiting  int // guarded by imageFetches.mu
	cancel   context.CancelFunc
}

// do waits for the fetch of that volume, and starts it if it does not run. The
// fetch outlives whoever started it and ends when nobody waits any more.
func (f *imageFetches) do(ctx context.Context, volume string, fetch func(context.Context) (base, error)) (base, error) {
	r := f.join(ctx, volume, fetch)
	defer f.leave(volume, r)
	select {
	case <-r.finished:
		return r.base, r.err
	case <-ctx.Done():
		return base{}, ctx.Err()
	}
}

func (f *imageFetches) join(ctx context.Context, volume string, fetch func(context.Context) (base, error)) *imageFetch {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.running == nil {
		f.running = map[string]*imageFetch{}
	}
	r := f.running[volume]
	if r == nil {
		r = &imageFetch{finished: make(chan struct{})}
		f.running[volume] = r
		// What the fetch leaves behind is not its first caller's.
		ctx = context.WithValue(context.WithoutCancel(ctx), leftoversKey{}, &leftovers{})
		ctx, r.cancel = context.WithCancel(ctx)
		f.done.Go(func() {
			defer r.cancel()
			r.base, r.err = fetch(ctx)
			f.forgetRunning(volume, r)
			close(r.finished)
		})
	}
	r.waiting++
	return r
}

// leave cancels a fetch that nobody waits for; who comes later starts another,
// which finds the volume gone or waits for that.
func (f *imageFetches) leave(volume string, r *imageFetch) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if r.waiting--; r.waiting > 0 {
		return
	}
	r.cancel()
	if f.running[volume] == r {
		delete(f.running, volume)
	}
}

func (f *imageFetches) forgetRunning(volume string, r *imageFetch) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.running[volume] == r {
		delete(f.running, volume)
	}
}

// wait waits for all fetches to end, for Close, which has ended their waiters.
func (f *imageFetches) wait() { f.done.Wait() }

func (f *imageFetches) known(volume string) (base, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	b, ok := f.bases[volume]
	return b, ok
}

func (f *imageFetches) remember(b base) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.bases == nil {
		f.bases = map[string]base{}
	}
	f.bases[b.volume] = b
}

func (f *imageFetches) forget(volume string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.bases, volume)
}
