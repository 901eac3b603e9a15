package health

import (
	"math"
	"math/bits"
	"time"

	"github.com/egressfleet/egress/endpoint"
)

// Latency tells how long a stage took, over the successful probes of all
// endpoints since the engine began. Values are within 7 % of the true ones.
type Latency struct {
	Count         int64
	P50, P90, P99 time.Duration
}

// latencies has a histogram for each stage, and one for the whole.
type latencies [endpoint.StageBody + 1]histogram

// add takes in a successful probe. The whole is kept at index zero.
func (l *latencies) add(r Result) {
	if r.Err != nil {
		return
	}
	l[0].add(r.Timings.Total)
	for s := endpoint.StageDial; s <= endpoint.StageBody; s++ {
		if d := r.Timings.of(s); d != nil && *d > 0 {
			l[s].add(*d)
		}
	}
}

// Latency returns the latencies by stage. The whole probe is under zero.
func (e *Engine) Latency() map[endpoint.Stage]Latency {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := map[endpoint.Stage]Latency{}
	for s := range e.latency {
		if h := &e.latency[s]; h.count > 0 {
			all[endpoint.Stage(s)] = Latency{ //nolint:gosec // an index of the array.
				Count: h.count, P50: h.quantile(0.50), P90: h.quantile(0.90), P99: h.quantile(0.99),
			}
		}
	}
	return all
}

// histogram counts durations in buckets that are an eighth of a power of two
// wide, from a microsecond on.
type histogram struct {
	count   int64
	buckets [40 * 8]int64
}

func (h *histogram) add(d time.Duration) {
	h.count++
	h.buckets[min(bucket(d), len(h.buckets)-1)]++
}

// bucket is the power of two below the microseconds, and the next three bits.
func bucket(d time.Duration) int {
	us := uint64(max(d.Microseconds(), 0))
	if us < 8 {
		return int(us)
	}
	power := bits.Len64(us) - 1
	return (power-2)*8 + int(us>>(power-3)&7)
}

// middle is the middle of a bucket.
func middle(i int) time.Duration {
	if i < 8 {
		return time.Duration(i) * time.Microsecond
	}
	power, eighth := i/8+2, i%8
	low := math.Ldexp(1, power) * (1 + float64(eighth)/8)
	return time.Duration(low*(1+1.0/32)) * time.Microsecond
}

func (h *histogram) quantile(q float64) time.Duration {
	rank := int64(math.Ceil(q * float64(h.count)))
	for i, n := range h.buckets {
		if rank -= n; rank <= 0 {
			return middle(i)
		}
	}
	return 0
}
