package providertest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/egressfleet/egress/provider"
)

var getCases = []Case{
	{
		Name: "get-tells-whose-it-is",
		Why: "Get returns the ID it was asked for, with UID, tag, and one of the six states. Callers adopt " +
			"instances by what it says.",
		action: getTellsWhoseItIs,
	},
	{
		Name: "created-at-is-the-moment",
		Why: "CreatedAt is the moment of acceptance, zero where the backend keeps none; it stays as it is. Ages are " +
			"counted from it: a local time that is read as UTC makes what is new old enough to be swept.",
		action: createdAtIsTheMoment,
	},
	{
		Name: "instances-are-the-receivers",
		Why:  "An Instance owns its slices and maps: the receiver may change them, and nobody else sees it.",

		action: instancesAreTheReceivers,
	},
	{
		Name:   "get-of-nothing",
		Why:    "Get says ErrNotFound of what is not there: it is the word on which callers create again.",
		action: getOfNothing,
	},
	{
		Name: "not-found-is-proof",
		Why: "ErrNotFound means that the backend proved the absence. A backend that cannot be reached proves " +
			"nothing: the error is ErrTransient, else one blip replaces a whole fleet.",
		Needs:  []string{"Break"},
		action: notFoundIsProof,
	},
	{
		Name: "malformed-id",
		Why: "An ID that has not the form of the provider's is ErrPermanent with CodeMalformedID, for Get and for " +
			"Delete: it must look neither like a missing instance nor like a deleted one.",
		action: malformedID,
	},
	{
		Name: "unconfigured-place",
		Why: "An ID in a place that is not configured is ErrPermanent with CodeUnconfigured, for Get and for " +
			"Delete: a typo must not look like a missing instance, and what runs there is the administrator's.",
		Needs:  []string{"Unconfigured"},
		action: unconfiguredPlace,
	},
}

var states = []provider.State{
	provider.StateProvisioning, provider.StateRunning, provider.StateStopping,
	provider.StateStopped, provider.StateFailed, provider.StateUnknown,
}

func getTellsWhoseItIs(t *trial) {
	req := t.request()
	id := t.create(req)
	in := t.get(id)
	if in.ID != id || in.UID != req.UID || in.Tag != req.Tag {
		t.errorf("Get(%q): ID %q, UID %q, tag %q, want UID %q, tag %q", id, in.ID, in.UID, in.Tag, req.UID, req.Tag)
	}
	if !slices.Contains(states, in.State) {
		t.errorf("Get(%q): the state is %q, want one of %q", id, in.State, states)
	}
}

// clockSkew is how wrong the clocks of a backend may be. It is less than any
// time zone.
const clockSkew = 5 * time.Minute

func createdAtIsTheMoment(t *trial) {
	before := time.Now()
	id := t.create(t.request())
	first := t.get(id).CreatedAt
	if first.IsZero() {
		return
	}
	if first.Before(before.Add(-clockSkew)) || first.After(time.Now().Add(clockSkew)) {
		t.errorf("Get(%q): CreatedAt is %v, want about %v", id, first, before)
	}
	t.boots(id)
	if again := t.get(id).CreatedAt; !again.Equal(first) {
		t.errorf("Get(%q): CreatedAt was %v and is %v", id, first, again)
	}
}

func instancesAreTheReceivers(t *trial) {
	req := t.request()
	id := t.create(req)
	t.boots(id)
	spoil := func(in provider.Instance) {
		for key := range in.Metadata {
			in.Metadata[key] = "spoilt"
		}
		clear(in.Addresses)
	}
	addresses := slices.Clone(t.get(id).Addresses)
	spoil(t.get(id))
	for _, in := range t.list(req.Tag) {
		spoil(in)
	}
	after := append(t.list(req.Tag), t.get(id))
	for _, in := range after {
		if in.Metadata["spec-hash"] == "spoilt" {
			t.errorf("an instance's metadata is %q, as the receiver of an earlier one changed it", in.Metadata)
		}
	}
	if got := t.get(id).Addresses; !slices.Equal(got, addresses) {
		t.errorf("Get: the addresses are %v, want %v: the receiver of an earlier instance changed its own", got, addresses)
	}
}

// absent is the ID of an instance that never was, beside one that is.
func (t *trial) absent(id string) string { return beside(id, t.newUID()) }

func getOfNothing(t *trial) {
	id := t.create(t.request())
	_, err := t.tryGet(t.p, t.absent(id))
	t.wantClass("Get of an instance that never was", err, provider.ErrNotFound, "")
	t.mustGo(id)
	_, err = t.tryGet(t.p, id)
	t.wantClass("Get of an instance that is deleted", err, provider.ErrNotFound, "")
}

func notFoundIsProof(t *trial) {
	id := t.create(t.request())
	restore := t.breaks()
	in, err := t.p.Get(t.ctx, id)
	if c := provider.Class(err); c != "transient" {
		t.errorf("Get at a backend that cannot be reached: %v, %v (class %s), want ErrTransient", in.State, err, c)
	}
	restore()
	t.get(id)
}

