package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
	"github.com/egressfleet/egress/fleet"
	"github.com/egressfleet/egress/health"
	"github.com/egressfleet/egress/lease"
	"github.com/egressfleet/egress/provider"
	"github.com/egressfleet/egress/provider/local"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a host without sockets, a store and a fleet, for a synctest bubble.
type world struct {
	t     *testing.T
	host  *local.Host
	p     *local.Provider
	store *lease.Memory
	cfg   fleet.Config
	f     *fleet.Fleet

	mu     sync.Mutex
	bad    map[string]bool // endpoint IDs whose probes fail
	events []fleet.Event
}

func newWorld(t *testing.T, size int, host local.HostConfig) *world {
	t.Helper()
	host.WithoutProxies = true
	w := &world{t: t, bad: map[string]bool{}}
	var err error
	w.host, err = local.NewHost(host)
	require.NoError(t, err)
	w.p, err = local.New(local.Config{Host: w.host})
	require.NoError(t, err)
	w.store, err = lease.NewMemory(lease.MemoryConfig{})
	require.NoError(t, err)
	w.cfg = fleet.Config{
		Provider: w.p, Tag: "test", Size: size, Endpoint: w.p.Endpoint, Inventory: w.store,
		Health:  health.EngineConfig{Probe: w.probe, InitialJitter: -1, IntervalJitterPercent: -1},
		OnEvent: w.onEvent,
	}
	t.Cleanup(w.end)
	return w
}

func (w *world) end() {
	if w.f != nil {
		_ = w.f.Close(context.Background(), fleet.Keep)
	}
	w.store.Close()
	w.host.Close()
}

func (w *world) start() *fleet.Fleet {
	w.t.Helper()
	var err error
	w.f, err = fleet.New(w.cfg)
	require.NoError(w.t, err)
	return w.f
}

func (w *world) probe(_ context.Context, e endpoint.Endpoint) health.Result {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := health.Result{EndpointID: e.ID, Generation: e.Generation, Started: time.Now()}
	if w.bad[e.ID] || w.bad["*"] {
		r.Err = errors.New("no answer")
	}
	return r
}

func (w *world) setBad(id string, bad bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.bad[id] = bad
}

func (w *world) onEvent(e fleet.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, e)
}

// count is how many events of that type there were.
func (w *world) count(kind fleet.EventType) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, e := range w.events {
		if e.Type == kind {
			n++
		}
	}
	return n
}

func (w *world) instances() []provider.Instance {
	w.t.Helper()
	all, err := w.p.ListByTag(context.Background(), "test")
	require.NoError(w.t, err)
	return all
}

func (w *world) ready(n int) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Hour)
	defer cancel()
	require.NoError(w.t, w.f.WaitReady(ctx, n))
	synctest.Wait()
}

func (w *world) healthy() int {
	n := 0
	for _, s := range w.f.Status() {
		if s.Verdict.Health == endpoint.Healthy && s.Phase == fleet.PhaseServing {
			n++
		}
	}
	return n
}

func TestConfigReportsEveryBadValue(t *testing.T) {
	_, err := fleet.New(fleet.Config{Tag: "X", Size: -1, MaxSize: -5, PollInterval: -1})
	for _, want := range []string{
		"provider: give", `tag: "X": must be`, "endpoint: give", "inventory: give",
		"size: -1: must not be negative", "maxSize: -5: must be at least what is wanted", "pollInterval: -1ns",
	} {
		assert.ErrorContains(t, err, want)
	}
}

func TestKeepsItsSize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 5, local.HostConfig{BootDelay: 20 * time.Second})
		w.start()
		w.ready(5)
		assert.Len(t, w.instances(), 5)
		for _, s := range w.f.Status() {
			assert.Equal(t, fleet.PhaseServing, s.Phase)
			assert.Equal(t, provider.Name(s.UID), s.EndpointID)
		}
		time.Sleep(time.Hour)
		assert.Equal(t, 5, w.count(fleet.Creating), "nothing more is made")
		l, err := w.store.TryAcquire(t.Context(), lease.Request{Holder: "test"})
		require.NoError(t, err)
		assert.True(t, provider.IsName(l.Endpoint().ID))
	})
}

