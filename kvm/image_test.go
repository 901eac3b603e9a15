package kvm_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/digitalocean/go-libvirt"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/internal/fakelibvirt"
	"github.com/egressfleet/egress/kvm"
	"github.com/egressfleet/egress/provider"
)

// bigImage is some packets long.
var bigImage = append(fakelibvirt.BlankQCOW2(1<<30), randomBytes(5*kvm.PacketSize+12345)...)

func randomBytes(n int) []byte {
	r := rand.NewChaCha8([32]byte{1})
	b := make([]byte, n)
	_, _ = r.Read(b)
	return b
}

func serveBytes(content []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(content) }
}

func TestImageArrivesWhole(t *testing.T) {
	sum := sha512.Sum512(bigImage)
	var progress []kvm.ImageProgress
	r := newRig(t, func(c *kvm.Config) {
		image := c.Images["debian"]
		image.SHA256, image.SHA512 = "", hex.EncodeToString(sum[:])
		c.Images["debian"] = image
		c.Progress = func(p kvm.ImageProgress) { progress = append(progress, p) }
	})
	r.image.serve(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "")
		_, _ = w.Write(bigImage)
	})
	mustCreate(t, r, r.Provider, request("u1"))
	volume := "base-debian-" + hex.EncodeToString(sum[:])[:16] + ".qcow2"
	assert.Equal(t, bigImage, r.host().Content("default", volume))
	require.NotEmpty(t, progress)
	last := progress[len(progress)-1]
	assert.EqualValues(t, len(bigImage), last.Bytes)
	assert.Equal(t, volume, last.Volume)
}

// TestOneFetch has many callers at once cause one download.
func TestOneFetch(t *testing.T) {
	r := newRig(t)
	var wg sync.WaitGroup
	for i := range 10 {
		wg.Go(func() {
			_, err := r.Create(testContext(t), request(string(rune('a'+i))))
			assert.NoError(t, err)
		})
	}
	wg.Wait()
	assert.EqualValues(t, 1, r.image.requests.Load())
}

// TestFetchOutlivesItsCaller goes on while somebody waits, and ends, leaving
// nothing, when nobody does.
func TestFetchOutlivesItsCaller(t *testing.T) {
	r := newRig(t)
	release := make(chan struct{})
	r.image.serve(func(w http.ResponseWriter, req *http.Request) {
		_, _ = w.Write(blankImage[:2000])
		w.(http.Flusher).Flush()
		select {
		case <-release:
			_, _ = w.Write(blankImage[2000:])
		case <-req.Context().Done():
		}
	})
	create := func(ctx context.Context, uid string) chan error {
		done := make(chan error, 1)
		go func() {
			_, err := r.Create(ctx, request(uid))
			done <- err
		}()
		return done
	}
	firstCtx, leave := context.WithCancel(testContext(t))
	first, second := create(firstCtx, "u1"), create(testContext(t), "u2")
	require.Eventually(t, func() bool { return r.image.requests.Load() == 1 }, 10*time.Second, time.Millisecond)
	time.Sleep(20 * time.Millisecond)
	leave()
	require.ErrorIs(t, <-first, context.Canceled)
	close(release)
	require.NoError(t, <-second)
	assert.EqualValues(t, 1, r.image.requests.Load())
}

func TestFetchEndsWithoutCallers(t *testing.T) {
	r := newRig(t, func(c *kvm.Config) {
		patient(c)
	})
	var gone atomic.Bool
	r.image.serve(func(w http.ResponseWriter, req *http.Request) {
		_, _ = w.Write(blankImage[:2000])
		w.(http.Flusher).Flush()
		<-req.Context().Done()
		gone.Store(true)
	})
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	start := time.Now()
	_, err := r.Create(ctx, request("u1"))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	assert.Less(t, time.Since(start), 500*time.Millisecond)
	require.Eventually(t, func() bool { return gone.Load() && len(r.host().Volumes("default")) == 0 }, 10*time.Second, 10*time.Millisecond)
}

