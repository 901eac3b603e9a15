package kvm_test

import (
	"context"
	"crypto/sha512"
	"encoding/hex"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

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
		_, _ = w.Write(blankImage[:1000])
		w.(http.Flusher).Flush()
		select {
		case <-release:
			_, _ = w.Write(blankImage[1000:])
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
	require.Eventually(t, func() bool { return r.image.requests.Load() == 1 }, time.Second, time.Millisecond)
	time.Sleep(20 * time.Millisecond)
	leave()
	require.ErrorIs(t, <-first, context.Canceled)
	close(release)
	require.NoError(t, <-second)
	assert.EqualValues(t, 1, r.image.requests.Load())
}

func TestFetchEndsWithoutCallers(t *testing.T) {
	r := newRig(t, func(c *kvm.Config) {
		c.Timeouts.Stall, c.Timeouts.ImageTakeover = provider.Duration(5*time.Second), provider.Duration(6*time.Second)
	})
	var gone atomic.Bool
	r.image.serve(func(w http.ResponseWriter, req *http.Request) {
		_, _ = w.Write(blankImage[:1000])
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
	require.Eventually(t, func() bool { return gone.Load() && len(r.host().Volumes("default")) == 0 }, 2*time.Second, 10*time.Millisecond)
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
		{"raw for qcow2", serveBytes(make([]byte, 4096)), provider.ErrPermanent, "BadImage", "raw image and not qcow2"},
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
		}, provider.ErrTransient, "NoAnswer", "stalled"},
		{"no answer", func(_ http.ResponseWriter, req *http.Request) { <-req.Context().Done() }, provider.ErrTransient, "DownloadFailed", "stalled"},
	} {
		t.Run(c.what, func(t *testing.T) {
			r := newRig(t)
			r.image.serve(c.serve)
			_, err := r.Create(testContext(t), request("u1"))
			require.ErrorIs(t, err, c.class)
			assert.True(t, provider.HasCode(err, c.code), "%v", err)
			assert.ErrorContains(t, err, c.says)
			assert.Empty(t, r.host().Volumes("default"), "nothing is left")
			assert.Empty(t, r.host().DomainNames())

			r.image.serve(serveBytes(blankImage))
			mustCreate(t, r, r.Provider, request("u1"))
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
	r := newRig(t)
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
		_, _ = w.Write(blankImage[:1000])
		w.(http.Flusher).Flush()
		<-step
		_, _ = w.Write(blankImage[1000:])
	})
	errs := make(chan error, 2)
	create := func(p *kvm.Provider, uid string) {
		_, err := p.Create(testContext(t), request(uid))
		errs <- err
	}
	go create(other, "u1")
	require.Eventually(t, func() bool { return len(r.host().Volumes("default")) == 1 }, time.Second, time.Millisecond)
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
