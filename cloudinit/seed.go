package cloudinit

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"math"

	"github.com/egressfleet/egress/internal/check"
)

// Seed is a NoCloud seed: the files that cloud-init looks for on a disk with
// the label cidata. The zero Seed is valid, and tells the guest to do nothing.
//
// A Seed is read-only to this package, and its methods are safe for concurrent
// use as long as nobody changes the slices.
type Seed struct {
	// MetaData names the instance.
	MetaData MetaData

	// UserData is what the instance shall do: opaque, and handed over byte
	// for byte. Cloud-config, a script, jinja, MIME, gzip, empty: anything
	// cloud-init takes. The file is there even when this is empty, because
	// without it NoCloud does not recognise the seed. Less than 4 GiB.
	UserData []byte

	// VendorData is the same from the one who runs the machine. What
	// UserData says wins over it. Empty leaves the file out.
	VendorData []byte

	// NetworkConfig is the network configuration, of version 1 or 2, as
	// from [Network.YAML]. Empty leaves the file out, and the guest does
	// what its image does by default, DHCP as a rule. A file without an
	// interface in it would leave the guest without network.
	NetworkConfig []byte
}

// Validate reports every problem of s at once.
func (s Seed) Validate() error {
	var p check.Problems
	s.MetaData.check(&p, "metaData.")
	for _, f := range s.files(nil) {
		if uint64(len(f.content)) > math.MaxUint32 {
			p.Add(f.name, fmt.Sprintf("%d bytes", len(f.content)), "too long for a file of ISO 9660; keep it below 4 GiB")
		}
	}
	return p.Err()
}

// ISO builds the image: a multiple of 2048 bytes, 50 to 60 KB for a usual
// seed, the same for the same s.
func (s Seed) ISO() ([]byte, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	if s.MetaData.InstanceID == "" {
		s.MetaData.InstanceID = s.contentID()
	}
	return buildISO(volumeLabel, s.files(s.MetaData.yaml())), nil
}

// WriteTo writes the image to w, as [Seed.ISO] builds it.
func (s Seed) WriteTo(w io.Writer) (int64, error) {
	image, err := s.ISO()
	if err != nil {
		return 0, err
	}
	return io.Copy(w, bytes.NewReader(image))
}

// String tells the instance and the lengths of its documents, never their
// content.
func (s Seed) String() string {
	return fmt.Sprintf("seed %s (user-data %d bytes, vendor-data %d bytes, network-config %d bytes)",
		s.MetaData.InstanceID, len(s.UserData), len(s.VendorData), len(s.NetworkConfig))
}

// GoString is String, so that no verb of fmt prints the content.
func (s Seed) GoString() string { return s.String() }

// MarshalLog is String for logr, so that no sink prints the content.
func (s Seed) MarshalLog() any { return s.String() }

// Format is String for every verb of fmt.
func (s Seed) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, s.String()) }

// volumeLabel is the name by which NoCloud finds its disk.
const volumeLabel = "cidata"

// files lists the files of the seed in the order of their names, which ISO
// 9660 asks for.
func (s Seed) files(metaData []byte) []isoFile {
	files := []isoFile{{name: "meta-data", content: metaData}}
	if len(s.NetworkConfig) > 0 {
		files = append(files, isoFile{name: "network-config", content: s.NetworkConfig})
	}
	files = append(files, isoFile{name: "user-data", content: s.UserData})
	if len(s.VendorData) > 0 {
		files = append(files, isoFile{name: "vendor-data", content: s.VendorData})
	}
	return files
}

// contentID derives an instance ID from everything in the seed.
func (s Seed) contentID() string {
	h := sha256.New()
	for _, f := range s.files(s.MetaData.yaml()) {
		fmt.Fprintf(h, "%s %d\n", f.name, len(f.content))
		h.Write(f.content)
	}
	return "i-" + hex.EncodeToString(h.Sum(nil)[:8])
}