func TestTheDeadAreReplaced(t *testing.T) {
	for _, fault := range []local.Fault{local.Stop, local.Crash, local.Vanish} {
		t.Run(string(fault), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 3, local.HostConfig{BootDelay: 5 * time.Second})
				w.start()
				w.ready(3)
				dead := w.instances()[0]
				require.NoError(t, w.host.Inject(dead.ID, fault))
				time.Sleep(2 * time.Minute)
				assert.Equal(t, 3, w.healthy())
				for _, in := range w.instances() {
					assert.NotEqual(t, dead.UID, in.UID, "a UID is never used twice")
				}
				assert.Equal(t, 1, w.count(fleet.Deleted))
			})
		})
	}
}

// claffin/cloudproxy deleted a VM on the first failed probe;
// kubernetes-sigs/karpenter#2811 asks for the same patience.
func TestAProxyIsReplacedOnlyAfterItWasUnhealthyForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3, local.HostConfig{})
		w.start()
		w.ready(3)
		sick := w.f.Status()[0]
		w.setBad(sick.EndpointID, true)
		time.Sleep(2 * time.Minute) // unhealthy after 19 s at most
		w.setBad(sick.EndpointID, false)
		time.Sleep(10 * time.Minute)
		assert.Zero(t, w.count(fleet.Replacing), "a blip destroys nothing")
		w.setBad(sick.EndpointID, true)
		time.Sleep(4 * time.Minute)
		assert.Equal(t, 1, w.count(fleet.Replacing))
		assert.Equal(t, 3, w.healthy())
	})
}

// A reboot of the host makes all unhealthy at once: they are not thrown away
// together.
func TestWhenMostAreUnhealthyTheyAreReplacedOneByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 10, local.HostConfig{DeleteDelay: time.Minute})
		w.start()
		w.ready(10)
		w.setBad("*", true)
		time.Sleep(3 * time.Minute)
		for range 20 {
			time.Sleep(10 * time.Second)
			ending := 0
			for _, s := range w.f.Status() {
				if s.Phase == fleet.PhaseDraining || s.Phase == fleet.PhaseDeleting {
					ending++
				}
			}
			assert.LessOrEqual(t, ending, 1)
		}
		assert.Positive(t, w.count(fleet.Replacing), "slowed, not stopped")
	})
}

func TestWhatNeverBecomesHealthyIsReplacedAfterTheBootTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, local.HostConfig{})
		w.setBad("*", true)
		w.start()
		time.Sleep(15*time.Minute - 10*time.Second)
		assert.Zero(t, w.count(fleet.Replacing))
		time.Sleep(time.Minute)
		assert.Equal(t, 1, w.count(fleet.Replacing))
	})
}

func TestWhatNeverRunsIsReplacedAfterTheBootTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, local.HostConfig{BootDelay: time.Hour})
		w.start()
		time.Sleep(14 * time.Minute)
		assert.Zero(t, w.count(fleet.Replacing))
		time.Sleep(2 * time.Minute)
		require.Equal(t, 1, w.count(fleet.Replacing))
		assert.Contains(t, w.events[len(w.events)-1].Reason+fmt.Sprint(w.events), "after 15m0s it is still Provisioning")
	})
}

// scrapoxy/scrapoxy#62, #119, #158, #194: instances were made without end.
func TestNeverMoreThanTheCeiling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 5, local.HostConfig{BootDelay: time.Minute, DeleteDelay: 10 * time.Minute})
		w.cfg.MaxSize = 7
		w.start()
		most := 0
		for range 600 {
			time.Sleep(2 * time.Second)
			all := w.instances()
			most = max(most, len(all))
			if len(all) > 0 {
				_ = w.host.Inject(all[0].ID, local.Crash)
			}
		}
		assert.LessOrEqual(t, most, 7, "those that are still being deleted count")
		assert.Greater(t, most, 5, "replacements are made beside them")
	})
}

