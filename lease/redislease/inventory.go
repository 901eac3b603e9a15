package redislease

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/redis/go-redis/v9"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/lease"
)

// Put implements [lease.Inventory].
func (s *Store) Put(ctx context.Context, e endpoint.Endpoint) error {
	err := e.Validate()
	if err == nil && !inUTF8(e) {
		err = errors.New("id, attributes: must be UTF-8: others would be read back")
	}
	if err != nil {
		return fmt.Errorf("endpoint: %w", err)
	}
	r, err := s.do(ctx, s.lua.put, e.ID, encode(e), strconv.FormatUint(e.Generation, 10), e.URL.Reveal(),
		attributesText(e.Attributes), addressText(e.EgressIP), faceText(e.EgressIP))
	s.tellSharing(e.ID, faceText(e.EgressIP), r)
	return err
}

// Remove implements [lease.Inventory].
func (s *Store) Remove(ctx context.Context, id string) error {
	_, err := s.do(ctx, s.lua.remove, id)
	return err
}

// SetVerdict implements [lease.Inventory].
func (s *Store) SetVerdict(ctx context.Context, id string, v endpoint.Verdict) error {
	r, err := s.change(ctx, s.lua.verdict, id, strconv.FormatUint(v.Generation, 10), string(v.Health), marshal(v),
		addressText(v.EgressIP), faceText(v.EgressIP))
	s.tellSharing(id, faceText(v.EgressIP), r)
	return err
}

func inUTF8(e endpoint.Endpoint) bool {
	for key, value := range e.Attributes {
		if !utf8.ValidString(key) || !utf8.ValidString(value) {
			return false
		}
	}
	return utf8.ValidString(e.ID)
}

func (s *Store) tellSharing(id, address string, r reply) {
	if n := r.number(0); n > 1 {
		s.log.Info("endpoints share an egress address: a ban of one is a ban of all", "address", address, "endpoint", id, "endpoints", n)
	}
}

// Drain implements [lease.Inventory].
func (s *Store) Drain(ctx context.Context, id string) (held int, err error) {
	r, err := s.change(ctx, s.lua.drain, id)
	if err != nil {
		return 0, err
	}
	n, ok := r.isNumber(0)
	if !ok || n < 0 {
		return 0, fmt.Errorf("%w: how many hold an endpoint", errUnreadable)
	}
	return int(n), nil
}

// Revoke implements [lease.Inventory].
func (s *Store) Revoke(ctx context.Context, id string) error {
	_, err := s.change(ctx, s.lua.revoke, id)
	return err
}

// change runs a script that answers "unknown" for an endpoint that is not there.
func (s *Store) change(ctx context.Context, script *redis.Script, id string, args ...any) (reply, error) {
	r, err := s.do(ctx, script, append([]any{id}, args...)...)
	if err == nil && r.text(0) == "unknown" {
		return nil, fmt.Errorf("%w: %s", lease.ErrUnknownEndpoint, id)
	}
	return r, err
}

// statusOf reads an endpoint of a list that was made at that time of the server's.
func (s *Store) statusOf(r reply, now int64) (lease.Status, error) {
	e, err := s.endpoints.of(r.text(1))
	if err == nil && e.ID != r.text(0) {
		err = fmt.Errorf("%w: the ID of an endpoint", errUnreadable)
	}
	if err != nil {
		return lease.Status{}, err
	}
	verdict, err := verdictOf(r.text(2))
	if err != nil {
		return lease.Status{}, err
	}
	at := func(micros int64) time.Time { return time.Now().Add(duration(micros - now)) }
	st := lease.Status{Endpoint: e.Clone(), Verdict: verdict, Draining: r.text(3) == "1", Probation: r.text(4) == "0"}
	if cool := r.number(5); cool > now {
		st.CoolUntil = at(cool)
	}
	leases, bans := r.list(6), r.list(7)
	for i := range leases {
		l := leases.list(i)
		st.Leases = append(st.Leases, lease.Holding{ID: l.text(0), Holder: l.text(1), Domain: l.text(2), ExpiresAt: at(l.number(3))})
	}
	for i := range bans {
		ban := bans.list(i)
		if until := ban.number(1); until > now {
			if st.CoolDomains == nil {
				st.CoolDomains = map[string]time.Time{}
			}
			st.CoolDomains[ban.text(0)] = at(until)
		}
	}
	return st, nil
}

// verdictOf reads a verdict. There may be none yet.
func verdictOf(text string) (v endpoint.Verdict, err error) {
	if text != "" {
		err = json.Unmarshal([]byte(text), &v)
	}
	v.Health = cmp.Or(v.Health, endpoint.Unknown)
	if err != nil || v.Health != endpoint.Healthy && v.Health != endpoint.Unhealthy && v.Health != endpoint.Unknown {
		return endpoint.Verdict{}, fmt.Errorf("%w: a verdict", errUnreadable)
	}
	return v, nil
}

// cutOutcome reads the name of a counter of outcomes, of a kind that is known here.
func cutOutcome(name string) (lease.OutcomeKind, bool) {
	kind, ok := strings.CutPrefix(name, "n:outcome:")
	o := lease.Outcome{Kind: lease.OutcomeKind(kind)}
	return o.Kind, ok && o.Validate() == nil
}
