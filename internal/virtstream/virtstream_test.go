package virtstream_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/digitalocean/go-libvirt"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/egressfleet/egress/internal/virtstream"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	procOpen, procAuthList, procPolkit, procUpload, procDownload = 1, 66, 70, 208, 209
	call, reply, event, stream                                   = 0, 1, 2, 3
	ok, failed, more                                             = 0, 1, 2
)

var volume = libvirt.StorageVol{Pool: "default", Name: "disk", Key: "/pool/disk"}

// daemon is the other end of a connection.
type daemon struct {
	t    *testing.T
	conn net.Conn
}

// packet is one frame as the daemon sees it.
type packet struct {
	proc, kind, serial, status uint32
	payload                    []byte
}

func (d daemon) read() packet {
	var head [28]byte
	if _, err := io.ReadFull(d.conn, head[:]); err != nil {
		return packet{proc: 0}
	}
	word := func(i int) uint32 { return binary.BigEndian.Uint32(head[4*i:]) }
	assert.EqualValues(d.t, 0x20008086, word(1))
	assert.EqualValues(d.t, 1, word(2))
	p := packet{word(3), word(4), word(5), word(6), make([]byte, word(0)-28)}
	_, err := io.ReadFull(d.conn, p.payload)
	assert.NoError(d.t, err)
	return p
}

func (d daemon) write(p packet) {
	var b []byte
	for _, w := range []uint32{uint32(28 + len(p.payload)), 0x20008086, 1, p.proc, p.kind, p.serial, p.status} {
		b = binary.BigEndian.AppendUint32(b, w)
	}
	_, _ = d.conn.Write(append(b, p.payload...))
}

// expect reads a call and answers it.
func (d daemon) expect(proc uint32, answer []byte) packet {
	p := d.read()
	assert.Equal(d.t, proc, p.proc)
	assert.EqualValues(d.t, call, p.kind)
	d.write(packet{p.proc, reply, p.serial, ok, answer})
	return p
}

func refusal(message string) []byte {
	b := []byte{0, 0, 0, 38, 0, 0, 0, 18, 0, 0, 0, 1, 0, 0, 0, byte(len(message))}
	b = append(b, message...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return append(b, 0, 0, 0, 2)
}

// connect runs the daemon's part against an open connection.
func connect(t *testing.T, serve func(daemon)) *virtstream.Conn {
	t.Helper()
	ours, theirs := net.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { _ = theirs.Close() }()
		d := daemon{t, theirs}
		d.expect(procAuthList, []byte{0, 0, 0, 1, 0, 0, 0, 0})
		d.expect(procOpen, nil)
		serve(d)
	}()
	t.Cleanup(func() { _ = ours.Close(); <-done })
	c, err := virtstream.Open(ours, "qemu:///system")
	require.NoError(t, err)
	return c
}

func TestOpenAsksPolkit(t *testing.T) {
	ours, theirs := net.Pipe()
	defer func() { _ = ours.Close() }()
	go func() {
		d := daemon{t, theirs}
		d.expect(procAuthList, []byte{0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2}) // sasl, polkit
		d.expect(procPolkit, []byte{0, 0, 0, 1})
		p := d.expect(procOpen, nil)
		assert.Equal(t, "\x00\x00\x00\x01\x00\x00\x00\x0eqemu:///system\x00\x00\x00\x00\x00\x00", string(p.payload))
	}()
	_, err := virtstream.Open(ours, "qemu:///system")
	require.NoError(t, err)
}

func TestOpenIsRefused(t *testing.T) {
	ours, theirs := net.Pipe()
	defer func() { _ = ours.Close() }()
	go func() {
		d := daemon{t, theirs}
		d.expect(procAuthList, []byte{0, 0, 0, 1, 0, 0, 0, 2})
		p := d.read()
		d.write(packet{p.proc, reply, p.serial, failed, refusal("authentication unavailable")})
	}()
	_, err := virtstream.Open(ours, "qemu:///system")
	var e libvirt.Error
	require.ErrorAs(t, err, &e)
	assert.EqualValues(t, 38, e.Code)
	assert.Equal(t, "authentication unavailable", e.Message)
}

