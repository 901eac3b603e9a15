package endpoint_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/internal/connectproxy"
	"github.com/egressfleet/egress/internal/proxytest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// hello answers with the protocol that was spoken.
var hello = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Proto) })

func get(t *testing.T, client *http.Client, url string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	require.NoError(t, err)
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return string(body), nil
}

func TestEveryKindOfProxyCarriesEveryKindOfTarget(t *testing.T) {
	secure, plain := proxytest.TLSTarget(t, hello), proxytest.PlainTarget(t, hello)
	certificate, proxyRoots := proxytest.Certificate(t)
	for _, target := range []struct {
		proxytest.Target
		proto string
	}{{secure, "HTTP/2.0"}, {plain, "HTTP/1.1"}} {
		_, http := proxytest.Proxy(t, connectproxy.Config{Resolve: target.Resolve})
		_, https := proxytest.Proxy(t, connectproxy.Config{Resolve: target.Resolve, TLS: certificate})
		socks := proxytest.SOCKS(t, target.Resolve, "crawler", "hunter2")
		for _, proxy := range []endpoint.URL{http, https, socks} {
			t.Run(proxy.Scheme()+" to "+target.URL, func(t *testing.T) {
				client := proxytest.Client(t, proxy, endpoint.TransportConfig{
					ProxyRoots: proxyRoots, TargetRoots: target.Roots,
				})
				body, err := get(t, client, target.URL)
				require.NoError(t, err)
				assert.Equal(t, target.proto, body)
			})
		}
	}
}

// Rotating by one shared transport fails on HTTP/2 targets (golang/go#25620,
// gocolly/colly#339, #499, #759): all requests leave by the first proxy.
func TestHTTP2DoesNotDefeatRotation(t *testing.T) {
	target := proxytest.TLSTarget(t, hello)
	var proxies [2]*connectproxy.Proxy
	var clients [2]*http.Client
	for i := range proxies {
		var url endpoint.URL
		proxies[i], url = proxytest.Proxy(t, connectproxy.Config{Resolve: target.Resolve})
		clients[i] = proxytest.Client(t, url, endpoint.TransportConfig{TargetRoots: target.Roots})
	}
	for i := range 10 {
		body, err := get(t, clients[i%2], target.URL)
		require.NoError(t, err)
		require.Equal(t, "HTTP/2.0", body)
	}
	assert.EqualValues(t, 1, proxies[0].Connects(), "one tunnel, used five times")
	assert.EqualValues(t, 1, proxies[1].Connects(), "one tunnel, used five times")
}

