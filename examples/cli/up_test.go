package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/fleet"
	"github.com/egressfleet/egress/provider"
	"github.com/egressfleet/egress/provider/local"
)

// fetch fetches the site through the proxy as any program would.
func (w *world) fetch(proxy string) int { return w.fetchPage(proxy, "https://example.com/") }

func (w *world) fetchPage(proxy, page string) int {
	w.t.Helper()
	through, err := url.Parse(strings.TrimSpace(proxy))
	require.NoError(w.t, err)
	ca, err := os.ReadFile(w.path("ca.pem"))
	require.NoError(w.t, err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	transport := &http.Transport{Proxy: http.ProxyURL(through), TLSClientConfig: &tls.Config{RootCAs: roots}}
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport}).Get(page)
	require.NoError(w.t, err)
	defer resp.Body.Close()
	return resp.StatusCode
}

func TestUpListRemove(t *testing.T) {
	w := newWorld(t, local.HostConfig{BootDelay: 10 * time.Millisecond, DeleteDelay: 20 * time.Millisecond})
	made := w.up("--count", "3", "-o", "json", "--port", "8080")
	require.Equal(t, exitOK, made.code, made.stderr)
	var result list
	require.NoError(t, json.Unmarshal([]byte(made.stdout), &result))
	require.Len(t, result.Instances, 3)
	for _, in := range result.Instances {
		password, err := fleet.DerivePassword(w.key, in.UID)
		require.NoError(t, err)
		assert.Contains(t, in.URL, "http://crawler:"+password+"@127.0.0.1:")
		assert.Equal(t, &probe{URL: "https://example.com/", Status: 200, Milliseconds: in.Probe.Milliseconds}, in.Probe)
		assert.Equal(t, map[string]string{"port": "8080", "proxy": "squid", "key": fingerprint(w.key)}, in.Metadata)
		assert.Equal(t, "dev", in.Provider)
		assert.Equal(t, "local", in.Zone)
		assert.Equal(t, provider.StateRunning, in.State)
		assert.Equal(t, http.StatusOK, w.fetch(in.URL))
		assert.NotContains(t, made.stderr, password)
	}

	listed := w.run("ls", "-o", "json", "--show-urls", "--key-file", w.path("key"))
	require.Equal(t, exitOK, listed.code, listed.stderr)
	var again list
	require.NoError(t, json.Unmarshal([]byte(listed.stdout), &again))
	require.Len(t, again.Instances, 3)
	assert.ElementsMatch(t, urlsOf(result), urlsOf(again))
	assert.Empty(t, again.Missing)
	assert.NotContains(t, w.run("ls", "-o", "json").stdout, "crawler:", "only when asked for")
	assert.Contains(t, w.run("ls", "--show-urls", "--key-file", w.path("key")).stdout, result.Instances[0].URL)

	a, b, c := result.Instances[0], result.Instances[1], result.Instances[2]
	gone := w.run("rm", "-o", "json", a.Name, b.UID, c.ID, "never-was")
	require.Equal(t, exitOK, gone.code, gone.stderr)
	var removal removed
	require.NoError(t, json.Unmarshal([]byte(gone.stdout), &removal))
	assert.ElementsMatch(t, []string{a.ID, b.ID, c.ID}, removal.Removed)
	assert.Equal(t, []string{"never-was"}, removal.Absent)
	assert.Contains(t, gone.stderr, "it is stopping")
	assert.Contains(t, gone.stderr, "never-was: not there")
	assert.Empty(t, w.left())
	assert.Contains(t, w.run("ls").stderr, "nothing has the tag egressctl")
	assert.JSONEq(t, `{"instances": [], "missing": []}`, w.run("ls", "-o", "json").stdout)
}

func urlsOf(l list) []string {
	var all []string
	for _, in := range l.Instances {
		all = append(all, in.URL)
	}
	return all
}

