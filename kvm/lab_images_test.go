package kvm_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/internal/fakelibvirt"
	"github.com/egressfleet/egress/kvm"
	"github.com/egressfleet/egress/provider"
)

// only has the configuration know this image alone, and removes its volumes in
// the end.
func (l *lab) only(t *testing.T, key string, image kvm.Image) {
	t.Helper()
	l.cfg.Images = map[string]kvm.Image{key: image}
	l.Provider = l.again(t)
	t.Cleanup(func() {
		for _, v := range l.volumesOf(t, "base-"+key+"-") {
			assert.NoError(t, kvm.RemoveVolume(context.Background(), l.Provider, "lab", v))
		}
	})
}

// TestLabImageForms brings images of every form into a real pool, byte for byte.
func TestLabImageForms(t *testing.T) {
	big := append(fakelibvirt.BlankQCOW2(1<<30), randomBytes(10*kvm.PacketSize+99)...)
	raw := randomBytes(3 * kvm.PacketSize)
	raw[0], raw[510], raw[511] = 0, 0x55, 0xaa
	var gz bytes.Buffer
	w := gzip.NewWriter(&gz)
	_, _ = w.Write(big)
	require.NoError(t, w.Close())
	path := filepath.Join(t.TempDir(), "image")
	for what, c := range map[string]struct {
		file   []byte
		format string
		want   []byte
	}{
		"qcow2": {big, "qcow2", big}, "raw": {raw, "raw", raw}, "gz": {gz.Bytes(), "qcow2", big},
	} {
		t.Run(what, func(t *testing.T) {
			l := newLab(t)
			require.NoError(t, os.WriteFile(path, c.file, 0o600))
			l.only(t, "labform", kvm.Image{URL: path, SHA256: digestOf(c.file)})
			image, err := l.PullImage(labContext(t), kvm.PullRequest{})
			require.NoError(t, err)
			assert.Equal(t, c.format, image.Format)
			assert.True(t, image.Whole && image.Configured)
			got, err := kvm.VolumeContent(labContext(t), l.Provider, "lab", image.Volume)
			require.NoError(t, err)
			assert.Equal(t, digestOf(c.want), digestOf(got))
		})
	}
}

// TestLabSegments sends an image over five connections at the same time.
func TestLabSegments(t *testing.T) {
	image := append(fakelibvirt.BlankQCOW2(1<<30), randomBytes(6*kvm.SegmentSize+12345)...)
	path := filepath.Join(t.TempDir(), "image")
	require.NoError(t, os.WriteFile(path, image, 0o600))
	l := newLab(t, func(c *kvm.Config) { patient(c) })
	l.only(t, "labsegments", kvm.Image{URL: path, SHA256: digestOf(image)})
	kvm.UseLanes(l.Provider, "lab", 5)
	pulled, err := l.PullImage(labContext(t), kvm.PullRequest{})
	require.NoError(t, err)
	got, err := kvm.VolumeContent(labContext(t), l.Provider, "lab", pulled.Volume)
	require.NoError(t, err)
	assert.Equal(t, digestOf(image), digestOf(got))
}

// TestLabTwoProcesses has one of two send the image, and the other take over
// when that one dies.
func TestLabTwoProcesses(t *testing.T) {
	image := append(fakelibvirt.BlankQCOW2(1<<30), randomBytes(8*kvm.PacketSize)...)
	l := newLab(t)
	s := newImageServer(t)
	half := make(chan struct{})
	var once sync.Once
	s.serve(func(w http.ResponseWriter, r *http.Request) {
		first := false
		once.Do(func() { first = true })
		if !first {
			_, _ = w.Write(image)
			return
		}
		_, _ = w.Write(image[:len(image)/2])
		w.(http.Flusher).Flush()
		close(half)
		<-r.Context().Done()
	})
	l.only(t, "labtwo", kvm.Image{URL: s.URL, SHA256: digestOf(image)})
	dying, err := kvm.New(l.cfg)
	require.NoError(t, err)
	go func() { _, _ = dying.PullImage(labContext(t), kvm.PullRequest{}) }()
	<-half
	require.Eventually(t, func() bool { return len(l.volumesOf(t, "base-labtwo-")) == 1 }, 10*time.Second, 10*time.Millisecond)
	kvm.Abandon(dying, "lab")
	pulled, err := l.PullImage(labContext(t), kvm.PullRequest{})
	require.NoError(t, err)
	assert.EqualValues(t, len(image), pulled.Bytes)
	require.NoError(t, dying.Close())
}

