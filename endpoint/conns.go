package endpoint

import (
	"errors"
	"net"
	"sync"
)

// errClosed is the cause of failures after Close.
var errClosed = errors.New("the transport was closed")

// connSet holds the open connections of a transport, so that all can be ended:
// net/http itself closes only those that are idle at the moment.
type connSet struct {
	mu     sync.Mutex
	closed bool
	conns  map[*trackedConn]struct{}
}

// trackedConn is a connection in a connSet, until it is closed.
type trackedConn struct {
	net.Conn
	set *connSet
}

// Close implements net.Conn.
func (c *trackedConn) Close() error {
	c.set.mu.Lock()
	delete(c.set.conns, c)
	c.set.mu.Unlock()
	return c.Conn.Close()
}

func (s *connSet) add(conn net.Conn) (net.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		_ = conn.Close()
		return nil, errClosed
	}
	if s.conns == nil {
		s.conns = map[*trackedConn]struct{}{}
	}
	c := &trackedConn{conn, s}
	s.conns[c] = struct{}{}
	return c, nil
}

func (s *connSet) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for c := range s.conns {
		_ = c.Conn.Close()
	}
	clear(s.conns)
}
