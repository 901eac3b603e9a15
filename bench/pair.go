package main

import (
	"fmt"
	"slices"
	"testing"
)

// rounds is how often each side of a pair is measured.
const rounds = 7

// pair measures two sides in turn and returns the ratio of their medians.
func pair(ours, theirs func(*testing.B)) (ratio float64, detail string) {
	var a, b []float64
	for range rounds {
		a = append(a, nsPerOp(ours))
		b = append(b, nsPerOp(theirs))
	}
	return median(a) / median(b), fmt.Sprintf("ours %s, theirs %s (ns: median, least to most of %d rounds)", spread(a), spread(b), rounds)
}

func nsPerOp(f func(*testing.B)) float64 {
	r := testing.Benchmark(f)
	return float64(r.T.Nanoseconds()) / float64(r.N)
}

func median(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	return s[len(s)/2]
}

func spread(v []float64) string {
	return fmt.Sprintf("%.4g (%.4g to %.4g)", median(v), slices.Min(v), slices.Max(v))
}
