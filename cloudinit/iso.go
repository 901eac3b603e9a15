package cloudinit

import (
	"encoding/binary"
	"strings"
	"unicode/utf16"
)

// The image is a fixed layout, because a seed is a handful of files in one
// flat directory: descriptors, path tables and directories of the two trees
// (the plain one with Rock Ridge, and Joliet), then the files, which both
// trees share. Sources: ECMA-119 for ISO 9660, SUSP and RRIP (IEEE P1282) for
// Rock Ridge, and the Joliet Specification, all public.
const (
	sectorSize = 2048

	plainDescriptor  = 16
	jolietDescriptor = 17
	endDescriptor    = 18
	plainPathL       = 19
	plainPathM       = 20
	jolietPathL      = 21
	jolietPathM      = 22
	plainRoot        = 23
	jolietRoot       = 24
	continuation     = 25
	firstFile        = 26
)

// pathTableSize is the length of a path table that holds only the root.
const pathTableSize = 10

// isoFile is a file of the root directory. Its name is ASCII in lower case,
// at most 30 characters, and names are unique. All records of a seed fit into
// one sector.
type isoFile struct {
	name    string
	content []byte
	sector  uint32
}

// buildISO lays the image out in one allocation. The files are sorted by name.
func buildISO(label string, files []isoFile) []byte {
	sectors := placeFiles(files)
	img := make([]byte, int(sectors)*sectorSize)
	at := func(sector int) []byte { return img[sector*sectorSize : (sector+1)*sectorSize] }

	putDescriptor(at(plainDescriptor), plainTree, label, sectors)
	putDescriptor(at(jolietDescriptor), jolietTree, label, sectors)
	copy(at(endDescriptor), "\xffCD001\x01")
	putPathTable(at(plainPathL), binary.LittleEndian, plainRoot)
	putPathTable(at(plainPathM), binary.BigEndian, plainRoot)
	putPathTable(at(jolietPathL), binary.LittleEndian, jolietRoot)
	putPathTable(at(jolietPathM), binary.BigEndian, jolietRoot)
	putDirectory(at(plainRoot), plainTree, files)
	putDirectory(at(jolietRoot), jolietTree, files)
	copy(at(continuation), rockRidgeReference())
	for _, f := range files {
		copy(img[int(f.sector)*sectorSize:], f.content)
	}
	return img
}

// placeFiles gives each file its first sector, and returns where the image
// ends. An empty file has no sector of its own and points where the next
// begins, as mkisofs does it.
func placeFiles(files []isoFile) uint32 {
	next := uint32(firstFile)
	for i := range files {
		files[i].sector = next
		next += uint32((len(files[i].content) + sectorSize - 1) / sectorSize)
	}
	if next == firstFile {
		next++ // so that the sector they point to exists
	}
	return next
}

// tree is one of the two directory trees of the image.
type tree struct {
	kind      byte                  // of the volume descriptor
	escapes   string                // Joliet's mark: UCS-2 level 3
	pathL     uint32                // sector of the path table, little-endian
	pathM     uint32                // and big-endian
	root      uint32                // sector of the root directory
	name      func(s string) string // encodes text of the descriptor
	fileName  func(s string) string // encodes a file's name
	systemUse func(f isoFile) []byte
	blank     string // what fills the rest of a text field
}

var (
	plainTree = tree{
		kind: 1, pathL: plainPathL, pathM: plainPathM, root: plainRoot, blank: " ",
		name:     func(s string) string { return s },
		fileName: func(s string) string { return strings.ToUpper(s) + ".;1" },
		systemUse: func(f isoFile) []byte {
			return append(posixAttributes(0o100400, 1), alternateName(f.name)...)
		},
	}
	jolietTree = tree{
		kind: 2, pathL: jolietPathL, pathM: jolietPathM, root: jolietRoot, blank: "\x00 ", escapes: "%/E",
		name:      ucs2,
		fileName:  func(s string) string { return ucs2(s + ";1") },
		systemUse: func(isoFile) []byte { return nil },
	}
)

