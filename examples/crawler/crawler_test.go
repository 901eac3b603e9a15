package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/egressfleet/egress/fleet"
	"github.com/egressfleet/egress/lease"
	"github.com/egressfleet/egress/lease/leasehttp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// output is a writer that a test reads while it is written.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

func parseResults(t *testing.T, text string) []result {
	t.Helper()
	var all []result
	for line := range strings.Lines(text) {
		var r result
		require.NoError(t, json.Unmarshal([]byte(line), &r), line)
		all = append(all, r)
	}
	return all
}

func TestDemoFetchesEverythingThroughBansAndADeath(t *testing.T) {
	var stdout, stderr output
	code := run([]string{"-demo", "-v"}, strings.NewReader(""), &stdout, &stderr)
	require.Equal(t, exitOK, code, stderr.String())
	results := parseResults(t, stdout.String())
	require.Len(t, results, 64)
	proxies, retried := map[string]int{}, 0
	for _, r := range results {
		assert.Equal(t, lease.OK, r.Outcome, r)
		assert.Equal(t, 200, r.Status)
		assert.Len(t, r.SHA256, 64)
		assert.Positive(t, r.Bytes)
		proxies[r.Proxy]++
		if r.Attempt > 1 {
			retried++
		}
	}
	assert.GreaterOrEqual(t, len(proxies), 4)
	assert.Positive(t, retried, "picky.test bans")
	assert.Contains(t, stderr.String(), "demo: killing hosts/local/proxies/proxy-")
	assert.Contains(t, stderr.String(), "it is Failed the guest crashed")
	assert.Contains(t, stderr.String(), "1 proxies replaced")
	assert.NotContains(t, stderr.String()+stdout.String(), "crawler:", "no password, no user name")
}

func TestCtrlCFinishesWhatIsInFlight(t *testing.T) {
	signals := make(chan os.Signal, 1)
	o, err := parseFlags([]string{"-demo", "-workers", "2"}, io.Discard)
	require.NoError(t, err)
	stdout, stderr := signalAfter(3, signals), &output{}
	ok, err := crawlAll(context.Background(), o, signals, nil, stdout, stderr)
	require.NoError(t, err)
	assert.False(t, ok, "not every URL was fetched")
	results := parseResults(t, stdout.String())
	assert.GreaterOrEqual(t, len(results), 3)
	assert.Less(t, len(results), 20)
	for _, r := range results {
		assert.Equal(t, lease.OK, r.Outcome, r)
	}
	assert.Contains(t, stderr.String(), "finishing what is in flight")
}

// counting sends a signal after so many lines.
type counting struct {
	output
	left    int
	signals chan<- os.Signal
}

func signalAfter(lines int, signals chan<- os.Signal) *counting {
	return &counting{left: lines, signals: signals}
}

func (c *counting) Write(p []byte) (int, error) {
	if c.left--; c.left == 0 {
		c.signals <- os.Interrupt
	}
	return c.output.Write(p)
}

func TestAProvidersFileAndBadURLs(t *testing.T) {
	dir := t.TempDir()
	providers := filepath.Join(dir, "providers.yaml")
	require.NoError(t, os.WriteFile(providers, []byte("providers: [{name: dev, type: local, local: {capacity: 1}}]"), 0o600))
	urls := filepath.Join(dir, "urls.txt")
	require.NoError(t, os.WriteFile(urls, []byte("# a comment\n\nnonsense\nftp://example.com/\n"), 0o600))
	var stdout, stderr output
	code := run([]string{
		"-providers", providers, "-size", "1", "-probe", "https://127.0.0.1:1/", "-ready-in", "1s", urls,
	}, nil, &stdout, &stderr)
	assert.Equal(t, exitFailed, code)
	assert.Contains(t, stderr.String(), "0 of 1 endpoints are healthy")
	assert.Contains(t, stderr.String(), "connect through http://127.0.0.1")
}

