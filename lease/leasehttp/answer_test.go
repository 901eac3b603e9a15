package leasehttp_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/lease"
	"github.com/egressfleet/egress/lease/leasehttp"
)

// roundTrip answers without a socket.
type roundTrip func(*http.Request) *http.Response

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) {
	resp := f(r)
	resp.Request, resp.ContentLength = r, -1
	return resp, nil
}

func response(status int, body string) *http.Response {
	return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body))}
}

// always is a client of a server with one answer.
func always(t *testing.T, status int, body string) *leasehttp.Client {
	t.Helper()
	return clientAt(t, func(*http.Request) *http.Response { return response(status, body) })
}

func clientAt(t *testing.T, server roundTrip) *leasehttp.Client {
	t.Helper()
	c, err := leasehttp.NewClient(leasehttp.ClientConfig{URL: "http://lease.test", Token: token, HTTPClient: &http.Client{Transport: server}})
	require.NoError(t, err)
	return c
}

const (
	goodLease = `{"id":"x.y","token":"7","ttl":"1m0s","holder":"me","endpoint":{"id":"a","url":"http://crawler:hunter2@192.0.2.7:3128"}}`
	key       = `"id":"x.y","token":"7","ttl":"1m"`
	proxy     = `"endpoint":{"id":"a","url":"http://192.0.2.7:3128"}`
)

func TestAGrantThatIsOfNoUseIsAnError(t *testing.T) {
	for body, want := range map[string]string{
		"":                                       "unexpected end of JSON",
		"null":                                   "id: is missing",
		`{"token":"7","ttl":"1m",` + proxy + `}`: "id: is missing",
		`{"id":"x","ttl":"1m",` + proxy + `}`:    "token: is not positive",
		`{"id":"x","token":"-7","ttl":"1m",` + proxy + `}`:             "token: is not positive",
		`{"id":"x","token":"7",` + proxy + `}`:                         "ttl: is not positive",
		`{"id":"x","token":"7","ttl":"0s",` + proxy + `}`:              "ttl: is not positive",
		`{` + key + `,"endpoint":{"url":"http://192.0.2.7:3128"}}`:     "endpoint.id: is missing",
		`{` + key + `,"endpoint":{"id":"a"}}`:                          "endpoint.url: proxy URL: it has no scheme",
		`{` + key + `,"endpoint":{"id":"a","url":"http://***@x:1"}}`:   "endpoint.url: proxy URL: its credentials were replaced",
		`{` + key + `,"endpoint":{"id":"a","url":"http://x:hunter2"}}`: "endpoint.url: proxy URL: the port must be",
		goodLease + goodLease:                                          "invalid character",
	} {
		_, err := always(t, http.StatusCreated, body).Acquire(t.Context(), lease.Request{Holder: "me"})
		require.ErrorContains(t, err, want, body)
		assert.NotContains(t, err.Error(), "hunter2")
	}
}

// A server that puts a value where it does not belong is told of, not quoted.
func TestAnAnswerThatCannotBeReadIsNotQuoted(t *testing.T) {
	secret := `"http://crawler:hunter2@192.0.2.7:3128"`
	for _, body := range []string{
		`{"ttl":` + secret + `}`, `{"token":` + secret + `}`, `{"endpoint":` + secret + `}`, `{"endpoint":{"egressIP":` + secret + `}}`,
		`{"endpoint":{"generation":` + secret + `}}`, `{"endpoint":{"attributes":{"hunter2":7}}}`, `{"id":72}`, secret, `{"x":` + secret,
	} {
		_, err := always(t, http.StatusCreated, body).TryAcquire(t.Context(), lease.Request{Holder: "me"})
		require.ErrorContains(t, err, "cannot be read", body)
		assert.NotContains(t, err.Error(), "hunter2", body)
		assert.NotContains(t, err.Error(), "72", body)
	}
}

