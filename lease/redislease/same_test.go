package redislease_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/internal/redistest"
	"github.com/egressfleet/egress/lease"
	"github.com/egressfleet/egress/lease/redislease"
)

// pair is a store of the process and one on Redis that get the same calls.
type pair struct {
	stores      []leaseStore
	held        [2][]*lease.Lease
	generations map[string]uint64
	r           *rand.Rand
	endpoints   int
}

type leaseStore interface {
	lease.Store
	lease.Inventory
}

// A store on Redis does what a lease.Memory does, whatever it is asked for: of the
// same random calls the same comes.
func TestTheStoreDoesWhatAMemoryDoes(t *testing.T) {
	server := redistest.Start(t)
	for seed := range uint64(24) {
		synctest.Test(t, func(t *testing.T) {
			client := redis.NewClient(&redis.Options{
				Addr: server.Addr, Dialer: bubbleDialer(server.Socket),
				MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
			})
			holders := int(seed%3) + 1
			s, err := redislease.New(redislease.Config{Client: client, Fleet: fmt.Sprint("same", seed), Fresh: true, MaxHolders: holders})
			require.NoError(t, err)
			s.SetClock(func() int64 { return time.Now().UnixMicro() })
			m, err := lease.NewMemory(lease.MemoryConfig{MaxHolders: holders})
			require.NoError(t, err)
			defer func() {
				s.Close()
				m.Close()
				_ = client.Close()
				time.Sleep(time.Second) // for the connections to see it
			}()
			p := &pair{stores: []leaseStore{m, s}, generations: map[string]uint64{}, r: rand.New(rand.NewPCG(seed, 1)), endpoints: 12}
			if seed%8 == 7 {
				p.endpoints = 280 // names are not classed by
			}
			p.drive(t)
		})
	}
}

func (p *pair) drive(t *testing.T) {
	t.Helper()
	for i := range p.endpoints {
		p.put(t, strconv.Itoa(i), i, true)
	}
	for range 250 {
		time.Sleep(time.Duration(p.r.IntN(30000)) * time.Millisecond)
		op, i, n := p.r.IntN(18), p.r.IntN(p.endpoints), p.r.IntN(1000)
		id := strconv.Itoa(i)
		if op >= 16 {
			p.generations[id] += uint64(n % 2)
			p.put(t, id, i+n%2, n%5 != 0)
			continue
		}
		req := p.request(id, n)
		first := p.step(t, 0, op, id, n, req)
		require.Equal(t, first, p.step(t, 1, op, id, n, req))
	}
	for i := range p.held[0] {
		require.Equal(t, p.held[0][i].Endpoint().ID, p.held[1][i].Endpoint().ID)
	}
	require.Equal(t, shownOf(t, p.stores[0]), shownOf(t, p.stores[1]))
}

func (p *pair) put(t *testing.T, id string, name int, healthy bool) {
	t.Helper()
	for _, s := range p.stores {
		e := endpoint.Endpoint{ID: id, Generation: p.generations[id], Attributes: map[string]string{"region": strconv.Itoa(name % 3), "name": strconv.Itoa(name)}}
		var err error
		e.URL, err = endpoint.NewURL("http", "192.0.2.7:3128", "", "")
		require.NoError(t, err)
		require.NoError(t, s.Put(t.Context(), e))
		if healthy {
			require.NoError(t, s.SetVerdict(t.Context(), id, endpoint.Verdict{Health: endpoint.Healthy, Generation: e.Generation}))
		}
	}
}

func (p *pair) request(id string, n int) lease.Request {
	req := lease.Request{Holder: "h", Domain: []string{"", "a.example", "b.example"}[n%3], TTL: time.Duration(1+p.r.IntN(300)) * time.Second}
	switch p.r.IntN(6) {
	case 0:
		req.Selector = lease.Selector{{Key: "region", Operator: lease.NotIn, Values: []string{strconv.Itoa(n % 3)}}}
	case 1:
		req.Selector = named(id, strconv.Itoa(n%p.endpoints))
	case 2:
		req.Selector = lease.Selector{{Key: "name", Operator: lease.NotIn, Values: []string{id}}, {Key: "region", Operator: lease.In, Values: []string{"1"}}}
	}
	if n%7 == 0 {
		req.Session = strconv.Itoa(n % 4)
	}
	return req
}

// step makes one call to a store and tells what came of it.
func (p *pair) step(t *testing.T, store, op int, id string, n int, req lease.Request) string {
	t.Helper()
	s, ctx := p.stores[store], t.Context()
	switch op {
	case 12:
		return fmt.Sprint("removed ", s.Remove(ctx, id))
	case 13:
		held, err := s.Drain(ctx, id)
		return fmt.Sprint("drained ", held, err)
	case 14:
		return fmt.Sprint("revoked ", s.Revoke(ctx, id))
	case 15:
		v := endpoint.Verdict{Health: endpoint.Healthy, Generation: p.generations[id], EgressIP: netipOf(fmt.Sprint("198.51.100.", 1+n%3))}
		return fmt.Sprint("seen ", s.SetVerdict(ctx, id, v))
	}
	held := &p.held[store]
	if op >= 5 && len(*held) > 0 {
		return use(t, s, held, op, n)
	}
	l, err := s.TryAcquire(ctx, req)
	var why *lease.UnavailableError
	if errors.As(err, &why) {
		why.Counts.Free += why.Counts.CoolingForDomain // with a session, Redis does not tell them apart
		why.Counts.CoolingForDomain = 0
		return fmt.Sprint(why.Counts, why.Err)
	}
	require.NoError(t, err)
	*held = append(*held, l)
	return fmt.Sprint("acquired ", l.Endpoint().ID)
}

// use does something with one of the leases. What is told of one that has ended
// depends on how long that is remembered, by clocks of their own.
func use(t *testing.T, s lease.Store, held *[]*lease.Lease, op, n int) string {
	t.Helper()
	ctx, at := t.Context(), n%len(*held)
	key := (*held)[at].Key()
	switch op {
	case 5, 6, 7:
		*held = append((*held)[:at:at], (*held)[at+1:]...)
		if op == 7 {
			_ = s.ReleaseUnused(ctx, key)
		} else {
			_ = s.Release(ctx, key)
		}
		return "released"
	case 8, 9, 10:
		kind := []lease.OutcomeKind{lease.OK, lease.TargetBlocked, lease.ProxyFault}[op-8]
		return fmt.Sprint(kind, s.Report(ctx, key, lease.Outcome{Kind: kind}))
	}
	_, err := s.Renew(ctx, key, time.Duration(n)*time.Second)
	return fmt.Sprint("renewed ", err == nil)
}

// shownOf is what a store tells of itself.
func shownOf(t *testing.T, s lease.Store) string {
	t.Helper()
	list, err := s.List(t.Context())
	require.NoError(t, err)
	stats, err := s.Stats(t.Context())
	require.NoError(t, err)
	text := fmt.Sprintf("%+v\n", stats)
	for _, st := range list {
		text += fmt.Sprintln(st.Endpoint.ID, st.Verdict.Health, st.Draining, st.Probation, len(st.Leases), !st.CoolUntil.IsZero(), len(st.CoolDomains))
	}
	return text
}
