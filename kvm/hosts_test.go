package kvm_test

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"github.com/egressfleet/egress/internal/sshtest"
	"github.com/egressfleet/egress/kvm"
	"github.com/egressfleet/egress/provider"
)

// realShell runs what a user's shell is asked.
func realShell(command string) string {
	out, err := exec.Command("/bin/sh", "-c", command).CombinedOutput()
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(out))
}

// startAgent serves an SSH agent with these keys, and sets SSH_AUTH_SOCK.
func startAgent(t *testing.T, keys ...sshtest.Key) {
	t.Helper()
	ring := agent.NewKeyring()
	for _, k := range keys {
		require.NoError(t, ring.Add(agent.AddedKey{PrivateKey: k.Private}))
	}
	path := filepath.Join(t.TempDir(), "agent")
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_ = agent.ServeAgent(ring, conn)
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-done })
	t.Setenv("SSH_AUTH_SOCK", path)
}

// TestSSHRemedies has each way in which a host can be closed name what opens it.
func TestSSHRemedies(t *testing.T) {
	t.Setenv("SSH_AUTH_SOCK", "")
	for _, c := range []struct {
		what  string
		amend func(*testing.T, *sshRig)
		class error
		code  string
		says  []string
	}{
		{"AllowStreamLocalForwarding no, as OpenSSH says it", func(_ *testing.T, r *sshRig) {
			r.server.Reject(ssh.ConnectionFailed)
			r.server.Shell(realShell)
		}, provider.ErrPermanent, "ForwardingRefused", []string{"AllowStreamLocalForwarding yes", "user egress", "no-port-forwarding"}},
		{"nobody listens", func(t *testing.T, r *sshRig) {
			r.cfg.Hosts[0].Socket = staleSocket(t)
			r.server.Shell(realShell)
		}, provider.ErrTransient, "SocketUnreachable", []string{"nobody listens", "libvirtd.socket", "virtqemud.socket"}},
		{"no socket", func(_ *testing.T, r *sshRig) {
			r.cfg.Hosts[0].Socket += ".missing"
			r.server.Shell(realShell)
		}, provider.ErrTransient, "SocketUnreachable", []string{"has no socket"}},
		{"no libvirt", func(_ *testing.T, r *sshRig) {
			r.server.Reject(ssh.ConnectionFailed)
			r.server.Shell(func(string) string { return "nodaemon" })
		}, provider.ErrTransient, "SocketUnreachable", []string{"libvirt-daemon-system (Debian", "libvirt-daemon-kvm (RHEL"}},
		{"not in the group", func(_ *testing.T, r *sshRig) {
			r.server.Reject(ssh.ConnectionFailed)
			r.server.Shell(func(string) string { return "denied\nmissing" })
		}, provider.ErrPermanent, "SocketUnreachable", []string{"usermod -aG libvirt egress"}},
		{"PubkeyAuthentication no", func(_ *testing.T, r *sshRig) { r.server.PasswordsOnly() },
			provider.ErrPermanent, "AuthRefused", []string{"PubkeyAuthentication yes"}},
		{"the key is not authorized", func(t *testing.T, r *sshRig) { r.server.Authorize(sshtest.NewKey(t).PublicKey()) },
			provider.ErrPermanent, "AuthRefused", []string{"authorized_keys", "AllowUsers", "/id"}},
		{"MaxAuthTries", func(t *testing.T, r *sshRig) {
			r.server.Authorize(sshtest.NewKey(t).PublicKey())
			r.cfg.SSHAgent = true
			startAgent(t, sshtest.NewKey(t), sshtest.NewKey(t), sshtest.NewKey(t), sshtest.NewKey(t), sshtest.NewKey(t), sshtest.NewKey(t), sshtest.NewKey(t))
		}, provider.ErrPermanent, "AuthRefused", []string{"MaxAuthTries", "7 of the ssh agent"}},
		{"MaxStartups", func(_ *testing.T, r *sshRig) { r.server.Open("Exceeded MaxStartups\r\n") },
			provider.ErrTransient, "ServerBusy", []string{"raise MaxStartups"}},
		{"PerSourcePenalties", func(_ *testing.T, r *sshRig) { r.server.Open("Not allowed at this time\r\n") },
			provider.ErrTransient, "ServerBusy", []string{"PerSourcePenalties"}},
		{"ended at once", func(_ *testing.T, r *sshRig) { r.server.Open("") },
			provider.ErrTransient, "ServerBusy", []string{"MaxStartups"}},
		{"another service", func(_ *testing.T, r *sshRig) { r.server.Open("220 mail.example.com\r\n") },
			provider.ErrTransient, "NoAnswer", []string{"is no sshd", "220 mail"}},
		{"passphrase", func(t *testing.T, r *sshRig) { sshtest.WriteFile(t, r.dir, "id", r.key.Locked(t, "hunter2")) },
			provider.ErrPermanent, "KeyLocked", []string{"needs a passphrase", "sshAgent"}},
		{"wrong passphrase", func(t *testing.T, r *sshRig) {
			r.lock(t)
			r.cfg.Passphrase = func(context.Context, string) ([]byte, error) { return []byte("hunter3"), nil }
		}, provider.ErrPermanent, "KeyLocked", []string{"not the right one"}},
		{"no passphrase to be had", func(t *testing.T, r *sshRig) {
			sshtest.WriteFile(t, r.dir, "id", r.key.Locked(t, "hunter2"))
			r.cfg.Passphrase = func(context.Context, string) ([]byte, error) { return nil, errors.New("the vault is closed") }
		}, provider.ErrTransient, "KeyLocked", []string{"the vault is closed"}},
		{"no agent", func(_ *testing.T, r *sshRig) { r.cfg.SSHKeyFile, r.cfg.SSHAgent = "", true },
			provider.ErrTransient, "AgentUnusable", []string{"SSH_AUTH_SOCK is not set", "ssh-agent"}},
		{"empty agent", func(t *testing.T, r *sshRig) {
			r.cfg.SSHKeyFile, r.cfg.SSHAgent = "", true
			startAgent(t)
		}, provider.ErrTransient, "AgentUnusable", []string{"ssh-add"}},
		{"dead agent", func(t *testing.T, r *sshRig) {
			r.cfg.SSHKeyFile, r.cfg.SSHAgent = "", true
			t.Setenv("SSH_AUTH_SOCK", filepath.Join(r.dir, "none"))
		}, provider.ErrTransient, "AgentUnusable", []string{"does not answer"}},
	} {
		t.Run(c.what, func(t *testing.T) {
			r := newSSHRig(t, func(r *sshRig) { c.amend(t, r) })
			err := r.list(testContext(t))
			require.ErrorIs(t, err, c.class)
			assert.True(t, provider.HasCode(err, c.code), "%v", err)
			for _, s := range c.says {
				assert.ErrorContains(t, err, s)
			}
			assert.NotContains(t, err.Error(), "hunter")
		})
	}
}