func TestARenewalWithoutATimeChangesNothing(t *testing.T) {
	for _, body := range []string{"{}", "null", `{"ttl":"0s"}`, `{"status":"ok"}`} {
		c := clientAt(t, func(r *http.Request) *http.Response {
			if strings.HasSuffix(r.URL.Path, "/renew") {
				return response(http.StatusOK, body)
			}
			return response(http.StatusCreated, goodLease)
		})
		l, err := c.TryAcquire(t.Context(), lease.Request{Holder: "me"})
		require.NoError(t, err)
		require.ErrorContains(t, l.Renew(t.Context(), time.Minute), "ttl: is not positive")
		assert.NoError(t, l.Err(), "it is held as long as it was")
	}
}

// A lease would be used when the server has given it to another holder.
func TestAServerHasNotWaitedForLongerThanTheCall(t *testing.T) {
	body := strings.Replace(goodLease, `"ttl"`, `"waited":"1h","ttl"`, 1)
	l, err := always(t, http.StatusCreated, body).TryAcquire(t.Context(), lease.Request{Holder: "me"})
	require.NoError(t, err)
	assert.LessOrEqual(t, time.Until(l.ExpiresAt()), time.Minute)
}

// The page that a gateway sends people to is no success.
func TestARedirectIsAnError(t *testing.T) {
	asked := 0
	login := roundTrip(func(r *http.Request) *http.Response {
		asked++
		if r.URL.Host != "lease.test" {
			return response(http.StatusNoContent, "")
		}
		resp := response(http.StatusFound, "")
		resp.Header.Set("Location", "https://login.test/")
		return resp
	})
	c := clientAt(t, login)
	require.ErrorContains(t, c.Release(t.Context(), lease.Key{ID: "x", Token: 7}), "it answered 302 Found: correct the URL")
	assert.Equal(t, 1, asked)

	for _, status := range []int{http.StatusOK, http.StatusFound, http.StatusNotModified} {
		assert.Error(t, always(t, status, "<html>").Release(t.Context(), lease.Key{ID: "x", Token: 7}), "%d", status)
	}

	c, err := leasehttp.NewClient(leasehttp.ClientConfig{URL: "http://lease.test", HTTPClient: &http.Client{
		Transport: login, CheckRedirect: func(*http.Request, []*http.Request) error { return nil },
	}})
	require.NoError(t, err)
	assert.NoError(t, c.Release(t.Context(), lease.Key{ID: "x", Token: 7}), "who wants them has them followed")
}

func TestAServerThatDoesNotWaitIsNotAskedWithoutEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		c := clientAt(t, func(r *http.Request) *http.Response {
			if r.Method == http.MethodPost {
				asked++
				return response(http.StatusServiceUnavailable, `{"error":{"code":"none_free","message":"none"}}`)
			}
			return response(http.StatusNoContent, "")
		})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		_, err := c.Acquire(ctx, lease.Request{Holder: "me"})
		require.ErrorIs(t, err, lease.ErrNoneFree)
		assert.LessOrEqual(t, asked, 101)
	})
}

// counted counts what is read of an endless body.
type counted struct{ read int }

func (c *counted) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = '['
	}
	if c.read > 8<<20 {
		return 0, io.EOF // for a reader without a limit
	}
	c.read += len(p)
	return len(p), nil
}

func TestAnEndlessAnswerIsNotReadToItsEnd(t *testing.T) {
	for _, status := range []int{http.StatusOK, http.StatusNoContent, http.StatusServiceUnavailable} {
		body := &counted{}
		c := clientAt(t, func(*http.Request) *http.Response {
			resp := response(status, "")
			resp.Body = io.NopCloser(body)
			return resp
		})
		_, err := c.Renew(t.Context(), lease.Key{ID: "x", Token: 7}, time.Minute)
		require.Error(t, err)
		_ = c.Release(t.Context(), lease.Key{ID: "x", Token: 7})
		assert.LessOrEqual(t, body.read, 3<<20)
	}
}

func TestAnErrorRepeatsNeitherTokensNorPages(t *testing.T) {
	message := "Authorization: Bearer " + token + strings.Repeat("é", 2000) + token
	body, err := json.Marshal(map[string]any{"error": map[string]string{"code": "unavailable", "message": message}})
	require.NoError(t, err)
	_, err = always(t, http.StatusServiceUnavailable, string(body)).TryAcquire(t.Context(), lease.Request{Holder: "me"})
	require.ErrorContains(t, err, "Authorization: Bearer ***é")
	assert.NotContains(t, err.Error(), token)
	assert.Less(t, len(err.Error()), 1100)
	assert.True(t, utf8.ValidString(err.Error()))

	body, err = json.Marshal(map[string]any{"error": map[string]string{"code": "none_free", "message": token}})
	require.NoError(t, err)
	_, err = always(t, http.StatusServiceUnavailable, string(body)).TryAcquire(t.Context(), lease.Request{Holder: "me"})
	require.ErrorIs(t, err, lease.ErrNoneFree)
	assert.NotContains(t, err.Error(), token)
}

