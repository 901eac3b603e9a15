package kvm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/crypto/ssh"

	"github.com/egressfleet/egress/provider"
)

// transport opens connections to the libvirt socket of one host.
type transport interface {
	// open returns within a moment after ctx ends.
	open(ctx context.Context) (net.Conn, error)
	// close ends what was opened, and waits for it.
	close()
	// apart is another way to the same host, to be closed by itself.
	apart() transport
	// address is for logs.
	address() string
	// stamp changes with the files that an open depends on.
	stamp() fileStamp
}

// localTransport is the socket of this machine.
type localTransport struct{ host Host }

func (t localTransport) address() string  { return t.host.sockets()[0] }
func (t localTransport) close()           {}
func (t localTransport) apart() transport { return t }
func (t localTransport) stamp() fileStamp { return stampOf(t.host.sockets()...) }

// open takes the first socket that answers.
func (t localTransport) open(ctx context.Context) (net.Conn, error) {
	var worst error
	for _, path := range t.host.sockets() {
		var d net.Dialer
		conn, err := d.DialContext(ctx, "unix", path)
		if err == nil {
			widen(conn)
			return conn, nil
		}
		// A socket that is there says more than one that is missing.
		if worst == nil || errors.Is(worst, fs.ErrNotExist) {
			worst = err
		}
	}
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case errors.Is(worst, fs.ErrPermission):
		return nil, provider.Permanentf(codeSocketUnreachable, "this user may not use libvirt's socket: add it to the group libvirt (usermod -aG libvirt USER) and log in anew: %w", worst)
	case errors.Is(worst, fs.ErrNotExist) && !hasDaemon():
		return nil, provider.Transientf(codeSocketUnreachable, "libvirt is not installed here: %s: %w", installLibvirt, worst)
	}
	return nil, provider.Transientf(codeSocketUnreachable, "libvirt's socket does not answer: %s, or set hosts[].socket: %w", startLibvirt, worst)
}

// sendBuffer is how many bytes a local socket takes before libvirtd has read them:
// several packets of an upload. Linux's default takes one, so that sender and daemon
// wait for each other. The kernel cuts it down to net.core.wmem_max.
const sendBuffer = 1 << 20

func widen(conn net.Conn) {
	if local, ok := conn.(*net.UnixConn); ok {
		_ = local.SetWriteBuffer(sendBuffer) // else uploads are slower
	}
}

// What to do where libvirt is missing or does not run.
const (
	installLibvirt = "install libvirt-daemon-system (Debian, Ubuntu) or libvirt-daemon-kvm (RHEL, Fedora)"
	startLibvirt   = "start it (systemctl enable --now libvirtd.socket, or virtqemud.socket where the daemons are modular)"
)

// daemons are the programs that make libvirt's socket.
var daemons = []string{"/usr/sbin/libvirtd", "/usr/sbin/virtqemud"}

func hasDaemon() bool {
	return slices.ContainsFunc(daemons, func(path string) bool {
		_, err := os.Stat(path)
		return err == nil
	})
}

// sshTransport forwards the socket over one SSH connection.
type sshTransport struct {
	*sshHop
	host Host
}

func (t sshTransport) address() string { return t.hop.address }

func (t sshTransport) stamp() fileStamp {
	paths := []string{t.keyFile, t.knownHosts, os.Getenv(agentVariable)}
	if t.via != nil {
		paths = append(paths, t.via.keyFile, t.via.knownHosts)
	}
	return stampOf(paths...)
}

// apart makes an SSH connection of its own when it is used.
func (t sshTransport) apart() transport {
	timeouts := Timeouts{Dial: provider.Duration(t.link.timeout), Keepalive: provider.Duration(t.keepalive)}
	return sshTransport{newSSHHop(t.link.lifetime, t.hop, t.via, t.keys, timeouts, t.log), t.host}
}

// open takes the first socket that answers.
func (t sshTransport) open(ctx context.Context) (net.Conn, error) {
	link, err := t.link.get(ctx)
	if err != nil {
		return nil, err
	}
	conn, err := t.dialSockets(ctx, link)
	if err == nil {
		return conn, nil
	}
	why := t.openError(ctx, link, err)
	if provider.HasCode(why, codeForwardingRefused) {
		// A socket that came to life since looks the same as a forbidden one.
		if conn, err := t.dialSockets(ctx, link); err == nil {
			return conn, nil
		}
	}
	return nil, why
}

