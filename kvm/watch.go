package kvm

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/digitalocean/go-libvirt"

	"github.com/egressfleet/egress/provider"
)

var _ provider.Watcher = (*Provider)(nil)

// The pauses before a host is watched again whose connection was lost.
const (
	watchPause    = time.Second
	watchMaxPause = 30 * time.Second
)

// Watch implements [provider.Watcher] by libvirt's events about domains, over one
// more connection to each host. The ID is empty when a host begins to be watched,
// at first and after each interruption. A domain whose tag nobody knows, because
// it is gone, counts as the tag's.
func (p *Provider) Watch(ctx context.Context, tag string, changed func(id string)) error {
	if err := provider.ValidTag(tag); err != nil {
		return p.failure("Watch", "", "", provider.Permanentf(provider.CodeInvalidRequest, "%w", err))
	}
	caller := ctx
	ctx, leave, err := p.life.Enter(ctx)
	if err != nil {
		return p.failure("Watch", "", "", err)
	}
	defer leave()
	hints := make(chan string)
	var hosts sync.WaitGroup
	defer hosts.Wait()
	for _, h := range p.order {
		w := &hostWatch{o: &operation{p: p, host: h}, tag: tag, hints: hints}
		hosts.Go(func() { w.run(p.withLogger(ctx, h, "")) })
	}
	for {
		select {
		case id := <-hints:
			changed(id)
		case <-ctx.Done():
			if caller.Err() == nil {
				return p.failure("Watch", "", "", errClosed)
			}
			return caller.Err()
		}
	}
}

// hostWatch follows one host.
type hostWatch struct {
	o     *operation
	tag   string
	hints chan<- string
}

// run watches until ctx ends.
func (w *hostWatch) run(ctx context.Context) {
	for pause := watchPause; ; pause = min(2*pause, watchMaxPause) {
		start := time.Now()
		err := w.once(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(start) > watchMaxPause {
			pause = watchPause
		}
		w.o.host.log.V(1).Info("the watch of a host was interrupted", "error", err.Error(), "pause", pause.String())
		if sleep(ctx, pause) != nil {
			return
		}
	}
}

var errWatchEnded = errors.New("libvirt ended the events")

// once watches over one connection.
func (w *hostWatch) once(ctx context.Context) error {
	h := w.o.host
	s, err := h.openOwn(ctx, purposeEvents, h.transport)
	if err != nil {
		return err
	}
	defer s.drop("", nil)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events, err := s.only(h.hostConn).lifecycleEvents(ctx)
	if err != nil {
		return err
	}
	// go-libvirt's goroutine ends when its last event was taken.
	defer h.running.Go(func() {
		for range events { //nolint:revive // they are of no interest any more.
		}
	})
	if !w.hint(ctx, "") {
		return ctx.Err()
	}
	for {
		select {
		case event, ok := <-events:
			if !ok {
				return errWatchEnded
			}
			if !w.tell(ctx, event.Dom) {
				return ctx.Err()
			}
		case <-s.lost:
			return s.lostError()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// tell passes on an event about a domain that may be the tag's.
func (w *hostWatch) tell(ctx context.Context, dom libvirt.Domain) bool {
	if !provider.IsName(dom.Name) {
		return true
	}
	if r, err := w.o.readRecord(ctx, dom); err == nil && r.Tag != w.tag {
		return true
	}
	return w.hint(ctx, ids.Format(w.o.host.Name, dom.Name))
}

// hint tells whether the hint was taken, which it is unless ctx ends.
func (w *hostWatch) hint(ctx context.Context, id string) bool {
	select {
	case w.hints <- id:
		return true
	case <-ctx.Done():
		return false
	}
}