func TestAnInterruptRemovesWhatWasMade(t *testing.T) {
	for name, c := range map[string]struct {
		cfg   local.HostConfig
		fault local.Fault
		late  bool // Create is cut off, and what it asked for happens
		at    string
	}{
		"while it is asked for":  {at: "creating"},
		"while it is made":       {at: "creating", late: true},
		"when it is accepted":    {at: "accepted", cfg: local.HostConfig{BootDelay: time.Hour}},
		"while it boots":         {at: "provisioning", cfg: local.HostConfig{BootDelay: time.Hour}},
		"when it runs":           {at: "running at", fault: local.Hang},
		"while it is probed":     {at: "probing", fault: local.Hang},
		"while it is not proven": {at: "not healthy yet", fault: local.Refuse},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, c.cfg)
			w.interruptAt = []string{c.at}
			w.change = func(a *app) { a.settle = time.Hour }
			w.wrap = func(p provider.Provider) provider.Provider {
				inner := p.(*local.Provider)
				return wrapped{Provider: inner, create: func(ctx context.Context, req provider.CreateRequest) (string, error) {
					if c.late {
						<-ctx.Done()
						_, err := inner.Create(context.WithoutCancel(ctx), req)
						return "", errors.Join(ctx.Err(), err)
					}
					id, err := inner.Create(ctx, req)
					if c.fault != "" && err == nil {
						err = w.host.Inject(id, c.fault)
					}
					return id, err
				}}
			}
			got := w.up("--count", "2")
			assert.Equal(t, exitInterrupted, got.code, got.stderr)
			assert.Empty(t, got.stdout)
			assert.Empty(t, w.left(), got.stderr)
			assert.Contains(t, got.stderr, "egressctl: interrupted")
			assert.NotContains(t, got.stderr, "context canceled")
		})
	}
}

func TestTheSecondInterruptLeavesAndTellsHowToRemove(t *testing.T) {
	w := newWorld(t, local.HostConfig{BootDelay: time.Hour, DeleteDelay: time.Hour})
	w.interruptAt = []string{"provisioning", "removing what was made; Ctrl-C again leaves it"}
	got := w.up()
	assert.Equal(t, exitInterrupted, got.code, got.stderr)
	require.Len(t, w.left(), 1)
	id := w.left()[0].ID
	assert.Contains(t, got.stderr, id+" is left")
	assert.Contains(t, got.stderr, "next: remove it by: egressctl --providers "+w.path("providers.yaml")+" rm "+id)
}

// A name that somebody else holds is left alone.
func TestACollisionIsNotRemoved(t *testing.T) {
	w := newWorld(t, local.HostConfig{})
	require.Equal(t, exitOK, w.up().code)
	got := w.up("--tag", "other")
	assert.Equal(t, exitPermanent, got.code)
	assert.Contains(t, got.stderr, "held by another tag or UID")
	assert.Len(t, w.left(), 1)
}

func TestKeepLeavesWhatFailed(t *testing.T) {
	w := newWorld(t, local.HostConfig{BootDelay: time.Hour})
	got := w.up("--keep", "--timeout", "2s")
	assert.Equal(t, exitTransient, got.code, got.stderr)
	require.Len(t, w.left(), 1)
	assert.Contains(t, got.stderr, "kept "+w.left()[0].ID+"; remove it by: egressctl")
}

// A batch keeps what is healthy and removes what is not.
func TestSomeOfACountFail(t *testing.T) {
	w := newWorld(t, local.HostConfig{Capacity: 2})
	got := w.up("--count", "3")
	assert.Equal(t, exitQuota, got.code)
	assert.Len(t, strings.Fields(got.stdout), 2)
	assert.Len(t, w.left(), 2)
}

