package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/fleet"
	"github.com/egressfleet/egress/health"
	"github.com/egressfleet/egress/internal/proxytest"
	"github.com/egressfleet/egress/lease"
	"github.com/egressfleet/egress/provider"
	"github.com/egressfleet/egress/provider/local"
)

// TestSoakDays runs a fleet through days of bad weather, in the fake time of synctest:
// two with 40 instances, or as many as EGRESS_SOAK_DAYS says, with 200.
func TestSoakDays(t *testing.T) {
	days, size := 2, 40
	if text := os.Getenv("EGRESS_SOAK_DAYS"); text != "" {
		size = 200
		_, err := fmt.Sscan(text, &days)
		require.NoError(t, err)
	}
	began := time.Now()
	synctest.Test(t, func(t *testing.T) {
		s := newSoak(t, soakConfig{
			size: size, holders: size / 2, interval: 5 * time.Minute, hold: 20 * time.Minute, weather: 10 * time.Minute, restart: 6 * time.Hour,
		})
		s.run(time.Duration(days) * 24 * time.Hour)
		t.Log(s)
	})
	t.Logf("%d days in %v", days, time.Since(began).Round(time.Second))
}

// TestSoak does the same in real time with real proxies, for as long as EGRESS_SOAK
// says, such as 20m. With less than a minute there is nothing to compare: the fleet
// grows for a quarter of that.
func TestSoak(t *testing.T) {
	d, err := time.ParseDuration(os.Getenv("EGRESS_SOAK"))
	if err != nil {
		t.Skip("needs EGRESS_SOAK, a duration such as 20m: make soak")
	}
	s := newSoak(t, soakConfig{
		size: 200, holders: 60, interval: 5 * time.Second, hold: 3 * time.Second, weather: 2 * time.Second, restart: time.Minute, real: true,
	})
	before := descriptors(t)
	s.run(d)
	t.Log(s)
	http.DefaultClient.CloseIdleConnections()
	assert.Eventually(t, func() bool { return descriptors(t) <= before }, time.Minute, 100*time.Millisecond, "descriptors: %d before, and now %d", before, descriptors(t))
}

// descriptors are those that this process has open.
func descriptors(t *testing.T) int {
	entries, err := os.ReadDir("/dev/fd")
	require.NoError(t, err)
	return len(entries)
}

// soakConfig says how bad the weather is.
type soakConfig struct {
	size, holders int
	interval      time.Duration // of probes
	hold          time.Duration // of leases, at most
	weather       time.Duration // between two things that happen
	restart       time.Duration // between two ends of the process that keeps the fleet, in the first half
	real          bool          // sockets
}

// soak is a fleet, its holders, and what is done to them.
type soak struct {
	soakConfig
	t      *testing.T
	rand   *rand.Rand
	host   *local.Host
	p      *local.Provider
	target proxytest.Target
	max    int // the fleet's ceiling: low, so that it holds replacing up

	mu     sync.Mutex
	store  *lease.Memory
	f      *fleet.Fleet
	sick   map[string]bool         // names of instances whose proxy does not answer; without sockets
	stormy bool                    // calls to the provider fail
	ending bool                    // so they do until all is gone
	leases map[string]*lease.Lease // by endpoint

	granted, failed, happened, restarts, peak, refused atomic.Int64
	heap, routines, files                              []int // at each measurement
}

