package health_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/health"
	"github.com/egressfleet/egress/internal/connectproxy"
	"github.com/egressfleet/egress/internal/proxytest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newProber(t testing.TB, target proxytest.Target, change func(*health.ProbeConfig)) *health.Prober {
	t.Helper()
	cfg := health.ProbeConfig{URL: target.URL, Transport: endpoint.TransportConfig{TargetRoots: target.Roots}}
	if change != nil {
		change(&cfg)
	}
	p, err := health.NewProber(cfg)
	require.NoError(t, err)
	return p
}

func status(code int) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) })
}

func TestProbeConfigReportsEveryBadValue(t *testing.T) {
	_, err := health.NewProber(health.ProbeConfig{URL: "http://example.com/", Timeout: -1, ExpectedStatuses: []int{200, 1}})
	assert.ErrorContains(t, err, "timeout: -1ns: must not be negative")
	assert.ErrorContains(t, err, `url: "http://example.com/": proves little`)
	assert.ErrorContains(t, err, "expectedStatuses[1]: 1: must be an HTTP status")
	for raw, want := range map[string]string{
		"":                        "give a target",
		"/path":                   "must be an absolute URL",
		"ftp://example.com/":      `"ftp": must be https`,
		"https://u:hunter2@x":     "must not hold credentials",
		"https://u:hunter2@x/%zz": "must be an absolute URL",
	} {
		_, err := health.NewProber(health.ProbeConfig{URL: raw})
		assert.ErrorContains(t, err, want)
		assert.NotContains(t, err.Error(), "hunter2")
	}
}