func TestHoldRemovesAtTheEnd(t *testing.T) {
	for name, change := range map[string]func(*app){
		"asked for":             nil,
		"instances end with us": func(a *app) { a.inProcess = func(provider.Provider) bool { return true } },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, local.HostConfig{})
			w.change, w.interruptAt = change, []string{"holding 1 of them"}
			args := []string{"--hold"}
			if change != nil {
				args = nil
			}
			got := w.up(args...)
			assert.Equal(t, exitOK, got.code, got.stderr)
			assert.Contains(t, got.stdout, "http://crawler:")
			assert.Empty(t, w.left())
		})
	}
}

// capture takes the request of a Create.
func (w *world) capture(into *provider.CreateRequest) {
	w.wrap = func(p provider.Provider) provider.Provider {
		inner := p.(*local.Provider)
		return wrapped{Provider: inner, create: func(ctx context.Context, req provider.CreateRequest) (string, error) {
			*into = req
			req.Placement = provider.Placement{}
			return inner.Create(ctx, req)
		}}
	}
}

func TestFlagsReachTheRequest(t *testing.T) {
	w := newWorld(t, local.HostConfig{})
	var req provider.CreateRequest
	w.capture(&req)
	public := w.write("id.pub", "# mine\nssh-ed25519 AAAA me@example\n")
	got := w.up("--zone", "kvm1", "--machine-type", "small", "--image", "debian13", "--tag", "mine", "--port", "8080",
		"--clients", "192.0.2.0/24,2001:db8::/32", "--destinations", "10.77.0.0/24", "--connect-ports", "443,8000-8999", "--ssh-key", public)
	require.Equal(t, exitOK, got.code, got.stderr)
	assert.Equal(t, provider.Placement{Zone: "kvm1", MachineType: "small", Image: "debian13"}, req.Placement)
	assert.Equal(t, "mine", req.Tag)
	for _, want := range []string{"http_port 8080", "192.0.2.0/24", "2001:db8::/32", "10.77.1.0/24", "443 8000-8999", "ssh-ed25519 AAAA me@example"} {
		assert.Contains(t, string(req.UserData), want)
	}
	assert.NotContains(t, string(req.UserData), "10.77.0.0", "open, between its neighbours")
	password, err := fleet.DerivePassword(w.key, req.UID)
	require.NoError(t, err)
	assert.NotContains(t, string(req.UserData), password, "only a hash reaches the guest")
}

func TestUserDataOfOnesOwn(t *testing.T) {
	w := newWorld(t, local.HostConfig{})
	var req provider.CreateRequest
	w.capture(&req)
	file := w.write("user-data", "#cloud-config\n# leading  spaces \n")
	got := w.run("up", "--cloud-init", file, "--port", "9999", "--no-probe")
	require.Equal(t, exitOK, got.code, got.stderr)
	assert.Equal(t, "#cloud-config\n# leading  spaces \n", string(req.UserData))
	assert.Equal(t, map[string]string{"port": "9999", "proxy": "cloud-init"}, req.Metadata)
	assert.NotContains(t, got.stderr, "probing")
	require.Equal(t, exitOK, w.run("up", "--cloud-init", "-", "--no-probe").code)
	assert.Equal(t, "#!/bin/sh\n", string(req.UserData))
}

func TestTheKeyFileIsMadeOnce(t *testing.T) {
	w := newWorld(t, local.HostConfig{})
	path := w.path("made/key")
	w.change = func(*app) { w.key, _ = os.ReadFile(path) }
	got := w.run("up", "--key-file", path, "--no-probe")
	require.Equal(t, exitOK, got.code, got.stderr)
	info, err := os.Stat(path)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	key, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Contains(t, w.run("ls", "--show-urls", "--key-file", path).stdout, "http://crawler:")

	other := w.write("other", strings.Repeat("o", 32))
	got = w.run("ls", "--show-urls", "--key-file", other)
	assert.Equal(t, exitOK, got.code)
	assert.Contains(t, got.stderr, "derived from another key")
	assert.NotContains(t, got.stdout, "crawler")
	again, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.True(t, bytes.Equal(key, again))
}
