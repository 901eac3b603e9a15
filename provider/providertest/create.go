package providertest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/egressfleet/egress/provider"
)

var createCases = []Case{
	{
		Name: "name-is-derived",
		Why: "The name is provider.Name(UID), on every backend, and stands last in the ID: so a caller that " +
			"knows the UID finds the instance again after a crash, without a store on either side.",
		action: nameIsDerived,
	},
	{
		Name: "id-tells-the-place",
		Why: "An ID is Scopes/scope/Kinds/name, as provider.IDFormat makes it: where an instance lives can be " +
			"read without asking anyone.",
		action: idTellsThePlace,
	},
	{
		Name: "create-is-idempotent",
		Why: "Create is idempotent on the name: called again with the same request it returns the same ID and " +
			"makes no second instance.",
		action: createIsIdempotent,
	},
	{
		Name: "create-concurrently",
		Why: "All methods are safe for concurrent use. Creates of one UID at the same time make one instance; " +
			"each returns its ID, with nil or with ErrTransient where another one is at work.",
		action: createConcurrently,
	},
	{
		Name: "create-after-restart",
		Why: "Create picks up what exists, also what another process made: the backend is the memory. Get and " +
			"Delete of a new process work as well.",
		action: createAfterRestart,
	},
	{
		Name: "create-cut-short",
		Why: "Create is called again after any failure, crash or cancellation, and finishes what it finds. What " +
			"was cut off at any moment becomes a whole instance by the next Create.",
		action: createCutShort,
	},
	{
		Name: "create-after-delete",
		Why: "A name that is still being deleted is ErrTransient. Once Create returns nil the instance is there " +
			"to stay: a deletion of before does not take it.",
		action: createAfterDelete,
	},
	{
		Name: "create-refuses-invalid-requests",
		Why: "What CreateRequest.Validate refuses is ErrPermanent with CodeInvalidRequest, before the backend is " +
			"asked for anything: retrying cannot help, and nothing is left.",
		action: createRefusesInvalidRequests,
	},
	{
		Name: "create-takes-the-limits",
		Why: "What CreateRequest.Validate accepts works: a UID of 128 characters, a tag of 63, sixteen metadata " +
			"entries of 256 bytes of UTF-8, and none at all.",
		action: createTakesTheLimits,
	},
	{
		Name: "create-returns-the-id-with-an-error",
		Why: "Once the place is known the ID comes back with an error as well, so that the caller can delete " +
			"what there may be.",
		action: createReturnsTheIDWithAnError,
	},
	{
		Name: "create-fails-for-now",
		Why: "A backend that cannot be reached is ErrTransient: the caller keeps what it has and asks again. It " +
			"is neither the request's fault nor a quota.",
		Needs:  []string{"Break"},
		action: createFailsForNow,
	},
	{
		Name: "quota-leaves-nothing",
		Why: "A used-up quota or capacity is ErrQuotaExceeded. What Create had made by then is undone at once, " +
			"because the caller will go elsewhere with a new UID.",
		Needs:  []string{"Exhaust"},
		action: quotaLeavesNothing,
	},
	{
		Name: "metadata-comes-back",
		Why: "Metadata comes back as it was given, byte for byte, by Get and by ListByTag, also in another " +
			"process: callers keep a port and the hash of a spec there.",
		action: metadataComesBack,
	},
	{
		Name:   "user-data-arrives",
		Why:    "User-data is opaque bytes and reaches the guest byte for byte.",
		Needs:  []string{"HasUserData"},
		action: userDataArrives,
	},
	{
		Name: "request-stays-the-callers",
		Why: "A request is the caller's: Create changes nothing in it and keeps none of its maps and slices, " +
			"which the caller may change after the call.",
		action: requestStaysTheCallers,
	},
}

func nameIsDerived(t *trial) {
	req := t.request()
	id := t.create(req)
	want := provider.Name(req.UID)
	if got := t.get(id).Name; got != want {
		t.errorf("Get(%q): the name is %q, want %q", id, got, want)
	}
	if !strings.HasSuffix(id, "/"+want) {
		t.errorf("Create of UID %q: the ID is %q, want it to end with /%s", req.UID, id, want)
	}
}