func (t sshTransport) dialSockets(ctx context.Context, link *sshLink) (conn net.Conn, err error) {
	for _, path := range t.host.sockets() {
		if conn, err = link.client.DialContext(ctx, "unix", path); err == nil {
			return conn, nil
		}
	}
	return nil, err
}

// openError finds out why no socket could be opened. OpenSSH gives the same
// answer for a forbidden forwarding, a missing socket and one that the user may
// not open, so the user's shell is asked.
func (t sshTransport) openError(ctx context.Context, link *sshLink, err error) error {
	refused, ok := errors.AsType[*ssh.OpenChannelError](err)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case !ok:
		link.close()
		return provider.Transientf(codeConnectionLost, "the ssh connection ended: %w", err)
	case refused.Reason == ssh.Prohibited:
		return t.forbidden(err)
	}
	sockets := strings.Join(t.host.sockets(), " or ")
	switch link.ask(ctx, t.host.sockets()) {
	case socketFine:
		return t.forbidden(err)
	case socketDenied:
		return provider.Permanentf(codeSocketUnreachable, "user %s may not use %s on %s: add it to the group libvirt (usermod -aG libvirt %s): %w", t.user, sockets, t.address(), t.user, err)
	case socketDead:
		return provider.Transientf(codeSocketUnreachable, "nobody listens at %s on %s: %s: %w", sockets, t.address(), startLibvirt, err)
	case socketMissing:
		return provider.Transientf(codeSocketUnreachable, "%s has no socket %s: %s, or set hosts[].socket: %w", t.address(), sockets, startLibvirt, err)
	case socketNoDaemon:
		return provider.Transientf(codeSocketUnreachable, "%s has no socket %s and no libvirt: %s: %w", t.address(), sockets, installLibvirt, err)
	}
	return provider.Transientf(codeSocketUnreachable, "sshd at %s could not open %s: is libvirtd running, may user %s use it (group libvirt), and does sshd_config have AllowStreamLocalForwarding yes? %w",
		t.address(), sockets, t.user, err)
}

func (t sshTransport) forbidden(err error) error {
	return provider.Permanentf(codeForwardingRefused, "sshd at %s forbids user %s to forward unix sockets: set AllowStreamLocalForwarding yes and DisableForwarding no in its sshd_config, "+
		"and have no restrict or no-port-forwarding before the key in authorized_keys: %w", t.address(), t.user, err)
}

// sshHop is one SSH server and the connection to it, which is made on first use
// and shared.
type sshHop struct {
	hop
	keys      *sshKeys
	log       logr.Logger
	keepalive time.Duration
	// via is the server that the connection goes through; nil for none.
	via  *sshHop
	link shared[*sshLink]
}

func newSSHHop(lifetime context.Context, h hop, via *sshHop, keys *sshKeys, t Timeouts, log logr.Logger) *sshHop {
	s := &sshHop{hop: h, via: via, keys: keys, log: log, keepalive: time.Duration(t.Keepalive)}
	s.link = shared[*sshLink]{lifetime: lifetime, timeout: time.Duration(t.Dial), create: s.dial, alive: (*sshLink).alive}
	return s
}

func (s *sshHop) close() {
	s.link.settle()
	if link, ok := s.link.current(); ok {
		link.close()
		link.watching.Wait()
	}
}

// dial makes the SSH connection.
func (s *sshHop) dial(ctx context.Context) (*sshLink, error) {
	known, stale, err := s.keys.hostKeys(ctx, s.hop)
	if err != nil {
		return nil, err
	}
	s.warnStale(stale)
	login, stale, err := s.keys.login(ctx, s.hop)
	if err != nil {
		return nil, err
	}
	defer login.close()
	s.warnStale(stale)
	if login.missing != nil {
		s.log.Info("kvm ssh material is not usable in part; the rest is tried", "error", login.missing.Error())
	}
	conn, err := s.connect(ctx)
	if err != nil {
		return nil, err
	}
	heard := &greeting{Conn: conn}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	c, chans, reqs, err := ssh.NewClientConn(heard, s.address, &ssh.ClientConfig{
		User: s.user, Auth: []ssh.AuthMethod{ssh.PublicKeys(login.signers...)},
		HostKeyCallback: known.callback, HostKeyAlgorithms: known.algorithms,
	})
	if err != nil || !stop() {
		_ = conn.Close()
		return nil, s.handshakeError(ctx, known, login, heard, err)
	}
	return newSSHLink(conn, ssh.NewClient(c, chans, reqs), s.keepalive), nil
}

