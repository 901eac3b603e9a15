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

	"github.com/egressfleet/egress/internal/virtstream"
	"github.com/egressfleet/egress/provider"
)

// packetSize is the size of the packets of an upload.
const packetSize = virtstream.PacketSize

// packetsAhead is how many packets are read ahead of the sender.
const packetsAhead = 16

// packets reads a source in packets, ahead of the sender. Its Read, which the
// sender may still be in when an upload has failed, ends with Close.
type packets struct {
	full   chan []byte
	empty  chan []byte
	closed chan struct{}
	once   sync.Once

	// err is why the source ended; valid once full is closed.
	err     error
	current []byte // the sender's alone
	buffer  []byte
	count   atomic.Int64
}

// newPackets starts to read the source, in packets of that size. The goroutine
// ends at the source's end, or at Close once a Read of the source returned.
func newPackets(source io.Reader, size int, spawn func(func())) *packets {
	p := &packets{full: make(chan []byte, packetsAhead), empty: make(chan []byte, packetsAhead), closed: make(chan struct{})}
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
// returns how many bytes it sent. It gives up when libvirtd took nothing for
// the stall time. The source may still be read for a moment after an error.
func (h *hostConn) upload(ctx context.Context, vol libvirt.StorageVol, source io.Reader, length uint64) (int64, error) {
	s, err := h.openUpload(ctx)
	if err != nil {
		return 0, err
	}
	defer s.drop("", nil)
	return h.uploadStream(ctx, s, vol, source, length, nil)
}

// download writes a part of the volume to w, over a connection of its own.
func (h *hostConn) download(ctx context.Context, vol libvirt.StorageVol, w io.Writer, offset, length uint64) error {
	s, err := h.openUpload(ctx)
	if err != nil {
		return err
	}
	defer s.drop("", nil)
	c := s.only(h)
	c.timeout = time.Duration(h.timeouts.Call)
	return c.downloadVolume(ctx, vol, w, offset, length)
}

// uploadStream is upload over that connection. sent, if not nil, is called
// after each packet.
func (h *hostConn) uploadStream(ctx context.Context, s *session, vol libvirt.StorageVol, source io.Reader, length uint64, sent func()) (int64, error) {
	p := newPackets(source, packetFor(length), h.running.Go)
	defer p.Close()
	err := h.send(ctx, s, vol, p, 0, length, sent)
	return p.count.Load(), err
}

// send uploads what r has from an offset of the volume on, a packet for each
// Read.
func (h *hostConn) send(ctx context.Context, s *session, vol libvirt.StorageVol, r io.Reader, offset, length uint64, sent func()) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	after := time.Duration(h.timeouts.Stall)
	stall := time.AfterFunc(after, func() {
		cancel(fmt.Errorf("%w: libvirtd took nothing for %s", errStalled, after))
	})
	defer stall.Stop()
	source := &paced{r: r, stall: stall, after: after, sent: sent}
	err := s.only(h).uploadVolume(ctx, vol, source, offset, length)
	switch {
	case err == nil:
		return nil
	case source.failure() != nil:
		return source.failure()
	case errors.Is(context.Cause(ctx), errStalled):
		return provider.Transientf(codeNoAnswer, "%w", context.Cause(ctx))
	}
	return err
}

var errStalled = errors.New("the upload stalled")

// paced stops the stall's clock while its reader is at work, whose slowness is
// not that of libvirtd, and remembers why it failed.
type paced struct {
	r     io.Reader
	stall *time.Timer
	after time.Duration
	sent  func()
	begun bool
	err   atomic.Pointer[error]
}

func (p *paced) Read(b []byte) (int, error) {
	p.stall.Stop()
	if p.begun && p.sent != nil {
		p.sent()
	}
	p.begun = true
	n, err := p.r.Read(b)
	if err != nil && !errors.Is(err, io.EOF) {
		p.err.Store(&err)
	}
	p.stall.Reset(p.after)
	return n, err
}

func (p *paced) failure() error {
	if err := p.err.Load(); err != nil {
		return *err
	}
	return nil
}
