package providertest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/provider"
	"github.com/egressfleet/egress/provider/providertest"
)

// rackService is the machine service in memory. The zone "a" can be made to
// misbehave, the zone "b" never does.
type rackService struct {
	*httptest.Server

	mu       sync.Mutex
	machines map[string]*machine // by zone/name
	broken   bool
	full     bool
	held     chan struct{} // closed to go on; nil where nothing hangs
}

const (
	rackBoot   = 20 * time.Millisecond
	rackDelete = 20 * time.Millisecond
)

func newRackService(t testing.TB) *rackService {
	t.Helper()
	s := &rackService{machines: map[string]*machine{}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /zones/{zone}/machines", s.create)
	mux.HandleFunc("GET /zones/{zone}/machines", s.list)
	mux.HandleFunc("GET /zones/{zone}/machines/{name}", s.get)
	mux.HandleFunc("DELETE /zones/{zone}/machines/{name}", s.delete)
	s.Server = httptest.NewServer(s.misbehaving(mux))
	t.Cleanup(s.Close)
	return s
}

func (s *rackService) misbehaving(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if bytes.HasPrefix([]byte(r.URL.Path), []byte("/zones/a/")) {
			s.mu.Lock()
			broken, held := s.broken, s.held
			s.mu.Unlock()
			if broken {
				panic(http.ErrAbortHandler)
			}
			if held != nil {
				<-held
			}
		}
		next.ServeHTTP(w, r)
	})
}

func (s *rackService) create(w http.ResponseWriter, r *http.Request) {
	var m machine
	if err := json.NewDecoder(r.Body).Decode(&m); err != nil {
		http.Error(w, "bad json", http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	key := r.PathValue("zone") + "/" + m.Name
	switch {
	case s.machines[key] != nil:
		http.Error(w, "the name is taken", http.StatusConflict)
	case s.full:
		http.Error(w, "no room left", http.StatusInsufficientStorage)
	default:
		m.Status, m.Created = "building", time.Now().UTC()
		s.machines[key] = &m
		time.AfterFunc(rackBoot, func() { s.boot(&m) })
	}
}

func (s *rackService) boot(m *machine) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m.Status == "building" {
		m.Status, m.Address = "up", netip.MustParseAddr("192.0.2.7")
	}
}

func (s *rackService) get(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.machines[r.PathValue("zone")+"/"+r.PathValue("name")]
	if m == nil {
		http.Error(w, "no such machine", http.StatusNotFound)
		return
	}
	_ = json.NewEncoder(w).Encode(m)
}

func (s *rackService) list(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := []*machine{}
	for key, m := range s.machines {
		if key == r.PathValue("zone")+"/"+m.Name && m.Labels["tag"] == r.URL.Query().Get("tag") {
			found = append(found, m)
		}
	}
	_ = json.NewEncoder(w).Encode(found)
}

func (s *rackService) delete(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := r.PathValue("zone") + "/" + r.PathValue("name")
	m := s.machines[key]
	if m == nil {
		http.Error(w, "no such machine", http.StatusNotFound)
		return
	}
	if m.Status != "deleting" {
		m.Status = "deleting"
		time.AfterFunc(rackDelete, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(s.machines, key)
		})
	}
}

// harness has everything that the suite can ask for but a log.
func (s *rackService) harness() providertest.Harness {
	request := func(zone string) func(uid, tag string) provider.CreateRequest {
		return func(uid, tag string) provider.CreateRequest {
			return provider.CreateRequest{
				UID: uid, Tag: tag, Placement: provider.Placement{Zone: zone},
				UserData: provider.UserData("#cloud-config\npassword: secret-of-" + uid + "\n"),
			}
		}
	}
	return providertest.Harness{
		New:          func() (provider.Provider, error) { return NewRack(s.URL, "a", "b"), nil },
		Request:      request("a"),
		Second:       request("b"),
		Unconfigured: "zones/c/machines/" + provider.Name("x"),
		Timeout:      2 * time.Second, Interval: 5 * time.Millisecond, Settle: 100 * time.Millisecond,
		Stop:    s.become("off"),
		Crash:   s.become("error"),
		Vanish:  func(_ context.Context, id string) error { return s.remove(id) },
		Break:   func() (func(), error) { return s.set(&s.broken), nil },
		Exhaust: func(context.Context) (func(), error) { return s.set(&s.full), nil },
		Hang:    s.hang,
		Foreign: s.foreign(func(provider.CreateRequest) map[string]string { return nil }),
		OtherUID: s.foreign(func(r provider.CreateRequest) map[string]string {
			return map[string]string{"tag": r.Tag, "uid": "another"}
		}),
		Leftovers:   s.leftovers,
		HasUserData: s.hasUserData,
	}
}

// key is how the service knows the machine of an ID.
func key(id string) string {
	zone, name, err := ids.Parse(id)
	if err != nil {
		panic(err)
	}
	return zone + "/" + name
}

func (s *rackService) become(status string) func(context.Context, string) error {
	return func(_ context.Context, id string) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		m := s.machines[key(id)]
		if m == nil {
			return fmt.Errorf("no machine %q", id)
		}
		m.Status = status
		return nil
	}
}

func (s *rackService) remove(id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.machines, key(id))
	return nil
}

// set makes a switch true until the function it returns is called.
func (s *rackService) set(value *bool) func() {
	s.mu.Lock()
	defer s.mu.Unlock()
	*value = true
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		*value = false
	}
}

func (s *rackService) hang() (func(), error) {
	held := make(chan struct{})
	s.mu.Lock()
	s.held = held
	s.mu.Unlock()
	return func() {
		s.mu.Lock()
		s.held = nil
		s.mu.Unlock()
		close(held)
	}, nil
}

func (s *rackService) foreign(labels func(provider.CreateRequest) map[string]string) func(context.Context, provider.CreateRequest) (providertest.Stranger, error) {
	return func(_ context.Context, req provider.CreateRequest) (providertest.Stranger, error) {
		name := provider.Name(req.UID)
		id := ids.Format(req.Placement.Zone, name)
		theirs := &machine{Name: name, Labels: labels(req), Status: "up", Address: netip.MustParseAddr("192.0.2.66")}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.machines[key(id)] = theirs
		return providertest.Stranger{
			ID: id,
			Unchanged: func(context.Context) (bool, error) {
				s.mu.Lock()
				defer s.mu.Unlock()
				return s.machines[key(id)] == theirs && theirs.Status == "up", nil
			},
			Remove: func(context.Context) error { return s.remove(id) },
		}, nil
	}
}

func (s *rackService) leftovers(context.Context) ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []string
	for key := range s.machines {
		all = append(all, key)
	}
	return all, nil
}

func (s *rackService) hasUserData(_ context.Context, id string, want []byte) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.machines[key(id)]
	return m != nil && bytes.Equal(m.UserData, want), nil
}

// TestRackConformance is all that a provider's own test needs to be.
func TestRackConformance(t *testing.T) {
	providertest.Run(t, newRackService(t).harness())
}

// The service can do everything, so nothing but the log goes unchecked.
func TestOnlyTheLogIsNotChecked(t *testing.T) {
	results, err := providertest.Check(t.Context(), newRackService(t).harness())
	require.NoError(t, err)
	var skipped []string
	for _, r := range results {
		if r.Skipped != "" {
			skipped = append(skipped, r.Name)
		}
	}
	require.Equal(t, []string{"secrets-in-no-log"}, skipped)
}
