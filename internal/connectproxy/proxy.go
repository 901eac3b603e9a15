// Package connectproxy is a forward proxy on loopback, for development and
// tests: CONNECT, plain http, basic authentication, a resolver map of its own,
// and faults on demand. It has no access rules and keeps no cache; put nothing
// in front of it but your own programs.
package connectproxy

import (
	"context"
	"crypto/subtle"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Config says how a proxy behaves. The zero value is an open proxy on a free
// port of 127.0.0.1.
type Config struct {
	// Listen is the address; "127.0.0.1:0" if empty.
	Listen string
	// Username and Password are demanded from clients; none if both are empty.
	Username, Password string
	// Resolve maps "host:port" or "host" to what is dialled instead, "host:port"
	// or "host". Names outside it are dialled as they are.
	Resolve map[string]string
	// TLS, if set, makes it an https proxy.
	TLS *tls.Config
}

// FaultKind is a way in which a proxy misbehaves.
type FaultKind uint8

// The faults. Each takes effect on the next request.
const (
	// Sound is none.
	Sound FaultKind = iota
	// Hang takes requests and never answers.
	Hang
	// Refuse answers each request with Fault.Status and Fault.SquidError.
	Refuse
	// Captive answers in the target's place: a page of its own with status 200,
	// and a tunnel that ends in the proxy.
	Captive
)

// Fault is a misbehaviour with its details.
type Fault struct {
	Kind       FaultKind
	Status     int
	SquidError string
}

// Proxy is a running proxy.
type Proxy struct {
	cfg      Config
	listener net.Listener
	server   *http.Server
	forward  *httputil.ReverseProxy
	outbound *http.Transport
	fault    atomic.Pointer[Fault]
	connects atomic.Int64
	served   sync.WaitGroup
	closed   chan struct{}

	mu    sync.Mutex
	conns map[io.Closer]struct{} // of clients in a tunnel, and to targets
}

// Start listens and serves until Close.
func Start(cfg Config) (*Proxy, error) {
	if cfg.Listen == "" {
		cfg.Listen = "127.0.0.1:0"
	}
	listener, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", cfg.Listen, err)
	}
	p := &Proxy{
		cfg: cfg, listener: listener, closed: make(chan struct{}),
		conns: map[io.Closer]struct{}{},
	}
	p.outbound = &http.Transport{DialContext: p.dialTarget, DisableCompression: true}
	p.forward = &httputil.ReverseProxy{
		Rewrite:      func(r *httputil.ProxyRequest) { r.Out.Header.Del("Proxy-Authorization") },
		Transport:    p.outbound,
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) { refuseTarget(w, err) },
	}
	p.server = &http.Server{
		Handler:           http.HandlerFunc(p.serve),
		ReadHeaderTimeout: 10 * time.Second,
		TLSNextProto:      map[string]func(*http.Server, *tls.Conn, http.Handler){},
	}
	p.served.Go(func() { _ = p.server.Serve(p.accepted()) })
	return p, nil
}

func (p *Proxy) accepted() net.Listener {
	if p.cfg.TLS == nil {
		return p.listener
	}
	return tls.NewListener(p.listener, p.cfg.TLS)
}

// Addr is the address that the proxy listens on.
func (p *Proxy) Addr() netip.AddrPort {
	return p.listener.Addr().(*net.TCPAddr).AddrPort()
}

// SetFault makes the proxy misbehave from the next request on.
func (p *Proxy) SetFault(f Fault) { p.fault.Store(&f) }

// Connects counts the CONNECT requests that were let in.
func (p *Proxy) Connects() int64 { return p.connects.Load() }

// Opened tells whether the proxy holds a connection to a target whose own end
// has that address. On loopback, where all proxies share one IP address, this
// is how a target tells them apart.
func (p *Proxy) Opened(local netip.AddrPort) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		if origin, ok := c.(originConn); ok && origin.LocalAddr().String() == local.String() {
			return true
		}
	}
	return false
}

// Close ends the proxy at once, with every tunnel, as a killed process would,
// and waits until all its goroutines ended. It may be called again.
func (p *Proxy) Close() {
	_ = p.server.Close()
	for _, c := range p.close() {
		_ = c.Close()
	}
	p.outbound.CloseIdleConnections()
	p.served.Wait()
}

// close marks the proxy as closed and returns the connections to end.
func (p *Proxy) close() []io.Closer {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.isClosed() {
		close(p.closed)
	}
	return slices.Collect(maps.Keys(p.conns))
}

func (p *Proxy) isClosed() bool {
	select {
	case <-p.closed:
		return true
	default:
		return false
	}
}

// begin counts a request in, unless the proxy is closed.
func (p *Proxy) begin() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.isClosed() {
		return false
	}
	p.served.Add(1)
	return true
}

func (p *Proxy) serve(w http.ResponseWriter, r *http.Request) {
	if !p.begin() {
		panic(http.ErrAbortHandler)
	}
	defer p.served.Done()
	if f := p.fault.Load(); f != nil && f.Kind != Sound {
		p.misbehave(w, r, *f)
		return
	}
	switch {
	case !p.authorized(r):
		w.Header().Set("Proxy-Authenticate", `Basic realm="egress"`)
		w.WriteHeader(http.StatusProxyAuthRequired)
	case r.Method == http.MethodConnect:
		p.connect(w, r)
	case r.URL.IsAbs():
		p.forward.ServeHTTP(w, r)
	default:
		http.Error(w, "this is a forward proxy: send CONNECT or an absolute URL", http.StatusBadRequest)
	}
}

