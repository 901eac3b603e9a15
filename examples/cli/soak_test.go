package main

import (
	"context"
	"crypto/x509"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/examples/internal/cloudtest"
	"github.com/egressfleet/egress/internal/connectproxy"
	"github.com/egressfleet/egress/internal/fakecompute"
	"github.com/egressfleet/egress/internal/redistest"
	"github.com/egressfleet/egress/lease"
	"github.com/egressfleet/egress/lease/leasehttp"
	"github.com/egressfleet/egress/lease/redislease"
)

// asProgram has the binary of the tests be the program.
const asProgram = "EGRESSCTL_OF_THE_TESTS"

// soak is a serve in a process of its own, which is killed again and again, its
// proxies, which outlive it, and its crawlers.
type soak struct {
	t       *testing.T
	cloud   *cloudtest.Cloud
	store   *redislease.Store // what the database knows
	client  *leasehttp.Client
	size    int
	long    bool
	kills   time.Duration // between two
	weather time.Duration // between two things that happen
	hold    time.Duration // of leases, at most
	api     string
	status  string
	args    []string
	log     *os.File
	cmd     *exec.Cmd

	mu     sync.Mutex
	rand   *rand.Rand
	stormy bool
	leases map[string]*lease.Lease // by endpoint

	granted, afterwards, failed, happened, killed, refused, peak atomic.Int64
	resident, routines, files                                    []int // at each measurement
}

// TestSoakServe kills serve without a warning while crawlers lease, instances die and
// their API fails. What the database and the cloud have outlives it, and what holds for
// one process must hold across them all. It takes less than a minute, or as long as
// EGRESS_SOAK says, with 200 proxies and a kill a minute in the first half.
func TestSoakServe(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs Linux: all of 127.0.0.0/8 is loopback, and /proc has what a process takes")
	}
	s := &soak{t: t, size: 12, kills: 3 * time.Second, weather: 1500 * time.Millisecond, hold: time.Second}
	d := 24 * time.Second
	if text := os.Getenv("EGRESS_SOAK"); text != "" {
		var err error
		d, err = time.ParseDuration(text)
		require.NoError(t, err)
		s.long, s.size, s.kills, s.weather, s.hold = true, 200, time.Minute, 2*time.Second, 3*time.Second
	}
	s.prepare()
	s.run(d)
	t.Logf("%d leases, %d of them after the last of %d kills, %d waits in vain, %d things happened, %d calls of the API failed, at most %d instances for %d proxies, resident KiB %v, goroutines %v, descriptors %v",
		s.granted.Load(), s.afterwards.Load(), s.killed.Load(), s.failed.Load(), s.happened.Load(), s.refused.Load(), s.peak.Load(), s.size, s.resident, s.routines, s.files)
}

func (s *soak) prepare() {
	database := redistest.Start(s.t)
	s.t.Setenv("EGRESS_REDIS", "redis://"+database.Addr)
	s.cloud = cloudtest.New(s.t, nil)
	s.cloud.API.SetBefore(s.before)
	s.rand, s.leases = rand.New(rand.NewPCG(1, 2)), map[string]*lease.Lease{}
	s.api, s.status = freeAddress(s.t), freeAddress(s.t)
	tokens := filepath.Join(s.t.TempDir(), "tokens")
	require.NoError(s.t, os.WriteFile(tokens, []byte("scraper "+testToken), 0o600))
	s.args = []string{
		"--providers", s.cloud.Providers, "serve", "--listen", s.api, "--status-listen", s.status, "--key-file", s.cloud.KeyFile,
		"--probe-ca", s.cloud.CA, "--probe", cloudtest.Site, "--probe-interval", "2s", "--token-file", tokens,
		"--size", strconv.Itoa(s.size), "--redis-fresh", "--teardown", "--drain", "5s",
	}

	pem, err := os.ReadFile(s.cloud.CA)
	require.NoError(s.t, err)
	roots := x509.NewCertPool()
	require.True(s.t, roots.AppendCertsFromPEM(pem))
	s.client, err = leasehttp.NewClient(leasehttp.ClientConfig{
		URL: "http://" + s.api, Token: testToken, Wait: 5 * time.Second,
		HTTPClient: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: s.size}, Timeout: 10 * time.Second},
		Transport:  endpoint.TransportConfig{TargetRoots: roots},
	})
	require.NoError(s.t, err)
	to := redis.NewClient(&redis.Options{Addr: database.Addr})
	s.t.Cleanup(func() { _ = to.Close() })
	s.store, err = redislease.New(redislease.Config{Client: to, Fleet: "egressctl"})
	require.NoError(s.t, err)
	s.t.Cleanup(s.store.Close)
	s.log, err = os.Create(filepath.Join(s.t.TempDir(), "log"))
	require.NoError(s.t, err)
	s.t.Cleanup(func() { _ = s.log.Close() })
}

// freeAddress is one that nothing listens on now.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

