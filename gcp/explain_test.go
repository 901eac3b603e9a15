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

var stockout = []fakecompute.OperationError{{
	Code: "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", Message: "The zone 'projects/test-project/zones/europe-west1-b' does not have enough resources available to fulfill the request.",
}}

// A stockout comes after the acceptance: the instance vanishes, and only the
// operation knows why.
func TestExplainFindsWhyAnInstanceVanished(t *testing.T) {
	for name, c := range map[string]struct {
		errors []fakecompute.OperationError
		class  error
		scope  string
		waits  bool
	}{
		"stockout": {stockout, provider.ErrQuotaExceeded, zoneA, true},
		"quota":    {[]fakecompute.OperationError{{Code: "QUOTA_EXCEEDED", Message: noCPUs}}, provider.ErrQuotaExceeded, "quota CPUS in region europe-west1", true},
		"policy":   {[]fakecompute.OperationError{{Code: "CONDITION_NOT_MET", Message: "Constraint violated"}}, provider.ErrPermanent, "", false},
		"internal": {[]fakecompute.OperationError{{Code: "INTERNAL_ERROR", Message: "Internal error"}}, provider.ErrTransient, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil)
			r.server.SetBefore(fails("instances.insert", fakecompute.Fault{Operation: c.errors}))
			id, err := r.Create(t.Context(), request("uid-1"))
			require.NoError(t, err, "the API has accepted it")
			_, err = r.Get(t.Context(), id)
			require.ErrorIs(t, err, provider.ErrNotFound)

			cause, err := provider.Explain(t.Context(), r.again(t), id)
			require.NoError(t, err)
			require.ErrorIs(t, cause, c.class)
			var e *provider.Error
			require.ErrorAs(t, cause, &e)
			assert.Equal(t, c.errors[0].Code, e.Code)
			assert.Equal(t, id, e.ID)
			assert.Equal(t, c.waits, e.RetryAfter > 0)
			if c.scope != "" {
				assert.Equal(t, c.scope, e.Scope)
			}
		})
	}
}

func TestExplainKnowsNoFailure(t *testing.T) {
	r := newRig(t, nil)
	id, err := r.Create(t.Context(), request("uid-1"))
	require.NoError(t, err)
	for what, prepare := range map[string]func(){
		"somebody deleted it":            func() { r.server.Vanish(zoneA, nameOf(id)) },
		"there is no operation any more": func() { id = "zones/" + zoneA + "/instances/" + provider.Name("another") },
	} {
		prepare()
		cause, err := r.Explain(t.Context(), id)
		assert.NoError(t, err, what)
		assert.NoError(t, cause, what)
	}
}

func TestExplainAsksForOperationsOnlyAfterA404(t *testing.T) {
	r := newRig(t, nil)
	id, err := r.Create(t.Context(), request("uid-1"))
	require.NoError(t, err)
	cause, err := r.Explain(t.Context(), id)
	require.NoError(t, err)
	assert.True(t, provider.HasCode(cause, provider.CodeInFlight), "it has come since it was not found: %v", cause)
	assert.Empty(t, r.server.Calls("zoneOperations.list"))
}

func TestExplainSaysThatAnInsertIsInFlight(t *testing.T) {
	r := newRig(t, func(_ *gcp.Config, f *fakecompute.Config) { f.OperationDelay = time.Hour })
	id, err := r.Create(t.Context(), request("uid-1"))
	require.NoError(t, err)
	r.server.Vanish(zoneA, nameOf(id))
	cause, err := r.Explain(t.Context(), id)
	require.NoError(t, err)
	require.ErrorIs(t, cause, provider.ErrTransient)
	assert.True(t, provider.HasCode(cause, "InFlight"), "%v", cause)
}

// The newest insert counts, and not one of another instance.
func TestExplainTakesTheNewestInsert(t *testing.T) {
	r := newRig(t, func(_ *gcp.Config, f *fakecompute.Config) { f.PageSize = 1 })
	for i, errs := range [][]fakecompute.OperationError{{{Code: "INTERNAL_ERROR", Message: "first"}}, stockout} {
		r.server.SetBefore(fails("instances.insert", fakecompute.Fault{Operation: errs}))
		_, err := r.Create(t.Context(), request("uid-1"))
		require.NoError(t, err, i)
		time.Sleep(2 * time.Millisecond) // the API's times have milliseconds
	}
	r.server.SetBefore(fails("instances.insert", fakecompute.Fault{Operation: []fakecompute.OperationError{{Code: "QUOTA_EXCEEDED"}}}))
	_, err := r.Create(t.Context(), request("uid-2"))
	require.NoError(t, err)
	cause, err := r.Explain(t.Context(), "zones/"+zoneA+"/instances/"+provider.Name("uid-1"))
	require.NoError(t, err)
	assert.True(t, provider.HasCode(cause, stockout[0].Code), "%v", cause)
}

func TestExplainFailsWhereNobodyMayAsk(t *testing.T) {
	r := newRig(t, nil)
	r.server.SetBefore(fails("zoneOperations.list", fakecompute.Fault{Error: &fakecompute.Error{Status: 403, Reason: "forbidden", Message: "no"}}))
	cause, err := r.Explain(t.Context(), "zones/"+zoneA+"/instances/"+provider.Name("uid-1"))
	assert.NoError(t, cause)
	assert.ErrorIs(t, err, provider.ErrPermanent)
}

// A project may be given by its number. The links of its operations have the ID.
func TestExplainFindsAFailureOfAProjectGivenByItsNumber(t *testing.T) {
	r := newRig(t, func(c *gcp.Config, f *fakecompute.Config) { f.Number, c.Project = "123456789", "123456789" })
	r.server.SetBefore(fails("instances.insert", fakecompute.Fault{Operation: stockout}))
	id, err := r.Create(t.Context(), request("uid-1"))
	require.NoError(t, err)
	_, err = r.Get(t.Context(), id)
	require.ErrorIs(t, err, provider.ErrNotFound)
	cause, err := r.Explain(t.Context(), id)
	require.NoError(t, err)
	assert.ErrorIs(t, cause, provider.ErrQuotaExceeded)
}

// What a filter lets through is compared again: another instance's failure, and
// another operation's, are not this one's.
func TestExplainTakesNoOtherOperation(t *testing.T) {
	r := newRig(t, func(_ *gcp.Config, f *fakecompute.Config) { f.IgnoreFilters = true })
	id := create(t, r, "uid-1", zoneA)
	require.NoError(t, r.Delete(t.Context(), id))
	r.server.SetBefore(fails("instances.insert", fakecompute.Fault{Operation: stockout}))
	create(t, r, "uid-2", zoneA)
	cause, err := r.Explain(t.Context(), id)
	require.NoError(t, err)
	assert.NoError(t, cause)
}
