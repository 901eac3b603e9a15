package diskimage

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
)

// maxWindow is the most memory in bytes that unpacking may ask for: xz -9 and
// zstd --ultra -22 need 64 and 128 MiB.
const maxWindow = 128 << 20

// packing is one way of compressing files.
type packing struct {
	name   string
	magic  []byte
	unpack func(*bufio.Reader) (io.Reader, error)
}

var packings = []packing{
	{"gzip", []byte("\x1f\x8b"), func(r *bufio.Reader) (io.Reader, error) { return gzip.NewReader(r) }},
	{"xz", []byte("\xfd7zXZ\x00"), openXZ},
	{"zstd", []byte("\x28\xb5\x2f\xfd"), openZstd},
}

// packingOf tells how a file is packed, if it is.
func packingOf(head []byte) (packing, bool) {
	for _, p := range packings {
		if bytes.HasPrefix(head, p.magic) {
			return p, true
		}
	}
	return packing{}, false
}

func openZstd(r *bufio.Reader) (io.Reader, error) {
	// One goroutine is as fast as the network, and leaves none behind.
	return zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxWindow))
}

// openXZ refuses a dictionary that no usual file has before memory is made for
// it: the library believes the header of the first block.
func openXZ(r *bufio.Reader) (io.Reader, error) {
	head, err := r.Peek(xzHead)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if size := xzDictionary(head); size > maxWindow {
		return nil, fmt.Errorf("it needs %d MiB of memory to be unpacked, at most %d are given", size>>20, maxWindow>>20)
	}
	return xz.NewReader(r)
}

// The parts of an xz file up to the filter of its first block, as the format's
// specification 1.2 has them.
const (
	xzStreamHeader = 12
	xzHead         = xzStreamHeader + 64
	xzFilterLZMA2  = 0x21
)

// xzDictionary reads the size of the dictionary in bytes, 0 where the header is
// an unusual one, which the library judges.
func xzDictionary(head []byte) uint64 {
	if len(head) < xzHead {
		return 0
	}
	block := head[xzStreamHeader:]
	flags, at := block[1], 2
	for range int(flags>>6&1) + int(flags>>7&1) { // the two optional sizes
		for at < len(block) && block[at]&0x80 != 0 {
			at++
		}
		at++
	}
	if flags&0x03 != 0 || at+2 >= len(block) || block[at] != xzFilterLZMA2 || block[at+1] != 1 {
		return 0
	}
	bits := uint64(block[at+2] & 0x3f)
	return (2 | bits&1) << (bits/2 + 11)
}
