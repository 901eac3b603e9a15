package providertest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/egressfleet/egress/provider"
)

// suite is one run over one backend.
type suite struct {
	h      Harness
	prefix string // what all UIDs and tags of this run begin with
	main   *watched

	// calls are those that run, the left behind ones among them.
	calls sync.WaitGroup

	mu        sync.Mutex
	counter   int
	errs      []seen
	tags      []string // of all cases
	secrets   []string // of all requests
	providers []*watched
}

func newSuite(h Harness) (*suite, error) {
	if err := h.validate(); err != nil {
		return nil, err
	}
	s := &suite{h: h.withDefaults(), prefix: "pt-" + strings.ToLower(rand.Text()[:10])}
	s.secrets = slices.Clone(h.Secrets)
	var err error
	s.main, err = s.newProvider()
	return s, err
}

func (s *suite) newProvider() (*watched, error) {
	p, err := s.h.New()
	if err != nil {
		return nil, fmt.Errorf("providertest.Harness: New: %w", err)
	}
	w := &watched{Provider: p, s: s}
	s.providers = append(s.providers, w)
	return w, nil
}

// close ends all providers.
func (s *suite) close() {
	waitFor(&s.calls, s.h.Timeout)
	for _, p := range s.providers {
		_ = closeProvider(p)
	}
}

func (s *suite) next() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counter++
	return s.counter
}

// trial is one case at work. Its methods without an error end the case when
// the provider does what it must not.
type trial struct {
	*suite
	ctx context.Context
	p   *watched
	tag string // of the case; newTag makes more

	mu       sync.Mutex
	problems []string
	tags     map[string]bool
	ids      map[string]bool
	undo     []func()
}

// newTag returns a tag that was never used, and remembers it for the end.
func (t *trial) newTag() string {
	tag := fmt.Sprintf("%s-%d", t.prefix, t.next())
	t.ownTag(tag)
	return tag
}

func (t *trial) ownTag(tag string) {
	t.mu.Lock()
	t.tags[tag] = true
	t.mu.Unlock()
	t.suite.mu.Lock()
	t.suite.tags = append(t.suite.tags, tag)
	t.suite.mu.Unlock()
}

// newUID returns a UID that was never used.
func (t *trial) newUID() string { return fmt.Sprintf("%s-uid-%d", t.prefix, t.next()) }

// request returns one for a new instance of the case's tag.
func (t *trial) request() provider.CreateRequest {
	return t.requestWith(t.h.Request, t.newUID(), t.tag)
}

// requestWith asks the harness, and adds what the suite looks for later.
func (t *trial) requestWith(from func(uid, tag string) provider.CreateRequest, uid, tag string) provider.CreateRequest {
	req := from(uid, tag)
	if req.UID != uid || req.Tag != tag {
		t.fatalf("the harness: Request(%q, %q) returned UID %q and Tag %q", uid, tag, req.UID, req.Tag)
	}
	req.Metadata = map[string]string{"spec-hash": "pt-1", "port": "3128"}
	t.suite.mu.Lock()
	t.secrets = append(t.secrets, secretLines(string(req.UserData))...)
	t.suite.mu.Unlock()
	return req
}

// secretLines are the lines of a user-data that cannot be there by chance.
func secretLines(userData string) []string {
	return slices.DeleteFunc(strings.Split(userData, "\n"), func(line string) bool {
		return len(strings.TrimSpace(line)) < 16
	})
}

// remember notes an ID for the cleaning.
func (t *trial) remember(id string) {
	if id == "" {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ids[id] = true
}

// later has f run at the end of the case, whatever happens.
func (t *trial) later(f func()) { t.undo = append(t.undo, f) }

func (t *trial) undoAll() {
	for _, f := range slices.Backward(t.undo) {
		f()
	}
}

// restart returns another provider over the same backend.
func (t *trial) restart() *watched {
	p, err := t.newProvider()
	if err != nil {
		t.fatalf("%v", err)
	}
	return p
}

// transient tells of what waiting may heal.
func transient(err error) bool { return provider.Class(err) == "transient" }

// patiently repeats a call until it succeeds, fails for good, or the time of a
// step is over.
func (t *trial) patiently(call func() error) error {
	deadline := time.Now().Add(t.h.Timeout)
	for {
		err := call()
		if err == nil || !transient(err) || time.Now().After(deadline) || !t.sleep(t.h.Interval) {
			return err
		}
	}
}

// sleep returns false if the test ended.
func (t *trial) sleep(d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-t.ctx.Done():
		return false
	}
}

// createOn creates by that provider, as callers do: again while it is transient.
func (t *trial) createOn(p *watched, req provider.CreateRequest) (id string, err error) {
	err = t.patiently(func() error {
		id, err = p.Create(t.ctx, req)
		t.remember(id)
		return err
	})
	return id, err
}

