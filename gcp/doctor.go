package gcp

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"

	"cloud.google.com/go/compute/apiv1/computepb"
	"google.golang.org/api/cloudresourcemanager/v1"

	"github.com/egressfleet/egress/provider"
)

var _ provider.Doctor = (*Provider)(nil)

// Diagnose implements [provider.Doctor]. Of the project it examines credentials,
// api, project, its quotas (quota METRIC) with use and limit, network, image and
// external-address (whether a policy of the organization forbids it); of each region
// that the configuration names its subnetwork and quotas; of each configured zone
// zone and machine-type.
func (p *Provider) Diagnose(ctx context.Context) ([]provider.Finding, error) {
	caller := ctx
	var all []provider.Finding
	err := p.operate(ctx, "Diagnose", place{}, func(ctx context.Context) error {
		all = p.examine(ctx)
		return caller.Err()
	})
	if caller.Err() != nil {
		return all, caller.Err()
	}
	return all, err
}

// exam is the examination of one project.
type exam struct {
	*Provider
	findings []provider.Finding
}

func (e *exam) add(scope, check string, status provider.FindingStatus, remedy, format string, args ...any) {
	e.findings = append(e.findings, provider.Finding{Scope: scope, Check: check, Status: status, Evidence: fmt.Sprintf(format, args...), Remedy: remedy})
}

// found adds a finding about what is there or not.
func (e *exam) found(scope, check string, err error, remedy, format string, args ...any) {
	switch {
	case err == nil:
		e.add(scope, check, provider.FindingOK, "", format, args...)
	case hasStatus(err, http.StatusForbidden):
		e.add(scope, check, provider.FindingWarning, "see the least permissions in docs/gcp.md", "it may not be read: %v", classify(err))
	default:
		e.add(scope, check, provider.FindingFailure, remedy, "%v", classify(err))
	}
}

// examine looks at the way first, and then at everything else at the same
// time.
func (p *Provider) examine(ctx context.Context) []provider.Finding {
	way := &exam{Provider: p}
	steps := []func(*exam, context.Context){
		(*exam).network, (*exam).image, (*exam).policy,
	}
	regions := p.cfg.regions()
	if len(regions) == 0 {
		steps = append(steps, (*exam).nowhere)
	}
	for _, region := range regions {
		steps = append(steps, func(e *exam, ctx context.Context) { e.region(ctx, region) })
	}
	steps = append(steps, (*exam).zones)
	if !way.reach(ctx) {
		return way.findings
	}
	exams := make([]*exam, len(steps))
	var running sync.WaitGroup
	for i, step := range steps {
		exams[i] = &exam{Provider: p}
		running.Go(func() { step(exams[i], ctx) })
	}
	running.Wait()
	for _, e := range exams {
		way.findings = append(way.findings, e.findings...)
	}
	return way.findings
}