// TestLabPoolFull is about a pool on a small file system.
func TestLabPoolFull(t *testing.T) {
	dir := labPool(t, "egress-lab-full", "8m")
	image := append(fakelibvirt.BlankQCOW2(1<<30), randomBytes(12<<20)...)
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	_, _ = w.Write(append(fakelibvirt.BlankQCOW2(1<<30), make([]byte, 12<<20)...))
	require.NoError(t, w.Close())
	for what, content := range map[string][]byte{"told before": image, "told by the upload": packed.Bytes()} {
		t.Run(what, func(t *testing.T) {
			s := newImageServer(t)
			s.serve(serveBytes(content))
			l := newLab(t, func(c *kvm.Config) {
				c.Hosts[0].Pool, c.Hosts[0].KeepFreeMiB = "egress-lab-full", -1
				c.Images = map[string]kvm.Image{"labfull": {URL: s.URL, SHA256: digestOf(content)}}
			})
			_, err := l.Create(labContext(t), labRequest("lab-full", "lab-tag-full"))
			require.ErrorIs(t, err, provider.ErrQuotaExceeded, "%v", err)
			left, err := os.ReadDir(dir)
			require.NoError(t, err)
			assert.Empty(t, left)
		})
	}
}

// labPool makes a pool on a file system of that size.
func labPool(t *testing.T, name, size string) string {
	t.Helper()
	if os.Getenv("KVM_TEST_HOST") == "" {
		t.Skip(labHint)
	}
	if _, err := os.Stat("/run/libvirtd.pid"); err != nil {
		t.Skip("needs a libvirtd on this machine, as in the lab")
	}
	dir := filepath.Join("/var/lib/libvirt", name)
	run := func(args ...string) {
		out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
		require.NoError(t, err, "%v: %s", args, out)
	}
	run("mkdir", "-p", dir)
	run("mount", "-t", "tmpfs", "-o", "size="+size, "tmpfs", dir)
	t.Cleanup(func() { run("rmdir", dir) })
	t.Cleanup(func() { run("umount", dir) })
	run("virsh", "-c", "qemu:///system", "pool-create-as", name, "dir", "--target", dir)
	t.Cleanup(func() { run("virsh", "-c", "qemu:///system", "pool-destroy", name) })
	return dir
}

// TestLabKeeper lists, prunes and sweeps what real pools and domains have.
func TestLabKeeper(t *testing.T) {
	l := newLab(t)
	ctx := labContext(t)
	base := l.blank(t, "labkeep", 1<<30)
	req := labRequest("lab-keep", "lab-tag-keep")
	id, err := l.Create(ctx, req)
	t.Cleanup(func() { _ = l.Delete(context.Background(), id) })
	require.NoError(t, err)

	images, err := l.ListImages(ctx)
	require.NoError(t, err)
	var mine kvm.HostImage
	for _, i := range images {
		if i.Volume == base {
			mine = i
		}
	}
	assert.WithinDuration(t, time.Now(), mine.ChangedAt, time.Minute)
	assert.Equal(t, kvm.HostImage{
		Host: "lab", Volume: base, Key: "labkeep", Format: "qcow2", Bytes: mine.Bytes, DiskBytes: 1 << 30,
		Whole: true, Configured: true, Users: 1, ChangedAt: mine.ChangedAt,
	}, mine)

	prune := func() provider.Leftover {
		found, err := l.PruneImages(ctx, kvm.PruneRequest{Configured: true, MinAge: time.Nanosecond, DryRun: true})
		require.NoError(t, err)
		for _, f := range found {
			if f.Name == base {
				return f
			}
		}
		return provider.Leftover{}
	}
	assert.Contains(t, prune().Reason, "1 disks are based on it")

	sweep := func() (kinds []string) {
		found, err := l.Sweep(ctx, provider.SweepRequest{Tag: req.Tag, MinAge: time.Nanosecond})
		require.NoError(t, err)
		for _, f := range found {
			if strings.Contains(f.Name, provider.Name(req.UID)) {
				kinds = append(kinds, fmt.Sprint(f.Kind, " ", f.Removed))
			}
		}
		return kinds
	}
	assert.Empty(t, sweep(), "a whole instance")
	// Its volumes go, as in a deletion that was cut off.
	out, err := exec.CommandContext(ctx, "virsh", "-c", "qemu:///system", "destroy", provider.Name(req.UID)).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.NoError(t, kvm.RemoveVolume(ctx, l.Provider, "lab", provider.Name(req.UID)+".qcow2"))
	assert.Equal(t, []string{"domain true"}, sweep())
	_, err = l.Get(ctx, id)
	require.ErrorIs(t, err, provider.ErrNotFound)
	assert.True(t, prune().Removed)
}

