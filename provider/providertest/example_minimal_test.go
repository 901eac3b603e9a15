package providertest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/egressfleet/egress/provider"
)

// Rack is a provider on a small machine service with an HTTP API. The service
// has zones, and in each zone machines with unique names and labels.
type Rack struct {
	url    string
	zones  []string
	client *http.Client
}

var (
	_   provider.Provider = (*Rack)(nil)
	ids                   = provider.IDFormat{Scopes: "zones", Kinds: "machines"}
)

// NewRack returns a provider on the service at that URL, in those zones.
func NewRack(url string, zones ...string) *Rack {
	return &Rack{url: url, zones: zones, client: &http.Client{Transport: &http.Transport{}}}
}

// Close ends the connections.
func (r *Rack) Close() error {
	r.client.CloseIdleConnections()
	return nil
}

// machine is one machine, as the service writes it.
type machine struct {
	Name     string            `json:"name"`
	Labels   map[string]string `json:"labels"`
	Notes    map[string]string `json:"notes"`
	UserData []byte            `json:"userData,omitempty"`
	Status   string            `json:"status,omitempty"`
	Created  time.Time         `json:"created,omitzero"`
	Address  netip.Addr        `json:"address,omitzero"`
}

// Create implements provider.Provider. The service makes a machine and its
// labels in one call, so nothing exists without them.
func (r *Rack) Create(ctx context.Context, req provider.CreateRequest) (string, error) {
	if err := req.Validate(); err != nil {
		return "", failed("Create", "", provider.Permanentf(provider.CodeInvalidRequest, "%w", err))
	}
	zone, err := r.zone(req.Placement.Zone)
	if err != nil {
		return "", failed("Create", "", err)
	}
	name := provider.Name(req.UID)
	id := ids.Format(zone, name)
	err = r.call(ctx, "POST", zone, "", machine{
		Name: name, Labels: map[string]string{"tag": req.Tag, "uid": req.UID}, Notes: req.Metadata, UserData: req.UserData,
	}, nil)
	if hasStatus(err, http.StatusConflict) {
		err = r.same(ctx, zone, name, req)
	}
	return id, failed("Create", id, err)
}

// zone is the wanted zone, or the only one.
func (r *Rack) zone(name string) (string, error) {
	if name == "" && len(r.zones) == 1 {
		return r.zones[0], nil
	}
	if !slices.Contains(r.zones, name) {
		return "", provider.Permanentf(provider.CodeInvalidRequest, "placement.zone: %q: choose one of %q", name, r.zones)
	}
	return name, nil
}

// same tells whether the machine that holds the name is the request's own.
func (r *Rack) same(ctx context.Context, zone, name string, req provider.CreateRequest) error {
	m, err := r.machine(ctx, zone, name)
	switch {
	case hasStatus(err, http.StatusNotFound):
		return errors.New("it was deleted at this moment") // becomes transient
	case err != nil:
		return err
	case m.Labels["tag"] != req.Tag || m.Labels["uid"] != req.UID:
		return provider.Permanentf(provider.CodeCollision, "another tag or UID holds the name")
	case m.Status == "deleting":
		return errors.New("a machine of that name is still being deleted")
	}
	return nil
}

// Get implements provider.Provider.
func (r *Rack) Get(ctx context.Context, id string) (provider.Instance, error) {
	zone, name, err := r.parse(id)
	if err != nil {
		return provider.Instance{}, failed("Get", id, err)
	}
	m, err := r.machine(ctx, zone, name)
	if err != nil {
		return provider.Instance{}, failed("Get", id, err)
	}
	return m.instance(zone), nil
}

// parse takes an ID apart, and refuses one in a zone that is not configured.
func (r *Rack) parse(id string) (zone, name string, err error) {
	zone, name, err = ids.Parse(id)
	if err == nil && !slices.Contains(r.zones, zone) {
		err = provider.Permanentf(provider.CodeUnconfigured, "zone %q: there are %q", zone, r.zones)
	}
	return zone, name, err
}

// machine reads one, and refuses what this library did not make.
func (r *Rack) machine(ctx context.Context, zone, name string) (m machine, err error) {
	if err := r.call(ctx, "GET", zone, "/"+name, nil, &m); err != nil {
		return m, err
	}
	if provider.Name(m.Labels["uid"]) != name {
		return m, provider.Permanentf(provider.CodeCollision, "a machine of that name is not ours")
	}
	return m, nil
}

