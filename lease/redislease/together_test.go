package redislease_test

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/internal/redistest"
	"github.com/egressfleet/egress/lease"
	"github.com/egressfleet/egress/lease/redislease"
)

// gate keeps the first round trips until it is opened, and knows how many calls each
// one had.
type gate struct {
	open chan struct{}
	mu   sync.Mutex
	had  []int
}

func (g *gate) sizes() []int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return append([]int(nil), g.had...)
}

func (g *gate) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (g *gate) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error { return next(ctx, cmd) }
}

func (g *gate) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if cmds[0].Name() != "evalsha" { // a new connection's own
			return next(ctx, cmds)
		}
		g.mu.Lock()
		g.had = append(g.had, len(cmds))
		g.mu.Unlock()
		<-g.open
		return next(ctx, cmds)
	}
}

// Calls that come while enough are under way go together, each with its own answer,
// also where Redis has forgotten the scripts, and where the store is closed meanwhile.
func TestCallsThatWaitGoTogether(t *testing.T) {
	server := redistest.Start(t)
	client := connect(t, server)
	s, err := redislease.New(redislease.Config{Client: client, Fleet: "together", Fresh: true})
	require.NoError(t, err)
	t.Cleanup(s.Close)
	ids := make([]string, 60)
	for i := range ids {
		ids[i] = fmt.Sprint("proxy-", i)
	}
	put(t, s, ids...)
	require.NoError(t, client.ScriptFlush(t.Context()).Err())
	g := &gate{open: make(chan struct{})}
	client.AddHook(g)

	const calls = 50
	got := make(chan *lease.Lease, calls)
	for i := range calls {
		go func() {
			l, err := s.TryAcquire(context.Background(), lease.Request{Holder: "h"})
			assert.NoError(t, err)
			got <- l
		}()
		require.Eventually(t, func() bool { return len(g.sizes()) == min(i+1, 8) && s.Queued() == max(i-7, 0) }, 10*time.Second, time.Millisecond)
	}
	assert.Equal(t, []int{1, 1, 1, 1, 1, 1, 1, 1}, g.sizes(), "those that need not wait do not")
	s.Close()
	close(g.open)
	endpoints := map[string]bool{}
	for range calls {
		if l := <-got; l != nil {
			endpoints[l.Endpoint().ID] = true
		}
	}
	assert.Len(t, endpoints, calls, "one each")
	assert.ElementsMatch(t, []int{1, 1, 1, 1, 1, 1, 1, 1, 32, 10}, g.sizes(), "they go together")
}
