package fakelibvirt

import (
	"context"

	"github.com/digitalocean/go-libvirt"
)

// LifecycleEvents implements the function of go-libvirt, for one caller of each
// connection. As with real ones, an event that nobody takes is kept.
func (c *Conn) LifecycleEvents(ctx context.Context) (<-chan libvirt.DomainEventLifecycleMsg, error) {
	events := make(chan libvirt.DomainEventLifecycleMsg, 1000)
	err := run(c, "virConnectDomainEventRegisterAny", "", func(h *Host) error {
		if h.watchers == nil {
			h.watchers = map[*Conn]chan libvirt.DomainEventLifecycleMsg{}
		}
		h.watchers[c] = events
		return nil
	})
	if err != nil {
		return nil, err
	}
	go func() {
		select {
		case <-ctx.Done():
		case <-c.cut:
		}
		c.h.mu.Lock()
		defer c.h.mu.Unlock()
		delete(c.h.watchers, c)
		close(events)
	}()
	return events, nil
}

// Watchers returns how many connections wait for events.
func (h *Host) Watchers() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.watchers)
}

// emit tells of a domain. The host is locked.
func (h *Host) emit(name string, event libvirt.DomainEventType) {
	d := h.domains[name]
	if d == nil {
		return
	}
	for _, w := range h.watchers {
		w <- libvirt.DomainEventLifecycleMsg{Dom: d.handle(name), Event: int32(event)}
	}
}

// CutWatchers ends the connections that wait for events.
func (h *Host) CutWatchers() {
	h.mu.Lock()
	conns := make([]*Conn, 0, len(h.watchers))
	for c := range h.watchers {
		conns = append(conns, c)
	}
	h.mu.Unlock()
	for _, c := range conns {
		c.Cut()
	}
}
