package lease_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/internal/connectproxy"
	"github.com/egressfleet/egress/internal/proxytest"
	"github.com/egressfleet/egress/lease"
)

// storeWith returns a store whose leases go through the given proxies.
func storeWith(t *testing.T, target proxytest.Target, proxies ...endpoint.URL) *lease.Memory {
	t.Helper()
	m := newMemory(t, lease.MemoryConfig{Transport: endpoint.TransportConfig{TargetRoots: target.Roots}})
	for i, url := range proxies {
		id := fmt.Sprint(i)
		require.NoError(t, m.Put(t.Context(), endpoint.Endpoint{ID: id, URL: url}))
		require.NoError(t, m.SetVerdict(t.Context(), id, endpoint.Verdict{Health: endpoint.Healthy}))
	}
	return m
}

func fetch(t *testing.T, client *http.Client, url string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	require.NoError(t, err)
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

// gocolly/colly#339, #499, #759: rotation that did not rotate on HTTP/2.
func TestEveryLeaseHasATransportOfItsOwn(t *testing.T) {
	target := proxytest.TLSTarget(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		assert.Equal(t, "HTTP/2.0", r.Proto)
	}))
	a, aURL := proxytest.Proxy(t, connectproxy.Config{Resolve: target.Resolve})
	b, bURL := proxytest.Proxy(t, connectproxy.Config{Resolve: target.Resolve})
	m := storeWith(t, target, aURL, bURL)
	for range 10 {
		l := acquire(t, m, "")
		require.NoError(t, fetch(t, l.Client(), target.URL))
		assert.Same(t, l.Client(), l.Client())
		require.NoError(t, l.Release(t.Context()))
	}
	assert.EqualValues(t, 5, a.Connects())
	assert.EqualValues(t, 5, b.Connects())
}

// MetaCubeX/mihomo#2499, diegosouzapw/OmniRoute#6246: without a proxy, traffic
// went direct.
func TestALostLeaseSendsNothing(t *testing.T) {
	requests := make(chan struct{}, 10)
	target := proxytest.TLSTarget(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { requests <- struct{}{} }))
	_, url := proxytest.Proxy(t, connectproxy.Config{Resolve: target.Resolve})
	m := storeWith(t, target, url)
	l := acquire(t, m, "")
	client := l.Client()
	require.NoError(t, fetch(t, client, target.URL))
	require.NoError(t, l.Release(t.Context()))

	err := fetch(t, client, target.URL)
	assert.ErrorIs(t, err, lease.ErrLost)
	assert.ErrorIs(t, err, lease.ErrReleased)
	_, err = l.ProxyURL()
	assert.ErrorIs(t, err, lease.ErrLost)
	assert.Len(t, requests, 1)
	assert.NoError(t, l.Release(t.Context()), "releasing again is nil")
}

func TestTheEndOfALeaseCancelsWhatIsInFlight(t *testing.T) {
	for name, handler := range map[string]http.HandlerFunc{
		"before the head": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"in the body": func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, "begin")
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		},
	} {
		t.Run(name, func(t *testing.T) {
			began := make(chan struct{})
			target := proxytest.TLSTarget(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				close(began)
				handler(w, r)
			}))
			_, url := proxytest.Proxy(t, connectproxy.Config{Resolve: target.Resolve})
			m := storeWith(t, target, url)
			l := acquire(t, m, "")
			go func() {
				<-began
				_ = m.Revoke(context.Background(), "0")
			}()
			err := fetch(t, l.Client(), target.URL)
			assert.ErrorIs(t, err, lease.ErrRevoked)
			assert.Equal(t, lease.Canceled, lease.Judge(nil, err).Kind)
		})
	}
}

func TestProxyURLIsForBrowsers(t *testing.T) {
	m := newMemory(t, lease.MemoryConfig{}, "a")
	url, err := acquire(t, m, "").ProxyURL()
	require.NoError(t, err)
	assert.Equal(t, "http://crawler:hunter2@192.0.2.7:3128", url.Reveal())
}

