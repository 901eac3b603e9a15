package kvm

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/egressfleet/egress/internal/diskimage"
	"github.com/egressfleet/egress/provider"
)

// imageFetches are the fetches of one host: one for each image, however many
// want it. The zero value is ready.
type imageFetches struct {
	mu      sync.Mutex
	running map[string]*imageFetch
	failed  map[string]error // in the background, not yet told
	bases   map[string]base  // sizes of images that were seen whole
	done    sync.WaitGroup
}

// imageFetch is one fetch. base and err belong to the waiters once it is
// finished.
type imageFetch struct {
	finished chan struct{}
	base     base
	err      error
	image    atomic.Pointer[diskimage.Image]

	// Guarded by imageFetches.mu.
	waiting    int
	background bool
	cancel     context.CancelFunc
	unhook     func() bool // from the lifetime; nil in the foreground
}

// fetchFunc fetches an image; it has its progress followed by f.
type fetchFunc func(ctx context.Context, f *imageFetch) (base, error)

// follow has the progress of the fetch be that of the image.
func (f *imageFetch) follow(image *diskimage.Image) { f.image.Store(image) }

// percent is empty where it cannot be told.
func (f *imageFetch) percent() string {
	image := f.image.Load()
	if image == nil {
		return ""
	}
	done, total := image.Progress()
	if total <= 0 {
		return fmt.Sprintf(", %d MiB so far", done>>20)
	}
	return fmt.Sprintf(", %d %%", done*100/total)
}

// do waits for the fetch of that image, and starts it if it does not run. The
// fetch outlives whoever started it and ends when nobody waits any more.
func (s *imageFetches) do(ctx context.Context, image string, fetch fetchFunc) (base, error) {
	f := s.join(ctx, image, fetch)
	defer s.leave(image, f)
	select {
	case <-f.finished:
		return f.base, f.err
	case <-ctx.Done():
		return base{}, ctx.Err()
	}
}

// poll sees to it that a fetch of that image runs, and returns at once with an
// error that tells how far it is, or why an earlier one failed, once. It ends
// with the lifetime.
func (s *imageFetches) poll(lifetime context.Context, image string, fetch fetchFunc) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err, ok := s.failed[image]; ok {
		delete(s.failed, image)
		return err
	}
	f := s.running[image]
	if f == nil {
		f = s.startLocked(lifetime, image, fetch)
	}
	if !f.background {
		f.background = true
		f.waiting++ // it waits for itself
		f.unhook = context.AfterFunc(lifetime, f.cancel)
	}
	return provider.Transientf(codeFetchingImage, "the image is being fetched%s: try again", f.percent())
}

// join starts the fetch if it does not run, and waits for it until leave.
func (s *imageFetches) join(ctx context.Context, image string, fetch fetchFunc) *imageFetch {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.running[image]
	if f == nil {
		f = s.startLocked(ctx, image, fetch)
	}
	f.waiting++
	return f
}

func (s *imageFetches) startLocked(ctx context.Context, image string, fetch fetchFunc) *imageFetch {
	f := &imageFetch{finished: make(chan struct{})}
	if s.running == nil {
		s.running = map[string]*imageFetch{}
	}
	s.running[image] = f
	// What the fetch leaves behind is not its first caller's.
	ctx = context.WithValue(context.WithoutCancel(ctx), leftoversKey{}, &leftovers{})
	ctx, f.cancel = context.WithCancel(ctx)
	s.done.Go(func() {
		defer f.cancel()
		f.base, f.err = fetch(ctx, f)
		s.end(image, f)
		close(f.finished)
	})
	return f
}

// end keeps the failure of a fetch that nobody may have waited for.
func (s *imageFetches) end(image string, f *imageFetch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running[image] == f {
		delete(s.running, image)
	}
	if f.unhook != nil {
		f.unhook()
	}
	if f.err == nil {
		delete(s.failed, image) // what an earlier one met is history
	}
	if !f.background || f.err == nil {
		return
	}
	if s.failed == nil {
		s.failed = map[string]error{}
	}
	s.failed[image] = f.err
}

// leave cancels a fetch that nobody waits for; who comes later starts another,
// which finds the volume gone or waits for that.
func (s *imageFetches) leave(image string, f *imageFetch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.waiting--; f.waiting > 0 {
		return
	}
	f.cancel()
	if s.running[image] == f {
		delete(s.running, image)
	}
}

// wait waits for all fetches to end, for Close, which has ended their waiters.
func (s *imageFetches) wait() { s.done.Wait() }

func (s *imageFetches) known(volume string) (base, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, ok := s.bases[volume]
	return b, ok
}

func (s *imageFetches) remember(b base) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bases == nil {
		s.bases = map[string]base{}
	}
	s.bases[b.volume] = b
}

func (s *imageFetches) forget(volume string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.bases, volume)
}