func TestCountsThatCannotBeAreLeftOut(t *testing.T) {
	body := `{"error":{"code":"none_free","message":"none","retryAfter":"2s","counts":{"total":2,"leased":-1}}}`
	_, err := always(t, http.StatusServiceUnavailable, body).TryAcquire(t.Context(), lease.Request{Holder: "me"})
	var unavailable *lease.UnavailableError
	require.ErrorAs(t, err, &unavailable)
	assert.Equal(t, 2*time.Second, unavailable.RetryAfter)
	assert.Zero(t, unavailable.Counts)
}

func TestAListOfAnotherServerIsAnError(t *testing.T) {
	for body, want := range map[string]string{
		`{"status":"ok"}`:                         "endpoints: is missing",
		`{"endpoints":null}`:                      "endpoints: is missing",
		`{"endpoints":[{"health":"Healthy"}]}`:    "endpoints[0].endpoint.id",
		`{"endpoints":[{"endpoint":{"id":"a"}}]}`: "endpoints[0].health",
		`{"endpoints":[{"endpoint":{"id":"b"},"health":"Healthy"},{"endpoint":{"id":"a"},"health":"Unknown"}]}`: "endpoints[1].endpoint.id",
		`{"endpoints":[{"endpoint":{"id":"a"},"health":"Healthy"},{"endpoint":{"id":"a"},"health":"Unknown"}]}`: "endpoints[1].endpoint.id",
	} {
		_, err := always(t, http.StatusOK, body).List(t.Context())
		assert.ErrorContains(t, err, want, body)
	}
	for body, want := range map[string]string{
		`{}`:                                    "endpoints: is missing",
		`{"acquired":-1,"endpoints":{}}`:        "negative",
		`{"outcomes":{"ok":-1},"endpoints":{}}`: "negative",
		`{"endpoints":{"free":-1}}`:             "negative",
	} {
		_, err := always(t, http.StatusOK, body).Stats(t.Context())
		assert.ErrorContains(t, err, want, body)
	}
	all, err := always(t, http.StatusOK, `{"endpoints":[]}`).List(t.Context())
	require.NoError(t, err)
	assert.Empty(t, all)
}

// FuzzAnswers has a lease server say anything to every call. What comes of it is an
// error without a secret, or something that can be used.
func FuzzAnswers(f *testing.F) {
	f.Add(http.StatusCreated, "", goodLease, false)
	f.Add(http.StatusOK, "", `{"ttl":"1m"}`, true)
	f.Add(http.StatusNoContent, "", "", false)
	f.Fuzz(func(t *testing.T, status int, header, body string, cut bool) {
		synctest.Test(t, func(t *testing.T) { // an Acquire that tries again takes no time
			checkAnswer(t, status, header, body, cut)
		})
	})
}

