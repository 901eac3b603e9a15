package kvm_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/internal/fakelibvirt"
	"github.com/egressfleet/egress/provider"
)

// hints gathers what a watch told.
type hints struct {
	mu  sync.Mutex
	all []string
}

func (h *hints) add(id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all = append(h.all, id)
}

func (h *hints) count(id string) (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, got := range h.all {
		if got == id {
			n++
		}
	}
	return n
}

// watchTag watches until the test ends.
func watchTag(t *testing.T, p provider.Provider, tag string) *hints {
	t.Helper()
	h := &hints{}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- provider.Watch(ctx, p, tag, h.add) }()
	t.Cleanup(func() {
		cancel()
		assert.ErrorIs(t, <-done, context.Canceled)
	})
	return h
}

func eventually(t *testing.T, condition func() bool) {
	t.Helper()
	require.Eventually(t, condition, 10*time.Second, time.Millisecond)
}

// TestWatch tells of the tag's domains, and of nothing else.
func TestWatch(t *testing.T) {
	r := newRig(t)
	mine := watchTag(t, r.Provider, "tag-a")
	eventually(t, func() bool { return r.host().Watchers() == 1 && mine.count("") == 1 })
	other := request("other")
	other.Tag = "tag-b"
	otherID := mustCreate(t, r, r.Provider, other)
	require.NoError(t, r.host().Define("<domain type='qemu'><name>somebody-elses</name></domain>"))
	id := mustCreate(t, r, r.Provider, request("u1"))
	eventually(t, func() bool { return mine.count(id) >= 2 }) // defined, started
	before := mine.count(id)
	require.NoError(t, r.Delete(testContext(t), id))
	eventually(t, func() bool { return mine.count(id) >= before+2 }) // stopped, gone
	assert.Zero(t, mine.count(otherID))
	assert.Equal(t, 1, mine.count(""))
}

// TestWatchOutlivesTheConnection tells that it may have missed something.
func TestWatchOutlivesTheConnection(t *testing.T) {
	r := newRig(t)
	mine := watchTag(t, r.Provider, "tag-a")
	eventually(t, func() bool { return mine.count("") == 1 })
	cut := true
	var mu sync.Mutex
	r.host().Before = func(c fakelibvirt.Call) error {
		mu.Lock()
		defer mu.Unlock()
		if cut && c.RPC == "virConnectDomainEventRegisterAny" {
			cut = false
			return fakelibvirt.ErrCut // once more
		}
		return nil
	}
	r.host().CutWatchers()
	eventually(t, func() bool { return mine.count("") == 2 })
	id := mustCreate(t, r, r.Provider, request("u1"))
	eventually(t, func() bool { return mine.count(id) > 0 })
}

func TestWatchEndsWithTheProvider(t *testing.T) {
	r := newRig(t)
	started := make(chan struct{}, 1)
	done := make(chan error, 1)
	go func() { done <- r.Watch(t.Context(), "tag-a", func(string) { started <- struct{}{} }) }()
	<-started
	require.NoError(t, r.Close())
	require.ErrorContains(t, <-done, "closed")
	require.ErrorIs(t, r.Watch(t.Context(), "Not A Tag", nil), provider.ErrPermanent)
}

// TestWatchOfChanges hears of what happens on the host itself.
func TestWatchOfChanges(t *testing.T) {
	r := newRig(t)
	id := mustCreate(t, r, r.Provider, request("u1"))
	mine := watchTag(t, r.Provider, "tag-a")
	eventually(t, func() bool { return mine.count("") == 1 })
	conn := r.host().Connect()
	dom, err := conn.DomainLookupByName(provider.Name("u1"))
	require.NoError(t, err)
	require.NoError(t, conn.DomainDestroyFlags(dom, 0))
	eventually(t, func() bool { return mine.count(id) == 1 })
	in, err := r.Get(testContext(t), id)
	require.NoError(t, err)
	assert.Equal(t, provider.StateStopped, in.State)
}
