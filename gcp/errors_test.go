package gcp_test

import (
	"errors"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/compute/apiv1/computepb"
	"github.com/googleapis/gax-go/v2/apierror"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/api/googleapi"
	"google.golang.org/protobuf/proto"

	"github.com/egressfleet/egress/gcp"
	"github.com/egressfleet/egress/internal/fakecompute"
	"github.com/egressfleet/egress/provider"
)

const (
	tooMany = "Quota exceeded for quota metric 'Queries' and limit 'Queries per minute' of service 'compute.googleapis.com'"
	noCPUs  = "Quota 'CPUS' exceeded.  Limit: 24.0 in region europe-west1."
)

// TestErrorsOfAnInsert has a row for each HTTP error that an insert can get.
func TestErrorsOfAnInsert(t *testing.T) {
	for name, c := range map[string]struct {
		status          int
		reason, message string
		detail          string
		class           error
		code, scope     string
		waits           bool
	}{
		"400 invalid":                   {400, "invalid", "Invalid value for field 'resource.disks[0].type'", "", provider.ErrPermanent, "invalid", "", false},
		"400 machine type not in zone":  {400, "invalid", "Machine type with name 'e2-x' does not exist in zone 'europe-west1-b'.", "", provider.ErrPermanent, "invalid", zoneA, false},
		"400 network not ready":         {400, "resourceNotReady", "The resource 'projects/p/global/networks/n' is not ready", "", provider.ErrTransient, "resourceNotReady", "", false},
		"401":                           {401, "authError", "Invalid Credentials", "", provider.ErrPermanent, "authError", "", false},
		"403 quota":                     {403, "quotaExceeded", noCPUs, "", provider.ErrQuotaExceeded, "quotaExceeded", "quota CPUS in region europe-west1", true},
		"403 quota of the project":      {403, "quotaExceeded", "Quota 'CPUS_ALL_REGIONS' exceeded.  Limit: 32.0 globally.", "", provider.ErrQuotaExceeded, "quotaExceeded", "quota CPUS_ALL_REGIONS of the project", true},
		"403 rate":                      {403, "rateLimitExceeded", tooMany, "", provider.ErrTransient, "rateLimitExceeded", "", true},
		"403 rate, told by the message": {403, "forbidden", tooMany, "", provider.ErrTransient, "forbidden", "", true},
		"403 concurrent operations":     {403, "forbidden", "Too many operations", "CONCURRENT_OPERATIONS_QUOTA_EXCEEDED", provider.ErrTransient, "CONCURRENT_OPERATIONS_QUOTA_EXCEEDED", "", true},
		"403 forbidden":                 {403, "forbidden", "Required 'compute.instances.create' permission", "", provider.ErrPermanent, "forbidden", "", false},
		"403 API off":                   {403, "accessNotConfigured", "Compute Engine API has not been used in project 1 before or it is disabled.", "", provider.ErrPermanent, "accessNotConfigured", "", false},
		"404 image":                     {404, "notFound", "The resource 'projects/debian-cloud/global/images/x' was not found", "", provider.ErrPermanent, "notFound", "", false},
		"404 project":                   {404, "notFound", "The resource 'projects/my-project' was not found", "", provider.ErrPermanent, "notFound", "", false},
		"412 policy":                    {412, "conditionNotMet", "Constraint constraints/compute.vmExternalIpAccess violated for project 1.", "", provider.ErrPermanent, "conditionNotMet", "", false},
		"413":                           {413, "fieldSizeTooLarge", "Value for field 'metadata.items[0].value' is too large", "", provider.ErrPermanent, "fieldSizeTooLarge", "", false},
		"429":                           {429, "tooManyRequests", "slow down", "", provider.ErrTransient, "tooManyRequests", "", true},
		"500":                           {500, "backendError", "Internal error", "", provider.ErrTransient, "backendError", "", false},
		"503 stockout, synchronously":   {503, "ZONE_RESOURCE_POOL_EXHAUSTED", "The zone 'projects/p/zones/europe-west1-b' does not have enough resources", "", provider.ErrQuotaExceeded, "ZONE_RESOURCE_POOL_EXHAUSTED", zoneA, true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil)
			fault := &fakecompute.Error{Status: c.status, Reason: c.reason, Message: c.message}
			if c.detail != "" {
				fault.Details = []map[string]any{{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": c.detail, "domain": "compute.googleapis.com"}}
			}
			r.server.SetBefore(fails("instances.insert", fakecompute.Fault{Error: fault}))
			id, err := r.Create(t.Context(), request("uid-1"))
			require.ErrorIs(t, err, c.class)
			assert.Equal(t, "zones/"+zoneA+"/instances/"+provider.Name("uid-1"), id, "the ID comes with the error")
			var e *provider.Error
			require.ErrorAs(t, err, &e)
			assert.Equal(t, c.code, e.Code)
			if c.scope != "" {
				assert.Equal(t, c.scope, e.Scope)
			}
			assert.Equal(t, c.waits, e.RetryAfter > 0, "RetryAfter %s", e.RetryAfter)
			assert.ErrorContains(t, err, c.message)
			var api *googleapi.Error
			assert.ErrorAs(t, err, &api)
			var gax *apierror.APIError
			assert.ErrorAs(t, err, &gax)
		})
	}
}

