package diskimage_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/ulikunitz/xz"
	"go.uber.org/goleak"

	"github.com/egressfleet/egress/internal/diskimage"
	"github.com/egressfleet/egress/internal/fakelibvirt"
	"github.com/egressfleet/egress/provider"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	blank = fakelibvirt.BlankQCOW2(3 << 30)
	// big is some buffers long.
	big = append(bytes.Clone(blank), noise(600<<10)...)
)

func noise(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{7}).Read(b)
	return b
}

// disk is a raw one with a partition table.
func disk(n int) []byte {
	b := noise(n)
	b[0], b[510], b[511] = 0, 0x55, 0xaa
	return b
}

func sum256(b []byte) string { s := sha256.Sum256(b); return hex.EncodeToString(s[:]) }
func sum512(b []byte) string { s := sha512.Sum512(b); return hex.EncodeToString(s[:]) }

// stall is long for tests of servers that are merely slow, as on a busy machine.
var stall = 10 * time.Second

func opener() diskimage.Opener {
	return diskimage.Opener{Client: http.DefaultClient, Stall: stall}
}

// impatient makes servers that send nothing fail soon.
func impatient(t *testing.T) {
	t.Helper()
	before := stall
	stall = 200 * time.Millisecond
	t.Cleanup(func() { stall = before })
}

func serve(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(func() { s.Close(); http.DefaultClient.CloseIdleConnections() })
	return s.URL
}

// content serves bytes as a file server does.
func content(b []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "", time.Unix(1700000000, 0), bytes.NewReader(b))
	}
}

// readAll reads an image to its end and verifies it.
func readAll(t *testing.T, src diskimage.Source) ([]byte, *diskimage.Image, error) {
	t.Helper()
	i, err := opener().Open(t.Context(), src)
	if err != nil {
		return nil, nil, err
	}
	defer i.Close()
	b, err := io.ReadAll(i)
	if err == nil {
		err = i.Verify()
	}
	return b, i, err
}

func gz(b []byte) []byte {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, _ = w.Write(b)
	_ = w.Close()
	return out.Bytes()
}

func xzip(b []byte) []byte {
	var out bytes.Buffer
	w, _ := xz.NewWriter(&out)
	_, _ = w.Write(b)
	_ = w.Close()
	return out.Bytes()
}

func zst(b []byte) []byte {
	w, _ := zstd.NewWriter(nil)
	defer func() { _ = w.Close() }()
	return w.EncodeAll(b, nil)
}

