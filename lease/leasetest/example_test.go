package leasetest_test

import (
	"testing"
	"testing/synctest"

	"github.com/egressfleet/egress/lease"
	"github.com/egressfleet/egress/lease/leasetest"
)

// A store's own test is one call.
func ExampleRun() {
	_ = func(t *testing.T) { // func TestConformance(t *testing.T)
		leasetest.Run(t, leasetest.Harness{
			Run: synctest.Test, // for a store whose time is this process's
			New: func(t *testing.T, s leasetest.Settings) (lease.Store, lease.Inventory) {
				m, err := lease.NewMemory(lease.MemoryConfig{MaxHolders: s.MaxHolders})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(m.Close)
				return m, m
			},
		})
	}
}