func TestWhatCannotHelpIsNotWaitedFor(t *testing.T) {
	providers := filepath.Join(t.TempDir(), "providers.yaml")
	require.NoError(t, os.WriteFile(providers, []byte("providers: [{name: dev, type: local}]"), 0o600))
	var stdout, stderr output
	began := time.Now()
	code := run([]string{"-providers", providers, "-zone", "mars"}, strings.NewReader(""), &stdout, &stderr)
	assert.Equal(t, exitFailed, code)
	assert.Contains(t, stderr.String(), `placement.zone: "mars": must be "local" or empty`)
	assert.Less(t, time.Since(began), 5*time.Minute)
}

func TestFlagsAreCheckedTogether(t *testing.T) {
	for args, want := range map[string]string{
		"":                         "give a providers file",
		"-demo x":                  "brings its own",
		"-providers f -keep":       "-keep needs -key-file",
		"-providers f a b":         "one file of URLs",
		"-demo -size 0":            "must be positive",
		"-demo -clients 192.0.2.x": "write it like 192.0.2.0/24",
		"-nonsense":                "not defined",
	} {
		var stderr output
		assert.Equal(t, exitUsage, run(strings.Fields(args), nil, io.Discard, &stderr), args)
		assert.Contains(t, stderr.String(), want)
	}
	assert.Equal(t, exitOK, run([]string{"-h"}, nil, io.Discard, io.Discard))
	assert.Equal(t, exitFailed, run([]string{"-providers", "/absent"}, strings.NewReader(""), io.Discard, io.Discard))
}

func TestQueueIsFairAndBounded(t *testing.T) {
	q := newQueue(2)
	for i := range 4 {
		for _, d := range []string{"a", "b"} {
			q.put(job{url: fmt.Sprint(d, i), domain: d})
		}
	}
	q.close()
	var order []string
	for range 4 {
		j, ok := q.get()
		require.True(t, ok)
		order = append(order, j.url)
	}
	assert.Equal(t, []string{"a0", "b0", "a1", "b1"}, order)
	q.done(job{domain: "b"})
	j, _ := q.get()
	assert.Equal(t, "b2", j.url, "a has its share")
	q.drop()
	_, ok := q.get()
	assert.False(t, ok)
}

func TestACrawlThroughTheProxiesOfALeaseServer(t *testing.T) {
	src, err := openDemo(options{})
	require.NoError(t, err)
	o, err := parseFlags([]string{"-demo", "-size", "2"}, io.Discard)
	require.NoError(t, err)
	s, err := start(o, src, func(fleet.Event) {})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.end(fleet.Destroy)) }()
	handler, err := leasehttp.NewHandler(leasehttp.HandlerConfig{
		Store: s.store, Clients: map[string]string{"crawler": "a-token-of-32-random-characters!"},
	})
	require.NoError(t, err)
	defer handler.Close()
	server := httptest.NewServer(handler)
	defer server.Close()

	dir := t.TempDir()
	token, urls, ca := filepath.Join(dir, "token"), filepath.Join(dir, "urls.txt"), filepath.Join(dir, "ca.pem")
	require.NoError(t, os.WriteFile(token, []byte("a-token-of-32-random-characters!\n"), 0o600))
	require.NoError(t, os.WriteFile(urls, []byte("https://news.test/1\nhttps://shop.test/2\n"), 0o600))
	require.NoError(t, os.WriteFile(ca, src.ca, 0o600))
	var stdout, stderr output
	code := run([]string{"-server", server.URL, "-token-file", token, "-selector", "provider=demo", "-ca", ca, urls}, nil, &stdout, &stderr)
	require.Equal(t, exitOK, code, stderr.String())
	require.Len(t, parseResults(t, stdout.String()), 2)
}

// A bad line, and more lines than may wait, hung the crawl.
func TestBadLinesAndLongFiles(t *testing.T) {
	src, err := openDemo(options{})
	require.NoError(t, err)
	o, err := parseFlags([]string{"-demo", "-size", "1", "-attempts", "1"}, io.Discard)
	require.NoError(t, err)
	s, err := start(o, src, func(fleet.Event) {})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.end(fleet.Destroy)) }()
	c := newCrawler(o, s.store)
	c.start(t.Context())
	var lines strings.Builder
	lines.WriteString("https://news.test/1\nnot a url\n")
	for range limit + 100 {
		lines.WriteString("mailto:nobody\n")
	}
	fed := make(chan error, 1)
	go func() { fed <- c.feed(t.Context(), strings.NewReader(lines.String())) }()
	outcomes := map[lease.OutcomeKind]int{}
	for r := range c.results {
		outcomes[r.Outcome]++
	}
	require.NoError(t, <-fed)
	assert.Equal(t, map[lease.OutcomeKind]int{lease.OK: 1, outcomeInvalid: limit + 101}, outcomes)
}

