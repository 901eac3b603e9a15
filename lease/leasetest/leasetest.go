// Package leasetest is the conformance suite of lease stores. A store's own test
// is one call:
//
//	func TestConformance(t *testing.T) {
//		leasetest.Run(t, leasetest.Harness{New: func(t *testing.T, s leasetest.Settings) (lease.Store, lease.Inventory) { ... }})
//	}
//
// Each case is one clause of the contract in the documentation of package lease,
// and says so when it fails.
package leasetest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/lease"
)

// Settings are what a case needs of a store. The defaults of lease.MemoryConfig
// hold for everything else, and for what is zero.
type Settings struct {
	MaxHolders int
}

// Harness makes stores and lets their time pass.
type Harness struct {
	// New returns an empty store and its inventory, and has them closed by
	// t.Cleanup.
	New func(t *testing.T, s Settings) (lease.Store, lease.Inventory)
	// Run runs a case; the default calls it. A store of this process runs it by
	// synctest.Test, so that its time is the test's.
	Run func(t *testing.T, run func(t *testing.T))
	// Sleep lets that much of the store's and the holder's time pass;
	// time.Sleep if nil.
	Sleep func(time.Duration)
}

// suite is one case at work.
type suite struct {
	*testing.T
	store     lease.Store
	inventory lease.Inventory
	sleep     func(time.Duration)
	why       string
}

// clause is one case: its name, the clause it proves, and how.
type clause struct {
	name, why string
	settings  Settings
	prove     func(*suite)
}

// Run runs every case.
func Run(t *testing.T, h Harness) {
	t.Helper()
	if h.Run == nil {
		h.Run = func(t *testing.T, run func(t *testing.T)) { t.Helper(); run(t) }
	}
	if h.Sleep == nil {
		h.Sleep = time.Sleep
	}
	for _, c := range clauses {
		t.Run(c.name, func(t *testing.T) {
			h.Run(t, func(t *testing.T) {
				store, inventory := h.New(t, c.settings)
				c.prove(&suite{T: t, store: store, inventory: inventory, sleep: h.Sleep, why: c.why})
			})
		})
	}
}

// fail ends the case with the clause that is broken.
func (s *suite) fail(format string, args ...any) {
	s.Helper()
	s.Fatalf("%s\nthe contract: %s", fmt.Sprintf(format, args...), s.why)
}

func (s *suite) must(err error, what string) {
	s.Helper()
	if err != nil {
		s.fail("%s: %v", what, err)
	}
}

func (s *suite) is(err, want error, what string) {
	s.Helper()
	if !errors.Is(err, want) {
		s.fail("%s: got error %v, want one that matches %q", what, err, want)
	}
}

func (s *suite) that(ok bool, format string, args ...any) {
	s.Helper()
	if !ok {
		s.fail(format, args...)
	}
}

func (s *suite) put(id string, attributes map[string]string) {
	s.Helper()
	url, err := endpoint.NewURL("http", "192.0.2.7:3128", "crawler", "p@ss:w#rd%")
	s.must(err, "NewURL")
	s.must(s.inventory.Put(s.Context(), endpoint.Endpoint{ID: id, URL: url, Generation: 1, Attributes: attributes}), "Put")
}

// ready puts healthy endpoints.
func (s *suite) ready(ids ...string) {
	s.Helper()
	for _, id := range ids {
		s.put(id, nil)
		s.judge(id, endpoint.Healthy, 1)
	}
}

func (s *suite) judge(id string, h endpoint.Health, generation uint64) {
	s.Helper()
	s.must(s.inventory.SetVerdict(s.Context(), id, endpoint.Verdict{Health: h, Generation: generation}), "SetVerdict")
}

func request(domain string) lease.Request {
	return lease.Request{Holder: "test", Domain: domain, TTL: time.Minute}
}

func (s *suite) acquire(domain string) *lease.Lease {
	s.Helper()
	l, err := s.store.TryAcquire(s.Context(), request(domain))
	s.must(err, "TryAcquire")
	return l
}