func malformedID(t *trial) {
	id := t.create(t.request())
	slash := strings.LastIndex(id, "/")
	for _, bad := range []string{"", "nonsense", id + "/more", id[slash+1:], id[:slash+1] + "no-name", id[:slash+1], "/" + id, id + " "} {
		_, err := t.p.Get(t.ctx, bad)
		t.wantClass("Get of the malformed ID "+quote(bad), err, provider.ErrPermanent, provider.CodeMalformedID)
		err = t.p.Delete(t.ctx, bad)
		t.wantClass("Delete of the malformed ID "+quote(bad), err, provider.ErrPermanent, provider.CodeMalformedID)
	}
}

func quote(s string) string { return `"` + s + `"` }

func unconfiguredPlace(t *trial) {
	_, err := t.p.Get(t.ctx, t.h.Unconfigured)
	t.wantClass("Get of an ID in a place that is not configured", err, provider.ErrPermanent, provider.CodeUnconfigured)
	err = t.p.Delete(t.ctx, t.h.Unconfigured)
	t.wantClass("Delete of an ID in a place that is not configured", err, provider.ErrPermanent, provider.CodeUnconfigured)
}

var stateCases = []Case{
	{
		Name: "running-has-an-address",
		Why: "Running is up and has an address: one that runs without is Provisioning. Callers connect to what " +
			"they are told is Running.",
		action: runningHasAnAddress,
	},
	{
		Name: "stopped-is-told",
		Why: "An instance that exists but does not run is Stopped, and stays to be found: callers delete it and " +
			"create another.",
		Needs:  []string{"Stop"},
		action: func(t *trial) { t.afterFault(t.h.Stop, provider.StateStopped) },
	},
	{
		Name: "crashed-is-told",
		Why: "An instance that crashed is Failed (Stopped, where the backend cannot tell the difference), never " +
			"Running: callers delete it and create another.",
		Needs:  []string{"Crash"},
		action: func(t *trial) { t.afterFault(t.h.Crash, provider.StateFailed, provider.StateStopped) },
	},
	{
		Name: "vanished-is-not-found",
		Why: "An instance that somebody removed on the backend is ErrNotFound and in no list, whatever this " +
			"process remembers of it. Delete of it is nil.",
		Needs:  []string{"Vanish"},
		action: vanishedIsNotFound,
	},
}

func runningHasAnAddress(t *trial) {
	id := t.create(t.request())
	for deadline := time.Now().Add(t.h.Timeout); ; {
		in := t.get(id)
		if in.State == provider.StateRunning {
			t.wantAddresses(in)
			return
		}
		if t.h.NoBoot {
			return
		}
		if time.Now().After(deadline) || !t.sleep(t.h.Interval) {
			t.fatalf("Get(%q): the state is %s (%q), want Running within %v", id, in.State, in.Reason, t.h.Timeout)
		}
	}
}

func (t *trial) wantAddresses(in provider.Instance) {
	if !in.Address().IsValid() {
		t.errorf("Get(%q): the state is Running and there is no address to connect to, the addresses are %v", in.ID, in.Addresses)
	}
	for _, a := range in.Addresses {
		if a.Type != provider.AddressInternal && a.Type != provider.AddressExternal {
			t.errorf("Get(%q): the address %s has the type %q, want Internal or External", in.ID, a.Addr, a.Type)
		}
		if !a.Addr.IsValid() || a.Addr.IsUnspecified() {
			t.errorf("Get(%q): %q is no address", in.ID, a.Addr)
		}
	}
}

// faultFunc makes an instance go wrong behind the provider's back.
type faultFunc func(ctx context.Context, id string) error

func (t *trial) inject(fault faultFunc, id string) {
	if err := fault(t.ctx, id); err != nil {
		t.fatalf("the harness: a fault of %q: %v", id, err)
	}
}

// afterFault checks that the instance comes to one of the states, is listed,
// and goes.
func (t *trial) afterFault(fault faultFunc, want ...provider.State) {
	req, id := t.created()
	t.inject(fault, id)
	var last provider.Instance
	for deadline := time.Now().Add(t.h.Timeout); ; {
		last = t.get(id)
		if slices.Contains(want, last.State) {
			break
		}
		if time.Now().After(deadline) || !t.sleep(t.h.Interval) {
			t.fatalf("Get(%q): the state is %s, want %s", id, last.State, want)
		}
	}
	t.wantListed(t.p, req.Tag, id)
	t.mustGo(id)
}

func vanishedIsNotFound(t *trial) {
	req, id := t.created()
	t.wantListed(t.p, req.Tag, id)
	t.inject(t.h.Vanish, id)
	_, err := t.tryGet(t.p, id)
	for deadline := time.Now().Add(t.h.Timeout); !errors.Is(err, provider.ErrNotFound); _, err = t.tryGet(t.p, id) {
		if time.Now().After(deadline) || !t.sleep(t.h.Interval) {
			t.fatalf("Get of what vanished: %v, want ErrNotFound", err)
		}
	}
	t.wantListed(t.p, req.Tag)
	if err := t.p.Delete(t.ctx, id); err != nil && !errors.Is(err, provider.ErrNotFound) {
		t.errorf("Delete of what vanished: %v, want nil", err)
	}
}
