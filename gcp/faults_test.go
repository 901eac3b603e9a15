package gcp_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/api/option"

	"github.com/egressfleet/egress/gcp"
	"github.com/egressfleet/egress/internal/fakecompute"
	"github.com/egressfleet/egress/internal/faultproxy"
	"github.com/egressfleet/egress/provider"
)

// faulty is a provider whose way to the server may be disturbed. All time is fake.
type faulty struct {
	*rig
	proxy *faultproxy.Proxy
}

func newFaulty(t *testing.T) *faulty {
	t.Helper()
	f := &faulty{rig: &rig{}}
	f.server = fakecompute.New(fakecompute.Config{
		Zones: []string{zoneA, zoneB}, PageSize: 2,
		OperationDelay: 2 * time.Second, BootDelay: 5 * time.Second, DeletePending: time.Second, DeleteDelay: 3 * time.Second,
	})
	f.proxy = faultproxy.New(f.server)
	t.Cleanup(f.proxy.Close)
	transport := &http.Transport{DialContext: f.proxy.DialContext}
	t.Cleanup(transport.CloseIdleConnections)
	f.cfg = gcp.Config{
		Project: "test-project", Zones: []string{zoneA, zoneB}, Logger: funcr.New(f.keep, funcr.Options{Verbosity: 5}),
		ClientOptions: []option.ClientOption{option.WithEndpoint("http://compute.test"), option.WithHTTPClient(&http.Client{Transport: transport})},
	}
	f.Provider = f.again(t)
	return f
}

const faultTag = "tag-1" // that of request

// theirs is an instance of another owner, which stays.
func (f *faulty) theirs(t *testing.T) {
	t.Helper()
	req := request("uid-theirs")
	req.Tag = "tag-2"
	_, err := f.Create(t.Context(), req)
	require.NoError(t, err)
}

// disturbed are the operations whose messages are spoiled in turn.
var disturbed = map[string]struct {
	// before is what has happened already.
	before func(*testing.T, *faulty)
	// operate is the operation, and finish what its caller does next, and then sees.
	operate func(*testing.T, *faulty) error
	finish  func(*testing.T, *faulty)
}{
	"Create": {
		before: func(*testing.T, *faulty) {}, operate: createOne, finish: createsOne,
	},
	"Create of what is there": {
		before: makeOne, operate: createOne, finish: createsOne,
	},
	"Create whose answer got lost": {
		before: func(_ *testing.T, f *faulty) {
			f.server.SetBefore(fails("instances.insert", fakecompute.Fault{LoseAnswer: true}))
		},
		operate: createOne,
		finish: func(t *testing.T, f *faulty) {
			f.server.SetBefore(nil)
			createsOne(t, f)
		},
	},
	"Delete": {
		before: makeOne, operate: deleteOne, finish: deletesOne,
	},
	"Delete of what goes already": {
		before:  func(t *testing.T, f *faulty) { makeOne(t, f); require.NoError(t, deleteOne(t, f)) },
		operate: deleteOne, finish: deletesOne,
	},
	"Get": {
		before: makeOne, operate: getOne,
		finish: func(t *testing.T, f *faulty) { require.NoError(t, getOne(t, f)) },
	},
	"ListByTag": {
		before:  makeFive,
		operate: listFive,
		finish:  func(t *testing.T, f *faulty) { require.NoError(t, listFive(t, f)) },
	},
}

var oneID = "zones/" + zoneA + "/instances/" + provider.Name("uid-1")

func createOne(t *testing.T, f *faulty) error {
	t.Helper()
	id, err := f.Create(t.Context(), request("uid-1"))
	assert.Equal(t, oneID, id, "the place is known, whatever happens")
	return err
}

func makeOne(t *testing.T, f *faulty) { t.Helper(); require.NoError(t, createOne(t, f)) }

// createsOne repeats Create, which has to finish at once and to have made no second
// one, and removes what there is.
func createsOne(t *testing.T, f *faulty) {
	t.Helper()
	require.NoError(t, createOne(t, f))
	time.Sleep(time.Minute) // what is under way lands
	require.NoError(t, createOne(t, f))
	assert.Equal(t, []string{zoneA + "/" + provider.Name("uid-1")}, without(f.server.Names(), provider.Name("uid-theirs")))
	body, _ := f.server.Body(zoneA, provider.Name("uid-1"))
	for _, disk := range body["disks"].([]any) {
		assert.Equal(t, true, disk.(map[string]any)["autoDelete"], "its disk goes with it")
	}
	require.NoError(t, getOne(t, f))
	all, err := f.ListByTag(t.Context(), faultTag)
	require.NoError(t, err)
	require.Len(t, all, 1)
	assert.Equal(t, oneID, all[0].ID)
	deletesOne(t, f)
}

func deleteOne(t *testing.T, f *faulty) error { t.Helper(); return f.Delete(t.Context(), oneID) }

