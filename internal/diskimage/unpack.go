package diskimage

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"io"

	"github.com/klauspost/compress/zstd"
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
