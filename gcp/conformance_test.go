package gcp_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/egressfleet/egress/gcp"
	"github.com/egressfleet/egress/internal/fakecompute"
	"github.com/egressfleet/egress/provider"
	"github.com/egressfleet/egress/provider/providertest"
)

func TestConformance(t *testing.T) {
	providertest.Run(t, newMoodyRig(t).harness(t))
}

// moodyRig is a rig whose first zone misbehaves on demand.
type moodyRig struct {
	*rig

	mood         sync.Mutex
	held         chan struct{} // closed to go on; nil where nothing hangs
	broken, full bool
}

func newMoodyRig(t *testing.T) *moodyRig {
	t.Helper()
	m := &moodyRig{rig: newRig(t, func(_ *gcp.Config, f *fakecompute.Config) {
		f.OperationDelay, f.BootDelay, f.AddressDelay = 10*time.Millisecond, 20*time.Millisecond, 5*time.Millisecond
		f.DeletePending, f.DeleteDelay = 10*time.Millisecond, 20*time.Millisecond
		f.PageSize = 2
	})}
	m.server.SetBefore(m.before)
	return m
}

func (m *moodyRig) before(c fakecompute.Call) (f fakecompute.Fault) {
	m.mood.Lock()
	defer m.mood.Unlock()
	if c.Zone == zoneB {
		return f
	}
	if m.held != nil {
		f.Hold = m.held
	}
	f.Cut = m.broken && c.Zone == zoneA
	if m.full && c.Method == "instances.insert" {
		f.Error = &fakecompute.Error{Status: 403, Reason: "quotaExceeded", Message: "Quota 'CPUS' exceeded.  Limit: 24.0 in region europe-west1."}
	}
	return f
}

// set makes a switch true until the function it returns is called.
func (m *moodyRig) set(value *bool) (unset func()) {
	m.mood.Lock()
	defer m.mood.Unlock()
	*value = true
	return func() {
		m.mood.Lock()
		defer m.mood.Unlock()
		*value = false
	}
}

func (m *moodyRig) breaks() (func(), error) {
	m.server.SetUnreachable(zoneA, true, false)
	unset := m.set(&m.broken)
	return func() {
		unset()
		m.server.SetUnreachable(zoneA, false, false)
	}, nil
}

func (m *moodyRig) hang() (func(), error) {
	held := make(chan struct{})
	m.mood.Lock()
	defer m.mood.Unlock()
	m.held = held
	return func() {
		m.mood.Lock()
		defer m.mood.Unlock()
		m.held = nil
		close(held)
	}, nil
}

func (m *moodyRig) harness(t *testing.T) providertest.Harness {
	t.Helper()
	in := func(zone string) func(uid, tag string) provider.CreateRequest {
		return func(uid, tag string) provider.CreateRequest {
			req := request(uid)
			req.Tag, req.Placement.Zone = tag, zone
			return req
		}
	}
	status := func(status string) func(context.Context, string) error {
		return func(_ context.Context, id string) error {
			if !m.server.SetStatus(zoneOf(id), nameOf(id), status) {
				return errors.New("there is no such instance")
			}
			return nil
		}
	}
	return providertest.Harness{
		New:     func() (provider.Provider, error) { return gcp.New(m.cfg) },
		Request: in(zoneA), Second: in(zoneB),
		Unconfigured: "zones/us-east1-b/instances/" + provider.Name("x"),
		Timeout:      short, Interval: 2 * time.Millisecond, Settle: 200 * time.Millisecond,
		Stop:  status("TERMINATED"),
		Crash: status("TERMINATED"), // a guest that powers off or panics looks the same
		Vanish: func(_ context.Context, id string) error {
			m.server.Vanish(zoneOf(id), nameOf(id))
			return nil
		},
		Break: m.breaks, Hang: m.hang,
		Exhaust: func(context.Context) (func(), error) { return m.set(&m.full), nil },
		Foreign: m.stranger(func(req provider.CreateRequest) map[string]any {
			return map[string]any{"name": provider.Name(req.UID)}
		}),
		OtherUID: m.stranger(func(req provider.CreateRequest) map[string]any {
			other := req
			other.UID = "another-uid"
			body := bodyOf(t, m.cfg, other)
			body["name"] = provider.Name(req.UID)
			return body
		}),
		Leftovers:   func(context.Context) ([]string, error) { return m.server.Names(), nil },
		HasUserData: m.hasUserData,
		Logs:        m.logs,
	}
}

// stranger puts an instance of that body under the request's name.
func (m *moodyRig) stranger(body func(provider.CreateRequest) map[string]any) func(context.Context, provider.CreateRequest) (providertest.Stranger, error) {
	return func(_ context.Context, req provider.CreateRequest) (providertest.Stranger, error) {
		name := provider.Name(req.UID)
		made := body(req)
		m.server.Put(zoneA, made)
		return providertest.Stranger{
			ID: "zones/" + zoneA + "/instances/" + name,
			Unchanged: func(context.Context) (bool, error) {
				now, ok := m.server.Body(zoneA, name)
				return ok && now["description"] == made["description"], nil
			},
			Remove: func(context.Context) error { m.server.Vanish(zoneA, name); return nil },
		}, nil
	}
}

// hasUserData does as cloud-init does.
func (m *moodyRig) hasUserData(_ context.Context, id string, want []byte) (bool, error) {
	body, ok := m.server.Body(zoneOf(id), nameOf(id))
	if !ok {
		return false, errors.New("there is no such instance")
	}
	items := map[string]string{}
	metadata, _ := body["metadata"].(map[string]any)
	list, _ := metadata["items"].([]any)
	for _, item := range list {
		fields := item.(map[string]any)
		items[fields["key"].(string)] = fields["value"].(string)
	}
	got := []byte(items["user-data"])
	if strings.HasPrefix(items["user-data-encoding"], "base64") {
		var err error
		if got, err = base64.StdEncoding.DecodeString(items["user-data"]); err != nil {
			return false, err
		}
	}
	return bytes.Equal(got, want), nil
}
