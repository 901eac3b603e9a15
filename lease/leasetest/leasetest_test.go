package leasetest_test

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/egressfleet/egress/lease"
	"github.com/egressfleet/egress/lease/leasetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestMemory(t *testing.T) {
	leasetest.Run(t, leasetest.Harness{
		Run: synctest.Test,
		New: func(t *testing.T, s leasetest.Settings) (lease.Store, lease.Inventory) {
			m, err := lease.NewMemory(lease.MemoryConfig{MaxHolders: s.MaxHolders})
			require.NoError(t, err)
			t.Cleanup(m.Close)
			return m, m
		},
	})
}
