package fakecompute

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// Config says what is in the project, and how long things take.
type Config struct {
	// Project is the ID of the only project; "test-project" if empty.
	Project string
	// Number is the project's number, which calls may name it by. Answers have the ID.
	Number string
	// Zones are those of the project. At least one.
	Zones []string
	// Images are paths that instances may be made of, such as
	// "projects/debian-cloud/global/images/family/debian-13". Empty means any.
	Images []string
	// MachineTypes are their names. Empty means any.
	MachineTypes []string
	// Networks are the names of networks; "default" if empty.
	Networks []string

	// OperationDelay is how long an insert takes to succeed or to fail.
	OperationDelay time.Duration
	// BootDelay is from the insert to RUNNING, AddressDelay from there to the
	// external address.
	BootDelay, AddressDelay time.Duration
	// Unseen is how long after its insert an instance is not to be found by get.
	Unseen time.Duration
	// DeletePending is how long a deletion waits for its turn, DeleteDelay how long it
	// takes then.
	DeletePending, DeleteDelay time.Duration
	// CallsPerMinute is the project's limit, which is filled up again at the start of
	// each minute; none if zero. Minute is how long one is, for tests.
	CallsPerMinute int
	Minute         time.Duration
	// PageSize is the most that a page has, whatever is asked for; 500 if zero.
	PageSize int

	// Boot, if set, is called when an instance is to get its external IPv4 address,
	// and returns it. It is told once of each, with what the instance was made of.
	Boot func(body map[string]any) (address string)

	// IgnoreFilters has lists of instances and operations give all there are.
	IgnoreFilters bool

	// Discovery, if set, is what requests are held to. Refused is told of each
	// that is not allowed.
	Discovery *Discovery
	Refused   func(problem string)
}

// Call is one request.
type Call struct {
	// Method is Google's name, such as "instances.insert".
	Method string
	// Project, Zone and Name are what it is about.
	Project, Zone, Name string
	// Body is what was sent.
	Body []byte
}

// Fault is what goes wrong with a call. The zero value is nothing.
type Fault struct {
	// Hold, if set, is waited for before anything else, whether or not the caller is
	// still there.
	Hold <-chan struct{}
	// Cut drops the connection before the call has an effect, LoseAnswer after.
	Cut, LoseAnswer bool
	// Error is answered in place of an effect.
	Error *Error
	// Operation has the insert accepted, and its operation fail.
	Operation []OperationError
}

// Error is an error as the API writes it.
type Error struct {
	Status          int
	Reason, Message string
	// Details are further words, as objects.
	Details []map[string]any
	// Header is added to the answer's.
	Header http.Header
	// Raw, if set, is the body in place of JSON.
	Raw string
}

// OperationError is one error of a finished operation.
type OperationError struct {
	Code    string `json:"code,omitempty"`
	Message string `json:"message,omitempty"`
}

// Server is the API. Its fields may be set before it is used.
type Server struct {
	// Before, if set, is asked about each call.
	Before func(Call) Fault

	cfg Config

	mu          sync.Mutex
	instances   map[key]*instance
	operations  []*operation
	calls       []Call
	unreachable map[string]bool // zones
	pageWide    bool            // whether the page says so, and not the zone
	quotas      []map[string]any
	policy      map[string]any
	serial      map[key]string
	last        uint64
	minute      time.Time // that of the count
	inMinute    int
}

type key struct{ zone, name string }

// New returns an API with nothing in it.
func New(cfg Config) *Server {
	if cfg.Project == "" {
		cfg.Project = "test-project"
	}
	if len(cfg.Networks) == 0 {
		cfg.Networks = []string{"default"}
	}
	if cfg.PageSize == 0 {
		cfg.PageSize = 500
	}
	if cfg.Minute == 0 {
		cfg.Minute = time.Minute
	}
	return &Server{cfg: cfg, instances: map[key]*instance{}, unreachable: map[string]bool{}, serial: map[key]string{}, last: 4_000_000_000_000}
}

// route is one method that the server knows.
type route struct {
	method string
	verb   string
	path   *regexp.Regexp
	serve  func(*Server, *http.Request, Call) (any, *Error)
}

func at(verb, path, method string, serve func(*Server, *http.Request, Call) (any, *Error)) route {
	pattern := regexp.MustCompile(`\{(\w+)\}`).ReplaceAllString(path, `(?P<$1>[^/]+)`)
	return route{method, verb, regexp.MustCompile("^" + pattern + "$"), serve}
}

const projects = "/compute/v1/projects/{project}"

