package diskimage_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"runtime/metrics"
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

func xzipped(b []byte, cfg xz.WriterConfig) []byte {
	var out bytes.Buffer
	w, _ := cfg.NewWriter(&out)
	_, _ = w.Write(b)
	_ = w.Close()
	return out.Bytes()
}

// withDictionary gives a block another size of its dictionary. All have the same header,
// which has no sizes.
func withDictionary(file []byte, block int, bits byte) []byte {
	out := bytes.Clone(file)
	header := bytes.Clone(out[12:24])
	at := 0
	for range block + 1 {
		at++
		at += bytes.Index(out[at:], header)
	}
	out[at+4] = bits
	binary.LittleEndian.PutUint32(out[at+8:], crc32.ChecksumIEEE(out[at:at+8]))
	return out
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
	blocks := xzipped(big, xz.WriterConfig{BlockSize: 200 << 10})
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
		"too much memory":        {withDictionary(blocks, 0, 40), "it needs 4095 MiB of memory"},
		"too much memory, later": {withDictionary(blocks, 1, 31), "it needs 192 MiB of memory"},
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

func TestKindsOfXZ(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	read := func(file []byte) ([]byte, error) {
		require.NoError(t, os.WriteFile(path, file, 0o600))
		got, _, err := readAll(t, diskimage.Source{URL: path, Format: diskimage.FormatRaw})
		return got, err
	}
	raw := disk(300_000)
	none := xzipped(raw, xz.WriterConfig{NoCheckSum: true})
	several := append(append(xzip(raw), make([]byte, 8)...), xzipped(raw, xz.WriterConfig{BlockSize: 100_000, DictCap: 1 << 16})...)
	for what, c := range map[string]struct{ file, want []byte }{
		"no check":           {none, raw},
		"CRC32":              {xzipped(raw, xz.WriterConfig{CheckSum: xz.CRC32}), raw},
		"CRC64":              {xzipped(raw, xz.WriterConfig{CheckSum: xz.CRC64}), raw},
		"SHA-256":            {xzipped(raw, xz.WriterConfig{CheckSum: xz.SHA256}), raw},
		"many blocks":        {xzipped(raw, xz.WriterConfig{BlockSize: 100_000, DictCap: 1 << 16}), raw},
		"several streams":    {several, append(bytes.Clone(raw), raw...)},
		"padding at the end": {append(xzip(raw), make([]byte, 12)...), raw},
		"nothing, and more":  {append(xzip(nil), xzip(raw)...), raw},
	} {
		got, err := read(c.file)
		require.NoError(t, err, what)
		require.Equal(t, sum256(c.want), sum256(got), what)
	}
	for what, file := range map[string][]byte{
		"rubbish behind": append(xzip(raw), "rubbish!"...), "odd padding": append(xzip(raw), 0, 0, 0), "no end": xzip(raw)[:len(xzip(raw))-1],
	} {
		_, err := read(file)
		require.ErrorContains(t, err, "the xz file is broken", what)
	}
	filtered := xzip(raw)
	filtered[13] = 1 // one more
	binary.LittleEndian.PutUint32(filtered[20:], crc32.ChecksumIEEE(filtered[12:20]))
	_, err := read(filtered)
	require.ErrorContains(t, err, "a filter that is not LZMA2")
	// Whichever bit is wrong is found, but in what has no check.
	small := xzipped(disk(600), xz.WriterConfig{CheckSum: xz.CRC32, DictCap: 1 << 16})
	for at := range small {
		broken := bytes.Clone(small)
		broken[at] ^= 1 << (at % 8)
		got, err := read(broken)
		require.True(t, err != nil || bytes.Equal(got, broken), "byte %d", at) // by its magic it is raw
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
		"another kind":    {"BLAKE2b (disk.img) = " + b + "\nSHA256 (disk.img) = " + a + "\n", a, ""},
		"kind and length": {"SHA256 (disk.img) = " + b + "\n", "", "no sha256"},
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

// endless is a body that counts what is taken from it. It ends beyond its bound, so
// that a reader without a limit ends too.
type endless struct{ taken, bound int }

func (e *endless) Read(p []byte) (int, error) {
	if e.taken > e.bound {
		return 0, io.EOF
	}
	for i := range p {
		p[i] = '#'
	}
	e.taken += len(p)
	return len(p), nil
}

func (e *endless) Close() error { return nil }

// RoundTrip answers every request with the body.
func (e *endless) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: e, ContentLength: -1, Request: r}, nil
}

// What is taken from it counts, and not what is kept.
func TestAnEndlessChecksumsFileIsReadUpToALimit(t *testing.T) {
	body := &endless{bound: 5 << 20}
	o := diskimage.Opener{Client: &http.Client{Transport: body}, Stall: stall}
	_, err := o.Resolve(t.Context(), diskimage.Source{URL: "/disk.img"}, "http://images.test/SHA256SUMS")
	require.ErrorIs(t, err, provider.ErrPermanent)
	require.ErrorContains(t, err, "no checksums file: it has more than 4194304 bytes")
	assert.LessOrEqual(t, body.taken, body.bound)
}

// A name with a parenthesis is not the form of BSD.
func TestChecksumOfANameWithAParenthesis(t *testing.T) {
	url := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintf(w, "%s  disk (1).img\nSHA256 (other (1).img) = %s\n", sum256([]byte("a")), sum256([]byte("b")))
	})
	for name, want := range map[string]string{"disk (1).img": "a", "other (1).img": "b"} {
		src, err := opener().Resolve(t.Context(), diskimage.Source{URL: "/" + name}, url+"/SHA256SUMS")
		require.NoError(t, err)
		assert.Equal(t, sum256([]byte(want)), src.SHA256)
	}
}

