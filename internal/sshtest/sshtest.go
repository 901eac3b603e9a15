// Package sshtest is an SSH server in the test's process. It forwards unix
// sockets, which is all that is needed to reach libvirt, and TCP, to serve as a
// jump host, and misbehaves on demand.
package sshtest

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"
)

// Server accepts one user key and shows one or more host keys.
type Server struct {
	listener net.Listener
	hostKeys []ssh.Signer

	mu sync.Mutex
	// authorized is the only key that may log in.
	authorized ssh.PublicKey
	// reject is why unix sockets are not forwarded, and rejectTCP why TCP is not;
	// zero forwards.
	reject, rejectTCP ssh.RejectionReason
	// passwordsOnly lets nobody log in by a key.
	passwordsOnly bool
	// opening is said in place of a version.
	opening *string
	// shell answers commands; nil refuses sessions.
	shell func(command string) string
	// chatter is what every command prints, without end; empty for none.
	chatter string
	pause   time.Duration
	// mute leaves requests, such as keepalives, without an answer.
	mute bool
	// silent accepts connections and says nothing.
	silent bool
	conns  []net.Conn
	logins int
	// forwarded counts the TCP connections that went through.
	forwarded int
	wg        sync.WaitGroup
}

// New starts a server on loopback that ends with the test. The client's key may
// log in. Without host keys it makes one.
func New(t testing.TB, client ssh.PublicKey, hostKeys ...ssh.Signer) *Server {
	t.Helper()
	if len(hostKeys) == 0 {
		hostKeys = []ssh.Signer{NewKey(t).Signer}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{listener: l, hostKeys: hostKeys, authorized: client}
	s.wg.Go(s.accept)
	t.Cleanup(s.Close)
	return s
}

// Close ends the server and all connections.
func (s *Server) Close() {
	_ = s.listener.Close()
	s.Disconnect()
	s.wg.Wait()
}

// Disconnect cuts all connections.
func (s *Server) Disconnect() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.conns {
		_ = c.Close()
	}
	s.conns = nil
}

// Address is host:port.
func (s *Server) Address() string { return s.listener.Addr().String() }

// KnownHosts is the line of known_hosts for each host key.
func (s *Server) KnownHosts() string {
	var lines string
	for _, k := range s.hostKeys {
		lines += knownhosts.Line([]string{s.Address()}, k.PublicKey()) + "\n"
	}
	return lines
}

// Authorize replaces the key that may log in.
func (s *Server) Authorize(key ssh.PublicKey) { s.set(func() { s.authorized = key }) }

// Reject rejects channels for that reason; zero accepts them again.
func (s *Server) Reject(reason ssh.RejectionReason) { s.set(func() { s.reject = reason }) }

// RejectTCP rejects TCP forwarding for that reason; zero accepts it again.
func (s *Server) RejectTCP(reason ssh.RejectionReason) { s.set(func() { s.rejectTCP = reason }) }

// PasswordsOnly offers no login by a key, as PubkeyAuthentication no does.
func (s *Server) PasswordsOnly() { s.set(func() { s.passwordsOnly = true }) }

// Open has new connections hear that text and end.
func (s *Server) Open(text string) { s.set(func() { s.opening = &text }) }

// Shell answers the commands of sessions.
func (s *Server) Shell(f func(command string) string) { s.set(func() { s.shell = f }) }

// Chatter has every command print that, with pauses, until its session ends.
func (s *Server) Chatter(text string, pause time.Duration) {
	s.set(func() { s.chatter, s.pause = text, pause })
	s.Shell(func(string) string { return "" })
}

// Mute leaves requests without an answer.
func (s *Server) Mute() { s.set(func() { s.mute = true }) }

// Silence has new connections hear nothing.
func (s *Server) Silence() { s.set(func() { s.silent = true }) }

// Logins is how often somebody logged in.
func (s *Server) Logins() (n int) {
	s.set(func() { n = s.logins })
	return n
}

// Forwarded is how many TCP connections somebody had it make.
func (s *Server) Forwarded() (n int) {
	s.set(func() { n = s.forwarded })
	return n
}

func (s *Server) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *Server) accept() {
	for {
		conn, err := s.listener.Accept()
		if err != nil {
			return
		}
		var silent bool
		var opening *string
		s.set(func() { s.conns, silent, opening = append(s.conns, conn), s.silent, s.opening })
		if opening != nil {
			_, _ = io.WriteString(conn, *opening)
			_ = conn.Close()
			continue
		}
		if !silent {
			s.wg.Go(func() { s.serve(conn) })
		}
	}
}

func (s *Server) config() *ssh.ServerConfig {
	cfg := &ssh.ServerConfig{PublicKeyCallback: func(_ ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if string(key.Marshal()) != string(s.authorized.Marshal()) {
			return nil, os.ErrPermission
		}
		return nil, nil
	}}
	s.set(func() {
		if s.passwordsOnly {
			cfg.PublicKeyCallback = nil
			cfg.PasswordCallback = func(ssh.ConnMetadata, []byte) (*ssh.Permissions, error) { return nil, os.ErrPermission }
		}
	})
	for _, k := range s.hostKeys {
		cfg.AddHostKey(k)
	}
	return cfg
}

