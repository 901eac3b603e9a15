package redislease

import (
	"context"
	"fmt"
	"time"

	"github.com/egressfleet/egress/lease"
)

// Renew implements [lease.Store].
func (s *Store) Renew(ctx context.Context, key lease.Key, ttl time.Duration) (lease.Grant, error) {
	r, err := s.do(ctx, s.lua.renew, key.ID, key.Token, micros(s.cfg.ttl(ttl)), micros(s.cfg.MaxLifetime))
	if err != nil {
		return lease.Grant{}, err
	}
	switch word, err := r.word("lease", "expired", "lifetime", "wrong", "unknown"); word {
	case "":
		return lease.Grant{}, err
	case "lease":
		return s.renewed(key, r.list(1))
	case "expired":
		return lease.Grant{}, lease.ErrExpired
	case "lifetime":
		return lease.Grant{}, fmt.Errorf("%w: it reached the longest lifetime, %v", lease.ErrExpired, s.cfg.MaxLifetime)
	}
	return lease.Grant{}, lease.ErrNotHeld
}

// renewed reads what was granted, which keeps its token.
func (s *Store) renewed(key lease.Key, r reply) (lease.Grant, error) {
	grant, err := s.grantOf(key.ID, r)
	if err == nil && grant.Key != key {
		err = fmt.Errorf("%w: the token of a renewal", errUnreadable)
	}
	if err != nil {
		return lease.Grant{}, err
	}
	return grant, nil
}

// Release implements [lease.Store]. It is sent even where ctx has ended.
func (s *Store) Release(ctx context.Context, key lease.Key) error { return s.release(ctx, key, false) }

// ReleaseUnused implements [lease.Store]. It is sent even where ctx has ended.
func (s *Store) ReleaseUnused(ctx context.Context, key lease.Key) error {
	return s.release(ctx, key, true)
}

func (s *Store) release(ctx context.Context, key lease.Key, unused bool) error {
	args := []any{key.ID, key.Token}
	if unused {
		args = append(args, "unused")
	}
	r, err := s.do(ctx, s.lua.release, args...)
	if err != nil {
		return err
	}
	if log := s.log.V(1); log.Enabled() {
		log.Info("lease ended", "token", key.Token, "reason", lease.ErrReleased.Error(), "answer", r.text(0))
	}
	word, err := r.word("ok", "expired", "wrong", "unknown")
	switch word {
	case "expired":
		return lease.ErrExpired
	case "wrong":
		return lease.ErrNotHeld
	}
	return err
}

// Report implements [lease.Store]. One whose answer is lost and that is sent again
// may be counted twice; its consequences are had once.
func (s *Store) Report(ctx context.Context, key lease.Key, o lease.Outcome) error {
	if err := o.Validate(); err != nil {
		return err
	}
	domain := canonicalDomain(o.Domain)
	r, err := s.do(ctx, s.lua.report, key.ID, key.Token, string(o.Kind), domain, micros(o.RetryAfter),
		micros(s.cfg.ProxyCooldown), micros(s.cfg.MaxProxyCooldown),
		micros(s.cfg.DomainCooldown), micros(s.cfg.MaxDomainCooldown), marshal(o))
	if err != nil {
		return err
	}
	word, err := r.word("ok", "late", "wrong")
	if word == "wrong" {
		return lease.ErrNotHeld
	}
	return err
}

// listPage is how many endpoints one call of List reads: Redis serves nobody else
// meanwhile.
const listPage = 500

// List implements [lease.Store]. It reads page by page: what changes meanwhile may be
// seen or not.
func (s *Store) List(ctx context.Context) ([]lease.Status, error) {
	var all []lease.Status
	for after := ""; ; {
		r, err := s.do(ctx, s.lua.reads, after, listPage)
		if err != nil {
			return nil, err
		}
		now, ok := r.isNumber(0)
		page := r.list(1)
		if !ok || page == nil {
			return nil, fmt.Errorf("%w: a list of endpoints", errUnreadable)
		}
		for i := range page {
			st, err := s.statusOf(page.list(i), now)
			if err == nil && st.Endpoint.ID <= after {
				err = fmt.Errorf("%w: the order of endpoints", errUnreadable)
			}
			if err != nil {
				return nil, err
			}
			all = append(all, st)
			after = st.Endpoint.ID
		}
		if len(page) < listPage {
			return all, nil
		}
	}
}

// Stats implements [lease.Store]. It counts for all stores of the fleet.
func (s *Store) Stats(ctx context.Context) (lease.Stats, error) {
	r, err := s.do(ctx, s.lua.stats)
	if err != nil {
		return lease.Stats{}, err
	}
	return statsOf(r)
}

func statsOf(r reply) (lease.Stats, error) {
	meta, standing := r.list(0), r.list(2)
	if meta == nil || standing == nil {
		return lease.Stats{}, fmt.Errorf("%w: the statistics", errUnreadable)
	}
	n := map[string]int64{}
	for i := 0; i+1 < len(meta); i += 2 {
		n[meta.text(i)] = meta.count(i + 1)
	}
	stats := lease.Stats{
		Acquired: n["n:acquired"], Released: n["n:released"], Renewed: n["n:renewed"], Expired: n["n:expired"], Revoked: n["n:revoked"],
		Waits: n["n:waits"], Canceled: n["n:canceled"], WaitTime: duration(n["n:waited"]),
		Outcomes: map[lease.OutcomeKind]int64{}, LateReports: n["n:late"], DroppedReports: n["n:dropped"],
		Waiting: int(r.count(1)), Endpoints: countsOf(standing),
	}
	for name, count := range n {
		if kind, ok := cutOutcome(name); ok {
			stats.Outcomes[kind] = count
		}
	}
	return stats, nil
}
