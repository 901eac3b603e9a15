package lease

import (
	"cmp"
	"container/list"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/internal/alarm"
	"github.com/egressfleet/egress/internal/check"
)

// MemoryConfig tunes a [Memory]. The zero value is useful. Negative durations
// are refused.
type MemoryConfig struct {
	// MaxHolders is how many may hold one endpoint at a time; 1 if zero. An
	// endpoint that is new or has failed has one until a holder reports OK.
	MaxHolders int
	// DefaultTTL is the length of a lease whose request names none; 1 min if zero.
	DefaultTTL time.Duration
	// MaxTTL caps what is granted at once; 1 h if zero.
	MaxTTL time.Duration
	// MaxLifetime caps the life of a lease with all its renewals; 24 h if zero.
	MaxLifetime time.Duration
	// SessionTTL is how long an unused session is remembered; 30 min if zero.
	SessionTTL time.Duration
	// LockDelay is how long an endpoint stays unused after a lease expired or was
	// revoked; 15 s if zero, as in Consul's sessions.
	LockDelay time.Duration
	// ProxyCooldown is how long an endpoint is not leased after a proxy fault;
	// 30 s if zero. It doubles with each fault up to MaxProxyCooldown, 5 min if
	// zero (both as in Envoy's outlier detection), until an OK.
	ProxyCooldown, MaxProxyCooldown time.Duration
	// DomainCooldown is how long an endpoint is not leased for a domain that
	// blocked it, 5 min if zero. It doubles with each block up to
	// MaxDomainCooldown, 1 h if zero, until an OK from that domain. A longer
	// RetryAfter of the target is followed up to MaxDomainCooldown.
	DomainCooldown, MaxDomainCooldown time.Duration
	// Transport is how the clients of leases connect.
	Transport endpoint.TransportConfig
	// Logger gets one V(1) line per transition. The zero value discards.
	Logger logr.Logger
}

func (c MemoryConfig) withDefaults() (MemoryConfig, error) {
	var problems check.Problems
	for _, d := range []struct {
		path  string
		value *time.Duration
		def   time.Duration
	}{
		{"defaultTTL", &c.DefaultTTL, time.Minute},
		{"maxTTL", &c.MaxTTL, time.Hour},
		{"maxLifetime", &c.MaxLifetime, 24 * time.Hour},
		{"sessionTTL", &c.SessionTTL, 30 * time.Minute},
		{"lockDelay", &c.LockDelay, 15 * time.Second},
		{"proxyCooldown", &c.ProxyCooldown, 30 * time.Second},
		{"maxProxyCooldown", &c.MaxProxyCooldown, 5 * time.Minute},
		{"domainCooldown", &c.DomainCooldown, 5 * time.Minute},
		{"maxDomainCooldown", &c.MaxDomainCooldown, time.Hour},
	} {
		if *d.value < 0 {
			problems.Add(d.path, *d.value, "must not be negative")
		}
		*d.value = cmp.Or(*d.value, d.def)
	}
	if c.DefaultTTL > c.MaxTTL {
		problems.Add("defaultTTL", c.DefaultTTL, fmt.Sprintf("must not be longer than maxTTL, %v", c.MaxTTL))
	}
	if c.MaxHolders < 0 {
		problems.Add("maxHolders", c.MaxHolders, "must not be negative")
	}
	c.MaxHolders = cmp.Or(c.MaxHolders, 1)
	return c, problems.Err()
}

// Memory is a [Store] and [Inventory] within one process. What it holds is gone
// with the process: then all leases are.
type Memory struct {
	cfg MemoryConfig
	log logr.Logger

	// mu guards all below. No caller's code runs while it is held.
	mu       sync.Mutex
	closed   bool
	slots    map[string]*slot
	faces    map[netip.Addr]*face
	sessions map[string]*session
	leases   map[int64]*held  // by token
	ended    map[string]int64 // tokens of leases that expired or were revoked
	index    index
	waiters  list.List // of *waiter, in order of arrival
	alarms   alarm.Clock[matter]
	readers  map[chan Report]struct{}
	used     uint64 // rises with each use of a slot
	token    int64
	prefix   string // of lease IDs: nobody guesses one
	stats    Stats
	outcomes map[OutcomeKind]int64
}

