package kvm

import (
	"context"
	"errors"

	"github.com/digitalocean/go-libvirt"
)

// Delete implements [provider.Provider]. The guest is not asked to shut down.
// When it returns nil the instance is gone, with its volumes and its firmware
// variables; the base image stays.
func (p *Provider) Delete(ctx context.Context, id string) error {
	h, name, err := p.find("Delete", id)
	if err != nil {
		return err
	}
	return p.operate(ctx, "Delete", h, name, func(ctx context.Context, o *operation) error {
		return p.exclusively(ctx, h, name, o.erase)
	})
}

// erase removes everything of the instance, the domain last.
func (o *operation) erase(ctx context.Context) error {
	dom, err := o.client().lookupDomain(ctx, o.name)
	if isLibvirt(err, libvirt.ErrNoDomain) {
		return o.runSteps(ctx, []step{{"volumes", o.removeVolumes}})
	}
	if err != nil {
		return err
	}
	if _, err := o.readRecord(ctx, dom); err != nil {
		return err
	}
	return o.runSteps(ctx, []step{
		{"destroy", func(ctx context.Context) error { return o.destroy(ctx, dom) }},
		{"volumes", o.removeVolumes},
		{"undefine", func(ctx context.Context) error { return o.undefine(ctx, dom) }},
	})
}

func (o *operation) destroy(ctx context.Context, dom libvirt.Domain) error {
	err := o.client().destroyDomain(ctx, dom)
	if isLibvirt(err, libvirt.ErrOperationInvalid) || isLibvirt(err, libvirt.ErrNoDomain) {
		return nil // it does not run
	}
	return err
}

// removeVolumes removes overlay and seed by their names. Without the pool there
// is nothing to remove.
func (o *operation) removeVolumes(ctx context.Context) error {
	err := o.removeFrom(ctx, o.host.facts.pool)
	if isLibvirt(err, libvirt.ErrNoStoragePool) {
		// The pool may have been defined anew since.
		o.host.facts.forget()
		err = o.removeFrom(ctx, nil)
	}
	if isLibvirt(err, libvirt.ErrNoStoragePool) {
		return nil
	}
	return err
}

// removeFrom takes the pool that is known, else looks for it.
func (o *operation) removeFrom(ctx context.Context, known func() (libvirt.StoragePool, bool)) error {
	c := o.client()
	pool, ok := libvirt.StoragePool{}, false
	if known != nil {
		pool, ok = known()
	}
	if !ok {
		var err error
		if pool, err = c.lookupPool(ctx, o.host.Pool); err != nil {
			return err
		}
	}
	return errors.Join(c.remove(ctx, pool, overlayName(o.name)), c.remove(ctx, pool, seedName(o.name)))
}

// undefineFlags are tried in this order: an old libvirt refuses flags that it
// does not know, and by then the domain has nothing of theirs.
var undefineFlags = []libvirt.DomainUndefineFlagsValues{
	libvirt.DomainUndefineManagedSave | libvirt.DomainUndefineSnapshotsMetadata | libvirt.DomainUndefineCheckpointsMetadata | libvirt.DomainUndefineNvram,
	libvirt.DomainUndefineManagedSave | libvirt.DomainUndefineSnapshotsMetadata | libvirt.DomainUndefineNvram,
	libvirt.DomainUndefineManagedSave | libvirt.DomainUndefineNvram,
	libvirt.DomainUndefineManagedSave,
	0,
}

func (o *operation) undefine(ctx context.Context, dom libvirt.Domain) (err error) {
	for _, flags := range undefineFlags {
		err = o.client().undefineDomain(ctx, dom, flags)
		if !isLibvirt(err, libvirt.ErrInvalidArg) && !isLibvirt(err, libvirt.ErrNoSupport) {
			break
		}
	}
	if err != nil && !isLibvirt(err, libvirt.ErrNoDomain) {
		return err
	}
	o.host.seen.drop(o.name)
	return nil
}