func TestFormsOfImages(t *testing.T) {
	raw := disk(1 << 20)
	for _, c := range []struct {
		what    string
		file    []byte
		format  string // as it is configured
		want    []byte
		is      string
		virtual uint64
		packing string
	}{
		{"qcow2", big, "", big, "qcow2", 3 << 30, ""},
		{"qcow2, said", big, "qcow2", big, "qcow2", 3 << 30, ""},
		{"raw", raw, "", raw, "raw", 0, ""},
		{"raw without a partition table, said", noise(5000), "raw", noise(5000), "raw", 0, ""},
		{"shorter than a sector, said", []byte("x"), "raw", []byte("x"), "raw", 0, ""},
		{"qcow2.gz", gz(big), "", big, "qcow2", 3 << 30, "gzip"},
		{"qcow2.xz", xzip(big), "", big, "qcow2", 3 << 30, "xz"},
		{"qcow2.zst", zst(big), "", big, "qcow2", 3 << 30, "zstd"},
		{"raw.xz", xzip(raw), "", raw, "raw", 0, "xz"},
		{"raw.gz in two members", append(gz(raw[:700]), gz(raw[700:])...), "", raw, "raw", 0, "gzip"},
	} {
		t.Run(c.what, func(t *testing.T) {
			src := diskimage.Source{URL: serve(t, content(c.file)) + "/disk.img", SHA256: sum256(c.file), SHA512: sum512(c.file), Format: c.format}
			got, i, err := readAll(t, src)
			require.NoError(t, err)
			assert.Equal(t, c.want, got)
			assert.Equal(t, c.is, i.Format)
			assert.Equal(t, c.virtual, i.VirtualSize)
			assert.Equal(t, c.packing, i.Packing)
			done, total := i.Progress()
			assert.EqualValues(t, len(c.file), done)
			assert.EqualValues(t, len(c.file), total)
			name, value := i.Digest()
			assert.Equal(t, "sha256 "+sum256(c.file), name+" "+value)
			assert.EqualValues(t, max(c.virtual, uint64(len(c.want))*uint64(boolInt(c.virtual == 0))), i.Capacity())
		})
	}
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

func TestWhatIsNoImage(t *testing.T) {
	withBacking := bytes.Clone(blank)
	withBacking[15] = 1
	external := bytes.Clone(blank)
	external[79] = 4
	encrypted := bytes.Clone(blank)
	encrypted[35] = 2
	tar := make([]byte, 2048)
	copy(tar[257:], "ustar")
	hugeXZ := xzip(big)
	hugeXZ[12+4] = 40 // the dictionary of the first block
	patched := func(at int, b byte) []byte {
		out := bytes.Clone(blank)
		out[at] = b
		return out
	}
	for what, c := range map[string]struct {
		file []byte
		says string
	}{
		"a backing file":         {withBacking, "backing file"},
		"a backing file, in xz":  {xzip(withBacking), "backing file"},
		"external data":          {external, "another file"},
		"encrypted":              {encrypted, "encrypted"},
		"version 9":              {patched(7, 9), "version 9"},
		"no size":                {patched(28, 0), "0 bytes"},
		"cut in a longer header": {blank[:80], "cut off"},
		"tar":                    {tar, "tar archive"},
		"tar.xz":                 {xzip(tar), "tar archive"},
		"zip":                    {append([]byte("PK\x03\x04"), noise(2000)...), "zip archive"},
		"bzip2":                  {append([]byte("BZh9"), noise(2000)...), "bzip2"},
		"vmdk":                   {append([]byte("KDMV"), noise(2000)...), "VMDK"},
		"html":                   {[]byte("<!DOCTYPE html><title>login</title>"), "HTML"},
		"an error in XML":        {[]byte(`<?xml version="1.0"?><Error><Code>AccessDenied</Code>`), "HTML"},
		"text":                   {[]byte(strings.Repeat("not found\n", 200)), "neither"},
		"packed twice":           {gz(xzip(big)), "packed twice"},
		"empty":                  {nil, "empty"},
		"cut in its header":      {blank[:50], "cut off"},
		"too much memory":        {hugeXZ, "memory"},
		"broken gzip":            {append(gz(big)[:500], noise(4000)...), "the gzip file is broken"},
	} {
		t.Run(what, func(t *testing.T) {
			_, _, err := readAll(t, diskimage.Source{URL: serve(t, content(c.file))})
			require.ErrorIs(t, err, provider.ErrPermanent)
			assert.True(t, provider.HasCode(err, diskimage.CodeBadImage), "%v", err)
			assert.ErrorContains(t, err, c.says)
		})
	}
}

func TestDigests(t *testing.T) {
	url := serve(t, content(big))
	for what, src := range map[string]diskimage.Source{
		"sha256": {URL: url, SHA256: sum256(blank)},
		"sha512": {URL: url, SHA512: sum512(blank)},
		"second": {URL: url, SHA256: sum256(big), SHA512: sum512(blank)},
	} {
		_, _, err := readAll(t, src)
		require.ErrorIs(t, err, provider.ErrPermanent, what)
		assert.True(t, provider.HasCode(err, diskimage.CodeDigestMismatch), what)
	}
	_, i, err := readAll(t, diskimage.Source{URL: url, SHA512: sum512(big)})
	require.NoError(t, err)
	name, _ := i.Digest()
	assert.Equal(t, "sha512", name, "no digest is computed that nobody asked for")
}

// TestDigestOfWhatFollows covers bytes after the packed stream too: the digest
// is that of the published file.
func TestDigestOfWhatFollows(t *testing.T) {
	file := append(xzip(big), make([]byte, 8)...) // stream padding
	got, _, err := readAll(t, diskimage.Source{URL: serve(t, content(file)), SHA256: sum256(file)})
	require.NoError(t, err)
	assert.Equal(t, big, got)
}

// cutter serves a file and cuts each answer after some bytes, cuts times.
func cutter(file []byte, after int, cuts int32, handler func([]byte) http.HandlerFunc, requests *atomic.Int32) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		n := requests.Add(1)
		if n > cuts {
			handler(file)(w, r)
			return
		}
		handler(file)(&limited{ResponseWriter: w, left: after}, r)
	}
}

// limited breaks the connection after some bytes.
type limited struct {
	http.ResponseWriter
	left int
}

func (l *limited) Write(p []byte) (int, error) {
	if len(p) > l.left {
		_, _ = l.ResponseWriter.Write(p[:l.left])
		l.ResponseWriter.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}
	l.left -= len(p)
	return l.ResponseWriter.Write(p)
}

// wholeOnly knows no ranges.
func wholeOnly(b []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", strconv.Itoa(len(b)))
		_, _ = w.Write(b)
	}
}