func idTellsThePlace(t *trial) {
	id := t.create(t.request())
	parts := strings.Split(id, "/")
	if len(parts) != 4 || slices.ContainsFunc(parts, func(p string) bool { return provider.ValidIDPart(p) != nil }) {
		t.errorf("Create returned the ID %q, want it like hosts/HOST/domains/NAME", id)
	}
}

func createIsIdempotent(t *trial) {
	req := t.request()
	id := t.create(req)
	if again := t.create(req); again != id {
		t.errorf("a second Create returned the ID %q, the first one %q", again, id)
	}
	t.boots(id)
	if again := t.create(req); again != id {
		t.errorf("a Create of what runs returned the ID %q, the first one %q", again, id)
	}
	t.wantListed(t.p, req.Tag, id)
}

func createConcurrently(t *trial) {
	req := t.request()
	ids := make([]string, t.h.Concurrency)
	atOnce(len(ids), func(i int) {
		var err error
		if ids[i], err = t.createOn(t.p, req); err != nil {
			t.errorf("Create, one of %d at the same time: %v, want nil or ErrTransient", len(ids), err)
		}
	})
	slices.Sort(ids)
	if different := slices.Compact(ids); len(different) != 1 {
		t.fatalf("Creates of one UID at the same time returned the IDs %q, want one", different)
	}
	t.get(ids[0])
	t.wantListed(t.p, req.Tag, ids[0])
}

func createAfterRestart(t *trial) {
	req := t.request()
	id := t.create(req)
	p := t.restart()
	if again := t.mustCreateOn(p, req); again != id {
		t.errorf("Create after a restart returned the ID %q, want %q", again, id)
	}
	if in, err := t.tryGet(p, id); err != nil || in.UID != req.UID {
		t.errorf("Get after a restart: UID %q, %v, want UID %q", in.UID, err, req.UID)
	}
	t.wantListed(p, req.Tag, id)
	if err := t.gone(t.restart(), id); err != nil {
		t.errorf("Delete after a restart: %v", err)
	}
}

// cuts is how often createCutShort cuts.
const cuts = 10

func createCutShort(t *trial) {
	whole := t.timeOfCreate()
	for i := range cuts {
		after := time.Duration(rand.Int64N(int64(whole))) // #nosec G404 -- a moment, no secret
		if i == 0 {
			after = 0
		}
		t.cutAndFinish(after)
	}
}

func (t *trial) timeOfCreate() time.Duration {
	req := t.request()
	start := time.Now()
	t.mustGo(t.create(req))
	return max(time.Since(start), time.Millisecond)
}

// cutAndFinish cuts a Create, throws its provider away, and has a new one
// finish.
func (t *trial) cutAndFinish(after time.Duration) {
	req := t.request()
	first := t.restart()
	ctx, cancel := context.WithTimeout(t.ctx, after)
	early, err := first.Create(ctx, req)
	cancel()
	t.remember(early)
	_ = closeProvider(first)
	what := fmt.Sprintf("after a Create that was cut after %v (%v)", after, err)

	p := t.restart()
	id, err := t.createOn(p, req)
	if err != nil {
		t.fatalf("%s the next one says %v, want nil", what, err)
	}
	if early != "" && early != id {
		t.errorf("%s the ID is %q, it was %q", what, id, early)
	}
	if in, err := t.tryGet(p, id); err != nil || in.UID != req.UID || in.Tag != req.Tag {
		t.errorf("%s Get says UID %q, tag %q, %v, want UID %q, tag %q", what, in.UID, in.Tag, err, req.UID, req.Tag)
	}
	t.boots(id)
	if err := t.gone(p, id); err != nil {
		t.fatalf("%s Delete: %v", what, err)
	}
}

