package diskimage

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"hash/crc64"
	"io"
	"math"
	"slices"

	"github.com/ulikunitz/xz/lzma"
)

// xzReader unpacks xz, by version 1.2 of the format's specification. The library's own
// reader makes as much memory as the header of any block asks for, up to 4 GiB. Of the
// filters there is LZMA2 alone, as in the library: the others are for programs.
type xzReader struct {
	r      *bufio.Reader
	check  byte        // the kind of the stream's checks
	began  bool        // a stream has
	block  *xzBlock    // nil between blocks
	blocks uint64      // of the stream so far
	sizes  hash.Hash32 // of theirs
}

// xzBlock is a block on its way.
type xzBlock struct {
	content io.Reader
	packed  *counter
	header  int // its size
	// wantPacked and want are the sizes that the header tells, or -1.
	wantPacked, want int64
	size             int64 // unpacked, so far
	check            hash.Hash
}

type counter struct {
	r io.Reader
	n int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

func openXZ(r *bufio.Reader) (io.Reader, error) {
	x := &xzReader{r: r}
	return x, x.begin()
}

// Read unpacks what comes next.
func (x *xzReader) Read(p []byte) (int, error) {
	for len(p) > 0 {
		if x.block == nil {
			if err := x.next(); err != nil {
				return 0, err
			}
		}
		n, err := x.block.content.Read(p)
		x.block.add(p[:n])
		if errors.Is(err, io.EOF) {
			err = x.end()
		}
		if n > 0 || err != nil {
			return n, err
		}
	}
	return 0, nil
}

// take reads the next bytes, which must be there.
func (x *xzReader) take(n int) ([]byte, error) {
	b := make([]byte, n)
	_, err := io.ReadFull(x.r, b)
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return b, err
}

var xzMagic = []byte("\xfd7zXZ\x00")

// begin reads the header of a stream.
func (x *xzReader) begin() error {
	h, err := x.take(12)
	switch {
	case err != nil:
		return err
	case !bytes.HasPrefix(h, xzMagic) || h[6] != 0 || binary.LittleEndian.Uint32(h[8:]) != crc32.ChecksumIEEE(h[6:8]):
		return errors.New("its header")
	}
	x.check, x.began, x.blocks, x.sizes = h[7], true, 0, crc32.NewIEEE()
	_, err = newXZCheck(x.check)
	return err
}

// xzSHA256 is the kind of checks that are no numbers in little-endian.
const xzSHA256 = 10

// newXZCheck returns what computes a check, nil for none.
func newXZCheck(kind byte) (hash.Hash, error) {
	switch kind {
	case 0:
		return nil, nil
	case 1:
		return crc32.NewIEEE(), nil
	case 4:
		return crc64.New(crc64.MakeTable(crc64.ECMA)), nil
	case xzSHA256:
		return sha256.New(), nil
	}
	return nil, fmt.Errorf("checksums of the kind %d are not known", kind)
}

// next begins the next block, of this stream or of another one. It returns io.EOF at the
// end of all.
func (x *xzReader) next() error {
	for {
		if !x.began {
			if err := x.pass(); err != nil {
				return err
			}
			if err := x.begin(); err != nil {
				return err
			}
		}
		size, err := x.take(1)
		if err != nil {
			return err
		}
		if size[0] != 0 {
			return x.beginBlock(size[0])
		}
		if err := x.readIndex(); err != nil {
			return err
		}
		x.began = false
	}
}

// pass goes over what is between streams: zeros, by fours.
func (x *xzReader) pass() error {
	for {
		b, err := x.r.Peek(4)
		if len(b) == 0 || len(b) == 4 && binary.BigEndian.Uint32(b) != 0 {
			return err
		}
		if _, err := x.take(4); err != nil {
			return err
		}
	}
}

// beginBlock reads the header of a block behind its first byte.
func (x *xzReader) beginBlock(size byte) error {
	n := 4 * (int(size) + 1)
	rest, err := x.take(n - 1)
	if err != nil {
		return err
	}
	h, sum := append([]byte{size}, rest[:n-5]...), rest[n-5:]
	if binary.LittleEndian.Uint32(sum) != crc32.ChecksumIEEE(h) {
		return errors.New("the header of a block")
	}
	b := &xzBlock{header: n, packed: &counter{r: x.r}}
	dictionary, err := b.read(h[1], bytes.NewReader(h[2:]))
	if err != nil {
		return err
	}
	if dictionary > maxWindow {
		return fmt.Errorf("it needs %d MiB of memory to be unpacked, at most %d are given", dictionary>>20, maxWindow>>20)
	}
	if b.check, err = newXZCheck(x.check); err != nil {
		return err
	}
	if b.content, err = (lzma.Reader2Config{DictCap: int(dictionary)}).NewReader2(b.packed); err != nil {
		return err
	}
	x.block = b
	return nil
}

// read reads the fields of a block's header, and returns the size of its dictionary.
func (b *xzBlock) read(flags byte, r *bytes.Reader) (dictionary int64, err error) {
	const hasPacked, hasUnpacked, others = 0x40, 0x80, 0x3f
	if flags&others != 0 {
		return 0, errXZFilter
	}
	if b.wantPacked, err = xzSize(r, flags&hasPacked != 0); err == nil {
		b.want, err = xzSize(r, flags&hasUnpacked != 0)
	}
	var filter [3]byte
	if err == nil {
		_, err = io.ReadFull(r, filter[:])
	}
	const lzma2, largest = 0x21, 40
	bits := filter[2]
	switch padding, _ := io.ReadAll(r); {
	case err != nil || bytes.ContainsFunc(padding, isSet):
		return 0, errors.New("the header of a block")
	case filter[0] != lzma2 || filter[1] != 1 || bits > largest:
		return 0, errXZFilter
	case bits == largest:
		return 1<<32 - 1, nil
	}
	return int64(2|bits&1) << (bits/2 + 11), nil
}

var errXZFilter = errors.New("a filter that is not LZMA2")

func isSet(r rune) bool { return r != 0 }

// xzSize reads a size, which is -1 where it is not told.
func xzSize(r io.ByteReader, told bool) (int64, error) {
	if !told {
		return -1, nil
	}
	n, err := binary.ReadUvarint(r)
	if err == nil && n > math.MaxInt64 {
		err = errors.New("a size")
	}
	return int64(n), err //nolint:gosec // just checked.
}

func (b *xzBlock) add(p []byte) {
	b.size += int64(len(p))
	if b.check != nil {
		_, _ = b.check.Write(p)
	}
}

// end checks a block that was read to its end.
func (x *xzReader) end() error {
	b := x.block
	x.block = nil
	var sum []byte
	if b.check != nil {
		sum = b.check.Sum(nil)
	}
	if x.check != xzSHA256 {
		slices.Reverse(sum)
	}
	padding := int(-b.packed.n & 3)
	tail, err := x.take(padding + len(sum))
	switch {
	case err != nil:
		return err
	case bytes.ContainsFunc(tail[:padding], isSet) || !bytes.Equal(tail[padding:], sum):
		return errors.New("the checksum of a block")
	case b.wantPacked >= 0 && b.wantPacked != b.packed.n || b.want >= 0 && b.want != b.size:
		return errors.New("the size of a block")
	}
	x.blocks++
	addSizes(x.sizes, uint64(int64(b.header)+b.packed.n+int64(len(sum))), uint64(b.size)) //nolint:gosec // counts.
	return nil
}

func addSizes(to hash.Hash32, sizes ...uint64) {
	for _, size := range sizes {
		_, _ = to.Write(binary.BigEndian.AppendUint64(nil, size))
	}
}

// indexReader reads an index, counts its bytes and sums them up.
type indexReader struct {
	r   *bufio.Reader
	n   int64
	sum hash.Hash32
}

func (i *indexReader) ReadByte() (byte, error) {
	b, err := i.r.ReadByte()
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	i.add(b)
	return b, err
}

func (i *indexReader) add(b byte) {
	i.n++
	_, _ = i.sum.Write([]byte{b})
}

// readIndex reads the end of a stream behind the first byte of its index, and compares
// it with what there was.
func (x *xzReader) readIndex() error {
	index := &indexReader{r: x.r, sum: crc32.NewIEEE()}
	index.add(0)
	count, err := binary.ReadUvarint(index)
	if err == nil && count != x.blocks {
		err = errors.New("the number of blocks")
	}
	sizes := crc32.NewIEEE()
	for n := uint64(0); err == nil && n < 2*count; n++ {
		var size uint64
		size, err = binary.ReadUvarint(index)
		addSizes(sizes, size)
	}
	for err == nil && index.n%4 != 0 {
		_, err = index.ReadByte()
	}
	if err != nil {
		return err
	}
	tail, err := x.take(4 + 12)
	if err != nil {
		return err
	}
	footer, word := tail[4:], binary.LittleEndian.Uint32
	if word(tail) != index.sum.Sum32() || sizes.Sum32() != x.sizes.Sum32() {
		return errors.New("its index")
	}
	if word(footer) != crc32.ChecksumIEEE(footer[4:10]) || 4*(int64(word(footer[4:]))+1) != index.n+4 || !bytes.Equal(footer[8:], []byte{0, x.check, 'Y', 'Z'}) {
		return errors.New("its end")
	}
	return nil
}
