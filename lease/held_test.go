package lease

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/endpoint"
)

func TestRegisterFindsWhatIsHeldAndNothingElse(t *testing.T) {
	r := register{prefix: "p-"}
	a, b := r.enter(&Lease{}), r.enter(&Lease{})
	assert.Same(t, a, r.find(a.number))
	assert.Same(t, b, r.find(r.number(r.id(b.number))))
	former := a.number
	r.strike(a)
	assert.Nil(t, r.find(former))
	again := r.enter(&Lease{})
	assert.Same(t, a, again, "the place is used again")
	assert.NotEqual(t, former, again.number, "under another number")
	assert.Nil(t, r.find(former))
	assert.Nil(t, r.find(7<<32|1), "no such place")

	for _, id := range []string{"", "p-", "q-1", "p-01", "p--1", "p-1 ", "p-zzzzzzzzzzzzzzzzzz", "P-1"} {
		assert.Zero(t, r.number(id), id)
	}
	assert.Nil(t, r.find(0))
}

func TestRegisterGivesUpAPlaceThatHasCountedToItsEnd(t *testing.T) {
	r := register{}
	h := r.enter(&Lease{})
	h.number += math.MaxUint32 - 1
	r.strike(h)
	next := r.enter(&Lease{})
	assert.NotSame(t, h, next)
	assert.EqualValues(t, 1<<32|1, next.number)
}

// late returns a store with a leased endpoint, whose alarms do not ring.
func late(t *testing.T) (*Memory, *Lease) {
	t.Helper()
	m, err := NewMemory(MemoryConfig{})
	require.NoError(t, err)
	t.Cleanup(m.Close)
	url, err := endpoint.NewURL("http", "192.0.2.7:3128", "", "")
	require.NoError(t, err)
	require.NoError(t, m.Put(t.Context(), endpoint.Endpoint{ID: "a", URL: url}))
	require.NoError(t, m.SetVerdict(t.Context(), "a", endpoint.Verdict{Health: endpoint.Healthy}))
	l, err := m.TryAcquire(t.Context(), Request{Holder: "test", TTL: time.Minute})
	require.NoError(t, err)
	m.mu.Lock()
	m.alarms.Stop()
	m.mu.Unlock()
	return m, l
}

// On a machine that is short of time an alarm rings late.
func TestAnOverdueLeaseWhoseAlarmIsLate(t *testing.T) {
	t.Run("is not renewed", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			m, l := late(t)
			time.Sleep(2 * time.Minute)
			_, err := m.Renew(t.Context(), l.Key(), time.Minute)
			assert.ErrorIs(t, err, ErrExpired)
			assert.ErrorIs(t, m.Release(t.Context(), l.Key()), ErrExpired)
		})
	})
	t.Run("reports late", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			m, l := late(t)
			time.Sleep(2 * time.Minute)
			require.NoError(t, m.Report(t.Context(), l.Key(), Outcome{Kind: ProxyFault}))
			stats, err := m.Stats(t.Context())
			require.NoError(t, err)
			assert.EqualValues(t, 1, stats.LateReports)
		})
	})
	t.Run("is released: its holder says so", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			m, l := late(t)
			time.Sleep(2 * time.Minute)
			require.NoError(t, m.Release(t.Context(), l.Key()))
			_, err := m.TryAcquire(t.Context(), Request{Holder: "test"})
			assert.NoError(t, err, "without a lock delay")
		})
	})
}

// What has left the inventory must not stay in memory until an alarm.
func TestWhatIsGoneLeavesNoAlarm(t *testing.T) {
	m, l := late(t)
	m.mu.Lock()
	s := m.slots["a"]
	m.mu.Unlock()
	changed := l.Endpoint()
	changed.Generation = 2
	require.NoError(t, m.Put(t.Context(), changed))
	assert.True(t, s.alarm.IsSet(), "its lease goes on")
	require.NoError(t, l.Release(t.Context()))
	assert.False(t, s.alarm.IsSet())
}
