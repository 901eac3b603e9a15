// Package provider is the contract between those who want virtual machines
// and the backends that make them.
//
// A [Provider] makes instances, tells their state, deletes them and lists what
// carries an owner's tag. It has four methods, kept small for ever: what only
// some backends can do comes as an optional interface, found by type assertion.
//
// # Identity
//
// The caller names each instance by a UID of its own choice, never used twice.
// [Name] derives the instance's name from it, on every backend the same way. A
// tag marks everything that one owner creates: two owners on one host neither
// see nor touch each other's instances. The ID that Create returns says where
// the instance lives and can be read without asking anyone, see [IDFormat].
//
// # Writing a loop over a provider
//
// Record the UID and the placement before Create, so that whatever a crash
// leaves behind can be found again, then follow what [Provider.Get] says:
//
//	ErrNotFound                     create it again
//	Stopped, Failed                 delete it, then create another with a new UID
//	Provisioning, Unknown too long  replace it, with the last reason (see BootTimeout)
//	ErrPermanent                    report it, never recreate
//	ErrTransient                    keep it and ask again
//
// [WaitRunning] and [WaitGone] are the two ends of that loop for callers that
// handle one instance at a time.
//
// # Errors
//
// Each error of a provider belongs to one of four classes, found with
// errors.Is: [ErrNotFound], [ErrQuotaExceeded], [ErrPermanent] and
// [ErrTransient]. An error without a class counts as transient; [Class] names
// the class for a metric. The backend's own code and cause stay reachable with
// errors.As through [*Error]. A call that was cut short by its context also
// matches the context's error.
//
// # Secrets
//
// User-data often holds passwords. [UserData] prints as its length, in every
// format, so that a request can be logged whole.
package provider
