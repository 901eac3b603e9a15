package gcp

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"cloud.google.com/go/compute/apiv1/computepb"
	"google.golang.org/api/iterator"
	"google.golang.org/protobuf/proto"

	"github.com/egressfleet/egress/provider"
)

var _ provider.Explainer = (*Provider)(nil)

// inFlightWait is how long to wait for an insert that is not finished.
const inFlightWait = 20 * time.Second

// Explain implements [provider.Explainer]: it looks for the newest insert of the
// instance among the zone's operations. One that failed is the cause, with
// Google's own code: a stockout and a quota are ErrQuotaExceeded with a scope and a
// time to wait. One that is not finished is ErrTransient with the code InFlight, and
// so is an instance that is there: it has come since Get did not find it. The
// cause is nil where its insert succeeded, and where there is no operation, since
// Google keeps them for some time only.
func (p *Provider) Explain(ctx context.Context, id string) (cause, err error) {
	at, err := p.find("Explain", id)
	if err != nil {
		return nil, err
	}
	err = p.operate(ctx, "Explain", at, func(ctx context.Context) error {
		found, err := p.whatCame(ctx, at)
		cause = p.failure("Create", id, at.zone, found)
		return err
	})
	return cause, err
}

// whatCame is what became of the newest insert of an instance.
func (p *Provider) whatCame(ctx context.Context, at place) (cause, err error) {
	in, err := p.readOwn(ctx, at)
	if err == nil {
		return provider.Transientf(provider.CodeInFlight, "it is there, and %s", in.GetStatus()), nil
	}
	if !isNotFound(err) {
		return nil, err
	}
	ops, err := p.operationsOn(ctx, at, "insert")
	return outcome(newest(ops)), err
}

func isNotFound(err error) bool { return errors.Is(err, provider.ErrNotFound) }

// outcome is why an insert came to nothing; nil if it did not, or if nobody
// knows.
func outcome(op *computepb.Operation) error {
	switch {
	case op == nil:
		return nil
	case op.GetStatus() != computepb.Operation_DONE:
		return &provider.Error{
			Class: provider.ErrTransient, Code: provider.CodeInFlight, RetryAfter: inFlightWait,
			Err: fmt.Errorf("the operation %s is still %s", op.GetName(), op.GetStatus()),
		}
	}
	return operationError(op)
}

// newest is the operation that was asked for last; nil of none. The API cannot
// sort what it filters.
func newest(ops []*computepb.Operation) (last *computepb.Operation) {
	var when time.Time
	for _, op := range ops {
		at, err := time.Parse(time.RFC3339, op.GetInsertTime())
		if last == nil || err == nil && at.After(when) {
			last, when = op, at
		}
	}
	return last
}

// operationsFilter leaves the target out where the project is given by its number:
// links have its ID.
func (p *Provider) operationsFilter(at place, kind string) string {
	filter := fmt.Sprintf("(operationType = %q)", kind)
	if strings.Trim(p.cfg.Project, "0123456789") == "" {
		return filter
	}
	target := fmt.Sprintf("projects/%s/zones/%s/instances/%s", p.cfg.Project, at.zone, at.name)
	return filter + fmt.Sprintf(" AND ((targetLink = %q) OR (targetLink = %q))", linkPrefix+target, defaultEndpoint+"/compute/v1/"+target)
}

// operationsOn are the operations of that type on an instance. Google writes
// their targets with a host of its own, whatever host is called; what the filter
// lets through is compared again.
func (p *Provider) operationsOn(ctx context.Context, at place, kind string) ([]*computepb.Operation, error) {
	req := &computepb.ListZoneOperationsRequest{Project: p.cfg.Project, Zone: at.zone, Filter: proto.String(p.operationsFilter(at, kind))}
	return call(ctx, p, CallInfo{Method: "zoneOperations.list", Scope: at.zone, Name: at.name},
		func(ctx context.Context, c *clients) (found []*computepb.Operation, err error) {
			for it := c.operations.List(ctx, req, retries()); ; {
				op, err := it.Next()
				if errors.Is(err, iterator.Done) {
					return found, nil
				}
				if err != nil {
					return nil, err
				}
				if op.GetOperationType() == kind && strings.HasSuffix(op.GetTargetLink(), "/zones/"+at.zone+"/instances/"+at.name) {
					found = append(found, op)
				}
			}
		})
}