// instance says it in the contract's words.
func (m machine) instance(zone string) provider.Instance {
	in := provider.Instance{
		ID: ids.Format(zone, m.Name), Name: m.Name, UID: m.Labels["uid"], Tag: m.Labels["tag"],
		State: m.state(), CreatedAt: m.Created, Metadata: m.Notes,
	}
	if m.Address.IsValid() {
		in.Addresses = []provider.Address{{Type: provider.AddressInternal, Addr: m.Address}}
	}
	return in
}

func (m machine) state() provider.State {
	switch m.Status {
	case "building":
		return provider.StateProvisioning
	case "up":
		if !m.Address.IsValid() {
			return provider.StateProvisioning
		}
		return provider.StateRunning
	case "deleting":
		return provider.StateStopping
	case "off":
		return provider.StateStopped
	case "error":
		return provider.StateFailed
	}
	return provider.StateUnknown
}

// Delete implements provider.Provider. It looks first, so as to touch nothing
// that is not ours.
func (r *Rack) Delete(ctx context.Context, id string) error {
	zone, name, err := r.parse(id)
	if err != nil {
		return failed("Delete", id, err)
	}
	_, err = r.machine(ctx, zone, name)
	if err == nil {
		err = r.call(ctx, "DELETE", zone, "/"+name, nil, nil)
	}
	if hasStatus(err, http.StatusNotFound) {
		return nil
	}
	return failed("Delete", id, err)
}

// ListByTag implements provider.Provider. It asks all zones at the same time.
func (r *Rack) ListByTag(ctx context.Context, tag string) ([]provider.Instance, error) {
	if err := provider.ValidTag(tag); err != nil {
		return nil, failed("ListByTag", "", provider.Permanentf(provider.CodeInvalidRequest, "%w", err))
	}
	var (
		mu      sync.Mutex
		all     []provider.Instance
		missing []provider.Missing
		zones   sync.WaitGroup
	)
	for _, zone := range r.zones {
		zones.Go(func() {
			var machines []machine
			err := r.call(ctx, "GET", zone, "?tag="+url.QueryEscape(tag), nil, &machines)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				missing = append(missing, provider.Missing{Scope: zone, Err: failed("ListByTag", "", err)})
			}
			for _, m := range machines {
				all = append(all, m.instance(zone))
			}
		})
	}
	zones.Wait()
	if len(missing) > 0 {
		return all, &provider.PartialError{Missing: missing}
	}
	return all, nil
}

// call sends one request about the machines of a zone and decodes the answer.
// It ends with ctx.
func (r *Rack) call(ctx context.Context, method, zone, rest string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, method, r.url+"/zones/"+zone+"/machines"+rest, bytes.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := r.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode >= 300 {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 200))
		return &statusError{resp.StatusCode, strings.TrimSpace(string(text))}
	}
	if out == nil {
		return nil
	}
	return json.NewDecoder(resp.Body).Decode(out)
}

// statusError is what the service said instead of yes.
type statusError struct {
	status int
	text   string
}

func (e *statusError) Error() string { return e.text }

func hasStatus(err error, status int) bool {
	var e *statusError
	return errors.As(err, &e) && e.status == status
}

// class is the one place that knows what a status means to a caller.
func (e *statusError) class() error {
	switch e.status {
	case http.StatusNotFound:
		return provider.ErrNotFound
	case http.StatusInsufficientStorage:
		return provider.ErrQuotaExceeded
	case http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden, http.StatusUnprocessableEntity:
		return provider.ErrPermanent
	}
	return provider.ErrTransient
}

// failed gives an error its operation and ID, and a class where it has none.
func failed(op, id string, err error) error {
	if err == nil {
		return nil
	}
	out := provider.Error{Class: provider.ErrTransient, Err: err}
	var known *provider.Error
	var status *statusError
	switch {
	case errors.As(err, &known):
		out = *known
	case errors.As(err, &status):
		out.Class, out.Code = status.class(), http.StatusText(status.status)
	}
	out.Op, out.Provider, out.ID = op, "rack", id
	return &out
}

// A whole provider in one file, on an HTTP API. It passes the suite.
func Example_minimalProvider() {
	rack := NewRack("http://127.0.0.1:1", "a", "b")
	_, err := rack.Get(context.Background(), "zones/c/machines/"+provider.Name("4b1d6a52"))
	fmt.Println(err)
	fmt.Println(provider.Class(err), provider.HasCode(err, provider.CodeUnconfigured))
	// Output:
	// rack Get zones/c/machines/proxy-cs3mrctujc7yf6ym: zone "c": there are ["a" "b"] (Unconfigured)
	// permanent true
}