// create must succeed.
func (t *trial) create(req provider.CreateRequest) string { return t.mustCreateOn(t.p, req) }

func (t *trial) mustCreateOn(p *watched, req provider.CreateRequest) string {
	id, err := t.createOn(p, req)
	if err != nil {
		t.fatalf("Create of UID %q: %v, want nil", req.UID, err)
	}
	return id
}

// tryGet gets, again while it is transient.
func (t *trial) tryGet(p *watched, id string) (in provider.Instance, err error) {
	err = t.patiently(func() error {
		in, err = p.Get(t.ctx, id)
		return err
	})
	return in, err
}

// get must succeed.
func (t *trial) get(id string) provider.Instance {
	in, err := t.tryGet(t.p, id)
	if err != nil {
		t.fatalf("Get(%q): %v, want the instance", id, err)
	}
	return in
}

// listOn must succeed.
func (t *trial) listOn(p *watched, tag string) []provider.Instance {
	var list []provider.Instance
	err := t.patiently(func() (err error) {
		list, err = p.ListByTag(t.ctx, tag)
		return err
	})
	if err != nil {
		t.fatalf("ListByTag(%q): %v, want nil", tag, err)
	}
	return list
}

func (t *trial) list(tag string) []provider.Instance { return t.listOn(t.p, tag) }

// idsOf are the IDs of a list, sorted.
func idsOf(list []provider.Instance) []string {
	out := make([]string, 0, len(list))
	for _, in := range list {
		out = append(out, in.ID)
	}
	slices.Sort(out)
	return out
}

// wantListed checks that a list has exactly these.
func (t *trial) wantListed(p *watched, tag string, want ...string) {
	slices.Sort(want)
	if got := idsOf(t.listOn(p, tag)); !slices.Equal(got, want) {
		t.errorf("ListByTag(%q) has %q, want exactly %q", tag, got, want)
	}
}

// becomes polls until the instance is in that state.
func (t *trial) becomes(id string, want provider.State) provider.Instance {
	var last provider.Instance
	for deadline := time.Now().Add(t.h.Timeout); ; {
		last = t.get(id)
		if last.State == want {
			return last
		}
		if time.Now().After(deadline) || !t.sleep(t.h.Interval) {
			t.fatalf("Get(%q): the state is %s (%q), want %s within %v", id, last.State, last.Reason, want, t.h.Timeout)
		}
	}
}

// boots waits for an instance to be Running, where they ever are.
func (t *trial) boots(id string) {
	if !t.h.NoBoot {
		t.becomes(id, provider.StateRunning)
	}
}

// created makes an instance and waits for its boot.
func (t *trial) created() (provider.CreateRequest, string) {
	req := t.request()
	id := t.create(req)
	t.boots(id)
	return req, id
}

// gone deletes until Get says ErrNotFound.
func (t *trial) gone(p *watched, id string) error {
	for deadline := time.Now().Add(t.h.Timeout); ; {
		err := p.Delete(t.ctx, id)
		if err == nil {
			_, err = p.Get(t.ctx, id)
		}
		switch {
		case errors.Is(err, provider.ErrNotFound):
			return nil
		case errors.Is(err, provider.ErrPermanent):
			return err
		case time.Now().After(deadline), !t.sleep(t.h.Interval):
			return fmt.Errorf("it is not gone after %v, last: %w", t.h.Timeout, err)
		}
	}
}

// mustGo is gone that must succeed.
func (t *trial) mustGo(id string) {
	if err := t.gone(t.p, id); err != nil {
		t.fatalf("Delete(%q) until Get says ErrNotFound: %v", id, err)
	}
}

// cleanUp deletes what the case made. What stays is for the last case to tell.
func (t *trial) cleanUp() {
	for id := range maps.Clone(t.ids) {
		_ = t.gone(t.p, id)
	}
	for tag := range t.tags {
		list, _ := t.p.ListByTag(t.ctx, tag)
		for _, in := range list {
			_ = t.gone(t.p, in.ID)
		}
	}
}

// wantClass checks an error's class, and its code where one is given.
func (t *trial) wantClass(what string, err, class error, code string) {
	switch {
	case !errors.Is(err, class):
		t.errorf("%s: %v (class %s), want %v", what, err, provider.Class(err), class)
	case code != "" && !provider.HasCode(err, code):
		t.errorf("%s: %v, want a *provider.Error with Code %q", what, err, code)
	}
}

// atOnce runs n functions at the same time, each with its number.
func atOnce(n int, f func(i int)) {
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-start
			f(i)
		})
	}
	close(start)
	wg.Wait()
}
