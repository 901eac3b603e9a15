package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/egressfleet/egress/examples/operator/api/v1alpha1"
	"github.com/egressfleet/egress/examples/operator/internal/apitest"
	"github.com/egressfleet/egress/provider"
	"github.com/egressfleet/egress/provider/local"
)

// sweepRig is a host with machines, and owners that tests choose.
type sweepRig struct {
	*Orphans
	t      *testing.T
	host   *local.Host
	dev    *local.Provider
	clock  time.Time
	owners []client.Object
	list   func() error // runs before every list of owners
}

func newSweepRig(t *testing.T) *sweepRig {
	host, err := local.NewHost(local.HostConfig{})
	require.NoError(t, err)
	t.Cleanup(host.Close)
	dev, err := local.New(local.Config{Host: host})
	require.NoError(t, err)
	r := &sweepRig{t: t, host: host, dev: dev, clock: time.Now()}
	r.Orphans = &Orphans{
		Providers: &fakeFile{known: map[string]provider.Provider{"dev": dev}},
		Tag:       rigTag, now: func() time.Time { return r.clock },
	}
	return r
}

// machine makes one with that UID.
func (r *sweepRig) machine(uid, tag string) string {
	r.t.Helper()
	id, err := r.dev.Create(r.t.Context(), provider.CreateRequest{UID: uid, Tag: tag})
	require.NoError(r.t, err)
	return id
}

// owner is a Proxy whose record names the machine of that incarnation; none for zero.
func (r *sweepRig) owner(uid string, count, machine int64) {
	px := &v1alpha1.Proxy{}
	px.Namespace, px.Name, px.UID = "crawl", uid, types.UID(uid)
	px.Status.Incarnation = count
	if machine > 0 {
		px.Status.Machine = &v1alpha1.Machine{UID: fmt.Sprintf("%s-%d", uid, machine)}
	}
	r.owners = append(r.owners, px)
}

// pass sweeps once, a while after the last time.
func (r *sweepRig) pass() error {
	r.clock = r.clock.Add(time.Hour)
	c := fake.NewClientBuilder().WithScheme(apitest.Scheme()).WithObjects(r.owners...).
		WithInterceptorFuncs(interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, l client.ObjectList, opts ...client.ListOption) error {
			if r.list != nil {
				if err := r.list(); err != nil {
					return err
				}
			}
			return c.List(ctx, l, opts...)
		}}).Build()
	r.Live = c
	return r.Sweep(r.t.Context())
}

func (r *sweepRig) left() (n int) {
	list, err := r.dev.ListByTag(r.t.Context(), rigTag)
	require.NoError(r.t, err)
	return len(list)
}

// owned fills the rig with machines that have owners, so that one without is an
// exception.
func (r *sweepRig) owned(n int) {
	for i := range n {
		uid := fmt.Sprintf("owner-%d", i)
		r.owner(uid, 1, 1)
		r.machine(uid+"-1", rigTag)
	}
}

func TestSweepTakesTwoSightings(t *testing.T) {
	r := newSweepRig(t)
	r.owned(3)
	r.machine("nobody-1", rigTag)
	require.NoError(t, r.pass())
	assert.Equal(t, 4, r.left(), "seen once")
	require.NoError(t, r.pass())
	assert.Equal(t, 3, r.left(), "seen twice")
}

func TestSweepLeavesAlone(t *testing.T) {
	for name, given := range map[string]func(*sweepRig){
		"a machine of another installation": func(r *sweepRig) { r.machine("nobody-1", "another") },
		"one that a record names":           func(r *sweepRig) { r.owner("x", 7, 7); r.machine("x-7", rigTag) },
		"one whose record is about to be written": func(r *sweepRig) {
			r.owner("x", 0, 0)
			r.machine("x-1", rigTag)
		},
		"a young one": func(r *sweepRig) { r.Grace = 1000 * time.Hour; r.machine("nobody-1", rigTag) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newSweepRig(t)
			r.owned(3)
			given(r)
			before := r.left()
			for range 3 {
				require.NoError(t, r.pass())
			}
			assert.Equal(t, before, r.left())
		})
	}
}

func TestSweepTakesAFormerMachineOfALivingProxy(t *testing.T) {
	r := newSweepRig(t)
	r.owned(3)
	r.owner("x", 2, 2)
	r.machine("x-2", rigTag)
	r.machine("x-1", rigTag) // a Create that landed after its record was given up
	require.NoError(t, r.pass())
	require.NoError(t, r.pass())
	assert.Equal(t, 4, r.left())
}

// A list of owners that fails, is empty or shows few of them deletes nothing.
func TestSweepDoubtsTheList(t *testing.T) {
	t.Run("failing", func(t *testing.T) {
		r := newSweepRig(t)
		r.owned(3)
		r.machine("nobody-1", rigTag)
		require.NoError(t, r.pass())
		r.list = func() error { return errors.New("the API server is down") }
		require.ErrorContains(t, r.pass(), "the API server is down")
		assert.Equal(t, 4, r.left())
		r.list = nil
		require.NoError(t, r.pass())
		assert.Equal(t, 3, r.left(), "a failed pass is neither for nor against")
	})
	t.Run("empty", func(t *testing.T) {
		r := newSweepRig(t)
		r.machine("nobody-1", rigTag)
		for range 3 {
			require.ErrorContains(t, r.pass(), "--orphan-max-percent")
		}
		assert.Equal(t, 1, r.left())
		r.MaxPercent = 100
		require.NoError(t, r.pass())
		require.NoError(t, r.pass())
		assert.Zero(t, r.left(), "whoever says so is believed")
	})
	t.Run("mostly orphans", func(t *testing.T) {
		r := newSweepRig(t)
		r.owned(6)
		r.owners = r.owners[:2]
		for range 3 {
			require.Error(t, r.pass())
		}
		assert.Equal(t, 6, r.left())
	})
}

