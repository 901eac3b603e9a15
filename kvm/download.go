package kvm

import (
	"bufio"
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// download is an image on its way. Reading it is counted and hashed.
type download struct {
	body   io.Closer
	r      io.Reader
	cancel context.CancelFunc
	// length is the number of bytes, -1 where the server does not tell it.
	length int64
	kind   sniffed

	sum256, sum512 hash.Hash
}

// download asks for the image and looks at its beginning.
func (p *Provider) download(ctx context.Context, src imageSource) (*download, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	late := time.AfterFunc(time.Duration(p.cfg.Timeouts.Stall), func() {
		cancel(fmt.Errorf("%w: no answer for %s", errStalled, p.cfg.Timeouts.Stall))
	})
	defer late.Stop()
	d := &download{cancel: func() { cancel(nil) }, sum256: sha256.New(), sum512: sha512.New()}
	if err := d.open(ctx, p.cfg.HTTPClient, src); err != nil {
		d.close()
		if cause := context.Cause(ctx); errors.Is(cause, errStalled) {
			return nil, transient(codeDownloadFailed, "%s: %w", src.shownURL(), cause)
		}
		return nil, err
	}
	return d, nil
}

func (d *download) open(ctx context.Context, hc *http.Client, src imageSource) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, src.URL, nil)
	if err != nil {
		return permanent(codeDownloadFailed, "%s: %w", src.shownURL(), withoutURL(err))
	}
	// What arrives must be what the digest is of.
	req.Header.Set("Accept-Encoding", "identity")
	resp, err := hc.Do(req) //nolint:bodyclose // the download owns the body, and close ends it.
	if err != nil {
		return transient(codeDownloadFailed, "%s: %w", src.shownURL(), withoutURL(err))
	}
	d.body, d.length = resp.Body, resp.ContentLength
	if err := checkStatus(resp, src); err != nil {
		return err
	}
	return d.peek(resp, src)
}

// checkStatus tells what a retry cannot help from what it can.
func checkStatus(resp *http.Response, src imageSource) error {
	switch code := resp.StatusCode; {
	case code == http.StatusOK:
		return nil
	case code == http.StatusRequestTimeout, code == http.StatusTooManyRequests, code >= 500:
		return transient(codeDownloadFailed, "%s: the server answered %s", src.shownURL(), resp.Status)
	default:
		return permanent(codeDownloadFailed, "%s: the server answered %s: correct the image's url", src.shownURL(), resp.Status)
	}
}

// peek looks at the beginning, which it leaves in the stream.
func (d *download) peek(resp *http.Response, src imageSource) error {
	buffered := bufio.NewReaderSize(resp.Body, packetSize)
	head, err := buffered.Peek(sniffLength)
	if err != nil && !errors.Is(err, io.EOF) {
		return transient(codeDownloadFailed, "%s: %w", src.shownURL(), withoutURL(err))
	}
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "text/html") {
		head = []byte("<html")
	}
	if len(head) == 0 {
		return permanent(codeBadImage, "%s is empty", src.shownURL())
	}
	if d.kind, err = sniff(head); err != nil {
		return permanent(codeBadImage, "%s: %w", src.shownURL(), err)
	}
	if d.kind.format != src.Format {
		return permanent(codeBadImage, "%s is a %s image and not %s: set the image's format", src.shownURL(), d.kind.format, src.Format)
	}
	d.r = io.TeeReader(buffered, io.MultiWriter(d.sum256, d.sum512))
	return nil
}

// Read implements io.Reader; an error names no URL.
func (d *download) Read(p []byte) (int, error) {
	n, err := d.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = transient(codeDownloadFailed, "the download was cut: %w", withoutURL(err))
	}
	return n, err
}

func (d *download) close() {
	d.cancel()
	if d.body != nil {
		_ = d.body.Close()
	}
}

func (d *download) sha256() string { return hex.EncodeToString(d.sum256.Sum(nil)) }

// verify compares what was sent with what was promised.
func (d *download) verify(src imageSource, sent int64) error {
	if d.length >= 0 && sent != d.length {
		return transient(codeDownloadFailed, "%s: %d of %d bytes arrived", src.shownURL(), sent, d.length)
	}
	for _, want := range []struct {
		name, digest string
		sum          hash.Hash
	}{{"sha256", src.SHA256, d.sum256}, {"sha512", src.SHA512, d.sum512}} {
		if got := hex.EncodeToString(want.sum.Sum(nil)); want.digest != "" && got != want.digest {
			return permanent(codeDigestMismatch, "%s has the %s %s, the configuration says %s: correct the digest, or find out who changed the image",
				src.shownURL(), want.name, got, want.digest)
		}
	}
	return nil
}

// capacity is the size of the disk in bytes.
func (d *download) capacity(sent int64) uint64 {
	if d.kind.format == formatQCOW2 {
		return d.kind.virtualSize
	}
	return uint64(sent) //nolint:gosec // a count.
}

// withoutURL takes the URL, which may carry credentials, out of an error.
func withoutURL(err error) error {
	var withURL *url.Error
	if errors.As(err, &withURL) {
		return withURL.Err
	}
	return err
}
