package redislease

import (
	"cmp"
	"fmt"
	"regexp"
	"time"

	"github.com/go-logr/logr"
	"github.com/redis/go-redis/v9"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/internal/check"
)

// Config says where a store is and how it leases. Client and Fleet are required.
// Negative durations are refused. All stores of one fleet must have the same
// settings: each transition follows those of the process that asks for it.
type Config struct {
	// Client is the way to Redis or Valkey: a client of one server, of Sentinels or
	// of a Cluster, with its TLS and credentials. It stays the caller's to close.
	Client redis.UniversalClient
	// Fleet names the endpoints that are leased together. Fleets with different
	// names share a server and nothing else.
	Fleet string
	// Fresh says that an empty database is a new fleet. Otherwise it is taken for
	// one that has lost its data, and nothing is leased for MaxTTL. Set it for the
	// first start alone.
	Fresh bool

	// MaxHolders is how many may hold one endpoint at a time; 1 if zero. An
	// endpoint that is new or has failed has one until a holder reports OK.
	MaxHolders int
	// DefaultTTL is the length of a lease whose request names none; 1 min if zero.
	DefaultTTL time.Duration
	// MaxTTL caps what is granted at once; 1 h if zero. It is also how long nothing
	// is leased after data was lost.
	MaxTTL time.Duration
	// MaxLifetime caps the life of a lease with all its renewals; 24 h if zero.
	MaxLifetime time.Duration
	// SessionTTL is how long an unused session is remembered; 30 min if zero.
	SessionTTL time.Duration
	// LockDelay is how long an endpoint stays unused after a lease expired or was
	// revoked; 15 s if zero.
	LockDelay time.Duration
	// ProxyCooldown is how long an endpoint is not leased after a proxy fault;
	// 30 s if zero. It doubles with each fault up to MaxProxyCooldown, 5 min if
	// zero, until an OK.
	ProxyCooldown, MaxProxyCooldown time.Duration
	// DomainCooldown is how long an endpoint is not leased for a domain that
	// blocked it, 5 min if zero. It doubles with each block up to
	// MaxDomainCooldown, 1 h if zero, until an OK from that domain. A longer
	// RetryAfter of the target is followed up to MaxDomainCooldown.
	DomainCooldown, MaxDomainCooldown time.Duration

	// PollInterval is how often a waiting Acquire, and a reader of Reports, asks
	// where no notification comes; 1 s if zero.
	PollInterval time.Duration
	// CallTimeout bounds one call to Redis with its retries; 5 s if zero.
	CallTimeout time.Duration
	// Transport is how the clients of leases connect.
	Transport endpoint.TransportConfig
	// Logger gets one V(1) line per transition that this process asks for, and
	// V(0) lines when the store was lost. The zero value discards.
	Logger logr.Logger
}

// fleetNames are those that fit into a hash tag and an ACL's pattern.
var fleetNames = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]*$`)

func (c Config) withDefaults() (Config, error) {
	var problems check.Problems
	problems.Require(c.Client != nil, "client", "give a client of Redis, such as one of redis.NewUniversalClient")
	if !fleetNames.MatchString(c.Fleet) {
		problems.Add("fleet", c.Fleet, fmt.Sprintf("must match %s: it becomes part of every key", fleetNames))
	}
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
		{"pollInterval", &c.PollInterval, time.Second},
		{"callTimeout", &c.CallTimeout, 5 * time.Second},
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

// ttl is what is granted at once of what a holder wants.
func (c *Config) ttl(want time.Duration) time.Duration {
	if want <= 0 {
		want = c.DefaultTTL
	}
	return min(want, c.MaxTTL)
}

// grace is how long a waiter may be silent before it loses its place.
func (c *Config) grace() time.Duration { return max(10*time.Second, 5*c.PollInterval) }

// base is what every key and channel of the fleet begins with.
func (c *Config) base() string { return "egress:{" + c.Fleet + "}:" }
