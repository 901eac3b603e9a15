package leasehttp_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	gotoken "go/token"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/internal/mdtest"
	"github.com/egressfleet/egress/lease"
	"github.com/egressfleet/egress/lease/leasehttp"
	"github.com/egressfleet/egress/lease/leasetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const token = "a-token-of-32-random-characters!"

// direct is a transport that calls a handler without a socket, so that it works
// under testing/synctest.
type direct struct {
	handler http.Handler
	// lose, if set, tells whether the answer to a request gets lost.
	lose func(*http.Request) bool
}

func (d direct) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	done := make(chan struct{})
	go func() {
		defer close(done)
		d.handler.ServeHTTP(w, r.Clone(r.Context()))
	}()
	select {
	case <-done:
	case <-r.Context().Done():
		<-done
		return nil, r.Context().Err()
	}
	if d.lose != nil && d.lose(r) {
		return nil, errors.New("connection reset by peer")
	}
	return w.Result(), nil
}

// served is a store behind a handler, and a client of it.
func served(t *testing.T, cfg lease.MemoryConfig, lose func(*http.Request) bool) (*leasehttp.Client, *lease.Memory) {
	t.Helper()
	m, err := lease.NewMemory(cfg)
	require.NoError(t, err)
	h, err := leasehttp.NewHandler(leasehttp.HandlerConfig{Store: m, Clients: map[string]string{"crawler": token}})
	require.NoError(t, err)
	t.Cleanup(func() { h.Close(); m.Close() })
	c, err := leasehttp.NewClient(leasehttp.ClientConfig{
		URL: "http://lease.test", Token: token, HTTPClient: &http.Client{Transport: direct{h, lose}},
	})
	require.NoError(t, err)
	return c, m
}

func put(t *testing.T, m *lease.Memory, ids ...string) {
	t.Helper()
	for _, id := range ids {
		url, err := endpoint.NewURL("http", "192.0.2.7:3128", "crawler", "hunter2")
		require.NoError(t, err)
		require.NoError(t, m.Put(t.Context(), endpoint.Endpoint{ID: id, URL: url}))
		require.NoError(t, m.SetVerdict(t.Context(), id, endpoint.Verdict{Health: endpoint.Healthy}))
	}
}

func TestTheClientIsAStore(t *testing.T) {
	leasetest.Run(t, leasetest.Harness{
		Run: synctest.Test,
		New: func(t *testing.T, s leasetest.Settings) (lease.Store, lease.Inventory) {
			return served(t, lease.MemoryConfig{MaxHolders: s.MaxHolders}, nil)
		},
	})
}

// A store of another process, over connections that break: nothing leaks.
func TestALostAnswerLeaksNoLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lost atomic.Int64
		c, m := served(t, lease.MemoryConfig{}, func(r *http.Request) bool {
			return r.Method == http.MethodPost && r.URL.Path == "/v1/leases" && lost.Add(1)%3 != 0
		})
		put(t, m, "a", "b")
		for range 10 {
			l, err := c.Acquire(t.Context(), lease.Request{Holder: "test"})
			require.NoError(t, err)
			require.NoError(t, l.Release(t.Context()))
		}
		stats, err := m.Stats(t.Context())
		require.NoError(t, err)
		assert.EqualValues(t, 10, stats.Acquired, "the same request ID gets the same lease")
		assert.EqualValues(t, 10, stats.Released)
	})
}

func TestAnAcquireThatIsGivenUpLeavesNoLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, m := served(t, lease.MemoryConfig{}, nil)
		put(t, m, "a")
		held, err := c.TryAcquire(t.Context(), lease.Request{Holder: "test"})
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err = c.Acquire(ctx, lease.Request{Holder: "waits"})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, lease.ErrNoneFree)
		require.NoError(t, held.Release(t.Context()))
		time.Sleep(time.Second)
		_, err = c.TryAcquire(t.Context(), lease.Request{Holder: "test"})
		assert.NoError(t, err, "nobody else is in the queue")
	})
}

