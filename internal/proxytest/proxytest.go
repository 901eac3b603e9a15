// Package proxytest starts what a test of a proxy's client needs on loopback:
// a target with TLS under a name that only the proxy can resolve, and proxies.
package proxytest

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/internal/connectproxy"
)

// Host is the name of every target. The certificate of httptest is valid for
// it, and no resolver of this machine is asked: the proxies map it.
const Host = "example.com"

// Target is a server that only a proxy reaches.
type Target struct {
	// URL is https://example.com/, or http:// for a plain one.
	URL string
	// Roots verify its certificate.
	Roots *x509.CertPool
	// Certificate is its own, for a program that reads it from a file; nil for a
	// plain target.
	Certificate *x509.Certificate
	// Resolve is the map that leads a proxy to it.
	Resolve map[string]string
}

// TLSTarget starts a target that speaks HTTP/2 and HTTP/1.1 over TLS.
func TLSTarget(t testing.TB, handler http.Handler) Target {
	t.Helper()
	server := httptest.NewUnstartedServer(handler)
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	return target("https", server)
}

// PlainTarget starts a target without TLS.
func PlainTarget(t testing.TB, handler http.Handler) Target {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return target("http", server)
}

func target(scheme string, server *httptest.Server) Target {
	roots := x509.NewCertPool()
	if server.Certificate() != nil {
		roots.AddCert(server.Certificate())
	}
	return Target{
		URL:         scheme + "://" + Host + "/",
		Roots:       roots,
		Certificate: server.Certificate(),
		Resolve:     map[string]string{Host: server.Listener.Addr().String()},
	}
}

// Proxy starts a proxy and returns it with its URL, credentials in it.
func Proxy(t testing.TB, cfg connectproxy.Config) (*connectproxy.Proxy, endpoint.URL) {
	t.Helper()
	proxy, err := connectproxy.Start(cfg)
	require.NoError(t, err)
	t.Cleanup(proxy.Close)
	scheme := "http"
	if cfg.TLS != nil {
		scheme = "https"
	}
	url, err := endpoint.NewURL(scheme, proxy.Addr().String(), cfg.Username, cfg.Password)
	require.NoError(t, err)
	return proxy, url
}

// Certificate returns a server's TLS configuration with the certificate of
// httptest, which is valid for 127.0.0.1, and the roots that verify it.
func Certificate(t testing.TB) (*tls.Config, *x509.CertPool) {
	t.Helper()
	server := httptest.NewTLSServer(http.NotFoundHandler())
	defer server.Close()
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	return &tls.Config{Certificates: server.TLS.Certificates}, roots
}

// Client returns a client that goes through the proxy and trusts the target.
func Client(t testing.TB, proxy endpoint.URL, cfg endpoint.TransportConfig) *http.Client {
	t.Helper()
	transport, err := endpoint.NewTransport(proxy, cfg)
	require.NoError(t, err)
	t.Cleanup(transport.Close)
	return &http.Client{Transport: transport}
}
