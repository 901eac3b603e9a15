package gcp_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/api/option"

	"github.com/egressfleet/egress/gcp"
	"github.com/egressfleet/egress/internal/fakecompute"
	"github.com/egressfleet/egress/provider"
)

func create(t *testing.T, p provider.Provider, uid, zone string) string {
	t.Helper()
	req := request(uid)
	req.Placement.Zone = zone
	id, err := p.Create(t.Context(), req)
	require.NoError(t, err)
	return id
}

func TestListReadsEveryPageAndZone(t *testing.T) {
	r := newRig(t, func(_ *gcp.Config, f *fakecompute.Config) { f.PageSize = 3 })
	for i := range 10 {
		create(t, r, fmt.Sprintf("uid-%d", i), []string{zoneA, zoneB}[i%2])
	}
	list, err := r.ListByTag(t.Context(), "tag-1")
	require.NoError(t, err)
	assert.Len(t, list, 10)
	assert.Len(t, r.server.Calls("instances.aggregatedList"), 4)
	for _, in := range list {
		assert.True(t, in.Address().IsValid(), "the API tells addresses in lists too")
	}
}

func TestListSaysWhichZoneIsMissing(t *testing.T) {
	for name, pageWide := range map[string]bool{"warning of the zone": false, "unreachables of the page": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil)
			create(t, r, "uid-1", zoneA)
			seen := create(t, r, "uid-2", zoneB)
			r.server.SetUnreachable(zoneA, true, pageWide)
			list, err := r.ListByTag(t.Context(), "tag-1")
			var partial *provider.PartialError
			require.ErrorAs(t, err, &partial)
			require.Len(t, partial.Missing, 1)
			assert.Equal(t, zoneA, partial.Missing[0].Scope)
			assert.True(t, provider.HasCode(partial.Missing[0].Err, "UNREACHABLE"))
			require.Len(t, list, 1)
			assert.Equal(t, seen, list[0].ID)
		})
	}
}

func TestAZoneThatIsNotConfiguredMayBeUnreachable(t *testing.T) {
	r := newRig(t, func(c *gcp.Config, _ *fakecompute.Config) { c.Zones = []string{zoneB} })
	r.server.SetUnreachable(zoneA, true, false)
	_, err := r.ListByTag(t.Context(), "tag-1")
	assert.NoError(t, err)
}

// A page in the middle that fails makes no short list of a long one.
func TestAListThatBreaksOffIsAnError(t *testing.T) {
	r := newRig(t, func(_ *gcp.Config, f *fakecompute.Config) { f.PageSize = 1 })
	create(t, r, "uid-1", zoneA)
	create(t, r, "uid-2", zoneA)
	var pages atomic.Int32
	r.server.SetBefore(func(c fakecompute.Call) fakecompute.Fault {
		if c.Method == "instances.aggregatedList" {
			pages.Add(1)
		}
		return fakecompute.Fault{Cut: pages.Load() > 1}
	})
	_, err := r.ListByTag(t.Context(), "tag-1")
	require.ErrorIs(t, err, provider.ErrTransient)
}

// A filter that lets too much through must not make a stranger's VM ours.
func TestListLooksAtTheLabelsAgain(t *testing.T) {
	r := newRig(t, nil)
	own := create(t, r, "uid-1", zoneA)
	create(t, r, "uid-2", zoneA)
	create(t, r, "uid-3", zoneA)
	r.server.Edit(zoneA, provider.Name("uid-2"), func(body map[string]any) {
		// The record says another tag than the label.
		body["description"] = `{"egress":1,"tag":"tag-2","uid":"uid-2"}`
	})
	r.server.Edit(zoneA, provider.Name("uid-3"), func(body map[string]any) { body["name"] = "database" })
	list, err := r.ListByTag(t.Context(), "tag-1")
	require.NoError(t, err)
	require.Len(t, list, 1)
	assert.Equal(t, own, list[0].ID)
}

func TestAFilterThatFiltersNothingHarmsNobody(t *testing.T) {
	r := newRig(t, func(_ *gcp.Config, f *fakecompute.Config) { f.IgnoreFilters = true })
	own := create(t, r, "uid-1", zoneA)
	other := request("uid-2")
	other.Tag = "tag-2"
	_, err := r.Create(t.Context(), other)
	require.NoError(t, err)
	r.server.Put(zoneA, map[string]any{"name": "database", "labels": map[string]any{"egress-tag": "tag-1"}})
	list, err := r.ListByTag(t.Context(), "tag-1")
	require.NoError(t, err)
	require.Len(t, list, 1)
	assert.Equal(t, own, list[0].ID)
	assert.Len(t, swept(t, r, provider.SweepRequest{Owned: func(provider.Instance) bool { return false }}), 1)
	assert.Len(t, r.server.Names(), 2)
}

// Without Config.Zones every zone is configured.
func TestEveryZoneIsConfiguredWhereNoneIsNamed(t *testing.T) {
	r := newRig(t, func(c *gcp.Config, _ *fakecompute.Config) { c.Zones = nil })
	id := create(t, r, "uid-1", zoneB)
	list, err := r.ListByTag(t.Context(), "tag-1")
	require.NoError(t, err)
	require.Len(t, list, 1)
	assert.Equal(t, id, list[0].ID)
	_, err = r.Get(t.Context(), id)
	assert.NoError(t, err)
}

// A list whose page is followed by itself went on for ever.
func TestAPageThatIsFollowedByItselfEndsTheList(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"items":{},"nextPageToken":"again"}`))
	}))
	defer server.Close()
	r := newRig(t, nil)
	r.cfg.ClientOptions = []option.ClientOption{option.WithEndpoint(server.URL), option.WithoutAuthentication()}
	ctx, cancel := context.WithTimeout(t.Context(), short)
	defer cancel()
	_, err := r.again(t).ListByTag(ctx, "tag-1")
	require.ErrorIs(t, err, provider.ErrTransient)
	assert.NoError(t, ctx.Err())
}