// A client that has vanished without a word holds nothing for longer than the
// grace.
func TestAClientThatVanishesGivesUpItsPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, m := served(t, lease.MemoryConfig{}, func(r *http.Request) bool { return r.Method == http.MethodDelete })
		put(t, m, "a")
		held, err := c.TryAcquire(t.Context(), lease.Request{Holder: "test"})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _, _ = c.Acquire(ctx, lease.Request{Holder: "vanishes"}) }()
		time.Sleep(time.Second)
		cancel()
		require.NoError(t, held.Release(t.Context()))
		time.Sleep(11 * time.Second)
		_, err = c.TryAcquire(t.Context(), lease.Request{Holder: "test"})
		assert.NoError(t, err)
	})
}

func TestPollingKeepsThePlaceInTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, m := served(t, lease.MemoryConfig{MaxTTL: time.Hour}, nil)
		put(t, m, "a")
		held, err := c.TryAcquire(t.Context(), lease.Request{Holder: "test", TTL: time.Hour})
		require.NoError(t, err)
		var mu sync.Mutex
		var order []int
		var group sync.WaitGroup
		for i := range 3 {
			group.Go(func() {
				l, err := c.Acquire(t.Context(), lease.Request{Holder: fmt.Sprint(i)})
				if assert.NoError(t, err) {
					mu.Lock()
					order = append(order, i)
					mu.Unlock()
					_ = l.Release(t.Context())
				}
			})
			time.Sleep(7 * time.Second)
		}
		time.Sleep(10 * time.Minute) // many polls
		require.NoError(t, held.Release(t.Context()))
		group.Wait()
		assert.Equal(t, []int{0, 1, 2}, order)
	})
}

// A request ID stands for its lease as long as that was granted, and no longer than
// it is held.
func TestARequestIDStandsForItsLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, err := lease.NewMemory(lease.MemoryConfig{})
		require.NoError(t, err)
		defer m.Close()
		h, err := leasehttp.NewHandler(leasehttp.HandlerConfig{Store: m, Anonymous: true})
		require.NoError(t, err)
		defer h.Close()
		put(t, m, "a")
		first := granted(t, h, "")
		time.Sleep(50 * time.Second) // longer than the grace, shorter than the lease
		assert.Equal(t, first, granted(t, h, ""))
		status, _, body := answer(t, h, "POST", "/v1/leases/"+first.ID+"/release", "", fmt.Sprintf(`{"token":%q}`, first.Token))
		require.Equal(t, 204, status, body)
		assert.NotEqual(t, first, granted(t, h, ""), "another lease, not the end of the former")
	})
}

func TestWaitsAreBoundedInLengthAndNumber(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, err := lease.NewMemory(lease.MemoryConfig{})
		require.NoError(t, err)
		defer m.Close()
		h, err := leasehttp.NewHandler(leasehttp.HandlerConfig{Store: m, Anonymous: true, MaxWait: 5 * time.Second, MaxPending: 2})
		require.NoError(t, err)
		defer h.Close()
		put(t, m, "a")
		granted(t, h, "")
		began := time.Now()
		wait := func(id string) (int, string) {
			status, _, body := answer(t, h, "POST", "/v1/leases?wait=10h", "", `{"holder":"x","requestId":"`+id+`"}`)
			return status, body
		}
		for _, id := range []string{"first", "second"} {
			go wait(id)
		}
		synctest.Wait()
		status, body := wait("third")
		assert.Equal(t, 503, status)
		assert.Contains(t, body, `"unavailable"`)
		assert.Zero(t, time.Since(began))
		status, body = wait("second")
		assert.Equal(t, 503, status)
		assert.Contains(t, body, `"none_free"`)
		assert.Equal(t, 5*time.Second, time.Since(began))
	})
}

// The holder's clock counts from before its request was sent.
func TestALeaseThatWasWaitedForHasItsWholeTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, m := served(t, lease.MemoryConfig{}, nil)
		put(t, m, "a")
		held, err := c.TryAcquire(t.Context(), lease.Request{Holder: "test"})
		require.NoError(t, err)
		time.AfterFunc(20*time.Second, func() { _ = held.Release(context.Background()) })
		l, err := c.Acquire(t.Context(), lease.Request{Holder: "test", TTL: 30 * time.Second})
		require.NoError(t, err)
		assert.Equal(t, 30*time.Second, time.Until(l.ExpiresAt()))
	})
}

