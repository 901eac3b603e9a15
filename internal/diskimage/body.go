package diskimage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/egressfleet/egress/provider"
)

// patience is how often in a row a source may fail without giving a byte.
const patience = 4

// firstPause is the pause before a source is opened again, which then doubles;
// it is never longer than the stall time.
const firstPause = time.Second

// body is the content of a source, across interruptions. Close may be called
// while a Read runs, and ends it.
type body struct {
	o      Opener
	src    Source
	ctx    context.Context //nolint:containedctx // it is the life of the stream.
	cancel context.CancelCauseFunc
	// first is how the source was found, and length its size or -1.
	first  *opened
	offset atomic.Int64
	// failures are those since the last byte.
	failures int
	// err is the error that ended the stream, the reader's alone.
	err error

	mu      sync.Mutex // guards the two below
	current *opened
	closed  bool
}

var errStalled = errors.New("the download stalled")

// newBody opens the source.
func newBody(ctx context.Context, o Opener, src Source) (*body, error) {
	b := &body{o: o, src: src}
	b.ctx, b.cancel = context.WithCancelCause(ctx)
	if err := b.open(); err != nil {
		b.cancel(nil)
		return nil, err
	}
	b.first = b.current
	return b, nil
}

// length is that of the whole file, -1 where it is not known.
func (b *body) length() int64 { return b.first.length }

// open opens the source at the current offset.
func (b *body) open() error {
	// The context of a request ends its body too, so a stalled one is not asked
	// for the time in which it is read.
	ctx, cancel := context.WithCancelCause(b.ctx)
	late := time.AfterFunc(b.o.Stall, func() { cancel(b.stalled()) })
	next, err := b.o.openAt(ctx, b.src, b.offset.Load(), b.first)
	if !late.Stop() && err == nil {
		err = provider.Transientf(CodeDownloadFailed, "%s: %w", Shown(b.src.URL), b.stalled())
		_ = next.Close()
	}
	if err != nil {
		cause := context.Cause(ctx)
		cancel(nil)
		if errors.Is(cause, errStalled) {
			err = provider.Transientf(CodeDownloadFailed, "%s: %w", Shown(b.src.URL), cause)
		}
		return err
	}
	next.ReadCloser = &canceling{ReadCloser: next.ReadCloser, cancel: cancel}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.current = next
	if b.closed {
		_ = next.Close()
	}
	return nil
}

func (b *body) stalled() error {
	return fmt.Errorf("%w: nothing came for %s", errStalled, b.o.Stall)
}

// canceling ends the request of a body with it.
type canceling struct {
	io.ReadCloser
	cancel context.CancelCauseFunc
}

func (c *canceling) Close() error {
	c.cancel(nil)
	return c.ReadCloser.Close()
}

// Read returns what comes next. After an interruption it opens the source
// again, where that may help.
func (b *body) Read(p []byte) (int, error) {
	for {
		n, err := b.readOnce(p)
		b.offset.Add(int64(n))
		switch {
		case n > 0:
			b.failures = 0
			return n, nil
		case err == nil:
			continue
		case errors.Is(err, io.EOF) && b.whole():
			return 0, io.EOF
		}
		if b.err = b.interrupted(err); b.err != nil {
			return 0, b.err
		}
	}
}

// failed is the error that ended the stream, other than its end.
func (b *body) failed() error { return b.err }

// whole tells whether the end of the stream is that of the file.
func (b *body) whole() bool { return b.length() < 0 || b.offset.Load() >= b.length() }

// readOnce reads from what is open, and gives up a source that sends nothing.
func (b *body) readOnce(p []byte) (int, error) {
	b.mu.Lock()
	current := b.current
	b.mu.Unlock()
	if current == nil {
		return 0, b.open()
	}
	var late atomic.Bool
	timer := time.AfterFunc(b.o.Stall, func() {
		late.Store(true)
		_ = current.Close()
	})
	n, err := current.Read(p)
	timer.Stop()
	if late.Load() && n == 0 {
		err = b.stalled()
	}
	return n, err
}

// interrupted decides about an error, and waits a little where the source is
// to be tried again.
func (b *body) interrupted(err error) error {
	b.drop()
	if b.ctx.Err() != nil {
		return b.ctx.Err()
	}
	err = b.cut(err)
	b.failures++
	if errors.Is(err, provider.ErrPermanent) || b.failures >= patience {
		return err
	}
	pause := time.NewTimer(min(firstPause<<(b.failures-1), b.o.Stall))
	defer pause.Stop()
	select {
	case <-pause.C:
		return nil
	case <-b.ctx.Done():
		return b.ctx.Err()
	}
}

// cut gives an error of a stream its class.
func (b *body) cut(err error) error {
	var known *provider.Error
	if errors.As(err, &known) {
		return err
	}
	if errors.Is(err, io.EOF) {
		err = fmt.Errorf("%d of %d bytes arrived", b.offset.Load(), b.length())
	}
	return provider.Transientf(CodeDownloadFailed, "%s: the download was cut: %w", Shown(b.src.URL), withoutURL(err))
}

func (b *body) drop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.current != nil {
		_ = b.current.Close()
		b.current = nil
	}
}

// Close ends the stream.
func (b *body) Close() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.cancel(nil)
	b.drop()
}
