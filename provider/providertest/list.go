package providertest

import (
	"errors"
	"slices"
	"strings"

	"github.com/egressfleet/egress/provider"
)

var listCases = []Case{
	{
		Name: "list-has-the-tags-own",
		Why: "ListByTag has every instance of the tag, and never another's: callers adopt what they see, and delete " +
			"what nobody knows.",
		action: listHasTheTagsOwn,
	},
	{
		Name: "list-tells-what-get-tells",
		Why: "An instance in a list has the ID, name, UID and tag that Get gives it, so that a caller can adopt it " +
			"without another call. Only addresses may be missing.",
		action: listTellsWhatGetTells,
	},
	{
		Name:   "list-of-nothing",
		Why:    "A tag that has no instances has an empty list, without an error.",
		action: func(t *trial) { t.wantListed(t.p, t.newTag()) },
	},
	{
		Name: "list-refuses-invalid-tags",
		Why: "A tag that provider.ValidTag refuses is ErrPermanent with CodeInvalidRequest: an empty one would match " +
			"everybody's instances in many a backend's filter.",
		action: listRefusesInvalidTags,
	},
	{
		Name: "list-is-whole-or-says-what-is-missing",
		Why: "A list is whole, or what did not answer comes back as *PartialError beside the instances that were " +
			"seen. Callers keep the missing in their counts and sweep only what answered: a list that is short " +
			"without saying so makes them create anew what is there.",
		Needs:  []string{"Break"},
		action: listIsWholeOrSaysWhatIsMissing,
	},
}

func listHasTheTagsOwn(t *trial) {
	other := t.newTag()
	theirs := t.create(t.requestWith(t.h.Request, t.newUID(), other))
	var own []string
	for range 3 {
		own = append(own, t.create(t.request()))
	}
	if t.h.has("Second") {
		own = append(own, t.create(t.requestWith(t.h.Second, t.newUID(), t.tag)))
	}
	t.wantListed(t.p, t.tag, own...)
	t.wantListed(t.p, other, theirs)
	p := t.restart()
	t.wantListed(p, t.tag, own...)
	t.wantListed(p, other, theirs)
}

func listTellsWhatGetTells(t *trial) {
	want := t.get(t.create(t.request()))
	for _, in := range t.list(t.tag) {
		if in.ID != want.ID || in.Name != want.Name || in.UID != want.UID || in.Tag != want.Tag {
			t.errorf("ListByTag: ID %q, name %q, UID %q, tag %q, and Get says %q, %q, %q, %q",
				in.ID, in.Name, in.UID, in.Tag, want.ID, want.Name, want.UID, want.Tag)
		}
		if !slices.Contains(states, in.State) {
			t.errorf("ListByTag: the state of %q is %q, want one of %q", in.ID, in.State, states)
		}
	}
}

func listRefusesInvalidTags(t *trial) {
	for _, tag := range []string{"", "x", "UPPER", "under_score", "dash-", strings.Repeat("x", 64)} {
		list, err := t.p.ListByTag(t.ctx, tag)
		t.wantClass("ListByTag("+quote(tag)+")", err, provider.ErrPermanent, provider.CodeInvalidRequest)
		if len(list) > 0 {
			t.errorf("ListByTag(%q) has %d instances, want none", tag, len(list))
		}
	}
}

func listIsWholeOrSaysWhatIsMissing(t *trial) {
	away := t.create(t.request())
	var here []string
	if t.h.has("Second") {
		here = append(here, t.create(t.requestWith(t.h.Second, t.newUID(), t.tag)))
	}
	restore := t.breaks()
	list, err := t.p.ListByTag(t.ctx, t.tag)
	if c := provider.Class(err); c != "transient" {
		t.errorf("ListByTag while a place cannot be reached: %d instances, %v (class %s), want a *PartialError", len(list), err, c)
	}
	if len(here) > 0 {
		t.wantPartial(list, err, here)
	}
	restore()
	t.wantListed(t.p, t.tag, append(here, away)...)
}

// wantPartial checks a list that lacks a place and has the rest.
func (t *trial) wantPartial(list []provider.Instance, err error, here []string) {
	if got := idsOf(list); !slices.Equal(got, here) {
		t.errorf("ListByTag while a place cannot be reached has %q, want %q from the place that answers", got, here)
	}
	var partial *provider.PartialError
	if err == nil || !errors.As(err, &partial) {
		return // which is told already, or an error of another type
	}
	if len(partial.Missing) == 0 {
		t.errorf("ListByTag while a place cannot be reached: the *PartialError names nothing as missing")
	}
	for _, m := range partial.Missing {
		if m.Scope == "" || m.Err == nil {
			t.errorf("ListByTag: the *PartialError has the missing scope %q with the error %v, want both", m.Scope, m.Err)
		}
	}
}
