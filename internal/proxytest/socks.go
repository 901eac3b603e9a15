package proxytest

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/endpoint"
)

// SOCKS replies, RFC 1928, section 6.
const (
	socksOK          = 0
	socksUnreachable = 4
)

// SOCKS starts a SOCKS5 proxy (RFC 1928) that wants the user name and password
// of RFC 1929 if a user name is given. It dials names of resolve alone, and
// answers "host unreachable" for any other.
func SOCKS(t testing.TB, resolve map[string]string, username, password string) endpoint.URL {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	s := socksServer{resolve, username, password}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_ = s.serve(conn)
			}()
		}
	}()
	url, err := endpoint.NewURL("socks5", listener.Addr().String(), username, password)
	require.NoError(t, err)
	return url
}

type socksServer struct {
	resolve            map[string]string
	username, password string
}

func (s socksServer) serve(conn net.Conn) error {
	if err := s.authenticate(conn); err != nil {
		return err
	}
	host, port, err := readRequest(conn)
	if err != nil {
		return err
	}
	to, known := s.resolve[host]
	if !known {
		return reply(conn, socksUnreachable)
	}
	if _, _, err := net.SplitHostPort(to); err != nil {
		to = net.JoinHostPort(to, strconv.Itoa(int(port)))
	}
	target, err := net.Dial("tcp", to)
	if err != nil {
		return reply(conn, socksUnreachable)
	}
	defer target.Close()
	if err := reply(conn, socksOK); err != nil {
		return err
	}
	go func() { _, _ = io.Copy(target, conn); _ = target.Close() }()
	_, err = io.Copy(conn, target)
	return err
}

func (s socksServer) authenticate(conn net.Conn) error {
	if _, err := readCounted(conn, 1); err != nil { // version, then methods
		return err
	}
	if s.username == "" {
		_, err := conn.Write([]byte{5, 0})
		return err
	}
	if _, err := conn.Write([]byte{5, 2}); err != nil {
		return err
	}
	username, err := readCounted(conn, 1)
	if err != nil {
		return err
	}
	password, err := readCounted(conn, 0)
	if err != nil {
		return err
	}
	if string(username) != s.username || string(password) != s.password {
		_, _ = conn.Write([]byte{1, 1})
		return errors.New("wrong credentials")
	}
	_, err = conn.Write([]byte{1, 0})
	return err
}

func readRequest(conn net.Conn) (host string, port uint16, err error) {
	name, err := readCounted(conn, 4) // version, command, reserved, type: a name
	if err != nil {
		return "", 0, err
	}
	err = binary.Read(conn, binary.BigEndian, &port)
	return string(name), port, err
}

func reply(conn net.Conn, code byte) error {
	_, err := conn.Write([]byte{5, code, 0, 1, 0, 0, 0, 0, 0, 0})
	return err
}

// readCounted skips some bytes and reads a length and as many bytes.
func readCounted(r io.Reader, skip int) ([]byte, error) {
	head := make([]byte, skip+1)
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, err
	}
	body := make([]byte, head[skip])
	_, err := io.ReadFull(r, body)
	return body, err
}
