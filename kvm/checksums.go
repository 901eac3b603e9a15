package kvm

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/egressfleet/egress/internal/diskimage"
	"github.com/egressfleet/egress/provider"
)

const (
	// checksumsAge is how long a checksums file that was read is believed.
	checksumsAge = time.Hour
	// checksumsPause is how long one that could not be read is left alone.
	checksumsPause = time.Minute
)

// checksumCache has what checksums files say, by the URL of the image. The zero
// value is ready.
type checksumCache struct {
	mu      sync.Mutex
	entries map[string]checksumEntry
}

type checksumEntry struct {
	source diskimage.Source
	err    error
	until  time.Time
}

func (c *checksumCache) get(url string) (checksumEntry, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.entries[url]
	return e, ok && time.Now().Before(e.until)
}

// put keeps a result. A failure does not take the place of an earlier success:
// that is believed a little longer.
func (c *checksumCache) put(url string, source diskimage.Source, err error) checksumEntry {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := checksumEntry{source: source, until: time.Now().Add(checksumsAge)}
	if err != nil {
		e = checksumEntry{err: err, until: time.Now().Add(checksumsPause)}
		if before, ok := c.entries[url]; ok && before.err == nil {
			e.source, e.err = before.source, nil
		}
	}
	if c.entries == nil {
		c.entries = map[string]checksumEntry{}
	}
	c.entries[url] = e
	return e
}

func (c *checksumCache) forget(url string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.entries, url)
}

// resolve gives an image with a checksums file its digest.
func (p *Provider) resolve(ctx context.Context, src imageSource) (imageSource, error) {
	if src.Checksums == "" {
		return src, nil
	}
	e, ok := p.checksums.get(src.URL)
	if !ok {
		unlock, err := p.names.lock(ctx, "checksums "+src.URL)
		if err != nil {
			return src, err
		}
		defer unlock()
		if e, ok = p.checksums.get(src.URL); !ok {
			found, err := p.opener().Resolve(ctx, src.source(), src.Checksums)
			if ctx.Err() != nil {
				return src, ctx.Err()
			}
			e = p.checksums.put(src.URL, found, err)
		}
	}
	if e.err != nil {
		return src, e.err
	}
	src.SHA256, src.SHA512 = e.source.SHA256, e.source.SHA512
	return src, nil
}

// forgetStale forgets the checksum of an image that turned out to have another
// one: both may have been published anew.
func (p *Provider) forgetStale(src imageSource, err error) error {
	if src.Checksums == "" || !provider.HasCode(err, diskimage.CodeDigestMismatch) {
		return err
	}
	p.checksums.forget(src.URL)
	return provider.Transientf(diskimage.CodeDigestMismatch, "the image and its checksums file do not belong together at present: %v", err)
}

// pinSuffix makes the name of the empty volume that says which image a host got
// last under a URL and a checksums file, for when that cannot be read.
const pinSuffix = ".pin"

// pinPrefix is the beginning of its name, before the digest.
func (i imageSource) pinPrefix() string {
	sum := sha256.Sum256([]byte(i.URL + "\n" + i.Checksums))
	return "base-" + i.key + "-sums" + hex.EncodeToString(sum[:6]) + "-"
}

// pinOf returns the digest that the name of a pin of this image has.
func (i imageSource) pinOf(name string) (digest string, ok bool) {
	rest, ok := strings.CutPrefix(name, i.pinPrefix())
	if !ok {
		return "", false
	}
	return strings.CutSuffix(rest, pinSuffix)
}

// pin makes the image the one that the host got last.
func (w imageHost) pin(ctx context.Context, src imageSource) error {
	if src.Checksums == "" {
		return nil
	}
	name := src.pinPrefix() + strings.TrimPrefix(src.identity(), "base-"+src.key+"-") + pinSuffix
	old, err := w.pins(ctx, src)
	if err != nil {
		return err
	}
	if _, err := w.c.recreate(ctx, w.pool, rawVolume(name, 0)); err != nil {
		return err
	}
	for _, other := range old {
		if other == name {
			continue
		}
		if err := w.c.remove(ctx, w.pool, other); err != nil {
			return err
		}
	}
	return nil
}

func (w imageHost) pins(ctx context.Context, src imageSource) (names []string, err error) {
	vols, err := w.c.listVolumes(ctx, w.pool)
	for _, v := range vols {
		if _, ok := src.pinOf(v.Name); ok {
			names = append(names, v.Name)
		}
	}
	return names, err
}

// pinned returns the image that the host got last, if it is still there.
func (w imageHost) pinned(ctx context.Context, src imageSource, cause error) (base, error) {
	if src.Checksums == "" || !errors.Is(cause, provider.ErrTransient) {
		return base{}, cause
	}
	names, err := w.pins(ctx, src)
	if err != nil {
		return base{}, err
	}
	for _, name := range names {
		last := src
		last.SHA256, _ = src.pinOf(name)
		b, ok, err := w.cached(ctx, last)
		if err != nil {
			return base{}, err
		}
		if ok {
			logr.FromContextOrDiscard(ctx).Info("the checksums file cannot be read; the image that this host got last is used",
				"volume", b.volume, "error", cause.Error())
			return b, nil
		}
	}
	return base{}, cause
}