func TestBadImages(t *testing.T) {
	withBacking := append([]byte{}, blankImage...)
	withBacking[15] = 1
	for _, c := range []struct {
		what  string
		serve http.HandlerFunc
		class error
		code  string
		says  string
	}{
		{"not found", http.NotFound, provider.ErrPermanent, "DownloadFailed", "404"},
		{"broken server", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) }, provider.ErrTransient, "DownloadFailed", "503"},
		{"too many requests", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(429) }, provider.ErrTransient, "DownloadFailed", "429"},
		{"wrong digest", serveBytes(append([]byte{}, bigImage...)), provider.ErrPermanent, "DigestMismatch", "sha256"},
		{"html by type", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			_, _ = w.Write([]byte("please log in"))
		}, provider.ErrPermanent, "BadImage", "HTML"},
		{"html by text", serveBytes([]byte("<!doctype html><title>login</title>")), provider.ErrPermanent, "BadImage", "HTML"},
		{"no disk", serveBytes(make([]byte, 4096)), provider.ErrPermanent, "BadImage", "neither"},
		{"a backing file", serveBytes(withBacking), provider.ErrPermanent, "BadImage", "backing file"},
		{"empty", serveBytes(nil), provider.ErrPermanent, "BadImage", "empty"},
		{"cut", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "900000")
			_, _ = w.Write(blankImage)
		}, provider.ErrTransient, "DownloadFailed", "cut"},
		{"stalled", func(w http.ResponseWriter, req *http.Request) {
			_, _ = w.Write(blankImage[:9000])
			w.(http.Flusher).Flush()
			<-req.Context().Done()
		}, provider.ErrTransient, "DownloadFailed", "stalled"},
		{"no answer", func(_ http.ResponseWriter, req *http.Request) { <-req.Context().Done() }, provider.ErrTransient, "DownloadFailed", "stalled"},
	} {
		t.Run(c.what, func(t *testing.T) {
			r := newRig(t, impatient)
			r.image.serve(c.serve)
			_, err := r.Create(testContext(t), request("u1"))
			require.ErrorIs(t, err, c.class)
			assert.True(t, provider.HasCode(err, c.code), "%v", err)
			assert.ErrorContains(t, err, c.says)
			assert.Empty(t, r.host().Volumes("default"), "nothing is left")
			assert.Empty(t, r.host().DomainNames())

			patient(&r.cfg)
			r.image.serve(serveBytes(blankImage))
			mustCreate(t, r, r.again(t), request("u1"))
		})
	}
}

// TestURLSecrets keeps credentials of an image's URL out of errors.
func TestURLSecrets(t *testing.T) {
	r := newRig(t, func(c *kvm.Config) {
		c.Images["debian"] = kvm.Image{URL: "http://user:hunter2@127.0.0.1:1/x.qcow2?signature=hunter3"}
	})
	_, err := r.Create(testContext(t), request("u1"))
	require.ErrorIs(t, err, provider.ErrTransient)
	assert.NotContains(t, err.Error(), "hunter")
	assert.ErrorContains(t, err, "127.0.0.1:1/x.qcow2")
}

// TestPartialIsNotTrusted takes over what a dead process left, whatever it
// looks like.
func TestPartialIsNotTrusted(t *testing.T) {
	r := newRig(t, impatient)
	volume := "base-debian-" + digestOf(blankImage)[:16] + ".qcow2"
	r.host().PutVolume("default", volume, blankImage[:70000])
	mustCreate(t, r, r.Provider, request("u1"))
	assert.Equal(t, blankImage, r.host().Content("default", volume))
}

// TestOtherProcessFetches waits for an image that another process brings.
func TestOtherProcessFetches(t *testing.T) {
	r := newRig(t)
	other := r.again(t)
	step := make(chan struct{})
	r.image.serve(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(blankImage[:2000])
		w.(http.Flusher).Flush()
		<-step
		_, _ = w.Write(blankImage[2000:])
	})
	errs := make(chan error, 2)
	create := func(p *kvm.Provider, uid string) {
		_, err := p.Create(testContext(t), request(uid))
		errs <- err
	}
	go create(other, "u1")
	isBase := func(name string) bool { return strings.HasPrefix(name, "base-") }
	require.Eventually(t, func() bool { return slices.ContainsFunc(r.host().Volumes("default"), isBase) }, 10*time.Second, time.Millisecond)
	go create(r.Provider, "u2")
	time.Sleep(50 * time.Millisecond)
	close(step)
	require.NoError(t, <-errs)
	require.NoError(t, <-errs)
	assert.EqualValues(t, 1, r.image.requests.Load())
}