func (p *Proxy) authorized(r *http.Request) bool {
	if p.cfg.Username == "" && p.cfg.Password == "" {
		return true
	}
	want := base64.StdEncoding.EncodeToString([]byte(p.cfg.Username + ":" + p.cfg.Password))
	scheme, got, _ := strings.Cut(r.Header.Get("Proxy-Authorization"), " ")
	return strings.EqualFold(scheme, "Basic") && subtle.ConstantTimeCompare([]byte(got), []byte(want)) == 1
}

func (p *Proxy) connect(w http.ResponseWriter, r *http.Request) {
	p.connects.Add(1)
	target, err := p.dialTarget(r.Context(), "tcp", r.Host)
	if err != nil {
		refuseTarget(w, err)
		return
	}
	client, err := p.takeOver(w)
	if err != nil {
		_ = target.Close()
		return
	}
	p.tunnel(client, target)
}

// takeOver hijacks the client's connection and tells it that the tunnel stands.
func (p *Proxy) takeOver(w http.ResponseWriter) (net.Conn, error) {
	client, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, err
	}
	_ = client.SetDeadline(time.Time{})
	if _, err := io.WriteString(client, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		_ = client.Close()
		return nil, err
	}
	return bufferedConn{client, buffered.Reader}, nil
}

// bufferedConn reads what the server had read ahead before it was taken over.
type bufferedConn struct {
	net.Conn
	ahead io.Reader
}

func (c bufferedConn) Read(b []byte) (int, error) { return c.ahead.Read(b) }

// tunnel copies both ways until either side ends, or the proxy does.
func (p *Proxy) tunnel(client, target net.Conn) {
	if !p.track(client) {
		_ = client.Close()
		_ = target.Close()
		return
	}
	defer p.untrack(client)
	var copies sync.WaitGroup
	copies.Go(func() { copyAndClose(target, client) })
	copies.Go(func() { copyAndClose(client, target) })
	copies.Wait()
}

func copyAndClose(dst, src net.Conn) {
	_, _ = io.Copy(dst, src)
	_ = dst.Close()
	_ = src.Close()
}

func (p *Proxy) track(c io.Closer) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.isClosed() {
		return false
	}
	p.conns[c] = struct{}{}
	return true
}

func (p *Proxy) untrack(c io.Closer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
}

// dialTarget connects to the target by way of the resolver map.
func (p *Proxy) dialTarget(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := (&net.Dialer{Timeout: 10 * time.Second}).DialContext(ctx, network, p.resolve(addr))
	if err != nil {
		return nil, err
	}
	tracked := originConn{conn, p}
	if !p.track(tracked) {
		_ = conn.Close()
		return nil, net.ErrClosed
	}
	return tracked, nil
}

// originConn is a connection to a target. The proxy knows it until it closes.
type originConn struct {
	net.Conn
	proxy *Proxy
}

func (c originConn) Close() error {
	c.proxy.untrack(c)
	return c.Conn.Close()
}

func (p *Proxy) resolve(addr string) string {
	if to, ok := p.cfg.Resolve[addr]; ok {
		return to
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return addr
	}
	to, ok := p.cfg.Resolve[host]
	switch {
	case !ok:
		return addr
	case strings.Contains(to, ":") && net.ParseIP(to) == nil:
		return to
	}
	return net.JoinHostPort(to, port)
}

// refuseTarget answers as Squid does when it cannot reach a target.
func refuseTarget(w http.ResponseWriter, err error) {
	var dns *net.DNSError
	name := "ERR_CONNECT_FAIL"
	if errors.As(err, &dns) {
		name = "ERR_DNS_FAIL"
	}
	w.Header().Set("X-Squid-Error", name+" 0")
	w.WriteHeader(http.StatusServiceUnavailable)
}

func (p *Proxy) misbehave(w http.ResponseWriter, r *http.Request, f Fault) {
	switch f.Kind {
	case Hang:
		select {
		case <-r.Context().Done():
		case <-p.closed:
		}
		panic(http.ErrAbortHandler)
	case Refuse:
		if f.SquidError != "" {
			w.Header().Set("X-Squid-Error", f.SquidError+" 0")
		}
		w.WriteHeader(f.Status)
	case Captive:
		p.capture(w, r)
	}
}

const captivePage = "<html><body>Please log in to this network.</body></html>"

// capture answers in the target's place. Whoever speaks TLS into the tunnel
// reads a plain HTTP response.
func (p *Proxy) capture(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodConnect {
		_, _ = io.WriteString(w, captivePage)
		return
	}
	client, err := p.takeOver(w)
	if err != nil {
		return
	}
	defer client.Close()
	_ = client.SetDeadline(time.Now().Add(time.Second))
	_, _ = client.Read(make([]byte, 1))
	_, _ = fmt.Fprintf(client, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(captivePage), captivePage)
}
