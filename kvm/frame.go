package kvm

import (
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
)

// frameConn is a connection to libvirt that ends the stream at a frame with an
// impossible length, on which go-libvirt would panic or wait for ever, and that
// tells once when it can no longer be read.
type frameConn struct {
	net.Conn
	lost func(error)
	once sync.Once

	// The rest is the reader's alone.
	word []byte // the part of a length word that was read
	left int    // of the current frame, after its length word
	err  error
}

// Read reads whole frames only as far as their lengths are possible.
func (c *frameConn) Read(p []byte) (int, error) {
	if c.err != nil {
		return 0, c.err
	}
	n, err := c.Conn.Read(p)
	good, bad := c.scan(p[:n])
	if bad != nil {
		c.err, err = bad, nil
		if good == 0 {
			err = bad
		}
		c.fail(bad)
		return good, err
	}
	if err != nil {
		c.fail(err)
	}
	return n, err
}

func (c *frameConn) fail(err error) { c.once.Do(func() { c.lost(err) }) }

// scan follows the frames through p and returns how much of it may be used.
func (c *frameConn) scan(p []byte) (good int, err error) {
	for at := 0; at < len(p); {
		if c.left > 0 {
			skip := min(c.left, len(p)-at)
			c.left -= skip
			at += skip
			continue
		}
		take := min(frameLengthSize-len(c.word), len(p)-at)
		c.word = append(c.word, p[at:at+take]...)
		if len(c.word) == frameLengthSize {
			length := binary.BigEndian.Uint32(c.word)
			if length < frameMin || length > frameMax {
				return at, fmt.Errorf("libvirt sent a frame of %d bytes: %w", length, io.ErrUnexpectedEOF)
			}
			c.left, c.word = int(length)-frameLengthSize, c.word[:0]
		}
		at += take
	}
	return len(p), nil
}