// connect opens the way to the server, which goes through another one where
// there is a jump.
func (s *sshHop) connect(ctx context.Context) (net.Conn, error) {
	if s.via == nil {
		var d net.Dialer
		conn, err := d.DialContext(ctx, "tcp", s.address)
		if err != nil {
			return nil, provider.Transientf(codeNoAnswer, "cannot reach sshd: %w", err)
		}
		return conn, nil
	}
	conn, err := s.via.forward(ctx, s.address)
	if err != nil {
		return nil, fmt.Errorf("jump host %s: %w", s.via.address, err)
	}
	return conn, nil
}

// forward opens a TCP connection from the server to an address.
func (s *sshHop) forward(ctx context.Context, address string) (net.Conn, error) {
	link, err := s.link.get(ctx)
	if err != nil {
		return nil, err
	}
	conn, err := link.client.DialContext(ctx, "tcp", address)
	if err == nil {
		return unhurried{conn}, nil
	}
	refused, ok := errors.AsType[*ssh.OpenChannelError](err)
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case !ok:
		link.close()
		return nil, provider.Transientf(codeConnectionLost, "the ssh connection ended: %w", err)
	case refused.Reason == ssh.Prohibited:
		return nil, provider.Permanentf(codeForwardingRefused, "it forbids user %s to connect to %s: set AllowTcpForwarding yes, DisableForwarding no and a PermitOpen that has it in its sshd_config, "+
			"and have no restrict or no-port-forwarding before the key in authorized_keys: %w", s.user, address, err)
	}
	return nil, provider.Transientf(codeNoAnswer, "it cannot reach sshd at %s: %w", address, err)
}

// unhurried is a connection through another server, whose Close may wait for that
// server to read.
type unhurried struct{ net.Conn }

func (c unhurried) Close() error {
	go func() { _ = c.Conn.Close() }()
	return nil
}

// greeting remembers how a server began: it may tell why it ends the connection
// in place of its version, which package ssh does not pass on.
type greeting struct {
	net.Conn
	mu   sync.Mutex
	text []byte
}

const greetingSize = 256

func (g *greeting) Read(p []byte) (int, error) {
	n, err := g.Conn.Read(p)
	g.mu.Lock()
	defer g.mu.Unlock()
	if room := greetingSize - len(g.text); room > 0 {
		g.text = append(g.text, p[:min(n, room)]...)
	}
	return n, err
}

func (g *greeting) String() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return string(g.text)
}

func (s *sshHop) warnStale(stale error) {
	if stale != nil {
		s.log.Info("kvm ssh material cannot be read any more; what worked before stays in use", "error", stale.Error())
	}
}

func (s *sshHop) handshakeError(ctx context.Context, known *hostKeys, l *login, heard *greeting, err error) error {
	switch {
	case known.refusal != nil:
		return known.refusal
	case ctx.Err() != nil:
		return provider.Transientf(codeNoAnswer, "sshd at %s does not answer: %w", s.address, ctx.Err())
	case strings.Contains(err.Error(), "no common algorithm for host key"):
		return noCommonKey(s.address, s.knownHosts, known.algorithms)
	case strings.Contains(err.Error(), "unable to authenticate") && !strings.Contains(err.Error(), "publickey"):
		return provider.Permanentf(codeAuthRefused, "sshd at %s lets user %s not log in by a key: set PubkeyAuthentication yes, and AuthenticationMethods publickey or none, in its sshd_config: %w", s.address, s.user, err)
	case strings.Contains(err.Error(), "unable to authenticate"):
		return provider.Permanentf(codeAuthRefused, "sshd at %s refuses user %s with %s: add the public part to authorized_keys there, and look at AllowUsers, AllowGroups and PermitRootLogin in its sshd_config: %w",
			s.address, s.user, l.offer, err)
	case tooManyKeys.MatchString(err.Error()):
		return provider.Permanentf(codeAuthRefused, "sshd at %s refuses user %s after too many keys: %s were offered, raise MaxAuthTries in its sshd_config or have fewer keys in the agent: %w", s.address, s.user, l.offer, err)
	}
	return s.greetingError(heard.String(), err)
}

