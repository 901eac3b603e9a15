package diskimage

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
)

// sniffLength is how much of an image's beginning tells what it is: two sectors.
const sniffLength = 1024

var (
	qcow2Magic = []byte("QFI\xfb")

	// foreignMagics are the beginnings of what people put in place of an image.
	foreignMagics = []struct {
		magic []byte
		what  string
	}{
		{[]byte("BZh"), "packed with bzip2: give the URL of one that is packed with xz, gzip or zstd, or not at all"},
		{[]byte("PK\x03\x04"), "in a zip archive: give the URL of the image itself"},
		{[]byte("KDMV"), "a VMDK image: convert it with qemu-img"},
		{[]byte("vhdxfile"), "a VHDX image: convert it with qemu-img"},
	}
)

// sniffed is what the beginning of an image tells.
type sniffed struct {
	format string
	// virtualSize is the size of the disk in bytes; 0 for raw, whose size is
	// that of the file.
	virtualSize uint64
}

// sniff reads the beginning of an image and refuses what is none, and what
// could name a file of the host. Raw images have no magic of their own: one that
// nobody called raw must look like a disk.
func sniff(head []byte, trusted bool) (sniffed, error) {
	if bytes.HasPrefix(head, qcow2Magic) {
		size, err := parseQCOW2(head)
		return sniffed{format: FormatQCOW2, virtualSize: size}, err
	}
	for _, f := range foreignMagics {
		if bytes.HasPrefix(head, f.magic) {
			return sniffed{}, fmt.Errorf("the image is %s", f.what)
		}
	}
	switch {
	case looksLikeHTML(head):
		return sniffed{}, errHTML
	case isTar(head):
		return sniffed{}, errors.New("the image is in a tar archive: give the URL of the image itself")
	case !trusted && !looksLikeDisk(head):
		return sniffed{}, errors.New("this is neither a qcow2 image nor a bootable disk: correct the image's url, or set its format to raw")
	}
	return sniffed{format: FormatRaw}, nil
}

var errHTML = errors.New("the URL gives an HTML page, not an image: open it in a browser to see what it wants")

// looksLikeDisk looks for a partition table: the signature of an MBR, which
// GPT has too, in its first sector, or the header of a GPT in its second.
func looksLikeDisk(head []byte) bool {
	mbr := len(head) >= 512 && head[510] == 0x55 && head[511] == 0xaa
	return mbr || len(head) >= 520 && string(head[512:520]) == "EFI PART"
}

// isTar looks for the magic of POSIX archives.
func isTar(head []byte) bool { return len(head) >= 262 && string(head[257:262]) == "ustar" }

func looksLikeHTML(head []byte) bool {
	text := bytes.ToLower(bytes.TrimLeft(head, "\xef\xbb\xbf \t\r\n"))
	for _, prefix := range []string{"<!doctype", "<html", "<head", "<?xml"} {
		if bytes.HasPrefix(text, []byte(prefix)) {
			return true
		}
	}
	return false
}

// The parts of a qcow2 header that are read; all numbers are big-endian. The
// format is described in docs/interop/qcow2.rst of QEMU.
const (
	qcow2Version      = 4
	qcow2BackingFile  = 8
	qcow2Size         = 24
	qcow2Crypt        = 32
	qcow2Incompatible = 72
	qcow2MinHeader    = 72
	qcow2V3Header     = 104

	qcow2ExternalData = 1 << 2
	qcow2MaxSize      = 1 << 56
)

// parseQCOW2 returns the virtual size in bytes.
func parseQCOW2(head []byte) (uint64, error) {
	if len(head) < qcow2MinHeader {
		return 0, errors.New("the qcow2 image is cut off in its header")
	}
	version := binary.BigEndian.Uint32(head[qcow2Version:])
	if version != 2 && version != 3 {
		return 0, fmt.Errorf("the qcow2 image has version %d, wanted 2 or 3", version)
	}
	if binary.BigEndian.Uint64(head[qcow2BackingFile:]) != 0 {
		return 0, errors.New("the qcow2 image has a backing file of its own, which could be any file of the host: flatten it with qemu-img convert")
	}
	if binary.BigEndian.Uint32(head[qcow2Crypt:]) != 0 {
		return 0, errors.New("the qcow2 image is encrypted")
	}
	if version == 3 {
		if len(head) < qcow2V3Header {
			return 0, errors.New("the qcow2 image is cut off in its header")
		}
		if binary.BigEndian.Uint64(head[qcow2Incompatible:])&qcow2ExternalData != 0 {
			return 0, errors.New("the qcow2 image keeps its data in another file: flatten it with qemu-img convert")
		}
	}
	size := binary.BigEndian.Uint64(head[qcow2Size:])
	if size == 0 || size > qcow2MaxSize {
		return 0, fmt.Errorf("the qcow2 image says that its disk has %d bytes", size)
	}
	return size, nil
}