// TestImageEntryMayChange gives the changed entry a volume of its own.
func TestImageEntryMayChange(t *testing.T) {
	r := newRig(t)
	mustCreate(t, r, r.Provider, request("u1"))
	r.image.serve(serveBytes(bigImage))
	r.cfg.Images["debian"] = kvm.Image{URL: r.image.URL, SHA256: digestOf(bigImage)}
	p := r.again(t)
	mustCreate(t, r, p, request("u2"))
	assert.Equal(t, blankImage, r.host().Content("default", "base-debian-"+digestOf(blankImage)[:16]+".qcow2"))
	assert.Equal(t, bigImage, r.host().Content("default", "base-debian-"+digestOf(bigImage)[:16]+".qcow2"))
}

// TestWarmCreateIsCheap holds the number of calls in series, where the image is
// cached. What is asked about room is asked beside the first of them.
func TestWarmCreateIsCheap(t *testing.T) {
	r := newRig(t)
	mustCreate(t, r, r.Provider, request("u1"))
	r.host().ForgetCalls()
	beside := besideLookup(r)
	mustCreate(t, r, r.Provider, request("u2"))
	assert.LessOrEqual(t, len(r.host().Calls())-len(beside), 10, "%v", r.host().Calls())
	r.host().ForgetCalls()
	mustCreate(t, r, r.Provider, request("u2"))
	assert.Len(t, r.host().Calls(), 2+len(beside))
}

// besideLookup holds the look-up of a domain until the calls it returns have
// begun.
func besideLookup(r *rig) []string {
	beside := []string{"virNodeGetMemoryStats", "virStoragePoolGetInfo"}
	begun := make(chan struct{}, 2*len(beside))
	r.host().Before = func(c fakelibvirt.Call) error {
		switch {
		case slices.Contains(beside, c.RPC):
			begun <- struct{}{}
		case c.RPC == "virDomainLookupByName":
			for range beside {
				<-begun
			}
		}
		return nil
	}
	return beside
}

// TestImageRemoved fetches an image again that somebody removed, whether or not
// this process has seen it.
func TestImageRemoved(t *testing.T) {
	r := newRig(t)
	id := mustCreate(t, r, r.Provider, request("u1"))
	require.NoError(t, r.Delete(testContext(t), id))
	r.host().RemoveVolume("default", "base-debian-"+digestOf(blankImage)[:16]+".qcow2")
	mustCreate(t, r, r.Provider, request("u2"))
	assert.EqualValues(t, 2, r.image.requests.Load())
}

func TestRawImage(t *testing.T) {
	raw := randomBytes(kvm.PacketSize)
	raw[0] = 0
	r := newRig(t, func(c *kvm.Config) {
		image := c.Images["debian"]
		image.Format, image.SHA256 = "raw", digestOf(raw)
		c.Images["debian"] = image
	})
	r.image.serve(serveBytes(raw))
	mustCreate(t, r, r.Provider, request("u1"))
	assert.Equal(t, raw, r.host().Content("default", "base-debian-"+digestOf(raw)[:16]+".raw"))
}

// TestDiskIsNotSmallerThanItsImage checks both sides.
func TestDiskIsNotSmallerThanItsImage(t *testing.T) {
	for _, c := range []struct {
		gib  int
		want uint64
	}{{1, 3 << 30}, {0, 10 << 30}} {
		r := newRig(t, func(cfg *kvm.Config) { cfg.DiskSizeGiB = c.gib })
		mustCreate(t, r, r.Provider, request("u1"))
		assert.Equal(t, c.want, r.host().Capacity("default", provider.Name("u1")+".qcow2"))
	}
}

