package fleet

import (
	"time"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/provider"
)

// EventType says what happened.
type EventType string

// The events of an instance's life, and of the fleet.
const (
	// Creating: a UID was drawn and Create is about to be called.
	Creating EventType = "Creating"
	// Created: the backend accepted it.
	Created EventType = "Created"
	// Adopted: a list by tag showed one that was not in the record.
	Adopted EventType = "Adopted"
	// Running: it has an address, and its proxy is probed.
	Running EventType = "Running"
	// Verdict: its health changed.
	Verdict EventType = "Verdict"
	// Replacing: it is to be deleted, for the reason given.
	Replacing EventType = "Replacing"
	// Deleted: it is gone.
	Deleted EventType = "Deleted"
	// LetGo: it is on a host or zone that is not configured any more. What runs
	// there is the administrator's.
	LetGo EventType = "LetGo"
	// CallFailed: a call to the provider failed, and is repeated later.
	CallFailed EventType = "CallFailed"
)

// Event is something that happened to one instance, or to the fleet where UID
// is empty.
type Event struct {
	Type   EventType
	Time   time.Time
	UID    string
	ID     string
	Health endpoint.Health // of a Verdict
	Reason string
	Err    error // of a CallFailed
}

// Phase is where an instance stands in the fleet's hands.
type Phase string

// The phases, in order.
const (
	// PhaseCreating: Create has not yet succeeded.
	PhaseCreating Phase = "Creating"
	// PhaseBooting: it does not run yet.
	PhaseBooting Phase = "Booting"
	// PhaseServing: it runs, and its endpoint is in the inventory.
	PhaseServing Phase = "Serving"
	// PhaseDraining: its leases are to end.
	PhaseDraining Phase = "Draining"
	// PhaseDeleting: Delete is repeated until it is gone.
	PhaseDeleting Phase = "Deleting"
)

// Status is one instance of the fleet.
type Status struct {
	UID        string
	ID         string // empty until the place is known
	EndpointID string // empty before PhaseServing
	Pool       string // its name
	Placement  provider.Placement
	Phase      Phase
	// Since is when it entered the phase.
	Since time.Time
	// State is the provider's latest word.
	State   provider.State
	Verdict endpoint.Verdict
	// Reason says why it is in this phase, or what the latest call failed with.
	Reason string
}