func TestRateLimitsWaitForTheNextMinuteAndNotLonger(t *testing.T) {
	r := newRig(t, nil)
	r.server.SetBefore(fails("instances.get", fakecompute.Fault{Error: &fakecompute.Error{Status: 403, Reason: "rateLimitExceeded", Message: tooMany}}))
	_, err := r.Get(t.Context(), "zones/"+zoneA+"/instances/"+provider.Name("x"))
	var e *provider.Error
	require.ErrorAs(t, err, &e)
	assert.Positive(t, e.RetryAfter)
	assert.LessOrEqual(t, e.RetryAfter, time.Minute)
}

func TestTheAPIsOwnRetryAfterWins(t *testing.T) {
	r := newRig(t, nil)
	r.server.SetBefore(fails("instances.get", fakecompute.Fault{Error: &fakecompute.Error{
		Status: 429, Reason: "rateLimitExceeded", Message: tooMany, Header: http.Header{"Retry-After": {"7"}},
	}}))
	_, err := r.Get(t.Context(), "zones/"+zoneA+"/instances/"+provider.Name("x"))
	var e *provider.Error
	require.ErrorAs(t, err, &e)
	assert.Equal(t, 7*time.Second, e.RetryAfter)
}

// TestErrorsOfAnOperation has a row for each code that a finished insert can
// have.
func TestErrorsOfAnOperation(t *testing.T) {
	for _, c := range []struct {
		code, message string
		class         error
		scope         string
		waits         bool
	}{
		{"ZONE_RESOURCE_POOL_EXHAUSTED", "The zone 'projects/p/zones/europe-west1-c' does not have enough resources available to fulfill the request.", provider.ErrQuotaExceeded, zoneB, true},
		{"ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", "no room", provider.ErrQuotaExceeded, zoneA, true},
		{"REGION_RESOURCE_POOL_EXHAUSTED", "no room", provider.ErrQuotaExceeded, zoneA, true},
		{"RESOURCE_POOL_EXHAUSTED", "no room", provider.ErrQuotaExceeded, zoneA, true},
		{"QUOTA_EXCEEDED", noCPUs, provider.ErrQuotaExceeded, "quota CPUS in region europe-west1", true},
		{"IP_SPACE_EXHAUSTED", "IP space of 'projects/p/regions/r/subnetworks/s' is exhausted.", provider.ErrQuotaExceeded, zoneA, true},
		{"IP_SPACE_EXHAUSTED_WITH_DETAILS", "exhausted", provider.ErrQuotaExceeded, zoneA, true},
		{"RESOURCE_NOT_READY", "still stopping", provider.ErrTransient, zoneA, false},
		{"RESOURCE_NOT_FOUND", "gone", provider.ErrTransient, zoneA, false},
		{"UNSUPPORTED_OPERATION", "preempted while creating", provider.ErrTransient, zoneA, false},
		{"RESOURCE_OPERATION_RATE_EXCEEDED", "too often", provider.ErrTransient, zoneA, true},
		{"CONCURRENT_OPERATIONS_QUOTA_EXCEEDED", "too many", provider.ErrTransient, zoneA, true},
		{"INTERNAL_ERROR", "internal", provider.ErrTransient, zoneA, false},
		{"CONFLICT", "the VM was deleted while it was created", provider.ErrTransient, zoneA, false},
		{"PERMISSIONS_ERROR", "no right to the image", provider.ErrPermanent, zoneA, false},
		{"CONDITION_NOT_MET", "Constraint constraints/compute.vmExternalIpAccess violated", provider.ErrPermanent, zoneA, false},
		{"INVALID_USAGE", "invalid", provider.ErrPermanent, zoneA, false},
		{"SOMETHING_NEW", "what nobody knows", provider.ErrTransient, zoneA, false},
	} {
		t.Run(c.code, func(t *testing.T) {
			err := gcp.OperationError(finished(c.code, c.message))
			require.ErrorIs(t, err, c.class)
			var e *provider.Error
			require.ErrorAs(t, err, &e)
			assert.Equal(t, c.code, e.Code)
			assert.Equal(t, c.scope, e.Scope)
			assert.Equal(t, c.waits, e.RetryAfter > 0, "RetryAfter %s", e.RetryAfter)
			assert.ErrorContains(t, err, c.message)
		})
	}
}

