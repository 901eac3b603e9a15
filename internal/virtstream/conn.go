package virtstream

import (
	"fmt"
	"io"
	"time"

	"github.com/digitalocean/go-libvirt"
)

// The numbers of the protocol that are used here.
const (
	program = 0x20008086
	version = 1

	procConnectOpen  = 1
	procLibVersion   = 157
	procAuthList     = 66
	procAuthPolkit   = 70
	procVolUpload    = 208
	procVolDownload  = 209
	authenticateNone = 0
	authenticatePol  = 2

	typeCall   = 0
	typeReply  = 1
	typeStream = 3

	statusOK       = 0
	statusError    = 1
	statusContinue = 2
)

// PacketSize is how much of a volume one packet carries, in bytes. It fits a Unix
// socket's buffer, which is 208 KiB on Linux: a larger packet makes sender and
// daemon wait for each other, and holds up what shares the way. Smaller ones cost
// more calls. docs/benchmarks.md has the figures.
const PacketSize = 128 << 10

// Conn is a connection to libvirt's daemon for streams. It is not safe for
// concurrent use.
type Conn struct {
	conn io.ReadWriter
	// proc and serial are those of the current call.
	proc, serial uint32
	// out is reused for every packet that is sent.
	out []byte
}

// Open introduces the client on a new connection, as the user that the
// connection's other end takes it for, and opens the hypervisor's URI. It does
// not close conn on an error.
func Open(conn io.ReadWriter, uri string) (*Conn, error) {
	c := &Conn{conn: conn}
	methods, err := c.call(procAuthList, nil)
	if err != nil {
		return nil, err
	}
	if err := c.authenticate(methods); err != nil {
		return nil, err
	}
	var args encoder
	args.optional(uri)
	args.uint32(0) // flags
	_, err = c.call(procConnectOpen, args.buf)
	return c, err
}

// measurements are those of which [Conn.RoundTrip] takes the shortest: a busy
// daemon is slow at times, but a near one is not always slow.
const measurements = 3

// RoundTrip measures how long the daemon takes to answer.
func (c *Conn) RoundTrip() (shortest time.Duration, err error) {
	for range measurements {
		start := time.Now()
		if _, err := c.call(procLibVersion, nil); err != nil {
			return 0, err
		}
		if took := time.Since(start); shortest == 0 || took < shortest {
			shortest = took
		}
	}
	return shortest, nil
}

// authenticate uses the first of the daemon's methods that is known here.
func (c *Conn) authenticate(methods []byte) error {
	d := decoder{buf: methods}
	for range d.uint32() {
		switch d.uint32() {
		case authenticateNone:
			return d.err
		case authenticatePol:
			_, err := c.call(procAuthPolkit, nil)
			return err
		}
	}
	return d.err
}

// call makes a call and returns the answer's payload.
func (c *Conn) call(proc uint32, args []byte) ([]byte, error) {
	if err := c.begin(proc, args); err != nil {
		return nil, err
	}
	f, err := c.receive()
	switch {
	case err != nil:
		return nil, err
	case f.kind != typeReply:
		return nil, fmt.Errorf("libvirt sent a packet of type %d in place of an answer", f.kind)
	}
	return f.payload, f.failure()
}

// begin sends a call with a serial number of its own.
func (c *Conn) begin(proc uint32, args []byte) error {
	c.proc, c.serial = proc, c.serial+1
	return c.send(proc, typeCall, statusOK, args)
}

// send sends one packet of the current call.
func (c *Conn) send(proc, kind, status uint32, payload []byte) error {
	c.out = appendHeader(c.out[:0], header{proc: proc, kind: kind, serial: c.serial, status: status}, len(payload))
	c.out = append(c.out, payload...)
	_, err := c.conn.Write(c.out)
	return err
}

// receive returns the next packet of the current call. Others are events, those of
// another program, or the rest of a call that ended early.
func (c *Conn) receive() (frame, error) {
	for {
		f, err := readFrame(c.conn)
		if err != nil {
			return f, err
		}
		if f.foreign || f.serial != c.serial || f.kind != typeReply && f.kind != typeStream {
			continue
		}
		if f.proc != c.proc {
			return f, fmt.Errorf("libvirt answered call %d in place of %d", f.proc, c.proc)
		}
		return f, nil
	}
}

// failure is libvirt's error in a packet that carries one. A packet that neither
// carries one nor says that all is well is an error too.
func (f frame) failure() error {
	switch {
	case f.status == statusOK, f.status == statusContinue && f.kind == typeStream:
		return nil
	case f.status != statusError:
		return fmt.Errorf("libvirt sent a packet of status %d", f.status)
	}
	d := decoder{buf: f.payload}
	code := d.uint32()
	d.uint32() // the part of libvirt that it comes from
	message := d.optional()
	if d.err != nil {
		return fmt.Errorf("libvirt sent an error that cannot be read: %w", d.err)
	}
	return libvirt.Error{Code: code, Message: message}
}