// FuzzOpen reads anything as an image, of a format that is known or not. What is taken
// names no other file, in whichever way QEMU would look at it, and is given as it is.
func FuzzOpen(f *testing.F) {
	for _, b := range [][]byte{blank[:4096], gz(blank[:4096]), xzip(blank[:4096]), zst(blank[:4096]), disk(1024)} {
		f.Add(b)
	}
	path := filepath.Join(f.TempDir(), "x")
	f.Fuzz(func(t *testing.T, b []byte) {
		require.NoError(t, os.WriteFile(path, b, 0o600))
		before := allocated()
		for _, format := range []string{"", diskimage.FormatQCOW2, diskimage.FormatRaw} {
			checkOpen(t, b, diskimage.Source{URL: path, Format: format})
		}
		// For xz and zstd, each: their windows, and what is read.
		require.LessOrEqual(t, allocated()-before, uint64(3*(2*128+16))<<20)
	})
}

// allocated is how many bytes were so far.
func allocated() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

// read is how much of an image is, at most.
const read = 1 << 20

func checkOpen(t *testing.T, b []byte, src diskimage.Source) {
	t.Helper()
	src.SHA256 = sum256(b)
	i, err := opener().Open(t.Context(), src)
	if err != nil {
		require.ErrorIs(t, err, provider.ErrPermanent)
		return
	}
	defer i.Close()
	if src.Format != "" {
		require.Equal(t, src.Format, i.Format)
	}
	content, err := io.ReadAll(io.LimitReader(i, read))
	checkContent(t, i, content, src.Format == diskimage.FormatRaw)
	if err != nil {
		require.NotEmpty(t, i.Packing, "a file can be read")
		return
	}
	require.EqualValues(t, len(content), i.Bytes())
	checkPacking(t, i.Packing, b, content)
	if len(content) < read {
		require.NoError(t, i.Verify())
	}
}