func TestInstancesThatNeverLiveSlowDownTheMaking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, local.HostConfig{BootDelay: time.Hour})
		w.cfg.OnEvent = func(e fleet.Event) {
			w.onEvent(e)
			if e.Type == fleet.Created {
				_ = w.host.Inject(e.ID, local.Vanish)
			}
		}
		w.start()
		time.Sleep(time.Hour)
		assert.Less(t, w.count(fleet.Creating), 25)
		assert.Greater(t, w.count(fleet.Creating), 10)
	})
}

func TestErrorsOfCreateAreRetriedWithTheSameUID(t *testing.T) {
	for name, c := range map[string]struct {
		class       error
		least, most int // calls within ten minutes
	}{
		"transient": {provider.ErrTransient, 10, 20},
		"quota":     {provider.ErrQuotaExceeded, 4, 6},
		"permanent": {provider.ErrPermanent, 4, 6},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 1, local.HostConfig{})
				calls := 0
				w.host.OnCall(func(_ context.Context, op string) error {
					if op != "Create" {
						return nil
					}
					calls++
					return &provider.Error{Class: c.class, Err: errors.New("not now")}
				})
				w.start()
				time.Sleep(10 * time.Minute)
				synctest.Wait()
				assert.GreaterOrEqual(t, calls, c.least)
				assert.LessOrEqual(t, calls, c.most)
				assert.Equal(t, 1, w.count(fleet.Creating), "one UID")
				require.Len(t, w.f.Status(), 1)
				assert.Contains(t, w.f.Status()[0].Reason, "not now")
				w.host.OnCall(nil)
				w.ready(1)
			})
		})
	}
}

func TestARestartAdoptsByTag(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 4, local.HostConfig{BootDelay: 5 * time.Second})
		w.start()
		w.ready(4)
		require.NoError(t, w.f.Close(t.Context(), fleet.Keep))
		before := w.instances()
		w.start()
		w.ready(4)
		time.Sleep(10 * time.Minute)
		assert.Equal(t, before, w.instances())
		assert.Equal(t, 4, w.count(fleet.Creating))
		assert.Equal(t, 4, w.count(fleet.Adopted))
	})
}

// As long as the list fails, the fleet cannot know what exists.
func TestNothingIsMadeBeforeAWholeList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, local.HostConfig{})
		w.host.OnCall(func(_ context.Context, op string) error {
			if op == "ListByTag" {
				return errors.New("no route to host")
			}
			return nil
		})
		w.start()
		time.Sleep(time.Hour)
		assert.Zero(t, w.count(fleet.Creating))
		w.host.OnCall(nil)
		w.ready(2)
	})
}

func TestWhatIsMoreThanWantedGoesWithoutBreakingLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3, local.HostConfig{})
		w.start()
		w.ready(3)
		l, err := w.store.TryAcquire(t.Context(), lease.Request{Holder: "test", TTL: 30 * time.Minute})
		require.NoError(t, err)
		require.NoError(t, w.f.Close(t.Context(), fleet.Keep))
		w.cfg.Size = 0
		w.start()
		time.Sleep(10 * time.Minute)
		require.NoError(t, l.Err())
		require.Len(t, w.instances(), 1)
		require.NoError(t, l.Release(t.Context()))
		time.Sleep(time.Minute)
		assert.Empty(t, w.instances())
	})
}

func TestAReplacedProxyIsDrainedFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, local.HostConfig{})
		w.start()
		w.ready(1)
		l, err := w.store.TryAcquire(t.Context(), lease.Request{Holder: "test", TTL: 30 * time.Minute})
		require.NoError(t, err)
		w.setBad(l.Endpoint().ID, true)
		for w.count(fleet.Replacing) == 0 {
			time.Sleep(time.Second)
		}
		time.Sleep(50 * time.Second)
		assert.NoError(t, l.Err(), "it has a minute")
		time.Sleep(20 * time.Second)
		assert.ErrorIs(t, l.Err(), lease.ErrRevoked)
		w.ready(1)
	})
}