// answer sends a request as any client would.
func answer(t *testing.T, h http.Handler, method, path, auth, body string) (int, http.Header, string) {
	t.Helper()
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	if auth != "" {
		r.Header.Set("Authorization", auth)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Code, w.Header(), w.Body.String()
}

// wireLease is what a client reads of a lease.
type wireLease struct{ ID, Token string }

// granted acquires as any client would.
func granted(t *testing.T, h http.Handler, auth string) wireLease {
	t.Helper()
	status, _, body := answer(t, h, "POST", "/v1/leases", auth, `{"holder":"test","requestId":"r","session":"s"}`)
	require.Equal(t, 201, status, body)
	var l wireLease
	require.NoError(t, json.Unmarshal([]byte(body), &l))
	return l
}

func TestBadRequestsGetAStatusOfTheirOwnAndChangeNothing(t *testing.T) {
	m, err := lease.NewMemory(lease.MemoryConfig{})
	require.NoError(t, err)
	defer m.Close()
	h, err := leasehttp.NewHandler(leasehttp.HandlerConfig{Store: m, Clients: map[string]string{"crawler": token}})
	require.NoError(t, err)
	defer h.Close()
	put(t, m, "a")
	bearer := "Bearer " + token
	l := granted(t, h, bearer)
	path := "/v1/leases/" + l.ID
	huge := `{"holder": "` + strings.Repeat("x", 17<<10) + `"}`
	for name, c := range map[string]struct {
		method, path, auth, body string
		status                   int
		code                     string
	}{
		"no token":            {"GET", "/v1/endpoints", "", "", 401, "unauthorized"},
		"wrong token":         {"GET", "/v1/endpoints", "Bearer " + token[:31] + "?", "", 401, "unauthorized"},
		"wrong scheme":        {"GET", "/v1/endpoints", "Basic " + token, "", 401, "unauthorized"},
		"no such path":        {"GET", "/v2/endpoints", bearer, "", 404, "not_found"},
		"wrong method":        {"PUT", "/v1/leases", bearer, "", 404, "not_found"},
		"malformed":           {"POST", "/v1/leases", bearer, "{", 400, "bad_request"},
		"empty":               {"POST", "/v1/leases", bearer, "", 400, "bad_request"},
		"two values":          {"POST", "/v1/leases", bearer, `{"holder":"x"}{}`, 400, "bad_request"},
		"unknown field":       {"POST", "/v1/leases", bearer, `{"holder":"x","hodler":1}`, 400, "bad_request"},
		"huge":                {"POST", "/v1/leases", bearer, huge, 413, "too_large"},
		"no holder":           {"POST", "/v1/leases", bearer, "{}", 400, "bad_request"},
		"bad ttl":             {"POST", "/v1/leases", bearer, `{"holder":"x","ttl":"-1s"}`, 400, "bad_request"},
		"bad selector":        {"POST", "/v1/leases", bearer, `{"holder":"x","selector":"a b"}`, 400, "bad_request"},
		"bad wait":            {"POST", "/v1/leases?wait=soon", bearer, `{"holder":"x"}`, 400, "bad_request"},
		"none free":           {"POST", "/v1/leases", bearer, `{"holder":"x"}`, 503, "none_free"},
		"no match":            {"POST", "/v1/leases", bearer, `{"holder":"x","selector":"mars"}`, 404, "no_match"},
		"forged renew":        {"POST", path + "/renew", bearer, `{"token":"1"}`, 409, "not_held"},
		"forged release":      {"POST", path + "/release", bearer, `{"token":"1"}`, 409, "not_held"},
		"forged report":       {"POST", path + "/report", bearer, `{"token":"1","outcome":"proxy_fault"}`, 409, "not_held"},
		"odd outcome":         {"POST", path + "/report", bearer, `{"token":"` + l.Token + `","outcome":"odd"}`, 400, "bad_request"},
		"token as a number":   {"POST", path + "/renew", bearer, `{"token":1}`, 400, "bad_request"},
		"renew of what's not": {"POST", "/v1/leases/none/renew", bearer, `{"token":"1"}`, 409, "not_held"},
	} {
		t.Run(name, func(t *testing.T) {
			status, header, body := answer(t, h, c.method, c.path, c.auth, c.body)
			assert.Equal(t, c.status, status, body)
			var got struct {
				Error struct{ Code, Message string }
			}
			require.NoError(t, json.Unmarshal([]byte(body), &got), body)
			assert.Equal(t, c.code, got.Error.Code)
			assert.NotEmpty(t, got.Error.Message)
			assert.NotContains(t, body, token)
			assert.NotContains(t, body, "hunter2")
			assert.Equal(t, status == 503, header.Get("Retry-After") != "")
			assert.Equal(t, status == 401, header.Get("WWW-Authenticate") != "")
		})
	}
	list, err := m.List(t.Context())
	require.NoError(t, err)
	assert.Len(t, list[0].Leases, 1)
	assert.True(t, list[0].CoolUntil.IsZero())
}

func TestOnlyALeaseShowsTheCredentials(t *testing.T) {
	m, err := lease.NewMemory(lease.MemoryConfig{})
	require.NoError(t, err)
	defer m.Close()
	h, err := leasehttp.NewHandler(leasehttp.HandlerConfig{Store: m, Anonymous: true})
	require.NoError(t, err)
	defer h.Close()
	put(t, m, "a")
	status, header, body := answer(t, h, "POST", "/v1/leases", "", `{"holder":"x","requestId":"r1"}`)
	require.Equal(t, 201, status, body)
	assert.Contains(t, body, "http://crawler:hunter2@192.0.2.7:3128")
	assert.Equal(t, "no-store", header.Get("Cache-Control"))
	_, _, again := answer(t, h, "POST", "/v1/leases", "", `{"holder":"x","requestId":"r1"}`)
	var first, second struct{ ID, Token string }
	require.NoError(t, json.Unmarshal([]byte(body), &first))
	require.NoError(t, json.Unmarshal([]byte(again), &second))
	assert.Equal(t, first, second, "the same request ID, the same lease")
	_, _, list := answer(t, h, "GET", "/v1/endpoints", "", "")
	assert.Contains(t, list, `"url":"http://***@192.0.2.7:3128"`)
	assert.NotContains(t, list, "hunter2")
	assert.NotContains(t, list, first.Token)
}

func TestAHandlerWithoutClientsIsRefused(t *testing.T) {
	_, err := leasehttp.NewHandler(leasehttp.HandlerConfig{})
	assert.ErrorContains(t, err, "store: give the store to serve")
	assert.ErrorContains(t, err, "clients: give each client a bearer token")
	_, err = leasehttp.NewHandler(leasehttp.HandlerConfig{
		Clients: map[string]string{"a": "short", "b": token, "c": token, "b/c": token + "?"}, MaxBody: -1,
	})
	assert.ErrorContains(t, err, `clients["c"]: has the token of "b"`)
	assert.ErrorContains(t, err, `clients: "b/c": a name must match`)
	assert.ErrorContains(t, err, `clients["a"]: the token has less than 16 characters`)
	assert.ErrorContains(t, err, "maxBody: -1: must not be negative")
	assert.NotContains(t, err.Error(), "short")
	assert.NotContains(t, err.Error(), token)
}

func TestClientConfigIsChecked(t *testing.T) {
	for url, want := range map[string]string{
		"": "give the server's URL", "lease.test": "must be an http or https URL", "https://u:hunter2@lease.test": "use Token",
	} {
		_, err := leasehttp.NewClient(leasehttp.ClientConfig{URL: url, Wait: -1})
		assert.ErrorContains(t, err, want)
		assert.ErrorContains(t, err, "wait: -1ns")
		assert.NotContains(t, err.Error(), "hunter2")
	}
}

func TestAServerThatIsNoneOfOurs(t *testing.T) {
	for name, handler := range map[string]http.HandlerFunc{
		"an error page": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(418); fmt.Fprint(w, "<html>") },
		"no JSON":       func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") },
		"no proxy":      func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"id":"x","token":"1","ttl":"1m"}`) },
	} {
		t.Run(name, func(t *testing.T) {
			c, err := leasehttp.NewClient(leasehttp.ClientConfig{
				URL: "http://lease.test", HTTPClient: &http.Client{Transport: direct{handler, nil}},
			})
			require.NoError(t, err)
			_, err = c.Acquire(t.Context(), lease.Request{Holder: "test"})
			assert.Error(t, err)
			assert.NotErrorIs(t, err, context.DeadlineExceeded)
		})
	}
}

// The document says what the handler does: every path and method of it is served,
// and the fields of its schemas are those that are read and written.
func TestTheOpenAPIDocumentHoldsForTheHandler(t *testing.T) {
	m, err := lease.NewMemory(lease.MemoryConfig{})
	require.NoError(t, err)
	defer m.Close()
	h, err := leasehttp.NewHandler(leasehttp.HandlerConfig{Store: m, Anonymous: true})
	require.NoError(t, err)
	defer h.Close()
	status, _, text := answer(t, h, "GET", "/v1/openapi.json", "", "")
	require.Equal(t, 200, status)
	var doc struct {
		Paths      map[string]map[string]struct{ OperationID string }
		Components struct {
			Schemas map[string]struct {
				Properties map[string]json.RawMessage
			}
		}
	}
	require.NoError(t, json.Unmarshal([]byte(text), &doc))
	operations := 0
	for path, methods := range doc.Paths {
		for method := range methods {
			operations++
			_, _, body := answer(t, h, strings.ToUpper(method), strings.ReplaceAll(path, "{id}", "x"), "", "")
			assert.NotContains(t, body, `"not_found"`, "%s %s", method, path)
		}
	}
	assert.Equal(t, leasehttp.Operations, operations)
	for name, fields := range leasehttp.WireFields() {
		schema, ok := doc.Components.Schemas[name]
		require.True(t, ok, name)
		described := make([]string, 0, len(schema.Properties))
		for field := range schema.Properties {
			described = append(described, field)
		}
		assert.ElementsMatch(t, fields, described, name)
	}
}

// 1,000 connections that dribble starve nobody.
func TestSlowConnectionsStarveNobody(t *testing.T) {
	m, err := lease.NewMemory(lease.MemoryConfig{})
	require.NoError(t, err)
	t.Cleanup(m.Close)
	h, err := leasehttp.NewHandler(leasehttp.HandlerConfig{Store: m, Clients: map[string]string{"crawler": token}})
	require.NoError(t, err)
	t.Cleanup(h.Close)
	put(t, m, "a")
	server := httptest.NewServer(h)
	t.Cleanup(server.Close) // after the connections are
	for range 1000 {
		dribble(t, server)
	}
	c, err := leasehttp.NewClient(leasehttp.ClientConfig{URL: server.URL, Token: token, HTTPClient: server.Client()})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	l, err := c.Acquire(ctx, lease.Request{Holder: "test"})
	require.NoError(t, err)
	require.NoError(t, l.Release(ctx))
}

// dribble begins a request whose body never comes.
func dribble(t *testing.T, server *httptest.Server) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	_, err = io.WriteString(conn, "POST /v1/leases HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "+token+"\r\nContent-Length: 1000\r\n\r\n{")
	require.NoError(t, err)
	return conn
}

func TestABodyThatDoesNotComeIsNotWaitedFor(t *testing.T) {
	m, err := lease.NewMemory(lease.MemoryConfig{})
	require.NoError(t, err)
	t.Cleanup(m.Close)
	h, err := leasehttp.NewHandler(leasehttp.HandlerConfig{
		Store: m, Clients: map[string]string{"crawler": token}, BodyTimeout: 50 * time.Millisecond,
	})
	require.NoError(t, err)
	t.Cleanup(h.Close)
	var requests atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		h.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	conn := dribble(t, server)
	text, err := io.ReadAll(conn) // to its end: the server hangs up
	require.NoError(t, err)
	assert.Contains(t, string(text), "HTTP/1.1 408 ")
	assert.Contains(t, string(text), `"code":"too_slow"`)

	// The limit is for the body, not for the wait behind it.
	put(t, m, "a")
	held, err := m.TryAcquire(t.Context(), lease.Request{Holder: "test"})
	require.NoError(t, err)
	time.AfterFunc(200*time.Millisecond, func() { _ = held.Release(context.Background()) })
	c, err := leasehttp.NewClient(leasehttp.ClientConfig{URL: server.URL, Token: token, HTTPClient: server.Client()})
	require.NoError(t, err)
	l, err := c.Acquire(t.Context(), lease.Request{Holder: "test"})
	require.NoError(t, err)
	assert.EqualValues(t, 2, requests.Load(), "one of those waits, and was not cut short")
	assert.NoError(t, l.Release(t.Context()))
}

// Clients share the endpoints and nothing else.
func TestTenantsCannotTouchEachOthersLeases(t *testing.T) {
	m, err := lease.NewMemory(lease.MemoryConfig{})
	require.NoError(t, err)
	defer m.Close()
	h, err := leasehttp.NewHandler(leasehttp.HandlerConfig{
		Store: m, Clients: map[string]string{"mine": token, "theirs": "another-token-of-32-characters!!"},
	})
	require.NoError(t, err)
	defer h.Close()
	put(t, m, "a", "b")
	me, they := "Bearer "+token, "Bearer another-token-of-32-characters!!"
	mine, theirs := granted(t, h, me), granted(t, h, they)
	assert.NotEqual(t, mine, theirs, "request IDs and sessions are each client's own")

	_, _, list := answer(t, h, "GET", "/v1/endpoints", they, "")
	bare, _, sealed := strings.Cut(mine.ID, ".")
	require.True(t, sealed)
	assert.Contains(t, list, `"`+bare+`"`)
	assert.Contains(t, list, `"`+theirs.ID+`"`, "its own is as it knows it")
	for _, id := range []string{mine.ID, bare, bare + "." + strings.SplitN(theirs.ID, ".", 2)[1]} {
		for action, want := range map[string]int{"renew": 409, "release": 204, "report": 204} {
			body := fmt.Sprintf(`{"token":%q}`, mine.Token)
			if action == "report" {
				body = fmt.Sprintf(`{"token":%q,"outcome":"proxy_fault"}`, mine.Token)
			}
			status, _, text := answer(t, h, "POST", "/v1/leases/"+id+"/"+action, they, body)
			assert.Equal(t, want, status, "%s: as for one that never was: %s", action, text)
		}
	}
	status, _, _ := answer(t, h, "DELETE", "/v1/requests/r", they, "")
	assert.Equal(t, 204, status)
	status, _, body := answer(t, h, "POST", "/v1/leases/"+mine.ID+"/renew", me, fmt.Sprintf(`{"token":%q}`, mine.Token))
	assert.Equal(t, 200, status, "nothing of that touched it: %s", body)
	stats, err := m.Stats(t.Context())
	require.NoError(t, err)
	assert.EqualValues(t, 3, stats.LateReports)
	assert.EqualValues(t, 3, stats.Outcomes[lease.ProxyFault], "counted, and without consequence")
	all, err := m.List(t.Context())
	require.NoError(t, err)
	assert.True(t, all[0].CoolUntil.IsZero() && all[1].CoolUntil.IsZero())
}

// tlsServer serves a store over TLS with a certificate made for it.
func tlsServer(t *testing.T) (*httptest.Server, *x509.CertPool, *lease.Memory) {
	t.Helper()
	m, err := lease.NewMemory(lease.MemoryConfig{})
	require.NoError(t, err)
	t.Cleanup(m.Close)
	h, err := leasehttp.NewHandler(leasehttp.HandlerConfig{Store: m, Clients: map[string]string{"crawler": token}})
	require.NoError(t, err)
	t.Cleanup(h.Close)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	certificate, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	roots := x509.NewCertPool()
	roots.AddCert(certificate)
	server := httptest.NewUnstartedServer(h)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // it tells of every client that hangs up
	server.StartTLS()
	t.Cleanup(server.Close)
	return server, roots, m
}

func clientOf(t *testing.T, url string, roots *x509.CertPool) *leasehttp.Client {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)
	c, err := leasehttp.NewClient(leasehttp.ClientConfig{URL: url, Token: token, HTTPClient: &http.Client{Transport: transport}})
	require.NoError(t, err)
	return c
}

func TestOverTLS(t *testing.T) {
	server, roots, m := tlsServer(t)
	put(t, m, "a")
	c := clientOf(t, server.URL, roots)
	l, err := c.Acquire(t.Context(), lease.Request{Holder: "test", Domain: "x.example"})
	require.NoError(t, err)
	require.NoError(t, l.Renew(t.Context(), time.Minute))
	require.NoError(t, l.Report(t.Context(), lease.Outcome{Kind: lease.OK}))
	require.NoError(t, l.Release(t.Context()))
	stats, err := c.Stats(t.Context())
	require.NoError(t, err)
	assert.EqualValues(t, 1, stats.Released)
}

func TestWithoutTLSToATLSServerFailsAtOnceAndSaysWhy(t *testing.T) {
	server, roots, m := tlsServer(t)
	put(t, m, "a")
	c := clientOf(t, strings.Replace(server.URL, "https://", "http://", 1), roots)
	_, err := c.Acquire(t.Context(), lease.Request{Holder: "test"}) // which would wait for ever
	assert.ErrorContains(t, err, "400 Bad Request")
	_, err = c.List(t.Context())
	assert.Error(t, err)
	stats, err := m.Stats(t.Context())
	require.NoError(t, err)
	assert.Zero(t, stats.Acquired)
}

func TestAServerWithAnotherCertificateGetsNoToken(t *testing.T) {
	server, _, m := tlsServer(t)
	put(t, m, "a")
	c := clientOf(t, server.URL, x509.NewCertPool())
	_, err := c.TryAcquire(t.Context(), lease.Request{Holder: "test"})
	var unknown x509.UnknownAuthorityError
	assert.ErrorAs(t, err, &unknown)
	assert.NotContains(t, err.Error(), token)
	stats, err := m.Stats(t.Context())
	require.NoError(t, err)
	assert.Zero(t, stats.Acquired)
}

// How long a comparison takes cannot be measured here. What it is made of can be
// read: each token is compared, by crypto/subtle, and none ends the loop.
func TestTokensAreComparedInConstantTime(t *testing.T) {
	file, err := parser.ParseFile(gotoken.NewFileSet(), "tenant.go", nil, 0)
	require.NoError(t, err)
	loops, compared := 0, 0
	ast.Inspect(file, func(n ast.Node) bool {
		loop, ok := n.(*ast.RangeStmt)
		if !ok {
			return true
		}
		loops++
		ast.Inspect(loop.Body, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.ReturnStmt, *ast.BranchStmt:
				t.Error("the loop over the clients ends early")
			case *ast.SelectorExpr:
				if n.Sel.Name == "ConstantTimeCompare" {
					compared++
				}
			}
			return true
		})
		return true
	})
	assert.Equal(t, 1, loops)
	assert.Equal(t, 1, compared)
}

var curled = regexp.MustCompile(`-d '([^']*)' '?http://[^/]+(/v1/[^'\s]+)`)

