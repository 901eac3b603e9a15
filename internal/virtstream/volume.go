package virtstream

import (
	"errors"
	"io"

	"github.com/digitalocean/go-libvirt"
)

// volumeArgs are the arguments of both streams.
func volumeArgs(vol libvirt.StorageVol, offset, length uint64) []byte {
	var e encoder
	e.string(vol.Pool)
	e.string(vol.Name)
	e.string(vol.Key)
	e.uint64(offset)
	e.uint64(length)
	e.uint32(0) // flags
	return e.buf
}

// StorageVolUpload writes all that src has into the volume from offset on. A
// length other than zero is the most that the daemon takes. An error of src is
// returned as it is, and tells the daemon to stop; an error of the daemon is a
// [libvirt.Error]. After any error but the daemon's refusal of the call itself
// the connection is of no more use.
func (c *Conn) StorageVolUpload(vol libvirt.StorageVol, src io.Reader, offset, length uint64) error {
	if _, err := c.call(procVolUpload, volumeArgs(vol, offset, length)); err != nil {
		return err
	}
	// The daemon may refuse at any time, and confirms in the end.
	verdict := make(chan error, 1)
	go func() { verdict <- c.confirmed() }()
	early, err := c.sendAll(procVolUpload, src, verdict)
	switch {
	case early:
		return err
	case err != nil:
		return refusalOr(verdict, err)
	}
	return <-verdict
}

// confirmed waits for the end of an upload.
func (c *Conn) confirmed() error {
	for {
		f, err := c.receive()
		if err == nil {
			err = f.failure()
		}
		if err != nil || f.kind == typeStream && f.status == statusOK {
			return err
		}
	}
}

// refusalOr prefers what the daemon said: a connection that cannot be written
// to any more may have an error waiting to be read.
func refusalOr(verdict <-chan error, err error) error {
	var source sourceError
	if errors.As(err, &source) {
		return source.error
	}
	select {
	case refusal := <-verdict:
		var said libvirt.Error
		if errors.As(refusal, &said) {
			return refusal
		}
	default:
	}
	return err
}

var errEndedEarly = errors.New("libvirt ended the upload before its end")

// endedEarly is the error of a verdict that came too soon.
func endedEarly(err error) error {
	if err == nil {
		return errEndedEarly
	}
	return err
}

// sourceError is an error of a stream's source.
type sourceError struct{ error }

// sendAll sends the source, unless the daemon has its verdict early, which then
// is the error.
func (c *Conn) sendAll(proc uint32, src io.Reader, verdict <-chan error) (early bool, err error) {
	if cap(c.out) < headerSize+PacketSize {
		c.out = make([]byte, 0, headerSize+PacketSize)
	}
	packet := c.out[:headerSize+PacketSize]
	for {
		n, err := src.Read(packet[headerSize:])
		select {
		case err := <-verdict:
			return true, endedEarly(err)
		default:
		}
		if n > 0 {
			appendHeader(packet[:0], header{proc: proc, kind: typeStream, serial: c.serial, status: statusContinue}, n)
			if _, err := c.conn.Write(packet[:headerSize+n]); err != nil {
				return false, err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return false, c.send(proc, typeStream, statusOK, nil)
		case err != nil:
			_ = c.send(proc, typeStream, statusError, nil)
			return false, sourceError{err}
		}
	}
}

// StorageVolDownload writes length bytes of the volume from offset on to dst,
// or fewer where the volume ends, and all of them where length is zero. An
// error of dst is returned as it is; after any error but the daemon's refusal
// the connection is of no more use.
func (c *Conn) StorageVolDownload(vol libvirt.StorageVol, dst io.Writer, offset, length uint64) error {
	if err := c.begin(procVolDownload, volumeArgs(vol, offset, length)); err != nil {
		return err
	}
	if err := c.receiveAll(dst); err != nil {
		return err
	}
	if err := c.send(procVolDownload, typeStream, statusOK, nil); err != nil {
		return err
	}
	return c.confirmed()
}

// receiveAll takes the answer and the data in whichever order they come. An
// empty packet ends the data.
func (c *Conn) receiveAll(dst io.Writer) error {
	for answered, ended := false, false; !answered || !ended; {
		f, err := c.receive()
		if err == nil {
			err = f.failure()
		}
		if err != nil {
			return err
		}
		if f.kind == typeReply {
			answered = true
			continue
		}
		ended = f.status == statusOK || len(f.payload) == 0
		if _, err := dst.Write(f.payload); err != nil {
			return err
		}
	}
	return nil
}
