// Package controller keeps Proxies: it is the operator's reconcile loop, and the
// sweep of what no Proxy owns.
//
// # A pass
//
// Reconcile takes one Proxy through small steps. A step looks at the status and at
// the provider, changes the status in memory, and ends; then the status is written,
// if it changed, and the next step begins from what was written. So the record is
// always in the API server before the provider is asked for what it says: a new
// incarnation and its placement before Create, the reason of a replacement before
// Delete. A write that finds a newer object ends the pass, and the next one begins
// from that.
//
//	no record        → record: a UID never used before, a placement
//	recorded         → create, again and again, until the provider has accepted it
//	accepted         → observe: wait until it runs, then probe and lease
//	to be replaced   → retire: drain leases, Delete until Get says ErrNotFound,
//	                   and forget the record
//	being deleted    → retire, and let the finalizer go
//
// What a step finds is in the conditions; what a person must know is an event too.
//
// # Rules
//
//   - A UID is that of the object and a number that only rises.
//   - The record says where the machine is. The spec says where it shall be.
//   - ErrNotFound makes another machine, ErrPermanent stops until something changes,
//     ErrQuotaExceeded and ErrTransient are waited out, and longer each time; how
//     long is in the status, so that a restart forgets nothing.
//   - A provider that does not answer changes nothing but a condition.
//   - Every Proxy can finish deleting, see the guide.
package controller