// The calls of the manuals are answered as they say, one after the other: each is
// about the lease of the one before.
func TestTheCallsOfTheManualsWork(t *testing.T) {
	m, err := lease.NewMemory(lease.MemoryConfig{})
	require.NoError(t, err)
	h, err := leasehttp.NewHandler(leasehttp.HandlerConfig{Store: m, Clients: map[string]string{"scraper": token}})
	require.NoError(t, err)
	t.Cleanup(func() { h.Close(); m.Close() })
	put(t, m, "a", "b")
	seen := 0
	for _, path := range []string{"../../docs/egressctl.md", "../../docs/operator.md"} {
		var held struct{ ID, Token string }
		for _, command := range mdtest.Commands(t, path) {
			for _, call := range curled.FindAllStringSubmatch(command, -1) {
				seen++
				body := regexp.MustCompile(`"token": "\d+…"`).ReplaceAllString(call[1], `"token": "`+held.Token+`"`)
				url := regexp.MustCompile(`/\w+…`).ReplaceAllString(call[2], "/"+held.ID)
				r := httptest.NewRequest(http.MethodPost, url, strings.NewReader(body))
				r.Header.Set("Authorization", "Bearer "+token)
				w := httptest.NewRecorder()
				h.ServeHTTP(w, r)
				require.Less(t, w.Code, 300, "%s: %s: %s", path, command, w.Body)
				if strings.HasPrefix(url, "/v1/leases?") {
					require.NoError(t, json.Unmarshal(w.Body.Bytes(), &held))
				}
			}
		}
	}
	assert.Equal(t, 5, seen)
}

