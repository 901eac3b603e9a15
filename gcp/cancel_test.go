package gcp_test

import (
	"context"
	"net/http"
	"net/http/httptrace"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/api/option"

	"github.com/egressfleet/egress/gcp"
	"github.com/egressfleet/egress/internal/fakecompute"
	"github.com/egressfleet/egress/provider"
)

// everyMethod calls what asks the API, on an instance of that ID.
func everyMethod(p *gcp.Provider, id string) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"Create":    func(ctx context.Context) error { _, err := p.Create(ctx, request("uid-2")); return err },
		"Get":       func(ctx context.Context) error { _, err := p.Get(ctx, id); return err },
		"Delete":    func(ctx context.Context) error { return p.Delete(ctx, id) },
		"ListByTag": func(ctx context.Context) error { _, err := p.ListByTag(ctx, "tag-1"); return err },
		"Explain":   func(ctx context.Context) error { _, err := p.Explain(ctx, id); return err },
		"Place": func(ctx context.Context) error {
			_, err := p.Place(ctx, provider.PlaceRequest{UID: "uid-2"})
			return err
		},
		"ReadConsole": func(ctx context.Context) error { _, err := p.ReadConsole(ctx, id, 10); return err },
		"Diagnose":    func(ctx context.Context) error { _, err := p.Diagnose(ctx); return err },
		"Sweep": func(ctx context.Context) error {
			_, err := p.Sweep(ctx, provider.SweepRequest{Tag: "tag-1"})
			return err
		},
	}
}

// hold makes every call hang until the test ends.
func hold(t *testing.T, r *rig) {
	t.Helper()
	held := make(chan struct{})
	r.server.SetBefore(func(fakecompute.Call) fakecompute.Fault { return fakecompute.Fault{Hold: held} })
	t.Cleanup(func() { close(held) })
}

// The suite checks the four methods; here are all, and the errors of each. The
// call has a second.
func TestEveryMethodEndsWithItsContext(t *testing.T) {
	r := newRig(t, func(c *gcp.Config, _ *fakecompute.Config) {
		c.Zones, c.Region, c.MachineType, c.Image = nil, "europe-west1", "e2-small", debian
	})
	id := create(t, r, "uid-1", zoneA)
	hold(t, r)
	for name, method := range everyMethod(r.Provider, id) {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(20*time.Millisecond, cancel)
			done := make(chan error, 1)
			go func() { done <- method(ctx) }()
			select {
			case err := <-done:
				assert.ErrorIs(t, err, context.Canceled)
			case <-time.After(short):
				t.Fatal("it goes on although nobody waits for it")
			}
		})
	}
}

func TestEveryMethodRefusesAContextThatHasEnded(t *testing.T) {
	r := newRig(t, func(c *gcp.Config, _ *fakecompute.Config) { c.Zones, c.Region = nil, "europe-west1" })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for name, method := range everyMethod(r.Provider, "zones/"+zoneA+"/instances/"+provider.Name("x")) {
		assert.Error(t, method(ctx), name)
	}
	assert.Empty(t, r.server.Names())
}

// A server that never answers does not hold up a caller without a deadline
// either.
func TestACallHasATimeoutOfItsOwn(t *testing.T) {
	r := newRig(t, func(c *gcp.Config, _ *fakecompute.Config) { c.CallTimeout = provider.Duration(30 * time.Millisecond) })
	hold(t, r)
	for name, method := range map[string]func() error{
		"Get": func() error {
			_, err := r.Get(t.Context(), "zones/"+zoneA+"/instances/"+provider.Name("x"))
			return err
		},
		"ListByTag": func() error { _, err := r.ListByTag(t.Context(), "tag-1"); return err },
	} {
		err := method()
		require.ErrorIs(t, err, provider.ErrTransient, name)
		assert.True(t, provider.HasCode(err, "NoAnswer"), "%v", err)
		assert.NotErrorIs(t, err, context.DeadlineExceeded, "which would look like the caller's own")
	}
}

func TestCloseEndsWhatRuns(t *testing.T) {
	r := newRig(t, nil)
	hold(t, r)
	var calls sync.WaitGroup
	calls.Go(func() {
		_, err := r.ListByTag(context.WithoutCancel(t.Context()), "tag-1")
		assert.ErrorIs(t, err, context.Canceled)
	})
	require.Eventually(t, func() bool { return len(r.server.Calls("")) > 0 }, short, time.Millisecond)
	require.NoError(t, r.Close())
	calls.Wait()
	_, err := r.ListByTag(t.Context(), "tag-1")
	assert.ErrorIs(t, err, provider.ErrTransient)
	require.NoError(t, r.Close())
}