var routes = []route{
	at("POST", projects+"/zones/{zone}/instances", "instances.insert", (*Server).insert),
	at("GET", projects+"/zones/{zone}/instances/{name}", "instances.get", (*Server).get),
	at("DELETE", projects+"/zones/{zone}/instances/{name}", "instances.delete", (*Server).delete),
	at("GET", projects+"/zones/{zone}/instances/{name}/serialPort", "instances.getSerialPortOutput", (*Server).serialPort),
	at("GET", projects+"/aggregated/instances", "instances.aggregatedList", (*Server).aggregatedList),
	at("GET", projects+"/zones/{zone}/operations", "zoneOperations.list", (*Server).listOperations),
	at("GET", projects, "projects.get", (*Server).project),
	at("GET", projects+"/zones", "zones.list", (*Server).listZones),
	at("GET", projects+"/regions/{name}", "regions.get", (*Server).region),
	at("GET", projects+"/global/networks/{name}", "networks.get", (*Server).network),
	at("GET", projects+"/regions/{zone}/subnetworks/{name}", "subnetworks.get", (*Server).network),
	at("GET", projects+"/global/images/family/{name}", "images.getFromFamily", (*Server).imageFamily),
	at("GET", projects+"/global/images/{name}", "images.get", (*Server).image),
	at("GET", projects+"/zones/{zone}/machineTypes/{name}", "machineTypes.get", (*Server).machineType),
	at("POST", "/v1/projects/{project}:getEffectiveOrgPolicy", "projects.getEffectiveOrgPolicy", (*Server).effectivePolicy),
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	if s.cfg.Discovery != nil {
		if problems := s.cfg.Discovery.Check(r, body); len(problems) > 0 {
			s.cfg.Refused(strings.Join(problems, "\n"))
			writeError(w, invalid("%s", strings.Join(problems, "; ")))
			return
		}
	}
	for _, route := range routes {
		if m := route.path.FindStringSubmatch(r.URL.Path); m != nil && route.verb == r.Method {
			s.serve(w, r, route, callOf(route, m, body))
			return
		}
	}
	writeError(w, &Error{Status: http.StatusNotFound, Raw: "<html>404 page not found</html>"})
}

func callOf(r route, match []string, body []byte) Call {
	c := Call{Method: r.method, Body: body}
	for i, name := range r.path.SubexpNames() {
		switch name {
		case "project":
			c.Project = match[i]
		case "zone":
			c.Zone = match[i]
		case "name":
			c.Name = match[i]
		}
	}
	if r.method == "instances.insert" {
		var named struct{ Name string }
		_ = json.Unmarshal(body, &named)
		c.Name = named.Name
	}
	return c
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request, route route, call Call) {
	s.mu.Lock()
	s.calls = append(s.calls, call)
	before, tooMany := s.Before, s.limited(time.Now())
	s.mu.Unlock()
	if tooMany != nil {
		writeError(w, tooMany)
		return
	}
	var fault Fault
	if before != nil {
		fault = before(call)
	}
	if fault.Hold != nil {
		<-fault.Hold
	}
	if fault.Cut {
		panic(http.ErrAbortHandler)
	}
	if fault.Error != nil {
		writeError(w, fault.Error)
		return
	}
	answer, failed := s.act(r, route, call, fault)
	if fault.LoseAnswer {
		panic(http.ErrAbortHandler)
	}
	if failed != nil {
		writeError(w, failed)
		return
	}
	s.answer(w, r, answer)
}

// limited counts a call. Compute Engine answers 403 where others answer 429.
func (s *Server) limited(now time.Time) *Error {
	if minute := now.Truncate(s.cfg.Minute); !minute.Equal(s.minute) {
		s.minute, s.inMinute = minute, 0
	}
	s.inMinute++
	if s.cfg.CallsPerMinute == 0 || s.inMinute <= s.cfg.CallsPerMinute {
		return nil
	}
	return &Error{
		Status: http.StatusForbidden, Reason: "rateLimitExceeded",
		Message: "Quota exceeded for quota metric 'Read requests' and limit 'Read requests per minute' of service 'compute.googleapis.com'.",
	}
}

func (s *Server) answer(w http.ResponseWriter, r *http.Request, answer any) {
	body, err := json.Marshal(answer)
	if err != nil {
		writeError(w, &Error{Status: http.StatusInternalServerError, Raw: err.Error()})
		return
	}
	if s.cfg.Discovery != nil {
		if problems := s.cfg.Discovery.CheckAnswer(r, body); len(problems) > 0 {
			s.cfg.Refused("the fake's own answer: " + strings.Join(problems, "\n"))
		}
	}
	w.Header().Set("Content-Type", "application/json; charset=UTF-8")
	_, _ = w.Write(body)
}