func TestAReportedFaultLeadsToAnEarlyProbeOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, local.HostConfig{})
		probes := 0
		w.cfg.Health.OnResult = func(health.Result) { probes++ }
		w.cfg.Health.Interval = time.Hour
		w.start()
		w.ready(1)
		l, err := w.store.TryAcquire(t.Context(), lease.Request{Holder: "test"})
		require.NoError(t, err)
		require.NoError(t, l.Report(t.Context(), lease.Outcome{Kind: lease.ProxyFault}))
		synctest.Wait()
		assert.Equal(t, 2, probes)
		assert.Zero(t, w.count(fleet.Replacing))
	})
}

func TestDestroyLeavesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 6, local.HostConfig{BootDelay: 10 * time.Second, DeleteDelay: 5 * time.Second})
		w.cfg.MaxCreating = 2
		w.start()
		w.ready(2) // others are still being made
		l, err := w.store.TryAcquire(t.Context(), lease.Request{Holder: "test"})
		require.NoError(t, err)
		require.NoError(t, w.f.Close(t.Context(), fleet.Destroy))
		assert.Empty(t, w.instances())
		assert.ErrorIs(t, l.Err(), lease.ErrRevoked)
		assert.Empty(t, w.f.Status())
	})
}

func TestDestroyCutsShortACreateAndFindsWhatItLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, local.HostConfig{})
		late := make(chan struct{})
		w.cfg.Provider = &lateCreate{Provider: w.p, landed: late}
		w.start()
		time.Sleep(time.Second)
		require.NoError(t, w.f.Close(t.Context(), fleet.Destroy))
		<-late
		assert.Empty(t, w.instances())
	})
}

// lateCreate is cut short by its context, and lands all the same.
type lateCreate struct {
	provider.Provider
	landed chan struct{}
}

func (p *lateCreate) Create(ctx context.Context, req provider.CreateRequest) (string, error) {
	<-ctx.Done()
	_, _ = p.Provider.Create(context.WithoutCancel(ctx), req)
	close(p.landed)
	return "", ctx.Err()
}

func TestDestroySaysWhatIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, local.HostConfig{})
		w.start()
		w.ready(1)
		id := w.instances()[0].ID
		w.host.OnCall(func(_ context.Context, op string) error {
			if op == "Delete" {
				return errors.New("no route to host")
			}
			return nil
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err := w.f.Close(ctx, fleet.Destroy)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.ErrorContains(t, err, id)
	})
}

// What runs on a host that was taken out of the configuration is let go.
func TestAnUnconfiguredPlaceIsLetGoLoudly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, local.HostConfig{})
		gone := &unconfigured{Provider: w.p}
		w.cfg.Provider = gone
		w.start()
		w.ready(1)
		former := w.f.Status()[0]
		gone.id.Store(former.ID)
		for w.count(fleet.LetGo) == 0 {
			time.Sleep(time.Second)
		}
		synctest.Wait()
		list, err := w.store.List(t.Context())
		require.NoError(t, err)
		for _, s := range list {
			assert.NotEqual(t, former.EndpointID, s.Endpoint.ID)
		}
		assert.Equal(t, 1, w.count(fleet.LetGo))
		assert.Zero(t, w.count(fleet.Deleted))
	})
}

// unconfigured is a provider from whose configuration the place of one instance
// was taken.
type unconfigured struct {
	provider.Provider
	id atomic.Value
}

func (p *unconfigured) Get(ctx context.Context, id string) (provider.Instance, error) {
	if id == p.id.Load() {
		return provider.Instance{}, &provider.Error{Class: provider.ErrPermanent, Code: provider.CodeUnconfigured}
	}
	return p.Provider.Get(ctx, id)
}

func (p *unconfigured) ListByTag(ctx context.Context, tag string) ([]provider.Instance, error) {
	all, err := p.Provider.ListByTag(ctx, tag)
	return slices.DeleteFunc(all, func(in provider.Instance) bool { return in.ID == p.id.Load() }), err
}

func TestWaitReadySaysWhatHoldsItUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, local.HostConfig{})
		w.host.OnCall(func(_ context.Context, op string) error {
			if op == "Create" {
				return errors.New("no route to host")
			}
			return nil
		})
		w.start()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err := w.f.WaitReady(ctx, 1)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.ErrorContains(t, err, "0 of 1 endpoints are healthy")
		assert.ErrorContains(t, err, "is Creating: local Create: no route to host")
		require.NoError(t, w.f.Close(t.Context(), fleet.Keep))
		assert.ErrorIs(t, w.f.WaitReady(t.Context(), 1), fleet.ErrClosed)
	})
}

func TestRequestAndEndpointHooksSeeTheUID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, local.HostConfig{})
		w.cfg.Request = func(uid string) (provider.CreateRequest, error) {
			return provider.CreateRequest{
				Placement: provider.Placement{Zone: "local"},
				Metadata:  map[string]string{"short": strings.ToLower(uid[:4])},
			}, nil
		}
		w.cfg.Endpoint = func(uid string, in provider.Instance) (endpoint.Endpoint, error) {
			assert.Equal(t, strings.ToLower(uid[:4]), in.Metadata["short"])
			return w.p.Endpoint(uid, in)
		}
		w.start()
		w.ready(2)
		assert.Equal(t, "local", w.f.Status()[0].Placement.Zone)
	})
}

// Random deaths over a day of the fleet's time.
func TestADayOfDeaths(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 10, local.HostConfig{BootDelay: 30 * time.Second, DeleteDelay: 5 * time.Second})
		w.start()
		w.ready(10)
		faults := []local.Fault{local.Stop, local.Crash, local.Vanish}
		for i := range 24 * 12 {
			time.Sleep(5 * time.Minute)
			all := w.instances()
			require.LessOrEqual(t, len(all), 12)
			require.GreaterOrEqual(t, w.healthy(), 9)
			_ = w.host.Inject(all[i%len(all)].ID, faults[i%3])
		}
		require.NoError(t, w.f.Close(t.Context(), fleet.Destroy))
		assert.Empty(t, w.instances())
	})
}

func TestDerivePassword(t *testing.T) {
	key := []byte("0123456789abcdef")
	a, err := fleet.DerivePassword(key, "a")
	require.NoError(t, err)
	assert.Equal(t, "29Ilv8iGVt1KBvadnbHhMIHKsOB--YCC", a)
	again, _ := fleet.DerivePassword(key, "a")
	assert.Equal(t, a, again)
	b, _ := fleet.DerivePassword(key, "b")
	assert.NotEqual(t, a, b)
	_, err = fleet.DerivePassword(key[:15], "a")
	assert.ErrorContains(t, err, "less than 16 bytes")
}

// An endpoint that was given another ID stayed in the inventory for ever.
func TestAnEndpointWithAnotherIDReplacesItsFormer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, local.HostConfig{})
		var n atomic.Int64
		w.cfg.Endpoint = func(uid string, in provider.Instance) (endpoint.Endpoint, error) {
			e, err := w.p.Endpoint(uid, in)
			e.ID = fmt.Sprint("ip-", n.Add(1))
			return e, err
		}
		w.start()
		w.ready(1)
		time.Sleep(10 * time.Minute)
		list, err := w.store.List(t.Context())
		require.NoError(t, err)
		assert.Len(t, list, 1)
		require.NoError(t, w.f.Close(t.Context(), fleet.Destroy))
		list, err = w.store.List(t.Context())
		require.NoError(t, err)
		assert.Empty(t, list)
	})
}

// partial is a provider one of whose hosts does not answer.
type partial struct {
	provider.Provider
	mu     sync.Mutex
	hidden int // the first so many of those that there are at first
	gone   map[string]bool
}

func (p *partial) hide(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hidden, p.gone = n, nil
}