// run goes on for that long, and then ends serve in peace and looks at what is left.
func (s *soak) run(d time.Duration) {
	s.start()
	s.t.Cleanup(func() { _ = s.cmd.Process.Kill() })
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	early, cancelEarly := context.WithTimeout(ctx, d/2)
	defer cancelEarly()
	always, calm := context.WithCancel(context.Background())
	defer calm()
	var all, weather sync.WaitGroup
	for i := range s.size / 3 {
		all.Go(func() { s.crawl(ctx, early, fmt.Sprintf("holder-%d", i)) })
	}
	weather.Go(func() { every(always, s.weather, s.happen) })
	all.Go(func() { every(early, s.kills, s.kill) })
	all.Go(func() { every(ctx, 20*time.Millisecond, s.count) })
	all.Go(func() { every(ctx, d/40, s.measure) })
	all.Wait()
	s.end()
	calm()
	weather.Wait()
	s.judge(d)
}

func every(ctx context.Context, d time.Duration, do func()) {
	ticker := time.NewTicker(d)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			do()
		}
	}
}

func (s *soak) start() {
	s.cmd = exec.Command(os.Args[0], s.args...)
	s.cmd.Env = append(os.Environ(), asProgram+"=1")
	s.cmd.Stderr = s.log
	require.NoError(s.t, s.cmd.Start())
}

// kill ends serve without a warning, and starts it anew.
func (s *soak) kill() {
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
	s.killed.Add(1)
	s.start()
}

// end has serve delete everything, while its API goes on failing.
func (s *soak) end() {
	require.NoError(s.t, s.cmd.Process.Signal(syscall.SIGTERM))
	done := make(chan error, 1)
	go func() { done <- s.cmd.Wait() }()
	select {
	case err := <-done:
		assert.NoError(s.t, err, "serve ends well")
	case <-time.After(5 * time.Minute):
		s.t.Error("serve does not end")
		_ = s.cmd.Process.Kill()
		<-done
	}
}

// judge looks at what is left.
func (s *soak) judge(d time.Duration) {
	text, err := os.ReadFile(s.log.Name())
	require.NoError(s.t, err)
	assert.Empty(s.t, s.cloud.API.Names(), "no instance is left")
	left, err := s.store.List(context.Background())
	require.NoError(s.t, err)
	assert.Empty(s.t, left, "no endpoint is left in the database")
	assert.Positive(s.t, s.killed.Load())
	assert.Positive(s.t, s.refused.Load(), "calls of the API failed")
	assert.Positive(s.t, s.granted.Load()-s.afterwards.Load(), "leases while it was killed")
	assert.Positive(s.t, s.afterwards.Load(), "leases after the last kill")
	assert.LessOrEqual(s.t, s.peak.Load(), int64(s.size+(s.size+4)/5), "a fifth more than wanted at most, as a fleet without a ceiling of its own")
	assert.NotContains(s.t, string(text), testToken)
	assert.NotRegexp(s.t, `crawler:[^@*]*@`, string(text), "a password is in the log")
	assert.NotContains(s.t, string(text), "panic")
	if d >= 10*time.Minute {
		s.flat("resident KiB", s.resident, 8<<10)
		s.flat("goroutines", s.routines, 8)
		s.flat("descriptors", s.files, 8)
	}
	if s.t.Failed() {
		s.t.Logf("the end of the log:\n%s", text[max(0, len(text)-16<<10):])
	}
}

// flat holds the lower quartile of the last quarter of what was measured to the median of
// the third: one process had both.
func (s *soak) flat(what string, values []int, slack int) {
	quarter := len(values) / 4
	early := slices.Sorted(slices.Values(values[2*quarter : 3*quarter]))[quarter/2]
	late := slices.Sorted(slices.Values(values[len(values)-quarter:]))[quarter/4]
	assert.LessOrEqual(s.t, late, early+early/16+slack, "%s: more and more: %v", what, values)
}

var sample = regexp.MustCompile(`(?m)^(go_goroutines|process_open_fds|process_resident_memory_bytes) (\S+)$`)

// measure asks serve what it takes; one that has just been killed has no answer.
func (s *soak) measure() {
	resp, err := (&http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}).Get("http://" + s.status + "/metrics")
	if err != nil {
		return
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	for _, m := range sample.FindAllSubmatch(text, -1) {
		value, err := strconv.ParseFloat(string(m[2]), 64)
		require.NoError(s.t, err)
		switch string(m[1]) {
		case "go_goroutines":
			s.routines = append(s.routines, int(value))
		case "process_open_fds":
			s.files = append(s.files, int(value))
		default:
			s.resident = append(s.resident, int(value)>>10)
		}
	}
}

