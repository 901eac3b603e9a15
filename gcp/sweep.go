package gcp

import (
	"context"
	"fmt"
	"time"

	"cloud.google.com/go/compute/apiv1/computepb"

	"github.com/egressfleet/egress/provider"
)

var _ provider.Sweeper = (*Provider)(nil)

// Sweep implements [provider.Sweeper]. Google makes and deletes an instance and
// its disk together, so nothing half-made is left. What may be left over are
// instances of the tag that have no owner, and those that are stopped, which run no
// proxy and still cost their disk. Where the request tells owners, a stopped
// instance that has one stays. Instances in zones that are not configured are
// reported and stay.
func (p *Provider) Sweep(ctx context.Context, req provider.SweepRequest) ([]provider.Leftover, error) {
	if req.MinAge <= 0 {
		req.MinAge = provider.DefaultSweepAge
	}
	found := listing{p: p, tag: req.Tag}
	var left []provider.Leftover
	err := provider.ValidTag(req.Tag)
	if err != nil {
		return nil, p.failure("Sweep", "", "", provider.Permanentf(provider.CodeInvalidRequest, "%w", err))
	}
	err = p.operate(ctx, "Sweep", place{}, func(ctx context.Context) error {
		if err := found.run(ctx); err != nil {
			return err
		}
		for _, in := range found.sorted() {
			if l, ok := p.sweepInstance(ctx, req, in, found.statuses[in.ID]); ok {
				left = append(left, l)
			}
		}
		for _, id := range found.strayed {
			zone, name, _ := ids.Parse(id)
			left = append(left, provider.Leftover{Scope: zone, Kind: "instance", Name: name, Reason: "its zone is not configured any more; kept: delete it by gcloud compute instances delete " + name + " --zone " + zone})
		}
		return nil
	})
	if partial := found.partial(); err == nil && partial != nil {
		return left, partial
	}
	return left, err
}

// sweepInstance looks at one instance.
func (p *Provider) sweepInstance(ctx context.Context, req provider.SweepRequest, in provider.Instance, raw *computepb.Instance) (left provider.Leftover, ok bool) {
	since, reason := whyLeft(req, in, raw)
	if reason == "" {
		return left, false
	}
	zone, name, _ := ids.Parse(in.ID)
	left = provider.Leftover{Scope: zone, Kind: "instance", Name: name, Age: max(time.Since(since), 0), Reason: reason}
	if since.IsZero() {
		left.Age = 0
	}
	if left.Age < req.MinAge {
		left.Reason += fmt.Sprintf("; kept: it is younger than %s", req.MinAge)
		return left, true
	}
	left.Removed = true
	if !req.DryRun {
		left.Err = p.failure("Sweep", in.ID, zone, p.delete(ctx, place{zone, name}))
		left.Removed = left.Err == nil
	}
	return left, true
}

// whyLeft says why an instance is left over, and since when; empty if it is
// not.
func whyLeft(req provider.SweepRequest, in provider.Instance, raw *computepb.Instance) (since time.Time, reason string) {
	if req.Owned != nil {
		if req.Owned(in) {
			return since, ""
		}
		return in.CreatedAt, "it has no owner"
	}
	if in.State != provider.StateStopped {
		return since, ""
	}
	stopped, _ := time.Parse(time.RFC3339, raw.GetLastStopTimestamp())
	return or(stopped, in.CreatedAt), fmt.Sprintf("it is %s, and costs its disk", raw.GetStatus())
}
