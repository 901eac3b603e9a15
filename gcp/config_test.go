package gcp_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/api/option"

	"github.com/egressfleet/egress/gcp"
	"github.com/egressfleet/egress/provider"
)

// What was enough before is enough now.
func TestTheOldFieldsAreEnough(t *testing.T) {
	var cfg gcp.Config
	require.NoError(t, json.Unmarshal([]byte(`{"project": "my-project", "diskSizeGb": 20}`), &cfg))
	p, err := gcp.New(cfg)
	require.NoError(t, err)
	require.NoError(t, p.Close())
	insert, err := cfg.InsertRequest(request("uid-1"))
	require.NoError(t, err)
	assert.EqualValues(t, 20, insert.GetInstanceResource().GetDisks()[0].GetInitializeParams().GetDiskSizeGb())
}

func TestValidateTellsEveryProblem(t *testing.T) {
	labels := map[string]string{"egress-tag": "x", "Bad Key": "x", "bad-value": "X Y"}
	for i := range 60 {
		labels[fmt.Sprintf("key-%d", i)] = ""
	}
	err := gcp.Config{
		Project: "My Project", Zones: []string{"europe-west1-b", "", "europe", "europe-west1-b"}, Region: "Europe",
		MachineType: "e2 small", Image: "Debian!", DiskSizeGiB: -1, DiskType: "PD",
		Network: "no network", Subnetwork: "a/b", ExternalIP: "static", NetworkTags: []string{"ok", "Not"},
		ServiceAccount: "nobody", MaxRunDuration: provider.Duration(time.Second), Labels: labels, CallTimeout: -1,
	}.Validate()
	require.Error(t, err)
	for _, path := range []string{
		"project", "zones[1]", "zones[2]", "zones[3]", "region", "machineType", "image", "diskSizeGb", "diskType", "network", "subnetwork",
		"externalIP", "networkTags[1]", "serviceAccount", "maxRunDuration", "labels", `labels["egress-tag"]`, `labels["Bad Key"]`, `labels["bad-value"]`, "callTimeout",
	} {
		assert.True(t, strings.Contains("\n"+err.Error(), "\n"+path+": "), "%s is missing in\n%v", path, err)
	}
	assert.ErrorContains(t, gcp.Config{}.Validate(), "project: give the ID")
}

// Zones of a region are letters, and those for accelerators "ai" and a number before.
func TestZonesOfAnyFormAreTaken(t *testing.T) {
	cfg := gcp.Config{Project: "my-project", Zones: []string{"europe-west1-b", "northamerica-northeast2-c", "us-central1-ai1a"}}
	assert.NoError(t, cfg.Validate())
}

func TestNewCopiesItsConfiguration(t *testing.T) {
	r := newRig(t, nil)
	zones := r.cfg.Zones
	zones[0] = "us-east1-b"
	_, err := r.Create(t.Context(), request("uid-1"))
	assert.NoError(t, err)
}

func TestAnIDInAFormThatIsNoZoneIsMalformed(t *testing.T) {
	r := newRig(t, nil)
	for _, zone := range []string{"EUROPE-west1-b", "europe_west1-b", "1-a", "europe"} {
		_, err := r.Get(t.Context(), "zones/"+zone+"/instances/"+provider.Name("x"))
		assert.True(t, provider.HasCode(err, provider.CodeMalformedID), "%s: %v", zone, err)
	}
	assert.Empty(t, r.server.Calls(""), "nobody is asked")
}

func TestAnEndpointOfTheFileIsCalled(t *testing.T) {
	r := newRig(t, nil)
	r.cfg.Endpoint, r.cfg.ClientOptions = r.url+"/", []option.ClientOption{option.WithoutAuthentication()}
	_, err := r.again(t).Create(t.Context(), request("uid-1"))
	require.NoError(t, err)
	assert.Len(t, r.server.Names(), 1)

	r.cfg.Endpoint = "https://127.0.0.1:1"
	r.cfg.ClientOptions = append(r.cfg.ClientOptions, option.WithEndpoint(r.url))
	list, err := r.again(t).ListByTag(t.Context(), "tag-1")
	require.NoError(t, err, "a program's own option is preferred")
	assert.Len(t, list, 1)
}

// A token goes to the endpoint, and a password in its URL would go to logs.
func TestAnEndpointMustBeSafe(t *testing.T) {
	for endpoint, problem := range map[string]string{
		"": "", "https://compute-egress.p.googleapis.com": "", "https://compute.europe-west3.rep.googleapis.com/": "",
		"http://127.0.0.1:8080": "", "http://[::1]:8080": "", "http://localhost:1": "",
		"http://compute.example.com": "must be https",
		"http://127.0.0.1.example":   "must be https",
		"compute.googleapis.com":     "must be a URL", "https://": "must be a URL", "ftp://127.0.0.1": "must be a URL",
		"https://compute.googleapis.com/compute/v1/": "must be a URL",
		"https://u:hunter2@example.com":              "must be a URL", "https://example.com?key=hunter2": "must be a URL", "http://\x7f:hunter2@x": "must be a URL",
	} {
		err := gcp.Config{Project: "my-project", Endpoint: endpoint}.Validate()
		if problem == "" {
			assert.NoError(t, err, endpoint)
			continue
		}
		require.Error(t, err, endpoint)
		assert.Contains(t, err.Error(), "endpoint: ")
		assert.Contains(t, err.Error(), problem)
		assert.NotContains(t, err.Error(), "hunter2")
	}
}

func TestTheResourceManagerIsWhereComputeIs(t *testing.T) {
	for compute, want := range map[string]string{
		"https://compute.googleapis.com":          "https://cloudresourcemanager.googleapis.com",
		"https://compute.mtls.googleapis.com":     "https://cloudresourcemanager.googleapis.com",
		"https://compute.example.goog":            "https://cloudresourcemanager.example.goog",
		"https://compute-egress.p.googleapis.com": "https://cloudresourcemanager-egress.p.googleapis.com",
		"http://127.0.0.1:8080":                   "http://127.0.0.1:8080",
	} {
		assert.Equal(t, want, gcp.PolicyEndpoint(compute))
	}
}

// A path without a name was found out by the API, and by nobody's field.
func TestAPathMustNameWhatItLeadsTo(t *testing.T) {
	for field, c := range map[string]func(*gcp.Config, string){
		"network":     func(c *gcp.Config, s string) { c.Network = "projects/p/global/networks/" + s },
		"subnetwork":  func(c *gcp.Config, s string) { c.Subnetwork = "regions/europe-west1/subnetworks/" + s },
		"image":       func(c *gcp.Config, s string) { c.Image = "projects/images/global/images/" + s },
		"machineType": func(c *gcp.Config, s string) { c.MachineType = "zones/europe-west1-b/machineTypes/" + s },
	} {
		cfg := gcp.Config{Project: "my-project"}
		c(&cfg, "name-1")
		assert.NoError(t, cfg.Validate(), field)
		for _, name := range []string{"", "a/b", "../x", "family/"} {
			c(&cfg, name)
			assert.ErrorContains(t, cfg.Validate(), field+": ", "%q", name)
		}
	}
	assert.NoError(t, gcp.Config{Project: "my-project", Image: debian}.Validate())
}
