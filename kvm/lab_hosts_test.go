package kvm_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/internal/sshtest"
	"github.com/egressfleet/egress/kvm"
	"github.com/egressfleet/egress/provider"
)

// openSSH is a real sshd of the test's own, with options of its own.
type openSSH struct {
	address, known string
}

const sshd = "/usr/sbin/sshd"

// startOpenSSH lets the key in. The options come first, so that they win; restrict
// stands before the key in authorized_keys.
func startOpenSSH(t *testing.T, key sshtest.Key, restrict, options string) openSSH {
	t.Helper()
	dir := t.TempDir()
	host := sshtest.NewKey(t)
	hostFile := sshtest.WriteFile(t, dir, "host", host.PEM)
	require.NoError(t, os.Chmod(hostFile, 0o600))
	authorized := sshtest.WriteFile(t, dir, "authorized_keys", []byte(restrict+" "+key.AuthorizedLine()))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := l.Addr().String()
	require.NoError(t, l.Close())
	_, port, _ := net.SplitHostPort(address)
	config := sshtest.WriteFile(t, dir, "sshd_config", []byte(fmt.Sprintf(`%s
Port %s
ListenAddress 127.0.0.1
HostKey %s
AuthorizedKeysFile %s
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
StrictModes no
UsePAM no
PidFile none
`, options, port, hostFile, authorized)))
	cmd := exec.Command(sshd, "-D", "-e", "-f", config)
	log := &strings.Builder{}
	cmd.Stderr = log
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("sshd: %s", log)
		}
	})
	require.Eventually(t, func() bool {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	}, 10*time.Second, 20*time.Millisecond)
	return openSSH{address: address, known: fmt.Sprintf("[127.0.0.1]:%s %s", port, host.AuthorizedLine())}
}

// newOpenSSHRig is a rig whose server is OpenSSH's: amend says where it is. It
// needs no hypervisor.
func newOpenSSHRig(t *testing.T, amend func(*kvm.Config, sshtest.Key)) *sshRig {
	t.Helper()
	for _, path := range []string{sshd, "/run/sshd"} {
		if _, err := os.Stat(path); err != nil || os.Getuid() != 0 {
			t.Skip("needs OpenSSH's server and root: make lab-test")
		}
	}
	return newSSHRig(t, func(r *sshRig) {
		r.cfg.Timeouts.Keepalive = 0
		r.cfg.Hosts[0].User = "root"
		amend(&r.cfg, r.key)
	})
}

// TestLabOpenSSH has OpenSSH refuse in every way that one of its options has, and
// the error name the option.
func TestLabOpenSSH(t *testing.T) {
	for _, c := range []struct {
		what, restrict, options string
		amend                   func(*testing.T, *kvm.Config)
		class                   error
		code                    string
		says                    []string
	}{
		{what: "as it comes"},
		{what: "MaxSessions 0", options: "MaxSessions 0"},
		{what: "AllowStreamLocalForwarding no", options: "AllowStreamLocalForwarding no",
			class: provider.ErrPermanent, code: "ForwardingRefused", says: []string{"AllowStreamLocalForwarding yes"}},
		{what: "DisableForwarding yes", options: "DisableForwarding yes",
			class: provider.ErrPermanent, code: "ForwardingRefused", says: []string{"DisableForwarding no"}},
		{what: "restrict", restrict: "restrict",
			class: provider.ErrPermanent, code: "ForwardingRefused", says: []string{"no restrict"}},
		{what: "AllowStreamLocalForwarding no, without a shell", restrict: `command="exit"`, options: "AllowStreamLocalForwarding no",
			class: provider.ErrTransient, code: "SocketUnreachable", says: []string{"AllowStreamLocalForwarding yes", "group libvirt"}},
		{what: "no socket", amend: func(_ *testing.T, c *kvm.Config) { c.Hosts[0].Socket = "/nonexistent/sock" },
			class: provider.ErrTransient, code: "SocketUnreachable", says: []string{"has no socket /nonexistent/sock", "libvirtd.socket"}},
		{what: "a socket that nobody serves", amend: func(t *testing.T, c *kvm.Config) { c.Hosts[0].Socket = staleSocket(t) },
			class: provider.ErrTransient, code: "SocketUnreachable", says: []string{"nobody listens"}},
		{what: "PubkeyAuthentication no", options: "PubkeyAuthentication no\nPasswordAuthentication yes",
			class: provider.ErrPermanent, code: "AuthRefused", says: []string{"PubkeyAuthentication yes"}},
		{what: "DenyUsers root", options: "DenyUsers root",
			class: provider.ErrPermanent, code: "AuthRefused", says: []string{"AllowUsers"}},
		{what: "another key", amend: func(t *testing.T, c *kvm.Config) {
			c.SSHKeyFile = sshtest.WriteFile(t, t.TempDir(), "id", sshtest.NewKey(t).PEM)
		}, class: provider.ErrPermanent, code: "AuthRefused", says: []string{"authorized_keys"}},
		{what: "MaxAuthTries", options: "MaxAuthTries 2", amend: func(t *testing.T, c *kvm.Config) {
			startAgent(t, sshtest.NewKey(t), sshtest.NewKey(t), sshtest.NewKey(t))
			c.SSHKeyFile, c.SSHAgent = "", true
		}, class: provider.ErrPermanent, code: "AuthRefused", says: []string{"MaxAuthTries"}},
		{what: "MaxStartups", options: "MaxStartups 1", amend: func(t *testing.T, c *kvm.Config) {
			conn, err := net.Dial("tcp", c.Hosts[0].Address)
			require.NoError(t, err)
			t.Cleanup(func() { _ = conn.Close() })
			_, err = conn.Read(make([]byte, 4)) // it is counted
			require.NoError(t, err)
		}, class: provider.ErrTransient, code: "ServerBusy", says: []string{"MaxStartups"}},
		{what: "another host key", amend: func(t *testing.T, c *kvm.Config) {
			other := startOpenSSH(t, sshtest.NewKey(t), "", "")
			_, key, _ := strings.Cut(other.known, " ")
			_, port, _ := net.SplitHostPort(c.Hosts[0].Address)
			c.KnownHostsFile = sshtest.WriteFile(t, t.TempDir(), "known_hosts", []byte("[127.0.0.1]:"+port+" "+key))
		}, class: provider.ErrPermanent, code: "HostKeyChanged", says: []string{"SHA256:"}},
		{what: "unknown host", amend: func(t *testing.T, c *kvm.Config) {
			c.KnownHostsFile = sshtest.WriteFile(t, t.TempDir(), "known_hosts", nil)
		}, class: provider.ErrPermanent, code: "HostKeyUnknown", says: []string{"ssh-keyscan -p"}},
	} {
		t.Run(c.what, func(t *testing.T) {
			r := newOpenSSHRig(t, func(cfg *kvm.Config, key sshtest.Key) {
				s := startOpenSSH(t, key, c.restrict, c.options)
				cfg.Hosts[0].Address = s.address
				cfg.KnownHostsFile = sshtest.WriteFile(t, t.TempDir(), "known_hosts", []byte(s.known))
				if c.amend != nil {
					c.amend(t, cfg)
				}
			})
			requireRefusal(t, r.list(testContext(t)), c.class, c.code, c.says)
		})
	}
}