// TestRoundTrip takes the shortest of three.
func TestRoundTrip(t *testing.T) {
	c := connect(t, func(d daemon) {
		for i := range 3 {
			time.Sleep(time.Duration(30-10*i) * time.Millisecond)
			d.expect(157, []byte{0, 0, 0, 0, 0, 0x89, 0x54, 0x40})
		}
	})
	took, err := c.RoundTrip()
	require.NoError(t, err)
	assert.GreaterOrEqual(t, took, 10*time.Millisecond)
	_, err = c.RoundTrip()
	require.Error(t, err, "the daemon has gone")
}

// TestUpload sends packets of at most their size, and is done when the daemon
// says so. A connection serves many.
func TestUpload(t *testing.T) {
	content := bytes.Repeat([]byte("0123456789abcdef"), 100_000)
	got := make(chan []byte, 2)
	c := connect(t, func(d daemon) {
		for range 2 {
			p := d.expect(procUpload, nil)
			assert.Equal(t, uint64(4096), binary.BigEndian.Uint64(p.payload[len(p.payload)-20:]), "offset")
			assert.Equal(t, uint64(len(content)), binary.BigEndian.Uint64(p.payload[len(p.payload)-12:]), "length")
			d.write(packet{proc: 318, kind: event, serial: 0}) // of no interest
			got <- d.readStream()
		}
	})
	for range 2 {
		require.NoError(t, c.StorageVolUpload(volume, bytes.NewReader(content), 4096, uint64(len(content))))
		assert.Equal(t, content, <-got)
	}
}

// readStream reads packets to their end and confirms it.
func (d daemon) readStream() (content []byte) {
	for {
		p := d.read()
		assert.EqualValues(d.t, stream, p.kind)
		assert.LessOrEqual(d.t, len(p.payload), virtstream.PacketSize)
		if p.status != more {
			d.write(packet{p.proc, stream, p.serial, ok, nil})
			return content
		}
		content = append(content, p.payload...)
	}
}

// TestUploadIsRefused stops sending when the daemon says no in the middle. The
// daemon goes on reading once the client has heard it, however late that is: then
// the packet that is under way is the last.
func TestUploadIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := connect(t, func(d daemon) {
			d.expect(procUpload, nil)
			p := d.read()
			d.write(packet{p.proc, stream, p.serial, failed, refusal("No space left on device")})
			synctest.Wait()
			for d.read().proc != 0 { // as libvirtd, which drops the rest
			}
		})
		packets := make([]byte, 3*virtstream.PacketSize)
		endless := io.MultiReader(bytes.NewReader(packets), iotest.ErrReader(errors.New("the source was read to its end")))
		err := c.StorageVolUpload(volume, endless, 0, 0)
		var e libvirt.Error
		require.ErrorAs(t, err, &e)
		assert.Equal(t, "No space left on device", e.Message)
	})
}

// TestUploadCallIsRefused leaves the connection as good as before.
func TestUploadCallIsRefused(t *testing.T) {
	c := connect(t, func(d daemon) {
		p := d.read()
		d.write(packet{p.proc, reply, p.serial, failed, refusal("volume is still in use")})
		d.expect(procUpload, nil)
		d.readStream()
	})
	require.ErrorContains(t, c.StorageVolUpload(volume, bytes.NewReader([]byte("x")), 0, 0), "still in use")
	require.NoError(t, c.StorageVolUpload(volume, bytes.NewReader([]byte("x")), 0, 0))
}