func createAfterDelete(t *trial) {
	req, id := t.created()
	if err := t.p.Delete(t.ctx, id); err != nil {
		t.fatalf("Delete(%q): %v, want nil", id, err)
	}
	err := t.patiently(func() error {
		again, err := t.p.Create(t.ctx, req)
		if err == nil && again != id {
			t.errorf("Create after Delete returned the ID %q, want %q", again, id)
		}
		return err
	})
	if err != nil {
		t.fatalf("Create after Delete of the same UID: %v, want nil, or ErrTransient for as long as it is being deleted", err)
	}
	t.boots(id)
	t.stays(id)
}

// stays checks for a while that an instance is there and not being deleted.
func (t *trial) stays(id string) {
	for end := time.Now().Add(t.h.Settle / 2); time.Now().Before(end) && t.sleep(t.h.Interval); {
		if in := t.get(id); in.State == provider.StateStopping {
			t.fatalf("Get(%q): the state is %s, and nobody deleted it", id, in.State)
		}
	}
}

func createRefusesInvalidRequests(t *trial) {
	for what, spoil := range map[string]func(*provider.CreateRequest){
		"no UID":               func(r *provider.CreateRequest) { r.UID = "" },
		"a UID with a space":   func(r *provider.CreateRequest) { r.UID += " x" },
		"no tag":               func(r *provider.CreateRequest) { r.Tag = "" },
		"a tag in upper case":  func(r *provider.CreateRequest) { r.Tag = strings.ToUpper(r.Tag) },
		"a bad metadata key":   func(r *provider.CreateRequest) { r.Metadata["Bad Key"] = "x" },
		"a long metadata text": func(r *provider.CreateRequest) { r.Metadata["long"] = strings.Repeat("x", 257) },
	} {
		req := t.request()
		spoil(&req)
		id, err := t.p.Create(t.ctx, req)
		t.remember(id)
		t.wantClass("Create with "+what, err, provider.ErrPermanent, provider.CodeInvalidRequest)
	}
	t.wantListed(t.p, t.tag)
}

func createTakesTheLimits(t *trial) {
	tag := t.tag + strings.Repeat("-x", 32)[:63-len(t.tag)-1] + "z"
	t.ownTag(tag)
	uid := t.newUID()
	full := t.requestWith(t.h.Request, uid+strings.Repeat("~", 128-len(uid)), tag)
	for i := range 16 - len(full.Metadata) {
		full.Metadata[fmt.Sprintf("key-%d", i)] = strings.Repeat("ü", 128)
	}
	bare := t.request()
	bare.Metadata = nil
	for _, req := range []provider.CreateRequest{full, bare} {
		in := t.get(t.create(req))
		if in.UID != req.UID || in.Tag != req.Tag || !maps.Equal(in.Metadata, req.Metadata) {
			t.errorf("Get: UID %q, tag %q, metadata %q, want %q, %q, %q", in.UID, in.Tag, in.Metadata, req.UID, req.Tag, req.Metadata)
		}
	}
}

func createReturnsTheIDWithAnError(t *trial) {
	req := t.request()
	id := t.create(req)
	req.Tag = t.newTag()
	t.wantIDWithError("of a name that another tag holds", req, id)
	if !t.h.has("Exhaust") {
		return
	}
	restore := t.exhausts()
	other := t.request()
	t.wantIDWithError("with the quota used up", other, "")
	restore()
}

// beside is the ID of that UID in the place of another ID.
func beside(id, uid string) string { return id[:strings.LastIndex(id, "/")+1] + provider.Name(uid) }

// wantIDWithError wants that ID, or any where it is empty.
func (t *trial) wantIDWithError(what string, req provider.CreateRequest, want string) {
	got, err := t.p.Create(t.ctx, req)
	t.remember(got)
	if err != nil && (got == "" || want != "" && got != want) {
		t.errorf("Create %s: the ID %q with the error %v, want the ID of UID %q", what, got, err, req.UID)
	}
}

// breaks cuts the wire until the case ends, or the function it returns is called.
func (t *trial) breaks() (restore func()) {
	restore, err := t.h.Break()
	if err != nil {
		t.fatalf("the harness: Break: %v", err)
	}
	return t.once(restore)
}

