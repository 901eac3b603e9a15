package redislease_test

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/internal/redistest"
	"github.com/egressfleet/egress/lease"
	"github.com/egressfleet/egress/lease/redislease"
)

// The short way of ordinary calls does what the long way does, whatever goes before:
// two fleets get the same calls, one by each way, and always give the same.
func TestTheShortWayIsTheLongWay(t *testing.T) {
	server := redistest.Start(t)
	for _, holders := range []int{1, 3} {
		short := open(t, server, redislease.Config{Fleet: fmt.Sprint("short", holders), Fresh: true, MaxHolders: holders})
		long := open(t, server, redislease.Config{Fleet: fmt.Sprint("long", holders), Fresh: true, MaxHolders: holders})
		h := newHands(short, long)
		long.GoTheLongWay()
		for seed := range uint64(4) {
			drive(t, []*redislease.Store{short, long}, h, rand.New(rand.NewPCG(seed, 0)))
		}
	}
}

// drive makes the same random calls to all stores.
func drive(t *testing.T, stores []*redislease.Store, h *hands, r *rand.Rand) {
	t.Helper()
	for i := range 12 {
		for _, s := range stores {
			putWith(t, s, endpoint.Endpoint{ID: strconv.Itoa(i), Attributes: map[string]string{"region": strconv.Itoa(i % 3)}})
		}
	}
	held := make([][]*lease.Lease, len(stores))
	for range 400 {
		op, id, n := r.IntN(15), strconv.Itoa(r.IntN(12)), r.IntN(1000)
		req := lease.Request{Holder: "h", Domain: []string{"", "a.example", "b.example"}[r.IntN(3)], TTL: time.Hour}
		if n%2 == 0 {
			req.Selector = lease.Selector{{Key: "region", Operator: lease.NotIn, Values: []string{strconv.Itoa(n % 3)}}}
		}
		if n%7 == 0 {
			req.Session = strconv.Itoa(n % 4)
		}
		h.turn(time.Duration(r.IntN(30)) * time.Second)
		var first string
		for i, s := range stores {
			did := step(t, s, &held[i], op, id, n, req)
			if i == 0 {
				first = did
			}
			require.Equal(t, first, did)
		}
	}
	for _, s := range stores[1:] {
		assert.Equal(t, shown(t, stores[0]), shown(t, s))
	}
}

// step makes one call and tells what came of it.
func step(t *testing.T, s *redislease.Store, held *[]*lease.Lease, op int, id string, n int, req lease.Request) string {
	t.Helper()
	ctx := t.Context()
	if op < 5 || len(*held) == 0 {
		l, err := s.TryAcquire(ctx, req)
		if err != nil {
			return err.Error()
		}
		*held = append(*held, l)
		return fmt.Sprint("acquired ", l.Endpoint().ID)
	}
	at := n % len(*held)
	l := (*held)[at]
	switch op {
	case 12: // its answer was lost, or it came twice
		again, err := s.AcquireAs(ctx, l.Key().ID, req)
		if err != nil {
			return err.Error()
		}
		return fmt.Sprint("again ", again.Key() == l.Key(), again.Endpoint().ID)
	case 13: // other attributes, while it is leased or not
		region := map[string]string{"region": strconv.Itoa(n % 4)}
		putWith(t, s, endpoint.Endpoint{ID: id, Attributes: region})
		return "put"
	case 14:
		_, err := s.Renew(ctx, l.Key(), time.Duration(n)*time.Second)
		return fmt.Sprint("renewed ", err)
	case 5, 6, 7:
		*held = append((*held)[:at:at], (*held)[at+1:]...)
		if n%5 == 0 { // the answer to the first is lost
			_ = s.Release(ctx, l.Key())
		}
		if op == 7 {
			return fmt.Sprint("unused ", s.ReleaseUnused(ctx, l.Key()))
		}
		return fmt.Sprint("released ", s.Release(ctx, l.Key()))
	case 8:
		return fmt.Sprint("reported ", s.Report(ctx, l.Key(), lease.Outcome{Kind: lease.OK}))
	case 9:
		return fmt.Sprint("blocked ", s.Report(ctx, l.Key(), lease.Outcome{Kind: lease.TargetBlocked}))
	case 10:
		return fmt.Sprint("fault ", s.Report(ctx, l.Key(), lease.Outcome{Kind: lease.ProxyFault}))
	}
	health := []endpoint.Health{endpoint.Healthy, endpoint.Unhealthy}[n%2]
	return fmt.Sprint("judged ", s.SetVerdict(ctx, id, endpoint.Verdict{Health: health}))
}

// shown is what a store tells of itself, without what no two have in common.
func shown(t *testing.T, s *redislease.Store) string {
	t.Helper()
	list, err := s.List(t.Context())
	require.NoError(t, err)
	stats, err := s.Stats(t.Context())
	require.NoError(t, err)
	text := fmt.Sprintf("%+v\n", stats)
	for _, st := range list {
		text += fmt.Sprintln(st.Endpoint.ID, st.Verdict.Health, st.Probation, len(st.Leases), !st.CoolUntil.IsZero(), len(st.CoolDomains))
	}
	return text
}
