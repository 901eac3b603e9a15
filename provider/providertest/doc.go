// Package providertest holds a provider to the contract of package provider.
//
// Each clause of the contract is a case with a name. A case that fails prints
// what it saw and the clause that forbids it, so that the failures read as the
// contract does:
//
//	--- FAIL: TestConformance/delete-of-nothing
//	    Delete of an instance that never was: rack Get zones/a/machines/proxy-…:
//	    not found, want nil
//	    the contract: Deleting what does not exist is nil, so that Delete can be
//	    repeated after a crash without knowing how far it got.
//
// The test of a provider is one call:
//
//	func TestConformance(t *testing.T) {
//		providertest.Run(t, providertest.Harness{
//			New:     func() (provider.Provider, error) { return rack.New(cfg) },
//			Request: func(uid, tag string) provider.CreateRequest { … },
//		})
//	}
//
// # The harness
//
// [Harness] says how to make the provider, and what a test can do to its backend
// behind its back: stop an instance, cut the wire, let calls hang. Only New and
// Request are required. What a backend cannot be made to do is left nil, and the
// cases that need it skip, and say what nobody checked. A fake backend can
// usually do all of it, a real one some: run the suite against both.
//
// The suite makes some dozens of instances, a few at a time, all with UIDs and
// tags that begin with "pt-" and are its own, and deletes them. So a backend
// may be in use by others meanwhile. Cases do not depend on each other: -run
// selects them as it does tests.
//
// # What it costs
//
// The package imports nothing but the standard library and package provider. It
// never asserts how fast a provider is, with one exception that the contract
// makes: that a call returns within a second after its context ends.
package providertest
