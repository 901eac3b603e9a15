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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of the kinds here.
var GroupVersion = schema.GroupVersion{Group: "crawl.example.com", Version: "v1alpha1"}

// AddToScheme adds the kinds to a scheme.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, &Proxy{}, &ProxyList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
