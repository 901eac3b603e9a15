package gcp_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/gcp"
	"github.com/egressfleet/egress/internal/fakecompute"
	"github.com/egressfleet/egress/provider"
)

const zoneFar = "us-east1-b"

// newRegionRig has three zones in two regions, and none configured.
func newRegionRig(t *testing.T) *rig {
	t.Helper()
	return newRig(t, func(c *gcp.Config, f *fakecompute.Config) {
		f.Zones = []string{zoneA, zoneB, zoneFar}
		c.Zones, c.Region, c.MachineType, c.Image = nil, "europe-west1", "e2-small", debian
	})
}

func TestPlaceIsTheUIDsAndSpreads(t *testing.T) {
	r := newRegionRig(t)
	seen := map[string]int{}
	for i := range 40 {
		req := provider.PlaceRequest{UID: fmt.Sprintf("uid-%d", i)}
		first, err := r.Place(t.Context(), req)
		require.NoError(t, err)
		again, err := r.again(t).Place(t.Context(), req)
		require.NoError(t, err)
		assert.Equal(t, first, again)
		seen[first.Zone]++
		assert.Equal(t, provider.Placement{Region: "europe-west1", Zone: first.Zone, MachineType: "e2-small", Image: debian}, first)
	}
	assert.Len(t, seen, 2, "both zones of the region, and not the one elsewhere: %v", seen)
}

func TestPlaceGoesOnAfterAStockout(t *testing.T) {
	r := newRegionRig(t)
	first, err := r.Place(t.Context(), provider.PlaceRequest{UID: "uid-1"})
	require.NoError(t, err)
	second, err := r.Place(t.Context(), provider.PlaceRequest{UID: "uid-1", Avoid: []provider.Placement{first}})
	require.NoError(t, err)
	assert.NotEqual(t, first.Zone, second.Zone)
	other := provider.Placement{MachineType: "n2-standard-2"}
	same, err := r.Place(t.Context(), provider.PlaceRequest{UID: "uid-1", Placement: other, Avoid: []provider.Placement{first}})
	require.NoError(t, err)
	assert.Equal(t, first.Zone, same.Zone, "another machine type may have room where this one has none")
	_, err = r.Place(t.Context(), provider.PlaceRequest{UID: "uid-1", Avoid: []provider.Placement{first, second}})
	assert.ErrorIs(t, err, provider.ErrQuotaExceeded)
}

func TestPlaceLeavesWhatIsGiven(t *testing.T) {
	r := newRegionRig(t)
	given := provider.Placement{Region: "us-east1", Zone: zoneFar, MachineType: "n2-standard-2", Image: "squid"}
	got, err := r.Place(t.Context(), provider.PlaceRequest{UID: "uid-1", Placement: given})
	require.NoError(t, err)
	assert.Equal(t, given, got)
	got, err = r.Place(t.Context(), provider.PlaceRequest{UID: "uid-1", Placement: provider.Placement{Region: "us-east1"}})
	require.NoError(t, err)
	assert.Equal(t, zoneFar, got.Zone, "the placement's region counts for more than the provider's")
}

func TestPlaceAsksNobodyWhereZonesAreConfigured(t *testing.T) {
	r := newRig(t, func(c *gcp.Config, _ *fakecompute.Config) { c.MachineType, c.Image = "e2-small", debian })
	_, err := r.Place(t.Context(), provider.PlaceRequest{UID: "uid-1"})
	require.NoError(t, err)
	assert.Empty(t, r.server.Calls(""))
	_, err = r.Place(t.Context(), provider.PlaceRequest{UID: "uid-1", Placement: provider.Placement{Region: "us-east1"}})
	assert.ErrorIs(t, err, provider.ErrPermanent)
}

func TestPlaceAsksForTheZonesOnce(t *testing.T) {
	r := newRegionRig(t)
	for i := range 5 {
		_, err := r.Place(t.Context(), provider.PlaceRequest{UID: fmt.Sprint(i)})
		require.NoError(t, err)
	}
	assert.Len(t, r.server.Calls("zones.list"), 1)
}

func TestPlaceRefusesWhatCannotBe(t *testing.T) {
	for name, placement := range map[string]provider.Placement{
		"no such region":       {Region: "mars-north1"},
		"a region in capitals": {Region: "Europe"},
		"a bad machine type":   {MachineType: "e2 small"},
		"a bad zone":           {Zone: "here"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := newRegionRig(t).Place(t.Context(), provider.PlaceRequest{UID: "uid-1", Placement: placement})
			require.ErrorIs(t, err, provider.ErrPermanent)
			assert.True(t, provider.HasCode(err, "BadPlacement"), "%v", err)
		})
	}
	r := newRig(t, func(c *gcp.Config, _ *fakecompute.Config) { c.Zones = nil })
	_, err := r.Place(t.Context(), provider.PlaceRequest{UID: "uid-1", Placement: provider.Placement{MachineType: "e2-small", Image: debian}})
	assert.ErrorContains(t, err, "region")
}

func TestPlaceTakesNoZoneThatIsDownOrGivenUp(t *testing.T) {
	const region = `"region":"https://www.googleapis.com/compute/v1/projects/test-project/regions/europe-west1"`
	p := newRegionRig(t).answering(t, `{"items":[
		{"name":"europe-west1-b","status":"DOWN",`+region+`},
		{"name":"europe-west1-c","status":"UP","deprecated":{"state":"DEPRECATED"},`+region+`},
		{"name":"europe-west1-d","status":"UP",`+region+`}]}`)
	for i := range 10 {
		got, err := p.Place(t.Context(), provider.PlaceRequest{UID: fmt.Sprint(i)})
		require.NoError(t, err)
		assert.Equal(t, "europe-west1-d", got.Zone)
	}
}
