package diskimage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"strconv"
	"strings"

	"github.com/egressfleet/egress/provider"
)

// opened is a source at some offset.
type opened struct {
	io.ReadCloser
	// length is that of the whole file, -1 where it is not known.
	length int64
	// validator is a strong one of HTTP, which names this version of the file;
	// empty where there is none.
	validator string
	html      bool
}

// openAt opens the source at an offset. Of a file that was opened before, the
// earlier opening says what it must still be.
func (o Opener) openAt(ctx context.Context, src Source, offset int64, before *opened) (*opened, error) {
	if path, ok := filePath(src.URL); ok {
		return openFile(path, offset)
	}
	return o.get(ctx, src, offset, before)
}

func openFile(path string, offset int64) (*opened, error) {
	f, err := os.Open(path) //nolint:gosec // the administrator's choice.
	if err != nil {
		class := provider.Transientf
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
			class = provider.Permanentf
		}
		return nil, class(CodeDownloadFailed, "%w", err)
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", path)
	}
	if err == nil {
		_, err = f.Seek(offset, io.SeekStart)
	}
	if err != nil {
		_ = f.Close()
		return nil, provider.Permanentf(CodeDownloadFailed, "%w", err)
	}
	return &opened{ReadCloser: f, length: info.Size()}, nil
}

func (o Opener) get(ctx context.Context, src Source, offset int64, before *opened) (*opened, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, src.URL, nil)
	if err != nil {
		return nil, provider.Permanentf(CodeDownloadFailed, "%s: %w", Shown(src.URL), withoutURL(err))
	}
	// What arrives must be what the digest is of.
	req.Header.Set("Accept-Encoding", "identity")
	if offset > 0 {
		req.Header.Set("Range", "bytes="+strconv.FormatInt(offset, 10)+"-")
		if before.validator != "" && !src.hasDigest() {
			req.Header.Set("If-Range", before.validator)
		}
	}
	resp, err := o.Client.Do(req)
	if err != nil {
		return nil, provider.Transientf(CodeDownloadFailed, "%s: %w", Shown(src.URL), withoutURL(err))
	}
	out, err := answered(resp, src, offset, before)
	if err != nil {
		_ = resp.Body.Close()
		return nil, err
	}
	return out, nil
}

// answered reads the head of an answer.
func answered(resp *http.Response, src Source, offset int64, before *opened) (*opened, error) {
	out := &opened{
		ReadCloser: resp.Body, length: resp.ContentLength, validator: validator(resp.Header),
		html: looksLikeHTMLType(resp.Header.Get("Content-Type")),
	}
	switch code := resp.StatusCode; {
	case code == http.StatusOK && offset == 0:
		return out, nil
	case code == http.StatusOK:
		return out, skip(out, src, offset, before)
	case code == http.StatusPartialContent && offset > 0:
		return out, resumed(out, resp.Header.Get("Content-Range"), src, offset, before)
	case code == http.StatusRequestTimeout, code == http.StatusTooManyRequests, code >= http.StatusInternalServerError:
		return nil, provider.Transientf(CodeDownloadFailed, "%s: the server answered %s", Shown(src.URL), resp.Status)
	case code == http.StatusRequestedRangeNotSatisfiable:
		return nil, changed(src)
	}
	return nil, provider.Permanentf(CodeDownloadFailed, "%s: the server answered %s: correct the image's url", Shown(src.URL), resp.Status)
}

// validator returns a strong ETag, or a date, which is precise enough for files
// that are published once.
func validator(h http.Header) string {
	if etag := h.Get("ETag"); etag != "" && !strings.HasPrefix(etag, "W/") {
		return etag
	}
	return h.Get("Last-Modified")
}

// skip reads over what was read before, from a server that gives the whole file
// again.
func skip(out *opened, src Source, offset int64, before *opened) error {
	if !src.hasDigest() && (before.validator == "" || before.validator != out.validator) {
		return changed(src)
	}
	if _, err := io.CopyN(io.Discard, out, offset); err != nil {
		return provider.Transientf(CodeDownloadFailed, "%s: the download was cut: %w", Shown(src.URL), withoutURL(err))
	}
	return nil
}

// resumed checks that a part is the one that was asked for.
func resumed(out *opened, contentRange string, src Source, offset int64, before *opened) error {
	var first, last int64
	var total string
	if n, err := fmt.Sscanf(contentRange, "bytes %d-%d/%s", &first, &last, &total); n != 3 || err != nil || first != offset {
		return provider.Transientf(CodeDownloadFailed, "%s: the server answered with the part %q, wanted one from %d", Shown(src.URL), contentRange, offset)
	}
	out.length = before.length
	if n, err := strconv.ParseInt(total, 10, 64); err == nil && before.length >= 0 && n != before.length {
		return changed(src)
	}
	return nil
}

func changed(src Source) error {
	return provider.Transientf(CodeDownloadFailed, "%s: the download was cut and cannot be resumed: the image changed, or the server keeps no version of it", Shown(src.URL))
}
