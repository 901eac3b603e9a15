package virtstream_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"runtime"
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
	_, _ = d.conn.Write(frameOf(p))
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

// frameOf is a packet as it travels.
func frameOf(p packet) []byte {
	var b []byte
	for _, w := range []uint32{uint32(28 + len(p.payload)), 0x20008086, 1, p.proc, p.kind, p.serial, p.status} {
		b = binary.BigEndian.AppendUint32(b, w)
	}
	return append(b, p.payload...)
}

// welcome is what a daemon says that wants no authentication.
func welcome() []byte {
	return append(frameOf(packet{procAuthList, reply, 1, ok, make([]byte, 4)}), frameOf(packet{procOpen, reply, 2, ok, nil})...)
}

// TestALengthAloneTakesNoMemory has a daemon promise 32 MiB and send less.
func TestALengthAloneTakesNoMemory(t *testing.T) {
	head := frameOf(packet{procAuthList, reply, 1, ok, nil})
	binary.BigEndian.PutUint32(head, 32<<20)
	for _, came := range []int{0, 1 << 20} {
		said := append(bytes.Clone(head), make([]byte, came)...)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := virtstream.Open(&scripted{t: t, said: said}, "qemu:///system")
		runtime.ReadMemStats(&after)
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
		assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20+8*came), "%d bytes came", came)
	}
}

// TestLargePacketsArriveWhole takes those that are read in several steps.
func TestLargePacketsArriveWhole(t *testing.T) {
	for _, size := range []int{0, 1, 256<<10 - 1, 256 << 10, 256<<10 + 1, 1<<20 + 3, 32<<20 - 28} {
		content := make([]byte, size)
		for i := range content {
			content[i] = byte(i % 251)
		}
		said := append(welcome(), frameOf(packet{procDownload, reply, 3, ok, nil})...)
		said = append(said, frameOf(packet{procDownload, stream, 3, more, content})...)
		said = append(said, frameOf(packet{procDownload, stream, 3, more, nil})...)
		said = append(said, frameOf(packet{procDownload, stream, 3, ok, nil})...)
		c, err := virtstream.Open(&scripted{t: t, said: said}, "qemu:///system")
		require.NoError(t, err)
		var out bytes.Buffer
		require.NoError(t, c.StorageVolDownload(volume, &out, 0, 0), "%d bytes", size)
		assert.True(t, bytes.Equal(content, out.Bytes()), "%d bytes", size)
	}
}

// TestAnAnswerMustBeToTheCall takes nothing for a success that is not said to be one,
// and is of this call.
func TestAnAnswerMustBeToTheCall(t *testing.T) {
	good := packet{procAuthList, reply, 1, ok, make([]byte, 4)}
	opened := frameOf(packet{procOpen, reply, 2, ok, nil})
	for what, change := range map[string]func(*packet){
		"another procedure":    func(p *packet) { p.proc = procUpload },
		"status of no meaning": func(p *packet) { p.status = 9 },
		"to be continued":      func(p *packet) { p.status = more },
	} {
		p := good
		change(&p)
		_, err := virtstream.Open(&scripted{t: t, said: append(frameOf(p), opened...)}, "qemu:///system")
		assert.ErrorContains(t, err, "libvirt ", what)
	}
	for what, at := range map[string]int{"a program": 4, "a version": 8} {
		foreign := frameOf(good)
		foreign[at+3]++
		_, err := virtstream.Open(&scripted{t: t, said: append(bytes.Clone(foreign), opened...)}, "qemu:///system")
		assert.ErrorIs(t, err, io.EOF, "%s of another one is waited over", what)
		_, err = virtstream.Open(&scripted{t: t, said: append(foreign, welcome()...)}, "qemu:///system")
		assert.NoError(t, err, "and delays nothing")
	}
}

// TestOnlyAConfirmationEndsAnUpload does not take a status of no meaning for one.
func TestOnlyAConfirmationEndsAnUpload(t *testing.T) {
	c := connect(t, func(d daemon) {
		d.expect(procUpload, nil)
		for p := d.read(); p.status == more; p = d.read() {
		}
		d.write(packet{procUpload, stream, 3, 9, nil})
	})
	require.ErrorContains(t, c.StorageVolUpload(volume, bytes.NewReader([]byte("x")), 0, 0), "status 9")
}

// FuzzOpen has a daemon say anything. It is taken for one that has opened the
// hypervisor if and only if it said so, to each call in turn.
func FuzzOpen(f *testing.F) {
	f.Add(welcome())
	f.Fuzz(func(t *testing.T, said []byte) {
		conn := &scripted{t: t, said: said}
		_, err := virtstream.Open(conn, "qemu:///system")
		frames, most := readable(said)
		require.LessOrEqual(t, conn.told, most)
		model := script{frames: frames}
		require.Equal(t, model.opens(), err == nil, "%v", err)
		requireSaid(t, said, err)
		for i, p := range framesOf(conn.heard) {
			require.EqualValues(t, call, p.kind)
			require.EqualValues(t, i+1, p.serial)
		}
	})
}

