package fleet_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/fleet"
	"github.com/egressfleet/egress/provider"
	"github.com/egressfleet/egress/provider/local"
)

// talking is a provider that hears of changes and has consoles.
type talking struct {
	provider.Provider
	mu      sync.Mutex
	told    func(id string)
	console string
	gets    int
}

func (p *talking) Watch(ctx context.Context, _ string, changed func(string)) error {
	p.mu.Lock()
	p.told = changed
	p.mu.Unlock()
	<-ctx.Done()
	return ctx.Err()
}

func (p *talking) ReadConsole(context.Context, string, int) ([]byte, error) {
	return []byte(p.console), nil
}

func (p *talking) Get(ctx context.Context, id string) (provider.Instance, error) {
	p.mu.Lock()
	p.gets++
	p.mu.Unlock()
	return p.Provider.Get(ctx, id)
}

func (p *talking) tell(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.told(id)
}

func (p *talking) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.gets
}

// A death that the provider hears of does not wait for the next poll.
func TestAHintLeadsToALook(t *testing.T) {
	for _, all := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, 2, local.HostConfig{})
			p := &talking{Provider: w.p}
			w.cfg.Provider, w.cfg.PollInterval = p, 10*time.Minute
			w.cfg.Health.Interval = time.Hour
			w.start()
			w.ready(2)
			time.Sleep(2 * time.Minute)
			dead := w.f.Status()[0]
			require.NoError(t, w.host.Inject(dead.ID, local.Stop))
			time.Sleep(time.Minute)
			assert.Equal(t, dead.ID, w.f.Status()[0].ID, "nobody has heard of it")
			before := p.count()
			if all {
				p.tell("")
			} else {
				p.tell("hosts/elsewhere/proxies/unknown")
				p.tell(dead.ID)
			}
			synctest.Wait()
			time.Sleep(time.Minute)
			for _, s := range w.f.Status() {
				if s.ID == dead.ID {
					assert.NotEqual(t, fleet.PhaseServing, s.Phase)
				}
			}
			want := 1
			if all {
				want = 2
			}
			assert.GreaterOrEqual(t, p.count()-before, want)
		})
	}
}

// What a console said last is a part of the reason for a replacement.
func TestTheReasonQuotesTheConsole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, local.HostConfig{BootDelay: 24 * time.Hour})
		w.cfg.Provider = &talking{Provider: w.p, console: "GRUB loading\r\n\x1b[2J\x1b[01;31merror: no such\x00 device\x1b[0m.\r\n\x1b[0m\r\n   \r\n"}
		w.start()
		time.Sleep(provider.BootTimeout + time.Minute)
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, e := range w.events {
			if e.Type == fleet.Replacing {
				assert.True(t, strings.HasSuffix(e.Reason, `its console ends with "error: no such device."`), e.Reason)
				return
			}
		}
		t.Fatal("nothing was replaced")
	})
}

// refusing is a provider that accepts and then refuses.
type refusing struct {
	*zones
	mu       sync.Mutex
	accepted map[string]string // zone by ID
	cause    error
}

func (r *refusing) Create(ctx context.Context, req provider.CreateRequest) (string, error) {
	zone := req.Placement.Zone
	id, err := r.zones.Create(ctx, req)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.accepted[id] = zone
	return id, err
}

func (r *refusing) Get(ctx context.Context, id string) (provider.Instance, error) {
	if r.refused(id) {
		return provider.Instance{}, &provider.Error{Class: provider.ErrNotFound, ID: id, Err: errors.New("no such instance")}
	}
	return r.zones.Get(ctx, id)
}

func (r *refusing) refused(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.accepted[id] == "a"
}

func (r *refusing) ListByTag(ctx context.Context, tag string) (kept []provider.Instance, err error) {
	all, err := r.zones.ListByTag(ctx, tag)
	for _, in := range all {
		if !r.refused(in.ID) {
			kept = append(kept, in)
		}
	}
	return kept, err
}

func (r *refusing) Place(ctx context.Context, req provider.PlaceRequest) (provider.Placement, error) {
	return choosing{r.zones}.Place(ctx, req)
}

func (r *refusing) Explain(_ context.Context, id string) (cause, err error) {
	if r.refused(id) {
		return r.cause, nil
	}
	return nil, nil
}

// A backend that accepts and then has no room is not asked again at full speed:
// the place is left alone, and another one is taken.
func TestARefusalAfterAcceptanceIsAShortage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, local.HostConfig{})
		r := &refusing{zones: newZones(w), accepted: map[string]string{}, cause: &provider.Error{
			Class: provider.ErrQuotaExceeded, Code: "ZONE_RESOURCE_POOL_EXHAUSTED", Err: errors.New("no room in zone a"),
		}}
		w.cfg.Provider, w.cfg.Endpoint = r, w.p.Endpoint
		w.start()
		w.ready(2)
		assert.LessOrEqual(t, r.count("a"), 2, "the members that were under way at the time")
		assert.GreaterOrEqual(t, r.count("b"), 2)
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, e := range w.events {
			if e.Type == fleet.Replacing {
				assert.Contains(t, e.Reason, "refused after it had been accepted")
				assert.Contains(t, e.Reason, "ZONE_RESOURCE_POOL_EXHAUSTED")
				return
			}
		}
		require.Fail(t, "nothing was replaced")
	})
}

// unseen is a provider that accepts instances and shows them a minute later.
type unseen struct {
	*local.Provider
	mu       sync.Mutex
	accepted map[string]time.Time
}

func (u *unseen) Create(ctx context.Context, req provider.CreateRequest) (string, error) {
	id, err := u.Provider.Create(ctx, req)
	u.mu.Lock()
	defer u.mu.Unlock()
	u.accepted[id] = time.Now()
	return id, err
}

func (u *unseen) hides(id string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return time.Since(u.accepted[id]) < time.Minute
}

func (u *unseen) Get(ctx context.Context, id string) (provider.Instance, error) {
	if u.hides(id) {
		return provider.Instance{}, &provider.Error{Class: provider.ErrNotFound, ID: id, Err: errors.New("no such instance")}
	}
	return u.Provider.Get(ctx, id)
}

func (u *unseen) ListByTag(ctx context.Context, tag string) ([]provider.Instance, error) {
	all, err := u.Provider.ListByTag(ctx, tag)
	return slices.DeleteFunc(all, func(in provider.Instance) bool { return u.hides(in.ID) }), err
}

func (u *unseen) Explain(_ context.Context, id string) (cause, err error) {
	if u.hides(id) {
		return &provider.Error{Class: provider.ErrTransient, Code: provider.CodeInFlight, RetryAfter: 20 * time.Second, Err: errors.New("it is still being made")}, nil
	}
	return nil, nil
}

// What is still being made was taken for refused, and made again and again.
func TestAnInstanceThatIsStillBeingMadeIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, local.HostConfig{})
		u := &unseen{Provider: w.p, accepted: map[string]time.Time{}}
		w.cfg.Provider = u
		w.start()
		w.ready(2)
		u.mu.Lock()
		defer u.mu.Unlock()
		assert.Len(t, u.accepted, 2)
	})
}
