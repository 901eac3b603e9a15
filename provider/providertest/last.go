package providertest

import (
	"context"
	"errors"
	"strings"

	"github.com/egressfleet/egress/provider"
)

// lastCases look back at all that happened before them.
var lastCases = []Case{
	{
		Name: "errors-have-a-class",
		Why: "Every error carries one of four classes, found with errors.Is: ErrNotFound, ErrQuotaExceeded, " +
			"ErrPermanent, ErrTransient. Callers decide by it; what has none counts as transient and is retried " +
			"for ever.",
		action: errorsHaveAClass,
	},
	{
		Name: "secrets-in-no-error",
		Why: "User-data, keys, passwords and tokens never reach an error text: errors end in logs, events and the " +
			"status of objects.",
		action: secretsInNoError,
	},
	{
		Name:   "secrets-in-no-log",
		Why:    "User-data, keys, passwords and tokens never reach a log.",
		Needs:  []string{"Logs"},
		action: secretsInNoLog,
	},
	{
		Name: "nothing-is-left",
		Why: "What was deleted leaves nothing behind: no tag of this run has an instance any more, and nothing that " +
			"belonged to one is on the backend.",
		action: nothingIsLeft,
	},
}

// errorsHaveAClass provokes what can be provoked without the harness, so that
// it means something alone.
func errorsHaveAClass(t *trial) {
	t.provoke()
	told := map[string]bool{}
	for _, e := range t.seenErrors() {
		if classified(e.err) || told[e.op+e.err.Error()] {
			continue
		}
		told[e.op+e.err.Error()] = true
		t.errorf("%s returned %v (%T), which matches none of the four", e.op, e.err, e.err)
	}
}

func classified(err error) bool {
	for _, class := range []error{provider.ErrNotFound, provider.ErrQuotaExceeded, provider.ErrPermanent, provider.ErrTransient} {
		if errors.Is(err, class) {
			return true
		}
	}
	return false
}

// provoke makes errors.
func (t *trial) provoke() {
	id := t.create(t.request())
	canceled, cancel := context.WithCancel(t.ctx)
	cancel()
	_, _ = t.p.Get(t.ctx, t.absent(id))
	_, _ = t.p.Get(t.ctx, "nonsense")
	_ = t.p.Delete(t.ctx, "nonsense")
	_, _ = t.p.ListByTag(t.ctx, "")
	_, _ = t.p.Create(t.ctx, provider.CreateRequest{UID: "x y", UserData: t.request().UserData})
	_, _ = t.p.Get(canceled, id)
	_, _ = t.p.ListByTag(canceled, t.tag)
}

func (s *suite) seenErrors() []seen {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]seen(nil), s.errs...)
}

func secretsInNoError(t *trial) {
	t.provoke()
	for _, e := range t.seenErrors() {
		t.wantNoSecret("an error of "+e.op, errorText(e.err))
	}
}

func secretsInNoLog(t *trial) {
	_, id := t.created()
	t.mustGo(id)
	t.wantNoSecret("the log", t.h.Logs())
}

// wantNoSecret tells where a secret is without repeating it.
func (t *trial) wantNoSecret(where, text string) {
	t.suite.mu.Lock()
	defer t.suite.mu.Unlock()
	for _, secret := range t.secrets {
		if secret == "" {
			continue
		}
		if i := strings.Index(text, secret); i >= 0 {
			line := text[strings.LastIndex(text[:i], "\n")+1 : i]
			t.errorf("%s shows a secret of %d bytes after %q", where, len(secret), line)
			return
		}
	}
}

func nothingIsLeft(t *trial) {
	for _, tag := range t.allTags() {
		for _, in := range t.list(tag) {
			t.errorf("ListByTag(%q) still has %q (%s)", tag, in.ID, in.State)
		}
	}
	if left := t.leftovers(); len(left) > 0 {
		t.errorf("on the backend there are still %q", left)
	}
}

func (s *suite) allTags() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.tags...)
}