// held is one lease.
type held struct {
	key      Key
	slot     *slot
	holder   string
	domain   string
	granted  time.Time
	deadline time.Time
	alarm    alarm.Alarm[matter]
	lease    Lease
	used     uint64 // the slot's, before this lease
}

// NewMemory returns an empty store. Close it to end its timers.
func NewMemory(cfg MemoryConfig) (*Memory, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("lease.MemoryConfig: %w", err)
	}
	m := &Memory{
		cfg: cfg, log: cfg.Logger,
		slots: map[string]*slot{}, faces: map[netip.Addr]*face{}, sessions: map[string]*session{},
		prefix: rand.Text()[:16] + "-", leases: map[int64]*held{}, ended: map[string]int64{},
		readers: map[chan Report]struct{}{}, outcomes: map[OutcomeKind]int64{},
	}
	m.alarms.Fire = m.onAlarm
	return m, nil
}

// Close revokes all leases and ends all waits with ErrClosed.
func (m *Memory) Close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return
	}
	m.closed = true
	m.alarms.Stop()
	for _, h := range m.leases {
		h.lease.Lose(ErrClosed)
	}
	for e := m.waiters.Front(); e != nil; e = m.waiters.Front() {
		m.waiters.Remove(e)
		e.Value.(*waiter).answer(nil, ErrClosed)
	}
}

// TryAcquire implements [Store].
func (m *Memory) TryAcquire(_ context.Context, req Request) (*Lease, error) {
	req, err := prepare(req)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, ErrClosed
	}
	now := time.Now()
	if s := m.pickLocked(&req, now); s != nil {
		return m.grantLocked(s, req, now), nil
	}
	return nil, m.unavailableLocked(&req, 0)
}

// Acquire implements [Store].
func (m *Memory) Acquire(ctx context.Context, req Request) (*Lease, error) {
	req, err := prepare(req)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return nil, ErrClosed
	}
	if err := ctx.Err(); err != nil {
		defer m.mu.Unlock()
		return nil, m.endOfWaitLocked(&req, 0, err)
	}
	now := time.Now()
	if s := m.pickLocked(&req, now); s != nil {
		defer m.mu.Unlock()
		return m.grantLocked(s, req, now), nil
	}
	w := newWaiter(req)
	element := m.waiters.PushBack(w)
	m.stats.Waits++
	m.mu.Unlock()
	return m.wait(ctx, w, element)
}

func prepare(req Request) (Request, error) {
	if err := req.Validate(); err != nil {
		return req, fmt.Errorf("lease.Request: %w", err)
	}
	req.Domain = canonicalDomain(req.Domain)
	return req, nil
}

// grantLocked leases a free slot.
func (m *Memory) grantLocked(s *slot, req Request, now time.Time) *Lease {
	m.token = max(m.token+1, now.UnixMicro())
	h := &held{
		key:  Key{ID: m.idOf(m.token), Token: m.token},
		slot: s, holder: req.Holder, domain: req.Domain, used: s.used, granted: now,
	}
	h.alarm.About.lease = h
	ttl := m.ttl(req.TTL, h, now)
	h.lease.init(m, Grant{
		Key: h.key, Endpoint: s.endpoint, Holder: req.Holder, Domain: req.Domain, TTL: ttl,
	}, now, &m.cfg.Transport)
	m.leases[h.key.Token] = h
	s.held = append(s.held, h)
	m.used++
	s.used = m.used
	s.unlink()
	m.bindLocked(req.Session, s, now)
	m.setDeadlineLocked(h, now.Add(ttl))
	m.stats.Acquired++
	if log := m.log.V(1); log.Enabled() {
		log.Info("leased", "endpoint", s.endpoint.ID, "holder", req.Holder, "domain", req.Domain, "token", h.key.Token, "ttl", ttl)
	}
	m.settleLocked(s, now)
	return &h.lease
}

