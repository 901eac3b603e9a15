package gcp_test

import (
	"context"
	"encoding/base64"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/api/option"

	"github.com/egressfleet/egress/gcp"
	"github.com/egressfleet/egress/internal/fakecompute"
	"github.com/egressfleet/egress/provider"
)

const secretLine = "password: correct horse battery staple"

// secretRequest has user-data that no log may show, plain or binary.
func secretRequest(binary bool) provider.CreateRequest {
	req := request("uid-1")
	req.UserData = provider.UserData("#cloud-config\n" + secretLine + "\n")
	if binary {
		req.UserData = append(req.UserData, 0xff)
	}
	return req
}

// life is all that is done with one instance.
func life(t *testing.T, r *rig, req provider.CreateRequest) {
	t.Helper()
	id, err := r.Create(t.Context(), req)
	require.NoError(t, err)
	r.server.SetConsole(zoneA, nameOf(id), "login: "+secretLine)
	_, err = r.Get(t.Context(), id)
	require.NoError(t, err)
	_, err = r.ListByTag(t.Context(), req.Tag)
	require.NoError(t, err)
	_, err = r.ReadConsole(t.Context(), id, 100)
	require.NoError(t, err)
	require.NoError(t, r.Delete(t.Context(), id))
}

func TestPayloadsInTheLogHaveNoUserData(t *testing.T) {
	for name, binary := range map[string]bool{"plain": false, "binary": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil)
			req := secretRequest(binary)
			life(t, r, req)
			log := r.logs()
			for _, line := range []string{"compute request", "compute response", "instances.insert", "instances.aggregatedList", "machineType", "natIP"} {
				assert.Contains(t, log, line, "V(5) has whole payloads")
			}
			assert.NotContains(t, log, "correct horse")
			assert.NotContains(t, log, base64.StdEncoding.EncodeToString(req.UserData)[:24])
		})
	}
}

func TestPayloadsShowUserDataWhereThatIsSwitchedOnByName(t *testing.T) {
	r := newRig(t, func(c *gcp.Config, _ *fakecompute.Config) { c.LogUserData = true })
	life(t, r, secretRequest(false))
	assert.Contains(t, r.logs(), "correct horse")
	assert.Contains(t, r.logs(), "show user-data", "the log says so at V(0)")
}

// The API quotes values that it does not take.
func TestAnErrorThatRepeatsUserDataIsWithheld(t *testing.T) {
	for name, fault := range map[string]*fakecompute.Error{
		"in the message":            {Status: 400, Reason: "invalid", Message: "Invalid value for field 'resource.metadata.items[0].value': '#cloud-config\n" + secretLine + "'"},
		"in a body that is no JSON": {Status: 400, Raw: "bad request: " + secretLine},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil)
			r.server.SetBefore(fails("instances.insert", fakecompute.Fault{Error: fault}))
			_, err := r.Create(t.Context(), secretRequest(false))
			require.ErrorIs(t, err, provider.ErrPermanent)
			for ; err != nil; err = unwrapped(err) {
				assert.NotContains(t, err.Error(), "correct horse")
			}
			assert.NotContains(t, r.logs(), "correct horse")
		})
	}
}

func unwrapped(err error) error {
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		return e.Unwrap()
	case interface{ Unwrap() []error }:
		all := e.Unwrap()
		return all[len(all)-1]
	}
	return nil
}

func TestRedact(t *testing.T) {
	secret := provider.UserData("#cloud-config\n" + secretLine + "\n")
	for name, c := range map[string]struct{ body, want string }{
		"user-data":           {`{"metadata":{"items":[{"key":"user-data","value":"#cloud-config"},{"key":"user-data-encoding","value":"base64"}]}}`, `{"metadata":{"items":[{"key":"user-data","value":"[13 bytes]"},{"key":"user-data-encoding","value":"base64"}]}}`},
		"a startup script":    {`{"items":[{"key":"startup-script","value":"x"}]}`, `{"items":[{"key":"startup-script","value":"[1 bytes]"}]}`},
		"a console":           {`{"contents":"boot","next":"4"}`, `{"contents":"[4 bytes]","next":"4"}`},
		"somewhere else":      {`{"description":"` + secretLine + `"}`, `[56 bytes]`},
		"what is no JSON":     {"<html>", "[6 bytes]"},
		"nothing":             {"", ""},
		"numbers as they are": {`{"id":18446744073709551615}`, `{"id":18446744073709551615}`},
	} {
		assert.Equal(t, c.want, gcp.Redact([]byte(c.body), secret), name)
	}
}

