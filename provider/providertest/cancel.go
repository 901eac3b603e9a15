package providertest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/egressfleet/egress/provider"
)

// inTime is the clause of all canceled calls.
const inTime = "A call returns within a second after its context ends, even against a peer that never answers, and its error " +
	"matches the context's."

var cancelCases = []Case{
	{Name: "cancel-create", Why: inTime, Needs: []string{"Hang"}, action: func(t *trial) {
		req := t.request()
		t.cancelled("Create", func(ctx context.Context, _ string) error {
			id, err := t.p.Create(ctx, req)
			t.remember(id)
			return err
		})
	}},
	{Name: "cancel-get", Why: inTime, Needs: []string{"Hang"}, action: func(t *trial) {
		t.cancelled("Get", func(ctx context.Context, id string) error {
			_, err := t.p.Get(ctx, id)
			return err
		})
	}},
	{Name: "cancel-delete", Why: inTime, Needs: []string{"Hang"}, action: func(t *trial) {
		t.cancelled("Delete", func(ctx context.Context, id string) error { return t.p.Delete(ctx, id) })
	}},
	{Name: "cancel-list", Why: inTime, Needs: []string{"Hang"}, action: func(t *trial) {
		t.cancelled("ListByTag", func(ctx context.Context, _ string) error {
			_, err := t.p.ListByTag(ctx, t.tag)
			return err
		})
	}},
	{
		Name: "late-create-is-seen",
		Why: "A canceled Create may still land, and what lands late carries its tag: the object that holds tag and " +
			"UID is made before any part that does not, and removed after all of them. So ListByTag shows it, " +
			"Create finishes it, Delete takes it, and nothing is left that nobody sees.",
		Needs:  []string{"Hang"},
		action: lateCreateIsSeen,
	},
	{
		Name:   "slow-place-harms-no-other",
		Why:    "One slow host or caller holds up no other.",
		Needs:  []string{"Hang", "Second"},
		action: slowPlaceHarmsNoOther,
	},
	{
		Name: "concurrent-use",
		Why: "All methods are safe for concurrent use: many callers, each with instances of its own, disturb each " +
			"other in nothing. Run the test with -race.",
		action: concurrentUse,
	},
}

// patience is how long a call against a silent backend is given.
const patience = 100 * time.Millisecond

// cancelled checks one method against a backend that never answers, and that
// everything works when it does again.
func (t *trial) cancelled(op string, call func(ctx context.Context, id string) error) {
	id := t.create(t.request())
	t.boots(id)
	release := t.hangs()
	for what, end := range map[string]func(context.Context) (context.Context, context.CancelFunc){
		"deadline": func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, patience)
		},
		"cancellation": cancelAfter,
	} {
		if problem := t.canceledBy(end, func(ctx context.Context) error { return call(ctx, id) }); problem != "" {
			t.errorf("%s, ended by a %s: %s", op, what, problem)
		}
	}
	release()
	if _, err := t.tryGet(t.p, id); err != nil && op != "Delete" {
		t.errorf("Get after the backend answers again: %v, want nil", err)
	}
}

func cancelAfter(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	timer := time.AfterFunc(patience, cancel)
	return ctx, func() { timer.Stop(); cancel() }
}

// attempts is how often a call may fail for a reason of its own just when its
// context ends.
const attempts = 3

// canceledBy returns what is wrong with a call whose context ends, or nothing.
func (t *trial) canceledBy(end func(context.Context) (context.Context, context.CancelFunc), call func(context.Context) error) (problem string) {
	for range attempts {
		ctx, cancel := end(t.ctx)
		err := call(ctx)
		ended := ctx.Err()
		cancel()
		switch {
		case errors.Is(err, errOverdue):
			return "it did not return within a second"
		case err == nil:
			return "nil from a backend that never answers, want an error"
		case ended != nil && errors.Is(err, ended):
			return ""
		case ended == nil && transient(err):
			return "" // it gave up by itself, earlier
		}
		problem = fmt.Sprintf("%v, want it to match %v with errors.Is", err, ended)
	}
	return problem
}