// checkContent reads the header by itself. All that tells QEMU the format of a file is
// how it begins.
func checkContent(t *testing.T, i *diskimage.Image, content []byte, trusted bool) {
	t.Helper()
	if !bytes.HasPrefix(content, []byte("QFI\xfb")) {
		require.Equal(t, diskimage.FormatRaw, i.Format)
		require.Zero(t, i.VirtualSize)
		for _, foreign := range []string{"KDMV", "vhdxfile", "PK\x03\x04", "BZh", "\x1f\x8b", "\xfd7zXZ\x00", "\x28\xb5\x2f\xfd"} {
			require.False(t, bytes.HasPrefix(content, []byte(foreign)), "%q", foreign)
		}
		isDisk := len(content) >= 512 && string(content[510:512]) == "\x55\xaa" || len(content) >= 520 && string(content[512:520]) == "EFI PART"
		require.True(t, trusted || isDisk)
		return
	}
	require.Equal(t, diskimage.FormatQCOW2, i.Format)
	var header struct {
		Magic, Version              uint32
		BackingFile                 uint64
		BackingFileSize, _          uint32
		Size                        uint64
		Crypt, _                    uint32
		L1Table, Refcounts          uint64
		_, Snapshots                uint32
		SnapshotsAt                 uint64
		Incompatible, _, _          uint64
		RefcountOrder, HeaderLength uint32
	}
	n := 72
	if len(content) >= 104 {
		n = 104
	}
	padded := append(bytes.Clone(content[:n]), make([]byte, 104-n)...)
	require.NoError(t, binary.Read(bytes.NewReader(padded), binary.BigEndian, &header))
	require.Contains(t, []uint32{2, 3}, header.Version)
	require.Zero(t, header.BackingFile, "it names a file")
	require.Zero(t, header.Crypt)
	if header.Version == 3 {
		require.Equal(t, 104, n, "cut off")
		require.Zero(t, header.Incompatible&4, "its data are in a file that it names")
	}
	require.Equal(t, header.Size, i.VirtualSize)
	require.Positive(t, header.Size)
	require.LessOrEqual(t, header.Size, uint64(1)<<56)
	require.Equal(t, header.Size, i.Capacity())
}

// checkPacking unpacks what it can by itself.
func checkPacking(t *testing.T, packing string, file, content []byte) {
	t.Helper()
	switch packing {
	case "":
		require.Equal(t, sum256(file[:min(len(file), read)]), sum256(content))
	case "gzip":
		r, err := gzip.NewReader(bytes.NewReader(file))
		require.NoError(t, err)
		want, err := io.ReadAll(io.LimitReader(r, read))
		require.NoError(t, err)
		require.Equal(t, sum256(want), sum256(content))
	case "xz": // what was read had windows that are not too large
		r, err := xz.NewReader(bytes.NewReader(file))
		require.NoError(t, err)
		want, err := io.ReadAll(io.LimitReader(r, read))
		require.NoError(t, err)
		require.Equal(t, sum256(want), sum256(content))
	case "zstd":
		require.True(t, bytes.HasPrefix(file, []byte("\x28\xb5\x2f\xfd")))
	default:
		require.Fail(t, packing)
	}
}

// The forms of lines, and the lines with a name as the end of a path.
var (
	line    = regexp.MustCompile(`(?i)^(?:(SHA2?-?(?:256|512)) \((?:.*/)?disk\.img\) = ([0-9a-f]+)|([0-9a-f]+) [ *]*(?:.*/)?disk\.img/?)$`)
	lengths = map[string]int{"256": 64, "512": 128}
)

// FuzzChecksums reads anything as a checksums file. A digest that is found stands on a
// line with the name, in the form that such lines have, and is the only one of its kind.
func FuzzChecksums(f *testing.F) {
	f.Add("SHA256 (disk.img) = " + strings.Repeat("a1", 32))
	f.Add(strings.Repeat("a1", 32) + "  disk.img")
	path := filepath.Join(f.TempDir(), "x")
	f.Fuzz(func(t *testing.T, text string) {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		src, err := opener().Resolve(t.Context(), diskimage.Source{URL: "/disk.img"}, path)
		if err != nil {
			require.ErrorIs(t, err, provider.ErrPermanent)
			require.Empty(t, src.SHA256+src.SHA512)
			return
		}
		found := map[string]bool{}
		for l := range strings.SplitSeq(text, "\n") {
			m := line.FindStringSubmatch(strings.TrimSpace(l))
			if m == nil {
				continue
			}
			digest := strings.ToLower(m[2] + m[3])
			if m[1] != "" && len(digest) != lengths[m[1][len(m[1])-3:]] {
				continue // of another length than its kind has
			}
			if len(digest) == len(src.SHA256+src.SHA512) {
				found[digest] = true
			}
		}
		require.Equal(t, map[string]bool{src.SHA256 + src.SHA512: true}, found)
		require.Contains(t, []int{0, 64}, len(src.SHA256))
		require.Contains(t, []int{0, 128}, len(src.SHA512))
	})
}