// One line for each request at V(1), and no payloads.
func TestOneLineForEachCall(t *testing.T) {
	r := newRig(t, nil)
	var mu sync.Mutex
	var lines []string
	ctx := logr.NewContext(t.Context(), funcr.New(func(_, args string) {
		mu.Lock()
		defer mu.Unlock()
		lines = append(lines, args)
	}, funcr.Options{Verbosity: 1}))
	id, err := r.Create(ctx, request("uid-1"))
	require.NoError(t, err)
	require.NoError(t, r.Delete(ctx, id))
	require.Len(t, lines, 3)
	for i, method := range []string{"instances.insert", "instances.get", "instances.delete"} {
		assert.Contains(t, lines[i], `"msg"="compute call"`)
		assert.Contains(t, lines[i], `"method"="`+method+`"`)
		assert.Contains(t, lines[i], `"scope"="`+zoneA+`"`)
		assert.Contains(t, lines[i], `"status"=200`)
		assert.Contains(t, lines[i], `"provider"="gcp"`)
	}
	assert.Empty(t, r.logs(), "the context's logger is preferred")
}

func TestTraceIsToldOfOperationsAndCalls(t *testing.T) {
	var mu sync.Mutex
	var told []string
	type spanKey struct{}
	note := func(ctx context.Context, start, end string) func(error) {
		mu.Lock()
		defer mu.Unlock()
		if parent, ok := ctx.Value(spanKey{}).(string); ok {
			start = parent + ">" + start
		}
		told = append(told, start)
		return func(err error) {
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				end += " failed"
			}
			told = append(told, end)
		}
	}
	r := newRig(t, func(c *gcp.Config, _ *fakecompute.Config) {
		c.Trace = &gcp.Trace{
			Operation: func(ctx context.Context, o gcp.OperationInfo) (context.Context, func(error)) {
				return context.WithValue(ctx, spanKey{}, o.Op), note(ctx, o.Op, "/"+o.Op)
			},
			Call: func(ctx context.Context, c gcp.CallInfo) func(error) {
				return note(ctx, c.Method+strings.Repeat("!", c.Attempt-1), "/"+c.Method)
			},
		}
	})
	var failed atomic.Bool
	r.server.SetBefore(func(c fakecompute.Call) (f fakecompute.Fault) {
		if c.Method == "instances.aggregatedList" && !failed.Swap(true) {
			f.Error = &fakecompute.Error{Status: 503}
		}
		return f
	})
	_, err := r.ListByTag(t.Context(), "tag-1")
	require.NoError(t, err)
	assert.Equal(t, []string{
		"ListByTag", "ListByTag>instances.aggregatedList", "/instances.aggregatedList failed",
		"ListByTag>instances.aggregatedList!", "/instances.aggregatedList", "/ListByTag",
	}, told)
}

// Hooks may be left out, and may leave out what they return.
func TestATraceMayBeEmpty(t *testing.T) {
	for _, trace := range []*gcp.Trace{{}, {
		Operation: func(context.Context, gcp.OperationInfo) (context.Context, func(error)) { return nil, nil },
		Call:      func(context.Context, gcp.CallInfo) func(error) { return nil },
	}} {
		r := newRig(t, func(c *gcp.Config, _ *fakecompute.Config) { c.Trace = trace })
		_, err := r.ListByTag(t.Context(), "tag-1")
		assert.NoError(t, err)
	}
}