// TestLabConsoleAndWatch reads what the firmware writes to the serial console, and
// hears of what happens on the host.
func TestLabConsoleAndWatch(t *testing.T) {
	l := newLab(t)
	ctx := labContext(t)
	l.blank(t, "labconsole", 1<<30)
	req := labRequest("lab-console", "lab-tag-console")
	heard := watchTag(t, l.Provider, req.Tag)
	require.Eventually(t, func() bool { return heard.count("") == 1 }, 10*time.Second, 10*time.Millisecond)
	id, err := l.Create(ctx, req)
	t.Cleanup(func() { _ = l.Delete(context.Background(), id) })
	require.NoError(t, err)
	require.Eventually(t, func() bool { return heard.count(id) > 0 }, 10*time.Second, 10*time.Millisecond)
	require.Eventually(t, func() bool {
		text, err := l.ReadConsole(ctx, id, 0)
		require.NoError(t, err)
		return bytes.Contains(text, []byte("Bds"))
	}, time.Minute, time.Second, "the firmware tells where it boots from")
	tail, err := l.ReadConsole(ctx, id, 10)
	require.NoError(t, err)
	assert.Len(t, tail, 10)
	out, err := exec.CommandContext(ctx, "virsh", "-c", "qemu:///system", "pool-list", "--all", "--name").CombinedOutput()
	require.NoError(t, err)
	assert.NotContains(t, string(out), "egress-console-logs", "the pool for reading is gone")
	before := heard.count(id)
	require.NoError(t, l.Delete(ctx, id))
	require.Eventually(t, func() bool { return heard.count(id) > before }, 10*time.Second, 10*time.Millisecond)
}

// TestLabDiagnose finds the lab in order.
func TestLabDiagnose(t *testing.T) {
	l := newLab(t)
	findings, err := l.Diagnose(labContext(t))
	require.NoError(t, err)
	byCheck := map[string]provider.Finding{}
	for _, f := range findings {
		t.Logf("%s %s: %s", f.Check, f.Status, f.Evidence)
		byCheck[f.Check] = f
		assert.NotEqual(t, provider.FindingFailure, f.Status, "%+v", f)
	}
	for _, check := range []string{"ssh-files", "host", "host-key", "login", "forwarding", "socket", "libvirt", "firmware", "memory", "space", "clock"} {
		assert.Equal(t, provider.FindingOK, byCheck[check].Status, check)
	}
}

// slowTransfer is a TCP proxy that delays both directions.
func slowTransfer(t testing.TB, target string, delay time.Duration) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go delayed(conn, target, delay)
		}
	}()
	return listener.Addr().String()
}

func delayed(conn net.Conn, target string, delay time.Duration) {
	defer func() { _ = conn.Close() }()
	far, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	defer func() { _ = far.Close() }()
	go later(conn, far, delay)
	later(far, conn, delay)
}

// later copies what arrives after a delay, which costs no throughput.
func later(dst io.Writer, src io.Reader, delay time.Duration) {
	type piece struct {
		due  time.Time
		data []byte
	}
	line := make(chan piece, 1<<14)
	go func() {
		defer close(line)
		for {
			buf := make([]byte, 32<<10)
			n, err := src.Read(buf)
			if n > 0 {
				line <- piece{time.Now().Add(delay), buf[:n]}
			}
			if err != nil {
				return
			}
		}
	}()
	for p := range line {
		time.Sleep(time.Until(p.due))
		if _, err := dst.Write(p.data); err != nil {
			return
		}
	}
}

// TestLabDistantHost chooses several connections by the time that the host takes
// to answer.
func TestLabDistantHost(t *testing.T) {
	image := append(fakelibvirt.BlankQCOW2(1<<30), randomBytes(3*kvm.SegmentSize)...)
	path := filepath.Join(t.TempDir(), "image")
	require.NoError(t, os.WriteFile(path, image, 0o600))
	uploads := make(chan string, 1000)
	l := newLab(t, func(c *kvm.Config) {
		if c.Hosts[0].Address == "local" {
			t.Skip("needs a host over SSH")
		}
		patient(c)
		c.Hosts[0].Address, c.KnownHostsFile, c.InsecureIgnoreHostKey = slowTransfer(t, c.Hosts[0].Address, 10*time.Millisecond), "", true
		c.Trace = &kvm.Trace{Dial: func(_ context.Context, info kvm.DialInfo) func(error) {
			uploads <- info.Purpose
			return nil
		}}
	})
	l.only(t, "labfar", kvm.Image{URL: path, SHA256: digestOf(image)})
	_, err := l.PullImage(labContext(t), kvm.PullRequest{})
	require.NoError(t, err)
	lanes := 0
	for len(uploads) > 0 {
		if <-uploads == "upload" {
			lanes++
		}
	}
	assert.Greater(t, lanes, 1)
}