// requireRefusal checks an error, or that there is none where none is wanted.
func requireRefusal(t *testing.T, err, class error, code string, says []string) {
	t.Helper()
	if class == nil {
		require.NoError(t, err)
		return
	}
	require.ErrorIs(t, err, class)
	assert.True(t, provider.HasCode(err, code), "%v", err)
	for _, s := range says {
		assert.ErrorContains(t, err, s)
	}
}

// TestLabJump goes through one OpenSSH to another, and has the first refuse.
func TestLabJump(t *testing.T) {
	for _, c := range []struct {
		what, restrict, options string
		class                   error
		code                    string
		says                    []string
	}{
		{what: "as it comes"},
		{what: "AllowTcpForwarding no", options: "AllowTcpForwarding no",
			class: provider.ErrPermanent, code: "ForwardingRefused", says: []string{"jump host", "AllowTcpForwarding yes"}},
		{what: "PermitOpen", options: "PermitOpen 127.0.0.1:1",
			class: provider.ErrPermanent, code: "ForwardingRefused", says: []string{"jump host", "PermitOpen"}},
		{what: "restrict", restrict: "restrict",
			class: provider.ErrPermanent, code: "ForwardingRefused", says: []string{"jump host", "no restrict"}},
		{what: "DenyUsers root", options: "DenyUsers root",
			class: provider.ErrPermanent, code: "AuthRefused", says: []string{"jump host", "AllowUsers"}},
	} {
		t.Run(c.what, func(t *testing.T) {
			r := newOpenSSHRig(t, func(cfg *kvm.Config, key sshtest.Key) {
				s, jump := startOpenSSH(t, key, "", ""), startOpenSSH(t, key, c.restrict, c.options)
				cfg.Hosts[0].Address, cfg.Hosts[0].Jump = s.address, jump.address
				cfg.KnownHostsFile = sshtest.WriteFile(t, t.TempDir(), "known_hosts", []byte(s.known+jump.known))
			})
			requireRefusal(t, r.list(testContext(t)), c.class, c.code, c.says)
		})
	}
}

// TestLabOwnMaterial reaches OpenSSH by an address in libvirt's form, which names
// its own files.
func TestLabOwnMaterial(t *testing.T) {
	r := newOpenSSHRig(t, func(cfg *kvm.Config, key sshtest.Key) {
		h := &cfg.Hosts[0]
		s := startOpenSSH(t, key, "", "")
		known := sshtest.WriteFile(t, t.TempDir(), "known_hosts", []byte(s.known))
		h.Address = "qemu+ssh://root@" + s.address + "/system?keyfile=" + cfg.SSHKeyFile + "&known_hosts=" + known + "&socket=" + h.Socket
		h.User, h.Socket, cfg.SSHKeyFile, cfg.KnownHostsFile = "", "", "", ""
	})
	require.NoError(t, r.list(testContext(t)))
}

// TestLabModularDaemons finds the socket of QEMU's own daemon through OpenSSH where
// there is none of libvirtd.
func TestLabModularDaemons(t *testing.T) {
	r := newOpenSSHRig(t, func(cfg *kvm.Config, key sshtest.Key) {
		s := startOpenSSH(t, key, "", "")
		cfg.KnownHostsFile = sshtest.WriteFile(t, t.TempDir(), "known_hosts", []byte(s.known))
		kvm.UseSockets(t, filepath.Join(t.TempDir(), "libvirt-sock"), cfg.Hosts[0].Socket)
		cfg.Hosts[0].Socket, cfg.Hosts[0].Address = "", s.address
	})
	require.NoError(t, r.list(testContext(t)))
}