// ours starts the demo's proxies for a test, and a crawler of theirs with a store of
// its own settings.
func ours(t *testing.T, cfg lease.MemoryConfig, flags ...string) (*crawler, *lease.Memory) {
	t.Helper()
	o, err := parseFlags(append([]string{"-demo", "-size", "3"}, flags...), io.Discard)
	require.NoError(t, err)
	src, err := openDemo(o)
	require.NoError(t, err)
	s, err := start(o, src, func(fleet.Event) {})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.end(fleet.Destroy)) })
	require.NoError(t, s.fleet.WaitReady(t.Context(), 3))
	cfg.Transport = src.transport
	store, err := lease.NewMemory(cfg)
	require.NoError(t, err)
	t.Cleanup(store.Close)
	for _, st := range s.fleet.Engine().Snapshot() {
		require.NoError(t, store.Put(t.Context(), st.Endpoint))
		require.NoError(t, store.SetVerdict(t.Context(), st.Endpoint.ID, st.Verdict))
	}
	return newCrawler(o, store), store
}

// crawlThese fetches the URLs and returns the results in no order.
func crawlThese(t *testing.T, c *crawler, urls ...string) (all []result) {
	t.Helper()
	c.start(t.Context())
	require.NoError(t, c.feed(t.Context(), strings.NewReader(strings.Join(urls, "\n"))))
	for r := range c.results {
		assert.Equal(t, lease.OK, r.Outcome, r)
		all = append(all, r)
	}
	return all
}

func TestStickyStaysWithOneProxyAndItsCookies(t *testing.T) {
	pages := []string{"https://shop.test/1", "https://shop.test/1", "https://shop.test/1", "https://shop.test/1"}
	c, _ := ours(t, lease.MemoryConfig{}, "-sticky")
	proxies, bodies := map[string]int{}, map[string]int{}
	for _, r := range crawlThese(t, c, pages...) {
		proxies[r.Proxy]++
		bodies[r.SHA256]++
	}
	assert.Len(t, proxies, 1)
	assert.Len(t, bodies, 2, "welcomed once, and then known")

	c, _ = ours(t, lease.MemoryConfig{})
	proxies, bodies = map[string]int{}, map[string]int{}
	for _, r := range crawlThese(t, c, pages...) {
		proxies[r.Proxy]++
		bodies[r.SHA256]++
	}
	assert.Len(t, proxies, 3)
	assert.Len(t, bodies, 1)
}

// The server grants less than the page takes.
func TestALeaseIsKeptWhileItsPageComes(t *testing.T) {
	c, store := ours(t, lease.MemoryConfig{DefaultTTL: 400 * time.Millisecond, MaxTTL: 400 * time.Millisecond})
	crawlThese(t, c, "https://slow.test/1")
	stats, err := store.Stats(t.Context())
	require.NoError(t, err)
	assert.Positive(t, stats.Renewed)
}

// A proxy that is replaced takes the request that it was at with it, not the URL.
func TestALeaseThatIsLostIsNotTheEndOfItsURL(t *testing.T) {
	c, store := ours(t, lease.MemoryConfig{})
	go func() {
		for ; t.Context().Err() == nil; time.Sleep(time.Millisecond) {
			list, _ := store.List(t.Context())
			for _, s := range list {
				if len(s.Leases) > 0 {
					_ = store.Revoke(t.Context(), s.Endpoint.ID)
					return
				}
			}
		}
	}()
	results := crawlThese(t, c, "https://slow.test/1")
	require.Len(t, results, 1)
	assert.Equal(t, 2, results[0].Attempt)
}