func newSoak(t *testing.T, cfg soakConfig) *soak {
	s := &soak{soakConfig: cfg, t: t, rand: rand.New(rand.NewPCG(1, 2)), sick: map[string]bool{}, leases: map[string]*lease.Lease{}}
	host := local.HostConfig{BootDelay: cfg.interval / 2, DeleteDelay: cfg.interval / 5, WithoutProxies: !cfg.real}
	if cfg.real {
		s.target = proxytest.TLSTarget(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") }))
		host.Resolve = s.target.Resolve
	}
	var err error
	s.host, err = local.NewHost(host)
	require.NoError(t, err)
	s.p, err = local.New(local.Config{Host: s.host})
	require.NoError(t, err)
	s.max = cfg.size + 2
	s.host.OnCall(s.onCall)
	return s
}

// String tells what it was.
func (s *soak) String() string {
	return fmt.Sprintf("%d leases, %d waits in vain, %d things happened, %d restarts, %d calls refused, at most %d of %d instances, heap in KiB %v, goroutines %v, descriptors %v",
		s.granted.Load(), s.failed.Load(), s.happened.Load(), s.restarts.Load(), s.refused.Load(), s.peak.Load(), s.max, s.heap, s.routines, s.files)
}

// run goes on for that long, and then looks at what is left.
func (s *soak) run(d time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	early, cancelEarly := context.WithTimeout(ctx, d/2)
	defer cancelEarly()
	always, calm := context.WithCancel(context.Background())
	defer calm()
	s.open()
	var all, weather sync.WaitGroup
	for i := range s.holders {
		all.Go(func() { s.crawl(ctx, fmt.Sprintf("holder-%d", i)) })
	}
	weather.Go(func() { s.every(always, s.weather, s.happen) })
	all.Go(func() { s.every(early, s.restart, s.reopen) })
	all.Go(func() { s.every(ctx, d/measurements, s.measure) })
	all.Wait()
	s.reopen() // so that Destroy begins with an empty record: what there is, a list must tell
	s.destroy()
	calm()
	weather.Wait()
	s.store.Close()
	s.host.Close()

	assert.Positive(s.t, s.granted.Load())
	assert.EqualValues(s.t, s.max, s.peak.Load(), "the ceiling was reached, and never passed")
	s.flat("heap in KiB", s.heap, 32)
	s.flat("goroutines", s.routines, 4)
	s.flat("descriptors", s.files, 4)
}

// destroy ends the fleet while the provider goes on failing.
func (s *soak) destroy() {
	s.mu.Lock()
	s.ending = true
	s.mu.Unlock()
	before := s.refused.Load()
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	require.NoError(s.t, s.f.Close(ctx, fleet.Destroy))
	left, err := s.p.ListByTag(context.WithValue(ctx, unhindered{}, true), "soak")
	require.NoError(s.t, err)
	assert.Empty(s.t, left, "no instance is left")
	assert.Greater(s.t, s.refused.Load(), before, "calls failed meanwhile")
}

// measurements is how many there are in a run.
const measurements = 40

// flat holds the lower quartile of the last quarter of what was measured to the median
// of the second quarter: what is measured just after a restart, in a storm or on a busy
// machine is more, for a while. In the second quarter the fleet is restarted again and
// again, in the last one it has long not been: what one process piles up shows as well
// as what a restart leaves. A sixteenth and the slack are weather.
func (s *soak) flat(what string, values []int, slack int) {
	quarter := len(values) / 4
	if quarter == 0 {
		return
	}
	early := slices.Sorted(slices.Values(values[quarter : 2*quarter]))[quarter/2]
	late := slices.Sorted(slices.Values(values[len(values)-quarter:]))[quarter/4]
	assert.LessOrEqual(s.t, late, early+early/16+slack, "%s: more and more: %v", what, values)
}

func (s *soak) every(ctx context.Context, d time.Duration, do func()) {
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

// open starts the process that keeps the fleet.
func (s *soak) open() {
	store, err := lease.NewMemory(lease.MemoryConfig{
		DefaultTTL: 2 * s.hold, LockDelay: s.hold / 10, Transport: endpoint.TransportConfig{TargetRoots: s.target.Roots},
	})
	require.NoError(s.t, err)
	probe := s.probe
	if s.real {
		prober, err := health.NewProber(health.ProbeConfig{
			URL: s.target.URL, Timeout: 2 * time.Second, Transport: endpoint.TransportConfig{TargetRoots: s.target.Roots},
		})
		require.NoError(s.t, err)
		probe = prober.Probe
	}
	f, err := fleet.New(fleet.Config{
		Provider: counted{s.p, s}, Tag: "soak", Size: s.size, MaxSize: s.max, MaxCreating: s.size / 4, Endpoint: s.p.Endpoint, Inventory: store,
		Health:       health.EngineConfig{Probe: probe, Interval: s.interval, EdgeInterval: s.interval / 5},
		PollInterval: s.interval / 5, ListInterval: 2 * s.interval, BootTimeout: 10 * s.interval, UnhealthyTimeout: 2 * s.interval,
		DrainTimeout: s.hold, OrphanAge: s.interval,
	})
	require.NoError(s.t, err)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.store, s.f = store, f
}

// reopen ends that process without a word to anybody, and starts another one.
func (s *soak) reopen() {
	s.mu.Lock()
	f, store := s.f, s.store
	s.mu.Unlock()
	require.NoError(s.t, f.Close(context.Background(), fleet.Keep))
	store.Close()
	s.restarts.Add(1)
	s.open()
}

func (s *soak) parts() (*fleet.Fleet, *lease.Memory) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.f, s.store
}

// probe fails for what is sick or does not run.
func (s *soak) probe(ctx context.Context, e endpoint.Endpoint) health.Result {
	r := health.Result{EndpointID: e.ID, Generation: e.Generation, Started: time.Now()}
	s.mu.Lock()
	sick := s.sick[e.ID]
	s.mu.Unlock()
	if sick || !s.runs(ctx, e.ID) {
		r.Err = &endpoint.Error{Stage: endpoint.StageDial, Proxy: e.URL, Err: errors.New("no answer")}
	}
	return r
}

type unhindered struct{}

func (s *soak) runs(ctx context.Context, name string) bool {
	in, err := s.p.Get(context.WithValue(ctx, unhindered{}, true), idOf(name))
	return err == nil && in.State == provider.StateRunning
}

func idOf(name string) string {
	return provider.IDFormat{Scopes: "hosts", Kinds: "proxies"}.Format("local", name)
}

// onCall fails calls in a storm: three of ten, in every class but the permanent one,
// which would stop the fleet for good. At the end nine lists of ten fail: Destroy must
// not take a failed one for an empty one. Of the rest two of ten do, or the pauses
// between tries would add up to minutes.
func (s *soak) onCall(ctx context.Context, op string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	often := 3
	if s.ending {
		often = 2
	}
	if s.ending && op == "ListByTag" {
		often = 9
	}
	if ctx.Value(unhindered{}) != nil || !s.stormy && !s.ending || s.rand.IntN(10) >= often {
		return nil
	}
	s.refused.Add(1)
	class := provider.ErrTransient
	if op == "Create" && s.rand.IntN(2) == 0 {
		class = provider.ErrQuotaExceeded
	}
	return &provider.Error{Class: class, Op: op, Err: errors.New("a storm")}
}

// happen does one bad thing, or ends one. Now and then somebody wants a tenth of all
// instances replaced.
func (s *soak) happen() {
	wave := s.happened.Add(1)%10 == 5
	ctx := context.WithValue(context.Background(), unhindered{}, true)
	list, err := s.p.ListByTag(ctx, "soak")
	require.NoError(s.t, err)
	s.mu.Lock()
	dice, victim := s.rand.IntN(20), 0
	if len(list) > 0 {
		victim = s.rand.IntN(len(list))
	}
	if dice == 0 || s.stormy { // a storm is short
		s.stormy = !s.stormy
	}
	f := s.f
	s.mu.Unlock()
	if wave {
		for _, in := range list[:len(list)/10] {
			_ = f.Replace(in.UID, "a new image") // it may not be in the record yet
		}
	}
	if dice == 0 || len(list) == 0 {
		return
	}
	in := list[victim]
	faults := []local.Fault{local.Stop, local.Crash, local.Vanish, local.ProxyDown, local.Hang, local.Refuse, local.Sound}
	fault := faults[dice%len(faults)]
	if !s.real && (fault == local.ProxyDown || fault == local.Hang || fault == local.Refuse || fault == local.Sound) {
		s.mu.Lock()
		s.sick[in.Name] = fault != local.Sound
		s.mu.Unlock()
		return
	}
	_ = s.host.Inject(in.ID, fault) // it may have gone meanwhile
}

// counted is the provider, and holds the fleet to its ceiling whenever something is made.
type counted struct {
	*local.Provider
	s *soak
}

func (c counted) Create(ctx context.Context, req provider.CreateRequest) (string, error) {
	id, err := c.Provider.Create(ctx, req)
	if err == nil {
		c.s.count()
	}
	return id, err
}

func (s *soak) count() {
	list, err := s.p.ListByTag(context.WithValue(context.Background(), unhindered{}, true), "soak")
	require.NoError(s.t, err)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.peak.Store(max(s.peak.Load(), int64(len(list))))
}

func (s *soak) measure() {
	s.forget()
	if s.real {
		s.files = append(s.files, descriptors(s.t))
	} else {
		synctest.Wait()
	}
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	s.heap = append(s.heap, int(m.HeapAlloc>>10))
	s.routines = append(s.routines, runtime.NumGoroutine())
}

// forget drops what this test knows of machines that are gone.
func (s *soak) forget() {
	ctx := context.WithValue(context.Background(), unhindered{}, true)
	s.mu.Lock()
	names := make([]string, 0, len(s.sick))
	for name := range s.sick {
		names = append(names, name)
	}
	for id, l := range s.leases {
		if l.Err() != nil {
			delete(s.leases, id)
		}
	}
	s.mu.Unlock()
	for _, name := range names {
		if _, err := s.p.Get(ctx, idOf(name)); errors.Is(err, provider.ErrNotFound) {
			s.mu.Lock()
			delete(s.sick, name)
			s.mu.Unlock()
		}
	}
}

// crawl leases, uses and reports, again and again, as crawlers do: some forget to
// release.
func (s *soak) crawl(ctx context.Context, name string) {
	for ctx.Err() == nil {
		f, store := s.parts()
		wait, cancel := context.WithTimeout(ctx, 10*s.interval)
		l, err := store.Acquire(wait, lease.Request{Holder: name, Domain: fmt.Sprintf("site-%d.test", s.intn(3))})
		cancel()
		if err != nil {
			s.failed.Add(1)
			s.sleep(ctx, s.hold/10)
			continue
		}
		s.granted.Add(1)
		s.check(f, l)
		s.use(ctx, l)
	}
}

// check is what must hold whenever a lease is granted. It counts from the grant, and not
// from when this goroutine had its turn.
func (s *soak) check(f *fleet.Fleet, l *lease.Lease) {
	id, granted, slack := l.Endpoint().ID, l.ExpiresAt().Add(-l.Grant().TTL), time.Duration(0)
	if s.real {
		slack = time.Second // the store hears of it a little later
	}
	if status, ok := f.Engine().Get(id); ok && status.Verdict.Health == endpoint.Unhealthy {
		assert.LessOrEqual(s.t, granted.Sub(status.Verdict.Since), slack, "%s was leased when it had been unhealthy for that long", id)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if former := s.leases[id]; former != nil && former.Err() == nil && time.Now().Before(former.ExpiresAt()) {
		assert.Fail(s.t, "two holders of one endpoint", id)
	}
	s.leases[id] = l
}

func (s *soak) use(ctx context.Context, l *lease.Lease) {
	outcome := lease.Outcome{Kind: lease.OK}
	if s.real {
		work, cancel := context.WithTimeout(ctx, 2*time.Second)
		req, err := http.NewRequestWithContext(work, http.MethodGet, s.target.URL, nil)
		require.NoError(s.t, err)
		resp, err := l.Client().Do(req)
		outcome = lease.Judge(resp, err)
		if err == nil {
			_ = resp.Body.Close()
		}
		cancel()
	}
	s.sleep(ctx, time.Duration(s.intn(int(s.hold))))
	switch s.intn(20) {
	case 0:
		return // forgotten: it runs out
	case 1:
		outcome.Kind = lease.TargetBlocked
	case 2:
		outcome.Kind = lease.ProxyFault
	}
	_ = l.Report(ctx, outcome)
	_ = l.Release(ctx)
}

func (s *soak) intn(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rand.IntN(n)
}

func (s *soak) sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
