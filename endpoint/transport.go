package endpoint

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"net/url"
	"time"
)

// TransportConfig tunes [NewTransport]. The zero value is useful.
type TransportConfig struct {
	// ProxyRoots verify the certificate of an https proxy; nil means the
	// system's. It is verified in every case.
	ProxyRoots *x509.CertPool
	// TargetRoots verify targets; nil means the system's. Targets are verified
	// in every case: that is what finds a proxy that reads along.
	TargetRoots *x509.CertPool
	// UserAgent is sent with CONNECT, where the proxy's operator sees it and the
	// target does not; "egress" if empty. That of requests is the request's own.
	UserAgent string
	// FreshConnections uses each connection for one request, over HTTP/1.1. A
	// probe wants it: a tunnel that stands hides a proxy that takes no more.
	FreshConnections bool
	// DialTimeout bounds connecting to the proxy; 10 s if zero.
	DialTimeout time.Duration
	// TLSHandshakeTimeout bounds each TLS handshake; 10 s if zero.
	TLSHandshakeTimeout time.Duration
	// DialContext connects to the proxy; net.Dialer's if nil.
	DialContext func(ctx context.Context, network, addr string) (net.Conn, error)
}

func (c TransportConfig) withDefaults() TransportConfig {
	if c.UserAgent == "" {
		c.UserAgent = "egress"
	}
	if c.DialTimeout <= 0 {
		c.DialTimeout = 10 * time.Second
	}
	if c.TLSHandshakeTimeout <= 0 {
		c.TLSHandshakeTimeout = 10 * time.Second
	}
	if c.DialContext == nil {
		c.DialContext = (&net.Dialer{}).DialContext
	}
	return c
}

// Transport is an http.RoundTripper that goes through one proxy. It is safe for
// concurrent use. Errors of a round trip are [*Error], but for those about the
// request itself, such as an unknown scheme or a context that had ended before.
//
// The head of an answer, the proxy's to CONNECT or the target's, is read up to 1 MiB;
// a longer one is an error. How much of a body is read is for the caller to limit.
type Transport struct {
	proxy URL
	cfg   TransportConfig
	base  *http.Transport
	conns connSet
}

// maxHead is the most of the head of an answer that is read, in bytes: the proxy's to
// CONNECT and the target's. Servers send some ten thousand at most.
const maxHead = 1 << 20

// idleTimeout closes kept connections, as http.DefaultTransport does.
const idleTimeout = 90 * time.Second

// NewTransport returns a transport that sends every request through proxy. The
// environment's proxy settings play no part. An empty proxy is an error, so
// that nothing ever goes direct.
func NewTransport(proxy URL, cfg TransportConfig) (*Transport, error) {
	if proxy.IsZero() {
		return nil, errors.New("no proxy: a transport without one would go direct")
	}
	t := &Transport{proxy: proxy, cfg: cfg.withDefaults()}
	t.base = &http.Transport{
		Proxy:                  http.ProxyURL(proxy.netURL()),
		ProxyConnectHeader:     http.Header{"User-Agent": {t.cfg.UserAgent}},
		OnProxyConnectResponse: t.onConnectResponse,
		DialContext:            t.dialProxy,
		DialTLSContext:         t.dialProxyTLS,
		TLSClientConfig:        &tls.Config{RootCAs: cfg.TargetRoots},
		TLSHandshakeTimeout:    t.cfg.TLSHandshakeTimeout,
		DisableKeepAlives:      cfg.FreshConnections,
		ForceAttemptHTTP2:      !cfg.FreshConnections,
		IdleConnTimeout:        idleTimeout,
		ExpectContinueTimeout:  time.Second,
		MaxResponseHeaderBytes: maxHead,
	}
	return t, nil
}

// Proxy returns the proxy that t goes through.
func (t *Transport) Proxy() URL { return t.proxy }

// CloseIdleConnections closes the connections that no request is using.
func (t *Transport) CloseIdleConnections() { t.base.CloseIdleConnections() }

// Close ends every connection, and with it what is in flight. Requests fail from
// then on. It may be called again.
func (t *Transport) Close() {
	t.conns.close()
	t.base.CloseIdleConnections()
}

// RoundTrip implements http.RoundTripper.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, tracker := startTracker(req.Context())
	resp, err := t.base.RoundTrip(req.WithContext(ctx))
	if err != nil {
		return nil, t.failed(tracker.current(), err)
	}
	resp.Request = req
	return resp, nil
}

// failed gives err its stage, unless it knows its own. A request that net/http
// refused is the caller's error, not the proxy's.
func (t *Transport) failed(stage Stage, err error) error {
	var known *Error
	if errors.As(err, &known) {
		return known
	}
	if stage == 0 {
		return err
	}
	return &Error{Stage: stage, Proxy: t.proxy, Err: err}
}

func (t *Transport) dialProxy(ctx context.Context, network, addr string) (net.Conn, error) {
	enterStage(ctx, StageDial)
	conn, err := t.dial(ctx, network, addr)
	if err != nil {
		return nil, t.failed(StageDial, err)
	}
	enterStage(ctx, StageConnect)
	return conn, nil
}

func (t *Transport) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, t.cfg.DialTimeout)
	defer cancel()
	conn, err := t.cfg.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return t.conns.add(conn)
}

// dialProxyTLS connects to an https proxy. net/http calls it for nothing else:
// a target is always behind a proxy here.
func (t *Transport) dialProxyTLS(ctx context.Context, network, addr string) (net.Conn, error) {
	enterStage(ctx, StageDial)
	raw, err := t.dial(ctx, network, addr)
	if err != nil {
		return nil, t.failed(StageDial, err)
	}
	enterStage(ctx, StageProxyTLS)
	conn, err := t.handshake(ctx, raw)
	if err != nil {
		_ = raw.Close()
		return nil, t.failed(StageProxyTLS, err)
	}
	enterStage(ctx, StageConnect)
	return proxyTLSConn{conn}, nil
}

func (t *Transport) handshake(ctx context.Context, raw net.Conn) (*tls.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, t.cfg.TLSHandshakeTimeout)
	defer cancel()
	host, _, err := net.SplitHostPort(t.proxy.host)
	if err != nil {
		return nil, err
	}
	conn := tls.Client(raw, &tls.Config{
		RootCAs:    t.cfg.ProxyRoots,
		ServerName: host,
		NextProtos: []string{"http/1.1"}, // net/http speaks nothing else to a proxy
	})
	return conn, conn.HandshakeContext(ctx)
}

// onConnectResponse accepts every 2xx, as RFC 9110, section 9.3.6 has it, where
// net/http itself accepts 200 alone.
func (t *Transport) onConnectResponse(ctx context.Context, _ *url.URL, _ *http.Request, resp *http.Response) error {
	if resp.StatusCode/100 != 2 {
		return connectError(t.proxy, resp)
	}
	resp.StatusCode = http.StatusOK
	return nil
}