// TestImageForms fetches what is packed, and what is on this machine.
func TestImageForms(t *testing.T) {
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	_, _ = w.Write(bigImage)
	require.NoError(t, w.Close())
	raw := randomBytes(2 * kvm.PacketSize)
	raw[0], raw[510], raw[511] = 0, 0x55, 0xaa
	dir := t.TempDir()
	write := func(name string, content []byte) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, content, 0o600))
		return path
	}
	for what, c := range map[string]struct {
		image  kvm.Image
		want   []byte
		format string
	}{
		"a path":             {kvm.Image{URL: write("a.qcow2", bigImage)}, bigImage, "qcow2"},
		"a file URL, packed": {kvm.Image{URL: "file://" + write("a.img.gz", packed.Bytes()), SHA256: digestOf(packed.Bytes())}, bigImage, "qcow2"},
		"raw":                {kvm.Image{URL: write("a.img", raw)}, raw, "raw"},
	} {
		t.Run(what, func(t *testing.T) {
			r := newRig(t, func(cfg *kvm.Config) { cfg.Images["debian"] = c.image })
			mustCreate(t, r, r.Provider, request("u1"))
			mustCreate(t, r, r.again(t), request("u2"))
			bases := slices.DeleteFunc(r.host().Volumes("default"), func(v string) bool {
				return !strings.HasPrefix(v, "base-debian-") || strings.HasSuffix(v, ".ok")
			})
			require.Len(t, bases, 1, "one fetch for two")
			assert.True(t, strings.HasSuffix(bases[0], "."+c.format), bases[0])
			assert.Equal(t, digestOf(c.want), digestOf(r.host().Content("default", bases[0])))
		})
	}
}

// TestPlacementNamesNoFile keeps whoever writes a placement from reading this
// machine's files.
func TestPlacementNamesNoFile(t *testing.T) {
	r := newRig(t)
	for _, image := range []string{"/etc/passwd", "file:///etc/passwd"} {
		req := request("u1")
		req.Placement.Image = image
		_, err := r.Create(testContext(t), req)
		require.ErrorIs(t, err, provider.ErrPermanent)
		assert.True(t, provider.HasCode(err, "BadPlacement"), "%v", err)
	}
	assert.Empty(t, r.host().Volumes("default"))
}

// patient has nothing count as stalled on a busy machine.
func patient(c *kvm.Config) {
	c.Timeouts.Stall, c.Timeouts.ImageTakeover = provider.Duration(10*time.Second), provider.Duration(11*time.Second)
}

// impatient is for what never comes.
func impatient(c *kvm.Config) {
	c.Timeouts.Stall, c.Timeouts.ImageTakeover = provider.Duration(200*time.Millisecond), provider.Duration(300*time.Millisecond)
}

// TestSegments puts together what several connections send.
func TestSegments(t *testing.T) {
	image := append(fakelibvirt.BlankQCOW2(1<<30), randomBytes(4*kvm.SegmentSize+777)...)
	for _, lanes := range []int{2, 5} {
		var told atomic.Int64
		r := newRig(t, func(cfg *kvm.Config) {
			cfg.Images["debian"] = kvm.Image{URL: cfg.Images["debian"].URL, SHA256: digestOf(image)}
			cfg.Progress = func(p kvm.ImageProgress) { told.Store(p.Bytes) }
			patient(cfg)
		})
		r.image.serve(serveBytes(image))
		kvm.UseLanes(r.Provider, "kvm1", lanes)
		busy := atomic.Int32{}
		r.host().Before = func(c fakelibvirt.Call) error {
			if c.RPC == "virStorageVolUpload" && busy.Add(1)%3 == 2 {
				return fakelibvirt.Errorf(libvirt.ErrOperationInvalid, "volume '%s' is still in use.", c.Object)
			}
			return nil
		}
		mustCreate(t, r, r.Provider, request("u1"))
		assert.Equal(t, digestOf(image), digestOf(r.host().Content("default", "base-debian-"+digestOf(image)[:16]+".qcow2")))
		assert.EqualValues(t, len(image), told.Load())
	}
}