// staleSocket is a socket whose server is gone.
func staleSocket(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	require.NoError(t, err)
	l.SetUnlinkOnClose(false)
	require.NoError(t, l.Close())
	return path
}

// TestPassphrase asks once for each version of the key file, not at New, and
// overwrites the answer.
func TestPassphrase(t *testing.T) {
	var asked atomic.Int32
	var given []byte
	r := newSSHRig(t, func(r *sshRig) {
		r.lock(t)
		r.cfg.Passphrase = func(_ context.Context, file string) ([]byte, error) {
			assert.Equal(t, r.cfg.SSHKeyFile, file)
			asked.Add(1)
			given = []byte("hunter2")
			return given, nil
		}
		second := r.cfg.Hosts[0]
		second.Name = "kvm2"
		r.cfg.Hosts = append(r.cfg.Hosts, second)
	})
	assert.Zero(t, asked.Load())
	require.NoError(t, r.list(testContext(t)))
	assert.EqualValues(t, 1, asked.Load(), "for two hosts")
	assert.Equal(t, make([]byte, 7), given)

	r.server.Disconnect()
	r.mustReconnect(t)
	assert.EqualValues(t, 1, asked.Load(), "for the same file")

	next := sshtest.NewKey(t)
	r.server.Authorize(next.PublicKey())
	sshtest.WriteFile(t, r.dir, "id", next.Locked(t, "hunter2"))
	r.server.Disconnect()
	r.mustReconnect(t)
	assert.EqualValues(t, 2, asked.Load(), "for a new one")
}

// lock gives the key file a passphrase.
func (r *sshRig) lock(t *testing.T) {
	t.Helper()
	sshtest.WriteFile(t, r.dir, "id", r.key.Locked(t, "hunter2"))
}

func (r *sshRig) mustReconnect(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool { return r.list(testContext(t)) == nil }, 20*time.Second, 20*time.Millisecond)
}

