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
	leases   register
	ended    map[uint64]*ending // leases that expired or were revoked, by number
	index    index
	waiters  list.List // of *waiter, in order of arrival
	alarms   alarm.Clock[ringer]
	readers  map[chan Report]struct{}
	used     uint64 // rises with each use of a slot
	token    int64
	epoch    int64 // the origin of instants, in microseconds since 1970
	stats    Stats
	outcomes map[OutcomeKind]int64
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
		leases: register{prefix: rand.Text()[:16] + "-"}, ended: map[uint64]*ending{},
		epoch:   time.Now().UnixMicro() - thisInstant().microseconds(),
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
	for _, h := range m.leases.places {
		if h.lease != nil {
			h.lease.Lose(ErrClosed)
		}
	}
	for e := m.waiters.Front(); e != nil; e = m.waiters.Front() {
		m.waiters.Remove(e)
		e.Value.(*waiter).answer(nil, ErrClosed)
	}
}

// TryAcquire implements [Store].
func (m *Memory) TryAcquire(_ context.Context, req Request) (*Lease, error) {
	if err := prepare(&req); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, ErrClosed
	}
	now := thisInstant()
	if s := m.pickLocked(&req, now); s != nil {
		return m.grantLocked(s, &req, now), nil
	}
	return nil, m.unavailableLocked(&req, 0)
}

// Acquire implements [Store].
func (m *Memory) Acquire(ctx context.Context, req Request) (*Lease, error) {
	if err := prepare(&req); err != nil {
		return nil, err
	}
	l, w, err := m.acquireOrQueue(ctx, &req)
	if w != nil {
		return m.wait(ctx, w)
	}
	return l, err
}

// acquireOrQueue returns a lease, or a waiter that is in the queue, or an error.
func (m *Memory) acquireOrQueue(ctx context.Context, req *Request) (*Lease, *waiter, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, nil, ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return nil, nil, m.endOfWaitLocked(req, 0, err)
	}
	now := thisInstant()
	if s := m.pickLocked(req, now); s != nil {
		return m.grantLocked(s, req, now), nil, nil
	}
	m.stats.Waits++
	return nil, m.queueLocked(req, now), nil
}

func prepare(req *Request) error {
	if err := req.Validate(); err != nil {
		return fmt.Errorf("lease.Request: %w", err)
	}
	req.Domain = canonicalDomain(req.Domain)
	return nil
}

// grantLocked leases a free slot.
func (m *Memory) grantLocked(s *slot, req *Request, now instant) *Lease {
	m.token = max(m.token+1, m.epoch+now.microseconds())
	ttl := m.ttl(req.TTL, m.cfg.MaxLifetime)
	l := &Lease{
		keeper: m, token: m.token, endpoint: s.endpoint, domain: req.Domain,
		ttl: ttl, expires: now.plus(ttl),
	}
	h := m.leases.enter(l)
	h.holder, h.granted, h.deadline, h.used = req.Holder, now, l.expires, s.used
	s.addHeld(h)
	m.used++
	s.used = m.used
	s.unlink()
	m.bindLocked(req.Session, s, now)
	m.wakeLocked(s, h.deadline)
	m.stats.Acquired++
	if log := m.log.V(1); log.Enabled() {
		log.Info("leased", "endpoint", s.endpoint.ID, "holder", req.Holder, "domain", req.Domain, "token", l.token, "ttl", ttl)
	}
	m.settleLocked(s, now)
	return l
}

// ttl is what is granted of what a holder wants, with that much of its lifetime
// left.
func (m *Memory) ttl(want, left time.Duration) time.Duration {
	if want <= 0 {
		want = m.cfg.DefaultTTL
	}
	return min(want, m.cfg.MaxTTL, left)
}

// findLocked returns the lease of that number and token, or why there is none.
func (m *Memory) findLocked(number uint64, token int64) (*held, error) {
	if m.closed {
		return nil, ErrClosed
	}
	if h := m.leases.find(number); h != nil && h.lease.token == token {
		return h, nil
	}
	if e := m.ended[number]; e != nil && e.token == token {
		return nil, ErrExpired
	}
	return nil, ErrNotHeld
}

// findInTimeLocked is findLocked for a lease whose time has not run out: the alarm
// for that may be late.
func (m *Memory) findInTimeLocked(number uint64, token int64, now instant) (*held, error) {
	h, err := m.findLocked(number, token)
	if err == nil && h.deadline <= now {
		m.expireLocked(h, now)
		return nil, ErrExpired
	}
	return h, err
}

func (m *Memory) expireLocked(h *held, now instant) {
	m.stats.Expired++
	m.endLocked(h, ErrExpired, now)
}

// Renew implements [Store].
func (m *Memory) Renew(_ context.Context, key Key, ttl time.Duration) (Grant, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	h, ttl, err := m.renewLocked(m.leases.number(key.ID), key.Token, ttl)
	if err != nil {
		return Grant{}, err
	}
	_ = h.lease.extend(h.deadline) // one whose holder has let go is not
	return h.lease.grantFor(key.ID, ttl), nil
}