// As text such a selector would be another one: region=eu and an attribute us.
func TestASelectorThatWouldBeReadAsAnotherIsNotSent(t *testing.T) {
	c, m := served(t, lease.MemoryConfig{}, nil)
	url, err := endpoint.NewURL("http", "192.0.2.7:3128", "", "")
	require.NoError(t, err)
	for id, region := range map[string]string{"a": "eu,us", "b": ""} {
		require.NoError(t, m.Put(t.Context(), endpoint.Endpoint{ID: id, URL: url, Attributes: map[string]string{"region": region, "us": ""}}))
		require.NoError(t, m.SetVerdict(t.Context(), id, endpoint.Verdict{Health: endpoint.Healthy}))
	}
	in := func(values ...string) lease.Request {
		return lease.Request{Holder: "me", Selector: lease.Selector{{Key: "region", Operator: lease.In, Values: values}}}
	}
	for _, value := range []string{"eu,us", "eu)", " eu"} {
		for name, acquire := range map[string]func(context.Context, lease.Request) (*lease.Lease, error){"Acquire": c.Acquire, "TryAcquire": c.TryAcquire} {
			_, err := acquire(t.Context(), in(value))
			require.ErrorContains(t, err, "cannot be sent", "%s %q", name, value)
		}
	}
	l, err := c.TryAcquire(t.Context(), in(""))
	require.NoError(t, err, "an empty value can be")
	assert.Equal(t, "b", l.Endpoint().ID)
}