// FuzzStreams has a daemon say anything once the connection is open. A volume that is
// read is what was said until its end, and one that is written was confirmed.
func FuzzStreams(f *testing.F) {
	for _, upload := range []bool{false, true} {
		f.Add(frameOf(packet{procDownload, reply, 3, ok, nil}), upload)
		f.Add(frameOf(packet{procUpload, reply, 3, ok, nil}), upload)
	}
	f.Fuzz(func(t *testing.T, said []byte, upload bool) {
		conn := &scripted{t: t, said: append(welcome(), said...)}
		c, err := virtstream.Open(conn, "qemu:///system")
		require.NoError(t, err)
		conn.heard = nil
		frames, most := readable(conn.said)
		model := script{frames: frames[2:], serial: 2}
		if upload {
			content := []byte("what is written")
			err = c.StorageVolUpload(volume, bytes.NewReader(content), 0, 0)
			// One that is confirmed before its end has failed too.
			require.True(t, err != nil || model.uploads(), "nothing confirmed it")
			if err == nil {
				heard := framesOf(conn.heard)
				require.Len(t, heard, 3)
				require.Equal(t, packet{procUpload, stream, 3, more, content}, heard[1])
				require.Equal(t, packet{procUpload, stream, 3, ok, []byte{}}, heard[2])
			}
		} else {
			var out, want bytes.Buffer
			err = c.StorageVolDownload(volume, &out, 0, 0)
			require.Equal(t, model.downloads(&want), err == nil, "%v", err)
			require.Equal(t, want.String(), out.String())
		}
		requireSaid(t, said, err)
		require.LessOrEqual(t, conn.told, most)
	})
}

// framesOf reads packets one by one, as long as they are whole and of a length that
// libvirt sends.
func framesOf(b []byte) []packet { all, _ := readable(b); return all }

// readable is framesOf, and how much may be read to find out where they end: a length
// that cannot be is not waited for.
func readable(b []byte) (all []packet, most int) {
	most = len(b)
	for len(b) >= 28 {
		word := func(i int) uint32 { return binary.BigEndian.Uint32(b[4*i:]) }
		n := word(0)
		if n < 28 || n > 32<<20 {
			return all, most - len(b) + 28
		}
		if int(n) > len(b) {
			break
		}
		p := packet{word(3), word(4), word(5), word(6), b[28:n]}
		if word(1) != 0x20008086 || word(2) != 1 {
			p.kind = event // of another program, which concerns no call
		}
		all, b = append(all, p), b[n:]
	}
	return all, most
}

// script tells what a daemon's packets mean to a client that makes calls.
type script struct {
	frames []packet
	serial uint32
}

// next returns the next packet of the current call, if it may be one.
func (s *script) next(proc uint32) (packet, bool) {
	for len(s.frames) > 0 {
		p := s.frames[0]
		s.frames = s.frames[1:]
		if p.serial == s.serial && (p.kind == reply || p.kind == stream) {
			good := p.proc == proc && (p.status == ok || p.status == more && p.kind == stream)
			return p, good
		}
	}
	return packet{}, false
}

// answers makes a call.
func (s *script) answers(proc uint32) ([]byte, bool) {
	s.serial++
	p, good := s.next(proc)
	return p.payload, good && p.kind == reply
}

func (s *script) opens() bool {
	methods, good := s.answers(procAuthList)
	if !good || len(methods) < 4 {
		return false
	}
	n := binary.BigEndian.Uint32(methods)
	for methods = methods[4:]; n > 0; n, methods = n-1, methods[4:] {
		if len(methods) < 4 {
			return false
		}
		method := binary.BigEndian.Uint32(methods)
		if method == 2 {
			if _, good := s.answers(procPolkit); !good {
				return false
			}
		}
		if method == 2 || method == 0 {
			break
		}
	}
	_, good = s.answers(procOpen)
	return good
}

func (s *script) uploads() bool {
	_, good := s.answers(procUpload)
	return good && s.confirms(procUpload)
}

func (s *script) confirms(proc uint32) bool {
	for {
		p, good := s.next(proc)
		if !good || p.kind == stream && p.status == ok {
			return good
		}
	}
}

func (s *script) downloads(out *bytes.Buffer) bool {
	s.serial++
	for answered, ended := false, false; !answered || !ended; {
		p, good := s.next(procDownload)
		if !good {
			return false
		}
		if p.kind == reply {
			answered = true
			continue
		}
		ended = p.status == ok || len(p.payload) == 0
		out.Write(p.payload)
	}
	return s.confirms(procDownload)
}

// requireSaid holds that an error of libvirt's was said by it.
func requireSaid(t *testing.T, said []byte, err error) {
	t.Helper()
	var e libvirt.Error
	if errors.As(err, &e) {
		require.True(t, bytes.Contains(said, binary.BigEndian.AppendUint32(nil, e.Code)))
		require.True(t, bytes.Contains(said, []byte(e.Message)))
	}
}

// scripted is a connection whose other end says the same whatever it hears. Memory for
// what is to come may be as much as has come, or that of one packet.
type scripted struct {
	t     *testing.T
	said  []byte
	told  int
	heard []byte
}

func (s *scripted) Read(p []byte) (int, error) {
	assert.LessOrEqual(s.t, len(p), max(256<<10, s.told))
	if s.told == len(s.said) {
		return 0, io.EOF
	}
	n := copy(p, s.said[s.told:])
	s.told += n
	return n, nil
}

func (s *scripted) Write(p []byte) (int, error) {
	s.heard = append(s.heard, p...)
	return len(p), nil
}
