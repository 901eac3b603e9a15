package providertest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"go.uber.org/goleak"

	"github.com/egressfleet/egress/provider"
	"github.com/egressfleet/egress/provider/local"
	"github.com/egressfleet/egress/provider/providertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// broken is a provider with some methods replaced.
type broken struct {
	provider.Provider
	create func(context.Context, provider.CreateRequest) (string, error)
	get    func(context.Context, string) (provider.Instance, error)
	delete func(context.Context, string) error
	list   func(context.Context, string) ([]provider.Instance, error)
}

func (b broken) Create(ctx context.Context, req provider.CreateRequest) (string, error) {
	if b.create == nil {
		return b.Provider.Create(ctx, req)
	}
	return b.create(ctx, req)
}

func (b broken) Get(ctx context.Context, id string) (provider.Instance, error) {
	if b.get == nil {
		return b.Provider.Get(ctx, id)
	}
	return b.get(ctx, id)
}

func (b broken) Delete(ctx context.Context, id string) error {
	if b.delete == nil {
		return b.Provider.Delete(ctx, id)
	}
	return b.delete(ctx, id)
}

func (b broken) ListByTag(ctx context.Context, tag string) ([]provider.Instance, error) {
	if b.list == nil {
		return b.Provider.ListByTag(ctx, tag)
	}
	return b.list(ctx, tag)
}

// Unwrap has the suite close what is inside.
func (b broken) Unwrap() provider.Provider { return b.Provider }

// on changes what Get and ListByTag say of each instance.
func (b broken) on(get, list func(*provider.Instance)) broken {
	if get != nil {
		b.get = func(ctx context.Context, id string) (provider.Instance, error) {
			in, err := b.Provider.Get(ctx, id)
			if err == nil {
				get(&in)
			}
			return in, err
		}
	}
	if list != nil {
		b.list = func(ctx context.Context, tag string) ([]provider.Instance, error) {
			all, err := b.Provider.ListByTag(ctx, tag)
			for i := range all {
				list(&all[i])
			}
			return all, err
		}
	}
	return b
}

// shared is what the providers of one run have in common, as a backend has.
type shared struct {
	mu    sync.Mutex
	ids   map[string]bool
	tags  map[string]string // by ID
	text  bytes.Buffer
	later sync.WaitGroup
}

func (s *shared) set(id string, v bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v {
		s.ids[id] = true
		return
	}
	delete(s.ids, id)
}

func (s *shared) has(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ids[id]
}

func (s *shared) all(context.Context) ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.ids)), nil
}

// sabotage breaks one provider.
type sabotage func(p broken, s *shared, h *providertest.Harness) provider.Provider

// breakage is one way to break the contract, and the cases that must say so.
type breakage struct {
	what     string
	rack     bool // else local
	sabotage sabotage
	caught   []string
	// more tells that further cases may say so as well, because most of the
	// suite builds on what is broken.
	more bool
}

func localID(uid string) string { return "hosts/local/proxies/" + provider.Name(uid) }

var ctxErrs = []error{context.Canceled, context.DeadlineExceeded}

func ended(err error) bool {
	return slices.ContainsFunc(ctxErrs, func(target error) bool { return errors.Is(err, target) })
}

func blip(err error) bool { return provider.Class(err) == "transient" }

// Each provider is broken in one way, and is caught by the cases that are about
// it and by no other.
func TestBrokenProvidersAreCaught(t *testing.T) {
	all := slices.Concat(createBreakages, getBreakages, deleteBreakages, listBreakages, callBreakages)
	failed := runAll(t, all)
	caught := map[string]bool{}
	for i, b := range all {
		t.Run(b.what, func(t *testing.T) {
			got := []string{}
			for _, r := range failed[i] {
				got = append(got, r.Name)
				assert.ErrorContains(t, r.Err, "the contract: "+strings.Fields(r.Why)[0], "a failure prints its clause")
				t.Logf("%s: %v", r.Name, r.Err)
			}
			if b.more {
				assert.Subset(t, got, b.caught)
			} else {
				assert.ElementsMatch(t, b.caught, got)
			}
		})
		for _, name := range b.caught {
			caught[name] = true
		}
	}
	for _, c := range providertest.Cases() {
		assert.True(t, caught[c.Name], "no broken provider shows that %s can fail", c.Name)
	}
}

// runAll runs several suites at a time, because they wait most of the time.
func runAll(t *testing.T, all []breakage) [][]providertest.Result {
	t.Helper()
	failed := make([][]providertest.Result, len(all))
	atWork := make(chan struct{}, 8)
	var suites sync.WaitGroup
	for i, b := range all {
		suites.Go(func() {
			atWork <- struct{}{}
			defer func() { <-atWork }()
			failed[i] = b.run(t)
		})
	}
	suites.Wait()
	return failed
}

