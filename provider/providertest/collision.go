package providertest

import "github.com/egressfleet/egress/provider"

// notOurs is the clause of all collisions.
const notOurs = "A name that another tag or UID holds, or an object without our mark, is ErrPermanent with CodeCollision, " +
	"and is left alone: never adopted, never deleted. Two owners on one backend do not touch each other's instances."

var collisionCases = []Case{
	{Name: "collision-with-another-tag", Why: notOurs, action: collisionWithAnotherTag},
	{Name: "collision-with-another-uid", Why: notOurs, Needs: []string{"OtherUID"}, action: collisionWithAnotherUID},
	{Name: "collision-with-a-stranger", Why: notOurs, Needs: []string{"Foreign"}, action: collisionWithAStranger},
	{
		Name: "delete-spares-strangers",
		Why: "Delete touches nothing that lacks our mark: what carries the name but was made by somebody else is " +
			"ErrPermanent with CodeCollision, and stays.",
		Needs:  []string{"Foreign"},
		action: deleteSparesStrangers,
	},
	{
		Name: "strangers-are-not-instances",
		Why: "ListByTag never has more than the tag's own, and Get makes no instance of what lacks our mark: it " +
			"says ErrPermanent, or ErrNotFound.",
		Needs:  []string{"Foreign"},
		action: strangersAreNotInstances,
	},
}

func collisionWithAnotherTag(t *trial) {
	req := t.request()
	id := t.create(req)
	other := req
	other.Tag = t.newTag()
	_, err := t.p.Create(t.ctx, other)
	t.wantClass("Create of a name that another tag holds", err, provider.ErrPermanent, provider.CodeCollision)
	if in := t.get(id); in.Tag != req.Tag || in.UID != req.UID {
		t.errorf("Get after the collision: tag %q, UID %q, want %q, %q as before", in.Tag, in.UID, req.Tag, req.UID)
	}
}

func collisionWithAnotherUID(t *trial) {
	req := t.request()
	other, err := t.h.OtherUID(t.ctx, req)
	stranger := t.stranger("OtherUID", other, err)
	_, err = t.p.Create(t.ctx, req)
	t.wantClass("Create of a name that another UID holds", err, provider.ErrPermanent, provider.CodeCollision)
	t.wantUnchanged("Create", stranger)
}

func collisionWithAStranger(t *trial) {
	req := t.request()
	foreign, err := t.h.Foreign(t.ctx, req)
	stranger := t.stranger("Foreign", foreign, err)
	_, err = t.p.Create(t.ctx, req)
	t.wantClass("Create of a name that a stranger holds", err, provider.ErrPermanent, provider.CodeCollision)
	t.wantUnchanged("Create", stranger)
}

func deleteSparesStrangers(t *trial) {
	foreign, err := t.h.Foreign(t.ctx, t.request())
	stranger := t.stranger("Foreign", foreign, err)
	err = t.p.Delete(t.ctx, stranger.ID)
	t.wantClass("Delete of what a stranger made", err, provider.ErrPermanent, provider.CodeCollision)
	t.wantUnchanged("Delete", stranger)
}

func strangersAreNotInstances(t *trial) {
	req := t.request()
	foreign, err := t.h.Foreign(t.ctx, req)
	stranger := t.stranger("Foreign", foreign, err)
	_, err = t.p.Get(t.ctx, stranger.ID)
	if c := provider.Class(err); c != "permanent" && c != "not_found" {
		t.errorf("Get of what a stranger made: %v (class %s), want ErrPermanent or ErrNotFound", err, c)
	}
	t.wantListed(t.p, req.Tag)
}

// stranger checks what the harness made, and has it removed in the end.
func (t *trial) stranger(from string, s Stranger, err error) Stranger {
	if err != nil {
		t.fatalf("the harness: %s: %v", from, err)
	}
	t.later(func() {
		if err := s.Remove(t.ctx); err != nil {
			t.errorf("the harness: %s: Remove: %v", from, err)
		}
	})
	return s
}

func (t *trial) wantUnchanged(op string, s Stranger) {
	ok, err := s.Unchanged(t.ctx)
	if err != nil {
		t.fatalf("the harness: Unchanged: %v", err)
	}
	if !ok {
		t.errorf("%s changed or removed %q, which is not the provider's", op, s.ID)
	}
}
