package diskimage

import (
	"bufio"
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"hash"
	"io"

	"github.com/egressfleet/egress/provider"
)

// readAhead is the buffer on what a source gives. Larger reads pass it by.
const readAhead = 64 << 10

// Image is a disk image on its way, unpacked. It is read by one goroutine;
// Close and Progress may be called by any.
type Image struct {
	// Format is what it is.
	Format string
	// VirtualSize is the size of its disk in bytes, 0 for a raw one, whose size
	// is that of the file.
	VirtualSize uint64
	// Packing is how it was packed, empty if it was not.
	Packing string

	src  Source
	body *body
	// file is the published file, counted and hashed; content is what is in it.
	file    *bufio.Reader
	content io.Reader
	sums    []sum
	read    int64
}

// sum is a digest on its way.
type sum struct {
	name, want string
	hash       hash.Hash
}

// Open opens a source and looks at its beginning. The caller must Close the
// image.
func (o Opener) Open(ctx context.Context, src Source) (*Image, error) {
	b, err := newBody(ctx, o, src)
	if err != nil {
		return nil, err
	}
	i := &Image{src: src, body: b, sums: sumsFor(src)}
	if err := i.look(); err != nil {
		i.Close()
		return nil, err
	}
	return i, nil
}

// sumsFor are the digests to compute: those that are wanted, or else one to tell of
// what came over a network.
func sumsFor(src Source) (sums []sum) {
	_, local := filePath(src.URL)
	if src.SHA256 != "" || src.SHA512 == "" && !local {
		sums = append(sums, sum{"sha256", src.SHA256, sha256.New()})
	}
	if src.SHA512 != "" {
		sums = append(sums, sum{"sha512", src.SHA512, sha512.New()})
	}
	return sums
}

// look finds out what the file is, and leaves its beginning in the stream.
func (i *Image) look() error {
	writers := make([]io.Writer, 0, len(i.sums))
	for _, s := range i.sums {
		writers = append(writers, s.hash)
	}
	i.file = bufio.NewReaderSize(io.TeeReader(i.body, io.MultiWriter(writers...)), readAhead)
	i.content = i.file
	head, err := peek(i.file)
	if err != nil {
		return err
	}
	switch {
	case i.body.first.html:
		return i.bad(errHTML)
	case len(head) == 0:
		return provider.Permanentf(CodeBadImage, "%s is empty", Shown(i.src.URL))
	}
	if p, ok := packingOf(head); ok {
		if head, err = i.unpack(p); err != nil {
			return err
		}
	}
	kind, err := sniff(head, i.src.Format != "")
	if err != nil {
		return i.bad(err)
	}
	if i.src.Format != "" && kind.format != i.src.Format {
		return provider.Permanentf(CodeBadImage, "%s is a %s image and not %s: correct the image's format, or leave it out", Shown(i.src.URL), kind.format, i.src.Format)
	}
	i.Format, i.VirtualSize = kind.format, kind.virtualSize
	return nil
}

func (i *Image) bad(err error) error {
	return provider.Permanentf(CodeBadImage, "%s: %w", Shown(i.src.URL), err)
}

// peek returns the beginning of a stream, which may be short.
func peek(r *bufio.Reader) ([]byte, error) {
	head, err := r.Peek(sniffLength)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return head, err
}

// unpack replaces the content by what is packed in it, and returns its
// beginning.
func (i *Image) unpack(p packing) ([]byte, error) {
	i.Packing = p.name
	unpacked, err := p.unpack(i.file)
	if err != nil {
		return nil, i.unpacking(err)
	}
	buffered := bufio.NewReaderSize(unpacked, readAhead)
	i.content = buffered
	head, err := peek(buffered)
	if err != nil {
		return nil, i.unpacking(err)
	}
	if _, twice := packingOf(head); twice {
		return nil, i.bad(errors.New("the image is packed twice: give the URL of one that is packed once"))
	}
	return head, nil
}

// unpacking is the error of a packed stream, which may be that of its source.
func (i *Image) unpacking(err error) error {
	if failed := i.body.failed(); failed != nil {
		return failed
	}
	return provider.Permanentf(CodeBadImage, "%s: the %s file is broken: %w", Shown(i.src.URL), i.Packing, err)
}

// Read returns the unpacked image.
func (i *Image) Read(p []byte) (int, error) {
	n, err := i.content.Read(p)
	i.read += int64(n)
	if err != nil && !errors.Is(err, io.EOF) && i.Packing != "" {
		err = i.unpacking(err)
	}
	return n, err
}

// Progress tells how much of the published file was read, and its length, -1
// where that is not known.
func (i *Image) Progress() (done, total int64) { return i.body.offset.Load(), i.body.length() }

// Digest returns the name and the value of the first digest of what was read. There
// is none of a local file unless one is wanted.
func (i *Image) Digest() (name, value string) {
	if len(i.sums) == 0 {
		return "", ""
	}
	return i.sums[0].name, hex.EncodeToString(i.sums[0].hash.Sum(nil))
}

// Capacity is the size of the disk in bytes, once the image was read.
func (i *Image) Capacity() uint64 {
	if i.Format == FormatQCOW2 {
		return i.VirtualSize
	}
	return uint64(i.read) //nolint:gosec // a count.
}

// Bytes is how much was read of the unpacked image.
func (i *Image) Bytes() int64 { return i.read }

// Length is how many bytes the unpacked image has, -1 where that is not known
// before its end.
func (i *Image) Length() int64 {
	if i.Packing != "" {
		return -1
	}
	return i.body.length()
}

// Verify reads what is left of the published file and compares its digests
// with what was promised. It is called when Read said io.EOF.
func (i *Image) Verify() error {
	if _, err := io.Copy(io.Discard, i.file); err != nil {
		return err
	}
	for _, s := range i.sums {
		if got := hex.EncodeToString(s.hash.Sum(nil)); s.want != "" && got != s.want {
			return provider.Permanentf(CodeDigestMismatch, "%s has the %s %s, wanted %s: correct the digest, or find out who changed the image",
				Shown(i.src.URL), s.name, got, s.want)
		}
	}
	return nil
}

// Close ends the stream, and a Read that runs.
func (i *Image) Close() { i.body.Close() }