// TestHungPassphrase does not keep Close waiting.
func TestHungPassphrase(t *testing.T) {
	asked := make(chan struct{})
	r := newSSHRig(t, func(r *sshRig) {
		sshtest.WriteFile(t, r.dir, "id", r.key.Locked(t, "hunter2"))
		r.cfg.Passphrase = func(ctx context.Context, _ string) ([]byte, error) {
			close(asked)
			<-ctx.Done()
			return nil, ctx.Err()
		}
	})
	done := make(chan error, 1)
	go func() { done <- r.list(testContext(t)) }()
	<-asked
	require.NoError(t, r.Close())
	require.Error(t, <-done)
}

// TestAgent logs in with the agent's key: alone, beside a key file that the host
// does not take, and in place of one that has a passphrase.
func TestAgent(t *testing.T) {
	for what, amend := range map[string]func(*testing.T, *sshRig){
		"alone":                 func(_ *testing.T, r *sshRig) { r.cfg.SSHKeyFile = "" },
		"after the file":        func(t *testing.T, r *sshRig) { sshtest.WriteFile(t, r.dir, "id", sshtest.NewKey(t).PEM) },
		"the file is locked":    func(t *testing.T, r *sshRig) { sshtest.WriteFile(t, r.dir, "id", r.key.Locked(t, "hunter2")) },
		"the file is not there": func(t *testing.T, r *sshRig) { require.NoError(t, os.Remove(filepath.Join(r.dir, "id"))) },
		"its right key is not the first": func(t *testing.T, r *sshRig) {
			r.cfg.SSHKeyFile = ""
			startAgent(t, sshtest.NewKey(t), r.key)
		},
	} {
		t.Run(what, func(t *testing.T) {
			r := newSSHRig(t, func(r *sshRig) {
				startAgent(t, r.key)
				r.cfg.SSHAgent = true
				amend(t, r)
			})
			require.NoError(t, r.list(testContext(t)))
		})
	}
}

// TestAgentIsGone stays with the key file.
func TestAgentIsGone(t *testing.T) {
	t.Setenv("SSH_AUTH_SOCK", filepath.Join(t.TempDir(), "none"))
	r := newSSHRig(t, func(r *sshRig) { r.cfg.SSHAgent = true })
	require.NoError(t, r.list(testContext(t)))
}

// withJump puts a jump host before the rig's host, whose key is in the same
// known_hosts.
func (r *sshRig) withJump(t *testing.T) *sshtest.Server {
	t.Helper()
	jump := sshtest.New(t, r.key.PublicKey())
	sshtest.WriteFile(t, r.dir, "known_hosts", []byte(r.server.KnownHosts()+jump.KnownHosts()))
	r.cfg.Hosts[0].Jump = "gate@" + jump.Address()
	return jump
}

// TestJump has two hosts share one connection to their jump, and each its own
// through it.
func TestJump(t *testing.T) {
	var jump *sshtest.Server
	r := newSSHRig(t, func(r *sshRig) {
		jump = r.withJump(t)
		second := r.cfg.Hosts[0]
		second.Name = "kvm2"
		r.cfg.Hosts = append(r.cfg.Hosts, second)
	})
	require.NoError(t, r.list(testContext(t)))
	assert.Equal(t, 1, jump.Logins())
	assert.Equal(t, 2, jump.Forwarded())
	assert.Equal(t, 2, r.server.Logins())

	jump.Disconnect()
	r.mustReconnect(t)
	assert.Equal(t, 2, jump.Logins(), "one again")
}