// FuzzRequests sends any body and query to every path: an answer of JSON is whole, and
// none is a failure of the server.
func FuzzRequests(f *testing.F) {
	for _, body := range []string{
		"", "{}", `{"holder": "me"}`, `{"holder": "me", "ttl": "-1s", "requestId": "x"}`, `{"token": 99999999999999999999}`,
		`{"holder": "me", "selector": [{"key": "a", "operator": "In"}]}`, `{"kind": "ok", "latency": "1e9h"}`, "[[[[", `{"holder": "\ud800"}`,
	} {
		f.Add("/v1/leases", "wait=0s", body)
		f.Add("/v1/leases/x/report", "", body)
		f.Add("/v1/leases/x/renew", "wait=9999999h", body)
	}
	m, err := lease.NewMemory(lease.MemoryConfig{})
	require.NoError(f, err)
	h, err := leasehttp.NewHandler(leasehttp.HandlerConfig{Store: m, Clients: map[string]string{"crawler": token}, MaxWait: time.Millisecond})
	require.NoError(f, err)
	f.Cleanup(func() { h.Close(); m.Close() })
	f.Fuzz(func(t *testing.T, path, query, body string) {
		r := httptest.NewRequest(http.MethodPost, "http://lease.test/", strings.NewReader(body))
		r.URL.Path, r.URL.RawQuery = path, query
		r.Header.Set("Authorization", "Bearer "+token)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		require.NotEqual(t, http.StatusInternalServerError, w.Code)
		if w.Body.Len() > 0 && w.Header().Get("Content-Type") == "application/json" {
			require.True(t, json.Valid(w.Body.Bytes()), "%s", w.Body)
		}
	})
}
