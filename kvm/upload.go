package kvm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/digitalocean/go-libvirt"
)

// packetSize is the size of the packets of an upload. go-libvirt sends what one
// Read returns; its own 4 MiB are slow and hold up everybody else on the way.
const packetSize = 512 << 10

// packetsAhead is how many packets are read ahead of the sender.
const packetsAhead = 4

// packets reads a source in packets, ahead of the sender. Its Read, which
// go-libvirt may still be in when an upload has failed, ends with Close.
type packets struct {
	full   chan []byte
	empty  chan []byte
	closed chan struct{}
	once   sync.Once
	// sent tells of each packet that the sender took; may be nil.
	sent func(n int)

	// err is why the source ended; valid once full is closed.
	err     error
	current []byte // the sender's alone
	buffer  []byte
	count   atomic.Int64
}

// newPackets starts to read the source, in packets of that size. The goroutine
// ends at the source's end, or at Close once a Read of the source returned.
func newPackets(source io.Reader, size int, spawn func(func()), sent func(n int)) *packets {
	p := &packets{full: make(chan []byte, packetsAhead), empty: make(chan []byte, packetsAhead), closed: make(chan struct{}), sent: sent}
	for range packetsAhead {
		p.empty <- make([]byte, size)
	}
	spawn(func() { p.pump(source) })
	return p
}

func (p *packets) pump(source io.Reader) {
	defer close(p.full)
	for {
		var buf []byte
		select {
		case buf = <-p.empty:
		case <-p.closed:
			p.err = errUploadEnded
			return
		}
		n, err := fill(source, buf)
		if n > 0 {
			p.full <- buf[:n] // never blocks: there are no more buffers than places
		}
		if err != nil {
			p.err = err
			return
		}
	}
}

var errUploadEnded = errors.New("the upload was ended")

// fill is io.ReadFull with the source's own error, so that a source that was
// cut is not taken for one that ended.
func fill(source io.Reader, buf []byte) (n int, err error) {
	for n < len(buf) && err == nil {
		var m int
		m, err = source.Read(buf[n:])
		n += m
	}
	return n, err
}

// Read returns one packet.
func (p *packets) Read(b []byte) (int, error) {
	if len(p.current) == 0 {
		if err := p.next(); err != nil {
			return 0, err
		}
	}
	n := copy(b, p.current)
	p.current = p.current[n:]
	p.count.Add(int64(n))
	if p.sent != nil {
		p.sent(n)
	}
	return n, nil
}

func (p *packets) next() error {
	if p.buffer != nil {
		p.empty <- p.buffer[:cap(p.buffer)]
		p.buffer = nil
	}
	select {
	case buf, ok := <-p.full:
		if !ok {
			return p.err
		}
		p.buffer, p.current = buf, buf
		return nil
	case <-p.closed:
		return errUploadEnded
	}
}

// Close ends every Read.
func (p *packets) Close() { p.once.Do(func() { close(p.closed) }) }

// packetFor is the size of packets for an upload of so many bytes, 0 for any.
func packetFor(length uint64) int {
	if length == 0 || length > packetSize {
		return packetSize
	}
	return int(length) //nolint:gosec // at most packetSize.
}

// upload streams the source into the volume over a connection of its own, and
// returns how many bytes it sent. It gives up when nothing moved for the stall
// time. The source may still be read for a moment after an error.
func (h *hostConn) upload(ctx context.Context, vol libvirt.StorageVol, source io.Reader, length uint64, sent func(n int)) (int64, error) {
	s, err := h.openUpload(ctx)
	if err != nil {
		return 0, err
	}
	defer s.drop("", nil)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stall := newStall(time.Duration(h.timeouts.Stall), cancel)
	defer stall.stop()
	// libvirtd need not answer an upload that its source ended early.
	tracked := &trackedReader{r: source, failed: func(err error) { cancel(err) }}
	p := newPackets(tracked, packetFor(length), h.running.Go, func(n int) {
		stall.moved()
		if sent != nil {
			sent(n)
		}
	})
	defer p.Close()
	err = s.only(h).uploadVolume(ctx, vol, p, length)
	switch cause := context.Cause(ctx); {
	case err == nil:
		return p.count.Load(), nil
	case tracked.failure() != nil:
		return 0, tracked.failure()
	case errors.Is(cause, errStalled):
		return 0, transient(codeNoAnswer, "%w", cause)
	}
	return 0, err
}

var errStalled = errors.New("the upload stalled")

// stall cancels when nothing moved for a while.
type stall struct {
	timer *time.Timer
	after time.Duration
}

func newStall(after time.Duration, cancel context.CancelCauseFunc) *stall {
	return &stall{after: after, timer: time.AfterFunc(after, func() {
		cancel(fmt.Errorf("%w: nothing moved for %s", errStalled, after))
	})}
}

func (s *stall) moved() { s.timer.Reset(s.after) }
func (s *stall) stop()  { s.timer.Stop() }

// trackedReader remembers why its reader failed, and tells it.
type trackedReader struct {
	r      io.Reader
	failed func(error)
	err    atomic.Pointer[error]
}

func (t *trackedReader) Read(p []byte) (int, error) {
	n, err := t.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		t.err.Store(&err)
		t.failed(err)
	}
	return n, err
}

func (t *trackedReader) failure() error {
	if err := t.err.Load(); err != nil {
		return *err
	}
	return nil
}
