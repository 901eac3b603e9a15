package fleet

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/provider"
)

// watch has members looked at as soon as the provider hears of a change, rather
// than at the next poll, which stays the truth.
func (f *Fleet) watch() {
	err := provider.Watch(f.ctx, f.cfg.Provider, f.cfg.Tag, f.changed)
	if err != nil && f.ctx.Err() == nil {
		f.cfg.Logger.V(1).Info("fleet: the provider's watch ended; polling goes on", "tag", f.cfg.Tag, "error", err.Error())
	}
}

// changed is told of an instance that may have changed, or of all by an empty ID.
func (f *Fleet) changed(id string) {
	now := time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range f.members.all {
		// One whose calls fail is not asked more often by that.
		if (id == "" || m.id == id) && m.failures == 0 && (m.phase == PhaseBooting || m.phase == PhaseServing || m.phase == PhaseDeleting) {
			m.due = earlier(m.due, now)
		}
	}
	f.wake()
}

// whyGone asks why an instance that was accepted came to nothing; nil where
// nobody knows.
func (f *Fleet) whyGone(ctx context.Context, id string) error {
	cause, err := provider.Explain(ctx, f.cfg.Provider, id)
	if err != nil {
		f.cfg.Logger.V(1).Info("fleet: nobody can tell why an instance is gone", "id", id, "error", err.Error())
	}
	return cause
}

// goneLocked ends a member that is not there, for the reason that the backend has.
// One that was refused for want of room makes the next ones wait, or go elsewhere.
func (f *Fleet) goneLocked(m *member, now time.Time, cause error) {
	reason := "it is gone"
	if cause != nil {
		reason = "it was refused after it had been accepted: " + cause.Error()
	}
	if errors.Is(cause, provider.ErrQuotaExceeded) {
		f.avoidLocked(m.req.Placement, now, cause)
	}
	f.endLocked(m, now, PhaseDeleting, reason)
}

// overdue tells whether an instance that was just seen not to run has had its
// time, so that its console is worth reading.
func (f *Fleet) overdue(m *member, s provider.State) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return m.state == s && m.verdict.Health != endpoint.Healthy && time.Since(m.stateSince) >= f.cfg.BootTimeout
}

// lastWords is the end of an instance's console, for a reason.
func (f *Fleet) lastWords(ctx context.Context, id string) string {
	line := provider.LastConsoleLine(ctx, f.cfg.Provider, id)
	if line == "" {
		return ""
	}
	return fmt.Sprintf("; its console ends with %q", line)
}
