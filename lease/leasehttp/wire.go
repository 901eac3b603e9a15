package leasehttp

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/lease"
)

// The wire structs are types of their own: what the library redacts must be sent
// here, and what it may change must not change here.

// duration is written as "30s".
type duration time.Duration

func (d duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

func (d *duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil || v < 0 {
		return fmt.Errorf("%q is no duration: write it like 30s or 5m", text)
	}
	*d = duration(v)
	return nil
}

type acquireRequest struct {
	RequestID string   `json:"requestId,omitempty"`
	Holder    string   `json:"holder"`
	Domain    string   `json:"domain,omitempty"`
	TTL       duration `json:"ttl,omitzero"`
	Selector  string   `json:"selector,omitempty"`
	Session   string   `json:"session,omitempty"`
}

func (r acquireRequest) request(c client) (lease.Request, error) {
	selector, err := lease.ParseSelector(r.Selector)
	req := lease.Request{
		Holder: r.Holder, Domain: r.Domain, TTL: time.Duration(r.TTL), Selector: selector, Session: r.Session,
	}
	if err == nil {
		err = req.Validate()
	}
	// Clients name their holders as they like; sessions are their own.
	req.Holder = c.own(req.Holder)
	if req.Session != "" {
		req.Session = c.own(req.Session)
	}
	return req, err
}

type wireLease struct {
	ID    string `json:"id"`
	Token int64  `json:"token,string"` // beyond what JavaScript counts to
	// TTL counts from the end of Waited, which is how long the server held the
	// request: both from when the client sent it.
	TTL      duration     `json:"ttl"`
	Waited   duration     `json:"waited,omitzero"`
	Domain   string       `json:"domain,omitempty"`
	Holder   string       `json:"holder"`
	Endpoint wireEndpoint `json:"endpoint"`
}

// wireEndpoint has the URL with its credentials in a lease, and without in lists.
type wireEndpoint struct {
	ID         string            `json:"id"`
	URL        string            `json:"url"`
	Attributes map[string]string `json:"attributes,omitempty"`
	Generation uint64            `json:"generation,omitempty,string"`
	EgressIP   netip.Addr        `json:"egressIP,omitzero"`
}

func toWire(g lease.Grant, holder string, waited time.Duration) wireLease {
	e := fromEndpoint(g.Endpoint)
	e.URL = g.Endpoint.URL.Reveal()
	return wireLease{ID: g.ID, Token: g.Token, TTL: duration(g.TTL), Waited: duration(waited), Domain: g.Domain, Holder: holder, Endpoint: e}
}

func fromEndpoint(e endpoint.Endpoint) wireEndpoint {
	return wireEndpoint{
		ID: e.ID, URL: e.URL.String(), Attributes: e.Attributes, Generation: e.Generation, EgressIP: e.EgressIP,
	}
}

// endpoint leaves the URL out.
func (w wireEndpoint) endpoint() endpoint.Endpoint {
	return endpoint.Endpoint{ID: w.ID, Attributes: w.Attributes, Generation: w.Generation, EgressIP: w.EgressIP}
}

type renewRequest struct {
	Token int64    `json:"token,string"`
	TTL   duration `json:"ttl,omitzero"`
}

type renewAnswer struct {
	TTL duration `json:"ttl"`
}

type releaseRequest struct {
	Token int64 `json:"token,string"`
	// Unused keeps the endpoint's place among the least recently used.
	Unused bool `json:"unused,omitempty"`
}

type reportRequest struct {
	Token      int64             `json:"token,string"`
	Outcome    lease.OutcomeKind `json:"outcome"`
	Domain     string            `json:"domain,omitempty"`
	Status     int               `json:"status,omitempty"`
	Latency    duration          `json:"latency,omitzero"`
	RetryAfter duration          `json:"retryAfter,omitzero"`
}

type listAnswer struct {
	Endpoints []wireStatus `json:"endpoints"`
}

type wireStatus struct {
	Endpoint    wireEndpoint         `json:"endpoint"`
	Health      endpoint.Health      `json:"health"`
	Reason      string               `json:"reason,omitempty"`
	Since       time.Time            `json:"since,omitzero"`
	Draining    bool                 `json:"draining,omitempty"`
	Probation   bool                 `json:"probation,omitempty"`
	Leases      []wireHolding        `json:"leases,omitempty"`
	CoolUntil   time.Time            `json:"coolUntil,omitzero"`
	CoolDomains map[string]time.Time `json:"coolDomains,omitempty"`
}

type wireHolding struct {
	ID        string    `json:"id"`
	Holder    string    `json:"holder"`
	Domain    string    `json:"domain,omitempty"`
	ExpiresAt time.Time `json:"expiresAt"`
}

// fromStatus is what the client is shown. The IDs of its own leases are as it knows
// them.
func fromStatus(s lease.Status, c client) wireStatus {
	w := wireStatus{
		Endpoint: fromEndpoint(s.Endpoint), Health: s.Verdict.Health, Reason: s.Verdict.Reason, Since: s.Verdict.Since,
		Draining: s.Draining, Probation: s.Probation, CoolUntil: s.CoolUntil, CoolDomains: s.CoolDomains,
	}
	for _, h := range s.Leases {
		if c.owns(h.Holder) {
			h.ID = c.seal(h.ID)
		}
		w.Leases = append(w.Leases, wireHolding(h))
	}
	slices.SortFunc(w.Leases, func(a, b wireHolding) int { return cmp.Compare(a.ID, b.ID) })
	return w
}

// status is what a list tells: the URL has lost its credentials, and with them
// its use, so it is left out.
func (w wireStatus) status() lease.Status {
	s := lease.Status{
		Endpoint: w.Endpoint.endpoint(), Draining: w.Draining, Probation: w.Probation,
		Verdict: endpoint.Verdict{
			Health: w.Health, Reason: w.Reason, Since: w.Since, Generation: w.Endpoint.Generation, EgressIP: w.Endpoint.EgressIP,
		},
		CoolUntil: w.CoolUntil, CoolDomains: w.CoolDomains,
	}
	for _, h := range w.Leases {
		s.Leases = append(s.Leases, lease.Holding(h))
	}
	return s
}

type wireStats struct {
	Acquired       int64                       `json:"acquired"`
	Released       int64                       `json:"released"`
	Renewed        int64                       `json:"renewed"`
	Expired        int64                       `json:"expired"`
	Revoked        int64                       `json:"revoked"`
	Waits          int64                       `json:"waits"`
	Canceled       int64                       `json:"canceled"`
	WaitTime       duration                    `json:"waitTime"`
	Outcomes       map[lease.OutcomeKind]int64 `json:"outcomes"`
	LateReports    int64                       `json:"lateReports"`
	DroppedReports int64                       `json:"droppedReports"`
	Waiting        int                         `json:"waiting"`
	Endpoints      wireCounts                  `json:"endpoints"`
}

// statsAnswer tells statistics from what is none.
type statsAnswer struct {
	wireStats
	Endpoints *wireCounts `json:"endpoints"`
}

type wireCounts struct {
	Total            int `json:"total"`
	NotSelected      int `json:"notSelected"`
	Draining         int `json:"draining"`
	Unknown          int `json:"unknown"`
	Unhealthy        int `json:"unhealthy"`
	Leased           int `json:"leased"`
	Cooling          int `json:"cooling"`
	CoolingForDomain int `json:"coolingForDomain"`
	Free             int `json:"free"`
}

func fromStats(s lease.Stats) wireStats {
	return wireStats{
		Acquired: s.Acquired, Released: s.Released, Renewed: s.Renewed, Expired: s.Expired, Revoked: s.Revoked,
		Waits: s.Waits, Canceled: s.Canceled, WaitTime: duration(s.WaitTime), Outcomes: s.Outcomes,
		LateReports: s.LateReports, DroppedReports: s.DroppedReports, Waiting: s.Waiting, Endpoints: wireCounts(s.Endpoints),
	}
}

func (w wireStats) stats() lease.Stats {
	return lease.Stats{
		Acquired: w.Acquired, Released: w.Released, Renewed: w.Renewed, Expired: w.Expired, Revoked: w.Revoked,
		Waits: w.Waits, Canceled: w.Canceled, WaitTime: time.Duration(w.WaitTime), Outcomes: w.Outcomes,
		LateReports: w.LateReports, DroppedReports: w.DroppedReports, Waiting: w.Waiting, Endpoints: lease.Counts(w.Endpoints),
	}
}

type errorAnswer struct {
	Error wireError `json:"error"`
}

type wireError struct {
	Code       string      `json:"code"`
	Message    string      `json:"message"`
	RetryAfter duration    `json:"retryAfter,omitzero"`
	Counts     *wireCounts `json:"counts,omitempty"`
}

// The codes of errors.
const (
	codeBadRequest   = "bad_request"
	codeUnauthorized = "unauthorized"
	codeNotFound     = "not_found"
	codeNoMatch      = "no_match"
	codeNotHeld      = "not_held"
	codeExpired      = "expired"
	codeTooLarge     = "too_large"
	codeTooSlow      = "too_slow"
	codeNoneFree     = "none_free"
	codeUnavailable  = "unavailable"
)

func mustJSON(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil { // the wire structs hold nothing that cannot be written
		panic(err)
	}
	return append(text, '\n')
}
