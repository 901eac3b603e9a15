package kvm_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/egressfleet/egress/internal/fakelibvirt"
	"github.com/egressfleet/egress/internal/sshtest"
	"github.com/egressfleet/egress/kvm"
	"github.com/egressfleet/egress/provider"
)

// sshRig is a provider whose one host is an SSH server in front of a socket
// that speaks libvirt's protocol.
type sshRig struct {
	*kvm.Provider
	dir    string
	cfg    kvm.Config
	server *sshtest.Server
	wire   *fakelibvirt.Wire
	key    sshtest.Key
}

func newSSHRig(t *testing.T, amend func(*sshRig)) *sshRig {
	t.Helper()
	r := &sshRig{dir: t.TempDir(), wire: &fakelibvirt.Wire{}, key: sshtest.NewKey(t)}
	socket := filepath.Join(r.dir, "sock")
	l, err := net.Listen("unix", socket)
	require.NoError(t, err)
	served := make(chan struct{})
	go func() { r.wire.Serve(l); close(served) }()
	t.Cleanup(func() { _ = l.Close(); <-served })
	r.server = sshtest.New(t, r.key.PublicKey())
	r.cfg = kvm.Config{
		SSHKeyFile:     sshtest.WriteFile(t, r.dir, "id", r.key.PEM),
		KnownHostsFile: sshtest.WriteFile(t, r.dir, "known_hosts", []byte(r.server.KnownHosts())),
		Hosts:          []kvm.Host{{Name: "kvm1", Address: r.server.Address(), User: "egress", Socket: socket, Bridge: "br0"}},
		MachineTypes:   map[string]kvm.MachineType{"small": {VCPUs: 1, MemoryMiB: 256}},
		Timeouts: kvm.Timeouts{
			Dial: provider.Duration(20 * time.Second), Grace: provider.Duration(200 * time.Millisecond),
			Keepalive: provider.Duration(100 * time.Millisecond),
		},
	}
	if amend != nil {
		amend(r)
	}
	p, err := kvm.New(r.cfg)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, p.Close()) })
	r.Provider = p
	return r
}

// list is the smallest call that needs a connection; its error is the host's.
func (r *sshRig) list(ctx context.Context) error {
	_, err := r.ListByTag(ctx, "tag-a")
	if partial, ok := err.(*provider.PartialError); ok { //nolint:errorlint // as it came.
		return partial.Missing[0].Err
	}
	return err
}

func TestSSH(t *testing.T) {
	r := newSSHRig(t, nil)
	for range 3 {
		require.NoError(t, r.list(testContext(t)))
	}
	assert.Equal(t, 1, r.server.Logins())
	assert.Equal(t, 1, r.wire.Accepted())
}

// TestSSHOneDial has many callers at once make one connection.
func TestSSHOneDial(t *testing.T) {
	r := newSSHRig(t, nil)
	errs := make(chan error)
	for range 20 {
		go func() { errs <- r.list(testContext(t)) }()
	}
	for range 20 {
		require.NoError(t, <-errs)
	}
	assert.Equal(t, 1, r.server.Logins())
}