// run returns the cases that failed.
func (b breakage) run(t *testing.T) (failed []providertest.Result) {
	t.Helper()
	s := &shared{ids: map[string]bool{}, tags: map[string]string{}}
	defer s.later.Wait()
	h := s.localHarness(t)
	if b.rack {
		h = newRackService(t).harness()
	}
	h.Logs = func() string {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.text.String()
	}
	whole := h.New
	h.New = func() (provider.Provider, error) {
		p, err := whole()
		return b.sabotage(broken{Provider: p}, s, &h), err
	}
	b.sabotage(broken{}, s, &h) // for what it changes in the harness
	results, err := providertest.Check(t.Context(), h)
	assert.NoError(t, err)
	for _, r := range results {
		if r.Err != nil {
			failed = append(failed, r)
		}
	}
	return failed
}

func (s *shared) localHarness(t *testing.T) providertest.Harness {
	t.Helper()
	host, err := local.NewHost(local.HostConfig{
		BootDelay: 10 * time.Millisecond, DeleteDelay: 20 * time.Millisecond, Capacity: 40, WithoutProxies: true,
	})
	assert.NoError(t, err)
	t.Cleanup(host.Close)
	inject := func(f local.Fault) func(context.Context, string) error {
		return func(_ context.Context, id string) error {
			return host.Inject(strings.Replace(strings.TrimPrefix(id, "my "), "/vm-", "/proxy-", 1), f)
		}
	}
	return providertest.Harness{
		New: func() (provider.Provider, error) { return local.New(local.Config{Host: host}) },
		Request: func(uid, tag string) provider.CreateRequest {
			return provider.CreateRequest{UID: uid, Tag: tag, UserData: provider.UserData("#cloud-config\npassword: secret-of-" + uid)}
		},
		Timeout: 2 * time.Second, Interval: 2 * time.Millisecond, Settle: 100 * time.Millisecond,
		Unconfigured: "hosts/elsewhere/proxies/" + provider.Name("x"),
		Stop:         inject(local.Stop), Crash: inject(local.Crash), Vanish: inject(local.Vanish),
		Break: func() (func(), error) {
			host.OnCall(func(context.Context, string) error { return errors.New("no route to host") })
			return func() { host.OnCall(nil) }, nil
		},
		Hang:    func() (func(), error) { return hold(host), nil },
		Exhaust: func(ctx context.Context) (func(), error) { return fill(ctx, host) },
	}
}

