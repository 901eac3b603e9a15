package gcp_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

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