func TestCutDownloadsGoOn(t *testing.T) {
	impatient(t)
	for what, c := range map[string]struct {
		handler func([]byte) http.HandlerFunc
		file    []byte
		digest  bool
	}{
		"by range":                             {content, big, false},
		"by range, packed":                     {content, xzip(big), true},
		"by range, with a digest":              {content, big, true},
		"a server without ranges and a digest": {wholeOnly, big, true},
	} {
		t.Run(what, func(t *testing.T) {
			var requests atomic.Int32
			src := diskimage.Source{URL: serve(t, cutter(c.file, 150_000, 3, c.handler, &requests))}
			if c.digest {
				src.SHA256 = sum256(c.file)
			}
			got, _, err := readAll(t, src)
			require.NoError(t, err)
			assert.Equal(t, sum256(big), sum256(got))
			assert.EqualValues(t, 4, requests.Load())
		})
	}
}

// TestChangedWhileCut does not put the halves of two images together.
func TestChangedWhileCut(t *testing.T) {
	impatient(t)
	other := bytes.Clone(big)
	other[len(other)-1] ^= 1
	for what, second := range map[string]http.HandlerFunc{
		"another date": func(w http.ResponseWriter, r *http.Request) {
			http.ServeContent(w, r, "", time.Unix(1800000000, 0), bytes.NewReader(other))
		},
		"no ranges and no date": wholeOnly(other),
		"another length":        content(append(bytes.Clone(big), 1)),
		"shorter than was read": content(big[:100]),
	} {
		t.Run(what, func(t *testing.T) {
			var requests atomic.Int32
			_, _, err := readAll(t, diskimage.Source{URL: serve(t, func(w http.ResponseWriter, r *http.Request) {
				if requests.Add(1) == 1 {
					content(big)(&limited{ResponseWriter: w, left: 150_000}, r)
				}
				second(w, r)
			})})
			require.ErrorIs(t, err, provider.ErrTransient)
			assert.ErrorContains(t, err, "changed")
		})
	}
}

func TestServersThatFail(t *testing.T) {
	impatient(t)
	for what, c := range map[string]struct {
		handler http.HandlerFunc
		class   error
		says    string
	}{
		"404":    {http.NotFound, provider.ErrPermanent, "404"},
		"403":    {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(403) }, provider.ErrPermanent, "403"},
		"429":    {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(429) }, provider.ErrTransient, "429"},
		"503":    {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) }, provider.ErrTransient, "503"},
		"silent": {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, provider.ErrTransient, "stalled"},
		"silent in the middle": {func(w http.ResponseWriter, r *http.Request) {
			_, _ = w.Write(blank[:9000])
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}, provider.ErrTransient, "stalled"},
		"always cut": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "900000")
			_, _ = w.Write(blank)
		}, provider.ErrTransient, "cut"},
	} {
		t.Run(what, func(t *testing.T) {
			_, _, err := readAll(t, diskimage.Source{URL: serve(t, c.handler), SHA256: sum256(big)})
			require.ErrorIs(t, err, c.class)
			assert.True(t, provider.HasCode(err, diskimage.CodeDownloadFailed), "%v", err)
			assert.ErrorContains(t, err, c.says)
			assert.NotErrorIs(t, err, context.Canceled)
		})
	}
}

func TestFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk image.qcow2")
	require.NoError(t, os.WriteFile(path, big, 0o600))
	for _, url := range []string{path, "file://" + strings.ReplaceAll(path, " ", "%20"), "file://localhost" + strings.ReplaceAll(path, " ", "%20")} {
		require.NoError(t, diskimage.ValidURL(url))
		got, i, err := readAll(t, diskimage.Source{URL: url, SHA256: sum256(big)})
		require.NoError(t, err)
		assert.Equal(t, sum256(big), sum256(got))
		assert.EqualValues(t, len(big), i.Length())
		_, _, err = readAll(t, diskimage.Source{URL: url, SHA256: sum256(blank)})
		assert.True(t, provider.HasCode(err, diskimage.CodeDigestMismatch), "%v", err)
	}
	got, i, err := readAll(t, diskimage.Source{URL: path})
	require.NoError(t, err)
	assert.Equal(t, sum256(big), sum256(got))
	name, value := i.Digest()
	assert.Empty(t, name+value, "nobody wants a digest of a local file")
	for what, url := range map[string]string{"missing": path + "x", "a directory": filepath.Dir(path)} {
		_, _, err := readAll(t, diskimage.Source{URL: url})
		require.ErrorIs(t, err, provider.ErrPermanent, what)
		assert.True(t, provider.HasCode(err, diskimage.CodeDownloadFailed), what)
	}
}

func TestValidURL(t *testing.T) {
	for _, url := range []string{"https://x/y", "http://u:p@x:1/y?z", "file:///x", "/x"} {
		require.NoError(t, diskimage.ValidURL(url), url)
	}
	for _, url := range []string{"", "x", "x/y", "ftp://x/y", "http:///y", "file://host/x", "file:x", "http://%zz:hunter2@x"} {
		err := diskimage.ValidURL(url)
		require.Error(t, err, url)
		assert.NotContains(t, err.Error(), "hunter2")
	}
	assert.True(t, diskimage.IsRemote("https://x/y"))
	for _, url := range []string{"file:///x", "/x", "http:///x"} {
		assert.False(t, diskimage.IsRemote(url), url)
	}
}