func finished(codesAndMessages ...string) *computepb.Operation {
	op := &computepb.Operation{
		Status: computepb.Operation_DONE.Enum(), HttpErrorStatusCode: proto.Int32(503),
		Zone: proto.String("https://www.googleapis.com/compute/v1/projects/p/zones/" + zoneA), Error: &computepb.Error{},
	}
	for i := 0; i < len(codesAndMessages); i += 2 {
		op.Error.Errors = append(op.Error.Errors, &computepb.Errors{Code: &codesAndMessages[i], Message: &codesAndMessages[i+1]})
	}
	return op
}

func TestOfSeveralErrorsTheMostTellingCounts(t *testing.T) {
	err := gcp.OperationError(finished("INTERNAL_ERROR", "x", "ZONE_RESOURCE_POOL_EXHAUSTED", "y"))
	assert.True(t, provider.HasCode(err, "ZONE_RESOURCE_POOL_EXHAUSTED"), "%v", err)
	assert.NoError(t, gcp.OperationError(&computepb.Operation{Status: computepb.Operation_DONE.Enum()}))
}

// A 404 is an absence only where the API speaks of the instance.
func TestOnlyAnAnswerAboutTheInstanceProvesItsAbsence(t *testing.T) {
	id := "zones/" + zoneA + "/instances/" + provider.Name("x")
	for name, c := range map[string]struct {
		fault *fakecompute.Error
		class error
	}{
		"the instance":    {nil, provider.ErrNotFound},
		"the project":     {&fakecompute.Error{Status: 404, Reason: "notFound", Message: "The resource 'projects/test-project' was not found"}, provider.ErrPermanent},
		"the zone":        {&fakecompute.Error{Status: 404, Reason: "notFound", Message: "The resource 'projects/test-project/zones/europe-west1-b' was not found"}, provider.ErrPermanent},
		"an unknown zone": {&fakecompute.Error{Status: 400, Reason: "invalid", Message: "Invalid value for field 'zone': 'europe-west1-b'. Unknown zone."}, provider.ErrPermanent},
		"a proxy between": {&fakecompute.Error{Status: 404, Raw: "<html>not here</html>"}, provider.ErrPermanent},
		"a short answer":  {&fakecompute.Error{Status: 404, Reason: "notFound", Message: "Not found"}, provider.ErrNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil)
			if c.fault != nil {
				r.server.SetBefore(func(fakecompute.Call) fakecompute.Fault { return fakecompute.Fault{Error: c.fault} })
			}
			_, err := r.Get(t.Context(), id)
			require.ErrorIs(t, err, c.class)
			gone := c.fault == nil || c.fault.Message == "Not found"
			assert.Equal(t, gone, r.Delete(t.Context(), id) == nil, "Delete")
		})
	}
}

