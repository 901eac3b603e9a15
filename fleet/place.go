package fleet

import (
	"context"
	"errors"
	"time"

	"github.com/egressfleet/egress/provider"
)

// shortage is a placement that had no room, and when it may be tried again.
type shortage struct {
	until    time.Time
	failures int
}

// The time that a placement is left alone after a shortage doubles from the first
// to the second of these.
const (
	shortageFirst = time.Minute
	shortageMost  = 15 * time.Minute
)

// choose asks the provider for a place, and records it before Create is called.
func (f *Fleet) choose(ctx context.Context, m *member, req provider.CreateRequest) (provider.CreateRequest, error) {
	f.mu.Lock()
	avoid := f.shortLocked(time.Now())
	f.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, f.cfg.CallTimeout)
	defer cancel()
	placement, err := provider.Place(ctx, f.cfg.Provider, provider.PlaceRequest{
		UID: req.UID, Placement: req.Placement, Avoid: avoid,
	})
	if err != nil {
		return req, err
	}
	req.Placement = placement
	f.mu.Lock()
	m.req = req
	f.mu.Unlock()
	return req, nil
}

// shortLocked are the placements that are left alone at present.
func (f *Fleet) shortLocked(now time.Time) (all []provider.Placement) {
	for p, s := range f.shortages {
		if s.until.After(now) {
			all = append(all, p)
		}
	}
	return all
}

// waitForRoomLocked puts a member off while its placement has no room, and tells
// whether it did: one at a time asks again, not all.
func (f *Fleet) waitForRoomLocked(m *member, now time.Time) bool {
	s, short := f.shortages[m.req.Placement]
	if !short || !s.until.After(now) || m.req.UID == "" {
		return false
	}
	m.due = s.until
	return true
}

// avoidLocked has a placement left alone for a while, and returns until when.
func (f *Fleet) avoidLocked(p provider.Placement, now time.Time, err error) time.Time {
	s := f.shortages[p]
	if s == nil {
		s = &shortage{}
		f.shortages[p] = s
	}
	pause := min(shortageFirst<<min(s.failures, 20), shortageMost)
	var known *provider.Error
	if errors.As(err, &known) {
		pause = max(pause, known.RetryAfter)
	}
	s.failures++
	s.until = now.Add(pause)
	return s.until
}

// noRoomLocked remembers a shortage. Where the provider can choose another place,
// the member makes way for one with another UID there.
func (f *Fleet) noRoomLocked(m *member, now time.Time, err error) {
	until := f.avoidLocked(m.req.Placement, now, err)
	f.failedLocked(m, now, "Create", err)
	m.due = until
	if _, ok := provider.As[provider.Placer](f.cfg.Provider); ok {
		reason := m.reason
		m.enter(PhaseDeleting, now, reason)
		f.eventLocked(m, Event{Type: Replacing, Reason: "no room at its place: " + reason})
	}
}