func TestSecretsOfURLs(t *testing.T) {
	for _, url := range []string{
		"http://user:hunter2@127.0.0.1:1/x.qcow2?signature=hunter3",
		strings.Replace(serve(t, http.NotFound), "http://", "http://user:hunter2@", 1) + "/x.qcow2?signature=hunter3",
	} {
		_, _, err := readAll(t, diskimage.Source{URL: url})
		require.Error(t, err)
		assert.NotContains(t, err.Error(), "hunter")
		assert.ErrorContains(t, err, "/x.qcow2")
	}
}

// TestCloseEndsARead, for a caller who has lost interest.
func TestCloseEndsARead(t *testing.T) {
	i, err := opener().Open(t.Context(), diskimage.Source{URL: serve(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write(blank[:100_000])
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})})
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() {
		_, err := io.ReadAll(i)
		done <- err
	}()
	time.Sleep(10 * time.Millisecond)
	i.Close()
	require.Error(t, <-done)
}

func TestChecksums(t *testing.T) {
	a, b := strings.Repeat("a1", 32), strings.Repeat("B2", 64)
	for what, c := range map[string]struct {
		text, want string
		says       string
	}{
		"sha256sum":       {a + "  disk.img\n" + strings.Repeat("00", 32) + "  other.img\n", a, ""},
		"binary mode":     {a + " *disk.img\n", a, ""},
		"a path":          {a + "  ./images/disk.img\n", a, ""},
		"sha512":          {b + "  disk.img\n", strings.ToLower(b), ""},
		"both":            {a + "  disk.img\n" + b + "  disk.img\n", strings.ToLower(b), ""},
		"both, reversed":  {b + "  disk.img\n" + a + "  disk.img\n", strings.ToLower(b), ""},
		"BSD":             {"SHA256 (disk.img) = " + a + "\n", a, ""},
		"signed":          {"-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA256\n\n# disk.img: 5 bytes\nSHA256 (disk.img) = " + a + "\n-----BEGIN PGP SIGNATURE-----\niQ==\n", a, ""},
		"DOS lines":       {a + "  disk.img\r\n", a, ""},
		"twice the same":  {a + "  disk.img\n" + a + "  disk.img\n", a, ""},
		"contradictory":   {a + "  disk.img\n" + strings.Repeat("00", 32) + "  disk.img\n", "", "two checksums"},
		"not there":       {a + "  disk.img.xz\n", "", "no sha256 or sha512 checksum for disk.img"},
		"md5":             {strings.Repeat("00", 16) + "  disk.img\n", "", "no sha256"},
		"not hexadecimal": {strings.Repeat("zz", 32) + "  disk.img\n", "", "no sha256"},
		"HTML":            {"<html>" + a + "  disk.img\n", "", "HTML"},
		"endless":         {strings.Repeat("#", 5<<20), "", "no checksums file"},
	} {
		t.Run(what, func(t *testing.T) {
			url := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, c.text) })
			src, err := opener().Resolve(t.Context(), diskimage.Source{URL: "https://example.com/x/disk.img?token=1"}, url+"/SHA256SUMS")
			if c.says != "" {
				require.ErrorIs(t, err, provider.ErrPermanent)
				assert.ErrorContains(t, err, c.says)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, c.want, src.SHA256+src.SHA512)
		})
	}
}

// FuzzOpen reads anything as an image.
func FuzzOpen(f *testing.F) {
	for _, b := range [][]byte{blank[:4096], gz(blank[:4096]), xzip(blank[:4096]), zst(blank[:4096]), disk(1024)} {
		f.Add(b)
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, b []byte) {
		path := filepath.Join(dir, "x")
		require.NoError(t, os.WriteFile(path, b, 0o600))
		i, err := opener().Open(t.Context(), diskimage.Source{URL: path})
		if err != nil {
			return
		}
		defer i.Close()
		n, err := io.Copy(io.Discard, io.LimitReader(i, 1<<20))
		if err == nil && n < 1<<20 {
			assert.NoError(t, i.Verify())
		}
	})
}

// FuzzChecksums reads anything as a checksums file.
func FuzzChecksums(f *testing.F) {
	f.Add("SHA256 (disk.img) = " + strings.Repeat("a1", 32))
	f.Add(strings.Repeat("a1", 32) + "  disk.img")
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, text string) {
		path := filepath.Join(dir, "x")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		src, err := opener().Resolve(t.Context(), diskimage.Source{URL: "/disk.img"}, path)
		if err == nil {
			assert.Contains(t, []int{64, 128}, len(src.SHA256+src.SHA512))
		}
	})
}
