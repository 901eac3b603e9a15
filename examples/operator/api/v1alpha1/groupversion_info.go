// Package v1alpha1 holds the API of the operator: the kind Proxy of the group
// crawl.example.com.
//
// A Proxy is one forward proxy that crawlers lease. In mode Managed the operator
// makes a machine for it on a provider and replaces it as it dies or changes; in
// mode External it is one that somebody else runs.
//
// +kubebuilder:object:generate=true
// +groupName=crawl.example.com
package v1alpha1

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/scheme"
)

var (
	// GroupVersion is the group and version of the kinds here.
	GroupVersion = schema.GroupVersion{Group: "crawl.example.com", Version: "v1alpha1"}
	// SchemeBuilder collects the kinds.
	SchemeBuilder = &scheme.Builder{GroupVersion: GroupVersion}
	// AddToScheme adds the kinds to a scheme.
	AddToScheme = SchemeBuilder.AddToScheme
)