func TestProbeSucceedsWithTimings(t *testing.T) {
	target := proxytest.TLSTarget(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"origin": "192.0.2.99", "headers": {"Host": "example.com"}}`)
	}))
	proxy, url := proxytest.Proxy(t, connectproxy.Config{Resolve: target.Resolve, Username: "u", Password: "p@:#"})
	prober := newProber(t, target, func(c *health.ProbeConfig) {
		c.Echo = health.EchoJSON
		c.BodyMatch = regexp.MustCompile(`"origin"`)
	})
	r := prober.Probe(t.Context(), endpoint.Endpoint{ID: "a", URL: url, Generation: 7})
	require.NoError(t, r.Err)
	assert.Equal(t, "a", r.EndpointID)
	assert.EqualValues(t, 7, r.Generation)
	assert.Equal(t, 200, r.Status)
	assert.Equal(t, netip.MustParseAddr("192.0.2.99"), r.EgressIP)
	assert.Empty(t, r.Leaks)
	assert.EqualValues(t, 1, proxy.Connects())
	for name, d := range map[string]time.Duration{
		"dial": r.Timings.Dial, "connect": r.Timings.Connect, "target-tls": r.Timings.TargetTLS,
		"request": r.Timings.Request, "body": r.Timings.Body,
	} {
		assert.Positive(t, d, name)
		assert.Contains(t, r.Timings.String(), name+" ")
	}
	sum := r.Timings.Dial + r.Timings.Connect + r.Timings.TargetTLS + r.Timings.Request + r.Timings.Body
	assert.LessOrEqual(t, sum, r.Timings.Total)
}

// Dreamacro/clash#335, jhao104/proxy_pool#580: any answer counted as alive.
// claffin/cloudproxy listed 407 as a success.
func TestAnErrorPageIsNotASuccess(t *testing.T) {
	for _, code := range []int{302, 401, 403, 404, 407, 451, 500, 503} {
		target := proxytest.TLSTarget(t, status(code))
		_, url := proxytest.Proxy(t, connectproxy.Config{Resolve: target.Resolve})
		r := newProber(t, target, nil).Probe(t.Context(), endpoint.Endpoint{ID: "a", URL: url})
		require.Error(t, r.Err, code)
		assert.Equal(t, endpoint.StageStatus, r.Stage())
		assert.Equal(t, code, r.Status)

		r = newProber(t, target, func(c *health.ProbeConfig) { c.ExpectedStatuses = []int{code} }).
			Probe(t.Context(), endpoint.Endpoint{ID: "a", URL: url})
		assert.NoError(t, r.Err, code)
	}
}

// diegosouzapw/OmniRoute#10654: a redirect to a block page ended as a success.
func TestRedirectsAreNotFollowed(t *testing.T) {
	var asked []string
	target := proxytest.TLSTarget(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.Path)
		if r.URL.Path == "/" {
			http.Redirect(w, r, "/blocked", http.StatusFound)
		}
	}))
	_, url := proxytest.Proxy(t, connectproxy.Config{Resolve: target.Resolve})
	r := newProber(t, target, nil).Probe(t.Context(), endpoint.Endpoint{ID: "a", URL: url})
	assert.ErrorContains(t, r.Err, "the target answered 302 Found")
	assert.Equal(t, []string{"/"}, asked)
}

func TestAProxyThatAnswersForTheTargetFails(t *testing.T) {
	target := proxytest.TLSTarget(t, status(200))
	for name, c := range map[string]struct {
		fault connectproxy.Fault
		want  endpoint.Stage
	}{
		"captive portal":    {connectproxy.Fault{Kind: connectproxy.Captive}, endpoint.StageTargetTLS},
		"asks for password": {connectproxy.Fault{Kind: connectproxy.Refuse, Status: 407}, endpoint.StageConnect},
		"redirects CONNECT": {connectproxy.Fault{Kind: connectproxy.Refuse, Status: 302}, endpoint.StageConnect},
		"cannot resolve":    {connectproxy.Fault{Kind: connectproxy.Refuse, Status: 503, SquidError: "ERR_DNS_FAIL"}, endpoint.StageConnect},
	} {
		t.Run(name, func(t *testing.T) {
			proxy, url := proxytest.Proxy(t, connectproxy.Config{Resolve: target.Resolve})
			proxy.SetFault(c.fault)
			r := newProber(t, target, nil).Probe(t.Context(), endpoint.Endpoint{ID: "a", URL: url})
			require.Error(t, r.Err)
			assert.Equal(t, c.want, r.Stage(), r.Err)
		})
	}
}

// mubeng, Scrapoxy and rota switch verification off, and so take a proxy that
// reads along for a good one.
func TestAProxyThatReadsAlongFails(t *testing.T) {
	real := proxytest.TLSTarget(t, status(200))
	impostor := proxytest.TLSTarget(t, status(200))
	_, url := proxytest.Proxy(t, connectproxy.Config{Resolve: impostor.Resolve})
	prober, err := health.NewProber(health.ProbeConfig{URL: real.URL})
	require.NoError(t, err)
	r := prober.Probe(t.Context(), endpoint.Endpoint{ID: "a", URL: url})
	require.Error(t, r.Err)
	assert.Equal(t, endpoint.StageTargetTLS, r.Stage())
}

// claffin/cloudproxy probed with a plain GET, and called proxies healthy that
// could not tunnel.
func TestHTTPSTargetsAreAlwaysTunnelled(t *testing.T) {
	target := proxytest.TLSTarget(t, status(200))
	proxy, url := proxytest.Proxy(t, connectproxy.Config{Resolve: target.Resolve})
	prober := newProber(t, target, nil)
	for range 3 {
		require.NoError(t, prober.Probe(t.Context(), endpoint.Endpoint{ID: "a", URL: url}).Err)
	}
	assert.EqualValues(t, 3, proxy.Connects())
}

// envoyproxy/envoy#16433: over a kept connection a dead proxy stays healthy.
func TestEveryProbeConnectsAnew(t *testing.T) {
	target := proxytest.TLSTarget(t, status(200))
	proxy, url := proxytest.Proxy(t, connectproxy.Config{Resolve: target.Resolve})
	prober := newProber(t, target, nil)
	e := endpoint.Endpoint{ID: "a", URL: url}
	require.NoError(t, prober.Probe(t.Context(), e).Err)
	proxy.Close()
	r := prober.Probe(t.Context(), e)
	assert.True(t, r.Stage().OfProxy(), r.Err)
}

// hangUp waits for the client to go, and then ends nothing properly: an answer in
// that moment might still arrive.
func hangUp(_ http.ResponseWriter, r *http.Request) {
	<-r.Context().Done()
	panic(http.ErrAbortHandler)
}

// net/http's own timeouts bound neither a CONNECT that is never answered nor a
// body that stalls.
func TestOneDeadlineHoldsOverEverything(t *testing.T) {
	stall := func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "begin")
		_ = http.NewResponseController(w).Flush()
		hangUp(w, r)
	}
	for name, c := range map[string]struct {
		fault   connectproxy.FaultKind
		handler http.HandlerFunc
		want    endpoint.Stage
	}{
		"CONNECT": {connectproxy.Hang, nil, endpoint.StageConnect},
		"head":    {connectproxy.Sound, hangUp, endpoint.StageRequest},
		"body":    {connectproxy.Sound, stall, endpoint.StageBody},
	} {
		t.Run(name, func(t *testing.T) {
			target := proxytest.TLSTarget(t, c.handler)
			proxy, url := proxytest.Proxy(t, connectproxy.Config{Resolve: target.Resolve})
			proxy.SetFault(connectproxy.Fault{Kind: c.fault})
			prober := newProber(t, target, func(c *health.ProbeConfig) { c.Timeout = 300 * time.Millisecond })
			r := prober.Probe(t.Context(), endpoint.Endpoint{ID: "a", URL: url})
			require.ErrorIs(t, r.Err, context.DeadlineExceeded)
			assert.Equal(t, c.want, r.Stage())
		})
	}
}

func TestTheCallersEndSaysNothingAboutTheProxy(t *testing.T) {
	target := proxytest.TLSTarget(t, status(200))
	proxy, url := proxytest.Proxy(t, connectproxy.Config{Resolve: target.Resolve})
	proxy.SetFault(connectproxy.Fault{Kind: connectproxy.Hang})
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	r := newProber(t, target, nil).Probe(ctx, endpoint.Endpoint{ID: "a", URL: url})
	assert.ErrorIs(t, r.Err, context.DeadlineExceeded)
	assert.Zero(t, r.Stage())
}

func TestTheBodyIsJudged(t *testing.T) {
	for name, c := range map[string]struct {
		body   string
		change func(*health.ProbeConfig)
		want   string
	}{
		"too long":     {strings.Repeat("x", 101), func(c *health.ProbeConfig) { c.BodySizeLimit = 100 }, "longer than 100 bytes"},
		"just fits":    {strings.Repeat("x", 100), func(c *health.ProbeConfig) { c.BodySizeLimit = 100 }, ""},
		"wrong page":   {"welcome", func(c *health.ProbeConfig) { c.BodyMatch = regexp.MustCompile("^token-7$") }, "does not match"},
		"no echo":      {"<html>", func(c *health.ProbeConfig) { c.Echo = health.EchoText }, "holds no IP address"},
		"no JSON echo": {"<html>", func(c *health.ProbeConfig) { c.Echo = health.EchoJSON }, "not a JSON object"},
	} {
		t.Run(name, func(t *testing.T) {
			target := proxytest.TLSTarget(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, c.body) }))
			_, url := proxytest.Proxy(t, connectproxy.Config{Resolve: target.Resolve})
			r := newProber(t, target, c.change).Probe(t.Context(), endpoint.Endpoint{ID: "a", URL: url})
			if c.want == "" {
				assert.NoError(t, r.Err)
				return
			}
			assert.ErrorContains(t, r.Err, c.want)
			assert.Equal(t, endpoint.StageBody, r.Stage())
		})
	}
}

// What is taken from the connection counts, and not what is kept.
func TestAnEndlessBodyIsReadUpToALimit(t *testing.T) {
	target := proxytest.TLSTarget(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for err := error(nil); err == nil; {
			_, err = io.WriteString(w, strings.Repeat("x", 32<<10))
		}
	}))
	_, url := proxytest.Proxy(t, connectproxy.Config{Resolve: target.Resolve})
	counted := &proxytest.Counted{Bound: 1 << 20}
	r := newProber(t, target, func(c *health.ProbeConfig) {
		c.BodySizeLimit, c.Transport.DialContext = 100, counted.DialContext
	}).Probe(t.Context(), endpoint.Endpoint{ID: "a", URL: url})
	require.ErrorContains(t, r.Err, "longer than 100 bytes")
	assert.Equal(t, endpoint.StageBody, r.Stage())
	assert.LessOrEqual(t, counted.Taken(), counted.Bound)
}

func TestHeadersThatGiveTheProxyAwayAreTold(t *testing.T) {
	target := proxytest.PlainTarget(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"ip": "10.0.0.1, 192.0.2.99", "headers": {"x-forwarded-for": ["10.0.0.1"], "VIA": "1.1 squid", "Accept": "*/*"}}`)
	}))
	_, url := proxytest.Proxy(t, connectproxy.Config{Resolve: target.Resolve})
	prober := newProber(t, target, func(c *health.ProbeConfig) { c.AllowPlainHTTP, c.Echo = true, health.EchoJSON })
	r := prober.Probe(t.Context(), endpoint.Endpoint{ID: "a", URL: url})
	require.NoError(t, r.Err)
	assert.Equal(t, []string{"Via", "X-Forwarded-For"}, r.Leaks)
	assert.Equal(t, netip.MustParseAddr("192.0.2.99"), r.EgressIP)
}

