package provider

import (
	"context"
	"net/netip"
	"time"
)

// Provider makes and removes instances on one backend.
//
// All methods are safe for concurrent use, and one slow host or caller does
// not hold up another. Each returns within a second after its context ends,
// even against a peer that never answers; what such a call had already asked
// for may still happen, and carries its tag.
type Provider interface {
	// Create makes the instance named [Name](req.UID) and returns its ID once
	// the backend accepted it, which is long before it runs.
	//
	// It is idempotent on the name: called again after a failure, a crash or a
	// cancellation it picks up what exists and finishes it. The request needs a
	// concrete place, unless only one is configured.
	//
	// Once the place is known the ID comes back with an error as well, so that
	// the caller can delete what there may be. Parts are undone at once only on
	// ErrPermanent and ErrQuotaExceeded; after any other error the next Create
	// goes on from there. A name that another tag or UID holds is ErrPermanent
	// with [CodeCollision], and is left alone; one that is still being deleted
	// is ErrTransient.
	Create(ctx context.Context, req CreateRequest) (id string, err error)

	// Get returns the instance with its addresses.
	//
	// ErrNotFound means that the backend proved it absent. A malformed ID is
	// ErrPermanent with [CodeMalformedID], an ID in a place that is not
	// configured is ErrPermanent with [CodeUnconfigured].
	Get(ctx context.Context, id string) (Instance, error)

	// Delete asks for the instance to go. Nil means gone or under way: repeat
	// until Get says ErrNotFound. Deleting what does not exist is nil.
	//
	// On a place that is not configured it is ErrPermanent with
	// [CodeUnconfigured]. Something that carries the name but not our mark is
	// ErrPermanent with [CodeCollision], and is left alone.
	Delete(ctx context.Context, id string) error

	// ListByTag returns the instances of a tag, never another's. Lists need not
	// carry addresses, so an instance that runs without one is Running here.
	//
	// Scopes that did not answer come back as [*PartialError] beside the
	// instances that were seen.
	ListByTag(ctx context.Context, tag string) ([]Instance, error)
}

// CreateRequest says what to make. [CreateRequest.Validate] holds its rules.
type CreateRequest struct {
	// UID is the caller's identity for this instance, never used twice: 1 to
	// 128 printable ASCII characters without spaces. Required.
	UID string
	// Tag is the owner's mark, see [ValidTag]. Required.
	Tag string
	// Placement says where and as what.
	Placement Placement
	// UserData reaches the guest byte for byte. It is not kept or changed; the
	// caller must not change it during the call.
	UserData UserData
	// Metadata comes back in [Instance.Metadata] as it was given: at most 16
	// entries, keys like Tag, values of at most 256 bytes of UTF-8. It is not
	// for secrets: everyone who may read the backend may read it.
	Metadata map[string]string
}

// Placement says where an instance goes and what it is made of, in the
// provider's own terms. A provider says which parts it reads and what an empty
// one means.
type Placement struct {
	Region      string `json:"region,omitempty"`
	Zone        string `json:"zone,omitempty"`
	MachineType string `json:"machineType,omitempty"`
	Image       string `json:"image,omitempty"`
}

// Instance is what a provider knows of one instance at one moment. It owns its
// slices and maps: the receiver may change them.
type Instance struct {
	// ID says where the instance lives, see [IDFormat].
	ID string `json:"id"`
	// Name is [Name](UID).
	Name string `json:"name"`
	UID  string `json:"uid"`
	Tag  string `json:"tag"`
	// State is one of the six constants.
	State State `json:"state"`
	// Reason says in a few words why it is in that state, where the backend
	// tells. It is for people.
	Reason string `json:"reason,omitempty"`
	// Addresses are the guest's own, the preferred one first.
	Addresses []Address `json:"addresses,omitempty"`
	// CreatedAt is the backend's time of acceptance; zero where it keeps none.
	CreatedAt time.Time         `json:"createdAt,omitzero"`
	Metadata  map[string]string `json:"metadata,omitempty"`
}

// Address returns the address to connect to: the first external one, else the
// first internal one. It is the zero Addr where there is none.
func (i Instance) Address() netip.Addr {
	for _, want := range []AddressType{AddressExternal, AddressInternal} {
		for _, a := range i.Addresses {
			if a.Type == want {
				return a.Addr
			}
		}
	}
	return netip.Addr{}
}

// Address is one address of an instance.
type Address struct {
	Type AddressType `json:"type"`
	Addr netip.Addr  `json:"addr"`
}

// AddressType tells whether an address is reachable from outside the backend's
// own network.
type AddressType string

// The two address types.
const (
	AddressInternal AddressType = "Internal"
	AddressExternal AddressType = "External"
)

// State is where an instance stands in its life.
type State string

// The states. What a backend cannot tell is StateUnknown, never a guess.
const (
	// StateProvisioning is accepted but not yet usable: booting, or running
	// without an address.
	StateProvisioning State = "Provisioning"
	// StateRunning is up and has an address (which lists do not check).
	StateRunning State = "Running"
	// StateStopping is on its way to StateStopped or to being gone.
	StateStopping State = "Stopping"
	// StateStopped exists but does not run, and will not by itself.
	StateStopped State = "Stopped"
	// StateFailed crashed or was refused by the backend after acceptance.
	StateFailed State = "Failed"
	// StateUnknown cannot be told at present.
	StateUnknown State = "Unknown"
)

// BootTimeout is how long an instance may stay Provisioning or Unknown, from
// entering that state, before callers replace it: 15 minutes. A first boot that
// installs packages takes a few minutes on a loaded host.
const BootTimeout = 15 * time.Minute