// transport is a user's own.
type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// What works for our own transport works for a user's HTTP client: contexts reach
// it, also those of lists, and nothing of ours shows on the wire.
func TestAUsersHTTPClientIsUsed(t *testing.T) {
	var mu sync.Mutex
	var seen []*http.Request
	own := &http.Client{Transport: transport(func(req *http.Request) (*http.Response, error) {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, req)
		return http.DefaultTransport.RoundTrip(req)
	})}
	r := newRig(t, nil)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	r.cfg.ClientOptions = []option.ClientOption{option.WithEndpoint(r.url), option.WithHTTPClient(own)}
	p := r.again(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	_, err := p.Create(ctx, request("uid-1"))
	require.NoError(t, err)
	_, err = p.ListByTag(ctx, "tag-1")
	require.NoError(t, err)
	require.Len(t, seen, 2)
	for _, req := range seen {
		_, has := req.Context().Deadline()
		assert.True(t, has, "%s %s has the context of its call", req.Method, req.URL.Path)
		assert.Empty(t, req.Header.Get("X-Egress-Call"))
	}
}

func TestMissingCredentialsAreToldAndMayCome(t *testing.T) {
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", t.TempDir()+"/missing.json")
	t.Setenv("HOME", t.TempDir())
	r := newRig(t, nil)
	r.cfg.ClientOptions = []option.ClientOption{option.WithEndpoint(r.url)}
	p := r.again(t)
	_, err := p.ListByTag(t.Context(), "tag-1")
	require.ErrorIs(t, err, provider.ErrTransient)
	assert.True(t, provider.HasCode(err, "CredentialsMissing"), "%v", err)
	findings, err := p.Diagnose(t.Context())
	require.NoError(t, err)
	assert.Equal(t, provider.FindingFailure, findings[0].Status)
	assert.Contains(t, findings[0].Remedy, "gcloud auth application-default login")
}

// A user's HTTP client may serve others after Close.
func TestCloseLeavesAUsersConnections(t *testing.T) {
	r := newRig(t, nil)
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	r.cfg.ClientOptions = []option.ClientOption{option.WithEndpoint(r.url), option.WithHTTPClient(&http.Client{Transport: transport})}
	reused := func(p *gcp.Provider) (is bool) {
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) { is = info.Reused }})
		_, err := p.ListByTag(ctx, "tag-1")
		require.NoError(t, err)
		return is
	}
	first := r.again(t)
	assert.False(t, reused(first))
	require.NoError(t, first.Close())
	assert.True(t, reused(r.again(t)))
}

// What is asked second, after something that answers, is under the context too.
func TestWhatComesSecondEndsWithItsContext(t *testing.T) {
	for method, act := range map[string]func(context.Context, *rig, string) error{
		"zoneOperations.list": func(ctx context.Context, r *rig, id string) error {
			r.server.Vanish(zoneA, nameOf(id))
			_, err := r.Explain(ctx, id)
			return err
		},
		"instances.get": func(ctx context.Context, r *rig, _ string) error {
			_, err := r.Create(ctx, request("uid-1")) // the name is taken
			return err
		},
		"instances.delete":              func(ctx context.Context, r *rig, id string) error { return r.Delete(ctx, id) },
		"instances.getSerialPortOutput": func(ctx context.Context, r *rig, id string) error { _, err := r.ReadConsole(ctx, id, 9); return err },
		"regions.get":                   func(ctx context.Context, r *rig, _ string) error { _, err := r.Diagnose(ctx); return err },
	} {
		t.Run(method, func(t *testing.T) {
			r := newRig(t, nil)
			id := create(t, r, "uid-1", zoneA)
			held := make(chan struct{})
			t.Cleanup(func() { close(held) })
			r.server.SetBefore(fails(method, fakecompute.Fault{Hold: held}))
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			done := make(chan error, 1)
			go func() { done <- act(ctx, r, id) }()
			select {
			case err := <-done:
				assert.ErrorIs(t, err, context.DeadlineExceeded)
			case <-time.After(short):
				t.Fatal("it goes on although nobody waits for it")
			}
			assert.NotEmpty(t, r.server.Calls(method))
		})
	}
}
