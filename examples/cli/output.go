package main

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/provider"
)

// The formats of results.
const (
	outputTable = "table"
	outputJSON  = "json"
)

// instance is one of a result's.
type instance struct {
	provider.Instance
	Provider string `json:"provider"`
	Zone     string `json:"zone"`
	// Address is the one to connect to, and Port the proxy's.
	Address string `json:"address,omitempty"`
	Port    int    `json:"port,omitempty"`
	// URL is the proxy's, with its password.
	URL   string `json:"url,omitempty"`
	Probe *probe `json:"probe,omitempty"`
}

// probe is a fetch through the proxy that worked.
type probe struct {
	URL          string `json:"url"`
	Status       int    `json:"status"`
	Milliseconds int64  `json:"milliseconds"`
	// EgressIP is what the target saw, where it tells.
	EgressIP netip.Addr `json:"egressIP,omitzero"`
}

// missing is a part of a list that could not be read.
type missing struct {
	Scope string `json:"scope"`
	Error string `json:"error"`
}

func describe(name string, in provider.Instance) instance {
	out := instance{Instance: in, Provider: name, Zone: zoneOf(in.ID), Port: portOf(in)}
	if in.Address().IsValid() {
		out.Address = in.Address().String()
	}
	return out
}

// setEndpoint tells where the proxy listens, and its password.
func (in *instance) setEndpoint(e endpoint.Endpoint) {
	in.URL = e.URL.Reveal()
	if hostport, err := netip.ParseAddrPort(e.URL.Host()); err == nil {
		in.Port = int(hostport.Port())
	}
}

// zoneOf is the place in an ID of the form places/place/things/name.
func zoneOf(id string) string {
	if parts := strings.Split(id, "/"); len(parts) == 4 {
		return parts[1]
	}
	return ""
}

// writeJSON writes a result for machines.
func (a *app) writeJSON(v any) error {
	e := json.NewEncoder(a.stdout)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// instanceTable is a list of instances for people.
func instanceTable(all []instance, urls bool, now time.Time) table {
	last := "REASON"
	if urls {
		last = "URL"
	}
	t := table{header: []string{"NAME", "STATE", "ADDRESS", "PORT", "ZONE", "AGE", last}}
	for _, in := range all {
		last := in.Reason
		if urls {
			last = in.URL
		}
		t.add(in.Name, string(in.State), in.Address, orDash(in.Port), in.Zone, age(in.CreatedAt, now), last)
	}
	return t
}

func orDash(n int) string {
	if n == 0 {
		return "-"
	}
	return strconv.Itoa(n)
}

// age is the time since created in its largest unit.
func age(created, now time.Time) string {
	d := max(0, now.Sub(created))
	switch {
	case created.IsZero():
		return "-"
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", d/time.Hour)
	}
	return fmt.Sprintf("%dd", d/(24*time.Hour))
}
