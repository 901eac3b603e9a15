package gcp

import (
	"context"
	"sync"
	"time"

	"cloud.google.com/go/compute/apiv1/computepb"
)

// Delete implements [provider.Provider]. The guest gets Google's time to shut
// down. A deletion that the API has accepted is not asked for again within two
// minutes, because that counts against the project's limits.
func (p *Provider) Delete(ctx context.Context, id string) error {
	at, err := p.find("Delete", id)
	if err != nil {
		return err
	}
	return p.operate(ctx, "Delete", at, func(ctx context.Context) error { return p.delete(ctx, at) })
}

func (p *Provider) delete(ctx context.Context, at place) error {
	in, err := p.readOwn(ctx, at)
	if isNotFound(err) {
		return nil
	}
	if err != nil || p.deletions.under(at, in.GetId()) {
		return err
	}
	op, err := call(ctx, p, CallInfo{Method: "instances.delete", Scope: at.zone, Name: at.name},
		func(ctx context.Context, c *clients) (*computepb.Operation, error) {
			op, err := c.instances.Delete(ctx, &computepb.DeleteInstanceRequest{Project: p.cfg.Project, Zone: at.zone, Instance: at.name}, retries())
			if err != nil {
				return nil, err
			}
			return op.Proto(), nil
		})
	if absent(err, at.name) {
		return nil
	}
	if err == nil {
		err = operationError(op)
	}
	if err == nil {
		p.deletions.begin(at, in.GetId())
	}
	return err
}

// deletionPatience is how long an accepted deletion is not asked for again.
const deletionPatience = 2 * time.Minute

// deletions are those that the API has accepted. The zero value is ready.
type deletions struct {
	mu  sync.Mutex
	all map[place]deletion
}

// deletion is that of one incarnation of a name.
type deletion struct {
	instance uint64
	begun    time.Time
}

func (d *deletions) begin(at place, instance uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.all == nil {
		d.all = map[place]deletion{}
	}
	for old, deletion := range d.all {
		if time.Since(deletion.begun) > deletionPatience {
			delete(d.all, old)
		}
	}
	d.all[at] = deletion{instance, time.Now()}
}

// under tells whether the instance is being deleted.
func (d *deletions) under(at place, instance uint64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	known, ok := d.all[at]
	return ok && known.instance == instance && time.Since(known.begun) <= deletionPatience
}

func (d *deletions) forget(at place) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.all, at)
}
