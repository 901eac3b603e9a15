package redislease

import (
	"context"
	"crypto/rand"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"

	"github.com/egressfleet/egress/lease"
)

// Store is a [lease.Store] and a [lease.Inventory] on Redis or Valkey. Any number of
// them, in any number of processes, lease the endpoints of one fleet. It is safe for
// concurrent use.
type Store struct {
	cfg   Config
	log   logr.Logger
	base  string
	name  string // unlike any other store's
	lua   *scripts
	clock func() int64 // in tests: the time that scripts take for the server's

	settings string // those that scripts follow, in words

	known atomic.Pointer[string] // the incarnation of the store
	seen  atomic.Int64           // the highest token

	endpoints endpoints

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	tasks  sync.WaitGroup

	// mu guards what follows. Nothing is called while it is held.
	mu        sync.Mutex
	closed    bool
	listening bool
	jobs      []job                    // that wait for a round trip
	trips     int                      // how many are under way
	waiting   map[string]chan struct{} // by the ID of an acquire
	readers   map[chan struct{}]struct{}
}

var (
	_ lease.Store     = (*Store)(nil)
	_ lease.Inventory = (*Store)(nil)
)

// New returns the store of a fleet. It does not call Redis: a server that is not
// there yet is one that may come. Close it to end what runs in the background.
func New(cfg Config) (*Store, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("redislease.Config: %w", err)
	}
	s := &Store{
		cfg: cfg, log: cfg.Logger, lua: production, base: cfg.base(), name: rand.Text()[:16],
		waiting: map[string]chan struct{}{}, readers: map[chan struct{}]struct{}{},
	}
	s.settings = fmt.Sprint(s.name, " ", cfg.MaxHolders, " ", micros(cfg.LockDelay), " ", micros(cfg.MaxTTL), " ", flag(cfg.Fresh), " ",
		micros(cfg.grace()), " ", micros(cfg.SessionTTL), " ", micros(cfg.MaxDomainCooldown))
	s.known.Store(new(string))
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s, nil
}

// Close ends all waits and readers of this store with [lease.ErrClosed]. The leases
// that it gave go on until they end, and other stores of the fleet can release them.
func (s *Store) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel()
	s.tasks.Wait()
}

// begin runs a task in the background unless the store is closed.
func (s *Store) begin(task func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.tasks.Go(task)
	return true
}

func micros(d time.Duration) int64 { return d.Microseconds() }

func flag(b bool) string {
	if b {
		return "1"
	}
	return "0"
}