// idOf is the ID of the lease with that token.
func (m *Memory) idOf(token int64) string {
	var buffer [48]byte
	return string(strconv.AppendInt(append(buffer[:0], m.prefix...), token, 36))
}

// ttl is what is granted of what a holder wants.
func (m *Memory) ttl(want time.Duration, h *held, now time.Time) time.Duration {
	if want <= 0 {
		want = m.cfg.DefaultTTL
	}
	return min(want, m.cfg.MaxTTL, h.granted.Add(m.cfg.MaxLifetime).Sub(now))
}

func (m *Memory) setDeadlineLocked(h *held, at time.Time) {
	h.deadline = at
	m.alarms.Set(&h.alarm, at)
}

// findLocked returns the lease of that key, or why there is none.
func (m *Memory) findLocked(key Key, now time.Time) (*held, error) {
	if m.closed {
		return nil, ErrClosed
	}
	h, ok := m.leases[key.Token]
	switch {
	case ok && h.key.ID == key.ID:
		return m.checkLocked(h, now)
	case m.ended[key.ID] == key.Token && key.Token != 0:
		return nil, ErrExpired
	}
	return nil, ErrNotHeld
}

// isHeldLocked tells whether the ID is that of a lease, whatever the token.
func (m *Memory) isHeldLocked(id string) bool {
	text, ok := strings.CutPrefix(id, m.prefix)
	token, err := strconv.ParseInt(text, 36, 64)
	return ok && err == nil && m.leases[token] != nil
}

// checkLocked returns the lease if its time has not run out: the alarm for that
// may be late.
func (m *Memory) checkLocked(h *held, now time.Time) (*held, error) {
	if !h.deadline.After(now) {
		m.expireLocked(h, now)
		return nil, ErrExpired
	}
	return h, nil
}

func (m *Memory) expireLocked(h *held, now time.Time) {
	m.stats.Expired++
	m.endLocked(h, ErrExpired, now)
}

// Renew implements [Store].
func (m *Memory) Renew(_ context.Context, key Key, ttl time.Duration) (Grant, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	h, err := m.findLocked(key, now)
	if err != nil {
		return Grant{}, err
	}
	ttl = m.ttl(ttl, h, now)
	if ttl <= 0 {
		m.expireLocked(h, now)
		return Grant{}, fmt.Errorf("%w: it reached the longest lifetime, %v", ErrExpired, m.cfg.MaxLifetime)
	}
	m.setDeadlineLocked(h, now.Add(ttl))
	m.stats.Renewed++
	grant := h.lease.grant
	grant.TTL = ttl
	return grant, nil
}

// Release implements [Store].
func (m *Memory) Release(_ context.Context, key Key) error {
	return m.release(key, false)
}

// ReleaseUnused implements [Store].
func (m *Memory) ReleaseUnused(_ context.Context, key Key) error {
	return m.release(key, true)
}

func (m *Memory) release(key Key, unused bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	h, err := m.findLocked(key, now)
	if errors.Is(err, ErrNotHeld) && !m.isHeldLocked(key.ID) {
		return nil
	}
	if err != nil {
		return err
	}
	if unused && len(h.slot.held) == 1 {
		h.slot.used = h.used
	}
	m.stats.Released++
	m.endLocked(h, ErrReleased, now)
	return nil
}

// endLocked ends a lease for the reason given.
func (m *Memory) endLocked(h *held, cause error, now time.Time) {
	delete(m.leases, h.key.Token)
	m.alarms.Clear(&h.alarm)
	h.lease.Lose(cause)
	if log := m.log.V(1); log.Enabled() {
		log.Info("lease ended", "endpoint", h.slot.endpoint.ID, "holder", h.holder, "token", h.key.Token, "reason", cause.Error())
	}
	if !errors.Is(cause, ErrReleased) {
		m.rememberLocked(h, now)
		h.slot.coolUntil = later(h.slot.coolUntil, now.Add(m.cfg.LockDelay))
	}
	h.slot.dropHeld(h)
	m.settleLocked(h.slot, now)
}

