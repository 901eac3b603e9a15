package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Mode says who runs the proxy.
//
// +kubebuilder:validation:Enum=Managed;External
type Mode string

// The modes.
const (
	// Managed has the operator make a machine with the proxy on a provider.
	Managed Mode = "Managed"
	// External is a proxy that somebody else runs.
	External Mode = "External"
)

// Phase sums the status up in a word.
type Phase string

// The phases.
const (
	// PhasePending has no machine yet: a Secret is missing, or a back-off runs.
	PhasePending Phase = "Pending"
	// PhaseProvisioning has asked for a machine that does not run yet.
	PhaseProvisioning Phase = "Provisioning"
	// PhaseRunning has a machine, or an endpoint, and was not probed yet.
	PhaseRunning Phase = "Running"
	// PhaseReady was fetched through.
	PhaseReady Phase = "Ready"
	// PhaseUnhealthy was not, lately.
	PhaseUnhealthy Phase = "Unhealthy"
	// PhaseFailed was refused for good. It is tried again when the spec, the Secret
	// or the providers file changes.
	PhaseFailed Phase = "Failed"
	// PhaseTerminating is being deleted.
	PhaseTerminating Phase = "Terminating"
)

// ProxySpec is what is wanted.
//
// +kubebuilder:validation:XValidation:rule="self.mode == oldSelf.mode",message="mode is immutable: delete the Proxy and make another"
// +kubebuilder:validation:XValidation:rule="self.mode != 'Managed' || has(self.provider)",message="mode Managed needs a provider: the name of one in the operator's providers file"
// +kubebuilder:validation:XValidation:rule="self.mode != 'Managed' || !has(self.endpoint)",message="mode Managed has no endpoint: the operator finds out the address of what it makes"
// +kubebuilder:validation:XValidation:rule="self.mode != 'External' || has(self.endpoint)",message="mode External needs an endpoint"
// +kubebuilder:validation:XValidation:rule="self.mode != 'External' || (!has(self.provider) && !has(self.placement) && !has(self.cloudInit) && !has(self.port))",message="mode External has no provider, placement, cloudInit or port: they describe a machine that the operator makes"
// +kubebuilder:validation:XValidation:rule="has(self.provider) == has(oldSelf.provider) && (!has(self.provider) || self.provider == oldSelf.provider)",message="provider is immutable: delete the Proxy and make another"
type ProxySpec struct {
	// Mode says who runs the proxy: Managed has the operator make a machine for it,
	// External is one that somebody else runs. It cannot be changed.
	// +kubebuilder:default=Managed
	// +optional
	Mode Mode `json:"mode,omitempty"`

	// Provider names an entry of the operator's providers file. It cannot be
	// changed.
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9][A-Za-z0-9_.-]*$`
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Provider string `json:"provider,omitempty"`

	// Placement says where the machine goes and what it is. A change replaces it.
	// +optional
	Placement *Placement `json:"placement,omitempty"`

	// Port is the TCP port of the proxy on its machine; 3128 if left out. A change
	// replaces the machine. A provider that chooses the port itself, such as local,
	// ignores it.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +optional
	Port int32 `json:"port,omitempty"`

	// CloudInit is what cloud-init gets on the machine's first boot. It must start a
	// proxy on Port. A change replaces the machine. If left out, the operator
	// installs Squid, with a password of its own for each machine.
	// +optional
	CloudInit *CloudInit `json:"cloudInit,omitempty"`

	// Endpoint is the proxy of mode External.
	// +optional
	Endpoint *Endpoint `json:"endpoint,omitempty"`

	// Attributes are for the selectors of leases, such as geo or purpose. The
	// operator adds "provider", "mode" and, where it is known, "zone". A change
	// keeps the machine.
	// +kubebuilder:validation:MaxProperties=32
	// +kubebuilder:validation:XValidation:rule="self.all(k, size(k) > 0 && size(k) <= 63 && size(self[k]) <= 256)",message="keys have 1 to 63 characters, values at most 256"
	// +optional
	Attributes map[string]string `json:"attributes,omitempty"`
}

// Placement says where a machine goes and what it is. What is left out is the
// provider's to choose.
type Placement struct {
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Region string `json:"region,omitempty"`
	// Zone is a zone of a cloud or the name of a hypervisor.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Zone string `json:"zone,omitempty"`
	// +kubebuilder:validation:MaxLength=256
	// +optional
	MachineType string `json:"machineType,omitempty"`
	// +kubebuilder:validation:MaxLength=256
	// +optional
	Image string `json:"image,omitempty"`
}

// CloudInit is user-data in any form that cloud-init takes.
//
// +kubebuilder:validation:XValidation:rule="has(self.inline) != has(self.secretRef)",message="cloudInit has either inline or secretRef"
type CloudInit struct {
	// Inline is the user-data itself. It is no place for passwords: everyone who may
	// read the Proxy reads it.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=262144
	// +optional
	Inline string `json:"inline,omitempty"`

	// SecretRef names a Secret of the same namespace with the user-data under the
	// key "user-data", and the proxy's credentials, if it asks for some, under
	// "username" and "password". It must have the label
	// crawl.example.com/cloud-init: "true". A change of its data replaces the
	// machine.
	// +optional
	SecretRef *SecretRef `json:"secretRef,omitempty"`
}

// SecretRef names a Secret of the Proxy's namespace.
type SecretRef struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// Endpoint is a proxy that somebody else runs.
type Endpoint struct {
	// URL is http://host:port, https://host:port or socks5://host:port. It has no
	// credentials in it: they belong into the Secret.
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="self.matches('^(http|https|socks5)://[^/@?#]+:[0-9]{1,5}/?$')",message="url is http://host:port, https://host:port or socks5://host:port, without credentials and path: credentials go into a Secret that secretRef names"
	URL string `json:"url"`

	// SecretRef names a Secret of the same namespace with the keys "username" and
	// "password". It must have the label crawl.example.com/cloud-init: "true", by
	// which the operator sees it.
	// +optional
	SecretRef *SecretRef `json:"secretRef,omitempty"`
}

// ProxyStatus is what is.
type ProxyStatus struct {
	// ObservedGeneration is that of the spec which the status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Phase sums the conditions up.
	// +optional
	Phase Phase `json:"phase,omitempty"`
	// Address is where the proxy listens, as host:port.
	// +optional
	Address string `json:"address,omitempty"`
	// EgressIP is the address that targets see, where the probe's target tells it.
	// +optional
	EgressIP string `json:"egressIP,omitempty"`
	// ProviderID says where the machine is, once that is known.
	// +optional
	ProviderID string `json:"providerID,omitempty"`
	// LastReason tells what the latest failure was about. It stays when things go
	// well again.
	// +optional
	LastReason string `json:"lastReason,omitempty"`
	// LastHandledReconcileAt is the latest value of the annotation
	// crawl.example.com/reconcile-requested-at that was followed.
	// +optional
	LastHandledReconcileAt string `json:"lastHandledReconcileAt,omitempty"`

	// Incarnation counts the machines of this Proxy, the present one included. It
	// never falls, so no two of them have the same UID.
	// +optional
	Incarnation int64 `json:"incarnation,omitempty"`
	// Machine is the record of the present machine. It is written before the machine
	// is asked for and removed after it is gone.
	// +optional
	Machine *Machine `json:"machine,omitempty"`
	// BackOff is there while failures are waited out.
	// +optional
	BackOff *BackOff `json:"backOff,omitempty"`
	// FailedFor is a hash of what was refused for good: spec, user-data and
	// providers file. Another one is tried.
	// +optional
	FailedFor string `json:"failedFor,omitempty"`

	// Conditions are Ready, Provisioned, ProviderReachable and Paused.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Machine is the record of one machine.
type Machine struct {
	// UID is the machine's identity at its provider.
	UID string `json:"uid"`
	// Provider and Placement say where it was asked for.
	Provider string `json:"provider"`
	// +optional
	Placement Placement `json:"placement,omitzero"`
	// Port is that of the proxy on it.
	// +optional
	Port int32 `json:"port,omitempty"`
	// SpecHash is that of what it was made from, with the version of the hash before
	// a colon.
	SpecHash string `json:"specHash"`
	// Accepted is whether a call of Create succeeded.
	// +optional
	Accepted bool `json:"accepted,omitempty"`
	// Since is when it was recorded, or began to run, or to be unhealthy: what its
	// timeouts count from.
	Since metav1.Time `json:"since"`
	// Served is whether it was healthy once.
	// +optional
	Served bool `json:"served,omitempty"`
	// Ending says why it is to be replaced, if it is.
	// +optional
	Ending *Ending `json:"ending,omitempty"`
}

// Ending says why, and since when, a machine is to be replaced.
type Ending struct {
	Reason string `json:"reason"`
	// +optional
	Message string      `json:"message,omitempty"`
	Since   metav1.Time `json:"since"`
}

// BackOff says how long a failure is waited out.
type BackOff struct {
	// Failures counts those in a row.
	Failures int32 `json:"failures"`
	// Reason is QuotaExceeded, BootTimeout or another one of a condition.
	Reason string `json:"reason"`
	// NextTry is when another machine, or the call, is tried.
	NextTry metav1.Time `json:"nextTry"`
	// Avoid are the zones that had no room, the latest last, at most eight.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	// +optional
	Avoid []string `json:"avoid,omitempty"`
}

// Proxy is one forward proxy that crawlers lease.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=px,categories=crawl
// +kubebuilder:printcolumn:name="Mode",type=string,JSONPath=`.spec.mode`
// +kubebuilder:printcolumn:name="Provider",type=string,JSONPath=`.spec.provider`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Address",type=string,JSONPath=`.status.address`
// +kubebuilder:printcolumn:name="Healthy",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Egress",type=string,JSONPath=`.status.egressIP`,priority=1
// +kubebuilder:printcolumn:name="ID",type=string,JSONPath=`.status.providerID`,priority=1
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.lastReason`,priority=1
type Proxy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec ProxySpec `json:"spec"`
	// +optional
	Status ProxyStatus `json:"status,omitempty,omitzero"`
}

// ProxyList is a list of proxies.
//
// +kubebuilder:object:root=true
type ProxyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Proxy `json:"items"`
}
