package serving_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/examples/operator/internal/serving"
	"github.com/egressfleet/egress/health"
	"github.com/egressfleet/egress/lease"
)

// slow is an inventory that takes its time over good news.
type slow struct {
	lease.Inventory
	by atomic.Int64
}

func (s *slow) SetVerdict(ctx context.Context, id string, v endpoint.Verdict) error {
	if v.Health == endpoint.Healthy {
		time.Sleep(time.Duration(s.by.Load()))
	}
	return s.Inventory.SetVerdict(ctx, id, v)
}

// rig is a Serving whose probes a test decides.
type rig struct {
	*serving.Serving
	store *lease.Memory
	slow  *slow
	fails atomic.Bool
	late  atomic.Int64 // how long a probe takes
}

func newRig(t *testing.T, amend ...func(*serving.Config)) *rig {
	r := &rig{}
	var err error
	r.store, err = lease.NewMemory(lease.MemoryConfig{})
	require.NoError(t, err)
	r.slow = &slow{Inventory: r.store}
	cfg := serving.Config{Inventory: r.slow, Health: health.EngineConfig{Probe: r.probe, InitialJitter: -1}}
	for _, f := range amend {
		f(&cfg)
	}
	r.Serving, err = serving.New(cfg)
	require.NoError(t, err)
	return r
}

func (r *rig) close() {
	r.Close()
	r.store.Close()
}

func (r *rig) probe(ctx context.Context, e endpoint.Endpoint) health.Result {
	select {
	case <-time.After(time.Duration(r.late.Load())):
	case <-ctx.Done():
	}
	result := health.Result{EndpointID: e.ID, Generation: e.Generation, Started: time.Now()}
	if r.fails.Load() {
		result.Err = &endpoint.Error{Stage: endpoint.StageDial, Proxy: e.URL, Err: errors.New("refused")}
	}
	return result
}

func proxy(t *testing.T, generation uint64) endpoint.Endpoint {
	url, err := endpoint.NewURL("http", "192.0.2.7:3128", "", "")
	require.NoError(t, err)
	return endpoint.Endpoint{ID: serving.ID(types.NamespacedName{Namespace: "crawl", Name: "one"}), URL: url, Generation: generation}
}

func (r *rig) leasable(t *testing.T) bool {
	l, err := r.store.TryAcquire(t.Context(), lease.Request{Holder: "test"})
	if err == nil {
		_ = l.Release(t.Context())
	}
	return err == nil
}

func TestVerdictsReachLeasesAndTheController(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		defer r.close()
		r.late.Store(int64(time.Second))
		require.NoError(t, r.Put(t.Context(), proxy(t, 1)))
		assert.False(t, r.leasable(t), "it was not probed yet")
		change := <-r.Changes()
		assert.Equal(t, "crawl/one", change.Object.GetNamespace()+"/"+change.Object.GetName())
		assert.Equal(t, endpoint.Healthy, r.Verdict("crawl/one", 1).Health)
		assert.Equal(t, endpoint.Unknown, r.Verdict("crawl/one", 2).Health, "of another machine nothing is known")
		assert.True(t, r.leasable(t))

		r.fails.Store(true)
		<-r.Changes()
		assert.False(t, r.leasable(t))
		require.NoError(t, r.Remove(t.Context(), "crawl/one"))
		held, err := r.Drain(t.Context(), "crawl/one")
		assert.NoError(t, err, "what is gone is drained")
		assert.Zero(t, held)
	})
}

// A probe of a former machine that ends after its successor was put in says nothing of
// it.
func TestLateProbeOfAnEarlierMachineIsDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		defer r.close()
		r.late.Store(int64(3 * time.Second))
		require.NoError(t, r.Put(t.Context(), proxy(t, 1)))
		time.Sleep(2 * time.Second)
		r.fails.Store(true)
		require.NoError(t, r.Put(t.Context(), proxy(t, 2)))
		time.Sleep(2 * time.Second)
		assert.Equal(t, endpoint.Unknown, r.Verdict("crawl/one", 2).Health)
		assert.False(t, r.leasable(t))
	})
}

// Good news that a look brings while the proxy fails does not overtake the bad news.
func TestAnOldVerdictOvertakesNoNewOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		defer r.close()
		require.NoError(t, r.Put(t.Context(), proxy(t, 1)))
		<-r.Changes()
		r.slow.by.Store(int64(5 * time.Minute))
		put := make(chan error, 1)
		go func() { put <- r.Put(t.Context(), proxy(t, 1)) }()
		synctest.Wait()
		r.fails.Store(true)
		require.NoError(t, <-put)
		<-r.Changes()
		assert.Equal(t, endpoint.Unhealthy, r.Verdict("crawl/one", 1).Health)
		assert.False(t, r.leasable(t))
	})
}

// A new leader leases nothing while leases that it does not know may be in use.
func TestWithhold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		defer r.close()
		go r.Withhold(t.Context(), time.Minute)
		synctest.Wait()
		require.NoError(t, r.Put(t.Context(), proxy(t, 1)))
		<-r.Changes()
		assert.Equal(t, endpoint.Healthy, r.Verdict("crawl/one", 1).Health, "the controller is told")
		time.Sleep(59 * time.Second)
		require.NoError(t, r.Put(t.Context(), proxy(t, 1)))
		assert.False(t, r.leasable(t))
		time.Sleep(2 * time.Second)
		synctest.Wait()
		assert.True(t, r.leasable(t))
	})
}

// What begins withheld is not leased before it is said how long that lasts, however long
// it takes to find out.
func TestBeginsWithheld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(c *serving.Config) { c.Withheld = true })
		defer r.close()
		require.NoError(t, r.Put(t.Context(), proxy(t, 1)))
		<-r.Changes()
		time.Sleep(time.Hour)
		assert.False(t, r.leasable(t))
		r.Withhold(t.Context(), 0)
		assert.True(t, r.leasable(t))
	})
}

// What an inventory has lost is put in again at the next look.
func TestPutConfirms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		defer r.close()
		require.NoError(t, r.Put(t.Context(), proxy(t, 1)))
		<-r.Changes()
		require.NoError(t, r.store.Remove(t.Context(), "crawl/one"))
		assert.False(t, r.leasable(t))
		require.NoError(t, r.Put(t.Context(), proxy(t, 1)))
		assert.True(t, r.leasable(t), "with the verdict that stands")
	})
}