func (s *suite) release(l *lease.Lease) {
	s.Helper()
	s.must(l.Release(s.Context()), "Release")
}

func (s *suite) report(l *lease.Lease, kind lease.OutcomeKind) {
	s.Helper()
	s.must(l.Report(s.Context(), lease.Outcome{Kind: kind}), "Report")
}

func (s *suite) none(domain string, want error) {
	s.Helper()
	l, err := s.store.TryAcquire(s.Context(), request(domain))
	if err == nil {
		s.fail("TryAcquire gave %s", l.Endpoint().ID)
	}
	s.is(err, want, "TryAcquire")
}

// waitFor acquires and tells how long that took.
func (s *suite) waitFor(req lease.Request) (*lease.Lease, time.Duration) {
	s.Helper()
	began := time.Now()
	ctx, cancel := context.WithTimeout(s.Context(), 2*time.Hour)
	defer cancel()
	l, err := s.store.Acquire(ctx, req)
	s.must(err, "Acquire")
	return l, time.Since(began)
}

var clauses = []clause{
	{"OnlyTheHealthyAreLeased", "nothing is leased before a verdict says Healthy", Settings{}, func(s *suite) {
		s.none("", lease.ErrNoMatch)
		s.put("a", nil)
		s.none("", lease.ErrNoneFree)
		s.judge("a", endpoint.Unhealthy, 1)
		s.none("", lease.ErrNoneFree)
		s.judge("a", endpoint.Healthy, 1)
		s.acquire("")
	}},
	{"LateVerdictsAreDropped", "a verdict on another generation than the endpoint's is dropped", Settings{}, func(s *suite) {
		s.put("a", nil)
		s.judge("a", endpoint.Healthy, 7)
		s.none("", lease.ErrNoneFree)
	}},
	{"LeasesAreExclusive", "one endpoint has one holder", Settings{}, func(s *suite) {
		s.ready("a")
		l := s.acquire("")
		s.none("", lease.ErrNoneFree)
		s.release(l)
		s.acquire("")
	}},
	{"TheLeaseCarriesTheProxy", "a lease has the proxy's URL with its credentials", Settings{}, func(s *suite) {
		s.ready("a")
		url, err := s.acquire("").ProxyURL()
		s.must(err, "ProxyURL")
		s.that(url.Reveal() == "http://crawler:p%40ss%3Aw%23rd%25@192.0.2.7:3128", "the URL is %v", url)
	}},
	{"LeastRecentlyUsedFirst", "of those that fit, the least recently used goes first", Settings{}, func(s *suite) {
		s.ready("a", "b", "c")
		var order []string
		for range 6 {
			l := s.acquire("")
			order = append(order, l.Endpoint().ID)
			s.release(l)
		}
		s.that(strings.Join(order, "") == "abcabc", "the order is %v", order)
	}},
	{"UnusedKeepsItsTurn", "ReleaseUnused keeps the endpoint's place", Settings{}, func(s *suite) {
		s.ready("a", "b")
		s.must(s.acquire("").ReleaseUnused(s.Context()), "ReleaseUnused")
		s.that(s.acquire("").Endpoint().ID == "a", "the unused one does not come next")
	}},
	{"UnusedKeepsItsTurnAmongHolders", "ReleaseUnused by the only holder keeps the endpoint's place where it has places for others", Settings{MaxHolders: 2}, func(s *suite) {
		s.ready("a", "b")
		l := s.acquire("")
		s.must(l.Report(s.Context(), lease.Outcome{Kind: lease.OK}), "Report")
		s.must(l.ReleaseUnused(s.Context()), "ReleaseUnused")
		s.that(s.acquire("").Endpoint().ID == "a", "the unused one does not come next")
	}},
	{"UnusedByOneOfTwoHolders", "ReleaseUnused changes nothing about the turn of an endpoint that another holder uses", Settings{MaxHolders: 2}, func(s *suite) {
		s.ready("a")
		one := s.acquire("")
		s.report(one, lease.OK)
		s.ready("b")
		two, err := s.store.TryAcquire(s.Context(), lease.Request{Holder: "test"})
		s.must(err, "TryAcquire")
		s.that(two.Endpoint().ID == "a", "the least recently used does not come next")
		s.must(one.ReleaseUnused(s.Context()), "ReleaseUnused")
		s.that(s.acquire("").Endpoint().ID == "b", "the one in use comes next")
	}},
	{"TokensRise", "the token rises with every lease, and is at least the time in microseconds", Settings{}, func(s *suite) {
		s.ready("a")
		last := time.Now().Add(-time.Hour).UnixMicro()
		for range 20 {
			l := s.acquire("")
			s.that(l.Key().Token > last, "token %d after %d", l.Key().Token, last)
			last = l.Key().Token
			s.release(l)
		}
	}},
	{"KeysAreCheckedWhole", "ID and token are checked together: a wrong token is ErrNotHeld and changes nothing", Settings{}, func(s *suite) {
		s.ready("a")
		l := s.acquire("")
		forged := lease.Key{ID: l.Key().ID, Token: l.Key().Token + 1}
		_, err := s.store.Renew(s.Context(), forged, 0)
		s.is(err, lease.ErrNotHeld, "Renew")
		s.is(s.store.Release(s.Context(), forged), lease.ErrNotHeld, "Release")
		s.is(s.store.ReleaseUnused(s.Context(), forged), lease.ErrNotHeld, "ReleaseUnused")
		s.is(s.store.Report(s.Context(), forged, lease.Outcome{Kind: lease.ProxyFault}), lease.ErrNotHeld, "Report")
		s.must(l.Renew(s.Context(), time.Minute), "Renew by the holder")
	}},
	{"UnknownLeases", "releasing an unknown lease is nil, renewing it ErrNotHeld, a report for it is counted as late", Settings{}, func(s *suite) {
		s.ready("a")
		l := s.acquire("")
		s.release(l)
		s.must(s.store.Release(s.Context(), l.Key()), "Release again")
		_, err := s.store.Renew(s.Context(), l.Key(), 0)
		s.is(err, lease.ErrNotHeld, "Renew")
		s.must(s.store.Report(s.Context(), l.Key(), lease.Outcome{Kind: lease.ProxyFault}), "Report")
		s.acquire("")
		stats, err := s.store.Stats(s.Context())
		s.must(err, "Stats")
		s.that(stats.LateReports == 1, "%d late reports are counted", stats.LateReports)
	}},
	{"OldKeysReachNobodyElse", "the key of a lease that has ended does nothing to the leases after it", Settings{}, func(s *suite) {
		s.ready("a")
		var old []lease.Key
		for range 3 {
			l := s.acquire("")
			old = append(old, l.Key())
			s.release(l)
		}
		l := s.acquire("")
		for _, key := range old {
			_, err := s.store.Renew(s.Context(), key, time.Minute)
			s.is(err, lease.ErrNotHeld, "Renew")
			s.must(s.store.Release(s.Context(), key), "Release")
			s.must(s.store.Report(s.Context(), key, lease.Outcome{Kind: lease.ProxyFault}), "Report")
		}
		s.must(l.Renew(s.Context(), time.Minute), "Renew by the holder")
		s.none("", lease.ErrNoneFree)
		s.release(l)
		s.acquire("")
	}},
	{"ExpiryIsPunctual", "a lease ends when its time is over, not before, and then it is ErrExpired", Settings{}, func(s *suite) {
		s.ready("a")
		l := s.acquire("")
		s.sleep(55 * time.Second)
		s.must(l.Err(), "the lease before its end")
		s.none("", lease.ErrNoneFree)
		s.sleep(6 * time.Second)
		s.is(l.Err(), lease.ErrLost, "the lease after its end")
		_, err := s.store.Renew(s.Context(), l.Key(), 0)
		s.is(err, lease.ErrExpired, "Renew")
		s.is(s.store.Release(s.Context(), l.Key()), lease.ErrExpired, "Release")
		s.must(s.store.Report(s.Context(), l.Key(), lease.Outcome{Kind: lease.OK}), "a late report")
	}},
	{"LockDelay", "after an expiry the endpoint stays unused for the lock delay, 15 s; after a release it does not", Settings{}, func(s *suite) {
		s.ready("a")
		s.acquire("")
		s.sleep(65 * time.Second)
		s.none("", lease.ErrNoneFree)
		s.sleep(11 * time.Second)
		s.release(s.acquire(""))
		s.acquire("")
	}},
	{"RenewExtends", "Renew makes the lease end that much later", Settings{}, func(s *suite) {
		s.ready("a")
		l := s.acquire("")
		for range 5 {
			s.sleep(50 * time.Second)
			s.must(l.Renew(s.Context(), time.Minute), "Renew")
		}
		s.must(l.Err(), "the lease")
	}},
	{"LongestLifetime", "renewing does not go beyond the longest lifetime, 24 h", Settings{}, func(s *suite) {
		s.ready("a")
		l := s.acquire("")
		for i := 0; i < 60 && l.Renew(s.Context(), time.Hour) == nil; i++ {
			s.sleep(30 * time.Minute)
		}
		s.is(l.Err(), lease.ErrExpired, "the lease after a day")
	}},
	{"AcquireWaitsInTurn", "Acquire waits, first come first served", Settings{}, func(s *suite) {
		s.ready("a")
		first := s.acquire("")
		var mu sync.Mutex
		var order []int
		var group sync.WaitGroup
		for i := range 4 {
			group.Go(func() {
				l, _ := s.waitFor(request(""))
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
				s.release(l)
			})
			s.sleep(200 * time.Millisecond)
		}
		s.release(first)
		group.Wait()
		s.that(fmt.Sprint(order) == "[0 1 2 3]", "the order is %v", order)
	}},
	{"AcquireEndsWithItsContext", "when ctx ends, Acquire says why nothing came, matches ctx's error, and takes nothing", Settings{}, func(s *suite) {
		s.ready("a")
		l := s.acquire("")
		ctx, cancel := context.WithTimeout(s.Context(), 2*time.Second)
		defer cancel()
		_, err := s.store.Acquire(ctx, request(""))
		s.is(err, context.DeadlineExceeded, "Acquire")
		s.is(err, lease.ErrNoneFree, "Acquire")
		var why *lease.UnavailableError
		s.that(errors.As(err, &why), "the error is a %T", err)
		s.sleep(time.Second)
		s.release(l)
		s.sleep(15 * time.Second)
		s.acquire("")
	}},
	{"BansAreForOneDomain", "TargetBlocked cools the endpoint down for that domain, whatever its letter case, and a good verdict does not lift it", Settings{}, func(s *suite) {
		s.ready("a")
		l := s.acquire("Shop.Example.")
		s.report(l, lease.TargetBlocked)
		s.release(l)
		s.judge("a", endpoint.Healthy, 1)
		s.none("shop.example", lease.ErrNoneFree)
		s.release(s.acquire("news.example"))
		_, waited := s.waitFor(request("shop.example"))
		s.that(waited > 4*time.Minute && waited < 6*time.Minute, "the cooldown lasted %v, want 5 min", waited)
	}},
	{"FaultsCoolDown", "ProxyFault cools the endpoint down, doubling from 30 s, until an OK; failures of one lease count once", Settings{}, func(s *suite) {
		s.ready("a")
		for _, want := range []time.Duration{30 * time.Second, time.Minute, 2 * time.Minute} {
			l := s.acquire("")
			for range 5 {
				s.report(l, lease.ProxyFault)
			}
			s.release(l)
			l, waited := s.waitFor(request(""))
			s.that(waited > want-2*time.Second && waited < want+5*time.Second, "the cooldown lasted %v, want %v", waited, want)
			s.must(l.ReleaseUnused(s.Context()), "ReleaseUnused")
		}
		l := s.acquire("")
		s.report(l, lease.OK)
		s.report(l, lease.ProxyFault)
		s.release(l)
		_, waited := s.waitFor(request(""))
		s.that(waited < 35*time.Second, "after an OK the cooldown lasted %v", waited)
	}},
	{"NothingElseHasConsequences", "target errors and what is inconclusive change nothing", Settings{}, func(s *suite) {
		s.ready("a")
		for _, kind := range []lease.OutcomeKind{lease.TargetError, lease.Inconclusive, lease.Canceled, lease.OK} {
			l := s.acquire("x.example")
			s.report(l, kind)
			s.release(l)
		}
		err := s.store.Report(s.Context(), s.acquire("").Key(), lease.Outcome{Kind: "odd"})
		s.that(err != nil, "an unknown kind is taken")
	}},
	{"Selectors", "a selector chooses by attributes; what could never match is ErrNoMatch", Settings{}, func(s *suite) {
		for _, region := range []string{"eu", "us"} {
			s.put(region, map[string]string{"region": region})
			s.judge(region, endpoint.Healthy, 1)
		}
		for text, want := range map[string]string{"region=us": "us", "region!=us": "eu", "region in (us,mars)": "us", "region,region notin (us)": "eu"} {
			l := s.selected(text)
			s.that(l.Endpoint().ID == want, "%s chose %s", text, l.Endpoint().ID)
			s.that(l.Endpoint().Attributes["region"] == want, "the attributes are %v", l.Endpoint().Attributes)
			s.release(l)
		}
		_, err := s.store.TryAcquire(s.Context(), lease.Request{Holder: "test", Selector: selector(s, "!region")})
		s.is(err, lease.ErrNoMatch, "!region")
	}},
	{"Sessions", "requests of one session get one endpoint, as long as it may be leased", Settings{}, func(s *suite) {
		s.ready("a", "b", "c")
		req := lease.Request{Holder: "test", Session: "s"}
		l, _ := s.waitFor(req)
		home := l.Endpoint().ID
		s.release(l)
		for range 3 {
			s.release(s.acquire(""))
			l, _ := s.waitFor(req)
			s.that(l.Endpoint().ID == home, "the session moved from %s to %s", home, l.Endpoint().ID)
			s.release(l)
		}
		s.judge(home, endpoint.Unhealthy, 1)
		l, _ = s.waitFor(req)
		s.that(l.Endpoint().ID != home, "the session stays with an unhealthy endpoint")
	}},
	{"SharingBeginsAfterASuccess", "with several holders, an endpoint has one until an OK, and again after a fault", Settings{MaxHolders: 2}, func(s *suite) {
		s.ready("a")
		l := s.acquire("")
		s.none("", lease.ErrNoneFree)
		s.report(l, lease.OK)
		second := s.acquire("")
		s.none("", lease.ErrNoneFree)
		s.report(l, lease.ProxyFault)
		s.report(second, lease.ProxyFault)
		s.release(l)
		s.release(second)
		_, waited := s.waitFor(request(""))
		s.that(waited < 35*time.Second, "a burst counted more than once: %v", waited)
		s.none("", lease.ErrNoneFree)
	}},
	{"DrainAndRevoke", "Drain lets leases end and gives no new ones; Revoke and Remove end them at once", Settings{}, func(s *suite) {
		s.ready("a", "b")
		a, b := s.acquire(""), s.acquire("")
		held, err := s.inventory.Drain(s.Context(), a.Endpoint().ID)
		s.must(err, "Drain")
		s.that(held == 1, "Drain counts %d leases", held)
		s.must(a.Renew(s.Context(), time.Minute), "Renew while draining")
		s.release(a)
		held, err = s.inventory.Drain(s.Context(), a.Endpoint().ID)
		s.must(err, "Drain again")
		s.that(held == 0, "Drain counts %d leases", held)
		s.must(s.inventory.Revoke(s.Context(), b.Endpoint().ID), "Revoke")
		s.that(b.Renew(s.Context(), time.Minute) != nil, "a revoked lease is renewed")
		s.must(s.inventory.Remove(s.Context(), b.Endpoint().ID), "Remove")
		s.must(s.inventory.Remove(s.Context(), b.Endpoint().ID), "Remove again")
		s.is(s.inventory.Revoke(s.Context(), b.Endpoint().ID), lease.ErrUnknownEndpoint, "Revoke of what is gone")
	}},
	{"Reports", "proxy faults come out of Reports", Settings{}, func(s *suite) {
		s.ready("a")
		ctx, cancel := context.WithCancel(s.Context())
		defer cancel()
		reports := s.inventory.Reports(ctx)
		l := s.acquire("")
		s.report(l, lease.OK)
		s.must(l.Report(s.Context(), lease.Outcome{Kind: lease.ProxyFault, Status: 407}), "Report")
		got := <-reports
		s.that(got.EndpointID == "a" && got.Generation == 1 && got.Outcome.Status == 407, "the report is %+v", got)
	}},
	{"Listing", "List shows every endpoint with its state, ordered by ID, and neither credentials to whom they are not due nor tokens", Settings{}, func(s *suite) {
		s.ready("b", "a")
		l := s.acquire("x.example")
		s.report(l, lease.TargetBlocked)
		list, err := s.store.List(s.Context())
		s.must(err, "List")
		s.that(len(list) == 2 && list[0].Endpoint.ID == "a" && list[1].Endpoint.ID == "b", "the list is %+v", list)
		held := list[1]
		s.that(held.Verdict.Health == endpoint.Healthy && len(held.Leases) == 1 && held.Leases[0].ID == l.Key().ID, "the leased one is %+v", held)
		s.that(!held.CoolDomains["x.example"].IsZero(), "the cooldowns are %v", held.CoolDomains)
		shown := fmt.Sprintf("%+v", list)
		s.that(!strings.Contains(shown, "p@ss"), "the list shows a password")
		for _, base := range []int{10, 16, 32, 36} {
			s.that(!strings.Contains(shown, strconv.FormatInt(l.Key().Token, base)), "the list shows a token, in base %d", base)
		}
		stats, err := s.store.Stats(s.Context())
		s.must(err, "Stats")
		s.that(stats.Acquired == 1 && stats.Endpoints.Total == 2 && stats.Endpoints.Leased == 1, "the statistics are %+v", stats)
	}},
	{"BadRequestsAreRefused", "a request without a holder, or with a negative TTL, is refused", Settings{}, func(s *suite) {
		s.ready("a")
		for _, req := range []lease.Request{{}, {Holder: "test", TTL: -1}, {Holder: "test", Selector: lease.Selector{{}}}} {
			_, err := s.store.TryAcquire(s.Context(), req)
			s.that(err != nil, "TryAcquire takes %+v", req)
			_, err = s.store.Acquire(s.Context(), req)
			s.that(err != nil, "Acquire takes %+v", req)
		}
		s.acquire("")
	}},
	{"ManyHoldersNeverShare", "with many holders at once, no two hold one endpoint", Settings{}, func(s *suite) {
		s.ready("a", "b", "c")
		var mu sync.Mutex
		holders := map[string]int{}
		count := func(id string, by int) {
			mu.Lock()
			defer mu.Unlock()
			holders[id] += by
			if holders[id] > 1 {
				s.Errorf("%s has %d holders\nthe contract: %s", id, holders[id], s.why)
			}
		}
		var group sync.WaitGroup
		for range 16 {
			group.Go(func() {
				for range 10 {
					l, _ := s.waitFor(request(""))
					count(l.Endpoint().ID, 1)
					s.sleep(10 * time.Millisecond)
					count(l.Endpoint().ID, -1)
					s.release(l)
				}
			})
		}
		group.Wait()
	}},
}

func selector(s *suite, text string) lease.Selector {
	s.Helper()
	parsed, err := lease.ParseSelector(text)
	s.must(err, "ParseSelector")
	return parsed
}

func (s *suite) selected(text string) *lease.Lease {
	s.Helper()
	l, err := s.store.TryAcquire(s.Context(), lease.Request{Holder: "test", Selector: selector(s, text)})
	s.must(err, text)
	return l
}