func (s *Server) serve(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	_, chans, reqs, err := ssh.NewServerConn(conn, s.config())
	if err != nil {
		return
	}
	s.set(func() { s.logins++ })
	s.wg.Go(func() { s.requests(reqs) })
	for c := range chans {
		s.wg.Go(func() { s.channel(c) })
	}
}

func (s *Server) requests(reqs <-chan *ssh.Request) {
	for r := range reqs {
		var mute bool
		s.set(func() { mute = s.mute })
		if !mute && r.WantReply {
			_ = r.Reply(false, nil)
		}
	}
}

func (s *Server) channel(c ssh.NewChannel) {
	var reject, rejectTCP ssh.RejectionReason
	var shell func(string) string
	s.set(func() { reject, rejectTCP, shell = s.reject, s.rejectTCP, s.shell })
	switch c.ChannelType() {
	case "session":
		s.session(c, shell)
	case "direct-streamlocal@openssh.com":
		if reject != 0 {
			_ = c.Reject(reject, "open failed")
			return
		}
		s.forwardUnix(c)
	case "direct-tcpip":
		if rejectTCP != 0 {
			_ = c.Reject(rejectTCP, "open failed")
			return
		}
		s.forwardTCP(c)
	default:
		_ = c.Reject(ssh.UnknownChannelType, "")
	}
}

func (s *Server) session(c ssh.NewChannel, shell func(string) string) {
	if shell == nil {
		_ = c.Reject(ssh.Prohibited, "no sessions")
		return
	}
	ch, reqs, err := c.Accept()
	if err != nil {
		return
	}
	defer func() { _ = ch.Close() }()
	for r := range reqs {
		var exec struct{ Command string }
		if r.Type != "exec" || ssh.Unmarshal(r.Payload, &exec) != nil {
			_ = r.Reply(false, nil)
			continue
		}
		_ = r.Reply(true, nil)
		s.chat(ch)
		_, _ = io.WriteString(ch, shell(exec.Command)+"\n")
		_, _ = ch.SendRequest("exit-status", false, ssh.Marshal(struct{ Status uint32 }{}))
		return
	}
}

// chat returns when nobody listens any more, at once if there is nothing to say.
func (s *Server) chat(w io.Writer) {
	var text string
	var pause time.Duration
	s.set(func() { text, pause = s.chatter, s.pause })
	for text != "" {
		if _, err := io.WriteString(w, text); err != nil {
			return
		}
		time.Sleep(pause)
	}
}

func (s *Server) forwardUnix(c ssh.NewChannel) {
	var want struct {
		Path, Reserved string
		Port           uint32
	}
	if ssh.Unmarshal(c.ExtraData(), &want) != nil {
		_ = c.Reject(ssh.ConnectionFailed, "bad request")
		return
	}
	s.forward(c, "unix", want.Path)
}

func (s *Server) forwardTCP(c ssh.NewChannel) {
	var want struct {
		Host       string
		Port       uint32
		Origin     string
		OriginPort uint32
	}
	if ssh.Unmarshal(c.ExtraData(), &want) != nil {
		_ = c.Reject(ssh.ConnectionFailed, "bad request")
		return
	}
	s.set(func() { s.forwarded++ })
	s.forward(c, "tcp", net.JoinHostPort(want.Host, strconv.Itoa(int(want.Port))))
}

func (s *Server) forward(c ssh.NewChannel, network, address string) {
	sock, err := net.Dial(network, address)
	if err != nil {
		_ = c.Reject(ssh.ConnectionFailed, "open failed")
		return
	}
	ch, reqs, err := c.Accept()
	if err != nil {
		_ = sock.Close()
		return
	}
	go ssh.DiscardRequests(reqs)
	s.wg.Go(func() { _, _ = io.Copy(sock, ch); _ = sock.Close() })
	_, _ = io.Copy(ch, sock)
	_ = ch.Close()
	_ = sock.Close()
}

// Key is a key pair.
type Key struct {
	ssh.Signer
	// PEM is the private key as OpenSSH writes it.
	PEM []byte
	// Private is the private key itself.
	Private ed25519.PrivateKey
}

// AuthorizedLine is the public key as a line of authorized_keys.
func (k Key) AuthorizedLine() string { return string(ssh.MarshalAuthorizedKey(k.PublicKey())) }

// Locked is the private key as OpenSSH writes it, with a passphrase.
func (k Key) Locked(t testing.TB, passphrase string) []byte {
	t.Helper()
	block, err := ssh.MarshalPrivateKeyWithPassphrase(k.Private, "", []byte(passphrase))
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(block)
}

// NewKey makes an ed25519 key pair.
func NewKey(t testing.TB) Key {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return Key{Signer: signer, PEM: pem.EncodeToMemory(block), Private: private}
}

// WriteFile writes a file into the test's directory, as a Secret mount would
// swap it, and returns its path.
func WriteFile(t testing.TB, dir, name string, content []byte) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path+".new", content, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	return path
}