// act has the effect, alone.
func (s *Server) act(r *http.Request, route route, call Call, fault Fault) (any, *Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.advance(time.Now())
	if s.cfg.Number != "" && call.Project == s.cfg.Number {
		call.Project = s.cfg.Project
	}
	if call.Project != s.cfg.Project && !strings.HasPrefix(route.method, "images.") {
		return nil, notFound("projects/" + call.Project)
	}
	if call.Zone != "" && strings.Contains(r.URL.Path, "/zones/") && !slices.Contains(s.cfg.Zones, call.Zone) {
		return nil, invalid("Invalid value for field 'zone': '%s'. Unknown zone.", call.Zone)
	}
	answer, failed := route.serve(s, r, call)
	if failed == nil && fault.Operation != nil && call.Method == "instances.insert" {
		s.operations[len(s.operations)-1].errors = fault.Operation
		s.instances[key{call.Zone, call.Name}].doomed = true
	}
	return answer, failed
}

// SetBefore replaces Before while the server is in use.
func (s *Server) SetBefore(before func(Call) Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Before = before
}

// Calls are all so far that had that method, or all if it is empty.
func (s *Server) Calls(method string) (some []Call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.calls {
		if method == "" || c.Method == method {
			some = append(some, c)
		}
	}
	return some
}

// SetUnreachable has lists say that a zone did not answer: beside its instances,
// or for the whole page.
func (s *Server) SetUnreachable(zone string, unreachable, pageWide bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unreachable[zone], s.pageWide = unreachable, pageWide
}

// SetQuota sets use and limit of a metric in every region, or of the project where
// its name ends in _ALL_REGIONS.
func (s *Server) SetQuota(metric string, usage, limit float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.quotas = append(s.quotas, map[string]any{"metric": metric, "usage": usage, "limit": limit})
}

// SetPolicy sets the list policy on external addresses.
func (s *Server) SetPolicy(listPolicy map[string]any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.policy = listPolicy
}

// SetConsole sets what an instance has written to its first serial port.
func (s *Server) SetConsole(zone, name, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.serial[key{zone, name}] = text
}

// SetStatus has an instance be in that state from now on.
func (s *Server) SetStatus(zone, name, status string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	in, ok := s.instances[key{zone, name}]
	if ok {
		in.fixed, in.stopped = status, time.Now()
	}
	return ok
}

// Edit changes what is known of an instance, as its administrator may.
func (s *Server) Edit(zone, name string, change func(body map[string]any)) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	in, ok := s.instances[key{zone, name}]
	if ok {
		change(in.body)
	}
	return ok
}

// Vanish removes an instance without a trace.
func (s *Server) Vanish(zone, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.instances, key{zone, name})
}

// Put makes an instance of a body as an insert has it, at once and running.
func (s *Server) Put(zone string, body map[string]any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	in := s.newInstance(zone, body)
	in.fixed = "RUNNING"
}

// Body is what an instance was made of, and whether it is there.
func (s *Server) Body(zone, name string) (map[string]any, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.advance(time.Now())
	in, ok := s.instances[key{zone, name}]
	if !ok {
		return nil, false
	}
	return maps.Clone(in.body), true
}

// Names are zone and name of all instances.
func (s *Server) Names() (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.advance(time.Now())
	for k := range s.instances {
		names = append(names, k.zone+"/"+k.name)
	}
	slices.Sort(names)
	return names
}

func writeError(w http.ResponseWriter, e *Error) {
	maps.Copy(w.Header(), e.Header)
	if e.Raw != "" {
		w.WriteHeader(e.Status)
		_, _ = io.WriteString(w, e.Raw)
		return
	}
	body := map[string]any{"code": e.Status, "message": e.Message, "errors": []any{map[string]any{"message": e.Message, "domain": "global", "reason": e.Reason}}}
	if len(e.Details) > 0 {
		body["details"] = e.Details
	}
	w.Header().Set("Content-Type", "application/json; charset=UTF-8")
	w.WriteHeader(e.Status)
	_ = json.NewEncoder(w).Encode(map[string]any{"error": body})
}

func invalid(format string, args ...any) *Error {
	return &Error{Status: http.StatusBadRequest, Reason: "invalid", Message: fmt.Sprintf(format, args...)}
}

func notFound(resource string) *Error {
	return &Error{Status: http.StatusNotFound, Reason: "notFound", Message: fmt.Sprintf("The resource '%s' was not found", resource)}
}
