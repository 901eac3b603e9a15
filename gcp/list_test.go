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

// answering is another provider of the rig, whose API answers everything with one
// body.
func (r *rig) answering(t *testing.T, body string) *gcp.Provider {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(body))
	}))
	t.Cleanup(server.Close)
	r.cfg.ClientOptions = []option.ClientOption{option.WithEndpoint(server.URL), option.WithoutAuthentication()}
	return r.again(t)
}

// A list whose page is followed by itself went on for ever.
func TestAPageThatIsFollowedByItselfEndsTheList(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), short)
	defer cancel()
	_, err := newRig(t, nil).answering(t, `{"items":{},"nextPageToken":"again"}`).ListByTag(ctx, "tag-1")
	require.ErrorIs(t, err, provider.ErrTransient)
	assert.NoError(t, ctx.Err())
}

// Every way in which the API says that something is missing makes the list one that
// is not whole.
func TestWhatIsMissingIsTold(t *testing.T) {
	for body, scope := range map[string]string{
		`{"items":{"zones/us-east1-b":{"warning":{"code":"UNREACHABLE"}}}}`:                     "", // not configured
		`{"items":{"zones/europe-west1-b":{"warning":{"code":"NO_RESULTS_ON_PAGE"}}}}`:          "",
		`{"items":{"zones/europe-west1-b":{"warning":{"code":"UNREACHABLE"}}}}`:                 zoneA,
		`{"items":{"zones/europe-west1-b":{"warning":{"code":"LIST_OVERHEAD_QUOTA_EXCEED"}}}}`:  zoneA,
		`{"items":{"zones/europe-west1-b":{"warning":{"code":"WHAT_NOBODY_KNOWS"}}}}`:           zoneA,
		`{"unreachables":["projects/test-project/zones/europe-west1-b","zones/us-east1-b"]}`:    zoneA,
		`{"items":{},"warning":{"code":"PARTIAL_SUCCESS","message":"some scopes are missing"}}`: "project",
	} {
		_, err := newRig(t, nil).answering(t, body).ListByTag(t.Context(), "tag-1")
		if scope == "" {
			assert.NoError(t, err, body)
			continue
		}
		var partial *provider.PartialError
		require.ErrorAs(t, err, &partial, body)
		require.Len(t, partial.Missing, 1, body)
		assert.Equal(t, scope, partial.Missing[0].Scope)
	}
}

// A filter that lets everything through makes nobody else's instance ours, whichever
// of label and record says so.
func TestLabelAndRecordMustBothHaveTheTag(t *testing.T) {
	r := newRig(t, func(_ *gcp.Config, f *fakecompute.Config) { f.IgnoreFilters = true })
	for uid, change := range map[string]func(body map[string]any){
		"uid-label":  func(body map[string]any) { body["labels"].(map[string]any)["egress-tag"] = "tag-2" },
		"uid-mark":   func(body map[string]any) { delete(body["labels"].(map[string]any), "egress-managed") },
		"uid-record": func(body map[string]any) { body["description"] = `{"egress":1,"tag":"tag-2","uid":"uid-record"}` },
	} {
		id := create(t, r, uid, zoneA)
		require.True(t, r.server.Edit(zoneA, nameOf(id), change))
	}
	list, err := r.ListByTag(t.Context(), "tag-1")
	require.NoError(t, err)
	assert.Empty(t, list)
}
