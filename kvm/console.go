package kvm

import (
	"bytes"
	"context"

	"github.com/digitalocean/go-libvirt"
	"libvirt.org/go/libvirtxml"

	"github.com/egressfleet/egress/provider"
)

var _ provider.ConsoleReader = (*Provider)(nil)

// consolePool is the name of the pool through which the logs of consoles are
// read. It exists only while one is.
const consolePool = "egress-console-logs"

// consoleTries is how often a log is read whose pool another process stops.
const consoleTries = 3

// ReadConsole implements [provider.ConsoleReader]. The log is a file of the host
// that only root may read, and libvirtd is asked for it, by way of a storage
// pool on its directory, which exists while it is read. A host that keeps no log
// is ErrPermanent with the code NoConsole.
func (p *Provider) ReadConsole(ctx context.Context, id string, limit int) ([]byte, error) {
	const op = "ReadConsole"
	h, name, err := p.find(op, id)
	if err != nil {
		return nil, err
	}
	if limit < 1 {
		limit = provider.DefaultConsoleBytes
	}
	var text []byte
	err = p.operate(ctx, op, h, name, func(ctx context.Context, o *operation) error {
		dom, err := o.client().lookupDomain(ctx, name)
		if err != nil {
			return err
		}
		if _, err := o.readRecord(ctx, dom); err != nil { // another's console is none of ours
			return err
		}
		unlock, err := p.names.lock(ctx, h.Name+" consoles")
		if err != nil {
			return err
		}
		defer unlock()
		for try := 1; ; try++ {
			text, err = o.readConsole(ctx, uint64(limit)) //nolint:gosec // positive.
			if try >= consoleTries || !isLibvirt(err, libvirt.ErrNoStoragePool) {
				return err
			}
		}
	})
	return text, err
}

// readConsole reads the end of the log.
func (o *operation) readConsole(ctx context.Context, limit uint64) ([]byte, error) {
	c := o.client()
	pool, mine, err := o.consolePool(ctx)
	if err != nil {
		return nil, err
	}
	if mine {
		defer o.closeConsolePool(ctx, pool)
	} else if err := whileBusy(ctx, func() error { return c.refreshPool(ctx, pool) }); err != nil {
		return nil, err
	}
	vol, err := c.lookupVolume(ctx, pool, o.name+consoleSuffix)
	if isLibvirt(err, libvirt.ErrNoStorageVol) {
		return nil, provider.Permanentf(codeNoConsole, "the host keeps no log of this console in %s: look at it while it runs, by virsh console %s", consoleDirectory, o.name)
	}
	if err != nil {
		return nil, err
	}
	size, err := c.volumeSize(ctx, vol)
	if err != nil || size.physical == 0 {
		return nil, err
	}
	var text bytes.Buffer
	length := min(limit, size.physical)
	err = o.host.download(ctx, vol, &text, size.physical-length, length)
	return text.Bytes(), err
}

// consolePool returns a pool on the directory of the logs, and whether it was
// made for this.
func (o *operation) consolePool(ctx context.Context) (pool libvirt.StoragePool, mine bool, err error) {
	c := o.client()
	pool, err = c.lookupPoolAt(ctx, consoleDirectory)
	if !isLibvirt(err, libvirt.ErrNoStoragePool) {
		return pool, false, err
	}
	text, err := (&libvirtxml.StoragePool{
		Type: "dir", Name: consolePool, Target: &libvirtxml.StoragePoolTarget{Path: consoleDirectory},
	}).Marshal()
	if err != nil {
		return pool, false, err
	}
	pool, err = c.createPool(ctx, consolePool, text)
	if err == nil {
		return pool, true, nil
	}
	if isMissingFile(err) {
		return pool, false, provider.Permanentf(codeNoConsole, "the host has no directory %s for the logs of consoles: %w", consoleDirectory, err)
	}
	// Another process may have been faster.
	if found, lookupErr := c.lookupPoolAt(ctx, consoleDirectory); lookupErr == nil {
		return found, false, nil
	}
	return pool, false, err
}

func (o *operation) closeConsolePool(ctx context.Context, pool libvirt.StoragePool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTime)
	defer cancel()
	err := whileBusy(ctx, func() error { return o.client().stopPool(ctx, pool) })
	if err != nil && !isLibvirt(err, libvirt.ErrNoStoragePool) {
		o.log.Info("the storage pool for the logs of consoles could not be stopped", "pool", pool.Name, "error", err.Error())
	}
}