func (p *partial) ListByTag(ctx context.Context, tag string) ([]provider.Instance, error) {
	all, err := p.Provider.ListByTag(ctx, tag)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil || p.hidden == 0 {
		return all, err
	}
	if p.gone == nil {
		p.gone = map[string]bool{}
		for _, in := range all[:p.hidden] {
			p.gone[in.UID] = true
		}
	}
	all = slices.DeleteFunc(all, func(in provider.Instance) bool { return p.gone[in.UID] })
	return all, &provider.PartialError{Missing: []provider.Missing{{Scope: "rack-2", Err: errors.New("no route")}}}
}

func TestWhatAHostHoldsThatNeverAnsweredCannotBeExceeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3, local.HostConfig{})
		w.cfg.MaxSize = 3
		w.start()
		w.ready(3)
		require.NoError(t, w.f.Close(t.Context(), fleet.Keep))
		p := &partial{Provider: w.p, hidden: 2}
		w.cfg.Provider = p
		w.start()
		time.Sleep(time.Hour)
		assert.Len(t, w.instances(), 3, "nothing is made before a whole list")
		assert.Equal(t, 1, w.healthy(), "what is seen serves")
		require.NoError(t, w.f.Close(t.Context(), fleet.Keep))

		w.cfg.AdoptTimeout = time.Minute
		w.start()
		time.Sleep(time.Hour)
		assert.Greater(t, len(w.instances()), 3, "the caller wants it so")
	})
}

// An agent that is out is no reason to replace a proxy that answers.
func TestTheBootTimeoutNeverRunsForAHealthyProxy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, local.HostConfig{})
		w.start()
		w.ready(1)
		w.host.OnCall(func(_ context.Context, op string) error {
			if op == "Get" {
				return errors.New("no route to host")
			}
			return nil
		})
		time.Sleep(time.Hour)
		assert.Zero(t, w.count(fleet.Replacing))
		w.setBad("*", true)
		time.Sleep(time.Hour)
		assert.Positive(t, w.count(fleet.Replacing))
	})
}

// stale is a provider whose lists take long, and tell what was at their beginning.
type stale struct{ provider.Provider }

func (p stale) ListByTag(ctx context.Context, tag string) ([]provider.Instance, error) {
	all, err := p.Provider.ListByTag(ctx, tag)
	time.Sleep(20 * time.Second)
	return all, err
}

// What ended while a list was made is in the list, and must not be taken for
// another's.
func TestAListThatIsOlderThanAnEndBringsNothingBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, local.HostConfig{})
		w.cfg.Provider = stale{w.p}
		w.cfg.PollInterval = 100 * time.Millisecond
		w.start()
		w.ready(2)
		for range 30 {
			require.NoError(t, w.host.Inject(w.instances()[0].ID, local.Crash))
			time.Sleep(7 * time.Second)
		}
		assert.Zero(t, w.count(fleet.Adopted))
		assert.Equal(t, 2, w.healthy())
	})
}

// lateStore holds up the verdicts that it is told, while it is to.
type lateStore struct {
	lease.Inventory
	holding atomic.Bool
	held    chan endpoint.Verdict
	letGo   chan struct{}
}

func (s *lateStore) SetVerdict(ctx context.Context, id string, v endpoint.Verdict) error {
	if s.holding.Load() {
		s.held <- v
		<-s.letGo
	}
	return s.Inventory.SetVerdict(ctx, id, v)
}

// The verdict on a former generation that arrives late is not the new one's.
func TestALateVerdictIsNotThatOfTheNextGeneration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, local.HostConfig{})
		store := &lateStore{Inventory: w.store, held: make(chan endpoint.Verdict), letGo: make(chan struct{})}
		store.holding.Store(true)
		w.cfg.Inventory = store
		var moved atomic.Bool
		w.cfg.Endpoint = func(uid string, in provider.Instance) (endpoint.Endpoint, error) {
			e, err := w.p.Endpoint(uid, in)
			if err == nil && moved.Load() {
				e.URL, err = endpoint.NewURL("http", "192.0.2.99:3128", "", "")
			}
			return e, err
		}
		w.start()
		former := <-store.held // Healthy, and on its way
		require.Equal(t, endpoint.Healthy, former.Health)
		store.holding.Store(false)

		w.setBad("*", true)
		moved.Store(true)
		time.Sleep(5 * time.Minute) // the hook is asked anew
		judged := w.f.Status()[0].Verdict
		close(store.letGo)
		require.Equal(t, endpoint.Unhealthy, judged.Health)
		require.NotEqual(t, former.Generation, judged.Generation)
		synctest.Wait()
		assert.Equal(t, judged, w.f.Status()[0].Verdict)
		assert.Equal(t, 1, w.count(fleet.Verdict), "nobody is told of what is no more")
	})
}

