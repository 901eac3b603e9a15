package fleet_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/fleet"
	"github.com/egressfleet/egress/health"
	"github.com/egressfleet/egress/lease"
	"github.com/egressfleet/egress/provider"
	"github.com/egressfleet/egress/provider/local"
)

// restart ends the fleet without a word to the store, which outlives it, as a database
// does, and starts another one after meanwhile.
func (w *world) restart(meanwhile func()) {
	w.t.Helper()
	require.NoError(w.t, w.f.Close(w.t.Context(), fleet.Keep))
	meanwhile()
	w.start()
}

func (w *world) endpoints() map[string]lease.Status {
	w.t.Helper()
	list, err := w.store.List(w.t.Context())
	require.NoError(w.t, err)
	all := map[string]lease.Status{}
	for _, s := range list {
		all[s.Endpoint.ID] = s
	}
	return all
}

// A proxy was lent to a second holder after a restart, as if it were another one.
func TestARestartKeepsTheLeasesOfAStoreThatOutlivesIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, local.HostConfig{})
		w.start()
		w.ready(1)
		held, err := w.store.TryAcquire(t.Context(), lease.Request{Holder: "first", TTL: time.Hour})
		require.NoError(t, err)
		w.restart(func() { time.Sleep(time.Second) })
		w.ready(1)
		_, err = w.store.TryAcquire(t.Context(), lease.Request{Holder: "second"})
		require.ErrorIs(t, err, lease.ErrNoneFree)
		require.NoError(t, held.Renew(t.Context(), time.Hour))
		require.NoError(t, held.Release(t.Context()))
		_, err = w.store.TryAcquire(t.Context(), lease.Request{Holder: "second"})
		assert.NoError(t, err)
	})
}

// What a former process found out is no proof.
func TestARestartLeasesNothingBeforeItHasProbed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, local.HostConfig{})
		w.start()
		w.ready(1)
		w.restart(func() {
			w.cfg.Health.Probe = func(ctx context.Context, e endpoint.Endpoint) health.Result {
				time.Sleep(5 * time.Second)
				return w.probe(ctx, e)
			}
		})
		time.Sleep(3 * time.Second)
		_, err := w.store.TryAcquire(t.Context(), lease.Request{Holder: "test"})
		assert.ErrorIs(t, err, lease.ErrNoneFree)
		w.ready(1)
		_, err = w.store.TryAcquire(t.Context(), lease.Request{Holder: "test"})
		assert.NoError(t, err)
	})
}

// The endpoint of a machine that had ended while no fleet ran was lent for ever.
func TestARestartTakesOutWhatStandsForMachinesThatAreGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3, local.HostConfig{})
		w.start()
		w.ready(3)
		url, err := endpoint.NewURL("http", "192.0.2.7:3128", "", "")
		require.NoError(t, err)
		require.NoError(t, w.store.Put(t.Context(), endpoint.Endpoint{ID: "mine", URL: url}))
		require.NoError(t, w.store.Put(t.Context(), endpoint.Endpoint{ID: "of-another-fleet", URL: url, Attributes: map[string]string{"tag": "other"}}))
		before := w.instances()
		w.restart(func() {
			require.NoError(t, w.host.Inject(before[0].ID, local.Vanish))
			require.NoError(t, w.host.Inject(before[1].ID, local.Stop))
		})
		time.Sleep(5 * time.Minute)
		after := w.endpoints()
		assert.NotContains(t, after, before[0].Name)
		assert.NotContains(t, after, before[1].Name)
		for _, id := range []string{before[2].Name, "mine", "of-another-fleet"} {
			assert.Contains(t, after, id)
		}
		assert.Len(t, after, 5)
		assert.Equal(t, "test", after[before[2].Name].Endpoint.Attributes["tag"])
	})
}

// unwilling is a provider whose calls fail as tests say.
type unwilling struct {
	provider.Provider
	list, get func() error
}

func (u unwilling) ListByTag(ctx context.Context, tag string) ([]provider.Instance, error) {
	all, err := u.Provider.ListByTag(ctx, tag)
	if err := u.list(); err != nil {
		return nil, err
	}
	return all, err
}

