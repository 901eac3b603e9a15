package gcp_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf16"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/egressfleet/egress/gcp"
	"github.com/egressfleet/egress/provider"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// goldens are requests whose whole body is kept in testdata/insert.
var goldens = map[string]func(*gcp.Config, *provider.CreateRequest){
	"least": func(c *gcp.Config, r *provider.CreateRequest) { r.UserData, r.Metadata = nil, nil },
	"user-data-and-metadata": func(_ *gcp.Config, r *provider.CreateRequest) {
		r.UserData = provider.UserData("#cloud-config\npackages: [squid]\n# größer\n")
		r.Metadata = map[string]string{"port": "3128", "spec-hash": "<sha256&>"}
	},
	"binary-user-data":           func(_ *gcp.Config, r *provider.CreateRequest) { r.UserData = provider.UserData("\x1f\x8b\x08\x00gzip") },
	"user-data-with-a-zero-byte": func(_ *gcp.Config, r *provider.CreateRequest) { r.UserData = provider.UserData("a\x00b") },
	"metadata-that-the-description-cannot-hold": func(_ *gcp.Config, r *provider.CreateRequest) {
		r.UserData = nil
		r.Metadata = map[string]string{}
		for _, k := range "abcdefghi" {
			r.Metadata["key-"+string(k)] = strings.Repeat("x", 256)
		}
	},
	"disk": func(c *gcp.Config, _ *provider.CreateRequest) { c.DiskSizeGiB, c.DiskType = 20, "pd-balanced" },
	"network": func(c *gcp.Config, _ *provider.CreateRequest) {
		c.Network, c.NetworkTags = "proxies", []string{"egress-proxy", "squid"}
	},
	"subnetwork": func(c *gcp.Config, _ *provider.CreateRequest) { c.Subnetwork = "proxies" },
	"shared-subnetwork": func(c *gcp.Config, _ *provider.CreateRequest) {
		c.Network = "projects/hub/global/networks/shared"
		c.Subnetwork = "projects/hub/regions/europe-west1/subnetworks/shared"
	},
	"no-external-address": func(c *gcp.Config, _ *provider.CreateRequest) { c.ExternalIP = "none" },
	"ipv6":                func(c *gcp.Config, _ *provider.CreateRequest) { c.IPv6, c.Subnetwork = true, "dual" },
	"ipv6-internal": func(c *gcp.Config, _ *provider.CreateRequest) {
		c.IPv6, c.Subnetwork, c.ExternalIP = true, "dual", "none"
	},
	"service-account": func(c *gcp.Config, _ *provider.CreateRequest) {
		c.ServiceAccount = "proxy@my-project.iam.gserviceaccount.com"
	},
	"shielded": func(c *gcp.Config, _ *provider.CreateRequest) { c.ShieldedVM.SecureBoot = provider.On },
	"shielded-off": func(c *gcp.Config, _ *provider.CreateRequest) {
		c.ShieldedVM = gcp.ShieldedVM{VTPM: provider.Off, IntegrityMonitoring: provider.Off}
	},
	"spot":             func(c *gcp.Config, _ *provider.CreateRequest) { c.Spot = true },
	"max-run-duration": func(c *gcp.Config, _ *provider.CreateRequest) { c.MaxRunDuration = provider.Duration(6 * time.Hour) },
	"spot-for-a-day": func(c *gcp.Config, _ *provider.CreateRequest) {
		c.Spot, c.MaxRunDuration = true, provider.Duration(24*time.Hour)
	},
	"labels": func(c *gcp.Config, _ *provider.CreateRequest) {
		c.Labels = map[string]string{"team": "crawling", "cost_center": "42"}
	},
	"defaults-of-the-provider": func(c *gcp.Config, r *provider.CreateRequest) {
		c.Zones, c.MachineType, c.Image = []string{zoneA}, "n2-standard-2", "family/squid"
		r.Placement = provider.Placement{}
	},
	"paths": func(_ *gcp.Config, r *provider.CreateRequest) {
		r.Placement.MachineType = "zones/" + zoneA + "/machineTypes/e2-custom-2-2048"
		r.Placement.Image = "https://www.googleapis.com/compute/v1/projects/debian-cloud/global/images/debian-13-v20261101"
	},
}

func golden(name string) (gcp.Config, provider.CreateRequest) {
	cfg := gcp.Config{Project: "my-project"}
	req := request("uid-1")
	goldens[name](&cfg, &req)
	return cfg, req
}

