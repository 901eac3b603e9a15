package provider

import "context"

// Doctor is an optional interface of providers that can examine what they
// stand on: hosts, pools, networks, credentials, quotas.
type Doctor interface {
	// Diagnose examines every scope at the same time and changes nothing. It
	// returns the findings of a scope together, in the order of their examination,
	// the scopes in the order of the configuration. A scope that does not answer
	// is a finding and no error; the error is that of ctx, beside the findings
	// there were.
	Diagnose(ctx context.Context) ([]Finding, error)
}

// Finding is what an examination found out about one thing.
type Finding struct {
	// Scope is the host, zone or project that was examined.
	Scope string `json:"scope"`
	// Check is a short name of what was examined, such as "pool".
	Check string `json:"check"`
	// Status is one of the four constants.
	Status FindingStatus `json:"status"`
	// Evidence is what was seen: a version, a number, the backend's own words.
	Evidence string `json:"evidence"`
	// Remedy is the command or the change that mends it; empty where nothing
	// is to be done.
	Remedy string `json:"remedy,omitempty"`
}

// FindingStatus is how grave a finding is.
type FindingStatus string

// The statuses.
const (
	// FindingOK is as it should be.
	FindingOK FindingStatus = "ok"
	// FindingWarning works, but slowly or not for long.
	FindingWarning FindingStatus = "warning"
	// FindingFailure keeps instances from being made.
	FindingFailure FindingStatus = "failure"
	// FindingSkipped could not be examined, because something before it failed.
	FindingSkipped FindingStatus = "skipped"
)

// Diagnose asks the provider's [Doctor], or that of one that p decorates.
// Without one there are no findings.
func Diagnose(ctx context.Context, p Provider) ([]Finding, error) {
	doctor, ok := As[Doctor](p)
	if !ok {
		return nil, nil
	}
	return doctor.Diagnose(ctx)
}