// hangs lets calls hang until the case ends, or the function it returns is
// called, which also waits until what was held up has happened.
func (t *trial) hangs() (release func()) {
	goOn, err := t.h.Hang()
	if err != nil {
		t.fatalf("the harness: Hang: %v", err)
	}
	return t.once(func() {
		goOn()
		t.sleep(t.h.Settle)
	})
}

func lateCreateIsSeen(t *trial) {
	before := t.leftovers()
	req := t.request()
	release := t.hangs()
	ctx, cancel := context.WithTimeout(t.ctx, patience)
	id, err := t.p.Create(ctx, req)
	cancel()
	t.remember(id)
	release()
	t.wantSeen(fmt.Sprintf("after a Create that was canceled (%v)", err), req, id, before)
	again := t.create(req)
	if id != "" && again != id {
		t.errorf("Create after a canceled one returned the ID %q, want %q", again, id)
	}
	t.wantListed(t.p, req.Tag, again)
	t.mustGo(again)
	if now := t.leftovers(); len(now) > len(before) {
		t.errorf("after the Delete of what a canceled Create had begun there are %q, before there were %q", now, before)
	}
}

// wantSeen checks that what exists is listed.
func (t *trial) wantSeen(what string, req provider.CreateRequest, id string, before []string) {
	if len(t.list(req.Tag)) > 0 {
		return
	}
	if now := t.leftovers(); len(now) > len(before) {
		t.errorf("%s there are %q on the backend, before there were %q, and ListByTag(%q) shows nothing", what, now, before, req.Tag)
	}
	if id == "" {
		return
	}
	if in, err := t.tryGet(t.p, id); err == nil {
		t.errorf("%s Get(%q) finds an instance (%s), and ListByTag(%q) does not show it", what, id, in.State, req.Tag)
	}
}

// leftovers asks the harness, where it can tell.
func (t *trial) leftovers() []string {
	if !t.h.has("Leftovers") {
		return nil
	}
	all, err := t.h.Leftovers(t.ctx)
	if err != nil {
		t.fatalf("the harness: Leftovers: %v", err)
	}
	return all
}

func slowPlaceHarmsNoOther(t *trial) {
	slow := t.create(t.request())
	release := t.hangs()
	ctx, cancel := context.WithCancel(t.ctx)
	defer cancel()
	t.calls.Go(func() { _, _ = t.p.Provider.Get(ctx, slow) }) // without the time of a step
	t.sleep(patience)                                         // so that it is under way
	id, err := t.createOn(t.p, t.requestWith(t.h.Second, t.newUID(), t.tag))
	if err == nil {
		_, err = t.tryGet(t.p, id)
	}
	if err == nil {
		err = t.gone(t.p, id)
	}
	if err != nil {
		t.errorf("Create, Get and Delete in one place while another does not answer: %v, want nil", err)
	}
	release()
}

func concurrentUse(t *trial) {
	requests := make([]provider.CreateRequest, t.h.Concurrency)
	for i := range requests {
		requests[i] = t.request()
	}
	atOnce(len(requests), func(i int) {
		if err := t.wholeLife(requests[i]); err != nil {
			t.errorf("one of %d callers at the same time: %v", len(requests), err)
		}
	})
	t.wantListed(t.p, t.tag)
}

// wholeLife is what one caller does with one instance.
func (t *trial) wholeLife(req provider.CreateRequest) error {
	id, err := t.createOn(t.p, req)
	if err != nil {
		return fmt.Errorf("Create: %w, want nil", err)
	}
	in, err := t.tryGet(t.p, id)
	if err != nil || in.UID != req.UID || in.Tag != req.Tag {
		return fmt.Errorf("Get: UID %q, tag %q, %w, want UID %q, tag %q", in.UID, in.Tag, err, req.UID, req.Tag)
	}
	var list []provider.Instance
	err = t.patiently(func() error {
		list, err = t.p.ListByTag(t.ctx, req.Tag)
		return err
	})
	found := false
	for _, l := range list {
		found = found || l.ID == id
	}
	if err != nil || !found {
		return fmt.Errorf("ListByTag: %w, %d instances, want %q among them", err, len(list), id)
	}
	return t.gone(t.p, id)
}
