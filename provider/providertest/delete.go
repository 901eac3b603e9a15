package providertest

import (
	"errors"
	"time"

	"github.com/egressfleet/egress/provider"
)

var deleteCases = []Case{
	{
		Name: "delete-until-gone",
		Why: "Delete is idempotent: nil means gone, or asked for and under way. Repeated until Get says " +
			"ErrNotFound it leads there, and until then the instance is listed.",
		action: deleteUntilGone,
	},
	{
		Name: "delete-of-nothing",
		Why: "Deleting what does not exist is nil, so that Delete can be repeated after a crash without knowing " +
			"how far it got.",
		action: deleteOfNothing,
	},
	{
		Name: "delete-concurrently",
		Why: "All methods are safe for concurrent use. Deletes of one instance at the same time are all nil, or " +
			"ErrTransient where another one is at work.",
		action: deleteConcurrently,
	},
	{
		Name: "delete-takes-one",
		Why:  "Delete takes the instance of the ID and no other, of whatever tag.",

		action: deleteTakesOne,
	},
	{
		Name: "delete-is-true",
		Why: "Nil means gone, or asked for and under way. A backend that could not be asked is ErrTransient, " +
			"else the caller forgets an instance that runs on for ever.",
		Needs:  []string{"Break"},
		action: deleteIsTrue,
	},
}

func deleteUntilGone(t *trial) {
	req, id := t.created()
	for deadline := time.Now().Add(t.h.Timeout); ; {
		if err := t.p.Delete(t.ctx, id); err != nil && !transient(err) && !errors.Is(err, provider.ErrNotFound) {
			t.errorf("Delete(%q), repeated until Get says ErrNotFound: %v, want nil", id, err)
		}
		_, err := t.tryGet(t.p, id)
		if errors.Is(err, provider.ErrNotFound) {
			break
		}
		if time.Now().After(deadline) || !t.sleep(t.h.Interval) {
			t.fatalf("Get(%q), %v after Delete: %v, want ErrNotFound", id, t.h.Timeout, err)
		}
	}
	t.wantListed(t.p, req.Tag)
}

func deleteOfNothing(t *trial) {
	id := t.create(t.request())
	never := t.absent(id)
	if err := t.patiently(func() error { return t.p.Delete(t.ctx, never) }); err != nil {
		t.errorf("Delete of an instance that never was: %v, want nil", err)
	}
	t.mustGo(id)
	if err := t.patiently(func() error { return t.p.Delete(t.ctx, id) }); err != nil {
		t.errorf("Delete of an instance that is deleted: %v, want nil", err)
	}
}

func deleteConcurrently(t *trial) {
	_, id := t.created()
	atOnce(t.h.Concurrency, func(int) {
		err := t.patiently(func() error { return t.p.Delete(t.ctx, id) })
		if err != nil && !errors.Is(err, provider.ErrNotFound) {
			t.errorf("Delete, one of %d at the same time: %v, want nil or ErrTransient", t.h.Concurrency, err)
		}
	})
	t.mustGo(id)
}

func deleteTakesOne(t *trial) {
	sameTag := t.create(t.request())
	otherTag := t.create(t.requestWith(t.h.Request, t.newUID(), t.newTag()))
	t.mustGo(t.create(t.request()))
	t.stays(sameTag)
	t.stays(otherTag)
}

func deleteIsTrue(t *trial) {
	req, id := t.created()
	restore := t.breaks()
	err := t.p.Delete(t.ctx, id)
	if c := provider.Class(err); c != "transient" {
		t.errorf("Delete at a backend that cannot be reached: %v (class %s), want ErrTransient", err, c)
	}
	restore()
	t.get(id)
	t.wantListed(t.p, req.Tag, id)
	t.mustGo(id)
}