func TestInsertRequestIsTheGoldenOne(t *testing.T) {
	for name := range goldens {
		t.Run(name, func(t *testing.T) {
			cfg, req := golden(name)
			require.NoError(t, cfg.Validate())
			insert, err := cfg.InsertRequest(req)
			require.NoError(t, err)
			assert.Equal(t, "my-project", insert.GetProject())
			assert.Equal(t, zoneA, insert.GetZone())
			assert.Empty(t, insert.GetRequestId(), "the name makes the insert idempotent")

			compact, err := protojson.Marshal(insert.GetInstanceResource())
			require.NoError(t, err)
			var got bytes.Buffer
			require.NoError(t, json.Indent(&got, compact, "", "  "))
			got.WriteByte('\n')
			path := filepath.Join("testdata", "insert", name+".json")
			if *update {
				require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
				require.NoError(t, os.WriteFile(path, got.Bytes(), 0o600))
			}
			want, err := os.ReadFile(path)
			require.NoError(t, err)
			assert.JSONEq(t, string(want), got.String())
		})
	}
}

// What the API's schema has no room for shows here, and not at a user's first
// Create.
func TestEveryGoldenIsWhatTheSchemaAllows(t *testing.T) {
	for name := range goldens {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil)
			_, req := golden(name)
			goldens[name](&r.cfg, &req)
			r.cfg.Network, r.cfg.Zones = "", []string{zoneA}
			p := r.again(t)
			id, err := p.Create(t.Context(), req)
			require.NoError(t, err)
			in, err := p.Get(t.Context(), id)
			require.NoError(t, err)
			assert.Equal(t, req.Metadata, in.Metadata)
		})
	}
}

func TestInsertRequestRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		amend func(*gcp.Config, *provider.CreateRequest)
		code  string
		says  []string
	}{
		"no machine type":        {func(_ *gcp.Config, r *provider.CreateRequest) { r.Placement.MachineType = "" }, "BadPlacement", []string{"placement.machineType"}},
		"no image":               {func(_ *gcp.Config, r *provider.CreateRequest) { r.Placement.Image = "" }, "BadPlacement", []string{"placement.image"}},
		"neither":                {func(_ *gcp.Config, r *provider.CreateRequest) { r.Placement.Image, r.Placement.MachineType = "", "" }, "BadPlacement", []string{"placement.machineType", "placement.image"}},
		"no zone":                {func(_ *gcp.Config, r *provider.CreateRequest) { r.Placement.Zone = "" }, "BadPlacement", []string{"placement.zone"}},
		"a region for a zone":    {func(_ *gcp.Config, r *provider.CreateRequest) { r.Placement.Zone = "europe-west1" }, "BadPlacement", []string{"placement.zone"}},
		"a zone out of the list": {func(c *gcp.Config, _ *provider.CreateRequest) { c.Zones = []string{zoneB} }, "BadPlacement", []string{"placement.zone", zoneB}},
		"a type of another zone": {func(_ *gcp.Config, r *provider.CreateRequest) {
			r.Placement.MachineType = "zones/us-east1-b/machineTypes/e2-small"
		}, "BadPlacement", []string{"placement.machineType"}},
		"an image that is no path": {func(_ *gcp.Config, r *provider.CreateRequest) { r.Placement.Image = "Debian 13" }, "BadPlacement", []string{"placement.image"}},
		"user-data of 256 KiB and a byte": {func(_ *gcp.Config, r *provider.CreateRequest) {
			r.UserData = bytes.Repeat([]byte("x"), 256<<10+1)
		}, "UserDataTooLarge", []string{"userData", "262144"}},
		"binary user-data that base64 makes too long": {func(_ *gcp.Config, r *provider.CreateRequest) {
			r.UserData = bytes.Repeat([]byte{0xff}, 200<<10)
		}, "UserDataTooLarge", []string{"userData"}},
		"a request that nobody takes": {func(_ *gcp.Config, r *provider.CreateRequest) { r.UID = "" }, "InvalidRequest", []string{"uid"}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg, req := gcp.Config{Project: "my-project"}, request("uid-1")
			c.amend(&cfg, &req)
			_, err := cfg.InsertRequest(req)
			require.ErrorIs(t, err, provider.ErrPermanent)
			assert.True(t, provider.HasCode(err, c.code), "%v", err)
			for _, text := range c.says {
				assert.ErrorContains(t, err, text)
			}
		})
	}
}

func TestUserDataOfTheGreatestLengthIsTaken(t *testing.T) {
	cfg, req := gcp.Config{Project: "my-project"}, request("uid-1")
	req.UserData = bytes.Repeat([]byte("x"), 256<<10)
	_, err := cfg.InsertRequest(req)
	assert.NoError(t, err)
}

// The API counts a character of two units of UTF-16 as two.
func TestADescriptionIsNeverTooLong(t *testing.T) {
	cfg, req := gcp.Config{Project: "my-project"}, request("uid-1")
	req.Metadata = map[string]string{}
	for _, k := range "abcdefghijklmnop" {
		req.Metadata["key-"+string(k)] = strings.Repeat("😀", 60)
	}
	insert, err := cfg.InsertRequest(req)
	require.NoError(t, err)
	assert.LessOrEqual(t, len(utf16.Encode([]rune(insert.GetInstanceResource().GetDescription()))), 2048)
}
