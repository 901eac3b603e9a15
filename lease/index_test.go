package lease_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/lease"
)

// modelSlot is what a store must know of an endpoint to choose.
type modelSlot struct {
	attributes map[string]string
	used       int
	healthy    bool
	lease      *lease.Lease
}

// model is a store that looks at everything each time.
type model struct {
	slots map[string]*modelSlot
	used  int
}

// choose returns the least recently used free endpoint; empty for none.
func (m *model) choose(s lease.Selector) (best string) {
	for id, slot := range m.slots {
		if slot.healthy && slot.lease == nil && s.Matches(slot.attributes) && (best == "" || slot.used < m.slots[best].used) {
			best = id
		}
	}
	return best
}

// attributeKeys are more than a store indexes.
const attributeKeys = 20

func randomAttributes(r *rand.Rand) map[string]string {
	out := map[string]string{}
	for k := range attributeKeys {
		if v := r.IntN(4); v > 0 {
			out[fmt.Sprintf("key-%d", k)] = strconv.Itoa(v)
		}
	}
	return out
}

// randomSelector asks for one or two of the keys below limit.
func randomSelector(r *rand.Rand, limit int) (s lease.Selector) {
	for range 1 + r.IntN(2) {
		one := lease.Requirement{Key: fmt.Sprintf("key-%d", r.IntN(limit)), Operator: []lease.Operator{lease.In, lease.NotIn, lease.Exists, lease.DoesNotExist}[r.IntN(4)]}
		if one.Operator == lease.In || one.Operator == lease.NotIn {
			one.Values = []string{strconv.Itoa(1 + r.IntN(3))}
		}
		s = append(s, one)
	}
	return s
}

// Attributes become known to the store one after the other, while endpoints are
// leased, unhealthy, changed and removed. Its choice is that of a search.
func TestTheIndexChoosesAsASearchWould(t *testing.T) {
	for seed := range uint64(8) {
		r := rand.New(rand.NewPCG(seed, 1))
		m := newMemory(t, lease.MemoryConfig{})
		want := &model{slots: map[string]*modelSlot{}}
		granted := 0
		for step := range 2000 {
			id := strconv.Itoa(r.IntN(40))
			slot := want.slots[id]
			switch action := r.IntN(10); {
			case slot == nil || action == 0: // it comes, or its attributes change
				e := proxy(t, id)
				e.Attributes = randomAttributes(r)
				require.NoError(t, m.Put(t.Context(), e))
				if slot == nil {
					want.used++
					want.slots[id] = &modelSlot{used: want.used, attributes: e.Attributes}
					break
				}
				slot.attributes = e.Attributes
			case action == 1:
				slot.healthy = !slot.healthy
				verdict := healthy(1)
				if !slot.healthy {
					verdict.Health = endpoint.Unhealthy
				}
				require.NoError(t, m.SetVerdict(t.Context(), id, verdict))
			case action == 2 && slot.lease == nil:
				require.NoError(t, m.Remove(t.Context(), id))
				delete(want.slots, id)
			case action < 6 && slot.lease != nil:
				require.NoError(t, slot.lease.Release(t.Context()))
				slot.lease = nil
			default:
				s := randomSelector(r, 1+step*attributeKeys/2000)
				l, err := m.TryAcquire(t.Context(), lease.Request{Holder: "test", Selector: s})
				best := want.choose(s)
				if best == "" {
					require.Error(t, err, "%s", s)
					break
				}
				require.NoError(t, err, "%s", s)
				require.Equal(t, best, l.Endpoint().ID, "seed %d, step %d: %s", seed, step, s)
				want.used++
				want.slots[best].used, want.slots[best].lease = want.used, l
				granted++
			}
		}
		require.Greater(t, granted, 100)
	}
}

// The values of two attributes are told apart, whatever is in them.
func TestAttributesOfOddValuesAreToldApart(t *testing.T) {
	m := newMemory(t, lease.MemoryConfig{})
	for id, attributes := range map[string]map[string]string{
		"one":   {"a": "x\x00=y"},
		"other": {"a": "x", "b": "y\x00"},
	} {
		e := proxy(t, id)
		e.Attributes = attributes
		require.NoError(t, m.Put(t.Context(), e))
		require.NoError(t, m.SetVerdict(t.Context(), id, healthy(1)))
	}
	for range 2 {
		l, err := m.TryAcquire(t.Context(), lease.Request{Holder: "test", Selector: lease.Selector{
			{Key: "a", Operator: lease.Exists}, {Key: "b", Operator: lease.DoesNotExist},
		}})
		require.NoError(t, err)
		require.Equal(t, "one", l.Endpoint().ID)
		require.NoError(t, l.Release(t.Context()))
	}
}

// BenchmarkFirstUseOfAnAttribute is the first acquire by an attribute that no
// selector has asked for before.
func BenchmarkFirstUseOfAnAttribute(b *testing.B) {
	ctx := context.Background()
	req := lease.Request{Holder: "bench", Selector: lease.Selector{{Key: "region", Operator: lease.In, Values: []string{"eu"}}}}
	for _, n := range []int{1000, 10_000, 100_000, 1_000_000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			e := proxy(b, "")
			for b.Loop() {
				b.StopTimer()
				m, err := lease.NewMemory(lease.MemoryConfig{})
				require.NoError(b, err)
				for i := range n {
					e.ID, e.Attributes = strconv.Itoa(i), map[string]string{"region": []string{"eu", "us"}[i%2]}
					require.NoError(b, m.Put(ctx, e))
					require.NoError(b, m.SetVerdict(ctx, e.ID, healthy(1)))
				}
				b.StartTimer()
				_, err = m.TryAcquire(ctx, req)
				b.StopTimer()
				require.NoError(b, err)
				m.Close()
				b.StartTimer()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/endpoint")
		})
	}
}
