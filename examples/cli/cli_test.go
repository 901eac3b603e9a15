package main

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/egressfleet/egress/examples/internal/setup"
	"github.com/egressfleet/egress/fleet"
	"github.com/egressfleet/egress/provider"
	"github.com/egressfleet/egress/provider/local"
	"github.com/egressfleet/egress/provider/registry"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	goleak.VerifyTestMain(m)
}

// world is a host whose instances outlive a run of the program, a site that
// proxies reach as example.com, and a folder with the files that flags name.
type world struct {
	t       *testing.T
	dir     string
	host    *local.Host
	key     []byte
	signals chan os.Signal
	// site, if set, answers in place of the site's page.
	site atomic.Pointer[http.HandlerFunc]
	// change, if set, may replace parts of the program before it runs.
	change func(*app)
	// wrap, if set, stands between the program and the provider.
	wrap func(provider.Provider) provider.Provider
	// interruptAt is a text on standard error that is answered by an interrupt,
	// each time.
	interruptAt []string
}

func newWorld(t *testing.T, cfg local.HostConfig) *world {
	t.Helper()
	w := &world{t: t, dir: t.TempDir(), key: bytes.Repeat([]byte("k"), 32), signals: make(chan os.Signal, 4)}
	site := httptest.NewTLSServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if answer := w.site.Load(); answer != nil {
			(*answer)(rw, r)
			return
		}
		fmt.Fprint(rw, "hello")
	}))
	t.Cleanup(site.Close)
	cfg.Resolve = map[string]string{"example.com": site.Listener.Addr().String()}
	var err error
	w.host, err = local.NewHost(cfg)
	require.NoError(t, err)
	t.Cleanup(w.host.Close)
	w.write("providers.yaml", "providers: [{name: dev, type: local}]")
	w.write("key", string(w.key))
	w.write("ca.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: site.Certificate().Raw})))
	return w
}

// answer has the site answer by f from now on.
func (w *world) answer(f http.HandlerFunc) { w.site.Store(&f) }

func (w *world) path(name string) string { return filepath.Join(w.dir, name) }

func (w *world) write(name, text string) string {
	w.t.Helper()
	require.NoError(w.t, os.WriteFile(w.path(name), []byte(text), 0o600))
	return w.path(name)
}

func (w *world) provider() *local.Provider {
	p, err := local.New(local.Config{Host: w.host, Name: "dev", Credentials: func(uid string) (string, string) {
		password, _ := fleet.DerivePassword(w.key, uid)
		return "crawler", password
	}})
	require.NoError(w.t, err)
	return p
}

func (w *world) types(setup.Hooks) registry.Types {
	return registry.Types{"local": registry.For(func(string, local.Config) (provider.Provider, error) {
		if w.wrap != nil {
			return w.wrap(w.provider()), nil
		}
		return w.provider(), nil
	})}
}

// left are the instances that the host still has.
func (w *world) left() []provider.Instance {
	w.t.Helper()
	all, err := w.provider().ListByTag(context.Background(), defaultTag)
	require.NoError(w.t, err)
	return all
}

// outcome is what a run gave.
type outcome struct {
	code           int
	stdout, stderr string
}

// run runs the program with the world's files.
func (w *world) run(args ...string) outcome {
	w.t.Helper()
	var stdout bytes.Buffer
	stderr := &trigger{at: w.interruptAt, signals: w.signals}
	a := newApp(strings.NewReader("#!/bin/sh\n"), &stdout, stderr)
	uids := 0
	a.newUID = func() string { uids++; return fmt.Sprintf("uid-%d", uids) }
	a.types, a.signals, a.inProcess = w.types, w.signals, func(provider.Provider) bool { return false }
	a.poll, a.settle = 5*time.Millisecond, 30*time.Millisecond
	if w.change != nil {
		w.change(a)
	}
	code := a.run(w.t.Context(), append([]string{"--providers", w.path("providers.yaml")}, args...))
	return outcome{code, stdout.String(), stderr.String()}
}

// up runs up with the world's key and certificate authority.
func (w *world) up(args ...string) outcome {
	w.t.Helper()
	return w.run(append([]string{"up", "--key-file", w.path("key"), "--probe-ca", w.path("ca.pem")}, args...)...)
}

// trigger interrupts the program when it writes a text.
type trigger struct {
	mu      sync.Mutex
	b       strings.Builder
	at      []string
	signals chan<- os.Signal
}

func (t *trigger) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.at) > 0 && strings.Contains(string(p), t.at[0]) {
		t.at = t.at[1:]
		t.signals <- os.Interrupt
	}
	return t.b.Write(p)
}

func (t *trigger) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.b.String()
}

// wrapped replaces methods of a provider.
type wrapped struct {
	*local.Provider
	create func(context.Context, provider.CreateRequest) (string, error)
	list   func(context.Context, string) ([]provider.Instance, error)
}

func (p wrapped) Create(ctx context.Context, req provider.CreateRequest) (string, error) {
	if p.create != nil {
		return p.create(ctx, req)
	}
	return p.Provider.Create(ctx, req)
}