func TestSweepIsCapped(t *testing.T) {
	r := newSweepRig(t)
	r.owned(20)
	for i := range 8 {
		r.machine(fmt.Sprintf("nobody%d-1", i), rigTag)
	}
	require.NoError(t, r.pass())
	require.NoError(t, r.pass())
	assert.Equal(t, 23, r.left(), "five in a pass")
	require.NoError(t, r.pass())
	assert.Equal(t, 20, r.left())
}

func TestSweepOfAProviderThatFails(t *testing.T) {
	r := newSweepRig(t)
	r.owned(3)
	r.machine("nobody-1", rigTag)
	require.NoError(t, r.pass())
	r.host.OnCall(func(context.Context, string) error { return errors.New("no route to host") })
	require.ErrorContains(t, r.pass(), `provider "dev"`)
	r.host.OnCall(nil)
	assert.Equal(t, 4, r.left())
	require.NoError(t, r.pass())
	assert.Equal(t, 3, r.left())
}

// partial is a provider one of whose hosts does not answer.
type partial struct{ provider.Provider }

func (p partial) ListByTag(ctx context.Context, tag string) ([]provider.Instance, error) {
	list, err := p.Provider.ListByTag(ctx, tag)
	if err != nil {
		return nil, err
	}
	return list, &provider.PartialError{Missing: []provider.Missing{{Scope: "rack-2", Err: errors.New("no route to host")}}}
}

// What answered is swept, whatever else did not.
func TestSweepOfAListThatIsNotWhole(t *testing.T) {
	r := newSweepRig(t)
	r.Providers = &fakeFile{known: map[string]provider.Provider{"dev": partial{r.dev}}}
	r.owned(3)
	r.machine("nobody-1", rigTag)
	require.NoError(t, r.pass())
	require.NoError(t, r.pass())
	assert.Equal(t, 3, r.left())
}

// The owners in a namespace that is not looked into are not known: what was made for it
// stays.
func TestSweepLeavesOtherNamespaces(t *testing.T) {
	r := newSweepRig(t)
	r.Namespaces = []string{"crawl"}
	r.owned(3)
	for _, ns := range []string{"crawl", "elsewhere"} {
		_, err := r.dev.Create(t.Context(), provider.CreateRequest{
			UID: "nobody-in-" + ns + "-1", Tag: rigTag, Metadata: map[string]string{metadataNamespace: ns}})
		require.NoError(t, err)
	}
	for range 3 {
		require.NoError(t, r.pass())
	}
	list, err := r.dev.ListByTag(t.Context(), rigTag)
	require.NoError(t, err)
	require.Len(t, list, 4)
	assert.True(t, slices.ContainsFunc(list, func(in provider.Instance) bool { return in.UID == "nobody-in-elsewhere-1" }))
}

// Nothing is deleted by a process that another one may have taken over from.
func TestSweepWithoutLeading(t *testing.T) {
	r := newSweepRig(t)
	r.owned(3)
	r.machine("nobody-1", rigTag)
	require.NoError(t, r.pass())
	leads := false
	r.Leads = func() bool { return leads }
	require.ErrorContains(t, r.pass(), "another replica")
	assert.Equal(t, 4, r.left())
	leads = true
	require.NoError(t, r.pass())
	assert.Equal(t, 3, r.left())
}

// paged has a page of owners for each, and more than one for each namespace.
type paged struct {
	client.Reader
	owners []client.Object
}

func (p paged) List(_ context.Context, l client.ObjectList, opts ...client.ListOption) error {
	options := (&client.ListOptions{}).ApplyOptions(opts)
	n, _ := strconv.Atoi(options.Continue)
	list := l.(*v1alpha1.ProxyList)
	list.Items = []v1alpha1.Proxy{*p.owners[n].(*v1alpha1.Proxy)}
	if n+1 < len(p.owners) {
		list.Continue = strconv.Itoa(n + 1)
	}
	return nil
}

// Whoever reads the first page of the owners alone takes the others' machines.
func TestSweepReadsAllPagesOfOwners(t *testing.T) {
	r := newSweepRig(t)
	r.owned(4)
	r.MaxPercent = 100
	r.Live = paged{owners: r.owners}
	for range 3 {
		r.clock = r.clock.Add(time.Hour)
		require.NoError(t, r.Sweep(t.Context()))
	}
	assert.Equal(t, 4, r.left())
}

// careless lists machines of every tag.
type careless struct {
	provider.Provider
	others string
}

func (c careless) ListByTag(ctx context.Context, tag string) ([]provider.Instance, error) {
	mine, err := c.Provider.ListByTag(ctx, tag)
	theirs, otherErr := c.Provider.ListByTag(ctx, c.others)
	return append(mine, theirs...), errors.Join(err, otherErr)
}

func TestSweepLooksAtTheTagItself(t *testing.T) {
	r := newSweepRig(t)
	r.Providers = &fakeFile{known: map[string]provider.Provider{"dev": careless{r.dev, "another"}}}
	r.owned(3)
	r.machine("nobody-1", "another")
	for range 3 {
		require.NoError(t, r.pass())
	}
	list, err := r.dev.ListByTag(t.Context(), "another")
	require.NoError(t, err)
	assert.Len(t, list, 1)
}