func deletesOne(t *testing.T, f *faulty) {
	t.Helper()
	require.NoError(t, deleteOne(t, f))
	time.Sleep(time.Minute)
	_, err := f.Get(t.Context(), oneID)
	require.ErrorIs(t, err, provider.ErrNotFound)
	require.NoError(t, deleteOne(t, f))
	all, err := f.ListByTag(t.Context(), faultTag)
	require.NoError(t, err)
	assert.Empty(t, all)
	assert.Empty(t, without(f.server.Names(), provider.Name("uid-theirs")))
}

// getOne reads it. Where that has no error, what it says is right.
func getOne(t *testing.T, f *faulty) error {
	t.Helper()
	in, err := f.Get(t.Context(), oneID)
	if err == nil {
		assert.Equal(t, "uid-1", in.UID)
		assert.Equal(t, faultTag, in.Tag)
		assert.Equal(t, map[string]string{"port": "3128"}, in.Metadata)
	}
	return err
}

// fiveIDs are those of makeFive, as lists sort them.
func fiveIDs() (ids []string) {
	for i := range 5 {
		ids = append(ids, "zones/"+zoneA+"/instances/"+provider.Name(fmt.Sprintf("uid-%d", i)))
	}
	return ids
}

func makeFive(t *testing.T, f *faulty) {
	t.Helper()
	for i := range 5 {
		_, err := f.Create(t.Context(), request(fmt.Sprintf("uid-%d", i)))
		require.NoError(t, err)
	}
}

// listFive lists them. Without an error the list is whole, with one it has none
// twice.
func listFive(t *testing.T, f *faulty) error {
	t.Helper()
	all, err := f.ListByTag(t.Context(), faultTag)
	ids := []string{}
	for _, in := range all {
		assert.NotContains(t, ids, in.ID)
		ids = append(ids, in.ID)
	}
	if err == nil {
		assert.ElementsMatch(t, fiveIDs(), ids)
	}
	assert.Subset(t, fiveIDs(), ids)
	return err
}

func without(names []string, name string) (rest []string) {
	for _, n := range names {
		if nameOf(n) != name {
			rest = append(rest, n)
		}
	}
	return rest
}

// Whatever happens to a message of Create, Delete, Get or ListByTag, to it or to its
// answer: the error says that it may pass, and the next call finishes.
func TestEveryMessageMayBeSpoiled(t *testing.T) {
	for operation, d := range disturbed {
		messages := 0
		synctest.Test(t, func(t *testing.T) {
			f := newFaulty(t)
			f.theirs(t)
			d.before(t, f)
			f.proxy.Spoil(-1, "")
			require.NoError(t, d.operate(t, f))
			messages = f.proxy.Messages()
			require.Positive(t, messages)
			d.finish(t, f)
		})
		for k := range messages {
			for _, fault := range faultproxy.Faults {
				t.Run(fmt.Sprintf("%s/message %d %s", operation, k, fault), func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) {
						f := newFaulty(t)
						f.theirs(t)
						d.before(t, f)
						f.proxy.Spoil(k, fault)
						err := d.operate(t, f)
						require.Greater(t, f.proxy.Messages(), k, "it happened")
						f.passes(t, fault, err)
						d.finish(t, f)
						assert.Contains(t, f.server.Names(), zoneA+"/"+provider.Name("uid-theirs"))
						assert.NotContains(t, f.logs(), "secret-of-")
					})
				})
			}
		}
	}
}

// passes checks an error that a fault has caused. What is only slow causes none.
func (f *faulty) passes(t *testing.T, fault faultproxy.Fault, err error) {
	t.Helper()
	if err == nil {
		return
	}
	assert.NotContains(t, []faultproxy.Fault{faultproxy.Dribbled, faultproxy.Delayed}, fault, "%v", err)
	require.ErrorIs(t, err, provider.ErrTransient)
	for _, other := range []error{provider.ErrPermanent, provider.ErrNotFound, provider.ErrQuotaExceeded, context.DeadlineExceeded, context.Canceled} {
		assert.NotErrorIs(t, err, other)
	}
	assert.NotContains(t, err.Error(), "secret-of-")
	assert.True(t, provider.HasCode(err, "NoAnswer") || provider.HasCode(err, "ConnectionLost"), "%v", err)
}

// A Create that was given up may land after the Delete that was to undo it. It carries
// its tag, and so it is found.
func TestWhatLandsAfterItsDeletionIsListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFaulty(t)
		f.proxy.Spoil(0, faultproxy.Late)
		require.ErrorIs(t, createOne(t, f), provider.ErrTransient)
		require.NoError(t, deleteOne(t, f))
		require.Empty(t, f.server.Names())
		time.Sleep(time.Minute)
		all, err := f.ListByTag(t.Context(), faultTag)
		require.NoError(t, err)
		require.Len(t, all, 1)
		assert.Equal(t, oneID, all[0].ID)
		deletesOne(t, f)
	})
}