// TestSegmentsFail leaves nothing of an image whose upload failed in one of its
// parts.
func TestSegmentsFail(t *testing.T) {
	image := append(fakelibvirt.BlankQCOW2(1<<30), randomBytes(4*kvm.SegmentSize)...)
	for what, c := range map[string]struct {
		fail  error
		class error
	}{
		"disk full": {fakelibvirt.Errorf(libvirt.ErrSystemError, "cannot write to stream: No space left on device"), provider.ErrQuotaExceeded},
		"cut":       {fakelibvirt.ErrCut, provider.ErrTransient},
	} {
		t.Run(what, func(t *testing.T) {
			r := newRig(t, func(cfg *kvm.Config) {
				cfg.Images["debian"] = kvm.Image{URL: cfg.Images["debian"].URL, SHA256: digestOf(image)}
				patient(cfg)
			})
			r.image.serve(serveBytes(image))
			kvm.UseLanes(r.Provider, "kvm1", 3)
			uploads := atomic.Int32{}
			r.host().After = func(call fakelibvirt.Call) error {
				if call.RPC == "virStorageVolUpload" && uploads.Add(1) == 3 {
					return c.fail
				}
				return nil
			}
			_, err := r.Create(testContext(t), request("u1"))
			require.ErrorIs(t, err, c.class)
			assert.Empty(t, r.host().Volumes("default"))
			mustCreate(t, r, r.Provider, request("u1"))
		})
	}
}

// TestLanes has more connections the farther the host is.
func TestLanes(t *testing.T) {
	assert.Equal(t, 1, kvm.LanesFor(0))
	assert.Equal(t, 1, kvm.LanesFor(3*time.Millisecond))
	assert.Equal(t, 2, kvm.LanesFor(10*time.Millisecond))
	assert.Equal(t, 6, kvm.LanesFor(50*time.Millisecond))
	assert.Equal(t, 6, kvm.LanesFor(time.Second))

	// A pool that takes long to read costs more than several lanes gain.
	assert.True(t, kvm.SegmentsPay(50*time.Millisecond, 100*time.Millisecond, 5))
	assert.False(t, kvm.SegmentsPay(50*time.Millisecond, 300*time.Millisecond, 5))
	assert.False(t, kvm.SegmentsPay(10*time.Millisecond, 100*time.Millisecond, 2))
}

// TestBackgroundFetch answers at once while the image is on its way.
func TestBackgroundFetch(t *testing.T) {
	r := newRig(t, func(c *kvm.Config) {
		c.ImageFetch = "background"
		patient(c)
	})
	release := make(chan struct{})
	r.image.serve(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", strconv.Itoa(len(blankImage)))
		_, _ = w.Write(blankImage[:len(blankImage)/2])
		w.(http.Flusher).Flush()
		<-release
		_, _ = w.Write(blankImage[len(blankImage)/2:])
	})
	ctx, leave := context.WithCancel(testContext(t))
	_, err := r.Create(ctx, request("u1"))
	leave() // which is none of the fetch's business
	require.ErrorIs(t, err, provider.ErrTransient)
	assert.True(t, provider.HasCode(err, "FetchingImage"), "%v", err)
	require.EventuallyWithT(t, func(t *assert.CollectT) {
		_, err := r.Create(context.Background(), request("u1"))
		assert.ErrorContains(t, err, "being fetched, 50 %")
	}, 5*time.Second, 10*time.Millisecond)
	assert.Empty(t, r.host().DomainNames())
	close(release)
	require.Eventually(t, func() bool {
		_, err := r.Create(testContext(t), request("u1"))
		return err == nil
	}, 5*time.Second, 10*time.Millisecond)
	requireWhole(t, r, request("u1"))
	assert.EqualValues(t, 1, r.image.requests.Load())
}

// TestBackgroundFetchFails tells the failure once, and tries again.
func TestBackgroundFetchFails(t *testing.T) {
	r := newRig(t, func(c *kvm.Config) { c.ImageFetch = "background" })
	r.image.serve(http.NotFound)
	_, err := r.Create(testContext(t), request("u1"))
	require.True(t, provider.HasCode(err, "FetchingImage"), "%v", err)
	require.Eventually(t, func() bool {
		_, err = r.Create(testContext(t), request("u1"))
		return errors.Is(err, provider.ErrPermanent)
	}, 5*time.Second, time.Millisecond)
	require.ErrorContains(t, err, "404")
	_, err = r.Create(testContext(t), request("u1"))
	require.True(t, provider.HasCode(err, "FetchingImage"), "a new attempt: %v", err)
}

