package main

import (
	"cmp"
	"context"
	"errors"
	"os"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/egressfleet/egress/lease"
	"github.com/egressfleet/egress/lease/redislease"
)

// leaseStore is where the leases are: in this process, or on Redis.
type leaseStore interface {
	lease.Store
	lease.Inventory
	Close()
}

// openStore makes the store that the flags ask for. Of one on Redis the client is
// closed with it.
func (s *server) openStore() (leaseStore, error) {
	p, log := s.plan, s.log.WithName("lease")
	maxTTL := max(time.Hour, p.leaseTTL)
	if p.redisAt == nil {
		return lease.NewMemory(lease.MemoryConfig{MaxHolders: p.maxHolders, DefaultTTL: p.leaseTTL, MaxTTL: maxTTL, Logger: log})
	}
	client := redis.NewClient(p.redisAt)
	store, err := redislease.New(redislease.Config{
		Client: client, Fleet: p.redisFleet, Fresh: p.redisFresh,
		MaxHolders: p.maxHolders, DefaultTTL: p.leaseTTL, MaxTTL: maxTTL, Logger: log,
	})
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	return &sharedStore{Store: store, client: client}, nil
}

// sharedStore is a store that other processes lease from too.
type sharedStore struct {
	*redislease.Store
	client *redis.Client
}

func (s *sharedStore) Close() {
	s.Store.Close()
	_ = s.client.Close()
}

// own is what of the store's endpoints is this fleet's.
func (s *server) own() map[string]bool {
	ids := map[string]bool{}
	for _, in := range s.fleet.Status() {
		if in.EndpointID != "" {
			ids[in.EndpointID] = true
		}
	}
	return ids
}

// withhold keeps others from leasing what this process stops to probe.
func (s *server) withhold() {
	if _, shared := s.store.(*sharedStore); !shared {
		return
	}
	ctx, cancel := context.WithTimeout(s.insistence, farewell)
	defer cancel()
	for id := range s.own() {
		if _, err := s.store.Drain(ctx, id); err != nil && !errors.Is(err, lease.ErrUnknownEndpoint) {
			s.log.Error(err, "others may go on to lease it", "endpoint", id)
		}
	}
}

// leavesLeases tells whether holders may go on with proxies that stay.
func (s *server) leavesLeases() bool {
	_, shared := s.store.(*sharedStore)
	return shared && !s.plan.teardown
}

// withdraw takes those out. The next start puts them in again, to be proven anew. What is
// still held stays, and is lent to nobody: else the next start would lend it, and its
// holder could not know.
func (s *server) withdraw(ids map[string]bool) {
	if _, shared := s.store.(*sharedStore); !shared {
		return
	}
	ctx, cancel := context.WithTimeout(s.insistence, farewell)
	defer cancel()
	for id := range ids {
		if held, err := s.store.Drain(ctx, id); err == nil && held > 0 && s.leavesLeases() {
			continue
		}
		if err := s.store.Remove(ctx, id); err != nil {
			s.log.Error(err, "others may go on to lease it", "endpoint", id)
		}
	}
}

// chooseStore reads where Redis is. The URL may hold a password, and so no error
// tells it.
func (p *plan) chooseStore() error {
	url := cmp.Or(p.redis, os.Getenv("EGRESS_REDIS"))
	if url == "" {
		return nil
	}
	at, err := redis.ParseURL(url)
	if err != nil {
		return usagef("--redis: write it like rediss://HOST:6379/0, redis:// or unix://, with USER:PASSWORD@ in EGRESS_REDIS alone")
	}
	if p.redis != "" && at.Password != "" {
		return usagef("--redis: it has a password, which everybody on this machine can read in the list of processes: give the URL by the environment's EGRESS_REDIS")
	}
	p.redisAt = at
	return nil
}