func TestCredentialsOfAnyCharactersArrive(t *testing.T) {
	target := proxytest.TLSTarget(t, hello)
	for _, password := range []string{"@", ":", "#", "%", "%20", "a b+c", "/?&=", `"'\`, "pässwörd", "!$()*,;", "***"} {
		t.Run(password, func(t *testing.T) {
			for _, username := range []string{"crawler", password} {
				if strings.Contains(username, ":") {
					continue
				}
				_, url := proxytest.Proxy(t, connectproxy.Config{
					Resolve: target.Resolve, Username: username, Password: password,
				})
				parsed, err := endpoint.ParseURL(url.Reveal())
				require.NoError(t, err)
				for _, proxy := range []endpoint.URL{url, parsed, proxytest.SOCKS(t, target.Resolve, username, password)} {
					client := proxytest.Client(t, proxy, endpoint.TransportConfig{TargetRoots: target.Roots})
					_, err = get(t, client, target.URL)
					assert.NoError(t, err)
				}
			}
		})
	}
}

// net/http reports a refused CONNECT as bare text (golang/go#30560, #54299).
func TestRefusedConnectIsTyped(t *testing.T) {
	target := proxytest.TLSTarget(t, hello)
	for name, c := range map[string]struct {
		fault       connectproxy.Fault
		wantText    string
		unreachable bool
	}{
		"forbidden":   {connectproxy.Fault{Status: 403, SquidError: "ERR_ACCESS_DENIED"}, "403 Forbidden, ERR_ACCESS_DENIED", false},
		"redirect":    {connectproxy.Fault{Status: 302}, "302 Found", false},
		"overloaded":  {connectproxy.Fault{Status: 503}, "503 Service Unavailable", false},
		"no name":     {connectproxy.Fault{Status: 503, SquidError: "ERR_DNS_FAIL"}, "503 Service Unavailable, ERR_DNS_FAIL", true},
		"bad gateway": {connectproxy.Fault{Status: 502}, "502 Bad Gateway", true},
		"hostile":     {connectproxy.Fault{Status: 502, SquidError: "<script>"}, "502 Bad Gateway", true},
	} {
		t.Run(name, func(t *testing.T) {
			proxy, url := proxytest.Proxy(t, connectproxy.Config{Resolve: target.Resolve})
			c.fault.Kind = connectproxy.Refuse
			proxy.SetFault(c.fault)
			_, err := get(t, proxytest.Client(t, url, endpoint.TransportConfig{}), target.URL)
			var refused *endpoint.Error
			require.ErrorAs(t, err, &refused)
			assert.Equal(t, endpoint.StageConnect, refused.Stage)
			assert.Equal(t, c.fault.Status, refused.Status)
			assert.Equal(t, c.unreachable, refused.TargetUnreachable())
			assert.True(t, strings.HasSuffix(refused.Error(), c.wantText), refused.Error())
			assert.True(t, endpoint.IsProxyFault(err))
		})
	}
}

func TestWrongCredentialsAreAProxyFaultAndStaySecret(t *testing.T) {
	target := proxytest.TLSTarget(t, hello)
	proxy, _ := proxytest.Proxy(t, connectproxy.Config{Resolve: target.Resolve, Username: "u", Password: "right"})
	url, err := endpoint.NewURL("http", proxy.Addr().String(), "u", "hunter2")
	require.NoError(t, err)
	_, err = get(t, proxytest.Client(t, url, endpoint.TransportConfig{}), target.URL)
	require.ErrorContains(t, err, "407 Proxy Authentication Required: check user name and password")
	assert.NotContains(t, err.Error(), "hunter2")
}

// RFC 9110, section 9.3.6: any 2xx makes a tunnel. net/http takes 200 alone.
func TestAnySuccessMakesATunnel(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = conn.Read(make([]byte, 4096))
		_, _ = io.WriteString(conn, "HTTP/1.1 201 Created\r\n\r\n")
		_, _ = conn.Read(make([]byte, 1))
	}()
	url, err := endpoint.NewURL("http", listener.Addr().String(), "", "")
	require.NoError(t, err)
	_, err = get(t, proxytest.Client(t, url, endpoint.TransportConfig{}), "https://example.com/")
	var failed *endpoint.Error
	require.ErrorAs(t, err, &failed)
	assert.Equal(t, endpoint.StageTargetTLS, failed.Stage, "the tunnel stood, then the peer hung up")
}

func TestStageOfFailure(t *testing.T) {
	target := proxytest.TLSTarget(t, hello)
	certificate, _ := proxytest.Certificate(t)
	downURL := proxytest.Dead(t)
	_, tlsURL := proxytest.Proxy(t, connectproxy.Config{TLS: certificate})
	_, openURL := proxytest.Proxy(t, connectproxy.Config{Resolve: target.Resolve})
	hung, hungURL := proxytest.Proxy(t, connectproxy.Config{})
	hung.SetFault(connectproxy.Fault{Kind: connectproxy.Hang})
	captive, captiveURL := proxytest.Proxy(t, connectproxy.Config{})
	captive.SetFault(connectproxy.Fault{Kind: connectproxy.Captive})
	socks := proxytest.SOCKS(t, nil, "", "")

	for name, c := range map[string]struct {
		proxy endpoint.URL
		want  endpoint.Stage
	}{
		"nobody listens":               {downURL, endpoint.StageDial},
		"unknown proxy certificate":    {tlsURL, endpoint.StageProxyTLS},
		"CONNECT is never answered":    {hungURL, endpoint.StageConnect},
		"SOCKS cannot reach the host":  {socks, endpoint.StageConnect},
		"unknown target certificate":   {openURL, endpoint.StageTargetTLS},
		"the proxy answers for itself": {captiveURL, endpoint.StageTargetTLS},
	} {
		t.Run(name, func(t *testing.T) {
			client := proxytest.Client(t, c.proxy, endpoint.TransportConfig{})
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer cancel()
			req, _ := http.NewRequestWithContext(ctx, http.MethodGet, target.URL, nil)
			_, err := client.Do(req)
			var failed *endpoint.Error
			require.ErrorAs(t, err, &failed)
			assert.Equal(t, c.want, failed.Stage, failed.Error())
			assert.Equal(t, c.want.OfProxy(), endpoint.IsProxyFault(err))
		})
	}
}

func TestSOCKSReplySaysTargetUnreachable(t *testing.T) {
	_, err := get(t, proxytest.Client(t, proxytest.SOCKS(t, nil, "", ""), endpoint.TransportConfig{}), "https://example.com/")
	var failed *endpoint.Error
	require.ErrorAs(t, err, &failed)
	assert.True(t, failed.TargetUnreachable(), failed.Error())
}

// A set HTTPS_PROXY or NO_PROXY must not lead past the given proxy, and without
// a proxy there is no transport (MetaCubeX/mihomo#2499, #1215).
func TestNothingGoesDirect(t *testing.T) {
	t.Setenv("NO_PROXY", "*")
	t.Setenv("HTTPS_PROXY", "http://127.0.0.1:1")
	target := proxytest.TLSTarget(t, hello)
	proxy, url := proxytest.Proxy(t, connectproxy.Config{Resolve: target.Resolve})
	_, err := get(t, proxytest.Client(t, url, endpoint.TransportConfig{TargetRoots: target.Roots}), target.URL)
	require.NoError(t, err)
	assert.EqualValues(t, 1, proxy.Connects())

	_, err = endpoint.NewTransport(endpoint.URL{}, endpoint.TransportConfig{})
	assert.ErrorContains(t, err, "would go direct")
}

// When the proxy dies, a tunnel that stands may serve on, but no request is
// dialled past the proxy.
func TestDeadProxyNeverGoesDirect(t *testing.T) {
	requests := make(chan struct{}, 10)
	target := proxytest.TLSTarget(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { requests <- struct{}{} }))
	proxy, url := proxytest.Proxy(t, connectproxy.Config{Resolve: target.Resolve})
	client := proxytest.Client(t, url, endpoint.TransportConfig{TargetRoots: target.Roots})
	_, err := get(t, client, target.URL)
	require.NoError(t, err)
	proxy.Close()
	for range 3 {
		_, err = get(t, client, target.URL)
		require.Error(t, err)
	}
	assert.Len(t, requests, 1)
}

func TestProxySeesOurUserAgent(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	head := make(chan string, 1)
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		buf := make([]byte, 4096)
		n, _ := conn.Read(buf)
		head <- string(buf[:n])
	}()
	url, err := endpoint.NewURL("http", listener.Addr().String(), "", "")
	require.NoError(t, err)
	client := proxytest.Client(t, url, endpoint.TransportConfig{UserAgent: "my-crawler/1"})
	_, err = get(t, client, "https://bücher.example/")
	require.Error(t, err)
	got := <-head
	assert.Contains(t, got, "CONNECT xn--bcher-kva.example:443 HTTP/1.1\r\n", "the proxy resolves the name")
	assert.Contains(t, got, "User-Agent: my-crawler/1\r\n")
	assert.NotContains(t, got, "Go-http-client")
}

// A fresh transport for each probe, with keep-alives, leaked five goroutines a
// probe (kubernetes/kubernetes#36451); TestMain would find them.
func TestFreshConnectionsLeaveNothing(t *testing.T) {
	target := proxytest.TLSTarget(t, hello)
	proxy, url := proxytest.Proxy(t, connectproxy.Config{Resolve: target.Resolve})
	for range 20 {
		transport, err := endpoint.NewTransport(url, endpoint.TransportConfig{TargetRoots: target.Roots, FreshConnections: true})
		require.NoError(t, err)
		body, err := get(t, &http.Client{Transport: transport}, target.URL)
		require.NoError(t, err)
		assert.Equal(t, "HTTP/1.1", body)
	}
	assert.EqualValues(t, 20, proxy.Connects())
}

func TestStagesAreObservedInOrder(t *testing.T) {
	target := proxytest.TLSTarget(t, hello)
	certificate, roots := proxytest.Certificate(t)
	_, url := proxytest.Proxy(t, connectproxy.Config{Resolve: target.Resolve, TLS: certificate})
	client := proxytest.Client(t, url, endpoint.TransportConfig{ProxyRoots: roots, TargetRoots: target.Roots})
	var got []endpoint.Stage
	ctx := endpoint.WithStageObserver(t.Context(), func(s endpoint.Stage) { got = append(got, s) })
	req, _ := http.NewRequestWithContext(ctx, http.MethodGet, target.URL, nil)
	resp, err := client.Do(req)
	require.NoError(t, err)
	_ = resp.Body.Close()
	assert.Equal(t, []endpoint.Stage{
		endpoint.StageDial, endpoint.StageProxyTLS, endpoint.StageConnect,
		endpoint.StageTargetTLS, endpoint.StageRequest,
	}, got)
}

func TestErrorMatchesItsCause(t *testing.T) {
	cause := errors.New("cause")
	assert.ErrorIs(t, &endpoint.Error{Stage: endpoint.StageDial, Err: cause}, cause)
	assert.False(t, endpoint.IsProxyFault(cause))
}

// A connection that has just served is not idle yet, and would be kept.
func TestCloseEndsEveryConnection(t *testing.T) {
	began := make(chan struct{})
	target := proxytest.TLSTarget(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(began)
		<-r.Context().Done()
	}))
	_, url := proxytest.Proxy(t, connectproxy.Config{Resolve: target.Resolve})
	transport, err := endpoint.NewTransport(url, endpoint.TransportConfig{TargetRoots: target.Roots})
	require.NoError(t, err)
	go func() {
		<-began
		transport.Close()
		transport.Close()
	}()
	client := &http.Client{Transport: transport}
	_, err = get(t, client, target.URL)
	require.Error(t, err)
	_, err = get(t, client, target.URL)
	var failed *endpoint.Error
	require.ErrorAs(t, err, &failed)
	assert.ErrorContains(t, err, "the transport was closed")
}

// Such a request never left: no proxy is to blame for a page that redirects to
// market://, or for a context that had ended.
func TestTheCallersOwnErrorsAreNotTheProxys(t *testing.T) {
	_, url := proxytest.Proxy(t, connectproxy.Config{})
	client := proxytest.Client(t, url, endpoint.TransportConfig{})
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for name, req := range map[string]func() (*http.Request, error){
		"scheme": func() (*http.Request, error) {
			return http.NewRequestWithContext(t.Context(), "GET", "ftp://example.com/", nil)
		},
		"no host": func() (*http.Request, error) {
			return http.NewRequestWithContext(t.Context(), "GET", "https:///path", nil)
		},
		"header": func() (*http.Request, error) {
			r, err := http.NewRequestWithContext(t.Context(), "GET", "https://example.com/", nil)
			r.Header["Bad Name"] = []string{"x"}
			return r, err
		},
		"context": func() (*http.Request, error) {
			return http.NewRequestWithContext(ended, "GET", "https://example.com/", nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := req()
			require.NoError(t, err)
			_, err = client.Transport.RoundTrip(r)
			require.Error(t, err)
			assert.False(t, endpoint.IsProxyFault(err), err)
			var failed *endpoint.Error
			assert.False(t, errors.As(err, &failed), err)
		})
	}
}
