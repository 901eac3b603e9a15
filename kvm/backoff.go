package kvm

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/egressfleet/egress/provider"
)

// After a failed dial a host is left alone for a time that doubles from the
// first to the last of these, but at least for as long as the dial took.
const (
	backoffFirst = 250 * time.Millisecond
	backoffLast  = 30 * time.Second
)

// backoff keeps the failure of a host's last dial, so that those who come soon
// after are told at once and do not each wait for another. The zero value is
// ready.
type backoff struct {
	mu       sync.Mutex
	failures int
	failure  *provider.Error // nil when the last dial succeeded
	until    time.Time
	// stamp is of the files that the failed dial read.
	stamp fileStamp
}

// check returns the failure while it counts. It no longer does when a file of
// the dial has changed.
func (b *backoff) check(now time.Time, stamp fileStamp) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failure == nil || !now.Before(b.until) || !stamp.same(b.stamp) {
		return nil
	}
	again := *b.failure
	again.RetryAfter = b.until.Sub(now)
	again.Err = fmt.Errorf("%w (of the last attempt; the next is in %s)", again.Err, again.RetryAfter.Round(10*time.Millisecond))
	return &again
}

// note takes the result of a dial.
func (b *backoff) note(now time.Time, stamp fileStamp, took time.Duration, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil {
		b.failures, b.failure = 0, nil
		return
	}
	if !stamp.same(b.stamp) {
		b.failures = 0
	}
	pause := min(max(backoffFirst<<min(b.failures, 20), took), backoffLast)
	b.failures++
	b.stamp = stamp
	if errors.Is(err, context.DeadlineExceeded) {
		err = provider.Transientf(codeNoAnswer, "the host does not answer: %w", err)
	}
	b.failure = classify(err)
	b.until = now.Add(pause - time.Duration(rand.Int64N(int64(pause)/4+1))) //nolint:gosec // spreads callers.
}

// isDialFailure tells a failure of the host from one of a caller that left.
func isDialFailure(ctx context.Context, err error) bool {
	return err != nil && (ctx.Err() == nil || errors.Is(context.Cause(ctx), errDialTimeout))
}
