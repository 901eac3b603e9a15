package kvm

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
)

// The frames of libvirt's protocol: a length word that counts itself, a header
// of six words, a payload.
const (
	frameLengthSize = 4
	frameMin        = 28
	frameMax        = 64 << 20
	// frameAhead is how much of a frame has memory before it has come.
	frameAhead = 256 << 10
)

// Types and states of frames.
const (
	frameCall   = 0
	frameStream = 3

	frameOK    = 0
	frameError = 1
)

// frameHeader is the part of a frame's header that matters.
type frameHeader struct {
	length, program, procedure, kind, serial, status uint32
}

func parseFrameHeader(b []byte) frameHeader {
	word := func(i int) uint32 { return binary.BigEndian.Uint32(b[4*i:]) }
	return frameHeader{length: word(0), program: word(1), procedure: word(3), kind: word(4), serial: word(5), status: word(6)}
}

// frameConn is a connection to libvirt that ends the stream at a frame on which
// go-libvirt would panic, wait for ever, or take memory for more than is in it,
// and that tells once when it can no longer be read. What go-libvirt has no use
// for does not come through.
type frameConn struct {
	net.Conn
	lost func(error)
	once sync.Once

	// These are the reader's alone.
	from  *bufio.Reader
	ready []byte // of a frame that is good
	err   error

	// These are the writer's alone.
	head []byte // the part of a header that was written
	left int    // of the current frame, after its header

	mu    sync.Mutex
	calls map[uint32]uint32 // the procedures of the calls under way, by serial
}

func newFrameConn(conn net.Conn, lost func(error)) *frameConn {
	return &frameConn{Conn: conn, lost: lost, from: bufio.NewReader(conn), calls: map[uint32]uint32{}}
}

// Read reads whole frames that are good.
func (c *frameConn) Read(p []byte) (int, error) {
	for len(c.ready) == 0 {
		if c.err != nil {
			return 0, c.err
		}
		frame, err := c.next()
		if err != nil {
			// It is wrapped, for go-libvirt reads again after what it knows as temporary.
			c.err = fmt.Errorf("nothing more from libvirt: %w", err)
			c.once.Do(func() { c.lost(err) })
		}
		c.ready = frame
	}
	n := copy(p, c.ready)
	c.ready = c.ready[n:]
	return n, nil
}

// next is the next frame, or empty where that is for nobody.
func (c *frameConn) next() ([]byte, error) {
	word, err := c.from.Peek(frameLengthSize)
	if err != nil {
		return nil, err
	}
	length := binary.BigEndian.Uint32(word)
	if length < frameMin || length > frameMax {
		return nil, fmt.Errorf("libvirt sent a frame of %d bytes: %w", length, io.ErrUnexpectedEOF)
	}
	var frame bytes.Buffer
	frame.Grow(min(int(length), frameAhead) + bytes.MinRead)
	if _, err := io.CopyN(&frame, c.from, int64(length)); err != nil {
		return nil, err
	}
	h := parseFrameHeader(frame.Bytes())
	wanted, err := c.judge(h, frame.Bytes()[frameMin:])
	if err != nil || !wanted {
		return nil, err
	}
	return frame.Bytes(), nil
}

// judge tells whether a frame is for anybody. It is an error if it cannot be
// what it is for.
func (c *frameConn) judge(h frameHeader, payload []byte) (wanted bool, err error) {
	if h.program != remoteProgram {
		return false, nil
	}
	layout := eventLayout
	if h.procedure != procLifecycleEvent {
		procedure, ok := c.called(h)
		if !ok {
			return false, nil
		}
		if h.procedure != procedure {
			return false, fmt.Errorf("libvirt answered procedure %d to a call of %d: %w", h.procedure, procedure, io.ErrUnexpectedEOF)
		}
		layout = replyLayouts[procedure]
		if h.status == frameError {
			layout = errorLayout
		}
	}
	if left := (xdrPayload{payload}); layout != nil && !left.holds(layout) {
		return false, fmt.Errorf("libvirt sent %d bytes for procedure %d, which tell of more: %w", len(payload), h.procedure, io.ErrUnexpectedEOF)
	}
	return true, nil
}

// called is the procedure of the call that a frame answers. The last answer ends
// the call.
func (c *frameConn) called(h frameHeader) (procedure uint32, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	procedure, ok = c.calls[h.serial]
	streams := procedure == procVolumeUpload || procedure == procVolumeDownload
	if !streams || h.status == frameError || h.kind == frameStream && h.status == frameOK {
		delete(c.calls, h.serial)
	}
	return procedure, ok
}

// Write notes the calls.
func (c *frameConn) Write(p []byte) (int, error) {
	c.note(p)
	return c.Conn.Write(p)
}

func (c *frameConn) note(p []byte) {
	for len(p) > 0 {
		if c.left > 0 {
			skip := min(c.left, len(p))
			c.left, p = c.left-skip, p[skip:]
			continue
		}
		take := min(frameMin-len(c.head), len(p))
		c.head, p = append(c.head, p[:take]...), p[take:]
		if len(c.head) < frameMin {
			return
		}
		h := parseFrameHeader(c.head)
		c.left, c.head = int(h.length)-frameMin, c.head[:0]
		if h.kind == frameCall {
			c.mu.Lock()
			c.calls[h.serial] = h.procedure
			c.mu.Unlock()
		}
	}
}