// What the API quotes it may cut off, in the middle of a line too.
func TestAnErrorThatQuotesAStretchOfUserDataIsWithheld(t *testing.T) {
	oneLine := `{"users":[{"name":"crawler","password":"correct horse battery staple"}],"more":"` + strings.Repeat("x", 200) + `"}`
	encoded := base64.StdEncoding.EncodeToString([]byte("\xff" + oneLine))
	for name, c := range map[string]struct{ userData, quoted, secret string }{
		"the beginning":       {oneLine, oneLine[:90], "correct horse"},
		"the middle":          {"#cloud-config\n" + secretLine + " and more\n", "…ord: correct horse battery stap…", "correct horse"},
		"with escapes":        {"#cloud-config\npassword: \"correct horse\" battery\tstaple\n", `word: \"correct horse\" battery\tstap`, "correct horse"},
		"a stretch of base64": {"\xff" + oneLine, encoded[40:90], encoded[50:80]},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil)
			r.server.SetBefore(fails("instances.insert", fakecompute.Fault{Error: &fakecompute.Error{Status: 400, Reason: "invalid", Message: "Invalid value: '" + c.quoted + "'"}}))
			req := request("uid-1")
			req.UserData = provider.UserData(c.userData)
			_, err := r.Create(t.Context(), req)
			require.ErrorIs(t, err, provider.ErrPermanent)
			assert.NotContains(t, err.Error(), c.secret)
			assert.NotContains(t, r.logs(), c.secret)
		})
	}
}

// The name of the instance, in user-data as its host name, is no secret.
func TestAnErrorThatNamesTheInstanceIsNotWithheld(t *testing.T) {
	r := newRig(t, nil)
	req := request("uid-1")
	req.UserData = append(req.UserData, "hostname: "+provider.Name("uid-1")+".example.com\n"...)
	r.server.SetBefore(fails("instances.insert", fakecompute.Fault{Error: &fakecompute.Error{Status: 403, Reason: "forbidden", Message: "Required permission for 'zones/z/instances/" + provider.Name("uid-1") + "'"}}))
	_, err := r.Create(t.Context(), req)
	assert.ErrorContains(t, err, "Required permission")
}

// An answer that does not end is not the API's.
func TestAnAnswerIsReadUpToALimit(t *testing.T) {
	r := newRig(t, nil)
	_, err := r.Create(t.Context(), request("uid-1"))
	require.NoError(t, err)
	gcp.ReadAtMost(r.Provider, 100)
	_, err = r.ListByTag(t.Context(), request("uid-1").Tag)
	require.ErrorIs(t, err, provider.ErrTransient)
	require.ErrorContains(t, err, "the answer has more than 100 bytes")
	gcp.ReadAtMost(r.Provider, 1<<20)
	all, err := r.ListByTag(t.Context(), request("uid-1").Tag)
	require.NoError(t, err)
	assert.Len(t, all, 1)
}

// endless is a body that counts what is taken from it. It ends beyond its bound, so
// that a reader without a limit ends too.
type endless struct{ taken, bound int }

func (e *endless) Read(p []byte) (int, error) {
	if e.taken > e.bound {
		return 0, io.EOF
	}
	for i := range p {
		p[i] = '['
	}
	e.taken += len(p)
	return len(p), nil
}

func (e *endless) Close() error { return nil }

// What is taken from it counts, and not what is kept.
func TestAnEndlessAnswerIsReadUpToALimit(t *testing.T) {
	for _, status := range []int{http.StatusOK, http.StatusForbidden} {
		body := &endless{bound: 2 << 20}
		server := transport(func(r *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: status, Header: http.Header{}, Body: body, ContentLength: -1, Request: r}, nil
		})
		p, err := gcp.New(gcp.Config{Project: "test-project", Zones: []string{zoneA}, ClientOptions: []option.ClientOption{
			option.WithEndpoint("http://compute.test"), option.WithHTTPClient(&http.Client{Transport: server}),
		}})
		require.NoError(t, err)
		gcp.ReadAtMost(p, 1<<20)
		_, err = p.ListByTag(t.Context(), "tag-1")
		require.ErrorContains(t, err, "the answer has more than 1048576 bytes")
		assert.LessOrEqual(t, body.taken, body.bound)
		require.NoError(t, p.Close())
	}
}