func (m *Memory) renewLocked(number uint64, token int64, ttl time.Duration) (*held, time.Duration, error) {
	now := thisInstant()
	h, err := m.findInTimeLocked(number, token, now)
	if err != nil {
		return nil, 0, err
	}
	ttl = m.ttl(ttl, m.cfg.MaxLifetime-now.since(h.granted))
	if ttl <= 0 {
		m.expireLocked(h, now)
		return nil, 0, fmt.Errorf("%w: it reached the longest lifetime, %v", ErrExpired, m.cfg.MaxLifetime)
	}
	h.deadline = now.plus(ttl)
	m.wakeLocked(h.slot, h.deadline)
	m.stats.Renewed++
	return h, ttl, nil
}

// Release implements [Store].
func (m *Memory) Release(_ context.Context, key Key) error {
	return m.end(m.leases.number(key.ID), key.Token, false)
}

// ReleaseUnused implements [Store].
func (m *Memory) ReleaseUnused(_ context.Context, key Key) error {
	return m.end(m.leases.number(key.ID), key.Token, true)
}

// end releases a lease. One that is overdue, but whose alarm is late, is released
// as well: its holder says itself that it has stopped.
func (m *Memory) end(number uint64, token int64, unused bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	h, err := m.findLocked(number, token)
	if errors.Is(err, ErrNotHeld) && m.leases.find(number) == nil {
		return nil
	}
	if err != nil {
		return err
	}
	if unused && h.slot.holders == 1 {
		h.slot.used = h.used
		if h.slot.next != nil {
			h.slot.unlink() // it had a place for others: settling gives it its own
		}
	}
	m.stats.Released++
	// Reading the clock is a tenth of the cost of a lease, and most releases need
	// none: the slot is not cooling down, and nobody waits for it.
	var now instant
	if h.slot.coolUntil != 0 || m.waiters.Len() > 0 {
		now = thisInstant()
	}
	m.endLocked(h, ErrReleased, now)
	return nil
}

// endLocked ends a lease for the reason given.
func (m *Memory) endLocked(h *held, cause error, now instant) {
	s, l := h.slot, h.lease
	l.Lose(cause)
	if log := m.log.V(1); log.Enabled() {
		log.Info("lease ended", "endpoint", s.endpoint.ID, "holder", h.holder, "token", l.token, "reason", cause.Error())
	}
	s.dropHeld(h)
	m.leases.strike(h)
	if cause != ErrReleased { //nolint:errorlint // it is one of three.
		m.rememberLocked(l, now)
		s.coolUntil = max(s.coolUntil, now.plus(m.cfg.LockDelay))
	}
	if s.gone && s.held == nil {
		m.alarms.Clear(&s.alarm)
	}
	m.settleLocked(s, now)
}

// memory is how long a lease that expired is told from one that never was.
const memory = 10 * time.Minute

// ending is what is remembered of a lease that expired or was revoked.
type ending struct {
	number uint64
	token  int64
	alarm  alarm.Alarm[ringer]
}

func (m *Memory) rememberLocked(l *Lease, now instant) {
	e := &ending{number: l.number, token: l.token}
	e.alarm.About = e
	m.ended[e.number] = e
	m.alarms.Set(&e.alarm, now.plus(memory).time())
}

// ring forgets the lease.
func (e *ending) ring(m *Memory, _ instant) { delete(m.ended, e.number) }

// Report implements [Store].
func (m *Memory) Report(_ context.Context, key Key, o Outcome) error {
	return m.tell(m.leases.number(key.ID), key.Token, o)
}

func (m *Memory) tell(number uint64, token int64, o Outcome) error {
	if err := o.Validate(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := thisInstant()
	h, err := m.findInTimeLocked(number, token, now)
	if errors.Is(err, ErrClosed) || err != nil && m.leases.find(number) != nil {
		return err
	}
	m.outcomes[o.Kind]++
	if err != nil {
		m.stats.LateReports++
		return nil
	}
	if o.Domain = canonicalDomain(o.Domain); o.Domain == "" {
		o.Domain = h.lease.domain
	}
	m.applyLocked(h, o, now)
	return nil
}

// applyLocked gives an outcome its consequences. Of the failures of leases that
// were held at one time the first counts: one outage is one fault.
func (m *Memory) applyLocked(h *held, o Outcome, now instant) {
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

func (m *Memory) creditLocked(h *held, o Outcome, now instant) {
	h.slot.face.forgive(o.Domain, h.lease.token)
	if h.lease.token > h.slot.faultToken && !h.slot.proven {
		h.slot.faults, h.slot.proven = 0, true
		m.settleLocked(h.slot, now)
	}
}

func (m *Memory) faultLocked(h *held, now instant) {
	s := h.slot
	if h.lease.token <= s.faultToken {
		return
	}
	s.faults, s.faultToken, s.proven = s.faults+1, m.token, false
	s.coolUntil = max(s.coolUntil, now.plus(escalate(m.cfg.ProxyCooldown, m.cfg.MaxProxyCooldown, s.faults)))
	m.settleLocked(s, now)
	m.log.V(1).Info("endpoint cools down", "endpoint", s.endpoint.ID, "until", s.coolUntil.time())
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
	now := thisInstant()
	all := make([]Status, 0, len(m.slots))
	for _, id := range slices.Sorted(maps.Keys(m.slots)) {
		all = append(all, m.statusLocked(m.slots[id], now))
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
	stats.Endpoints = m.countLocked(&Request{}, thisInstant())
	return stats, nil
}

func (m *Memory) countLocked(req *Request, now instant) Counts {
	var c Counts
	for _, s := range m.slots {
		c.Total++
		*m.place(s, &c, req, now)++
	}
	return c
}
