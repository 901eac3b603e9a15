package health_test

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/health"
	"github.com/egressfleet/egress/internal/proxytest"
)

// realTarget is a target that a real proxy reaches as host, on its own port.
func realTarget(t *testing.T, host string) (target string, transport endpoint.TransportConfig) {
	t.Helper()
	site := httptest.NewTLSServer(status(200))
	t.Cleanup(site.Close)
	u, err := url.Parse(site.URL)
	require.NoError(t, err)
	u.Host = host + ":" + u.Port()
	return u.String(), endpoint.TransportConfig{
		TargetRoots: site.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs,
	}
}

func probeReal(t *testing.T, proxy endpoint.URL, target string, transport endpoint.TransportConfig) health.Result {
	t.Helper()
	prober, err := health.NewProber(health.ProbeConfig{URL: target, Timeout: 20 * time.Second, Transport: transport})
	require.NoError(t, err)
	return prober.Probe(t.Context(), endpoint.Endpoint{ID: "a", URL: proxy})
}

func TestARealSquid(t *testing.T) {
	proxy := proxytest.Squid(t, map[string]string{"example.com": "127.0.0.1"}, "crawler", "p@ss:w#rd% ü")
	target, transport := realTarget(t, "example.com")
	r := probeReal(t, proxy, target, transport)
	require.NoError(t, r.Err)
	assert.Positive(t, r.Timings.Connect)

	wrong, err := endpoint.NewURL("http", proxy.Host(), "crawler", "wrong")
	require.NoError(t, err)
	var failed *endpoint.Error
	require.ErrorAs(t, probeReal(t, wrong, target, transport).Err, &failed)
	assert.Equal(t, 407, failed.Status)
	assert.Equal(t, "ERR_CACHE_ACCESS_DENIED", failed.SquidError)
	assert.False(t, failed.TargetUnreachable())

	require.ErrorAs(t, probeReal(t, proxy, "https://nowhere.test/", transport).Err, &failed)
	assert.NotEmpty(t, failed.SquidError, "ERR_DNS_FAIL, or ERR_CANNOT_FORWARD where the resolver is silent")
	assert.True(t, failed.TargetUnreachable(), failed.Error())

	require.ErrorAs(t, probeReal(t, proxy, "https://example.com:1/", transport).Err, &failed)
	assert.Equal(t, 503, failed.Status)
	assert.Equal(t, "ERR_CONNECT_FAIL", failed.SquidError)
	assert.True(t, failed.TargetUnreachable())
}

func TestARealSOCKSServer(t *testing.T) {
	proxy := proxytest.Dante(t)
	target, transport := realTarget(t, "127.0.0.1")
	r := probeReal(t, proxy, target, transport)
	require.NoError(t, r.Err)

	var failed *endpoint.Error
	require.ErrorAs(t, probeReal(t, proxy, "https://127.0.0.1:1/", transport).Err, &failed)
	assert.Equal(t, endpoint.StageConnect, failed.Stage)
	assert.True(t, failed.TargetUnreachable(), failed.Error())
}
