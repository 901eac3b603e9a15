package cloudinit_test

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/kdomanski/iso9660"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/cloudinit"
)

// usualSeed is a seed as a provider makes it.
func usualSeed() cloudinit.Seed {
	return cloudinit.Seed{
		MetaData:      cloudinit.MetaData{InstanceID: "proxy-0123456789abcdef", LocalHostname: "proxy-0123456789abcdef"},
		UserData:      []byte("#cloud-config\nruncmd:\n  - [echo, hello]\n"),
		VendorData:    cloudinit.GuestAgentScript(),
		NetworkConfig: []byte("version: 2\n"),
	}
}

// readSeed reads an image with kdomanski/iso9660: label, and files by name.
func readSeed(t testing.TB, image []byte) (string, map[string]string) {
	t.Helper()
	img, err := iso9660.OpenImage(bytes.NewReader(image))
	require.NoError(t, err)
	label, err := img.Label()
	require.NoError(t, err)
	root, err := img.RootDir()
	require.NoError(t, err)
	children, err := root.GetChildren()
	require.NoError(t, err)
	files := map[string]string{}
	for _, f := range children {
		content, err := io.ReadAll(f.Reader())
		require.NoError(t, err)
		files[f.Name()] = string(content)
		assert.Equal(t, os.FileMode(0o400), f.Mode().Perm(), "the file may hold secrets: root only")
	}
	return strings.TrimRight(label, " "), files
}

func TestSeedIsReadBack(t *testing.T) {
	seed := usualSeed()
	image, err := seed.ISO()
	require.NoError(t, err)
	label, files := readSeed(t, image)
	assert.Equal(t, "cidata", label)
	assert.Equal(t, map[string]string{
		"meta-data":      "instance-id: \"proxy-0123456789abcdef\"\nlocal-hostname: \"proxy-0123456789abcdef\"\n",
		"user-data":      string(seed.UserData),
		"vendor-data":    string(seed.VendorData),
		"network-config": string(seed.NetworkConfig),
	}, files)
}

func TestSeedLeavesOutWhatIsEmpty(t *testing.T) {
	image, err := cloudinit.Seed{}.ISO()
	require.NoError(t, err)
	_, files := readSeed(t, image)
	assert.Len(t, files, 2)
	assert.Equal(t, "", files["user-data"], "NoCloud does not recognise a seed without user-data")
	assert.Regexp(t, `^instance-id: "i-[0-9a-f]{16}"\n$`, files["meta-data"])
}

func TestSeedSizesAtSectorEdges(t *testing.T) {
	for _, size := range []int{0, 1, 2047, 2048, 2049, 4096, 5<<20 + 1} {
		seed := usualSeed()
		seed.UserData = bytes.Repeat([]byte{0xa5, '\n', 0}, size/3+1)[:size]
		image, err := seed.ISO()
		require.NoError(t, err)
		_, files := readSeed(t, image)
		require.True(t, string(seed.UserData) == files["user-data"], "%d bytes", size)
		require.Equal(t, string(seed.VendorData), files["vendor-data"], "%d bytes", size)
		require.Zero(t, len(image)%2048)
	}
}

func TestSeedKeepsAnyUserData(t *testing.T) {
	for name, data := range userDataKinds {
		seed := usualSeed()
		seed.UserData = data
		image, err := seed.ISO()
		require.NoError(t, err)
		_, files := readSeed(t, image)
		assert.Equal(t, string(data), files["user-data"], name)
	}
}

func TestSeedIsTheSameForTheSameInput(t *testing.T) {
	first, err := usualSeed().ISO()
	require.NoError(t, err)
	second, err := usualSeed().ISO()
	require.NoError(t, err)
	assert.True(t, bytes.Equal(first, second))

	var written bytes.Buffer
	n, err := usualSeed().WriteTo(&written)
	require.NoError(t, err)
	assert.EqualValues(t, len(first), n)
	assert.True(t, bytes.Equal(first, written.Bytes()))
}

func TestSeedInstanceIDFollowsTheContent(t *testing.T) {
	id := func(userData string) string {
		image, err := cloudinit.Seed{UserData: []byte(userData)}.ISO()
		require.NoError(t, err)
		_, files := readSeed(t, image)
		return files["meta-data"]
	}
	assert.Equal(t, id("a"), id("a"))
	assert.NotEqual(t, id("a"), id("b"))
}

