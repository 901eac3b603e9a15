package redislease

import (
	"encoding/json"
	"fmt"
	"math"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/lease"
)

// stored is an endpoint as Redis has it: with its credentials, and without the
// egress address, which a verdict may change.
type stored struct {
	ID         string            `json:"id"`
	URL        string            `json:"url"`
	Attributes map[string]string `json:"attributes,omitempty"`
	Generation uint64            `json:"generation,omitempty"`
}

func encode(e endpoint.Endpoint) string {
	return marshal(stored{ID: e.ID, URL: e.URL.Reveal(), Attributes: e.Attributes, Generation: e.Generation})
}

// marshal is for what can always be written.
func marshal(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// decode reads an egress address and, in the next line, an endpoint. An address that
// is none is not known. An error quotes nothing: a password may stand anywhere.
func decode(text string) (endpoint.Endpoint, error) {
	egress, text, _ := strings.Cut(text, "\n")
	var e stored
	if json.Unmarshal([]byte(text), &e) != nil || e.ID == "" {
		return endpoint.Endpoint{}, fmt.Errorf("%w: an endpoint", errUnreadable)
	}
	url, err := endpoint.ParseURL(e.URL)
	if err != nil {
		return endpoint.Endpoint{}, fmt.Errorf("%w: an endpoint: %w", errUnreadable, err)
	}
	address, _ := netip.ParseAddr(egress)
	return endpoint.Endpoint{ID: e.ID, URL: url, Attributes: e.Attributes, Generation: e.Generation, EgressIP: address}, nil
}

// selectorText is a selector for the scripts. Equal ones have one text.
func selectorText(s lease.Selector) string {
	if len(s) == 0 {
		return "[]"
	}
	return marshal(s)
}

func attributesText(attributes map[string]string) string {
	if len(attributes) == 0 {
		return "{}"
	}
	return marshal(attributes)
}

// addressText is an address, or nothing.
func addressText(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

// faceText is the address that endpoints are banned by: loopback is nobody's
// identity.
func faceText(a netip.Addr) string {
	if a.IsLoopback() {
		return ""
	}
	return addressText(a)
}

// canonicalDomain is the form under which cooldowns are kept.
func canonicalDomain(domain string) string {
	return strings.ToLower(strings.TrimSuffix(domain, "."))
}

// duration is as long as can be said where it is longer.
func duration(micros int64) time.Duration {
	const longest = math.MaxInt64 / int64(time.Microsecond)
	return time.Duration(min(max(micros, -longest), longest)) * time.Microsecond
}

// most is how many texts endpoints remembers, and mostText how long one is.
const (
	most     = 1 << 14
	mostText = 1 << 14
)

// endpoints remembers what was decoded: leases of one endpoint have the same text. Its
// users share the attributes.
type endpoints struct {
	mu     sync.Mutex
	byText map[string]endpoint.Endpoint
}

func (c *endpoints) of(text string) (endpoint.Endpoint, error) {
	c.mu.Lock()
	e, known := c.byText[text]
	c.mu.Unlock()
	if known {
		return e, nil
	}
	e, err := decode(text)
	if err != nil || len(text) > mostText {
		return e, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byText == nil || len(c.byText) >= most {
		c.byText = map[string]endpoint.Endpoint{}
	}
	c.byText[text] = e
	return e, nil
}

// grantOf reads token, egress address and endpoint, time to live, domain.
func (s *Store) grantOf(id string, r reply) (lease.Grant, error) {
	e, err := s.endpoints.of(r.text(1))
	if err != nil {
		return lease.Grant{}, err
	}
	grant := lease.Grant{
		Key: lease.Key{ID: id, Token: r.number(0)}, Endpoint: e, TTL: duration(r.number(2)), Domain: r.text(3),
	}
	if grant.Token <= 0 || grant.TTL <= 0 {
		return lease.Grant{}, fmt.Errorf("%w: a token or the time of a lease", errUnreadable)
	}
	return grant, nil
}

// countsOf reads what the scripts call standing.
func countsOf(r reply) lease.Counts {
	n := func(i int) int { return int(r.count(i)) }
	return lease.Counts{
		Total: n(0), NotSelected: n(1), Draining: n(2), Unknown: n(3), Unhealthy: n(4),
		Leased: n(5), Cooling: n(6), CoolingForDomain: n(7), Free: n(8),
	}
}