// before fails calls in a storm: three of ten.
func (s *soak) before(call fakecompute.Call) (fault fakecompute.Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.stormy || s.rand.IntN(10) >= 3 {
		return fault
	}
	s.refused.Add(1)
	switch s.rand.IntN(5) {
	case 0:
		fault.Cut = true
	case 1:
		fault.LoseAnswer = true
	case 2:
		fault.Error = &fakecompute.Error{Status: http.StatusTooManyRequests, Reason: "rateLimitExceeded", Message: "Quota exceeded"}
	case 3:
		if call.Method == "instances.insert" {
			fault.Operation = []fakecompute.OperationError{{Code: "ZONE_RESOURCE_POOL_EXHAUSTED", Message: "no room"}}
			break
		}
		fallthrough
	default:
		fault.Error = &fakecompute.Error{Status: http.StatusServiceUnavailable, Reason: "backendError", Message: "a storm"}
	}
	return fault
}

// happen does one bad thing, or ends one.
func (s *soak) happen() {
	storm := s.happened.Add(1)%10 < 5
	names := s.cloud.API.Names()
	s.mu.Lock()
	dice := s.rand.IntN(8)
	s.stormy = storm
	s.mu.Unlock()
	if len(names) == 0 {
		return
	}
	zone, name, _ := strings.Cut(names[s.intn(len(names))], "/")
	proxy := s.cloud.Proxy(name)
	if proxy == nil {
		return // it boots
	}
	switch dice {
	case 0:
		proxy.SetFault(connectproxy.Fault{Kind: connectproxy.Hang})
	case 1:
		proxy.SetFault(connectproxy.Fault{Kind: connectproxy.Refuse, Status: http.StatusServiceUnavailable})
	case 2:
		proxy.SetFault(connectproxy.Fault{Kind: connectproxy.Captive})
	case 3, 4:
		s.heal(names)
	case 5:
		s.cloud.API.SetStatus(zone, name, "TERMINATED")
		proxy.Close()
	case 6:
		s.cloud.API.Vanish(zone, name)
		proxy.Close()
	default: // the guest is dead, and its machine runs: it is replaced after two minutes
		if s.long {
			proxy.Close()
		}
	}
}

// count notes how many instances there were at most.
func (s *soak) count() { s.peak.Store(max(s.peak.Load(), int64(len(s.cloud.API.Names())))) }

// heal ends the faults of every proxy that is there.
func (s *soak) heal(names []string) {
	for _, id := range names {
		_, name, _ := strings.Cut(id, "/")
		if proxy := s.cloud.Proxy(name); proxy != nil {
			proxy.SetFault(connectproxy.Fault{})
		}
	}
}

// crawl leases, uses and reports, again and again, as crawlers do: some forget to
// release. Kills are over when early is.
func (s *soak) crawl(ctx, early context.Context, name string) {
	for ctx.Err() == nil {
		wait, cancel := context.WithTimeout(ctx, 20*time.Second)
		l, err := s.client.Acquire(wait, lease.Request{Holder: name, Domain: fmt.Sprintf("site-%d.test", s.intn(20)), TTL: s.hold + time.Second})
		cancel()
		if err != nil {
			s.failed.Add(1)
			_ = sleep(ctx, 100*time.Millisecond)
			continue
		}
		s.granted.Add(1)
		if early.Err() != nil {
			s.afterwards.Add(1)
		}
		s.check(l)
		s.use(ctx, l)
	}
}

// check is what must hold whenever a lease is granted.
func (s *soak) check(l *lease.Lease) {
	id := l.Endpoint().ID
	s.mu.Lock()
	if former := s.leases[id]; former != nil && former.Err() == nil && time.Now().Before(former.ExpiresAt()) {
		assert.Fail(s.t, "two holders of one endpoint", "%s: %s and %s", id, former.Key().ID, l.Key().ID)
	}
	s.leases[id] = l
	s.mu.Unlock()
	if s.long && s.intn(20) > 0 { // a list has all endpoints
		return
	}
	list, err := s.store.List(context.Background())
	require.NoError(s.t, err)
	granted := l.ExpiresAt().Add(-l.Grant().TTL)
	for _, known := range list {
		if known.Endpoint.ID == id && known.Verdict.Health == endpoint.Unhealthy {
			// The database hears of it a little later.
			assert.Less(s.t, granted.Sub(known.Verdict.Since), 2*time.Second, "%s was leased when it had been unhealthy for that long", id)
		}
	}
}

func (s *soak) use(ctx context.Context, l *lease.Lease) {
	work, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(work, http.MethodGet, cloudtest.Site, nil)
	require.NoError(s.t, err)
	resp, err := l.Client().Do(req)
	outcome := lease.Judge(resp, err)
	if err == nil {
		_ = resp.Body.Close()
	}
	_ = sleep(ctx, time.Duration(s.intn(int(s.hold))))
	switch s.intn(40) {
	case 0:
		return // forgotten: it runs out
	case 1:
		outcome.Kind = lease.TargetBlocked
	case 2:
		outcome.Kind = lease.ProxyFault
	}
	calls, cancelCalls := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancelCalls()
	_ = l.Report(calls, outcome)
	s.mu.Lock()
	if s.leases[l.Endpoint().ID] == l {
		delete(s.leases, l.Endpoint().ID) // from now on it may be another's
	}
	s.mu.Unlock()
	_ = l.Release(calls)
}

func (s *soak) intn(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rand.IntN(n)
}