// TestJumpRefusals name the server that refused.
func TestJumpRefusals(t *testing.T) {
	for _, c := range []struct {
		what  string
		amend func(*testing.T, *sshRig, *sshtest.Server)
		class error
		code  string
		says  func(r *sshRig, jump *sshtest.Server) []string
	}{
		{"unknown jump", func(t *testing.T, r *sshRig, _ *sshtest.Server) {
			sshtest.WriteFile(t, r.dir, "known_hosts", []byte(r.server.KnownHosts()))
		}, provider.ErrPermanent, "HostKeyUnknown", func(_ *sshRig, j *sshtest.Server) []string {
			return []string{"jump host " + j.Address() + ": ", "ssh-keyscan -p " + portOf(j)}
		}},
		{"unknown host behind it", func(t *testing.T, r *sshRig, j *sshtest.Server) {
			sshtest.WriteFile(t, r.dir, "known_hosts", []byte(j.KnownHosts()))
		}, provider.ErrPermanent, "HostKeyUnknown", func(r *sshRig, _ *sshtest.Server) []string {
			return []string{"ssh-keyscan -p " + portOf(r.server)}
		}},
		{"the jump shows another key", func(t *testing.T, r *sshRig, j *sshtest.Server) {
			other := sshtest.New(t, r.key.PublicKey())
			fields := strings.Fields(other.KnownHosts())
			sshtest.WriteFile(t, r.dir, "known_hosts", []byte(r.server.KnownHosts()+strings.Fields(j.KnownHosts())[0]+" "+strings.Join(fields[1:], " ")+"\n"))
		}, provider.ErrPermanent, "HostKeyChanged", func(_ *sshRig, j *sshtest.Server) []string { return []string{"jump host " + j.Address()} }},
		{"the jump refuses the key", func(t *testing.T, _ *sshRig, j *sshtest.Server) { j.Authorize(sshtest.NewKey(t).PublicKey()) },
			provider.ErrPermanent, "AuthRefused", func(_ *sshRig, j *sshtest.Server) []string {
				return []string{"jump host " + j.Address(), "user gate"}
			}},
		{"the host refuses the key", func(t *testing.T, r *sshRig, _ *sshtest.Server) { r.server.Authorize(sshtest.NewKey(t).PublicKey()) },
			provider.ErrPermanent, "AuthRefused", func(r *sshRig, _ *sshtest.Server) []string {
				return []string{"sshd at " + r.server.Address(), "user egress"}
			}},
		{"AllowTcpForwarding no", func(_ *testing.T, _ *sshRig, j *sshtest.Server) { j.RejectTCP(ssh.Prohibited) },
			provider.ErrPermanent, "ForwardingRefused", func(_ *sshRig, j *sshtest.Server) []string {
				return []string{"jump host " + j.Address(), "AllowTcpForwarding yes", "PermitOpen"}
			}},
		{"the jump cannot reach the host", func(_ *testing.T, r *sshRig, _ *sshtest.Server) { r.server.Close() },
			provider.ErrTransient, "NoAnswer", func(r *sshRig, j *sshtest.Server) []string {
				return []string{"jump host " + j.Address(), "cannot reach sshd at " + r.server.Address()}
			}},
		{"no jump there", func(_ *testing.T, _ *sshRig, j *sshtest.Server) { j.Close() },
			provider.ErrTransient, "NoAnswer", func(_ *sshRig, j *sshtest.Server) []string {
				return []string{"jump host " + j.Address(), "cannot reach sshd"}
			}},
	} {
		t.Run(c.what, func(t *testing.T) {
			var jump *sshtest.Server
			r := newSSHRig(t, func(r *sshRig) {
				jump = r.withJump(t)
				c.amend(t, r, jump)
			})
			err := r.list(testContext(t))
			require.ErrorIs(t, err, c.class)
			assert.True(t, provider.HasCode(err, c.code), "%v", err)
			for _, s := range c.says(r, jump) {
				assert.ErrorContains(t, err, s)
			}
			r.server.Close() // what came is counted then
			assert.Zero(t, r.server.Logins())
			if c.what == "the jump shows another key" || c.what == "unknown jump" {
				jump.Close()
				assert.Zero(t, jump.Logins())
			}
		})
	}
}

func portOf(s *sshtest.Server) string {
	_, port, _ := net.SplitHostPort(s.Address())
	return port
}

// TestOwnMaterial has a host use its own key and known_hosts, by fields and by a
// URI.
func TestOwnMaterial(t *testing.T) {
	for what, amend := range map[string]func(r *sshRig, key, known string){
		"fields": func(r *sshRig, key, known string) {
			r.cfg.Hosts[0].SSHKeyFile, r.cfg.Hosts[0].KnownHostsFile = key, known
		},
		"uri": func(r *sshRig, key, known string) {
			h := &r.cfg.Hosts[0]
			h.Address = "qemu+ssh://egress@" + h.Address + "/system?keyfile=" + key + "&known_hosts=" + known + "&socket=" + h.Socket
			h.Socket, h.User = "", ""
		},
	} {
		t.Run(what, func(t *testing.T) {
			r := newSSHRig(t, func(r *sshRig) {
				key := sshtest.WriteFile(t, r.dir, "own", r.key.PEM)
				known := sshtest.WriteFile(t, r.dir, "own-hosts", []byte(r.server.KnownHosts()))
				r.cfg.SSHKeyFile, r.cfg.KnownHostsFile = "", ""
				amend(r, key, known)
			})
			require.NoError(t, r.list(testContext(t)))
		})
	}
}

