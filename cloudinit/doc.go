// Package cloudinit builds what a virtual machine reads on its first boot: the
// NoCloud seed image, and the documents that go into it.
//
// It needs nothing but the standard library, writes no file, reads no clock
// and draws no random number: the same input gives the same bytes, so a seed
// can be rebuilt, compared and cached.
//
// # The seed
//
// [Seed] is the disk. Its user-data is opaque and reaches the guest byte for
// byte, in any format cloud-init takes:
//
//	image, err := cloudinit.Seed{
//		MetaData: cloudinit.MetaData{InstanceID: "proxy-1", LocalHostname: "proxy-1"},
//		UserData: userData,
//	}.ISO()
//
// Attach the image as a read-only virtio disk. A SATA or IDE CD-ROM is the
// usual way and works with most kernels, but not with the cloud kernel of
// Debian, which has no driver for either: such a guest sees no seed, and
// cloud-init switches itself off.
//
// The image is ISO 9660 with the label cidata. Its names are exact for Linux
// (Rock Ridge), for Windows and cloudbase-init (Joliet), and for a reader that
// knows neither and folds the upper case of the plain names.
//
// The package has its own writer because a seed is three or four small files
// and others want too much for them. github.com/kdomanski/iso9660, which reads
// the images back in this package's tests, stages the files in a temporary
// folder when writing, which fails on a read-only file system and leaves
// secrets on disk; it writes neither Rock Ridge nor Joliet, so that names
// change; and its bytes differ from run to run. BenchmarkSeed runs both.
//
// # The documents
//
//   - [Network] renders a network-config, version 2.
//   - [Multipart] puts several documents into one, and [WithGuestAgent] adds
//     to vendor-data the script that installs the QEMU guest agent.
//   - [Squid] renders the user-data of a forward proxy that is closed unless
//     told whom to serve.
//
// Each of them returns bytes and can be used without the others, also with
// clouds that take user-data by another way than a seed.
//
// # Configuration
//
// Every builder is one struct, taken by value and never changed, whose zero
// fields mean the default in their comment. Validate reports every problem at
// once, one a line, as "field: value: problem and remedy"; rendering validates
// too. Struct literals must name their fields.
//
// # Secrets
//
// User-data often carries secrets. No error of this package quotes one, and
// [Seed] and [Secret] print as lengths and as a placeholder. The files of the
// image are readable by root only. A password given to [Squid] reaches the
// guest as a salted hash.
package cloudinit
