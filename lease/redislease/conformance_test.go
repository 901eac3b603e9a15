package redislease_test

import (
	"bytes"
	"context"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/egressfleet/egress/internal/redistest"
	"github.com/egressfleet/egress/lease"
	"github.com/egressfleet/egress/lease/leasetest"
	"github.com/egressfleet/egress/lease/redislease"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/redis/go-redis/v9/internal/pool.init.0.func1"))
}

// The store passes the suite on a real server. The test's time is also the
// scripts', so that the hours of the suite pass at once.
func TestConformance(t *testing.T) {
	server := redistest.Start(t)
	leasetest.Run(t, leasetest.Harness{
		Run: synctest.Test,
		New: func(t *testing.T, settings leasetest.Settings) (lease.Store, lease.Inventory) {
			client := redis.NewClient(&redis.Options{
				Addr: server.Addr, Dialer: bubbleDialer(server.Socket),
				MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
			})
			s, err := redislease.New(redislease.Config{
				Client: client, Fleet: strings.ReplaceAll(t.Name(), "/", "."), Fresh: true, MaxHolders: settings.MaxHolders,
			})
			require.NoError(t, err)
			s.SetClock(func() int64 { return time.Now().UnixMicro() })
			t.Cleanup(func() {
				s.Close()
				_ = client.Close()
				time.Sleep(time.Second) // for the connections to see it
			})
			return s, s
		},
	})
}

// bubbleDialer makes connections that let the time of a bubble pass while they
// wait for messages. Elsewhere a read from a real socket holds it.
func bubbleDialer(path string) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, _, _ string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
		if err != nil {
			return nil, err
		}
		return &bubbleConn{UnixConn: conn.(*net.UnixConn)}, nil
	}
}

type bubbleConn struct {
	*net.UnixConn
	subscribed atomic.Bool
}

func (c *bubbleConn) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte("subscribe")) {
		c.subscribed.Store(true)
	}
	return c.UnixConn.Write(p)
}

func (c *bubbleConn) Read(p []byte) (int, error) {
	for c.subscribed.Load() {
		n, again, err := c.readNow(p)
		if !again {
			return n, err
		}
		time.Sleep(100 * time.Millisecond)
	}
	return c.UnixConn.Read(p)
}

func (c *bubbleConn) readNow(p []byte) (n int, again bool, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, false, err
	}
	var failed error
	err = raw.Read(func(fd uintptr) bool {
		n, failed = syscall.Read(int(fd), p)
		return true
	})
	switch {
	case err != nil:
		return 0, false, err
	case failed == syscall.EAGAIN:
		return 0, true, nil
	case failed != nil:
		return 0, false, failed
	case n == 0:
		return 0, false, net.ErrClosed
	}
	return n, false, nil
}