func TestSSHRefusals(t *testing.T) {
	for _, c := range []struct {
		what  string
		amend func(*testing.T, *sshRig)
		class error
		code  string
		says  []string
	}{
		{"unknown host", func(t *testing.T, r *sshRig) { sshtest.WriteFile(t, r.dir, "known_hosts", nil) },
			provider.ErrPermanent, "HostKeyUnknown", []string{"127.0.0.1", "ssh-keyscan -p "}},
		{"another host key", func(t *testing.T, r *sshRig) {
			other := sshtest.NewKey(t)
			line := strings.Fields(r.server.KnownHosts())
			sshtest.WriteFile(t, r.dir, "known_hosts", []byte(line[0]+" "+string(ssh.MarshalAuthorizedKey(other.PublicKey()))))
		}, provider.ErrPermanent, "HostKeyChanged", []string{"SHA256:"}},
		{"bad known_hosts", func(t *testing.T, r *sshRig) {
			sshtest.WriteFile(t, r.dir, "known_hosts", []byte("host ssh-rsa !!!\n"))
		},
			provider.ErrPermanent, "KeyInvalid", []string{"not a known_hosts file", "ssh-keyscan", "line 1"}},
		{"no known_hosts", func(_ *testing.T, r *sshRig) { r.cfg.KnownHostsFile += ".missing" },
			provider.ErrTransient, "KeyMissing", []string{"known_hosts.missing"}},
		{"wrong client key", func(t *testing.T, r *sshRig) { r.server.Authorize(sshtest.NewKey(t).PublicKey()) },
			provider.ErrPermanent, "AuthRefused", []string{"user egress", "authorized_keys"}},
		{"no key", func(_ *testing.T, r *sshRig) { r.cfg.SSHKeyFile += ".missing" },
			provider.ErrTransient, "KeyMissing", []string{"id.missing"}},
		{"public key", func(t *testing.T, r *sshRig) {
			sshtest.WriteFile(t, r.dir, "id", ssh.MarshalAuthorizedKey(r.key.PublicKey()))
		}, provider.ErrPermanent, "KeyInvalid", []string{"not a private key but a public one"}},
		{"not a key", func(t *testing.T, r *sshRig) { sshtest.WriteFile(t, r.dir, "id", []byte("hello")) },
			provider.ErrPermanent, "KeyInvalid", []string{"not a private key"}},
		{"forwarding forbidden", func(_ *testing.T, r *sshRig) { r.server.Reject(ssh.Prohibited) },
			provider.ErrPermanent, "ForwardingRefused", []string{"AllowStreamLocalForwarding"}},
		{"forwarding fails", func(_ *testing.T, r *sshRig) { r.server.Reject(ssh.ConnectionFailed) },
			provider.ErrTransient, "SocketUnreachable", []string{"AllowStreamLocalForwarding", "group libvirt", "running"}},
		{"no socket", func(_ *testing.T, r *sshRig) {
			r.cfg.Hosts[0].Socket += ".missing"
			r.server.Shell(func(string) string { return "missing" })
		}, provider.ErrTransient, "SocketUnreachable", []string{"has no socket", "libvirtd"}},
		{"denied", func(_ *testing.T, r *sshRig) {
			r.server.Reject(ssh.ConnectionFailed)
			r.server.Shell(func(string) string { return "denied" })
		}, provider.ErrPermanent, "SocketUnreachable", []string{"group libvirt"}},
		{"nobody there", func(_ *testing.T, r *sshRig) { r.server.Close() },
			provider.ErrTransient, "NoAnswer", []string{"cannot reach sshd"}},
	} {
		t.Run(c.what, func(t *testing.T) {
			r := newSSHRig(t, func(r *sshRig) { c.amend(t, r) })
			err := r.list(testContext(t))
			require.ErrorIs(t, err, c.class)
			assert.True(t, provider.HasCode(err, c.code), "%v", err)
			for _, s := range c.says {
				assert.ErrorContains(t, err, s)
			}
			assert.NotContains(t, err.Error(), "BEGIN")
			r.server.Close() // what came is counted then
			if c.code != "ForwardingRefused" && c.code != "SocketUnreachable" {
				assert.Zero(t, r.server.Logins())
			}
			assert.Zero(t, r.wire.Accepted())
		})
	}
}

// TestSSHOneKeyType logs in where known_hosts has, hashed, one of the host's
// keys only, of a type that would not be chosen by itself.
func TestSSHOneKeyType(t *testing.T) {
	private, err := ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	require.NoError(t, err)
	known, err := ssh.NewSignerFromKey(private)
	require.NoError(t, err)
	r := newSSHRig(t, func(r *sshRig) {
		r.server = sshtest.New(t, r.key.PublicKey(), sshtest.NewKey(t).Signer, known)
		r.cfg.Hosts[0].Address = r.server.Address()
		line := knownhosts.HashHostname(knownhosts.Normalize(r.server.Address())) + " " + string(ssh.MarshalAuthorizedKey(known.PublicKey()))
		sshtest.WriteFile(t, r.dir, "known_hosts", []byte(line))
	})
	require.NoError(t, r.list(testContext(t)))
}