func TestNoVerify(t *testing.T) {
	r := newSSHRig(t, func(r *sshRig) {
		r.cfg.KnownHostsFile = ""
		r.cfg.Hosts[0].Address = "qemu+ssh://" + r.cfg.Hosts[0].Address + "/system?no_verify=1"
	})
	require.NoError(t, r.list(testContext(t)))
}

// TestModularDaemons finds the socket of QEMU's own daemon where that of the one
// daemon is missing, or left behind.
func TestModularDaemons(t *testing.T) {
	for what, libvirtd := range map[string]string{"missing": "/nonexistent/libvirt-sock", "left behind": staleSocket(t)} {
		for _, address := range []string{"ssh", "local", "qemu:///system", "qemu+unix:///system"} {
			t.Run(what+" "+address, func(t *testing.T) {
				r := newSSHRig(t, func(r *sshRig) {
					kvm.UseSockets(t, libvirtd, r.cfg.Hosts[0].Socket)
					r.cfg.Hosts[0].Socket = ""
					if address != "ssh" {
						r.cfg.Hosts[0].Address = address
					}
				})
				require.NoError(t, r.list(testContext(t)))
			})
		}
	}
}

func TestLocalURI(t *testing.T) {
	r := newSSHRig(t, func(r *sshRig) {
		h := &r.cfg.Hosts[0]
		h.Address, h.Socket, h.User = "qemu+unix:///system?socket="+h.Socket, "", ""
		r.cfg.SSHKeyFile, r.cfg.KnownHostsFile = "", ""
	})
	require.NoError(t, r.list(testContext(t)))
	assert.Zero(t, r.server.Logins())
}

// TestAddressesAreChecked says what is wrong with a way to a host.
func TestAddressesAreChecked(t *testing.T) {
	base := kvm.Host{Name: "a", User: "u", Bridge: "br0"}
	for _, c := range []struct {
		change func(*kvm.Host)
		says   string // empty for a good one
	}{
		{func(h *kvm.Host) { h.Address = "h" }, ""},
		{func(h *kvm.Host) { h.Address = "[2001:db8::1]:2222" }, ""},
		{func(h *kvm.Host) { h.Address = "[2001:db8::1]" }, ""},
		{func(h *kvm.Host) { h.Address = "qemu+ssh://[2001:db8::1]/system" }, ""},
		{func(h *kvm.Host) { h.Address, h.User = "qemu+ssh://root@h:22/system", "" }, ""},
		{func(h *kvm.Host) { h.Address = "qemu+ssh://u@h/system?socket=/s&keyfile=/k&known_hosts=/n&no_verify=0" }, ""},
		{func(h *kvm.Host) { h.Address, h.User = "qemu:///system", "" }, ""},
		{func(h *kvm.Host) { h.Address, h.Jump = "h", "gate" }, ""},
		{func(h *kvm.Host) { h.Address, h.Jump = "h", "root@[2001:db8::1]:2222" }, ""},

		{func(h *kvm.Host) { h.Address = "qemu+ssh://h/session" }, `hosts[0].address: the path "/session"`},
		{func(h *kvm.Host) { h.Address = "qemu+tls://h/system" }, `hosts[0].address: the scheme "qemu+tls"`},
		{func(h *kvm.Host) { h.Address = "qemu+ssh://h/system?netcat=x" }, `hosts[0].address: the parameter "netcat" is not known`},
		{func(h *kvm.Host) { h.Address = "qemu+unix:///system?keyfile=x" }, `the parameter "keyfile" is not known`},
		{func(h *kvm.Host) { h.Address = "qemu://h/system" }, "write qemu+ssh://h/system"},
		{func(h *kvm.Host) { h.Address = "qemu+ssh://root@h/system" }, `the user says "root" and the host's own field "u"`},
		{func(h *kvm.Host) { h.Address, h.Socket = "qemu+ssh://h/system?socket=/a", "/b" }, "the parameter socket says"},
		{func(h *kvm.Host) { h.Address = "qemu+ssh://u:hunter2@h/system" }, "a password is not used"},
		{func(h *kvm.Host) { h.Address = "qemu+ssh://u:hunter2@h:x/system" }, "is not a URI of libvirt"},
		{func(h *kvm.Host) { h.Address = "u:hunter2@h" }, "a password is not used"},
		{func(h *kvm.Host) { h.Address, h.Jump = "h", "gate:hunter2@bastion" }, "a password is not used"},
		{func(h *kvm.Host) { h.Address, h.Jump = "h", "gate:hun:ter2@hunter2@b" }, "a password is not used"},
		{func(h *kvm.Host) { h.Address, h.User = "h", "u:hunter2" }, "hosts[0].user: must be the name of an account; a password is not used"},
		{func(h *kvm.Host) { h.Address = "h\x00" }, "hosts[0].address: "},
		{func(h *kvm.Host) { h.Address = "qemu+ssh:///system" }, "hosts[0].address: "},
		{func(h *kvm.Host) { h.Address = "qemu+ssh://h/system?socket=rel" }, `hosts[0].socket: "rel"`},
		{func(h *kvm.Host) { h.Address, h.Jump = "h", "a b@h" }, "hosts[0].jump: "},
		{func(h *kvm.Host) { h.Address, h.Jump = "h", "@h" }, "hosts[0].jump: "},
		{func(h *kvm.Host) { h.Address, h.Jump = "h", "gate:x" }, "hosts[0].jump: "},
		{func(h *kvm.Host) { h.Address, h.Jump = "local", "gate" }, "hosts[0].jump: "},
		{func(h *kvm.Host) { h.Address, h.SSHKeyFile = "local", "k" }, "hosts[0].sshKeyFile: "},
	} {
		h := base
		c.change(&h)
		err := kvm.Config{SSHKeyFile: "k", KnownHostsFile: "k", MachineTypes: map[string]kvm.MachineType{"s": {VCPUs: 1, MemoryMiB: 64}}, Hosts: []kvm.Host{h}}.Validate()
		if c.says == "" {
			assert.NoError(t, err, "%+v", h)
			continue
		}
		require.ErrorContains(t, err, c.says, "%+v", h)
		assert.NotContains(t, err.Error(), "hunter2")
	}
}