// TestBackgroundFetchEndsWithTheProvider leaves nothing running.
func TestBackgroundFetchEndsWithTheProvider(t *testing.T) {
	r := newRig(t, func(c *kvm.Config) {
		c.ImageFetch = "background"
		c.Timeouts.Stall, c.Timeouts.ImageTakeover = provider.Duration(time.Minute), provider.Duration(2*time.Minute)
	})
	asked := make(chan struct{}, 1)
	r.image.serve(func(w http.ResponseWriter, req *http.Request) {
		_, _ = w.Write(blankImage[:2000])
		w.(http.Flusher).Flush()
		asked <- struct{}{}
		<-req.Context().Done()
	})
	_, err := r.Create(testContext(t), request("u1"))
	require.True(t, provider.HasCode(err, "FetchingImage"), "%v", err)
	<-asked
	require.NoError(t, r.Close())
}

// sums is a server of an image and its checksums file.
type sums struct {
	image *imageServer
	down  atomic.Bool
	says  atomic.Pointer[string]
	asked atomic.Int32
}

func newSums(t *testing.T, r *rig) *sums {
	t.Helper()
	s := &sums{image: r.image}
	s.publish(blankImage)
	return s
}

// publish serves another image with its checksum.
func (s *sums) publish(content []byte) {
	text := digestOf(content) + "  debian.qcow2\n"
	s.says.Store(&text)
	s.image.serve(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "SHA256SUMS") {
			_, _ = w.Write(content)
			return
		}
		s.asked.Add(1)
		if s.down.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte(*s.says.Load()))
	})
}

func newSumsRig(t *testing.T) (*rig, *sums) {
	t.Helper()
	r := newRig(t)
	r.cfg.Images["debian"] = kvm.Image{URL: r.image.URL + "/debian.qcow2", Checksums: r.image.URL + "/SHA256SUMS"}
	r.Provider = r.again(t)
	return r, newSums(t, r)
}

func TestChecksumsFile(t *testing.T) {
	r, s := newSumsRig(t)
	mustCreate(t, r, r.Provider, request("u1"))
	mustCreate(t, r, r.Provider, request("u2"))
	assert.EqualValues(t, 1, s.asked.Load(), "it is read once")
	first := "base-debian-" + digestOf(blankImage)[:16] + ".qcow2"
	assert.Equal(t, blankImage, r.host().Content("default", first))

	// Published anew: another process gets the new one beside the old one.
	s.publish(bigImage)
	mustCreate(t, r, r.again(t), request("u3"))
	assert.Equal(t, digestOf(bigImage), digestOf(r.host().Content("default", "base-debian-"+digestOf(bigImage)[:16]+".qcow2")))
	assert.Contains(t, r.host().Volumes("default"), first)

	// Without the file, a host goes on with what it got last.
	s.down.Store(true)
	mustCreate(t, r, r.again(t), request("u4"))
	disk, _ := r.host().Domain(provider.Name("u4"))
	assert.NotEmpty(t, disk.XML.Name)
	pins := slices.DeleteFunc(r.host().Volumes("default"), func(v string) bool { return !strings.HasSuffix(v, ".pin") })
	require.Len(t, pins, 1)
	assert.Contains(t, pins[0], digestOf(bigImage)[:16])
}

// TestChecksumsFileDown has nothing to go on with.
func TestChecksumsFileDown(t *testing.T) {
	r, s := newSumsRig(t)
	s.down.Store(true)
	_, err := r.Create(testContext(t), request("u1"))
	require.ErrorIs(t, err, provider.ErrTransient)
	require.ErrorContains(t, err, "503")
	assert.Empty(t, r.host().Volumes("default"))
	asked := s.asked.Load()
	_, err = r.Create(testContext(t), request("u1"))
	require.ErrorContains(t, err, "503")
	assert.Equal(t, asked, s.asked.Load(), "it is left alone for a while")
}

// TestChecksumsFileIsOld heals when image and file belong together again.
func TestChecksumsFileIsOld(t *testing.T) {
	r, s := newSumsRig(t)
	s.publish(bigImage)
	old := digestOf(blankImage) + "  debian.qcow2\n"
	s.says.Store(&old)
	_, err := r.Create(testContext(t), request("u1"))
	require.ErrorIs(t, err, provider.ErrTransient, "%v", err)
	require.NotErrorIs(t, err, provider.ErrPermanent)
	assert.True(t, provider.HasCode(err, "DigestMismatch"))
	assert.Empty(t, r.host().Volumes("default"))
	s.publish(bigImage)
	mustCreate(t, r, r.Provider, request("u1"))
}