// TestSSHNoCommonKey names the file where the host has other keys only.
func TestSSHNoCommonKey(t *testing.T) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	known, err := ssh.NewSignerFromKey(private)
	require.NoError(t, err)
	r := newSSHRig(t, func(r *sshRig) {
		sshtest.WriteFile(t, r.dir, "known_hosts", []byte(knownhosts.Line([]string{r.server.Address()}, known.PublicKey())+"\n"))
	})
	err = r.list(testContext(t))
	require.ErrorIs(t, err, provider.ErrPermanent)
	assert.True(t, provider.HasCode(err, "HostKeyUnknown"), "%v", err)
	assert.ErrorContains(t, err, "ecdsa-sha2-nistp256")
	r.server.Close() // what came is counted then
	assert.Zero(t, r.server.Logins())
}

func TestSSHInsecure(t *testing.T) {
	r := newSSHRig(t, func(r *sshRig) { r.cfg.InsecureIgnoreHostKey, r.cfg.KnownHostsFile = true, "" })
	require.NoError(t, r.list(testContext(t)))
}

func TestSSHSilentServer(t *testing.T) {
	r := newSSHRig(t, func(r *sshRig) {
		r.server.Silence()
		r.cfg.Timeouts.Dial = provider.Duration(500 * time.Millisecond)
	})
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	start := time.Now()
	require.ErrorIs(t, r.list(ctx), context.DeadlineExceeded)
	assert.Less(t, time.Since(start), 300*time.Millisecond)

	err := r.list(testContext(t))
	require.ErrorIs(t, err, provider.ErrTransient)
	assert.True(t, provider.HasCode(err, "NoAnswer"), "%v", err)
}

// TestSSHKeyAppears heals without a restart.
func TestSSHKeyAppears(t *testing.T) {
	var warned atomic.Bool
	r := newSSHRig(t, func(r *sshRig) {
		require.NoError(t, os.Remove(r.cfg.SSHKeyFile))
		r.cfg.Logger = funcr.New(func(_, args string) {
			if strings.Contains(args, "kvm ssh material is not usable") {
				warned.Store(true)
			}
		}, funcr.Options{})
	})
	assert.True(t, warned.Load(), "New warns and works")
	require.ErrorIs(t, r.list(testContext(t)), provider.ErrTransient)
	sshtest.WriteFile(t, r.dir, "id", r.key.PEM)
	require.NoError(t, r.list(testContext(t)))
}

// TestSSHKeyRotates takes a new key up, and stays with what worked while the
// file is gone.
func TestSSHKeyRotates(t *testing.T) {
	r := newSSHRig(t, nil)
	require.NoError(t, r.list(testContext(t)))

	next := sshtest.NewKey(t)
	r.server.Authorize(next.PublicKey())
	sshtest.WriteFile(t, r.dir, "id", next.PEM)
	r.server.Disconnect()
	require.Eventually(t, func() bool { return r.list(testContext(t)) == nil }, 10*time.Second, 20*time.Millisecond)
	assert.Equal(t, 2, r.server.Logins())

	require.NoError(t, os.Remove(r.cfg.SSHKeyFile))
	r.server.Disconnect()
	require.Eventually(t, func() bool { return r.list(testContext(t)) == nil }, 10*time.Second, 20*time.Millisecond)
}

// TestSSHKeepalive drops a server that stopped to answer requests, and makes a
// new connection.
func TestSSHKeepalive(t *testing.T) {
	r := newSSHRig(t, nil)
	require.NoError(t, r.list(testContext(t)))
	r.server.Mute()
	require.Eventually(t, func() bool { return r.list(testContext(t)) == nil && r.server.Logins() > 1 }, 10*time.Second, 50*time.Millisecond)
}

// TestSilentLibvirt returns when the caller's context ends, keeps the
// connection through the grace, and then makes a new one.
func TestSilentLibvirt(t *testing.T) {
	var silent atomic.Bool
	r := newSSHRig(t, func(r *sshRig) { r.wire.Silent = silent.Load })
	require.NoError(t, r.list(testContext(t)))
	silent.Store(true)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	start := time.Now()
	require.ErrorIs(t, r.list(ctx), context.DeadlineExceeded)
	assert.Less(t, time.Since(start), 250*time.Millisecond)
	silent.Store(false)

	require.NoError(t, r.list(testContext(t)))
	assert.Equal(t, 1, r.wire.Accepted(), "one impatient caller is no outage for the others")
	require.Eventually(t, func() bool { return r.list(testContext(t)) == nil && r.wire.Accepted() == 2 }, 10*time.Second, 20*time.Millisecond)
	assert.Equal(t, 1, r.server.Logins(), "the SSH connection stays")
}

