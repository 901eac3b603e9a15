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

func TestALostAnswerIsFoundOut(t *testing.T) {
	for name, fault := range map[string]fakecompute.Fault{
		"the connection ended": {LoseAnswer: true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil)
			r.server.SetBefore(fails("instances.insert", fault))
			_, err := r.Create(t.Context(), request("uid-1"))
			require.NoError(t, err, "there is an instance, and Create looked")
			assert.Len(t, r.server.Names(), 1)
		})
	}
}

func TestAServerErrorWithoutAnInstanceIsTransient(t *testing.T) {
	r := newRig(t, nil)
	r.server.SetBefore(fails("instances.insert", fakecompute.Fault{Error: &fakecompute.Error{Status: 500, Reason: "backendError", Message: "Internal error"}}))
	id, err := r.Create(t.Context(), request("uid-1"))
	require.ErrorIs(t, err, provider.ErrTransient)
	assert.True(t, provider.HasCode(err, "backendError"), "%v", err)
	assert.NotEmpty(t, id)
	r.server.SetBefore(nil)
	_, err = r.Create(t.Context(), request("uid-1"))
	assert.NoError(t, err)
}

// Between the acceptance of a deletion and its beginning the status still says
// RUNNING.
func TestCreateDoesNotAdoptWhatIsAboutToBeDeleted(t *testing.T) {
	r := newRig(t, func(_ *gcp.Config, f *fakecompute.Config) { f.DeletePending = time.Hour })
	id, err := r.Create(t.Context(), request("uid-1"))
	require.NoError(t, err)
	require.NoError(t, r.Delete(t.Context(), id))
	in, err := r.Get(t.Context(), id)
	require.NoError(t, err)
	require.Equal(t, provider.StateRunning, in.State)
	for what, p := range map[string]*gcp.Provider{"the one that deleted": r.Provider, "another process": r.again(t)} {
		_, err := p.Create(t.Context(), request("uid-1"))
		assert.ErrorIs(t, err, provider.ErrTransient, what)
	}
}

func TestCreateDoesNotAdoptWhatIsGoing(t *testing.T) {
	for _, status := range []string{"STOPPING", "PENDING_STOP", "SUSPENDING", "DEPROVISIONING"} {
		r := newRig(t, nil)
		id, err := r.Create(t.Context(), request("uid-1"))
		require.NoError(t, err)
		r.server.SetStatus(zoneA, nameOf(id), status)
		_, err = r.Create(t.Context(), request("uid-1"))
		require.ErrorIs(t, err, provider.ErrTransient, status)
		assert.ErrorContains(t, err, status)
	}
}

// Whoever may not list operations has a Create that adopts by the status alone.
func TestCreateAdoptsWithoutThePermissionToListOperations(t *testing.T) {
	r := newRig(t, nil)
	r.server.SetBefore(fails("zoneOperations.list", fakecompute.Fault{Error: &fakecompute.Error{Status: 403, Reason: "forbidden", Message: "Required 'compute.zoneOperations.list' permission"}}))
	for range 2 {
		_, err := r.Create(t.Context(), request("uid-1"))
		require.NoError(t, err)
	}
}

func TestAnEditedRecordIsToldAndNotGuessed(t *testing.T) {
	r := newRig(t, nil)
	id, err := r.Create(t.Context(), request("uid-1"))
	require.NoError(t, err)
	r.server.Edit(zoneA, nameOf(id), func(body map[string]any) { body["description"] = "my favourite machine" })
	_, err = r.Get(t.Context(), id)
	require.ErrorIs(t, err, provider.ErrPermanent)
	assert.True(t, provider.HasCode(err, "BadRecord"), "%v", err)
	list, err := r.ListByTag(t.Context(), "tag-1")
	var partial *provider.PartialError
	require.ErrorAs(t, err, &partial)
	assert.Empty(t, list)
	assert.Equal(t, id, partial.Missing[0].Scope)
	require.NoError(t, r.Delete(t.Context(), id), "its label is our mark")
}

// A request that is wrong by now may have been right when the instance was made.
func TestTheIDComesWithABadPlacementToo(t *testing.T) {
	r := newRig(t, nil)
	req := request("uid-1")
	want, err := r.Create(t.Context(), req)
	require.NoError(t, err)
	req.Placement.Image = ""
	id, err := r.Create(t.Context(), req)
	require.ErrorIs(t, err, provider.ErrPermanent)
	assert.Equal(t, want, id)
	req.Placement.Zone = ""
	id, err = r.Create(t.Context(), req)
	require.ErrorIs(t, err, provider.ErrPermanent)
	assert.Empty(t, id, "it may be anywhere")
}

func TestADeletionIsAskedForOnce(t *testing.T) {
	r := newRig(t, func(_ *gcp.Config, f *fakecompute.Config) { f.DeleteDelay = time.Hour })
	id, err := r.Create(t.Context(), request("uid-1"))
	require.NoError(t, err)
	for range 5 {
		require.NoError(t, r.Delete(t.Context(), id))
	}
	assert.Len(t, r.server.Calls("instances.delete"), 1)
}

func TestADeletionWhoseAnswerGotLostIsAskedForAgain(t *testing.T) {
	r := newRig(t, func(_ *gcp.Config, f *fakecompute.Config) { f.DeleteDelay = time.Hour })
	id, err := r.Create(t.Context(), request("uid-1"))
	require.NoError(t, err)
	r.server.SetBefore(fails("instances.delete", fakecompute.Fault{Cut: true}))
	require.ErrorIs(t, r.Delete(t.Context(), id), provider.ErrTransient)
	r.server.SetBefore(nil)
	require.NoError(t, r.Delete(t.Context(), id))
	in, err := r.Get(t.Context(), id)
	require.NoError(t, err)
	assert.Equal(t, provider.StateStopping, in.State)
}

// The API's word for what holds the name is passed on: it may be a disk, which no
// look for an instance finds.
func TestANameThatADiskHoldsIsTold(t *testing.T) {
	r := newRig(t, nil)
	disk := "projects/test-project/zones/" + zoneA + "/disks/" + provider.Name("uid-1")
	r.server.SetBefore(fails("instances.insert", fakecompute.Fault{Error: &fakecompute.Error{Status: 409, Reason: "alreadyExists", Message: "The resource '" + disk + "' already exists"}}))
	_, err := r.Create(t.Context(), request("uid-1"))
	require.ErrorIs(t, err, provider.ErrTransient)
	assert.ErrorContains(t, err, disk)
}
