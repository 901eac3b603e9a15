package endpoint

import (
	"maps"
	"net/netip"
	"time"

	"github.com/egressfleet/egress/internal/check"
)

// Endpoint is one forward proxy. Copy it with [Endpoint.Clone] where the
// attributes may change.
type Endpoint struct {
	// ID names the endpoint; opaque, unique within a store. Required.
	ID string `json:"id"`
	// URL is the proxy's address and credentials. Required.
	URL URL `json:"url"`
	// Attributes are the owner's labels, such as a region: lease selectors and
	// metrics read them. They are no place for secrets.
	Attributes map[string]string `json:"attributes,omitempty"`
	// Generation changes whenever the owner changes what stands behind the ID, and
	// only then: leases and bans stay with it. A verdict about another is dropped.
	Generation uint64 `json:"generation,omitempty"`
	// EgressIP is the address that targets see, once it is known.
	EgressIP netip.Addr `json:"egressIP,omitzero"`
}

// Validate reports all that is wrong, joined.
func (e Endpoint) Validate() error {
	var problems check.Problems
	problems.Require(e.ID != "", "id", "give the endpoint an ID")
	problems.Require(!e.URL.IsZero(), "url", "give the proxy's URL, such as http://192.0.2.7:3128")
	return problems.Err()
}

// Clone returns a copy that shares nothing.
func (e Endpoint) Clone() Endpoint {
	e.Attributes = maps.Clone(e.Attributes)
	return e
}

// Health is what is known of an endpoint's use.
type Health string

// The three states. Only Healthy endpoints are leased.
const (
	Unknown   Health = "Unknown"
	Healthy   Health = "Healthy"
	Unhealthy Health = "Unhealthy"
)

// Verdict is a judgement on one generation of an endpoint.
type Verdict struct {
	Health Health `json:"health"`
	// Reason says why, for people.
	Reason string `json:"reason,omitempty"`
	// Generation is that of the endpoint that was judged.
	Generation uint64 `json:"generation,omitempty"`
	// EgressIP is the address that the target saw, where it tells.
	EgressIP netip.Addr `json:"egressIP,omitzero"`
	// Since is when the endpoint entered this state.
	Since time.Time `json:"since,omitzero"`
}
