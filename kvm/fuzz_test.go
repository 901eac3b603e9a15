package kvm_test

import (
	"bytes"
	"crypto/ed25519"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/egressfleet/egress/kvm"
	"github.com/egressfleet/egress/provider"
)

// newHostKey is a key that no file can know of.
func newHostKey(t testing.TB) ssh.PublicKey {
	t.Helper()
	public, _, err := ed25519.GenerateKey(nil)
	require.NoError(t, err)
	key, err := ssh.NewPublicKey(public)
	require.NoError(t, err)
	return key
}

// Whatever a known_hosts file has in it: no other key is trusted for it, one more
// line is not lost by it, and an error names the file and the remedy.
func FuzzKnownHosts(f *testing.F) {
	f.Add("[hypervisor.test]:22 ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\n")
	unknown, known := newHostKey(f), newHostKey(f)
	path := filepath.Join(f.TempDir(), "known_hosts")
	const address = "hypervisor.test:22"
	f.Fuzz(func(t *testing.T, text string) {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		err := kvm.TrustHostKey(path, address, unknown)
		require.ErrorIs(t, err, provider.ErrPermanent)
		require.ErrorContains(t, err, path)
		if provider.HasCode(err, "KeyInvalid") {
			assert.ErrorContains(t, err, "ssh-keyscan")
			return
		}
		line := knownhosts.Line([]string{address}, known)
		require.NoError(t, os.WriteFile(path, []byte(text+"\n"+line+"\n"), 0o600))
		require.NoError(t, kvm.TrustHostKey(path, address, known))
		require.ErrorIs(t, kvm.TrustHostKey(path, address, unknown), provider.ErrPermanent)
	})
}

// An address that is accepted leads somewhere, and one that is not is no way for a
// password to get out.
func FuzzAddress(f *testing.F) {
	for _, a := range []string{"h", "local", "h:2222", "[2001:db8::1]", "qemu+ssh://root@h:22/system?keyfile=/k", "qemu+unix:///system?socket=/s", "qemu:///system"} {
		f.Add(a, "gate@bastion:2222")
	}
	f.Fuzz(func(t *testing.T, address, jump string) {
		address, jump = strings.ReplaceAll(address, "SECRET", "S3CR3T"), strings.ReplaceAll(jump, "SECRET", "S3CR3T")
		c := kvm.Config{
			SSHKeyFile: "/k", KnownHostsFile: "/n", MachineTypes: map[string]kvm.MachineType{"s": {VCPUs: 1, MemoryMiB: 64}},
			Hosts: []kvm.Host{{Name: "a", User: "u", Bridge: "br0", Address: address, Jump: jump}},
		}
		if c.Hosts[0].Address == "local" || strings.HasPrefix(address, "qemu:") || strings.HasPrefix(address, "qemu+unix:") {
			c.Hosts[0].User = ""
		}
		if err := c.Validate(); err != nil {
			if !strings.Contains(strings.NewReplacer(":S3CR3T@", "").Replace(address+" "+jump), "S3CR3T") && isUserinfo(address) {
				assert.NotContains(t, err.Error(), "S3CR3T")
			}
			return
		}
		own, gate := kvm.WayTo(c)
		for _, to := range []string{own, gate} {
			if to == "" {
				continue
			}
			host, port, err := net.SplitHostPort(to)
			require.NoError(t, err, "%q", to)
			assert.NotEmpty(t, host, "%q", to)
			assert.NotEmpty(t, port, "%q", to)
			assert.False(t, strings.ContainsAny(to, " \t\r\n\x00/@"), "%q", to)
		}
		assert.Equal(t, jump == "", gate == "")
	})
}

// isUserinfo tells whether a password may stand before the first '@' of an address: a
// path and parameters have none.
func isUserinfo(address string) bool {
	_, rest, isURI := strings.Cut(address, "://")
	before, _, _ := strings.Cut(rest, "@")
	return !isURI || !strings.ContainsAny(before, "/?#")
}

// A range that is accepted begins and ends in its network, in that order.
func FuzzRange(f *testing.F) {
	for _, r := range []string{"10.0.0.10-10.0.0.99/24", "10.0.0.10/24", "2001:db8::10-2001:db8::ffff/64", "10.0.0.10-10.0.0.9/24"} {
		f.Add(r)
	}
	f.Fuzz(func(t *testing.T, text string) {
		size, first, last, err := kvm.ParseRange(text)
		if err != nil {
			return
		}
		assert.Positive(t, size)
		assert.Equal(t, first.Masked(), last.Masked())
		assert.False(t, last.Addr().Less(first.Addr()))
		if size == 1 {
			assert.Equal(t, first, last)
		}
		assert.True(t, netip.PrefixFrom(first.Addr(), first.Bits()).Contains(last.Addr()))
	})
}

// What a host says of itself is believed only where it is whole.
func FuzzHypervisor(f *testing.F) {
	f.Add(`<capabilities><host><cpu><arch>x86_64</arch></cpu></host></capabilities>`, "auto")
	f.Fuzz(func(t *testing.T, capabilities, want string) {
		h, err := kvm.ParseHypervisor(capabilities, want)
		if err != nil {
			require.ErrorIs(t, err, provider.ErrPermanent)
			return
		}
		assert.Contains(t, []string{"kvm", "qemu"}, h.Type)
		assert.NotEmpty(t, h.Arch)
		assert.NotEmpty(t, h.Machine)
	})
}

// What comes through are whole frames that answer the call, in their order, with lists
// and texts no longer than they are, in whatever pieces they came; and nothing behind a
// length that cannot be.
func FuzzFrames(f *testing.F) {
	f.Add(append(binary.BigEndian.AppendUint32(nil, 28), make([]byte, 30)...), uint8(3), uint16(0))
	f.Add(slices.Concat(answer(273, 0, 0, words(0, 0)), answer(273, 0, 0, words(0, 0)), words(7)), uint8(9), uint16(273))
	f.Add(answer(273, 0, 0, words(0x7fffffff, 0)), uint8(255), uint16(273))
	f.Add(answer(209, 0, 2, words(1, 2, 3)), uint8(1), uint16(209))
	f.Fuzz(func(t *testing.T, said []byte, piece uint8, procedure uint16) {
		rest, impossible := said, false
		var frames [][]byte
		for len(rest) >= 4 && !impossible {
			length := binary.BigEndian.Uint32(rest)
			impossible = length < 28 || length > 64<<20
			if !impossible && int(length) <= len(rest) {
				frames = append(frames, rest[:length])
			}
			rest = rest[min(int(length), len(rest)):]
		}
		pieces := slices.Collect(slices.Chunk(said, max(int(piece), 1)))
		through, err := kvm.ScanFrames(frame(uint32(procedure), 0, 0, 0, nil), pieces...)
		if impossible {
			require.ErrorIs(t, err, io.ErrUnexpectedEOF)
		}
		require.Error(t, err)
		for _, frame := range frames {
			after, ok := bytes.CutPrefix(through, frame)
			if !ok {
				continue
			}
			through = after
			if status := binary.BigEndian.Uint32(frame[24:]); procedure == 273 && status != 1 && binary.BigEndian.Uint32(frame[12:]) == 273 {
				assert.LessOrEqual(t, int64(binary.BigEndian.Uint32(frame[28:]))*24, int64(len(frame)-32))
			}
		}
		assert.Empty(t, through)
	})
}
