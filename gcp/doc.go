// Package gcp is a [provider.Provider] on Google Compute Engine.
//
// A project with the Compute Engine API and credentials are all it needs:
//
//	p, err := gcp.New(gcp.Config{
//		Project:     "my-project",
//		Region:      "europe-west1",
//		MachineType: "e2-small",
//		Image:       "projects/debian-cloud/global/images/family/debian-13",
//		NetworkTags: []string{"egress-proxy"},
//	})
//
// Credentials are Application Default Credentials: those of gcloud auth
// application-default login on a desk, those of the machine or pod on Google
// Cloud. [Config].ClientOptions takes others. New connects to nothing; the
// credentials are looked for at the first call, and again after one that found
// none.
//
// # Placement
//
// Zone is required by Create unless [Config].Zones has just one; [Provider.Place]
// chooses one, by the UID, of Config.Zones or else of the region. MachineType and
// Image are the API's own names, with [Config].MachineType and [Config].Image as
// their defaults:
//
//	e2-small                                                 a machine type
//	projects/debian-cloud/global/images/family/debian-13     the newest of a family
//	projects/debian-cloud/global/images/debian-13-v20260101  one image
//	family/squid, squid-7                                    the project's own
//
// The ID of an instance is zones/ZONE/instances/NAME, so that Get and Delete
// need no other look-up. An ID in a zone that Config.Zones lacks is
// ErrPermanent with [provider.CodeUnconfigured]; without Config.Zones every zone is
// configured.
//
// # What Create does
//
// It is one call, instances.insert, which the API answers before it has looked
// for room. [Config.InsertRequest] shows its body. The name makes it idempotent:
// where the name is taken, the instance that holds it is read, and is the
// request's own only if its record has the same tag and UID. One that is being
// deleted, also by an operation that has not begun, is ErrTransient.
//
// An answer that got lost, or a failure of the server, leaves open whether there
// is an instance: Create looks, and is ErrTransient where it sees none.
//
// A stockout, and most quotas, are found only after the acceptance. Then the
// instance vanishes, and Get says ErrNotFound. [Provider.Explain] finds the
// operation and says why, with a class: so that nobody runs into a stockout at
// full speed.
//
// # What an instance carries
//
// Labels for filters, egress-managed, egress-tag and egress-uid (a hash of the UID),
// on the instance and its disk; and in its description, as JSON, tag, UID and
// metadata. Metadata that makes the description longer than the API takes is kept
// in the metadata item egress-metadata instead. User-data goes into the metadata
// item user-data, as base64 with user-data-encoding where it is not UTF-8. Whoever
// may read the instance may read all of these, and so can every process in it:
// nothing in user-data should be worth more than the proxy.
//
// The disk goes with its instance. [Config].Spot instances are deleted when they
// are preempted, and [Config].MaxRunDuration has the API delete each instance
// after that time, whatever becomes of its owner.
//
// # Beside the contract
//
// [Provider.Place] chooses a zone, [Provider.Explain] says why an instance vanished,
// [Provider.ReadConsole] reads the serial console, [Provider.Diagnose] examines
// credentials, quotas, network, image and policies, and [Provider.Sweep] finds
// instances that are stopped or that nobody owns. docs/gcp.md has the least
// permissions of each, the firewall rule, and what it costs.
//
// # States
//
// TERMINATED is a stopped instance, which still has its disk: Stopped. Only a 404
// that names the instance is ErrNotFound. REPAIRING is Unknown, as is any state
// that this package does not know. An instance that runs without an address that
// it shall have is Provisioning.
//
// # Errors
//
// The Code of a [provider.Error] is Google's own, as it came: the reason of an HTTP
// error in camel case, such as "quotaExceeded", or the code of a failed operation
// in capitals, such as "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"; "HTTP 502" where
// there is none. Or one of ours:
//
//	BadPlacement        the placement lacks something or names what cannot be
//	UserDataTooLarge    user-data or metadata exceed the API's limits
//	CredentialsMissing  there are no Application Default Credentials (transient)
//	CredentialsInvalid  the credentials cannot be read, or are refused
//	NoAnswer            the API has not answered in time
//	ConnectionLost      the API cannot be reached, or its answer got lost
//	NoZoneLeft          every zone had no room lately
//	InFlight            the insert that Explain looks for is not finished, or has ended well meanwhile
//	BadRecord           the record of an instance of ours cannot be read
//
// Rate limits are ErrTransient with the time to the next minute, when Google fills
// them up again. Stockouts and quotas are ErrQuotaExceeded with a time to wait. Scope
// is the zone, or the quota with its region.
//
// User-data never reaches an error or a log: a message of the API that repeats a
// piece of it is withheld.
//
// # Logging
//
// V(0) is what an operator must see, V(1) one line "compute call" for each HTTP
// request, V(5) adds the payloads, with user-data and consoles cut out unless
// [Config].LogUserData is on. A logger in the context is preferred to
// [Config].Logger.
package gcp