// regions are those that the configuration names.
func (c Config) regions() (all []string) {
	for _, zone := range c.Zones {
		all = append(all, regionOf(zone))
	}
	if c.Region != "" && len(c.Zones) == 0 {
		all = append(all, c.Region)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// reach tells whether the API answers for the project at all.
func (e *exam) reach(ctx context.Context) bool {
	scope := e.cfg.Project
	project, err := call(ctx, e.Provider, CallInfo{Method: "projects.get", Name: scope}, func(ctx context.Context, c *clients) (*computepb.Project, error) {
		return c.projects.Get(ctx, &computepb.GetProjectRequest{Project: scope}, retries())
	})
	known := classify(err)
	stages := []string{"credentials", "api", "project"}
	failed := slices.Index(stages, stageOf(err, known.Code))
	for i, stage := range stages {
		switch {
		case failed < 0 || i < failed:
			e.add(scope, stage, provider.FindingOK, "", "%s", stageWorks[stage])
		case i > failed:
			e.add(scope, stage, provider.FindingSkipped, "", "an earlier step failed")
		case stage == "project":
			e.found(scope, stage, err, stageRemedies[stage]+scope, "")
		default:
			e.add(scope, stage, provider.FindingFailure, stageRemedies[stage]+scope, "%v", known)
		}
	}
	e.quotas(scope, project.GetQuotas(), []string{"CPUS_ALL_REGIONS"})
	return failed < 0 || hasStatus(err, http.StatusForbidden) && failed == len(stages)-1
}

var stageWorks = map[string]string{
	"credentials": "there are some", "api": "Compute Engine answers", "project": "it is there, and may be read",
}

var stageRemedies = map[string]string{
	"credentials": "gcloud auth application-default login --project ",
	"api":         "gcloud services enable compute.googleapis.com --project ",
	"project":     "check the project's ID: gcloud projects describe ",
}

// stageOf is the step at which a call failed; empty for none.
func stageOf(err error, code string) string {
	switch {
	case err == nil:
		return ""
	case code == codeCredentialsMissing, code == codeCredentialsInvalid, hasStatus(err, http.StatusUnauthorized):
		return "credentials"
	case code == codeConnectionLost, code == codeNoAnswer, code == "accessNotConfigured", code == "SERVICE_DISABLED":
		return "api"
	}
	return "project"
}

func (e *exam) network(ctx context.Context) {
	name := or(e.cfg.Network, "default")
	if e.cfg.Network == "" && e.cfg.Subnetwork != "" {
		return // that of the subnetwork
	}
	project := or(named(name, "projects"), e.cfg.Project)
	_, err := call(ctx, e.Provider, CallInfo{Method: "networks.get", Name: lastPart(name)}, func(ctx context.Context, c *clients) (*computepb.Network, error) {
		return c.networks.Get(ctx, &computepb.GetNetworkRequest{Project: project, Network: lastPart(name)}, retries())
	})
	e.found(e.cfg.Project, "network", err, "set network to one of gcloud compute networks list --project "+project, "%s of %s is there", lastPart(name), project)
}

func (e *exam) image(ctx context.Context) {
	if e.cfg.Image == "" {
		e.add(e.cfg.Project, "image", provider.FindingSkipped, "", "no image is configured: placements name theirs")
		return
	}
	where, _ := imagePath(e.cfg.Image) // Validate has seen that it is good
	project, family, name := imageOf(where)
	project = or(project, e.cfg.Project)
	image, err := call(ctx, e.Provider, CallInfo{Method: "images.get", Name: e.cfg.Image}, func(ctx context.Context, c *clients) (*computepb.Image, error) {
		if family != "" {
			return c.images.GetFromFamily(ctx, &computepb.GetFromFamilyImageRequest{Project: project, Family: family}, retries())
		}
		return c.images.Get(ctx, &computepb.GetImageRequest{Project: project, Image: name}, retries())
	})
	if err == nil && image.GetDiskSizeGb() > int64(e.cfg.DiskSizeGiB) {
		e.add(e.cfg.Project, "image", provider.FindingFailure, fmt.Sprintf("set diskSizeGb to %d or more", image.GetDiskSizeGb()),
			"%s needs a disk of %d GB, and diskSizeGb is %d", image.GetName(), image.GetDiskSizeGb(), e.cfg.DiskSizeGiB)
		return
	}
	e.found(e.cfg.Project, "image", err, "gcloud compute images list --project "+project, "%s of %s, %s, %d GB", image.GetName(), project, strings.ToLower(image.GetArchitecture()), image.GetDiskSizeGb())
}

// imageOf takes the path of an image apart; the project is empty where it is
// our own.
func imageOf(p string) (project, family, name string) {
	project = named(p, "projects")
	if strings.HasSuffix(path.Dir(p), "/family") {
		return project, path.Base(p), ""
	}
	return project, "", path.Base(p)
}

// named is the part of a path behind a kind such as "projects"; empty where it has
// none.
func named(path, kind string) string {
	_, path, found := strings.Cut(path, kind+"/")
	if !found {
		return ""
	}
	path, _, _ = strings.Cut(path, "/")
	return path
}

// externalConstraint is the policy that forbids external addresses.
const externalConstraint = "constraints/compute.vmExternalIpAccess"

// policy asks the Resource Manager, which has permissions of its own.
func (e *exam) policy(ctx context.Context) {
	scope, check := e.cfg.Project, "external-address"
	if e.cfg.ExternalIP == externalNone {
		e.add(scope, check, provider.FindingSkipped, "", "instances get none: they need Cloud NAT to reach the world")
		return
	}
	policy, err := call(ctx, e.Provider, CallInfo{Method: "projects.getEffectiveOrgPolicy", Name: scope}, func(ctx context.Context, c *clients) (*cloudresourcemanager.OrgPolicy, error) {
		request := &cloudresourcemanager.GetEffectiveOrgPolicyRequest{Constraint: externalConstraint}
		return c.policies.Projects.GetEffectiveOrgPolicy("projects/"+scope, request).Context(ctx).Do()
	})
	if err != nil {
		e.add(scope, check, provider.FindingSkipped, "", "the policy %s cannot be read: %v", externalConstraint, classify(err))
		return
	}
	list := policy.ListPolicy
	switch {
	case list != nil && list.AllValues == "DENY":
		e.add(scope, check, provider.FindingFailure, "set externalIP: none and use Cloud NAT, or have the policy changed", "%s forbids it to all", externalConstraint)
	case list != nil && len(list.AllowedValues) > 0:
		e.add(scope, check, provider.FindingFailure, "set externalIP: none and use Cloud NAT, or have the policy changed", "%s allows it to %d named instances alone", externalConstraint, len(list.AllowedValues))
	default:
		e.add(scope, check, provider.FindingOK, "", "%s allows it", externalConstraint)
	}
}

// nowhere says what is not examined without a region.
func (e *exam) nowhere(context.Context) {
	e.add(e.cfg.Project, "region", provider.FindingSkipped, "", "neither zones nor region are configured: their quotas and machine types are not known")
}

// region looks at what is a region's own.
func (e *exam) region(ctx context.Context, region string) {
	e.subnetwork(ctx, region)
	answer, err := call(ctx, e.Provider, CallInfo{Method: "regions.get", Scope: region}, func(ctx context.Context, c *clients) (*computepb.Region, error) {
		return c.regions.Get(ctx, &computepb.GetRegionRequest{Project: e.cfg.Project, Region: region}, retries())
	})
	if err != nil {
		e.found(region, "quota", err, "set region or zones to some of gcloud compute regions list", "")
		return
	}
	e.quotas(region, answer.GetQuotas(), e.cfg.metrics())
}

// quotas looks at those of a project or region that count.
func (e *exam) quotas(scope string, all []*computepb.Quota, metrics []string) {
	for _, q := range all {
		if slices.Contains(metrics, q.GetMetric()) {
			e.quota(scope, q)
		}
	}
}

// metrics are a region's quotas that an instance takes from.
func (c Config) metrics() []string {
	all := []string{"CPUS", "INSTANCES", "DISKS_TOTAL_GB", "SSD_TOTAL_GB"}
	if c.Spot {
		all = append(all, "PREEMPTIBLE_CPUS")
	}
	if c.ExternalIP != externalNone {
		all = append(all, "IN_USE_ADDRESSES")
	}
	family, _, _ := strings.Cut(lastPart(c.MachineType), "-")
	return append(all, strings.ToUpper(family)+"_CPUS")
}

// nearLimit is the part of a quota from which it is told.
const nearLimit = 0.8

func (e *exam) quota(scope string, q *computepb.Quota) {
	use, limit := q.GetUsage(), q.GetLimit()
	status, remedy := provider.FindingOK, ""
	switch {
	case limit == 0 && q.GetMetric() == "PREEMPTIBLE_CPUS":
		return // spot instances take from CPUS then
	case use >= limit:
		status = provider.FindingFailure
	case use >= nearLimit*limit:
		status = provider.FindingWarning
	}
	if status != provider.FindingOK {
		remedy = "ask for more on the console's page IAM & Admin, Quotas"
	}
	e.add(scope, "quota "+q.GetMetric(), status, remedy, "%g of %g in use", use, limit)
}

func (e *exam) subnetwork(ctx context.Context, region string) {
	if e.cfg.Subnetwork == "" {
		return
	}
	where := subnetworkPath(region+"-a", e.cfg.Subnetwork)
	project, its := or(named(where, "projects"), e.cfg.Project), or(named(where, "regions"), region)
	if its != region {
		e.add(region, "subnetwork", provider.FindingFailure, "give the name alone, or zones of its region", "%s is in %s", lastPart(where), its)
		return
	}
	_, err := call(ctx, e.Provider, CallInfo{Method: "subnetworks.get", Scope: region, Name: lastPart(where)}, func(ctx context.Context, c *clients) (*computepb.Subnetwork, error) {
		return c.subnetworks.Get(ctx, &computepb.GetSubnetworkRequest{Project: project, Region: region, Subnetwork: lastPart(where)}, retries())
	})
	e.found(region, "subnetwork", err, "gcloud compute networks subnets list --project "+project, "%s of %s is there", lastPart(where), project)
}

// zones looks at each zone that is configured.
func (e *exam) zones(ctx context.Context) {
	for _, region := range e.cfg.regions() {
		up, err := e.listZones(ctx, region)
		if err != nil {
			e.found(region, "zones", err, "", "")
			continue
		}
		if len(e.cfg.Zones) == 0 {
			if len(up) == 0 {
				err = errors.New("none is up")
			}
			e.found(region, "zones", err, "set region to one of gcloud compute regions list", "%s are up", strings.Join(up, ", "))
			continue
		}
		for _, zone := range e.cfg.Zones {
			if regionOf(zone) == region {
				e.zone(ctx, zone, slices.Contains(up, zone))
			}
		}
	}
}

func (e *exam) zone(ctx context.Context, zone string, up bool) {
	var err error
	if !up {
		err = errors.New("there is no such zone, or it is not up")
	}
	e.found(zone, "zone", err, "set zones to some of gcloud compute zones list", "it is up")
	name := lastPart(e.cfg.MachineType)
	if !up || name == "" || strings.Contains(name, "custom") {
		return
	}
	machine, err := call(ctx, e.Provider, CallInfo{Method: "machineTypes.get", Scope: zone, Name: name}, func(ctx context.Context, c *clients) (*computepb.MachineType, error) {
		return c.machineTypes.Get(ctx, &computepb.GetMachineTypeRequest{Project: e.cfg.Project, Zone: zone, MachineType: name}, retries())
	})
	e.found(zone, "machine-type", err, "gcloud compute machine-types list --zones "+zone, "%s has %d processors and %d MB", name, machine.GetGuestCpus(), machine.GetMemoryMb())
}
