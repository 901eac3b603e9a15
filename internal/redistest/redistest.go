// Package redistest runs a redis-server of a test's own.
package redistest

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// Server is a redis-server with a folder, a socket and a port of its own.
type Server struct {
	// Dir is its folder. It is short enough for sockets.
	Dir string
	// Socket and Addr are where it listens: on a path, and on loopback.
	Socket, Addr string

	t    testing.TB
	args []string
	cmd  *exec.Cmd
	done chan struct{}
}

// Start starts a server with those arguments, which stops with the test. Without
// redis-server on this machine the test is skipped.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Skip("needs redis-server, a package of Debian; .ci/deps installs it")
	}
	dir, err := os.MkdirTemp("", "redis")
	if err != nil {
		t.Fatal(err)
	}
	port := freePort(t)
	s := &Server{Dir: dir, Socket: filepath.Join(dir, "socket"), Addr: "127.0.0.1:" + port, t: t}
	s.args = append([]string{
		"--port", port, "--bind", "127.0.0.1", "--unixsocket", s.Socket, "--dir", dir,
		"--save", "", "--appendonly", "no", "--daemonize", "no", "--logfile", filepath.Join(dir, "log"),
	}, args...)
	t.Cleanup(func() {
		s.Kill()
		_ = os.RemoveAll(dir)
	})
	s.Restart()
	return s
}

func freePort(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}

// Restart starts the server again after Kill or Stop, with the data of its folder.
func (s *Server) Restart() {
	s.t.Helper()
	s.cmd = exec.Command("redis-server", s.args...)
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.done = make(chan struct{})
	go func(cmd *exec.Cmd, done chan struct{}) {
		_ = cmd.Wait()
		close(done)
	}(s.cmd, s.done)
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		select {
		case <-s.done:
			s.t.Fatal("redis-server has ended:\n" + s.log())
		default:
		}
		if s.answers() {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatal("redis-server does not answer:\n" + s.log())
		}
	}
}

// answers tells whether the server is up and has read its data.
func (s *Server) answers() bool {
	conn, err := net.DialTimeout("unix", s.Socket, time.Second)
	if err != nil {
		return false
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	if _, err := fmt.Fprint(conn, "PING\r\n"); err != nil {
		return false
	}
	var head [8]byte
	n, err := conn.Read(head[:])
	return err == nil && n > 4 && (string(head[:5]) == "+PONG" || string(head[:5]) == "-NOAU")
}

func (s *Server) log() string {
	text, _ := os.ReadFile(filepath.Join(s.Dir, "log"))
	return string(text)
}

// Kill ends the server as a crash does. It may be called again.
func (s *Server) Kill() { s.end(syscall.SIGKILL) }

// Stop ends the server in order.
func (s *Server) Stop() { s.end(syscall.SIGTERM) }

// Freeze makes the server hang, and Thaw go on.
func (s *Server) Freeze() { _ = s.cmd.Process.Signal(syscall.SIGSTOP) }

// Thaw ends Freeze.
func (s *Server) Thaw() { _ = s.cmd.Process.Signal(syscall.SIGCONT) }

func (s *Server) end(signal os.Signal) {
	select {
	case <-s.done:
		return
	default:
	}
	_ = s.cmd.Process.Signal(signal)
	<-s.done
}

// StartSentinel starts a Sentinel that watches the primary of that name and
// address, decides alone, and stops with the test. It returns where it listens.
func StartSentinel(t testing.TB, name, primary string) string {
	t.Helper()
	host, port, err := net.SplitHostPort(primary)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	config := filepath.Join(dir, "sentinel.conf")
	text := fmt.Sprintf("sentinel monitor %[1]s %s %s 1\nsentinel down-after-milliseconds %[1]s 500\nsentinel failover-timeout %[1]s 5000\n", name, host, port)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	own := freePort(t)
	cmd := exec.Command("redis-server", config, "--sentinel", "--port", own, "--bind", "127.0.0.1", "--dir", dir)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return "127.0.0.1:" + own
}
