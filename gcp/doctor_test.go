package gcp_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/gcp"
	"github.com/egressfleet/egress/internal/fakecompute"
	"github.com/egressfleet/egress/provider"
)

// examined are the findings by scope and check.
func examined(t *testing.T, r *rig) map[string]provider.Finding {
	t.Helper()
	list, err := provider.Diagnose(t.Context(), r)
	require.NoError(t, err)
	all := map[string]provider.Finding{}
	for _, f := range list {
		all[f.Scope+" "+f.Check] = f
		if f.Status == provider.FindingFailure {
			assert.NotEmpty(t, f.Remedy, "%s %s", f.Scope, f.Check)
		}
	}
	return all
}

func newDoctorRig(t *testing.T, amend func(*gcp.Config, *fakecompute.Config)) *rig {
	t.Helper()
	return newRig(t, func(c *gcp.Config, f *fakecompute.Config) {
		c.MachineType, c.Image, c.Subnetwork, c.Network = "e2-small", debian, "proxies", "default"
		f.Networks = []string{"default", "proxies"}
		f.Images, f.MachineTypes = []string{debian}, []string{"e2-small"}
		if amend != nil {
			amend(c, f)
		}
	})
}

func TestDiagnoseOfAProjectThatWorks(t *testing.T) {
	r := newDoctorRig(t, nil)
	r.server.SetQuota("CPUS", 3, 24)
	r.server.SetQuota("IN_USE_ADDRESSES", 7, 8)
	r.server.SetQuota("INSTANCES", 24, 24)
	r.server.SetQuota("SNAPSHOTS", 5000, 5000)
	r.server.SetQuota("CPUS_ALL_REGIONS", 3, 32)
	all := examined(t, r)
	for _, check := range []string{
		"test-project credentials", "test-project api", "test-project project", "test-project network", "test-project image", "test-project external-address",
		"europe-west1 subnetwork", "europe-west1 quota CPUS", zoneA + " zone", zoneB + " zone", zoneA + " machine-type", zoneB + " machine-type",
	} {
		assert.Equal(t, provider.FindingOK, all[check].Status, "%s: %s", check, all[check].Evidence)
	}
	assert.Equal(t, "3 of 24 in use", all["europe-west1 quota CPUS"].Evidence)
	assert.Equal(t, "3 of 32 in use", all["test-project quota CPUS_ALL_REGIONS"].Evidence)
	assert.Equal(t, provider.FindingWarning, all["europe-west1 quota IN_USE_ADDRESSES"].Status)
	assert.Equal(t, provider.FindingFailure, all["europe-west1 quota INSTANCES"].Status)
	assert.NotContains(t, all, "europe-west1 quota SNAPSHOTS", "which no instance takes from")
}

func TestDiagnoseFindsWhatIsWrong(t *testing.T) {
	answer := func(method string, status int, reason, message string) func(*rig) {
		return func(r *rig) {
			r.server.SetBefore(fails(method, fakecompute.Fault{Error: &fakecompute.Error{Status: status, Reason: reason, Message: message}}))
		}
	}
	for name, c := range map[string]struct {
		amend   func(*gcp.Config, *fakecompute.Config)
		prepare func(*rig)
		check   string
		status  provider.FindingStatus
		says    string
	}{
		"the API is off":         {nil, answer("projects.get", 403, "accessNotConfigured", "it is disabled"), "test-project api", provider.FindingFailure, "gcloud services enable compute.googleapis.com"},
		"no such project":        {nil, answer("projects.get", 404, "notFound", "The resource 'projects/x' was not found"), "test-project project", provider.FindingFailure, "gcloud projects describe"},
		"bad credentials":        {nil, answer("projects.get", 401, "authError", "Invalid Credentials"), "test-project credentials", provider.FindingFailure, "gcloud auth"},
		"no right to look":       {nil, answer("projects.get", 403, "forbidden", "Required 'compute.projects.get'"), "test-project project", provider.FindingWarning, "docs/gcp.md"},
		"no such network":        {func(c *gcp.Config, _ *fakecompute.Config) { c.Network = "nowhere" }, nil, "test-project network", provider.FindingFailure, "gcloud compute networks list"},
		"no such subnetwork":     {func(c *gcp.Config, _ *fakecompute.Config) { c.Subnetwork = "nowhere" }, nil, "europe-west1 subnetwork", provider.FindingFailure, "subnets list"},
		"a subnetwork elsewhere": {func(c *gcp.Config, _ *fakecompute.Config) { c.Subnetwork = "regions/us-east1/subnetworks/proxies" }, nil, "europe-west1 subnetwork", provider.FindingFailure, "region"},
		"no such image":          {func(c *gcp.Config, _ *fakecompute.Config) { c.Image = "family/nothing" }, nil, "test-project image", provider.FindingFailure, "images list"},
		"a small disk":           {func(c *gcp.Config, _ *fakecompute.Config) { c.DiskSizeGiB = 5 }, nil, "test-project image", provider.FindingFailure, "diskSizeGb"},
		"no image":               {func(c *gcp.Config, _ *fakecompute.Config) { c.Image = "" }, nil, "test-project image", provider.FindingSkipped, ""},
		"no such zone":           {func(c *gcp.Config, _ *fakecompute.Config) { c.Zones = []string{"europe-west1-x", zoneA} }, nil, "europe-west1-x zone", provider.FindingFailure, "zones list"},
		"no such machine type":   {func(c *gcp.Config, _ *fakecompute.Config) { c.MachineType = "z9-huge" }, nil, zoneA + " machine-type", provider.FindingFailure, "machine-types list"},
		"a policy that forbids":  {nil, func(r *rig) { r.server.SetPolicy(map[string]any{"allValues": "DENY"}) }, "test-project external-address", provider.FindingFailure, "externalIP: none"},
		"a policy for some": {nil, func(r *rig) {
			r.server.SetPolicy(map[string]any{"allowedValues": []string{"projects/p/zones/z/instances/i"}})
		}, "test-project external-address", provider.FindingFailure, "externalIP: none"},
		"a policy nobody reads": {nil, answer("projects.getEffectiveOrgPolicy", 403, "forbidden", "no"), "test-project external-address", provider.FindingSkipped, ""},
		"no external addresses": {func(c *gcp.Config, _ *fakecompute.Config) { c.ExternalIP = "none" }, nil, "test-project external-address", provider.FindingSkipped, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := newDoctorRig(t, c.amend)
			if c.prepare != nil {
				c.prepare(r)
			}
			all := examined(t, r)
			f, ok := all[c.check]
			require.True(t, ok, "%v", all)
			assert.Equal(t, c.status, f.Status, f.Evidence)
			assert.Contains(t, f.Remedy, c.says)
		})
	}
}