// alpkeskin/rota#28: the checker had a transport of its own, without the
// credentials, and found 0 of 115 alive.
func TestProbeAndTrafficShareCredentials(t *testing.T) {
	target := proxytest.TLSTarget(t, status(200))
	_, url := proxytest.Proxy(t, connectproxy.Config{Resolve: target.Resolve, Username: "u", Password: "p@ss:w#rd%"})
	require.NoError(t, newProber(t, target, nil).Probe(t.Context(), endpoint.Endpoint{ID: "a", URL: url}).Err)
	resp, err := proxytest.Client(t, url, endpoint.TransportConfig{TargetRoots: target.Roots}).Get(target.URL)
	require.NoError(t, err)
	_ = resp.Body.Close()
}

// mubeng shared a client between goroutines and called 250 to 283 of 500 dead
// proxies alive.
func TestManyProbesAtOnceMixNothingUp(t *testing.T) {
	const each = 100
	target := proxytest.TLSTarget(t, status(200))
	_, live := proxytest.Proxy(t, connectproxy.Config{Resolve: target.Resolve})
	deadURL := proxytest.Dead(t)
	prober := newProber(t, target, func(c *health.ProbeConfig) { c.Timeout = 30 * time.Second })
	var probes sync.WaitGroup
	for i := range 2 * each {
		probes.Go(func() {
			url := live
			if i%2 == 1 {
				url = deadURL
			}
			r := prober.Probe(t.Context(), endpoint.Endpoint{ID: fmt.Sprint(i), URL: url})
			assert.Equal(t, i%2 == 1, r.Err != nil, "%d: %v", i, r.Err)
			assert.Equal(t, fmt.Sprint(i), r.EndpointID)
		})
	}
	probes.Wait()
}

func TestNoSecretInAFailure(t *testing.T) {
	target := proxytest.TLSTarget(t, status(200))
	proxy, _ := proxytest.Proxy(t, connectproxy.Config{Resolve: target.Resolve, Username: "u", Password: "right"})
	url, err := endpoint.NewURL("http", proxy.Addr().String(), "u", "hunter2")
	require.NoError(t, err)
	r := newProber(t, target, nil).Probe(t.Context(), endpoint.Endpoint{ID: "a", URL: url})
	require.Error(t, r.Err)
	assert.NotContains(t, fmt.Sprintf("%v %+v %#v", r.Err, r, r), "hunter2")
	var failed *endpoint.Error
	require.True(t, errors.As(r.Err, &failed))
	assert.Equal(t, 407, failed.Status)
}
