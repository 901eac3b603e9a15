package controller

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/examples/operator/api/v1alpha1"
	"github.com/egressfleet/egress/provider"
)

func reconcileRequest(px *v1alpha1.Proxy) ctrl.Request {
	return ctrl.Request{NamespacedName: client.ObjectKeyFromObject(px)}
}

// recorder keeps what was asked for.
type recorder struct {
	provider.Provider
	mu       sync.Mutex
	userData []string
}

func (r *recorder) Unwrap() provider.Provider { return r.Provider }

func (r *recorder) Create(ctx context.Context, req provider.CreateRequest) (string, error) {
	r.mu.Lock()
	r.userData = append(r.userData, string(req.UserData))
	r.mu.Unlock()
	return r.Provider.Create(ctx, req)
}

func (r *recorder) last() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.userData[len(r.userData)-1]
}

// byZone is a provider of several hosts, each behind a provider of its own, that
// chooses the first one which is not to be avoided.
type byZone map[string]provider.Provider

func (z byZone) of(id string) provider.Provider {
	zone, _, err := provider.IDFormat{Scopes: "hosts", Kinds: "proxies"}.Parse(id)
	if err != nil {
		panic(err)
	}
	return z[zone]
}

func (z byZone) Place(_ context.Context, req provider.PlaceRequest) (provider.Placement, error) {
	if req.Placement.Zone != "" {
		return req.Placement, nil
	}
	var zones []string
	for zone := range z {
		avoided := slices.ContainsFunc(req.Avoid, func(p provider.Placement) bool { return p.Zone == zone })
		if !avoided {
			zones = append(zones, zone)
		}
	}
	if len(zones) == 0 {
		return req.Placement, &provider.Error{Class: provider.ErrQuotaExceeded, Err: errors.New("no zone has room")}
	}
	req.Placement.Zone = slices.Min(zones)
	return req.Placement, nil
}

func (z byZone) Create(ctx context.Context, req provider.CreateRequest) (string, error) {
	return z[req.Placement.Zone].Create(ctx, req)
}

func (z byZone) Get(ctx context.Context, id string) (provider.Instance, error) {
	return z.of(id).Get(ctx, id)
}

func (z byZone) Delete(ctx context.Context, id string) error { return z.of(id).Delete(ctx, id) }

func (z byZone) ListByTag(ctx context.Context, tag string) (all []provider.Instance, err error) {
	for _, p := range z {
		list, listErr := p.ListByTag(ctx, tag)
		all, err = append(all, list...), errors.Join(err, listErr)
	}
	return all, err
}

func (z byZone) Endpoint(uid string, in provider.Instance) (endpoint.Endpoint, error) {
	return z.of(in.ID).(endpointer).Endpoint(uid, in)
}

// tardy accepts at once and makes later, as a cloud does: until then nothing is found,
// and Explain says why.
type tardy struct {
	provider.Provider
	mu      sync.Mutex
	pending []provider.CreateRequest
	refused error
	silent  bool // Explain fails
}

func (s *tardy) Unwrap() provider.Provider { return s.Provider }

func (s *tardy) Create(_ context.Context, req provider.CreateRequest) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending = append(s.pending, req)
	return provider.IDFormat{Scopes: "hosts", Kinds: "proxies"}.Format("local", provider.Name(req.UID)), nil
}

func (s *tardy) Explain(context.Context, string) (cause, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.silent {
		return nil, &provider.Error{Class: provider.ErrPermanent, Code: "Forbidden", Err: errors.New("operations may not be read")}
	}
	if len(s.pending) > 0 && s.refused == nil {
		return &provider.Error{Class: provider.ErrTransient, Code: provider.CodeInFlight, Err: errors.New("it is being made")}, nil
	}
	return s.refused, nil
}

// land makes what was accepted.
func (s *tardy) land(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, req := range s.pending {
		if _, err := s.Provider.Create(ctx, req); err != nil {
			return err
		}
	}
	s.pending = nil
	return nil
}

func (s *tardy) accepted() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.pending)
}

// eventCounter counts events of a reason.
type eventCounter struct {
	events.EventRecorder
	of string
	n  atomic.Int32
}

func (c *eventCounter) Eventf(regarding, related runtime.Object, kind, reason, action, note string, args ...any) {
	if reason == c.of {
		c.n.Add(1)
	}
	c.EventRecorder.Eventf(regarding, related, kind, reason, action, note, args...)
}