func TestDiagnoseSkipsWhatCannotBeAsked(t *testing.T) {
	r := newDoctorRig(t, nil)
	r.server.SetBefore(func(fakecompute.Call) fakecompute.Fault { return fakecompute.Fault{Cut: true} })
	all := examined(t, r)
	assert.Equal(t, provider.FindingFailure, all["test-project api"].Status)
	assert.Equal(t, provider.FindingSkipped, all["test-project project"].Status)
	assert.Len(t, all, 3)
}

func TestDiagnoseOfARegion(t *testing.T) {
	r := newRig(t, func(c *gcp.Config, _ *fakecompute.Config) { c.Zones, c.Region = nil, "europe-west1" })
	f := examined(t, r)["europe-west1 zones"]
	assert.Equal(t, provider.FindingOK, f.Status)
	assert.Contains(t, f.Evidence, zoneB)
}

func TestReadConsoleGivesTheEnd(t *testing.T) {
	r := newRig(t, nil)
	id := create(t, r, "uid-1", zoneA)
	r.server.SetConsole(zoneA, nameOf(id), "first line\nlast line\n")
	text, err := provider.ReadConsole(t.Context(), r, id, 10)
	require.NoError(t, err)
	assert.Equal(t, "last line\n", string(text))
	text, err = provider.ReadConsole(t.Context(), r, id, 0)
	require.NoError(t, err)
	assert.Equal(t, "first line\nlast line\n", string(text))
	r.server.SetStatus(zoneA, nameOf(id), "PROVISIONING")
	text, err = r.ReadConsole(t.Context(), id, 10)
	require.NoError(t, err, "it has written nothing yet")
	assert.Empty(t, text)
	_, err = r.ReadConsole(t.Context(), "zones/"+zoneA+"/instances/"+provider.Name("another"), 10)
	assert.ErrorIs(t, err, provider.ErrNotFound)
	r.server.Put(zoneA, map[string]any{"name": provider.Name("theirs")})
	_, err = r.ReadConsole(t.Context(), "zones/"+zoneA+"/instances/"+provider.Name("theirs"), 10)
	assert.ErrorIs(t, err, provider.ErrPermanent, "another's console is not ours to read")
}

// Without a region nobody knows which quotas count: that is said, and not passed
// over.
func TestDiagnoseSaysWhatNeedsARegion(t *testing.T) {
	r := newRig(t, func(c *gcp.Config, _ *fakecompute.Config) { c.Zones = nil })
	r.server.SetQuota("CPUS_ALL_REGIONS", 12, 12)
	all := examined(t, r)
	assert.Equal(t, provider.FindingSkipped, all["test-project region"].Status)
	assert.Equal(t, provider.FindingFailure, all["test-project quota CPUS_ALL_REGIONS"].Status, "that of the project is known")
	assert.Equal(t, "12 of 12 in use", all["test-project quota CPUS_ALL_REGIONS"].Evidence)
}

// A limit that is none was a panic.
func TestReadConsoleTakesAnyLimit(t *testing.T) {
	r := newRig(t, nil)
	id := create(t, r, "uid-1", zoneA)
	r.server.SetConsole(zoneA, nameOf(id), "line\n")
	for _, limit := range []int{-1, 0} {
		text, err := r.ReadConsole(t.Context(), id, limit)
		require.NoError(t, err)
		assert.Equal(t, "line\n", string(text))
	}
}