func TestSeedListingByIsoinfo(t *testing.T) {
	isoinfo := tool(t, "isoinfo", "genisoimage")
	seed := usualSeed()
	seed.VendorData = []byte("#!/bin/sh\n") // the listing shows sizes
	image, err := seed.ISO()
	require.NoError(t, err)
	path := tempFile(t, "seed.iso", image)
	listing := "plain:" + run(t, isoinfo, "-l", "-i", path) +
		"\nRock Ridge:" + run(t, isoinfo, "-R", "-l", "-i", path) +
		"\nJoliet:" + run(t, isoinfo, "-J", "-l", "-i", path) +
		"\n" + run(t, isoinfo, "-d", "-i", path)
	golden(t, "seed.isoinfo.txt", []byte(listing))

	for _, form := range [][]string{{"-R", "/user-data"}, {"-J", "/user-data;1"}, {"", "/USER-DATA.;1"}} {
		args := []string{"-i", path, "-x", form[1]}
		if form[0] != "" {
			args = append([]string{form[0]}, args...)
		}
		assert.Equal(t, string(seed.UserData), run(t, isoinfo, args...), form)
	}
}

func TestSeedLabelByBlkid(t *testing.T) {
	blkid := tool(t, "blkid", "util-linux")
	image, err := usualSeed().ISO()
	require.NoError(t, err)
	out := run(t, blkid, "-p", "-s", "LABEL", "-s", "TYPE", "-o", "export", tempFile(t, "seed.iso", image))
	assert.Contains(t, out, "LABEL=cidata\n", "cloud-init finds the seed by what blkid says")
	assert.Contains(t, out, "TYPE=iso9660\n")
}

func TestSeedValidate(t *testing.T) {
	err := cloudinit.Seed{MetaData: cloudinit.MetaData{
		InstanceID:    "a b",
		LocalHostname: "-x",
		PublicKeys:    []string{"two\nlines"},
		Extra:         map[string]string{"instance-id": "x", "a:b": "x", "secret": "\xffhunter2"},
	}}.Validate()
	require.Error(t, err)
	golden(t, "seed.errors.txt", []byte(err.Error()+"\n"))
	assert.NotContains(t, err.Error(), "hunter2")
	_, isoErr := cloudinit.Seed{MetaData: cloudinit.MetaData{InstanceID: "a b"}}.ISO()
	assert.Error(t, isoErr)
}

func TestSeedMetaData(t *testing.T) {
	doc, err := cloudinit.MetaData{
		InstanceID: "1.10", LocalHostname: "yes.example.com",
		PublicKeys: []string{"ssh-ed25519 AAAA me@home"},
		Extra:      map[string]string{"zone": "no", "b": "1.10", "uid": "a\"b\\c\n\t\x01é😀"},
	}.YAML()
	require.NoError(t, err)
	golden(t, "meta-data.yaml", doc)
}

func TestSeedPrintsNoContent(t *testing.T) {
	seed := cloudinit.Seed{UserData: []byte("hunter2")}
	var logged bytes.Buffer
	logr.FromSlogHandler(slog.NewTextHandler(&logged, nil)).Info("made", "seed", seed)
	for _, printed := range []string{fmt.Sprint(seed), fmt.Sprintf("%+v %#v %s %x", seed, seed, seed, seed), logged.String()} {
		assert.NotContains(t, printed, "hunter2")
		assert.NotContains(t, printed, "104 117")
		assert.NotContains(t, printed, "68756e")
	}
}

func TestSeedWritesNoTempFile(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", filepath.Join(dir, "missing"))
	_, err := usualSeed().ISO()
	assert.NoError(t, err)
}

func FuzzSeed(f *testing.F) {
	for _, data := range userDataKinds {
		f.Add(data, []byte("vendor"), []byte("net"))
	}
	f.Fuzz(func(t *testing.T, user, vendor, network []byte) {
		image, err := cloudinit.Seed{UserData: user, VendorData: vendor, NetworkConfig: network}.ISO()
		require.NoError(t, err)
		_, files := readSeed(t, image)
		require.Equal(t, string(user), files["user-data"])
		require.Equal(t, string(vendor), files["vendor-data"])
		require.Equal(t, string(network), files["network-config"])
	})
}
