package gcp_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/gcp"
	"github.com/egressfleet/egress/internal/fakecompute"
	"github.com/egressfleet/egress/provider"
)

// swept runs one sweep without regard to ages, and returns the names of what was
// left over.
func swept(t *testing.T, p provider.Provider, req provider.SweepRequest) map[string]provider.Leftover {
	t.Helper()
	req.Tag = "tag-1"
	if req.MinAge == 0 {
		req.MinAge = time.Nanosecond
	}
	list, err := provider.Sweep(t.Context(), p, req)
	require.NoError(t, err)
	all := map[string]provider.Leftover{}
	for _, l := range list {
		all[l.Name] = l
	}
	return all
}

func TestSweepTakesStoppedInstances(t *testing.T) {
	r := newRig(t, nil)
	create(t, r, "uid-runs", zoneA)
	id := create(t, r, "uid-stopped", zoneB)
	stopped := nameOf(id)
	r.server.SetStatus(zoneB, stopped, "TERMINATED")

	all := swept(t, r, provider.SweepRequest{DryRun: true})
	require.Len(t, all, 1)
	assert.True(t, all[stopped].Removed)
	assert.Len(t, r.server.Names(), 2, "a dry run removes nothing")

	all = swept(t, r, provider.SweepRequest{MinAge: time.Hour})
	assert.False(t, all[stopped].Removed, "it stopped just now")
	assert.Contains(t, all[stopped].Reason, "kept")

	all = swept(t, r, provider.SweepRequest{})
	assert.True(t, all[stopped].Removed)
	assert.Equal(t, zoneB, all[stopped].Scope)
	assert.Equal(t, []string{zoneA + "/" + provider.Name("uid-runs")}, r.server.Names())
}

func TestSweepAsksWhoOwns(t *testing.T) {
	r := newRig(t, nil)
	for _, uid := range []string{"uid-owned", "uid-owned-stopped", "uid-orphan"} {
		create(t, r, uid, zoneA)
	}
	r.server.SetStatus(zoneA, provider.Name("uid-owned-stopped"), "TERMINATED")
	all := swept(t, r, provider.SweepRequest{Owned: func(in provider.Instance) bool { return in.UID != "uid-orphan" }})
	require.Len(t, all, 1)
	assert.Equal(t, "it has no owner", all[provider.Name("uid-orphan")].Reason)
	assert.Len(t, r.server.Names(), 2)
}

func TestSweepReportsWhatIsOutOfTheConfiguration(t *testing.T) {
	r := newRig(t, nil)
	name := nameOf(create(t, r, "uid-1", zoneB))
	r.cfg.Zones = []string{zoneA}
	p := r.again(t)
	list, err := p.ListByTag(t.Context(), "tag-1")
	require.NoError(t, err)
	assert.Empty(t, list)
	all := swept(t, p, provider.SweepRequest{})
	assert.False(t, all[name].Removed)
	assert.Contains(t, all[name].Reason, "gcloud compute instances delete "+name)
}

func TestSweepWorksInTheZonesThatAnswered(t *testing.T) {
	r := newRig(t, nil)
	stopped := nameOf(create(t, r, "uid-1", zoneA))
	r.server.SetStatus(zoneA, stopped, "TERMINATED")
	r.server.SetUnreachable(zoneB, true, false)
	list, err := r.Sweep(t.Context(), provider.SweepRequest{Tag: "tag-1", MinAge: time.Nanosecond})
	var partial *provider.PartialError
	require.ErrorAs(t, err, &partial)
	require.Len(t, list, 1)
	assert.True(t, list[0].Removed)
}

func TestSweepSaysWhatItCouldNotRemove(t *testing.T) {
	r := newRig(t, func(_ *gcp.Config, _ *fakecompute.Config) {})
	id := create(t, r, "uid-1", zoneA)
	r.server.SetStatus(zoneA, nameOf(id), "TERMINATED")
	r.server.Edit(zoneA, nameOf(id), func(body map[string]any) { body["deletionProtection"] = true })
	left := swept(t, r, provider.SweepRequest{})[nameOf(id)]
	assert.False(t, left.Removed)
	assert.ErrorIs(t, left.Err, provider.ErrPermanent)
	_, err := r.Sweep(t.Context(), provider.SweepRequest{Tag: "NO"})
	assert.True(t, provider.HasCode(err, provider.CodeInvalidRequest))
}
