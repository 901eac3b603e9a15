package kvm

import (
	"context"
	"time"

	"github.com/digitalocean/go-libvirt"
	"libvirt.org/go/libvirtxml"
)

// The names of an instance's volumes.
func overlayName(name string) string { return name + ".qcow2" }
func seedName(name string) string    { return name + "-seed.iso" }

// Volumes that libvirt still works on, as it does for a moment after each
// upload, are tried again.
const (
	busyPatience = 10 * time.Second
	busyPause    = 50 * time.Millisecond
)

// whileBusy repeats f as long as somebody works on the volume or pool.
func whileBusy(ctx context.Context, f func() error) error { return whileBusyFor(ctx, busyPause, f) }

// whileBusyFor pauses that long each time.
func whileBusyFor(ctx context.Context, pause time.Duration, f func() error) error {
	deadline := time.Now().Add(busyPatience)
	for {
		err := f()
		if !isBusy(err) || time.Now().After(deadline) {
			return err
		}
		if err := sleep(ctx, pause); err != nil {
			return err
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// create makes a volume. One that exists is libvirt's error.
func (c client) create(ctx context.Context, pool libvirt.StoragePool, spec *libvirtxml.StorageVolume) (vol libvirt.StorageVol, err error) {
	text, err := spec.Marshal()
	if err != nil {
		return vol, err
	}
	err = whileBusy(ctx, func() (err error) {
		vol, err = c.createVolume(ctx, pool, spec.Name, text)
		return err
	})
	return vol, err
}

// recreate makes a volume in place of any that has its name.
func (c client) recreate(ctx context.Context, pool libvirt.StoragePool, spec *libvirtxml.StorageVolume) (libvirt.StorageVol, error) {
	vol, err := c.create(ctx, pool, spec)
	if !isLibvirt(err, libvirt.ErrStorageVolExist) {
		return vol, err
	}
	if err := c.remove(ctx, pool, spec.Name); err != nil {
		return vol, err
	}
	return c.create(ctx, pool, spec)
}

// remove deletes the volume with that name, if there is one.
func (c client) remove(ctx context.Context, pool libvirt.StoragePool, name string) error {
	vol, err := c.lookupVolume(ctx, pool, name)
	if err == nil {
		err = whileBusy(ctx, func() error { return c.deleteVolume(ctx, vol) })
	}
	if isLibvirt(err, libvirt.ErrNoStorageVol) {
		return nil
	}
	return err
}

// exists tells whether the pool has a volume with that name.
func (c client) exists(ctx context.Context, pool libvirt.StoragePool, name string) (bool, error) {
	_, err := c.lookupVolume(ctx, pool, name)
	if isLibvirt(err, libvirt.ErrNoStorageVol) {
		return false, nil
	}
	return err == nil, err
}