// ucs2 encodes s as Joliet wants it.
func ucs2(s string) string {
	var b []byte
	for _, u := range utf16.Encode([]rune(s)) {
		b = binary.BigEndian.AppendUint16(b, u)
	}
	return string(b)
}

// putDescriptor writes a volume descriptor (ECMA-119, 8.4 and 8.5).
func putDescriptor(b []byte, t tree, label string, sectors uint32) {
	b[0] = t.kind
	copy(b[1:], "CD001\x01")
	fill(b[8:40], t.name(""), t.blank)
	fill(b[40:72], t.name(label), t.blank)
	put32(b[80:], sectors)
	copy(b[88:], t.escapes)
	put16(b[120:], 1) // volumes in the set
	put16(b[124:], 1) // number of this volume
	put16(b[128:], sectorSize)
	put32(b[132:], pathTableSize)
	binary.LittleEndian.PutUint32(b[140:], t.pathL)
	binary.BigEndian.PutUint32(b[148:], t.pathM)
	copy(b[156:], directoryRecord("\x00", t.root, sectorSize, true, nil))
	at := 190
	for _, size := range identifierSizes {
		fill(b[at:at+size], t.name(""), t.blank)
		at += size
	}
	for i := 813; i < 881; i += 17 {
		copy(b[i:], "0000000000000000\x00") // no date given
	}
	b[881] = 1 // version of the file structure
}

// identifierSizes are the lengths of the identifiers that a seed leaves blank:
// set, publisher, preparer, application, and the names of three files.
var identifierSizes = [...]int{128, 128, 128, 128, 37, 37, 37}

// fill writes s into b and pads it with whole blanks.
func fill(b []byte, s, blank string) {
	n := copy(b, s)
	for ; n+len(blank) <= len(b); n += len(blank) {
		copy(b[n:], blank)
	}
}

// putPathTable writes the path table of a volume that has only its root.
func putPathTable(b []byte, order binary.ByteOrder, root uint32) {
	b[0] = 1 // length of the name
	order.PutUint32(b[2:], root)
	order.PutUint16(b[6:], 1) // the root is its own parent
}

// putDirectory writes the records of the root directory into its one sector.
func putDirectory(b []byte, t tree, files []isoFile) {
	var self, parent []byte
	if t.kind == plainTree.kind {
		self = append(suspStart(), posixAttributes(0o040500, 2)...)
		self = append(self, suspContinuation(len(rockRidgeReference()))...)
		parent = posixAttributes(0o040500, 2)
	}
	n := copy(b, directoryRecord("\x00", t.root, sectorSize, true, self))
	n += copy(b[n:], directoryRecord("\x01", t.root, sectorSize, true, parent))
	for _, f := range files {
		n += copy(b[n:], directoryRecord(t.fileName(f.name), f.sector, uint32(len(f.content)), false, t.systemUse(f)))
	}
}

// recordDate is the date of every record: 1 January 2000, UTC. ISO 9660 has no
// "unknown" that Linux understands.
const recordDate = "\x64\x01\x01\x00\x00\x00\x00"

// directoryRecord builds one record (ECMA-119, 9.1).
func directoryRecord(name string, sector, length uint32, dir bool, systemUse []byte) []byte {
	const fixed = 33
	nameEnd := fixed + len(name) + (len(name)+1)%2 // padded to an even offset
	b := make([]byte, (nameEnd+len(systemUse)+1)&^1)
	b[0] = byte(len(b))
	put32(b[2:], sector)
	put32(b[10:], length)
	copy(b[18:], recordDate)
	if dir {
		b[25] = 2
	}
	put16(b[28:], 1)
	b[32] = byte(len(name))
	copy(b[fixed:], name)
	copy(b[nameEnd:], systemUse)
	return b
}

// put16 writes v in both byte orders, as ISO 9660 stores it.
func put16(b []byte, v uint16) {
	binary.LittleEndian.PutUint16(b, v)
	binary.BigEndian.PutUint16(b[2:], v)
}

// put32 writes v in both byte orders.
func put32(b []byte, v uint32) {
	binary.LittleEndian.PutUint32(b, v)
	binary.BigEndian.PutUint32(b[4:], v)
}