func TestJudge(t *testing.T) {
	refused := func(status int, squid string) error {
		return &endpoint.Error{Stage: endpoint.StageConnect, Status: status, SquidError: squid, Err: errors.New("x")}
	}
	for name, c := range map[string]struct {
		status int
		err    error
		want   lease.OutcomeKind
	}{
		"ok":                   {status: 200, want: lease.OK},
		"not found":            {status: 404, want: lease.OK},
		"log in":               {status: 401, want: lease.OK},
		"forbidden":            {status: 403, want: lease.TargetBlocked},
		"too many":             {status: 429, want: lease.TargetBlocked},
		"legal":                {status: 451, want: lease.TargetBlocked},
		"server":               {status: 503, want: lease.TargetError},
		"plain http 407":       {status: 407, want: lease.Inconclusive},
		"dial":                 {err: &endpoint.Error{Stage: endpoint.StageDial, Err: errors.New("refused")}, want: lease.ProxyFault},
		"dial timeout":         {err: &endpoint.Error{Stage: endpoint.StageDial, Err: context.DeadlineExceeded}, want: lease.ProxyFault},
		"proxy certificate":    {err: &endpoint.Error{Stage: endpoint.StageProxyTLS, Err: errors.New("x")}, want: lease.ProxyFault},
		"wrong credentials":    {err: refused(407, ""), want: lease.ProxyFault},
		"no such host":         {err: refused(503, "ERR_DNS_FAIL"), want: lease.Inconclusive},
		"CONNECT timeout":      {err: &endpoint.Error{Stage: endpoint.StageConnect, Err: context.DeadlineExceeded}, want: lease.Inconclusive},
		"target certificate":   {err: &endpoint.Error{Stage: endpoint.StageTargetTLS, Err: errors.New("x")}, want: lease.Inconclusive},
		"gave up":              {err: &endpoint.Error{Stage: endpoint.StageDial, Err: context.Canceled}, want: lease.Canceled},
		"an error of nobody's": {err: errors.New("x"), want: lease.Inconclusive},
	} {
		t.Run(name, func(t *testing.T) {
			var resp *http.Response
			if c.err == nil {
				resp = &http.Response{StatusCode: c.status, Header: http.Header{"Retry-After": {"7"}}}
			}
			got := lease.Judge(resp, c.err)
			assert.Equal(t, c.want, got.Kind)
			if c.want == lease.TargetBlocked {
				assert.Equal(t, 7*time.Second, got.RetryAfter)
			}
		})
	}
}

// countedConn counts itself out when it is closed.
type countedConn struct {
	net.Conn
	open *atomic.Int64
	once sync.Once
}

func (c *countedConn) Close() error {
	c.once.Do(func() { c.open.Add(-1) })
	return c.Conn.Close()
}

// A crawler releases as soon as it has read the body, when the connection is not
// idle yet: it stayed open until its idle timeout.
func TestReleaseLeavesNoConnection(t *testing.T) {
	target := proxytest.TLSTarget(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "hello")
	}))
	_, url := proxytest.Proxy(t, connectproxy.Config{Resolve: target.Resolve})
	var open atomic.Int64
	m := newMemory(t, lease.MemoryConfig{Transport: endpoint.TransportConfig{
		TargetRoots: target.Roots,
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			open.Add(1)
			return &countedConn{Conn: conn, open: &open}, nil
		},
	}})
	require.NoError(t, m.Put(t.Context(), endpoint.Endpoint{ID: "a", URL: url}))
	require.NoError(t, m.SetVerdict(t.Context(), "a", endpoint.Verdict{Health: endpoint.Healthy}))
	for range 50 {
		l := acquire(t, m, "")
		require.NoError(t, fetch(t, l.Client(), target.URL))
		require.Positive(t, open.Load())
		require.NoError(t, l.Release(t.Context()))
		require.Zero(t, open.Load())
	}
}