// TestDeadHostIsLeftAlone has many callers, one after another, cost a host that
// does not answer one dial.
func TestDeadHostIsLeftAlone(t *testing.T) {
	var dials atomic.Int32
	r := newRig(t, func(c *kvm.Config) { c.Timeouts.Dial = provider.Duration(time.Second) })
	kvm.FailDial(r.Provider, "kvm1", func(ctx context.Context) error {
		dials.Add(1)
		<-ctx.Done()
		return ctx.Err()
	})
	for range 100 {
		_, err := r.Create(testContext(t), request("u1"))
		require.ErrorIs(t, err, provider.ErrTransient)
		require.True(t, provider.HasCode(err, "NoAnswer"), "%v", err)
	}
	assert.EqualValues(t, 1, dials.Load())
	_, err := r.Create(testContext(t), request("u1"))
	var known *provider.Error
	require.ErrorAs(t, err, &known)
	assert.Positive(t, known.RetryAfter)
}

// TestBackoff doubles the pause up to its bound, never less than the dial took,
// and forgets it after a success or when a file changed.
func TestBackoff(t *testing.T) {
	b := kvm.NewBackoff()
	now, file := time.Unix(0, 0), sshtest.WriteFile(t, t.TempDir(), "id", nil)
	pause := func(took time.Duration) time.Duration {
		b.Note(now, file, took, errors.New("refused"))
		return b.Check(now, file)
	}
	within := func(want, got time.Duration) {
		t.Helper()
		assert.LessOrEqual(t, got, want)
		assert.GreaterOrEqual(t, got, want*3/4)
	}
	within(250*time.Millisecond, pause(0))
	within(500*time.Millisecond, pause(0))
	within(15*time.Second, pause(15*time.Second))
	for range 100 {
		pause(0)
	}
	within(30*time.Second, pause(time.Hour))
	assert.Zero(t, b.Check(now.Add(31*time.Second), file))
	sshtest.WriteFile(t, filepath.Dir(file), "id", nil)
	assert.Zero(t, b.Check(now, file))
	b.Note(now, file, 0, nil)
	assert.Zero(t, b.Check(now, file))
	within(250*time.Millisecond, pause(0))
}

// TestRefusalHealsWithItsFile tries again at once when the key file changed,
// however long the host was to be left alone.
func TestRefusalHealsWithItsFile(t *testing.T) {
	next := sshtest.NewKey(t)
	r := newSSHRig(t, func(r *sshRig) { r.server.Authorize(next.PublicKey()) })
	require.Eventually(t, func() bool {
		err := r.list(testContext(t))
		return errors.Is(err, provider.ErrPermanent) && strings.Contains(err.Error(), "of the last attempt")
	}, 10*time.Second, time.Millisecond)
	sshtest.WriteFile(t, r.dir, "id", next.PEM)
	require.NoError(t, r.list(testContext(t)))
}