func (u unwilling) Get(ctx context.Context, id string) (provider.Instance, error) {
	if err := u.get(); err != nil {
		return provider.Instance{}, err
	}
	return u.Provider.Get(ctx, id)
}

// While it is not known which machines there are, their endpoints stay.
func TestARestartTakesNothingOutBeforeAllIsKnown(t *testing.T) {
	for name, make := range map[string]func(*error) (list, get func() error){
		"a list that is not whole": func(err *error) (list, get func() error) {
			return func() error {
				if *err != nil {
					return &provider.PartialError{Missing: []provider.Missing{{Scope: "kvm2", Err: *err}}}
				}
				return nil
			}, func() error { return nil }
		},
		"calls that fail": func(err *error) (list, get func() error) {
			return func() error { return nil }, func() error { return *err }
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 2, local.HostConfig{})
				w.start()
				w.ready(2)
				held, err := w.store.TryAcquire(t.Context(), lease.Request{Holder: "test", TTL: 24 * time.Hour})
				require.NoError(t, err)
				failing := error(&provider.Error{Class: provider.ErrTransient, Err: errors.New("no answer")})
				list, get := make(&failing)
				w.restart(func() {
					w.cfg.Provider, w.cfg.AdoptTimeout, w.cfg.BootTimeout = unwilling{w.p, list, get}, time.Minute, 24*time.Hour
					if name == "a list that is not whole" {
						w.cfg.Size = 0 // nothing is made for what is not seen
					}
				})
				time.Sleep(50 * time.Minute)
				assert.Len(t, w.endpoints(), 2)
				assert.NoError(t, held.Err())
			})
		})
	}
}

// One that a former process was draining was never leased again by the next, which had
// no reason to end it.
func TestARestartLeasesAgainWhatWasDraining(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, local.HostConfig{})
		w.start()
		w.ready(1)
		held, err := w.store.TryAcquire(t.Context(), lease.Request{Holder: "first", TTL: time.Hour})
		require.NoError(t, err)
		w.restart(func() {
			_, err := w.store.Drain(t.Context(), w.instances()[0].Name)
			require.NoError(t, err)
		})
		time.Sleep(10 * time.Minute)
		assert.NoError(t, held.Err(), "its holder keeps it")
		require.NoError(t, held.Release(t.Context()))
		time.Sleep(time.Minute)
		_, err = w.store.TryAcquire(t.Context(), lease.Request{Holder: "second"})
		assert.NoError(t, err)
		assert.Len(t, w.instances(), 1)
	})
}

// slowPut takes its time for one endpoint.
type slowPut struct {
	*lease.Memory
	id string
}

func (s slowPut) Put(ctx context.Context, e endpoint.Endpoint) error {
	if e.ID == s.id {
		time.Sleep(10 * time.Second)
	}
	return s.Memory.Put(ctx, e)
}

// One that was on its way into the store when the store was looked at stayed withheld.
func TestARestartLeasesAgainWhatItIsJustPuttingIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, local.HostConfig{})
		w.start()
		w.ready(2)
		name := w.instances()[0].Name
		w.restart(func() {
			_, err := w.store.Drain(t.Context(), name)
			require.NoError(t, err)
			w.cfg.Inventory = slowPut{w.store, name}
		})
		time.Sleep(5 * time.Minute)
		assert.False(t, w.endpoints()[name].Draining)
	})
}

// slowStore takes its time for a list.
type slowStore struct{ *lease.Memory }

func (s slowStore) List(ctx context.Context) ([]lease.Status, error) {
	select {
	case <-time.After(10 * time.Second):
		return s.Memory.List(ctx)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Destroy left what a former process had put there.
func TestDestroyEmptiesTheStoreOfItsTag(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, local.HostConfig{})
		w.start()
		w.ready(2)
		before := w.instances()
		w.restart(func() {
			require.NoError(t, w.host.Inject(before[0].ID, local.Vanish))
			w.cfg.Inventory = slowStore{w.store}
		})
		require.NoError(t, w.f.Close(t.Context(), fleet.Destroy))
		assert.Empty(t, w.endpoints())
		assert.Empty(t, w.instances())
	})
}
