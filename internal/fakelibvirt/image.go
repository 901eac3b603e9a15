package fakelibvirt

import "encoding/binary"

const clusterSize = 64 << 10

// BlankQCOW2 returns a whole qcow2 image, which QEMU accepts, of an empty disk
// of that many bytes, at most 512 GiB.
func BlankQCOW2(size uint64) []byte {
	const refcountTable, refcountBlock, l1Table = 1 * clusterSize, 2 * clusterSize, 3 * clusterSize
	image := make([]byte, 4*clusterSize)
	be := binary.BigEndian
	copy(image, "QFI\xfb")
	be.PutUint32(image[4:], 3)
	be.PutUint32(image[20:], 16) // 64 KiB clusters
	be.PutUint64(image[24:], size)
	be.PutUint32(image[36:], uint32((size+clusterSize*8192-1)/(clusterSize*8192))) //nolint:gosec // bounded.
	be.PutUint64(image[40:], l1Table)
	be.PutUint64(image[48:], refcountTable)
	be.PutUint32(image[56:], 1) // cluster of the refcount table
	be.PutUint32(image[96:], 4) // 16-bit refcounts
	be.PutUint32(image[100:], 104)
	be.PutUint64(image[refcountTable:], refcountBlock)
	for cluster := range 4 {
		be.PutUint16(image[refcountBlock+2*cluster:], 1)
	}
	return image
}
