package kvm

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/crypto/ssh"
)

// transport opens connections to the libvirt socket of one host.
type transport interface {
	// open returns within a moment after ctx ends.
	open(ctx context.Context) (net.Conn, error)
	close()
	// address is for logs.
	address() string
}

// localTransport is the socket of this machine.
type localTransport struct{ host Host }

func (t localTransport) address() string { return t.host.sockets()[0] }
func (t localTransport) close()          {}

func (t localTransport) open(ctx context.Context) (conn net.Conn, err error) {
	for _, path := range t.host.sockets() {
		var d net.Dialer
		if conn, err = d.DialContext(ctx, "unix", path); err == nil {
			return conn, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	if errors.Is(err, fs.ErrPermission) {
		return nil, permanent(codeSocketUnreachable, "this user may not use libvirt's socket, add it to the group libvirt: %w", err)
	}
	return nil, transient(codeSocketUnreachable, "libvirt's socket does not answer, is libvirtd installed and running? %w", err)
}

// sshTransport forwards the socket over one SSH connection.
type sshTransport struct {
	host      Host
	keys      *sshKeys
	log       logr.Logger
	keepalive time.Duration
	link      shared[*sshLink]
}

func newSSHTransport(lifetime context.Context, host Host, keys *sshKeys, t Timeouts, log logr.Logger) *sshTransport {
	s := &sshTransport{host: host, keys: keys, log: log, keepalive: time.Duration(t.Keepalive)}
	s.link = shared[*sshLink]{lifetime: lifetime, timeout: time.Duration(t.Dial), create: s.dial, alive: (*sshLink).alive}
	return s
}

func (t *sshTransport) address() string { return t.host.sshAddress() }

func (t *sshTransport) close() {
	t.link.settle()
	if link, ok := t.link.current(); ok {
		link.close()
		link.watching.Wait()
	}
}

func (t *sshTransport) open(ctx context.Context) (net.Conn, error) {
	link, err := t.link.get(ctx)
	if err != nil {
		return nil, err
	}
	var conn net.Conn
	for _, path := range t.host.sockets() {
		if conn, err = link.client.DialContext(ctx, "unix", path); err == nil {
			return conn, nil
		}
	}
	return nil, t.openError(ctx, link, err)
}

// openError finds out why the socket could not be opened. sshd gives the same
// answer for a forbidden forwarding, a missing socket and one that the user may
// not open, so the user's shell is asked.
func (t *sshTransport) openError(ctx context.Context, link *sshLink, err error) error {
	var refused *ssh.OpenChannelError
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case !errors.As(err, &refused):
		link.close()
		return transient(codeConnectionLost, "the ssh connection ended: %w", err)
	case refused.Reason == ssh.Prohibited:
		return permanent(codeForwardingRefused, "sshd at %s forbids forwarding unix sockets: set AllowStreamLocalForwarding yes and DisableForwarding no in its sshd_config: %w", t.address(), err)
	}
	socket := t.host.sockets()[0]
	switch link.ask(ctx, socket) {
	case "missing":
		return transient(codeSocketUnreachable, "%s has no socket %s: install libvirt-daemon-system and start libvirtd, or set hosts[].socket: %w", t.address(), socket, err)
	case "denied":
		return permanent(codeSocketUnreachable, "user %s may not use %s on %s: add it to the group libvirt: %w", t.host.User, socket, t.address(), err)
	}
	return transient(codeSocketUnreachable, "sshd at %s could not open %s: is libvirtd running, may user %s use it (group libvirt), and does sshd_config have AllowStreamLocalForwarding yes? %w",
		t.address(), socket, t.host.User, err)
}

// dial makes the SSH connection.
func (t *sshTransport) dial(ctx context.Context) (*sshLink, error) {
	signer, stale, err := t.keys.signer.get()
	if err != nil {
		return nil, err
	}
	t.warnStale(stale)
	hostKeys, stale, err := t.keys.hostKeys(t.address())
	if err != nil {
		return nil, err
	}
	t.warnStale(stale)
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", t.address())
	if err != nil {
		return nil, transient(codeNoAnswer, "cannot reach sshd: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	c, chans, reqs, err := ssh.NewClientConn(conn, t.address(), &ssh.ClientConfig{
		User: t.host.User, Auth: []ssh.AuthMethod{ssh.PublicKeys(signer)},
		HostKeyCallback: hostKeys.callback, HostKeyAlgorithms: hostKeys.algorithms,
	})
	if err != nil || !stop() {
		_ = conn.Close()
		return nil, t.handshakeError(ctx, hostKeys, err)
	}
	return newSSHLink(conn, ssh.NewClient(c, chans, reqs), t.keepalive), nil
}

func (t *sshTransport) warnStale(stale error) {
	if stale != nil {
		t.log.Info("kvm ssh material cannot be read any more; what worked before stays in use", "error", stale.Error())
	}
}

func (t *sshTransport) handshakeError(ctx context.Context, keys *hostKeys, err error) error {
	switch {
	case keys.refusal != nil:
		return keys.refusal
	case ctx.Err() != nil:
		return transient(codeNoAnswer, "sshd at %s does not answer: %w", t.address(), ctx.Err())
	case strings.Contains(err.Error(), "unable to authenticate"):
		return permanent(codeAuthRefused, "sshd at %s refuses user %s with the key %s: add its public part to authorized_keys: %w",
			t.address(), t.host.User, t.keys.signer.path, err)
	case strings.Contains(err.Error(), "no common algorithm for host key"):
		return noCommonKey(t.address(), t.keys.known.path, keys.algorithms)
	}
	return transient(codeNoAnswer, "the ssh handshake with %s failed: %w", t.address(), err)
}

// sshLink is one SSH connection.
type sshLink struct {
	client *ssh.Client
	// conn is closed rather than client, whose Close may wait for a peer that
	// no longer reads.
	conn     net.Conn
	dead     chan struct{}
	once     sync.Once
	watching sync.WaitGroup
}

func newSSHLink(conn net.Conn, client *ssh.Client, keepalive time.Duration) *sshLink {
	l := &sshLink{client: client, conn: conn, dead: make(chan struct{})}
	l.watching.Go(func() { _ = client.Wait(); l.close() })
	l.watching.Go(func() { l.keepAlive(keepalive) })
	return l
}

func (l *sshLink) alive() bool {
	select {
	case <-l.dead:
		return false
	default:
		return true
	}
}

func (l *sshLink) close() {
	l.once.Do(func() {
		close(l.dead)
		_ = l.conn.Close()
	})
}

// keepAlive closes the connection when the server missed to answer for a whole
// interval.
func (l *sshLink) keepAlive(interval time.Duration) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-l.dead:
			return
		}
		if !l.ping(interval) {
			l.close()
			return
		}
	}
}

func (l *sshLink) ping(timeout time.Duration) bool {
	answered := make(chan error, 1)
	l.watching.Go(func() {
		_, _, err := l.client.SendRequest("keepalive@openssh.com", true, nil)
		answered <- err
	})
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case err := <-answered:
		return err == nil
	case <-timer.C:
	case <-l.dead:
	}
	return false
}

// ask has the user's shell look at a socket: "missing", "denied", "ok", or
// empty where there is no shell to ask.
func (l *sshLink) ask(ctx context.Context, path string) string {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	answer := make(chan string, 1)
	l.watching.Go(func() {
		answer <- l.shell("p=" + shellQuote(path) + `; if [ ! -S "$p" ]; then echo missing; elif [ ! -w "$p" ]; then echo denied; else echo ok; fi`)
	})
	select {
	case a := <-answer:
		return a
	case <-ctx.Done():
		return ""
	}
}

func (l *sshLink) shell(command string) string {
	session, err := l.client.NewSession()
	if err != nil {
		return ""
	}
	defer func() { _ = session.Close() }()
	out, err := session.Output(command)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}

func shellQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