// Another fleet may be handing over: what it has just made is not taken from it.
func TestAnOrphanEndsOnlyWhenItIsOldEnough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, local.HostConfig{})
		w.start()
		w.ready(1)
		_, err := w.p.Create(t.Context(), provider.CreateRequest{UID: "late-one", Tag: "test"})
		require.NoError(t, err)
		other, err := w.p.Create(t.Context(), provider.CreateRequest{UID: "of-another-tag", Tag: "other"})
		require.NoError(t, err)
		time.Sleep(4*time.Minute + 50*time.Second)
		assert.Len(t, w.instances(), 2, "adopted and young")
		assert.Equal(t, 1, w.count(fleet.Adopted))
		time.Sleep(2 * time.Minute)
		assert.Len(t, w.instances(), 1)
		_, err = w.p.Get(t.Context(), other)
		assert.NoError(t, err, "of another tag")
	})
}

// An inventory that cannot tell what is leased still keeps what is: the first look
// comes before the end.
func TestAnOrphanIsLookedAtBeforeItEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, local.HostConfig{})
		w.cfg.Inventory = struct{ lease.Inventory }{w.store}
		w.start()
		w.ready(1)
		l, err := w.store.TryAcquire(t.Context(), lease.Request{Holder: "test", TTL: time.Hour})
		require.NoError(t, err)
		time.Sleep(10 * time.Minute)
		require.NoError(t, w.f.Close(t.Context(), fleet.Keep))
		w.cfg.Size = 0
		w.start()
		time.Sleep(10 * time.Minute)
		require.NoError(t, l.Err())
		require.Len(t, w.instances(), 1)
		require.NoError(t, l.Release(t.Context()))
		time.Sleep(time.Minute)
		assert.Empty(t, w.instances())
	})
}

// The timeout counts from when the instance could not be seen any more, not from
// when it began to run.
func TestTheBootTimeoutCountsFromEnteringTheState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, local.HostConfig{})
		w.cfg.UnhealthyTimeout = 10 * time.Hour
		w.start()
		w.ready(1)
		w.setBad("*", true)
		time.Sleep(time.Hour)
		w.host.OnCall(func(_ context.Context, op string) error {
			if op == "Get" {
				return errors.New("no route to host")
			}
			return nil
		})
		time.Sleep(14 * time.Minute)
		assert.Zero(t, w.count(fleet.Replacing))
		assert.Equal(t, provider.StateUnknown, w.f.Status()[0].State)
		assert.Contains(t, w.f.Status()[0].Reason, "no answer")
		time.Sleep(3 * time.Minute)
		assert.Equal(t, 1, w.count(fleet.Replacing))
	})
}

// A host that does not answer loses nothing, and nothing is made elsewhere instead.
func TestAScopeThatDoesNotAnswerLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3, local.HostConfig{})
		p := &partial{Provider: w.p}
		w.cfg.Provider = p
		w.start()
		w.ready(3)
		before := w.instances()
		p.hide(3)
		w.host.OnCall(func(_ context.Context, op string) error {
			if op == "Get" || op == "Delete" {
				return errors.New("no route to host")
			}
			return nil
		})
		time.Sleep(2 * time.Hour)
		assert.Equal(t, 3, w.count(fleet.Creating))
		w.host.OnCall(nil)
		p.hide(0)
		time.Sleep(10 * time.Minute)
		assert.Equal(t, before, w.instances())
		assert.Zero(t, w.count(fleet.Replacing))
		assert.Zero(t, w.count(fleet.Adopted))
	})
}
