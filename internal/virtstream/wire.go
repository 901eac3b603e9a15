package virtstream

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Frames begin with their own length, which counts itself, and a header of six
// words. All numbers are big-endian.
const (
	headerSize = 28
	// frameMax is what libvirt itself sends at most, VIR_NET_MESSAGE_MAX.
	frameMax = 32 << 20
	// readStep is how much of a frame gets memory before any of it has come. A
	// packet of a stream has no more, VIR_NET_MESSAGE_LEGACY_PAYLOAD_MAX.
	readStep = 256 << 10
)

// header is what a frame says of itself, less what is always the same.
type header struct {
	proc, kind, serial, status uint32
}

// frame is one received packet.
type frame struct {
	header
	foreign bool // of another program, such as that of keepalives
	payload []byte
}

func appendHeader(b []byte, h header, payload int) []byte {
	for _, word := range []uint32{headerSize + uint32(payload), program, version, h.proc, h.kind, h.serial, h.status} { //nolint:gosec // far below 4 GiB.
		b = binary.BigEndian.AppendUint32(b, word)
	}
	return b
}

func readFrame(r io.Reader) (f frame, err error) {
	var words [headerSize]byte
	if _, err := io.ReadFull(r, words[:]); err != nil {
		return f, err
	}
	word := func(i int) uint32 { return binary.BigEndian.Uint32(words[4*i:]) }
	length := word(0)
	if length < headerSize || length > frameMax {
		return f, fmt.Errorf("libvirt sent a frame of %d bytes", length)
	}
	f = frame{
		header:  header{proc: word(3), kind: word(4), serial: word(5), status: word(6)},
		foreign: word(1) != program || word(2) != version,
	}
	f.payload, err = readPayload(r, int(length-headerSize))
	return f, err
}

// readPayload makes memory as bytes come: a length costs its sender nothing.
func readPayload(r io.Reader, length int) ([]byte, error) {
	payload := make([]byte, min(length, readStep))
	for have := 0; ; {
		n, err := io.ReadFull(r, payload[have:])
		have += n
		switch {
		case errors.Is(err, io.EOF):
			return nil, io.ErrUnexpectedEOF
		case err != nil:
			return nil, err
		case have == length:
			return payload, nil
		}
		payload = append(payload, make([]byte, min(have, length-have))...)
	}
}

// encoder writes XDR, the data format of RFC 4506.
type encoder struct{ buf []byte }

func (e *encoder) uint32(v uint32) { e.buf = binary.BigEndian.AppendUint32(e.buf, v) }
func (e *encoder) uint64(v uint64) { e.buf = binary.BigEndian.AppendUint64(e.buf, v) }

func (e *encoder) string(s string) {
	e.uint32(uint32(len(s))) //nolint:gosec // names.
	e.buf = append(e.buf, s...)
	for len(e.buf)%4 != 0 {
		e.buf = append(e.buf, 0)
	}
}

func (e *encoder) optional(s string) {
	e.uint32(1)
	e.string(s)
}

// decoder reads XDR. After an error everything is zero.
type decoder struct {
	buf []byte
	err error
}

func (d *decoder) uint32() uint32 {
	if d.err == nil && len(d.buf) < 4 {
		d.err = io.ErrUnexpectedEOF
	}
	if d.err != nil {
		return 0
	}
	v := binary.BigEndian.Uint32(d.buf)
	d.buf = d.buf[4:]
	return v
}

func (d *decoder) string() string {
	n := int(d.uint32())
	padded := (n + 3) &^ 3
	if d.err == nil && (n < 0 || padded < n || padded > len(d.buf)) {
		d.err = io.ErrUnexpectedEOF
	}
	if d.err != nil {
		return ""
	}
	s := string(d.buf[:n])
	d.buf = d.buf[padded:]
	return s
}

func (d *decoder) optional() string {
	if d.uint32() == 0 {
		return ""
	}
	return d.string()
}
