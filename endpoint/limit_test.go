package endpoint_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/internal/connectproxy"
	"github.com/egressfleet/egress/internal/proxytest"
)

// maxHead is what is documented, and slack what buffers may take besides.
const maxHead, slack = 1 << 20, 256 << 10

// endlessHeads is a proxy that answers every request with a head that has no end.
func endlessHeads(t *testing.T) endpoint.URL {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { answerWithoutEnd(conn) })
		}
	})
	t.Cleanup(func() { _ = listener.Close(); serving.Wait() })
	url, err := endpoint.NewURL("http", listener.Addr().String(), "", "")
	require.NoError(t, err)
	return url
}

// answerWithoutEnd goes on until its client hangs up.
func answerWithoutEnd(conn net.Conn) {
	defer conn.Close()
	if _, err := http.ReadRequest(bufio.NewReader(conn)); err != nil {
		return
	}
	_, err := io.WriteString(conn, "HTTP/1.1 200 OK\r\n")
	for lines := strings.Repeat("X-More: "+strings.Repeat("x", 100)+"\r\n", 100); err == nil; {
		_, err = io.WriteString(conn, lines)
	}
}

// What is taken from the connection counts, and not what is kept.
func TestAHeadWithoutEndIsReadUpToALimit(t *testing.T) {
	proxy := endlessHeads(t)
	for url, stage := range map[string]endpoint.Stage{
		"https://example.com/": endpoint.StageConnect,
		"http://example.com/":  endpoint.StageRequest,
	} {
		t.Run(stage.String(), func(t *testing.T) {
			counted := &proxytest.Counted{Bound: maxHead + slack}
			_, err := get(t, proxytest.Client(t, proxy, endpoint.TransportConfig{DialContext: counted.DialContext}), url)
			var failed *endpoint.Error
			require.ErrorAs(t, err, &failed)
			assert.Equal(t, stage, failed.Stage)
			assert.LessOrEqual(t, counted.Taken(), counted.Bound)
		})
	}
}

// The limit is the same over HTTP/2, and heads within it pass.
func TestALongHeadIsTakenUpToTheLimit(t *testing.T) {
	target := proxytest.TLSTarget(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		length, _ := strconv.Atoi(r.URL.RawQuery)
		w.Header().Set("X-More", strings.Repeat("x", length))
	}))
	_, proxy := proxytest.Proxy(t, connectproxy.Config{Resolve: target.Resolve})
	for _, fresh := range []bool{false, true} { // HTTP/2 and HTTP/1.1
		client := proxytest.Client(t, proxy, endpoint.TransportConfig{TargetRoots: target.Roots, FreshConnections: fresh})
		for length, fits := range map[int]bool{maxHead / 2: true, 2 * maxHead: false} {
			_, err := get(t, client, target.URL+"?"+strconv.Itoa(length))
			assert.Equal(t, fits, err == nil, "%d bytes, afresh %v: %v", length, fresh, err)
		}
	}
}