func hold(host *local.Host) (release func()) {
	held := make(chan struct{})
	host.OnCall(func(ctx context.Context, _ string) error {
		select {
		case <-held:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	return func() { host.OnCall(nil); close(held) }
}

func fill(ctx context.Context, host *local.Host) (restore func(), err error) {
	p, err := local.New(local.Config{Host: host})
	for i := 0; err == nil; i++ {
		_, err = p.Create(ctx, provider.CreateRequest{UID: fmt.Sprint("filler-", i), Tag: "filler"})
	}
	if !errors.Is(err, provider.ErrQuotaExceeded) {
		return nil, err
	}
	return func() {
		all, _ := p.ListByTag(ctx, "filler")
		for _, in := range all {
			_ = host.Inject(in.ID, local.Vanish)
		}
	}, nil
}

func permanently(text string) error {
	return &provider.Error{Class: provider.ErrPermanent, Err: errors.New(text)}
}

// renamed gives other IDs out than the provider's, and takes them back.
func renamed(p broken, out, in func(string) string) broken {
	return broken{
		Provider: p.Provider,
		create: func(ctx context.Context, req provider.CreateRequest) (string, error) {
			id, err := p.Provider.Create(ctx, req)
			return out(id), err
		},
		get: func(ctx context.Context, id string) (provider.Instance, error) {
			i, err := p.Provider.Get(ctx, in(id))
			i.ID, i.Name = out(i.ID), strings.Replace(i.Name, "proxy-", out("/proxy-")[1:], 1)
			return i, err
		},
		delete: func(ctx context.Context, id string) error { return p.Provider.Delete(ctx, in(id)) },
		list: func(ctx context.Context, tag string) ([]provider.Instance, error) {
			all, err := p.Provider.ListByTag(ctx, tag)
			for i := range all {
				all[i].ID, all[i].Name = out(all[i].ID), strings.Replace(all[i].Name, "proxy-", out("/proxy-")[1:], 1)
			}
			return all, err
		},
	}
}

// failingCreate changes the error of Create.
func failingCreate(change func(req provider.CreateRequest, id string, err error) (string, error)) sabotage {
	return func(p broken, _ *shared, _ *providertest.Harness) provider.Provider {
		p.create = func(ctx context.Context, req provider.CreateRequest) (string, error) {
			id, err := p.Provider.Create(ctx, req)
			if err != nil {
				return change(req, id, err)
			}
			return id, nil
		}
		return p
	}
}

// failingGet changes the error of Get.
func failingGet(change func(id string, err error) error) sabotage {
	return func(p broken, _ *shared, _ *providertest.Harness) provider.Provider {
		p.get = func(ctx context.Context, id string) (provider.Instance, error) {
			in, err := p.Provider.Get(ctx, id)
			if err != nil {
				return in, change(id, err)
			}
			return in, nil
		}
		return p
	}
}

// saying changes what Get says of an instance.
func saying(change func(*provider.Instance)) sabotage {
	return func(p broken, _ *shared, _ *providertest.Harness) provider.Provider { return p.on(change, nil) }
}

// busy runs f unless another one of the key is running.
func (s *shared) busy(key string, f func() error) error {
	s.mu.Lock()
	taken := s.ids[key]
	s.ids[key] = true
	s.mu.Unlock()
	if taken {
		return permanently("another call is at work")
	}
	defer s.set(key, false)
	time.Sleep(time.Millisecond)
	return f()
}

var createBreakages = []breakage{
	{
		what:   "the tag comes last, so a late Create is unseen",
		caught: []string{"late-create-is-seen"},
		sabotage: func(p broken, s *shared, _ *providertest.Harness) provider.Provider {
			p.create = func(ctx context.Context, req provider.CreateRequest) (string, error) {
				id := localID(req.UID)
				_, err := p.Provider.Create(ctx, req)
				if ctx.Err() != nil {
					s.later.Go(func() {
						s.set(id, true)
						_, _ = p.Provider.Create(context.WithoutCancel(ctx), req)
					})
					return id, err
				}
				s.set(id, false)
				return id, err
			}
			p.list = func(ctx context.Context, tag string) ([]provider.Instance, error) {
				all, err := p.Provider.ListByTag(ctx, tag)
				return slices.DeleteFunc(all, func(in provider.Instance) bool { return s.has(in.ID) }), err
			}
			p.delete = func(ctx context.Context, id string) error {
				s.set(id, false)
				return p.Provider.Delete(ctx, id)
			}
			return p
		},
	},
	{
		what:   "a disk is made before what carries the tag",
		caught: []string{"late-create-is-seen"},
		sabotage: func(p broken, s *shared, h *providertest.Harness) provider.Provider {
			h.Leftovers = s.all
			p.create = func(ctx context.Context, req provider.CreateRequest) (string, error) {
				_, err := p.Provider.Create(ctx, req)
				if ctx.Err() != nil {
					s.set(localID(req.UID), true)
				}
				return localID(req.UID), err
			}
			p.delete = func(ctx context.Context, id string) error {
				s.set(id, false)
				return p.Provider.Delete(ctx, id)
			}
			return p
		},
	},
	{
		what:   "a disk outlives its instance",
		caught: []string{"late-create-is-seen", "nothing-is-left"},
		sabotage: func(p broken, s *shared, h *providertest.Harness) provider.Provider {
			h.Leftovers = s.all
			p.create = func(ctx context.Context, req provider.CreateRequest) (string, error) {
				id, err := p.Provider.Create(ctx, req)
				s.set(id, err == nil || s.has(id))
				return id, err
			}
			return p
		},
	},
	{
		what:   "a collision is adopted",
		caught: []string{"collision-with-another-tag"},
		sabotage: failingCreate(func(_ provider.CreateRequest, id string, err error) (string, error) {
			if provider.HasCode(err, provider.CodeCollision) {
				return id, nil
			}
			return id, err
		}),
	},
	{
		what: "another UID's instance is adopted", rack: true,
		caught:   []string{"collision-with-another-uid"},
		sabotage: adoptIf(func(m machine) bool { return m.Labels["uid"] == "another" }),
	},
	{
		what: "a stranger's machine is adopted", rack: true,
		caught:   []string{"collision-with-a-stranger"},
		sabotage: adoptIf(func(m machine) bool { return m.Labels == nil }),
	},
	{
		what:   "Create of what exists is an error",
		caught: []string{"create-is-idempotent", "create-concurrently", "create-after-restart"}, more: true,
		sabotage: func(p broken, _ *shared, _ *providertest.Harness) provider.Provider {
			p.create = func(ctx context.Context, req provider.CreateRequest) (string, error) {
				in, err := p.Provider.Get(ctx, localID(req.UID))
				if err == nil && in.Tag == req.Tag && in.State != provider.StateStopping {
					return in.ID, permanently("it exists already")
				}
				return p.Provider.Create(ctx, req)
			}
			return p
		},
	},
	{
		what:   "Creates of one UID at the same time fail for good",
		caught: []string{"create-concurrently"},
		sabotage: func(p broken, s *shared, _ *providertest.Harness) provider.Provider {
			p.create = func(ctx context.Context, req provider.CreateRequest) (id string, err error) {
				err = s.busy(req.UID, func() error {
					id, err = p.Provider.Create(ctx, req)
					return err
				})
				return id, err
			}
			return p
		},
	},
	{
		what:   "what was cut off is never finished",
		caught: []string{"create-cut-short"},
		sabotage: func(p broken, s *shared, _ *providertest.Harness) provider.Provider {
			p.create = func(ctx context.Context, req provider.CreateRequest) (string, error) {
				id, err := p.Provider.Create(ctx, req)
				if ended(err) {
					s.set(localID(req.UID), true)
				}
				return id, err
			}
			return p.on(func(in *provider.Instance) {
				if s.has(in.ID) {
					in.State = provider.StateProvisioning
				}
			}, nil)
		},
	},
	{
		what:   "names are not derived",
		caught: []string{"name-is-derived"},
		sabotage: func(p broken, _ *shared, _ *providertest.Harness) provider.Provider {
			return renamed(p,
				func(id string) string { return strings.Replace(id, "/proxy-", "/vm-", 1) },
				func(id string) string { return strings.Replace(id, "/vm-", "/proxy-", 1) })
		},
	},
	{
		what:   "IDs cannot be taken apart",
		caught: []string{"id-tells-the-place"},
		sabotage: func(p broken, _ *shared, _ *providertest.Harness) provider.Provider {
			return renamed(p,
				func(id string) string { return strings.Replace(id, "hosts/", "my hosts/", 1) },
				func(id string) string { return strings.TrimPrefix(id, "my ") })
		},
	},
	{
		what:   "Create says done while the old one is being deleted",
		caught: []string{"create-after-delete"},
		sabotage: failingCreate(func(_ provider.CreateRequest, id string, err error) (string, error) {
			if strings.Contains(err.Error(), "still being deleted") {
				return id, nil
			}
			return id, err
		}),
	},
	{
		what:   "an invalid request has no class",
		caught: []string{"create-refuses-invalid-requests", "errors-have-a-class"},
		sabotage: failingCreate(func(_ provider.CreateRequest, id string, err error) (string, error) {
			if provider.HasCode(err, provider.CodeInvalidRequest) {
				return id, errors.New(err.Error())
			}
			return id, err
		}),
	},
	{
		what:   "a UID of 128 characters is too long",
		caught: []string{"create-takes-the-limits"},
		sabotage: func(p broken, _ *shared, _ *providertest.Harness) provider.Provider {
			p.create = func(ctx context.Context, req provider.CreateRequest) (string, error) {
				if len(req.UID) > 100 {
					return "", permanently("the UID does not fit into a label")
				}
				return p.Provider.Create(ctx, req)
			}
			return p
		},
	},
	{
		what:     "the ID is lost with an error",
		caught:   []string{"create-returns-the-id-with-an-error"},
		sabotage: failingCreate(func(_ provider.CreateRequest, _ string, err error) (string, error) { return "", err }),
	},
	{
		what:   "an unreachable backend is the request's fault",
		caught: []string{"create-fails-for-now"},
		sabotage: failingCreate(func(_ provider.CreateRequest, id string, err error) (string, error) {
			if strings.Contains(err.Error(), "no route") {
				return id, permanently(err.Error())
			}
			return id, err
		}),
	},
	{
		what:   "a failed Create leaves its record",
		caught: []string{"quota-leaves-nothing"},
		sabotage: func(p broken, s *shared, _ *providertest.Harness) provider.Provider {
			p.create = func(ctx context.Context, req provider.CreateRequest) (string, error) {
				id, err := p.Provider.Create(ctx, req)
				s.set(id, errors.Is(err, provider.ErrQuotaExceeded))
				s.mu.Lock()
				s.tags[id] = req.Tag
				s.mu.Unlock()
				return id, err
			}
			p.list = func(ctx context.Context, tag string) ([]provider.Instance, error) {
				all, err := p.Provider.ListByTag(ctx, tag)
				left, _ := s.all(ctx)
				for _, id := range left {
					if s.tags[id] == tag {
						all = append(all, provider.Instance{ID: id})
					}
				}
				return all, err
			}
			p.delete = func(ctx context.Context, id string) error {
				s.set(id, false)
				return p.Provider.Delete(ctx, id)
			}
			return p
		},
	},
	{
		what:   "metadata is lost by a restart",
		caught: []string{"metadata-comes-back"},
		sabotage: func(p broken, _ *shared, _ *providertest.Harness) provider.Provider {
			mine := &shared{ids: map[string]bool{}}
			p = p.on(func(in *provider.Instance) {
				if !mine.has(in.ID) {
					in.Metadata = nil
				}
			}, nil)
			p.create = func(ctx context.Context, req provider.CreateRequest) (string, error) {
				id, err := p.Provider.Create(ctx, req)
				mine.set(id, true)
				return id, err
			}
			return p
		},
	},
	{
		what:   "metadata is trimmed",
		caught: []string{"metadata-comes-back"},
		sabotage: saying(func(in *provider.Instance) {
			for k, v := range in.Metadata {
				in.Metadata[k] = strings.TrimSpace(v)
			}
		}),
	},
	{
		what: "user-data is trimmed", rack: true,
		caught: []string{"user-data-arrives"},
		sabotage: func(p broken, _ *shared, _ *providertest.Harness) provider.Provider {
			p.create = func(ctx context.Context, req provider.CreateRequest) (string, error) {
				req.UserData = bytes.TrimSpace(req.UserData)
				return p.Provider.Create(ctx, req)
			}
			return p
		},
	},
	{
		what:   "the caller's map is kept",
		caught: []string{"request-stays-the-callers"},
		sabotage: func(p broken, _ *shared, _ *providertest.Harness) provider.Provider {
			var mu sync.Mutex
			kept := map[string]map[string]string{}
			p = p.on(func(in *provider.Instance) {
				mu.Lock()
				defer mu.Unlock()
				in.Metadata = maps.Clone(kept[in.ID])
			}, nil)
			p.create = func(ctx context.Context, req provider.CreateRequest) (string, error) {
				id, err := p.Provider.Create(ctx, req)
				mu.Lock()
				defer mu.Unlock()
				kept[id] = req.Metadata
				return id, err
			}
			inner := p.get
			p.get = func(ctx context.Context, id string) (provider.Instance, error) {
				mu.Lock()
				_, mine := kept[id]
				mu.Unlock()
				if !mine {
					return p.Provider.Get(ctx, id)
				}
				return inner(ctx, id)
			}
			return p
		},
	},
	{
		what:   "user-data is in an error",
		caught: []string{"secrets-in-no-error"},
		sabotage: failingCreate(func(req provider.CreateRequest, id string, err error) (string, error) {
			return id, fmt.Errorf("%w: %s", err, string(req.UserData))
		}),
	},
	{
		what:   "user-data is in the log",
		caught: []string{"secrets-in-no-log"},
		sabotage: func(p broken, s *shared, _ *providertest.Harness) provider.Provider {
			p.create = func(ctx context.Context, req provider.CreateRequest) (string, error) {
				s.mu.Lock()
				fmt.Fprintf(&s.text, "creating %s with %s\n", req.UID, []byte(req.UserData))
				s.mu.Unlock()
				return p.Provider.Create(ctx, req)
			}
			return p
		},
	},
}

// adoptIf takes a machine for its own though it is not.
func adoptIf(theirs func(machine) bool) sabotage {
	return func(p broken, _ *shared, _ *providertest.Harness) provider.Provider {
		p.create = func(ctx context.Context, req provider.CreateRequest) (string, error) {
			id, err := p.Provider.Create(ctx, req)
			if !provider.HasCode(err, provider.CodeCollision) {
				return id, err
			}
			var m machine
			if e := p.Provider.(*Rack).call(ctx, "GET", req.Placement.Zone, "/"+provider.Name(req.UID), nil, &m); e == nil && theirs(m) {
				return id, nil
			}
			return id, err
		}
		return p
	}
}

var getBreakages = []breakage{
	{
		what:   "a state of the backend's own",
		caught: []string{"get-tells-whose-it-is"},
		sabotage: saying(func(in *provider.Instance) {
			if in.State == provider.StateProvisioning {
				in.State = "Booting"
			}
		}),
	},
	{
		what:     "a local time is read as UTC",
		caught:   []string{"created-at-is-the-moment"},
		sabotage: saying(func(in *provider.Instance) { in.CreatedAt = in.CreatedAt.Add(2 * time.Hour) }),
	},
	{
		what:   "all receivers get one map",
		caught: []string{"instances-are-the-receivers"},
		sabotage: func(p broken, _ *shared, _ *providertest.Harness) provider.Provider {
			var mu sync.Mutex
			cache := map[string]map[string]string{}
			return p.on(func(in *provider.Instance) {
				mu.Lock()
				defer mu.Unlock()
				if cache[in.ID] == nil {
					cache[in.ID] = in.Metadata
				}
				in.Metadata = cache[in.ID]
			}, nil)
		},
	},
	{
		what:   "Get of nothing is an empty instance",
		caught: []string{"get-of-nothing"},
		sabotage: func(p broken, s *shared, _ *providertest.Harness) provider.Provider {
			p.create = func(ctx context.Context, req provider.CreateRequest) (string, error) {
				id, err := p.Provider.Create(ctx, req)
				s.set(id, true)
				return id, err
			}
			p.get = func(ctx context.Context, id string) (provider.Instance, error) {
				in, err := p.Provider.Get(ctx, id)
				if errors.Is(err, provider.ErrNotFound) && !s.has(id) {
					return provider.Instance{}, nil
				}
				return in, err
			}
			return p
		},
	},
	{
		what:   "a blip is not found",
		caught: []string{"not-found-is-proof"},
		sabotage: failingGet(func(id string, err error) error {
			if blip(err) {
				return &provider.Error{Class: provider.ErrNotFound, ID: id}
			}
			return err
		}),
	},
	{
		what:   "a malformed ID is not found",
		caught: []string{"malformed-id"},
		sabotage: failingGet(func(id string, err error) error {
			if provider.HasCode(err, provider.CodeMalformedID) {
				return &provider.Error{Class: provider.ErrNotFound, ID: id}
			}
			return err
		}),
	},
	{
		what:   "an unconfigured place is not found",
		caught: []string{"unconfigured-place"},
		sabotage: failingGet(func(id string, err error) error {
			if provider.HasCode(err, provider.CodeUnconfigured) {
				return &provider.Error{Class: provider.ErrNotFound, ID: id}
			}
			return err
		}),
	},
	{
		what:     "Running without an address",
		caught:   []string{"running-has-an-address"},
		sabotage: saying(func(in *provider.Instance) { in.Addresses = nil }),
	},
	{
		what:   "what stopped is Running",
		caught: []string{"stopped-is-told"},
		sabotage: saying(func(in *provider.Instance) {
			if in.State == provider.StateStopped {
				in.State = provider.StateRunning
			}
		}),
	},
	{
		what:   "what crashed is Running",
		caught: []string{"crashed-is-told"},
		sabotage: saying(func(in *provider.Instance) {
			if in.State == provider.StateFailed {
				in.State = provider.StateRunning
			}
		}),
	},
	{
		what:   "memory is believed more than the backend",
		caught: []string{"vanished-is-not-found"},
		sabotage: func(p broken, s *shared, _ *providertest.Harness) provider.Provider {
			p.get = func(ctx context.Context, id string) (provider.Instance, error) {
				in, err := p.Provider.Get(ctx, id)
				if errors.Is(err, provider.ErrNotFound) && s.has(id) {
					return provider.Instance{ID: id, State: provider.StateUnknown}, nil
				}
				s.set(id, err == nil)
				return in, err
			}
			p.delete = func(ctx context.Context, id string) error {
				err := p.Provider.Delete(ctx, id)
				s.set(id, false)
				_, gone := p.Provider.Get(ctx, id)
				for gone == nil && err == nil && ctx.Err() == nil {
					time.Sleep(time.Millisecond)
					_, gone = p.Provider.Get(ctx, id)
				}
				return err
			}
			return p
		},
	},
	{
		what: "a stranger's machine is an instance", rack: true,
		caught: []string{"strangers-are-not-instances"},
		sabotage: failingGet(func(_ string, err error) error {
			if provider.HasCode(err, provider.CodeCollision) {
				return nil
			}
			return err
		}),
	},
}

var deleteBreakages = []breakage{
	{
		what:     "Delete of nothing is an error",
		caught:   []string{"delete-of-nothing"},
		sabotage: deleteOfNothingFails,
	},
	{
		what:   "Delete of what is being deleted is an error",
		caught: []string{"delete-until-gone"}, more: true,
		sabotage: func(p broken, _ *shared, _ *providertest.Harness) provider.Provider {
			p.delete = func(ctx context.Context, id string) error {
				if in, err := p.Provider.Get(ctx, id); err == nil && in.State == provider.StateStopping {
					return permanently("it is being deleted already")
				}
				return p.Provider.Delete(ctx, id)
			}
			return p
		},
	},
	{
		what:   "Deletes at the same time fail for good",
		caught: []string{"delete-concurrently"},
		sabotage: func(p broken, s *shared, _ *providertest.Harness) provider.Provider {
			p.delete = func(ctx context.Context, id string) error {
				return s.busy(id, func() error { return p.Provider.Delete(ctx, id) })
			}
			return p
		},
	},
	{
		what:   "Delete takes all that carries the tag",
		caught: []string{"delete-takes-one"}, more: true,
		sabotage: func(p broken, _ *shared, _ *providertest.Harness) provider.Provider {
			p.delete = func(ctx context.Context, id string) error {
				in, _ := p.Provider.Get(ctx, id)
				all, _ := p.Provider.ListByTag(ctx, in.Tag)
				for _, other := range all {
					_ = p.Provider.Delete(ctx, other.ID)
				}
				return p.Provider.Delete(ctx, id)
			}
			return p
		},
	},
	{
		what:   "Delete says done when nobody answered",
		caught: []string{"delete-is-true"},
		sabotage: func(p broken, _ *shared, _ *providertest.Harness) provider.Provider {
			p.delete = func(ctx context.Context, id string) error {
				err := p.Provider.Delete(ctx, id)
				if blip(err) {
					return nil
				}
				return err
			}
			return p
		},
	},
	{
		what: "Delete takes strangers", rack: true,
		caught: []string{"delete-spares-strangers"},
		sabotage: func(p broken, _ *shared, _ *providertest.Harness) provider.Provider {
			p.delete = func(ctx context.Context, id string) error {
				err := p.Provider.Delete(ctx, id)
				if provider.HasCode(err, provider.CodeCollision) {
					zone, name, _ := ids.Parse(id)
					return p.Provider.(*Rack).call(ctx, "DELETE", zone, "/"+name, nil, nil)
				}
				return err
			}
			return p
		},
	},
}

func deleteOfNothingFails(p broken, _ *shared, _ *providertest.Harness) provider.Provider {
	p.delete = func(ctx context.Context, id string) error {
		if _, err := p.Provider.Get(ctx, id); errors.Is(err, provider.ErrNotFound) {
			return err
		}
		return p.Provider.Delete(ctx, id)
	}
	return p
}

var listBreakages = []breakage{
	{
		what:   "the list has another tag's",
		caught: []string{"list-has-the-tags-own"},
		sabotage: func(p broken, s *shared, _ *providertest.Harness) provider.Provider {
			p.create = func(ctx context.Context, req provider.CreateRequest) (string, error) {
				s.set(req.Tag, true)
				return p.Provider.Create(ctx, req)
			}
			p.list = func(ctx context.Context, tag string) ([]provider.Instance, error) {
				all, err := p.Provider.ListByTag(ctx, tag)
				tags, _ := s.all(ctx)
				for _, other := range tags {
					if other != tag && len(all) > 0 {
						more, _ := p.Provider.ListByTag(ctx, other)
						all = append(all, more...)
					}
				}
				return all, err
			}
			return p
		},
	},
	{
		what:   "the list ends after the first page",
		caught: []string{"list-has-the-tags-own", "concurrent-use"},
		sabotage: func(p broken, _ *shared, _ *providertest.Harness) provider.Provider {
			p.list = func(ctx context.Context, tag string) ([]provider.Instance, error) {
				all, err := p.Provider.ListByTag(ctx, tag)
				return all[:min(len(all), 2)], err
			}
			p.create = func(ctx context.Context, req provider.CreateRequest) (string, error) {
				id, err := p.Provider.Create(ctx, req)
				if strings.Contains(req.Tag, "pt-") { // gives others the time to fill the page
					time.Sleep(5 * time.Millisecond)
				}
				return id, err
			}
			return p
		},
	},
	{
		what:   "a list without UIDs",
		caught: []string{"list-tells-what-get-tells"},
		sabotage: func(p broken, _ *shared, _ *providertest.Harness) provider.Provider {
			return p.on(nil, func(in *provider.Instance) { in.UID = "" })
		},
	},
	{
		what:   "an empty list is an error",
		caught: []string{"list-of-nothing"}, more: true,
		sabotage: func(p broken, _ *shared, _ *providertest.Harness) provider.Provider {
			p.list = func(ctx context.Context, tag string) ([]provider.Instance, error) {
				all, err := p.Provider.ListByTag(ctx, tag)
				if err == nil && len(all) == 0 {
					return nil, &provider.Error{Class: provider.ErrNotFound}
				}
				return all, err
			}
			return p
		},
	},
	{
		what:   "an invalid tag lists nothing",
		caught: []string{"list-refuses-invalid-tags"},
		sabotage: func(p broken, _ *shared, _ *providertest.Harness) provider.Provider {
			p.list = func(ctx context.Context, tag string) ([]provider.Instance, error) {
				all, err := p.Provider.ListByTag(ctx, tag)
				if provider.HasCode(err, provider.CodeInvalidRequest) {
					return nil, nil
				}
				return all, err
			}
			return p
		},
	},
	{
		what: "a partial list is returned as whole", rack: true,
		caught: []string{"list-is-whole-or-says-what-is-missing"},
		sabotage: func(p broken, _ *shared, _ *providertest.Harness) provider.Provider {
			p.list = func(ctx context.Context, tag string) ([]provider.Instance, error) {
				all, err := p.Provider.ListByTag(ctx, tag)
				if blip(err) {
					return all, nil
				}
				return all, err
			}
			return p
		},
	},
	{
		what: "one silent place empties the list", rack: true,
		caught: []string{"list-is-whole-or-says-what-is-missing"},
		sabotage: func(p broken, _ *shared, _ *providertest.Harness) provider.Provider {
			p.list = func(ctx context.Context, tag string) ([]provider.Instance, error) {
				all, err := p.Provider.ListByTag(ctx, tag)
				if err != nil {
					return nil, err
				}
				return all, nil
			}
			return p
		},
	},
}

var callBreakages = []breakage{
	{
		what:   "Create ignores its context",
		caught: []string{"cancel-create"},
		sabotage: func(p broken, _ *shared, _ *providertest.Harness) provider.Provider {
			p.create = func(ctx context.Context, req provider.CreateRequest) (string, error) {
				return p.Provider.Create(context.WithoutCancel(ctx), req)
			}
			return p
		},
	},
	{
		what:   "Get ignores its context",
		caught: []string{"cancel-get"},
		sabotage: func(p broken, _ *shared, _ *providertest.Harness) provider.Provider {
			p.get = func(ctx context.Context, id string) (provider.Instance, error) {
				return p.Provider.Get(context.WithoutCancel(ctx), id)
			}
			return p
		},
	},
	{
		what:   "Delete ignores its context",
		caught: []string{"cancel-delete"},
		sabotage: func(p broken, _ *shared, _ *providertest.Harness) provider.Provider {
			p.delete = func(ctx context.Context, id string) error {
				return p.Provider.Delete(context.WithoutCancel(ctx), id)
			}
			return p
		},
	},
	{
		what:   "ListByTag ignores its context",
		caught: []string{"cancel-list"},
		sabotage: func(p broken, _ *shared, _ *providertest.Harness) provider.Provider {
			p.list = func(ctx context.Context, tag string) ([]provider.Instance, error) {
				return p.Provider.ListByTag(context.WithoutCancel(ctx), tag)
			}
			return p
		},
	},
	{
		what:   "a canceled call does not say so",
		caught: []string{"cancel-get"},
		sabotage: failingGet(func(id string, err error) error {
			if ended(err) {
				return &provider.Error{Class: provider.ErrTransient, ID: id, Err: errors.New("timed out")}
			}
			return err
		}),
	},
	{
		what: "one lock for all places", rack: true,
		caught: []string{"slow-place-harms-no-other"},
		sabotage: func(p broken, _ *shared, _ *providertest.Harness) provider.Provider {
			lock := make(chan struct{}, 1)
			locked := func(ctx context.Context, f func() error) error {
				select {
				case lock <- struct{}{}:
					defer func() { <-lock }()
					return f()
				case <-ctx.Done():
					return &provider.Error{Class: provider.ErrTransient, Err: ctx.Err()}
				}
			}
			p.create = func(ctx context.Context, req provider.CreateRequest) (id string, err error) {
				err = locked(ctx, func() error { id, err = p.Provider.Create(ctx, req); return err })
				return id, err
			}
			p.get = func(ctx context.Context, id string) (in provider.Instance, err error) {
				err = locked(ctx, func() error { in, err = p.Provider.Get(ctx, id); return err })
				return in, err
			}
			return p
		},
	},
	{
		what:   "callers get in each other's way",
		caught: []string{"concurrent-use", "create-concurrently"},
		sabotage: func(p broken, s *shared, _ *providertest.Harness) provider.Provider {
			p.create = func(ctx context.Context, req provider.CreateRequest) (id string, err error) {
				err = s.busy("all", func() error {
					id, err = p.Provider.Create(ctx, req)
					return err
				})
				return id, err
			}
			return p
		},
	},
	{
		what:   "a blip has no class",
		caught: []string{"errors-have-a-class"},
		sabotage: failingGet(func(_ string, err error) error {
			if blip(err) {
				return errors.New(err.Error())
			}
			return err
		}),
	},
	{
		what:   "it panics",
		caught: []string{"malformed-id"}, more: true,
		sabotage: failingGet(func(_ string, err error) error {
			if provider.HasCode(err, provider.CodeMalformedID) {
				panic("index out of range")
			}
			return err
		}),
	},
}