// exhausts uses up the quota, as breaks does with the wire.
func (t *trial) exhausts() (restore func()) {
	restore, err := t.h.Exhaust(t.ctx)
	if err != nil {
		t.fatalf("the harness: Exhaust: %v", err)
	}
	return t.once(restore)
}

// once has f run once: now or at the end of the case.
func (t *trial) once(f func()) func() {
	done := false
	g := func() {
		if !done {
			done = true
			f()
		}
	}
	t.later(g)
	return g
}

func createFailsForNow(t *trial) {
	restore := t.breaks()
	req := t.request()
	id, err := t.p.Create(t.ctx, req)
	t.remember(id)
	if c := provider.Class(err); c != "transient" {
		t.errorf("Create at a backend that cannot be reached: %v (class %s), want ErrTransient", err, c)
	}
	restore()
	t.create(req)
}

func quotaLeavesNothing(t *trial) {
	restore := t.exhausts()
	req := t.request()
	id, err := t.p.Create(t.ctx, req)
	t.remember(id)
	t.wantClass("Create with the quota used up", err, provider.ErrQuotaExceeded, "")
	t.wantListed(t.p, req.Tag)
	restore()
	t.wantListed(t.p, req.Tag)
	t.create(req)
}

func metadataComesBack(t *trial) {
	req := t.request()
	req.Metadata = map[string]string{
		"spec-hash": "sha256:0f1e", "empty": "", "markup": `<&>"'`, "spaces": "  both ends ", "lines": "a\nb\r\n\tc\n", "control": "\x01\x7f", "utf-8": "ü€😀",
	}
	want := maps.Clone(req.Metadata)
	id := t.create(req)
	for what, p := range map[string]*watched{"": t.p, " after a restart": t.restart()} {
		in, err := t.tryGet(p, id)
		if err != nil || !maps.Equal(in.Metadata, want) {
			t.errorf("Get%s: the metadata is %q, %v, want %q", what, in.Metadata, err, want)
		}
		for _, in := range t.listOn(p, req.Tag) {
			if !maps.Equal(in.Metadata, want) {
				t.errorf("ListByTag%s: the metadata is %q, want %q", what, in.Metadata, want)
			}
		}
	}
}

func userDataArrives(t *trial) {
	odd := []byte("\n#!/bin/sh\n# every byte:\n")
	for i := range 256 {
		odd = append(odd, byte(i))
	}
	for what, userData := range map[string][]byte{"every byte": odd, "nothing": nil} {
		req := t.request()
		req.UserData = slices.Clone(userData)
		id := t.create(req)
		ok, err := t.h.HasUserData(t.ctx, id, userData)
		if err != nil {
			t.fatalf("the harness: HasUserData: %v", err)
		}
		if !ok {
			t.errorf("the guest of %q was given something else than the %d bytes of user-data (%s)", id, len(userData), what)
		}
	}
}

func requestStaysTheCallers(t *trial) {
	req := t.request()
	metadata, userData := maps.Clone(req.Metadata), slices.Clone(req.UserData)
	id := t.create(req)
	if !maps.Equal(req.Metadata, metadata) || !slices.Equal(req.UserData, userData) {
		t.errorf("Create changed the request: metadata %q, want %q", req.Metadata, metadata)
	}
	clear(req.Metadata)
	req.Metadata["changed"] = "by the caller"
	clear(req.UserData)
	if in := t.get(id); !maps.Equal(in.Metadata, metadata) {
		t.errorf("Get after the caller changed its map: the metadata is %q, want %q", in.Metadata, metadata)
	}
}

// errorText is all that an error can show.
func errorText(err error) string {
	text := fmt.Sprintf("%v\n%+v\n%#v", err, err, err)
	var partial *provider.PartialError
	if errors.As(err, &partial) {
		for _, m := range partial.Missing {
			text += fmt.Sprintf("\n%s %+v", m.Scope, m.Err)
		}
	}
	return text
}
