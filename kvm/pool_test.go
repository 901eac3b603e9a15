package kvm_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/internal/fakelibvirt"
	"github.com/egressfleet/egress/kvm"
	"github.com/egressfleet/egress/provider"
)

// TestCallsInFlight has many callers never put more than four calls on one
// connection, where libvirtd would stop reading at the sixth.
func TestCallsInFlight(t *testing.T) {
	r := newRig(t)
	id := mustCreate(t, r, r.Provider, request("u1"))
	var now, most atomic.Int32
	count := func(d int32) func(fakelibvirt.Call) error {
		return func(c fakelibvirt.Call) error {
			if c.RPC == "virDomainInterfaceAddresses" {
				return nil // the agent's has its own connection
			}
			n := now.Add(d)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			time.Sleep(time.Millisecond)
			return nil
		}
	}
	r.host().Before, r.host().After = count(1), count(-1)
	var wg sync.WaitGroup
	for range 40 {
		wg.Go(func() {
			_, err := r.Get(testContext(t), id)
			assert.NoError(t, err)
		})
	}
	wg.Wait()
	assert.EqualValues(t, 4, most.Load())
}

// TestLostConnection retries reads on a new connection and tells writes.
func TestLostConnection(t *testing.T) {
	r := newRig(t)
	id := mustCreate(t, r, r.Provider, request("u1"))
	var cuts atomic.Int32
	cutOnce := func(rpc string) func(fakelibvirt.Call) error {
		return func(c fakelibvirt.Call) error {
			if c.RPC == rpc && cuts.CompareAndSwap(0, 1) {
				return fakelibvirt.ErrCut
			}
			return nil
		}
	}
	r.host().Before = cutOnce("virDomainGetState")
	_, err := r.Get(testContext(t), id)
	require.NoError(t, err)

	cuts.Store(0)
	r.host().Before = cutOnce("virDomainDestroyFlags")
	err = r.Delete(testContext(t), id)
	require.ErrorIs(t, err, provider.ErrTransient)
	assert.True(t, provider.HasCode(err, "ConnectionLost"), "%v", err)
	require.NoError(t, r.Delete(testContext(t), id))
}

// TestNameLock has a Delete wait for the Create of the same name, and another
// name's Create not.
func TestNameLock(t *testing.T) {
	r := newRig(t)
	mustCreate(t, r, r.Provider, request("u0"))
	release, reached := make(chan struct{}), make(chan struct{})
	r.host().Before = func(c fakelibvirt.Call) error {
		if c.RPC == "virDomainCreate" && c.Object == provider.Name("u1") {
			close(reached)
			<-release
		}
		return nil
	}
	created := make(chan error, 1)
	go func() {
		_, err := r.Create(testContext(t), request("u1"))
		created <- err
	}()
	<-reached
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	id := "hosts/kvm1/domains/" + provider.Name("u1")
	require.ErrorIs(t, r.Delete(ctx, id), context.DeadlineExceeded)
	mustCreate(t, r, r.Provider, request("u2"))
	close(release)
	require.NoError(t, <-created)
	require.NoError(t, r.Delete(testContext(t), id))
}

// TestLateLanding has a call land after its caller left: a Delete that follows
// sees what it made.
func TestLateLanding(t *testing.T) {
	r := newRig(t, func(c *kvm.Config) { c.Timeouts.Grace = provider.Duration(5 * time.Second) })
	mustCreate(t, r, r.Provider, request("u0"))
	release := make(chan struct{})
	r.host().Before = func(c fakelibvirt.Call) error {
		if c.RPC == "virStorageVolCreateXML" && c.Object == provider.Name("u1")+".qcow2" {
			<-release
		}
		return nil
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	id, err := r.Create(ctx, request("u1"))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	deleted := make(chan error, 1)
	go func() { deleted <- r.Delete(testContext(t), id) }()
	time.Sleep(50 * time.Millisecond)
	close(release)
	require.NoError(t, <-deleted)
	assert.NotContains(t, r.host().Volumes("default"), provider.Name("u1")+".qcow2")
}

// TestDialTimeoutIsNotACancel keeps a host that does not answer apart from a
// caller that left.
func TestDialTimeoutIsNotACancel(t *testing.T) {
	r := newRig(t, func(c *kvm.Config) { c.Timeouts.Dial = provider.Duration(50 * time.Millisecond) })
	kvm.FailDial(r.Provider, "kvm1", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
	_, err := r.Create(testContext(t), request("u1"))
	require.ErrorIs(t, err, provider.ErrTransient)
	assert.False(t, errors.Is(err, context.DeadlineExceeded), "%v", err)
	assert.Equal(t, "transient", provider.Class(err))
}
