package proxytest

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
)

// Counted dials, and counts what is taken from its connections. Beyond Bound they
// end in an error, so that a reader without a limit ends too.
type Counted struct {
	Bound int64
	taken atomic.Int64
}

// Taken is how many bytes came in by all connections.
func (c *Counted) Taken() int64 { return c.taken.Load() }

// DialContext is for an endpoint.TransportConfig.
func (c *Counted) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return countedConn{conn, c}, nil
}

type countedConn struct {
	net.Conn
	by *Counted
}

// Read implements net.Conn.
func (c countedConn) Read(p []byte) (int, error) {
	if c.by.Taken() > c.by.Bound {
		return 0, fmt.Errorf("more than %d bytes were taken", c.by.Bound)
	}
	n, err := c.Conn.Read(p)
	c.by.taken.Add(int64(n))
	return n, err
}