func (p wrapped) ListByTag(ctx context.Context, tag string) ([]provider.Instance, error) {
	if p.list != nil {
		return p.list(ctx, tag)
	}
	return p.Provider.ListByTag(ctx, tag)
}

// golden compares a text with a file, in which what differs from run to run is
// left out.
func golden(t *testing.T, name, text string) {
	t.Helper()
	for pattern, by := range map[string]string{
		`127\.0\.0\.1:\d{5}`: "127.0.0.1:PORT", `in \d+ms`: "in N ms", `\(\d+(\.\d+)?m?s\)`: "(N s)",
	} {
		text = regexp.MustCompile(pattern).ReplaceAllString(text, by)
	}
	path := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, string(want), text)
}

func TestOutputWithoutATerminal(t *testing.T) {
	w := newWorld(t, local.HostConfig{BootDelay: 30 * time.Millisecond})
	made := w.up()
	require.Equal(t, exitOK, made.code, made.stderr)
	golden(t, "up.stderr", made.stderr)
	golden(t, "up.stdout", made.stdout)
	listed := w.run("ls")
	require.Equal(t, exitOK, listed.code, listed.stderr)
	golden(t, "ls.stdout", listed.stdout)
	gone := w.run("rm", "--all")
	require.Equal(t, exitOK, gone.code, gone.stderr)
	golden(t, "rm.stderr", gone.stderr)
	assert.Empty(t, gone.stdout)
	golden(t, "help.stdout", w.run("--help").stdout)
}