var tooManyKeys = regexp.MustCompile(`(?i)too many authentication (failures|attempts)`)

// greetingError is the error of a handshake that did not get to the login.
func (s *sshHop) greetingError(heard string, err error) error {
	line, _, _ := strings.Cut(heard, "\n")
	line = strings.TrimSpace(line)
	switch {
	case strings.HasPrefix(line, "SSH-"):
		return provider.Transientf(codeNoAnswer, "the ssh handshake with %s failed: %w", s.address, err)
	case line == "":
		return provider.Transientf(codeServerBusy, "%s ended the connection before it said anything: if sshd is there, it has too many logins under way, raise MaxStartups in its sshd_config, or bars this address by PerSourcePenalties: %w", s.address, err)
	case strings.Contains(line, "MaxStartups"), strings.Contains(line, "Not allowed"):
		return provider.Transientf(codeServerBusy, "sshd at %s says %q: raise MaxStartups in its sshd_config, or look at PerSourcePenalties: %w", s.address, line, err)
	}
	return provider.Transientf(codeNoAnswer, "%s is no sshd, it says %q: %w", s.address, line, err)
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

// What a user's shell can tell of the sockets on its host.
const (
	socketFine     = "fine"
	socketDenied   = "denied"
	socketDead     = "dead"
	socketUnsure   = "unsure"
	socketMissing  = "missing"
	socketNoDaemon = "nodaemon"
)

// ask has the user's shell look at the sockets and tells the best of what it
// found, or empty where there is no shell to ask. The kernel's list tells whether
// somebody listens.
func (l *sshLink) ask(ctx context.Context, sockets []string) string {
	var script strings.Builder
	for _, path := range sockets {
		script.WriteString("look " + shellQuote(path) + "; ")
	}
	return best(l.run(ctx, lookScript+script.String()+daemonScript))
}

const lookScript = `look() { if [ ! -S "$1" ]; then return; fi; if [ ! -w "$1" ]; then echo denied; return; fi; ` +
	`if [ ! -r /proc/net/unix ]; then echo unsure; return; fi; real=$(readlink -f "$1"); ` +
	`while read -r a b c flags d e f name; do if [ "$flags" = 00010000 ]; then ` +
	`case "$name" in */"${1##*/}") if [ "$(readlink -f "$name")" = "$real" ]; then echo fine; return; fi;; esac; ` +
	`fi; done < /proc/net/unix; echo dead; }; `

var daemonScript = "if [ -e " + daemons[0] + " ] || [ -e " + daemons[1] + " ]; then echo missing; else echo nodaemon; fi"

// best takes the answer that says most.
func best(answers string) string {
	lines := strings.Fields(answers)
	for _, a := range []string{socketFine, socketDenied, socketDead, socketUnsure, socketMissing, socketNoDaemon} {
		if slices.Contains(lines, a) {
			return a
		}
	}
	return ""
}

// run is shell for at most a few seconds, or until ctx ends.
func (l *sshLink) run(ctx context.Context, command string) string {
	ctx, cancel := context.WithTimeout(ctx, shellTime)
	defer cancel()
	answer := make(chan string, 1)
	l.watching.Go(func() { answer <- l.shell(ctx, command) })
	select {
	case a := <-answer:
		return a
	case <-ctx.Done():
		return ""
	}
}

// shellTime is for one command on a host, and shellOutput what is read of it.
const (
	shellTime   = 5 * time.Second
	shellOutput = 64 << 10
)

// shell runs a command of the user's shell, and returns what it prints, as far as
// that is read; empty where there is none. The session ends with ctx.
func (l *sshLink) shell(ctx context.Context, command string) string {
	session, err := l.client.NewSession()
	if err != nil {
		return ""
	}
	defer func() { _ = session.Close() }()
	defer context.AfterFunc(ctx, func() { _ = session.Close() })()
	out, err := session.StdoutPipe()
	if err != nil || session.Start(command) != nil {
		return ""
	}
	text, err := io.ReadAll(io.LimitReader(out, shellOutput))
	if err != nil {
		return ""
	}
	if len(text) < shellOutput && session.Wait() != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

func shellQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
