package gcp

import (
	"context"
	"errors"
	"net/http"

	"cloud.google.com/go/compute/apiv1/computepb"
	"github.com/go-logr/logr"

	"github.com/egressfleet/egress/provider"
)

// Create implements [provider.Provider]. It returns when the API has accepted the
// insert. What becomes of it Get tells, and Explain.
func (p *Provider) Create(ctx context.Context, req provider.CreateRequest) (string, error) {
	insert, err := p.cfg.InsertRequest(req)
	if err != nil {
		id := p.cfg.idOf(req)
		return id, p.failure("Create", id, "", err)
	}
	at := place{insert.GetZone(), provider.Name(req.UID)}
	return at.id(), p.operate(ctx, "Create", at, func(ctx context.Context) error {
		return p.create(ctx, at, req, insert)
	})
}

// idOf is the ID of what an earlier Create of the UID may have made, where the place
// is known; empty otherwise.
func (c Config) idOf(req provider.CreateRequest) string {
	zone, err := c.zone(req.Placement.Zone)
	if err != nil || req.Validate() != nil {
		return ""
	}
	return ids.Format(zone, provider.Name(req.UID))
}

func (p *Provider) create(ctx context.Context, at place, req provider.CreateRequest, insert *computepb.InsertInstanceRequest) error {
	op, err := p.insert(ctx, at, req, insert)
	switch {
	case hasStatus(err, http.StatusConflict):
		return p.adopt(ctx, at, req, err)
	case err != nil && ctx.Err() == nil && unsure(err):
		return p.lookAfter(ctx, at, req, err)
	case hasStatus(err, http.StatusNotFound):
		return notThere(err)
	case err != nil:
		return err
	}
	return operationError(op)
}

func (p *Provider) insert(ctx context.Context, at place, req provider.CreateRequest, insert *computepb.InsertInstanceRequest) (*computepb.Operation, error) {
	return callWith(ctx, p, CallInfo{Method: "instances.insert", Scope: at.zone, Name: at.name}, req.UserData,
		func(ctx context.Context, c *clients) (*computepb.Operation, error) {
			op, err := c.instances.Insert(ctx, insert, retries())
			if err != nil {
				return nil, err
			}
			return op.Proto(), nil
		})
}

// notThere is a 404 of an insert: it is about what the request names, never about
// the instance.
func notThere(err error) error {
	known := classify(err)
	known.Class = provider.ErrPermanent
	return known
}

// lookAfter tells what became of an insert whose answer got lost. Without an
// instance it may still land.
func (p *Provider) lookAfter(ctx context.Context, at place, req provider.CreateRequest, lost error) error {
	in, err := p.read(ctx, at)
	if err != nil {
		return lost
	}
	return p.same(ctx, at, req, in)
}

// adopt tells whether the instance that holds the name is the request's own and
// stays.
func (p *Provider) adopt(ctx context.Context, at place, req provider.CreateRequest, conflict error) error {
	in, err := p.read(ctx, at)
	if absent(err, at.name) {
		// It went, is not to be seen yet, or is a disk.
		known := classify(conflict)
		return provider.Transientf(known.Code, "the name was taken a moment ago, and now no instance has it: %w", known.Err)
	}
	if err != nil {
		return err
	}
	return p.same(ctx, at, req, in)
}

func (p *Provider) same(ctx context.Context, at place, req provider.CreateRequest, in *computepb.Instance) error {
	r, err := readRecord(in)
	if errors.Is(err, errNotOurs) {
		return collision("an instance that this library has not made holds the name")
	}
	if err != nil {
		return err
	}
	if err := r.owns(in, req); err != nil {
		return collision("%w", err)
	}
	if stateOf(in.GetStatus()) == provider.StateStopping {
		return provider.Transientf("", "an instance of the same name is still %s", in.GetStatus())
	}
	return p.stays(ctx, at, in)
}

func collision(format string, args ...any) error {
	return provider.Permanentf(provider.CodeCollision, format, args...)
}

// stays is ErrTransient where a deletion of the instance waits for its turn: until
// then its status tells nothing. Whoever may not list operations goes without.
func (p *Provider) stays(ctx context.Context, at place, in *computepb.Instance) error {
	ops, err := p.operationsOn(ctx, at, "delete")
	if err != nil {
		if errors.Is(classify(err), provider.ErrPermanent) {
			logr.FromContextOrDiscard(ctx).V(1).Info("gcp operations cannot be listed: a deletion that has not begun is not seen", "error", err.Error())
			return nil
		}
		return err
	}
	for _, op := range ops {
		if op.GetTargetId() == in.GetId() && op.GetStatus() != computepb.Operation_DONE {
			return provider.Transientf("", "an instance of the same name is about to be deleted")
		}
	}
	return nil
}
