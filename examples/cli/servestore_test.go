package main

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/internal/redistest"
	"github.com/egressfleet/egress/provider/local"
)

// Two serves on one Redis lend the proxies of both, and a lease from one is renewed
// and released at the other.
func TestTwoServesLeaseAsOne(t *testing.T) {
	server := redistest.Start(t)
	t.Setenv("EGRESS_REDIS", "redis://"+server.Addr)
	a := newWorld(t, local.HostConfig{}).serve("--tag", "first", "--redis-fresh")
	a.find(`healthy=1 wanted=1`)
	b := newWorld(t, local.HostConfig{}).serve("--tag", "second", "--redis-fresh")
	b.find(`healthy=1 wanted=1`)

	one, two := a.lease(), a.lease()
	assert.NotEqual(t, one.Endpoint.ID, two.Endpoint.ID, "the proxies of both")
	status, refused := b.call(testToken, "/v1/leases", `{"holder": "worker-3"}`)
	assert.Equal(t, http.StatusServiceUnavailable, status)
	assert.NotEmpty(t, refused.Error.Code)
	status, _ = b.call(testToken, "/v1/leases/"+one.ID+"/renew", `{"token": "`+one.Token+`"}`)
	assert.Equal(t, http.StatusOK, status)
	assert.Equal(t, http.StatusNoContent, b.release(one))
	assert.Equal(t, http.StatusNoContent, b.release(two))

	require.Equal(t, exitOK, a.end(), "what it does not probe any more goes with it")
	left := b.lease()
	status, _ = b.call(testToken, "/v1/leases", `{"holder": "worker-3"}`)
	assert.Equal(t, http.StatusServiceUnavailable, status)
	assert.Equal(t, http.StatusNoContent, b.release(left))
	assert.Equal(t, exitOK, b.end())
}

// What a client did not give back in time was lent to another by the next start.
func TestARestartLeavesWhatIsHeldOnRedis(t *testing.T) {
	server := redistest.Start(t)
	t.Setenv("EGRESS_REDIS", "redis://"+server.Addr)
	w := newWorld(t, local.HostConfig{})
	s := w.serve("--redis-fresh", "--drain", "300ms", "--lease-ttl", "1h")
	held := s.lease()
	require.Equal(t, exitOK, s.end())
	assert.Contains(t, s.stderr.String(), "leases are left to their clients")

	s = w.serve("--drain", "300ms")
	s.find(`healthy=1 wanted=1`)
	status, _ := s.call(testToken, "/v1/leases", `{"holder": "worker-2"}`)
	assert.NotEqual(t, http.StatusCreated, status)
	status, _ = s.call(testToken, "/v1/leases/"+held.ID+"/renew", `{"token": "`+held.Token+`"}`)
	assert.Equal(t, http.StatusOK, status, "it goes on")
	assert.Equal(t, http.StatusNoContent, s.release(held))
	assert.Equal(t, held.Endpoint.ID, s.lease().Endpoint.ID, "then others have it")
	require.Equal(t, exitOK, s.end())
}

// Deleted proxies are nobody's.
func TestTeardownOnRedisLeavesNothing(t *testing.T) {
	server := redistest.Start(t)
	t.Setenv("EGRESS_REDIS", "redis://"+server.Addr)
	w := newWorld(t, local.HostConfig{})
	s := w.serve("--redis-fresh", "--drain", "0s", "--teardown")
	s.lease()
	require.Equal(t, exitOK, s.end())
	assert.Empty(t, w.tagged())
	s = w.serve("--size", "0")
	status, _ := s.call(testToken, "/v1/leases", `{"holder": "worker-2"}`)
	assert.Equal(t, http.StatusNotFound, status, "there is no endpoint")
	require.Equal(t, exitOK, s.end())
}
