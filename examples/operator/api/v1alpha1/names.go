package v1alpha1

// Finalizer keeps a Proxy until its machine is gone.
const Finalizer = "crawl.example.com/proxy"

// LabelCloudInit must be "true" on a Secret that a Proxy refers to: the operator
// sees no other ones.
const LabelCloudInit = "crawl.example.com/cloud-init"

// LabelServing is "true" on the pods that serve the discovery API, for the
// Service to select by.
const LabelServing = "crawl.example.com/serving"

// The annotations of a Proxy.
const (
	// AnnotationPaused, "true", has the operator make and replace nothing. A
	// machine that runs is still probed and leased, and a deletion goes on.
	AnnotationPaused = "crawl.example.com/paused"
	// AnnotationSkipCleanup, "true", has a deletion leave the machine behind.
	AnnotationSkipCleanup = "crawl.example.com/skip-cleanup"
	// AnnotationReconcile asks for a look at once, past every back-off: set it to
	// another value each time, such as the time.
	AnnotationReconcile = "crawl.example.com/reconcile-requested-at"
)

// The types of a Proxy's conditions.
const (
	// ConditionReady is whether the proxy was proved by fetching through it.
	ConditionReady = "Ready"
	// ConditionProvisioned is whether its machine runs.
	ConditionProvisioned = "Provisioned"
	// ConditionProviderReachable is whether the provider answered last. A proxy
	// stays Ready while it does not.
	ConditionProviderReachable = "ProviderReachable"
	// ConditionPaused is there while the annotation is.
	ConditionPaused = "Paused"
)

// The reasons of conditions and events.
const (
	ReasonCreating         = "Creating"
	ReasonBooting          = "Booting"
	ReasonRunning          = "Running"
	ReasonReplacing        = "Replacing"
	ReasonDraining         = "Draining"
	ReasonLeasesUnknown    = "LeasesUnknown"
	ReasonDeleting         = "Deleting"
	ReasonDeleteFailed     = "DeleteFailed"
	ReasonHealthy          = "Healthy"
	ReasonUnhealthy        = "Unhealthy"
	ReasonUnprobed         = "Unprobed"
	ReasonCloudInitError   = "CloudInitError"
	ReasonCredentialsError = "CredentialsError"
	ReasonProviderUnknown  = "ProviderUnknown"
	ReasonProviderAnswers  = "ProviderAnswers"
	ReasonProviderFails    = "ProviderFails"
	ReasonRefused          = "Refused"
	ReasonQuotaExceeded    = "QuotaExceeded"
	ReasonBootTimeout      = "BootTimeout"
	ReasonUnhealthyTimeout = "UnhealthyTimeout"
	ReasonTerminated       = "Terminated"
	ReasonVanished         = "Vanished"
	ReasonSpecChanged      = "SpecChanged"
	ReasonPaused           = "Paused"
	ReasonAbandoned        = "Abandoned"
	ReasonReleased         = "Released"
	ReasonCreated          = "Created"
	ReasonDeleted          = "Deleted"
)
