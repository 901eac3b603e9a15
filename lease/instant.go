package lease

import (
	"math"
	"time"
)

// instant is a moment by the monotonic clock, as the time since an origin: a third
// of the size of a time.Time, and read in half the time. Zero is long past.
type instant time.Duration

// origin lies before all that a program deals with, and before the year 2000, when
// the clock of testing/synctest begins.
var origin = time.Now().Add(-50 * 365 * 24 * time.Hour)

func thisInstant() instant { return instant(time.Since(origin)) }

func instantOf(t time.Time) instant { return instant(t.Sub(origin)) }

// plus is later by d, or as late as can be said.
func (i instant) plus(d time.Duration) instant {
	sum := i + instant(d)
	if d > 0 && sum < i {
		return math.MaxInt64
	}
	return sum
}

// since is how long it is from the other to this.
func (i instant) since(other instant) time.Duration { return time.Duration(i - other) }

// until is how long it is from now to this.
func (i instant) until() time.Duration { return i.since(thisInstant()) }

func (i instant) microseconds() int64 { return time.Duration(i).Microseconds() }

// time is the moment by today's wall clock, and never sooner.
func (i instant) time() time.Time {
	until := i.until()
	return time.Now().Add(until)
}
