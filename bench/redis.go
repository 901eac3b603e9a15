package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/lease"
	"github.com/egressfleet/egress/lease/redislease"
)

// redisClients is how many acquire and release at once.
const redisClients = 32

var redisTargets = []target{
	{"redis-acquire-setnx", "<=", 3, func() (float64, string, error) {
		return withRedis(func(client *redis.Client) (float64, string, error) {
			ours, end, err := redisAcquire(client, 1000)
			if err != nil {
				return 0, "", err
			}
			defer end()
			ratio, detail := pair(ours, setNX(client))
			return ratio, detail + fmt.Sprintf(", %d clients", redisClients), nil
		})
	}},
	{"redis-10000-100", "<=", 1.5, func() (float64, string, error) {
		return withRedis(func(client *redis.Client) (float64, string, error) {
			many, end, err := redisAcquire(client, 10_000)
			if err != nil {
				return 0, "", err
			}
			defer end()
			few, endFew, err := redisAcquire(client, 100)
			if err != nil {
				return 0, "", err
			}
			defer endFew()
			ratio, detail := pair(many, few)
			return ratio, detail, nil
		})
	}},
}

// withRedis measures on a server of its own.
func withRedis(measure func(*redis.Client) (float64, string, error)) (float64, string, error) {
	if _, err := exec.LookPath("redis-server"); err != nil {
		return 0, "", skipped("redis-server is not installed")
	}
	dir, err := os.MkdirTemp("", "redis")
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	socket := filepath.Join(dir, "socket")
	server := exec.Command("redis-server", "--port", "0", "--unixsocket", socket, "--save", "", "--dir", dir)
	if err := server.Start(); err != nil {
		return 0, "", err
	}
	defer func() { _ = server.Process.Kill(); _ = server.Wait() }()
	client := redis.NewClient(&redis.Options{Network: "unix", Addr: socket, PoolSize: redisClients})
	defer func() { _ = client.Close() }()
	for deadline := time.Now().Add(10 * time.Second); client.Ping(context.Background()).Err() != nil; {
		if time.Now().After(deadline) {
			return 0, "", fmt.Errorf("redis-server does not answer")
		}
	}
	return measure(client)
}

// redisAcquire is acquire and release with a selector that half of the endpoints
// match, of which a domain bans a few. The store is closed at its end.
func redisAcquire(client *redis.Client, n int) (measure func(*testing.B), end func(), err error) {
	s, err := redislease.New(redislease.Config{Client: client, Fleet: "of" + strconv.Itoa(n), Fresh: true})
	if err != nil {
		return nil, nil, err
	}
	ctx := context.Background()
	url, err := endpoint.NewURL("http", "192.0.2.7:3128", "crawler", "secret")
	must(err)
	regions := []map[string]string{{"region": "eu"}, {"region": "us"}}
	for i := range n {
		id := strconv.Itoa(i)
		must(s.Put(ctx, endpoint.Endpoint{ID: id, URL: url, Attributes: regions[i%2]}))
		must(s.SetVerdict(ctx, id, endpoint.Verdict{Health: endpoint.Healthy}))
	}
	selector, err := lease.ParseSelector("region=eu")
	must(err)
	req := lease.Request{Holder: "bench", Domain: "example.com", Selector: selector, TTL: time.Minute}
	for range 5 {
		l, err := s.TryAcquire(ctx, req)
		must(err)
		must(l.Report(ctx, lease.Outcome{Kind: lease.TargetBlocked}))
		must(l.Release(ctx))
	}
	return byClients(func(int) {
		l, err := s.Acquire(ctx, req)
		must(err)
		must(l.Release(ctx))
	}), s.Close, nil
}

// compareAndDelete is the usual release of a lock: only by its holder.
var compareAndDelete = redis.NewScript(`if redis.call("get", KEYS[1]) == ARGV[1] then return redis.call("del", KEYS[1]) else return 0 end`)

// setNX is the plain lock: no choice among endpoints, no queue, no cooldowns and no
// token. Each client has a key that no other wants.
func setNX(client *redis.Client) func(*testing.B) {
	ctx := context.Background()
	return byClients(func(i int) {
		key := "lock:" + strconv.Itoa(i)
		ok, err := client.SetNX(ctx, key, "holder", time.Minute).Result()
		must(err)
		if !ok {
			panic(key + " is held")
		}
		must(compareAndDelete.Run(ctx, client, []string{key}, "holder").Err())
	})
}

// byClients has all clients do it at once until it was done b.N times.
func byClients(do func(client int)) func(*testing.B) {
	return func(b *testing.B) {
		var left atomic.Int64
		left.Store(int64(b.N))
		var group sync.WaitGroup
		for i := range redisClients {
			group.Go(func() {
				for left.Add(-1) >= 0 {
					do(i)
				}
			})
		}
		group.Wait()
	}
}