// TestDiskFull is about space, and leaves nothing.
func TestDiskFull(t *testing.T) {
	r := newRig(t)
	r.host().PoolBytes = 100_000
	_, err := r.Create(testContext(t), request("u1"))
	require.ErrorIs(t, err, provider.ErrQuotaExceeded)
	require.ErrorContains(t, err, "No space left")
	assert.Empty(t, r.host().Volumes("default"))
	assert.Empty(t, r.host().DomainNames())
}

// A pool that was full may end an upload in peace, shorter than it was.
func TestAFullPoolMayEndAnUploadInPeace(t *testing.T) {
	for _, part := range []string{"base-", "proxy-"} {
		r := newRig(t)
		r.host().After = func(c fakelibvirt.Call) error {
			if c.RPC == "virStorageVolUpload" && strings.HasPrefix(c.Object, part) {
				r.host().PoolFree = 10
				r.host().PutVolume("default", c.Object, []byte("what fitted"))
			}
			return nil
		}
		_, err := r.Create(testContext(t), request("u1"))
		require.ErrorIs(t, err, provider.ErrQuotaExceeded, part)
		assert.True(t, provider.HasCode(err, "NoSpace"), "%v", err)
		for _, name := range r.host().Volumes("default") {
			assert.NotEqual(t, "what fitted", string(r.host().Content("default", name)), name)
		}
	}
}

// TestTakenOverWhileUploading leaves the volume to whoever made it anew.
func TestTakenOverWhileUploading(t *testing.T) {
	r := newRig(t)
	volume := "base-debian-" + digestOf(blankImage)[:16] + ".qcow2"
	r.host().After = func(c fakelibvirt.Call) error {
		if c.RPC == "virStorageVolUpload" && c.Object == volume {
			r.host().After = nil
			r.host().PutVolume("default", volume, []byte("another uploader's beginning"))
		}
		return nil
	}
	_, err := r.Create(testContext(t), request("u1"))
	require.ErrorIs(t, err, provider.ErrTransient)
	assert.True(t, provider.HasCode(err, "VolumeChanged"), "%v", err)
	assert.Equal(t, []string{volume}, r.host().Volumes("default"))
	assert.Equal(t, "another uploader's beginning", string(r.host().Content("default", volume)))
}

// TestNoSpaceForTheImage is told before anything is sent.
func TestNoSpaceForTheImage(t *testing.T) {
	r := newRig(t)
	r.image.serve(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", strconv.Itoa(900<<20))
		_, _ = w.Write(blankImage)
	})
	r.host().PoolFree = 1 << 30 // of which 512 MiB stay free
	_, err := r.Create(testContext(t), request("u1"))
	require.ErrorIs(t, err, provider.ErrQuotaExceeded)
	assert.True(t, provider.HasCode(err, "NoSpace"), "%v", err)
	assert.ErrorContains(t, err, "1024 MiB free of")
	assert.NotContains(t, r.host().Calls(), "virStorageVolUpload")
	assert.Empty(t, r.host().Volumes("default"))
}

// TestAnOldFailureIsForgotten tells nobody of a fetch that failed before one that
// succeeded.
func TestAnOldFailureIsForgotten(t *testing.T) {
	r := newRig(t, func(c *kvm.Config) { c.ImageFetch = "background" })
	r.image.serve(http.NotFound)
	_, err := r.Create(testContext(t), request("u1"))
	require.True(t, provider.HasCode(err, "FetchingImage"), "%v", err)
	require.Eventually(t, func() bool { return kvm.HasFailure(r.Provider, "kvm1") }, 10*time.Second, time.Millisecond)
	r.image.serve(serveBytes(blankImage))
	_, err = r.PullImage(testContext(t), kvm.PullRequest{})
	require.NoError(t, err)
	_, err = r.PruneImages(testContext(t), kvm.PruneRequest{Configured: true, MinAge: time.Nanosecond})
	require.NoError(t, err)
	_, err = r.Create(testContext(t), request("u1"))
	require.True(t, provider.HasCode(err, "FetchingImage"), "%v", err)
}
