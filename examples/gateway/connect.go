package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/lease"
)

// dialThrough asks the leased proxy for a tunnel. Its errors are endpoint's, so
// that they can be judged.
func dialThrough(ctx context.Context, l *lease.Lease, target string) (net.Conn, error) {
	proxy, err := l.ProxyURL()
	if err != nil {
		return nil, err
	}
	if proxy.Scheme() != "http" {
		return nil, fmt.Errorf("the gateway knows http proxies only, not %s", proxy.Scheme())
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", proxy.Host())
	if err != nil {
		return nil, &endpoint.Error{Stage: endpoint.StageDial, Proxy: proxy, Err: err}
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	tunnel, err := connect(conn, proxy, target)
	if !stop() || err != nil {
		_ = conn.Close()
	}
	return tunnel, err
}

// maxHead is how many bytes the head of a proxy's answer may have.
const maxHead = 64 << 10

func connect(conn net.Conn, proxy endpoint.URL, target string) (net.Conn, error) {
	req := &http.Request{Method: http.MethodConnect, URL: &url.URL{Host: target}, Host: target, Header: http.Header{}}
	if user := proxy.User(); user != nil {
		password, _ := user.Password()
		basic := &http.Request{Header: http.Header{}}
		basic.SetBasicAuth(user.Username(), password)
		req.Header.Set("Proxy-Authorization", basic.Header.Get("Authorization"))
	}
	fail := func(status int, err error) error {
		return &endpoint.Error{Stage: endpoint.StageConnect, Status: status, Proxy: proxy, Err: err}
	}
	if err := req.Write(conn); err != nil {
		return nil, fail(0, err)
	}
	limited := &io.LimitedReader{R: conn, N: maxHead}
	reader := bufio.NewReader(limited)
	resp, err := http.ReadResponse(reader, req) //nolint:bodyclose // behind it comes the tunnel.
	if err != nil {
		return nil, fail(0, err)
	}
	if resp.StatusCode/100 != 2 {
		return nil, fail(resp.StatusCode, fmt.Errorf("the proxy answered CONNECT with %s", resp.Status))
	}
	limited.N = math.MaxInt64
	return bufferedConn{conn, reader}, nil
}

// bufferedConn reads what came right behind the proxy's answer.
type bufferedConn struct {
	net.Conn
	ahead io.Reader
}

func (c bufferedConn) Read(b []byte) (int, error) { return c.ahead.Read(b) }