func checkAnswer(t *testing.T, status int, header, body string, cut bool) {
	asked := 0
	c := clientAt(t, func(r *http.Request) *http.Response {
		asked++
		if strings.HasPrefix(r.URL.RawQuery, "wait=") && asked > 1 { // so that Acquire ends
			return response(http.StatusNotFound, `{"error":{"code":"no_match","message":"none"}}`)
		}
		resp := response(status, body)
		resp.Header = headerOf(header)
		if cut {
			resp.Body = io.NopCloser(io.MultiReader(strings.NewReader(body), iotest.ErrReader(io.ErrUnexpectedEOF)))
		}
		return resp
	})
	told := func(err error) bool {
		require.False(t, cut && err == nil)
		return checkTold(t, status, header, body, err)
	}
	k := lease.Key{ID: "x", Token: 7}
	for _, acquire := range []func(context.Context, lease.Request) (*lease.Lease, error){c.TryAcquire, c.Acquire} {
		asked = 0
		if l, err := acquire(t.Context(), lease.Request{Holder: "me"}); told(err) {
			checkLease(t, l)
		}
	}
	if grant, err := c.Renew(t.Context(), k, time.Minute); told(err) {
		require.Equal(t, k, grant.Key)
		require.Positive(t, grant.TTL)
	}
	for _, err := range []error{
		c.Release(t.Context(), k), c.ReleaseUnused(t.Context(), k), c.Report(t.Context(), k, lease.Outcome{Kind: lease.OK}),
	} {
		require.True(t, !told(err) || status == http.StatusNoContent)
	}
	if all, err := c.List(t.Context()); told(err) {
		require.True(t, tells(body, "endpoints"))
		last := ""
		for _, s := range all {
			require.Greater(t, s.Endpoint.ID, last)
			last = s.Endpoint.ID
			require.Contains(t, []endpoint.Health{endpoint.Unknown, endpoint.Healthy, endpoint.Unhealthy}, s.Verdict.Health)
			require.True(t, s.Endpoint.URL.IsZero())
		}
	}
	if stats, err := c.Stats(t.Context()); told(err) {
		require.True(t, tells(body, "endpoints"))
		checkCounts(t, stats.Endpoints)
		require.GreaterOrEqual(t, min(stats.Acquired, stats.Released, stats.Renewed, stats.Expired, stats.Revoked), int64(0))
		require.GreaterOrEqual(t, min(stats.Waits, stats.Canceled, stats.LateReports, stats.DroppedReports, int64(stats.Waiting), int64(stats.WaitTime)), int64(0))
		for _, n := range stats.Outcomes {
			require.GreaterOrEqual(t, n, int64(0))
		}
	}
}

// tells is whether a field is there, and is not null.
func tells(body, field string) bool {
	var all map[string]any
	_ = json.Unmarshal([]byte(body), &all)
	for name, value := range all {
		if strings.EqualFold(name, field) && value != nil {
			return true
		}
	}
	return false
}

// checkTold tells whether a call succeeded. Its error says so of what is none, is short
// and has no secret.
func checkTold(t *testing.T, status int, header, body string, err error) bool {
	t.Helper()
	if err == nil {
		require.Equal(t, 2, status/100)
		require.True(t, status == http.StatusNoContent || json.Valid([]byte(body)))
		return true
	}
	require.NotContains(t, err.Error(), token)
	if status/100 == 2 && !strings.Contains(header, "hunter2") {
		require.NotContains(t, err.Error(), "hunter2")
	}
	require.Less(t, len(err.Error()), 1100)
	var unavailable *lease.UnavailableError
	if errors.As(err, &unavailable) {
		require.GreaterOrEqual(t, unavailable.RetryAfter, time.Duration(0))
		require.Contains(t, []error{lease.ErrNoMatch, lease.ErrNoneFree}, unavailable.Err)
		checkCounts(t, unavailable.Counts)
	}
	return false
}

func checkCounts(t *testing.T, c lease.Counts) {
	t.Helper()
	require.GreaterOrEqual(t, min(c.Total, c.NotSelected, c.Draining, c.Unknown, c.Unhealthy, c.Leased, c.Cooling, c.CoolingForDomain, c.Free), 0)
}

// checkLease holds that a lease has all that its holder needs.
func checkLease(t *testing.T, l *lease.Lease) {
	t.Helper()
	grant := l.Grant()
	require.NotEmpty(t, grant.ID)
	require.Positive(t, grant.Token)
	require.Positive(t, grant.TTL)
	require.NoError(t, grant.Endpoint.Validate())
	require.NoError(t, l.Err())
	require.LessOrEqual(t, time.Until(l.ExpiresAt()), grant.TTL)
	proxy, err := l.ProxyURL()
	require.NoError(t, err)
	again, err := endpoint.ParseURL(proxy.Reveal())
	require.NoError(t, err)
	require.True(t, proxy.Equal(again))
	require.NotNil(t, l.Client())
	l.Lose(lease.ErrReleased)
}

// headerOf reads lines of names and values.
func headerOf(text string) http.Header {
	h := http.Header{}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		h.Add(name, value)
	}
	return h
}