func TestUploadSourceFails(t *testing.T) {
	told := make(chan uint32, 1)
	c := connect(t, func(d daemon) {
		d.expect(procUpload, nil)
		d.read()
		told <- d.read().status
	})
	cause := errors.New("the download was cut")
	err := c.StorageVolUpload(volume, io.MultiReader(bytes.NewReader([]byte("abc")), iotest.ErrReader(cause)), 0, 0)
	require.Equal(t, cause, err)
	assert.EqualValues(t, failed, <-told, "the daemon was told to stop")
}

// TestDownloadDataBeforeTheAnswer takes what a daemon with several threads
// sends.
func TestDownloadDataBeforeTheAnswer(t *testing.T) {
	c := connect(t, func(d daemon) {
		for range 2 {
			p := d.read()
			d.write(packet{p.proc, stream, p.serial, more, []byte("hello ")})
			d.write(packet{p.proc, reply, p.serial, ok, nil})
			d.write(packet{p.proc, stream, p.serial, more, []byte("world")})
			d.write(packet{p.proc, stream, p.serial, more, nil})
			p = d.read()
			assert.EqualValues(t, stream, p.kind)
			d.write(packet{p.proc, stream, p.serial, ok, nil})
		}
	})
	for range 2 {
		var out bytes.Buffer
		require.NoError(t, c.StorageVolDownload(volume, &out, 0, 0))
		assert.Equal(t, "hello world", out.String())
	}
}

func TestDownloadFails(t *testing.T) {
	c := connect(t, func(d daemon) {
		p := d.read()
		d.write(packet{p.proc, reply, p.serial, failed, refusal("no storage vol with matching key")})
		p = d.read()
		d.write(packet{p.proc, reply, p.serial, ok, nil})
		d.write(packet{p.proc, stream, p.serial, failed, refusal("Input/output error")})
	})
	require.ErrorContains(t, c.StorageVolDownload(volume, io.Discard, 0, 0), "no storage vol")
	require.ErrorContains(t, c.StorageVolDownload(volume, io.Discard, 0, 0), "Input/output error")
	require.Error(t, c.StorageVolDownload(volume, io.Discard, 0, 0), "the daemon has gone")
}

// TestHostileFrames ends at what cannot be, without a panic and without asking
// for the memory that a length word promises.
func TestHostileFrames(t *testing.T) {
	for what, bytes := range map[string][]byte{
		"too short":        {0, 0, 0, 5},
		"too long":         {0xff, 0xff, 0xff, 0xff},
		"a broken error":   {0, 0, 0, 32, 0x20, 0, 0x80, 0x86, 0, 0, 0, 1, 0, 0, 0, 66, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 9, 9, 9, 9},
		"methods cut off":  {0, 0, 0, 32, 0x20, 0, 0x80, 0x86, 0, 0, 0, 1, 0, 0, 0, 66, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 9},
		"data, not answer": {0, 0, 0, 28, 0x20, 0, 0x80, 0x86, 0, 0, 0, 1, 0, 0, 0, 66, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, 2},
	} {
		t.Run(what, func(t *testing.T) {
			ours, theirs := net.Pipe()
			go func() {
				daemon{t, theirs}.read()
				_, _ = theirs.Write(append(bytes, make([]byte, 28)...)[:max(len(bytes), 28)])
				_ = theirs.Close()
			}()
			_, err := virtstream.Open(ours, "qemu:///system")
			require.Error(t, err)
			_ = ours.Close()
		})
	}
}

// FuzzOpen has a daemon say anything.
func FuzzOpen(f *testing.F) {
	f.Add([]byte{0, 0, 0, 32, 0x20, 0, 0x80, 0x86, 0, 0, 0, 1, 0, 0, 0, 66, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(_ *testing.T, said []byte) {
		_, _ = virtstream.Open(scripted{bytes.NewReader(said)}, "qemu:///system")
	})
}

// scripted is a connection that hears nothing.
type scripted struct{ io.Reader }

func (scripted) Write(p []byte) (int, error) { return len(p), nil }
func (scripted) Close() error                { return nil }
