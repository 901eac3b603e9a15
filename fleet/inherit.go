package fleet

import (
	"context"
	"errors"
	"hash/fnv"
	"time"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/lease"
	"github.com/egressfleet/egress/provider"
)

// tagKey is the attribute by which a store that others use too tells whose an endpoint
// is.
const tagKey = "tag"

// generationOf is the same in every process, and another for another machine or place.
// So a store that outlives the process knows the endpoint again, with its leases and
// bans. It fits into the numbers of JSON.
func generationOf(uid string, e endpoint.Endpoint) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(uid + " " + e.URL.Scheme() + "://" + e.URL.Host()))
	return h.Sum64() >> 11
}

// inheritIfDueLocked looks once at what a former process has left in the store, when all
// machines that there are have been looked at.
func (f *Fleet) inheritIfDueLocked(now time.Time) {
	if f.inherited || f.inheriting || !f.whole || f.inheritAfter.After(now) || !f.allKnownLocked() {
		return
	}
	f.inheriting = true
	f.work.Go(func() {
		err := f.inherit(f.ctx)
		if err != nil && f.ctx.Err() == nil {
			f.cfg.Logger.V(1).Info("fleet: what a former one left in the store is not known yet", "tag", f.cfg.Tag, "error", err.Error())
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		f.inheriting, f.inherited = false, err == nil
		f.inheritAfter = time.Now().Add(f.cfg.PollInterval)
		f.wake()
	})
}

// allKnownLocked tells whether every endpoint that a former process may have left has its
// member, if it has one.
func (f *Fleet) allKnownLocked() bool {
	for _, m := range f.members.all {
		hidden := m.unseen || m.busy || m.state == provider.StateRunning || m.state == provider.StateUnknown
		if m.adopted && m.phase == PhaseBooting && m.endpointID == "" && hidden {
			return false
		}
	}
	return true
}

// inherit takes out of the store what stands for machines that are gone: they ended
// while no process looked. What a former process was draining and this one keeps is to
// be leased again. An inventory that is no store has nothing to tell.
func (f *Fleet) inherit(ctx context.Context) error {
	store, ok := f.cfg.Inventory.(lease.Store)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, f.cfg.CallTimeout)
	defer cancel()
	list, err := store.List(ctx)
	if errors.Is(err, lease.ErrClosed) {
		return nil
	}
	errs := []error{err}
	for _, s := range list {
		if s.Endpoint.Attributes[tagKey] != f.cfg.Tag || f.claims(s) {
			continue
		}
		f.cfg.Logger.Info("fleet: an endpoint is taken out of the store: its machine is gone", "tag", f.cfg.Tag, "endpoint", s.Endpoint.ID)
		errs = append(errs, f.cfg.Inventory.Remove(ctx, s.Endpoint.ID))
	}
	return errors.Join(errs...)
}

// claims tells whether an endpoint that is in the store has a member, which is told if a
// former process was draining it.
func (f *Fleet) claims(s lease.Status) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	m, ok := f.byEndpoint[s.Endpoint.ID]
	if ok && s.Draining && m.live() {
		m.withheld = true
	}
	return ok
}

// undrain has an endpoint leased again that a former process was draining, once nobody
// holds it. Nothing but its removal undoes a drain: what looks at it next puts it in.
func (f *Fleet) undrain(m *member, id string) error {
	f.mu.Lock()
	withheld := m.withheld
	f.mu.Unlock()
	if !withheld {
		return nil
	}
	held, err := f.cfg.Inventory.Drain(f.ctx, id)
	if held > 0 || err != nil && !errors.Is(err, lease.ErrUnknownEndpoint) {
		return err
	}
	if err := f.cfg.Inventory.Remove(f.ctx, id); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	m.withheld = false
	return nil
}
