package manager

import (
	"context"
	"sync"
	"time"

	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// The times of the election. Another replica may lead leaseDuration after the last
// renewal, and not before; renewDeadline after it, this one is not sure any more.
const (
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
)

// term is the election's lock, with a memory of its latest renewal. A process that was
// stopped for a while, and goes on, learns only at its next renewal that another one
// leads; by its clocks it knows at once that it may.
type term struct {
	resourcelock.Interface

	mu      sync.Mutex
	renewed time.Time
}

// Create implements resourcelock.Interface.
func (t *term) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return t.note(record, func() error { return t.Interface.Create(ctx, record) })
}

// Update implements resourcelock.Interface.
func (t *term) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return t.note(record, func() error { return t.Interface.Update(ctx, record) })
}

// note counts a renewal from before it was asked for, which is when others count from
// at the earliest.
func (t *term) note(record resourcelock.LeaderElectionRecord, write func() error) error {
	asked := time.Now()
	err := write()
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case record.HolderIdentity != t.Identity():
		t.renewed = time.Time{} // given up
	case err == nil:
		t.renewed = asked
	}
	return err
}

// leads tells whether nobody else can lead. It looks at the wall clock too, since the
// other one stands still while a machine sleeps.
func (t *term) leads() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	return !t.renewed.IsZero() && now.Sub(t.renewed) < renewDeadline && now.Round(0).Sub(t.renewed.Round(0)) < renewDeadline
}