// TestReadsAreRetried moves a read to a new connection when the grace of
// somebody else's call condemned the old one.
func TestReadsAreRetried(t *testing.T) {
	var silent atomic.Bool
	r := newSSHRig(t, func(r *sshRig) { r.wire.Silent = silent.Load })
	require.NoError(t, r.list(testContext(t)))
	silent.Store(true)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	patient := make(chan error, 1)
	go func() { patient <- r.list(testContext(t)) }()
	require.Error(t, r.list(ctx))
	silent.Store(false)
	require.NoError(t, <-patient)
}

func TestCallTimeout(t *testing.T) {
	var silent atomic.Bool
	silent.Store(true)
	r := newSSHRig(t, func(r *sshRig) {
		r.wire.Silent = silent.Load
		r.cfg.Timeouts.Call = provider.Duration(100 * time.Millisecond)
	})
	err := r.list(testContext(t))
	require.ErrorIs(t, err, provider.ErrTransient)
	assert.True(t, provider.HasCode(err, "NoAnswer"), "%v", err)
}

// TestCloseEndsCalls closes while a call waits for ever.
func TestCloseEndsCalls(t *testing.T) {
	r := newSSHRig(t, func(r *sshRig) { r.wire.Silent = func() bool { return true } })
	done := make(chan error, 1)
	go func() { done <- r.list(testContext(t)) }()
	require.Eventually(t, func() bool { return r.wire.Calls() > 2 }, 10*time.Second, 5*time.Millisecond)
	start := time.Now()
	require.NoError(t, r.Close())
	require.ErrorIs(t, <-done, context.Canceled)
	assert.Less(t, time.Since(start), time.Second)
}

func TestLocalSocket(t *testing.T) {
	r := newSSHRig(t, func(r *sshRig) { r.cfg.Hosts[0].Address = "local" })
	require.NoError(t, r.list(testContext(t)))
	assert.Zero(t, r.server.Logins())

	r = newSSHRig(t, func(r *sshRig) { r.cfg.Hosts[0].Address, r.cfg.Hosts[0].Socket = "", "/nonexistent/sock" })
	err := r.list(testContext(t))
	require.ErrorIs(t, err, provider.ErrTransient)
	assert.True(t, provider.HasCode(err, "SocketUnreachable"))
}

// TestSSHSocketThatComesToLife is not taken for one that may not be forwarded:
// libvirtd restarts between the refusal and the look at its socket.
func TestSSHSocketThatComesToLife(t *testing.T) {
	r := newSSHRig(t, func(r *sshRig) {
		r.server.Reject(ssh.ConnectionFailed)
		r.server.Shell(func(string) string {
			r.server.Reject(0)
			return "fine"
		})
	})
	require.NoError(t, r.list(testContext(t)))
}

// TestShellWithoutEnd has the shell of a host print without end: what is read of it
// has a limit, and a command whose time is over does not go on.
func TestShellWithoutEnd(t *testing.T) {
	r := newSSHRig(t, nil)
	require.NoError(t, r.list(testContext(t)))
	r.server.Shell(func(string) string { return "heard" })
	require.Equal(t, "heard", kvm.AskShell(t.Context(), r.Provider, "kvm1", "true"))
	var before int
	require.Eventually(t, func() bool {
		now := runtime.NumGoroutine()
		settled := now == before
		before = now
		return settled
	}, 10*time.Second, 100*time.Millisecond)

	r.server.Chatter(strings.Repeat("a", 1000), 0)
	assert.Len(t, kvm.AskShell(t.Context(), r.Provider, "kvm1", "yes"), 64<<10)

	r.server.Chatter("a", 10*time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	assert.Empty(t, kvm.AskShell(ctx, r.Provider, "kvm1", "yes"))
	assert.Eventually(t, func() bool { return runtime.NumGoroutine() <= before }, 10*time.Second, 50*time.Millisecond)
	require.NoError(t, r.list(testContext(t)))
}
