package gcp_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"

	"google.golang.org/api/option"

	"github.com/egressfleet/egress/gcp"
	"github.com/egressfleet/egress/provider"
)

// A project, a machine type and an image are all that is needed for an instance.
func Example() {
	p, err := gcp.New(gcp.Config{
		Project:     "my-project",
		Region:      "europe-west1",
		MachineType: "e2-small",
		Image:       "projects/debian-cloud/global/images/family/debian-13",
		NetworkTags: []string{"egress-proxy"}, // what the firewall rule aims at
	})
	if err != nil {
		log.Fatal(err)
	}
	defer p.Close()

	ctx, cancel := context.WithTimeout(context.Background(), provider.BootTimeout)
	defer cancel()
	// Record UID and placement before Create.
	uid := "8c1f0e0c"
	placement, err := p.Place(ctx, provider.PlaceRequest{UID: uid})
	if err != nil {
		log.Fatal(err)
	}
	id, err := p.Create(ctx, provider.CreateRequest{
		UID: uid, Tag: "crawler-a", Placement: placement,
		UserData: provider.UserData("#cloud-config\npackages: [squid]\n"),
	})
	if err != nil {
		log.Fatal(err)
	}
	instance, err := provider.WaitRunning(ctx, p, id, provider.WaitOptions{})
	if err != nil {
		if cause, _ := p.Explain(ctx, id); cause != nil {
			err = cause // such as a stockout
		}
		log.Fatal(err)
	}
	fmt.Println(instance.Address())
}

// The configuration is plain data and can be read from a file. All problems are
// told at once.
func ExampleConfig() {
	var cfg gcp.Config
	err := json.Unmarshal([]byte(`{
		"project": "my-project",
		"zones": ["europe-west1"],
		"maxRunDuration": "24h",
		"networkTags": ["Egress"]
	}`), &cfg)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(cfg.Validate())
	// Output:
	// zones[0]: "europe-west1": must be a zone, such as europe-west1-b
	// networkTags[0]: "Egress": must be 1 to 63 lower-case letters, digits and dashes, begin with a letter and not end with a dash
}

// Proxies that cost little and cannot be forgotten: spot instances without a
// service account, which Google deletes after a day at the latest.
func ExampleConfig_spot() {
	cfg := gcp.Config{
		Project: "my-project", Zones: []string{"europe-west1-b", "europe-west1-c", "europe-west1-d"},
		MachineType: "e2-micro", Image: "projects/debian-cloud/global/images/family/debian-13",
		Spot: true,
	}
	if err := cfg.MaxRunDuration.UnmarshalText([]byte("24h")); err != nil {
		log.Fatal(err)
	}
	insert, err := cfg.InsertRequest(provider.CreateRequest{
		UID: "8c1f0e0c", Tag: "crawler-a", Placement: provider.Placement{Zone: "europe-west1-c"},
	})
	if err != nil {
		log.Fatal(err)
	}
	s := insert.GetInstanceResource().GetScheduling()
	fmt.Println(s.GetProvisioningModel(), s.GetInstanceTerminationAction(), s.GetMaxRunDuration().GetSeconds())
	// Output: SPOT DELETE 86400
}

// Other credentials than the application's default ones, such as those of an
// account that may do no more than docs/gcp.md lists.
func ExampleConfig_clientOptions() {
	cfg := gcp.Config{
		Project:       "my-project",
		ClientOptions: []option.ClientOption{option.WithAuthCredentialsFile(option.ServiceAccount, "/etc/egress/account.json")},
	}
	fmt.Println(cfg.Validate())
	// Output: <nil>
}

// The calls of the API as spans or lines of one's own.
func ExampleTrace() {
	cfg := gcp.Config{
		Project: "my-project",
		Trace: &gcp.Trace{
			Call: func(_ context.Context, c gcp.CallInfo) func(error) {
				return func(err error) { fmt.Println(c.Method, c.Scope, c.Name, c.Attempt, err) }
			},
		},
	}
	_ = cfg // for New
}
