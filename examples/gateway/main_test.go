package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/lease"
	"github.com/egressfleet/egress/provider"
	"github.com/egressfleet/egress/provider/local"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start returns a client that knows the gateway alone, the site behind it, and
// what the site saw.
func start(t *testing.T, proxies int) (client *http.Client, site *httptest.Server, store *lease.Memory, host *local.Host) {
	t.Helper()
	site = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, _ := host.Origin(netip.MustParseAddrPort(r.RemoteAddr))
		fmt.Fprint(w, id)
	}))
	t.Cleanup(site.Close)
	host, err := local.NewHost(local.HostConfig{})
	require.NoError(t, err)
	t.Cleanup(host.Close)
	p, err := local.New(local.Config{Host: host, Username: "crawler", Password: "p@ss:w#rd"})
	require.NoError(t, err)
	store, err = lease.NewMemory(lease.MemoryConfig{})
	require.NoError(t, err)
	t.Cleanup(store.Close)
	for i := range proxies {
		id, err := p.Create(t.Context(), provider.CreateRequest{UID: fmt.Sprint("u", i), Tag: "test"})
		require.NoError(t, err)
		in, err := p.Get(t.Context(), id)
		require.NoError(t, err)
		e, err := p.Endpoint(in.UID, in)
		require.NoError(t, err)
		require.NoError(t, store.Put(t.Context(), e))
		require.NoError(t, store.SetVerdict(t.Context(), e.ID, endpoint.Verdict{Health: endpoint.Healthy}))
	}
	ctx, cancel := context.WithCancel(context.Background())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ended := make(chan error)
	go func() { ended <- serve(ctx, listener, &gateway{store: store, wait: 200 * time.Millisecond}) }()
	transport := site.Client().Transport.(*http.Transport).Clone()
	transport.Proxy = http.ProxyURL(&url.URL{Scheme: "http", Host: listener.Addr().String()})
	transport.DisableKeepAlives = true
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		cancel()
		assert.NoError(t, <-ended)
	})
	return &http.Client{Transport: transport}, site, store, host
}

func TestOnePortLeadsThroughAllProxies(t *testing.T) {
	client, site, store, _ := start(t, 3)
	seen := map[string]bool{}
	for range 6 {
		resp, err := client.Get(site.URL)
		require.NoError(t, err)
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		_ = resp.Body.Close()
		require.NotEmpty(t, body, "it came through one of the proxies")
		seen[string(body)] = true
	}
	assert.GreaterOrEqual(t, len(seen), 2)
	assert.Eventually(t, func() bool {
		stats, err := store.Stats(t.Context())
		return err == nil && stats.Endpoints.Leased == 0 && stats.Released == 6
	}, 20*time.Second, 10*time.Millisecond, "every lease ends with its tunnel")
}

func TestWithoutAProxyNothingGoesOut(t *testing.T) {
	client, site, _, _ := start(t, 0)
	_, err := client.Get(site.URL)
	assert.ErrorContains(t, err, "Service Unavailable")
}

func TestAFaultIsReported(t *testing.T) {
	client, site, store, host := start(t, 1)
	list, err := store.List(t.Context())
	require.NoError(t, err)
	require.NoError(t, host.Inject("hosts/local/proxies/"+list[0].Endpoint.ID, local.ProxyDown))
	_, err = client.Get(site.URL)
	require.ErrorContains(t, err, "Bad Gateway")
	stats, err := store.Stats(t.Context())
	require.NoError(t, err)
	assert.EqualValues(t, 1, stats.Outcomes[lease.ProxyFault])
}

func TestOnlyTunnels(t *testing.T) {
	w := httptest.NewRecorder()
	(&gateway{}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://example.com/", nil))
	assert.Equal(t, http.StatusMethodNotAllowed, w.Code)
}

func TestFlags(t *testing.T) {
	assert.ErrorContains(t, run(t.Context(), nil), "give the server's URL")
	assert.ErrorIs(t, run(t.Context(), []string{"-token-file", filepath.Join(t.TempDir(), "absent")}), os.ErrNotExist)
}

// A proxy whose answer has no end is given up.
func TestTheHeadOfAnAnswerIsReadUpToALimit(t *testing.T) {
	ours, theirs := net.Pipe()
	defer ours.Close()
	sent := make(chan int)
	go func() {
		_, _ = bufio.NewReader(theirs).ReadString('\n')
		go func() { _, _ = io.Copy(io.Discard, theirs) }()
		n, _ := io.WriteString(theirs, "HTTP/1.1 200 OK\r\n")
		for err := error(nil); err == nil; {
			var m int
			m, err = io.WriteString(theirs, "X-More: "+strings.Repeat("x", 1000)+"\r\n")
			n += m
		}
		sent <- n
	}()
	proxy, err := endpoint.NewURL("http", "192.0.2.1:3128", "", "")
	require.NoError(t, err)
	_, err = connect(ours, proxy, "example.com:443")
	require.Error(t, err)
	_ = ours.Close()
	assert.Less(t, <-sent, 2*maxHead)
}
