package cloudinit_test

import (
	"bytes"
	"io"
	"testing"

	"github.com/kdomanski/iso9660"

	"github.com/egressfleet/egress/cloudinit"
)

// BenchmarkSeed builds one usual seed per iteration, with this package and
// with the writer of kdomanski/iso9660, which stages its files on disk.
func BenchmarkSeed(b *testing.B) {
	seed := usualSeed()
	b.Run("egress", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			image, err := seed.ISO()
			if err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(len(image)))
		}
	})
	b.Run("kdomanski", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := peerISO(io.Discard, seed); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// peerISO writes the same files with kdomanski/iso9660.
func peerISO(w io.Writer, seed cloudinit.Seed) error {
	writer, err := iso9660.NewWriter()
	if err != nil {
		return err
	}
	defer func() { _ = writer.Cleanup() }()
	metaData, err := seed.MetaData.YAML()
	if err != nil {
		return err
	}
	for name, content := range map[string][]byte{
		"meta-data": metaData, "user-data": seed.UserData,
		"vendor-data": seed.VendorData, "network-config": seed.NetworkConfig,
	} {
		if err := writer.AddFile(bytes.NewReader(content), name); err != nil {
			return err
		}
	}
	return writer.WriteTo(w, "cidata")
}