// memory is how long a lease that expired is told from one that never was.
const memory = 10 * time.Minute

func (m *Memory) rememberLocked(h *held, now time.Time) {
	m.ended[h.key.ID] = h.key.Token
	m.alarms.Set(&alarm.Alarm[matter]{About: matter{forget: h.key.ID}}, now.Add(memory))
}

func (s *slot) dropHeld(h *held) {
	s.held = slices.DeleteFunc(s.held, func(other *held) bool { return other == h })
}

// Report implements [Store].
func (m *Memory) Report(_ context.Context, key Key, o Outcome) error {
	if err := o.Validate(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	h, err := m.findLocked(key, now)
	if errors.Is(err, ErrClosed) || err != nil && m.isHeldLocked(key.ID) {
		return err
	}
	m.outcomes[o.Kind]++
	if err != nil {
		m.stats.LateReports++
		return nil
	}
	if o.Domain = canonicalDomain(o.Domain); o.Domain == "" {
		o.Domain = h.domain
	}
	m.applyLocked(h, o, now)
	return nil
}

// applyLocked gives an outcome its consequences. Of the failures of leases that
// were held at one time the first counts: one outage is one fault.
func (m *Memory) applyLocked(h *held, o Outcome, now time.Time) {
	switch o.Kind {
	case OK:
		m.creditLocked(h, o, now)
	case ProxyFault:
		m.faultLocked(h, now)
		m.publishLocked(Report{h.slot.endpoint.ID, h.slot.endpoint.Generation, h.holder, o})
	case TargetBlocked:
		if o.Domain != "" {
			m.blockLocked(h, o, now)
		}
	}
}

func (m *Memory) creditLocked(h *held, o Outcome, now time.Time) {
	h.slot.face.forgive(o.Domain, h.key.Token)
	if h.key.Token > h.slot.faultToken && !h.slot.proven {
		h.slot.faults, h.slot.proven = 0, true
		m.settleLocked(h.slot, now)
	}
}

func (m *Memory) faultLocked(h *held, now time.Time) {
	s := h.slot
	if h.key.Token <= s.faultToken {
		return
	}
	s.faults, s.faultToken, s.proven = s.faults+1, m.token, false
	s.coolUntil = later(s.coolUntil, now.Add(escalate(m.cfg.ProxyCooldown, m.cfg.MaxProxyCooldown, s.faults)))
	m.settleLocked(s, now)
	m.log.V(1).Info("endpoint cools down", "endpoint", s.endpoint.ID, "until", s.coolUntil)
}

// escalate doubles base for each failure after the first, up to limit.
func escalate(base, limit time.Duration, failures int) time.Duration {
	for range min(failures-1, 30) {
		base *= 2
		if base >= limit {
			return limit
		}
	}
	return min(base, limit)
}

// List implements [Store].
func (m *Memory) List(context.Context) ([]Status, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	all := make([]Status, 0, len(m.slots))
	for _, id := range slices.Sorted(maps.Keys(m.slots)) {
		all = append(all, m.slots[id].status(now))
	}
	return all, nil
}

// Stats implements [Store].
func (m *Memory) Stats(context.Context) (Stats, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	stats := m.stats
	stats.Outcomes = maps.Clone(m.outcomes)
	stats.Waiting = m.waiters.Len()
	stats.Endpoints = m.countLocked(&Request{}, time.Now())
	return stats, nil
}

func (m *Memory) countLocked(req *Request, now time.Time) Counts {
	var c Counts
	for _, s := range m.slots {
		c.Total++
		*m.place(s, &c, req, now)++
	}
	return c
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