func TestErrorsTellTheNextStep(t *testing.T) {
	w := newWorld(t, local.HostConfig{Capacity: 1})
	silent := func(context.Context, string) error { return errors.New("the host does not answer") }
	refused := func(context.Context, string) error {
		return &provider.Error{Class: provider.ErrPermanent, Err: errors.New("the key is refused")}
	}
	for name, c := range map[string]struct {
		args   []string
		onCall func(context.Context, string) error
		change func(*app)
		fault  local.Fault
		code   int
		want   []string
	}{
		"unknown command":   {args: []string{"nonsense"}, code: exitUsage, want: []string{`unknown command "nonsense"`, "--help"}},
		"unknown flag":      {args: []string{"ls", "--nonsense"}, code: exitUsage, want: []string{"--nonsense", "--help"}},
		"format":            {args: []string{"ls", "-o", "xml"}, code: exitUsage, want: []string{`"xml": must be table or json`}},
		"tag":               {args: []string{"ls", "--tag", "A"}, code: exitUsage, want: []string{"--tag"}},
		"no providers file": {args: []string{"ls", "--providers", w.path("absent")}, code: exitPermanent, want: []string{"no such file", "EGRESS_PROVIDERS"}},
		"bad providers file": {args: []string{"ls", "--providers", w.write("bad.yaml", "providers: [{name: dev, type: lokal}]")},
			code: exitPermanent, want: []string{`type: "lokal": must be one of`, "correct the providers file"}},
		"unknown provider": {args: []string{"ls", "--provider", "x"}, code: exitUsage, want: []string{`--provider: "x"`, `["dev"]`}},
		"several providers": {args: []string{"ls", "--providers", w.write("two.yaml", "providers: [{name: a, type: local}, {name: b, type: local}]")},
			code: exitUsage, want: []string{"choose one by --provider"}},
		"count":              {args: []string{"up", "--count", "0"}, code: exitUsage, want: []string{"must be positive"}},
		"port":               {args: []string{"up", "--port", "0"}, code: exitUsage, want: []string{"--port: 0: must lie between"}},
		"connect ports":      {args: []string{"up", "--connect-ports", "x"}, code: exitUsage, want: []string{"write 443 or 1025-65535"}},
		"clients":            {args: []string{"up", "--clients", "192.0.2.x"}, code: exitUsage, want: []string{"write it like 192.0.2.0/24"}},
		"probe":              {args: []string{"up", "--probe", "http://example.com/"}, code: exitUsage, want: []string{"--probe", "use https"}},
		"probe authority":    {args: []string{"up", "--probe-ca", w.path("key")}, code: exitUsage, want: []string{"holds no certificate"}},
		"private key":        {args: []string{"up", "--ssh-key", w.write("id", "-----BEGIN OPENSSH PRIVATE KEY-----\nhunter2")}, code: exitUsage, want: []string{"is a private key", "id.pub"}},
		"no public key":      {args: []string{"up", "--ssh-key", w.write("none.pub", "# none\n")}, code: exitUsage, want: []string{"holds no key"}},
		"short key":          {args: []string{"up", "--key-file", w.write("short", "x")}, code: exitUsage, want: []string{"--key-file", "less than 16 bytes"}},
		"user-data":          {args: []string{"up", "--cloud-init", w.path("absent")}, code: exitUsage, want: []string{"--cloud-init", "no such file"}},
		"user-data and keys": {args: []string{"up", "--cloud-init", "-", "--clients", "::1"}, code: exitUsage, want: []string{"--clients: is for Squid"}},
		"rm of nothing":      {args: []string{"rm"}, code: exitUsage, want: []string{"or give --all"}},
		"rm of all and one":  {args: []string{"rm", "--all", "x"}, code: exitUsage, want: []string{"not both"}},
		"no key":             {args: []string{"ls", "--show-urls", "--key-file", w.path("absent")}, code: exitUsage, want: []string{"the first up makes it"}},

		"zone":  {args: []string{"up", "--zone", "mars"}, code: exitPermanent, want: []string{`placement.zone: "mars": must be "local"`, "next: correct"}},
		"quota": {args: []string{"up", "--count", "2"}, code: exitQuota, want: []string{"1 of 1 instances are in use", "next: free memory"}},
		"host that does not answer": {args: []string{"up", "--timeout", "2s", "--keep"}, onCall: silent, code: exitTransient,
			want: []string{"not accepted yet: dev Create: the host does not answer", "was not accepted within 2s", "next: try again"}},
		"host that is refused": {args: []string{"up"}, onCall: refused, code: exitPermanent, want: []string{"dev Create: the key is refused"}},
		"host that ends to answer": {args: []string{"up", "--timeout", "2s"}, onCall: silent, change: func(a *app) { a.patience = 300 * time.Millisecond },
			code: exitTransient, want: []string{"cannot tell whether something of hosts/local/proxies/proxy-", "next: when the host answers: egressctl --providers"}},
		"list of it": {args: []string{"ls"}, onCall: silent, code: exitTransient, want: []string{"dev ListByTag: the host does not answer"}},
		"crash":      {args: []string{"up"}, fault: local.Crash, code: exitPermanent, want: []string{"the guest crashed", "-console.log"}},
		"vanished":   {args: []string{"up"}, fault: local.Vanish, code: exitNotFound, want: []string{"not found", "next: somebody removed it"}},
		"no proxy":   {args: []string{"up", "--timeout", "3s"}, fault: local.ProxyDown, code: exitTransient, want: []string{"no proxy running"}},
		"refusing": {args: []string{"up"}, fault: local.Refuse, code: exitPermanent,
			want: []string{"gives the same answer for 30ms", "503", "next: check that the guest has a way out"}},
		"impostor": {args: []string{"up"}, fault: local.Impostor, code: exitPermanent, want: []string{"gives the same answer", "--probe-ca"}},
		"hanging":  {args: []string{"up", "--timeout", "3s"}, fault: local.Hang, code: exitTransient, want: []string{"was not healthy 3s after the host took it", "next: "}},

		"malformed ID":  {args: []string{"rm", "a/b"}, code: exitPermanent, want: []string{"want hosts/NAME/proxies", "next: "}},
		"foreign place": {args: []string{"rm", "hosts/far/proxies/proxy-aaaaaaaaaaaaaaaa"}, code: exitPermanent, want: []string{"letting go of hosts/far", "have its administrator remove proxy-aaaaaaaaaaaaaaaa"}},
		"rm in time":    {args: []string{"rm", "--timeout", "30ms", "hosts/local/proxies/proxy-aaaaaaaaaaaaaaaa"}, onCall: silent, code: exitTransient, want: []string{"is left", "remove it by: egressctl --providers"}},
	} {
		t.Run(name, func(t *testing.T) {
			w.host.OnCall(c.onCall)
			w.wrap, w.change = nil, c.change
			if c.fault != "" {
				w.wrap = func(p provider.Provider) provider.Provider {
					inner := p.(*local.Provider)
					return wrapped{Provider: inner, create: func(ctx context.Context, req provider.CreateRequest) (string, error) {
						id, err := inner.Create(ctx, req)
						return id, errors.Join(err, w.host.Inject(id, c.fault))
					}}
				}
			}
			args := c.args
			if args[0] == "up" && !slices.Contains(args, "--cloud-init") {
				args = append([]string{"up", "--key-file", w.path("key"), "--probe-ca", w.path("ca.pem")}, args[1:]...)
			}
			got := w.run(args...)
			w.host.OnCall(nil)
			assert.Equal(t, c.code, got.code, got.stderr)
			for _, want := range c.want {
				assert.Contains(t, got.stderr, want)
			}
			assert.Contains(t, got.stderr, "next: ")
			assert.NotContains(t, got.stderr, "hunter2")
			assert.NotContains(t, got.stderr, "crawler:", "no user name and password")
			if name == "host that is refused" {
				assert.NotContains(t, got.stderr, "removing", "nothing was made")
			}
			w.wrap, w.change = nil, nil
			_ = w.run("rm", "--all")
			assert.Empty(t, w.left())
		})
	}
}

func TestRunAsMainDoes(t *testing.T) {
	t.Setenv("EGRESS_PROVIDERS", "/absent/providers.yaml")
	var stderr bytes.Buffer
	assert.Equal(t, exitPermanent, run(t.Context(), []string{"ls"}, nil, io.Discard, &stderr))
	assert.Contains(t, stderr.String(), "/absent/providers.yaml")
	assert.Equal(t, exitOK, run(t.Context(), nil, nil, io.Discard, &stderr), "without arguments it tells its help")
}