func TestAProtectedInstanceIsToldAndStays(t *testing.T) {
	r := newRig(t, nil)
	id, err := r.Create(t.Context(), request("uid-1"))
	require.NoError(t, err)
	r.server.Edit(zoneA, nameOf(id), func(body map[string]any) { body["deletionProtection"] = true })
	err = r.Delete(t.Context(), id)
	require.ErrorIs(t, err, provider.ErrPermanent)
	assert.True(t, provider.HasCode(err, "invalidResourceUsage"), "%v", err)
}

// Front ends that fail for a moment are asked again, for each call; a stockout or
// a limit is not.
func TestRetries(t *testing.T) {
	for _, status := range []int{502, 503, 504} {
		for _, method := range []string{"instances.insert", "instances.get", "instances.delete", "instances.aggregatedList"} {
			r := newRig(t, nil)
			var asked atomic.Int32
			r.server.SetBefore(func(c fakecompute.Call) fakecompute.Fault {
				if c.Method != method || asked.Add(1) > 2 {
					return fakecompute.Fault{}
				}
				return fakecompute.Fault{Error: &fakecompute.Error{Status: status, Reason: "backendError", Message: "try again"}}
			})
			id, err := r.Create(t.Context(), request("uid-1"))
			require.NoError(t, err, method)
			_, err = r.Get(t.Context(), id)
			require.NoError(t, err, method)
			_, err = r.ListByTag(t.Context(), "tag-1")
			require.NoError(t, err, method)
			require.NoError(t, r.Delete(t.Context(), id), method)
			assert.GreaterOrEqual(t, asked.Load(), int32(3), method)
		}
	}
}

func TestALimitIsNotRunInto(t *testing.T) {
	r := newRig(t, nil)
	r.server.SetBefore(fails("instances.insert", fakecompute.Fault{Error: &fakecompute.Error{Status: 403, Reason: "rateLimitExceeded", Message: tooMany}}))
	_, err := r.Create(t.Context(), request("uid-1"))
	require.ErrorIs(t, err, provider.ErrTransient)
	assert.Len(t, r.server.Calls("instances.insert"), 1)
}

func TestAServerThatFailsOnIsTransient(t *testing.T) {
	r := newRig(t, nil)
	r.server.SetBefore(func(fakecompute.Call) fakecompute.Fault {
		return fakecompute.Fault{Error: &fakecompute.Error{Status: 503, Raw: "upstream is away"}}
	})
	_, err := r.Get(t.Context(), "zones/"+zoneA+"/instances/"+provider.Name("x"))
	require.ErrorIs(t, err, provider.ErrTransient)
	assert.True(t, provider.HasCode(err, "HTTP 503"), "%v", err)
	assert.False(t, errors.Is(err, provider.ErrNotFound))
}

// A limit is over at the start of the next minute, and nothing is lost by it.
func TestARateLimitPasses(t *testing.T) {
	r := newRig(t, func(_ *gcp.Config, f *fakecompute.Config) { f.CallsPerMinute, f.Minute = 3, 200*time.Millisecond })
	refused := func() bool {
		_, err := r.Create(t.Context(), request("uid-1"))
		if err != nil {
			require.ErrorIs(t, err, provider.ErrTransient)
			assert.True(t, provider.HasCode(err, "rateLimitExceeded"), "%v", err)
		}
		return err != nil
	}
	require.Eventually(t, refused, short, time.Millisecond)
	require.Eventually(t, func() bool { return !refused() }, short, 10*time.Millisecond)
	assert.Len(t, r.server.Names(), 1)
}
