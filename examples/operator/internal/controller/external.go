package controller

import (
	"context"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/examples/operator/api/v1alpha1"
)

// external has a proxy that somebody else runs probed and leased.
func (p *pass) external(ctx context.Context) (time.Duration, error) {
	st := &p.px.Status
	ep, err := p.externalEndpoint(ctx)
	if err != nil {
		st.Phase, st.LastReason = v1alpha1.PhasePending, clip(err.Error(), 1024)
		if p.ready(metav1.ConditionFalse, v1alpha1.ReasonCredentialsError, err.Error()) {
			p.warn(v1alpha1.ReasonCredentialsError, "ReadSecret", err.Error())
		}
		_, err = p.dropEndpoint(ctx)
		return p.r.Timing.ReadyInterval, err
	}
	if st.Address != ep.URL.Host() {
		st.Address, st.EgressIP = ep.URL.Host(), ""
		meta.RemoveStatusCondition(&st.Conditions, v1alpha1.ConditionReady)
	}
	if err := p.r.Serving.Put(ctx, ep); err != nil {
		return 0, fmt.Errorf("the lease store: %w", err)
	}
	p.judge()
	return p.r.Timing.ReadyInterval, nil
}

func (p *pass) externalEndpoint(ctx context.Context) (endpoint.Endpoint, error) {
	spec := p.px.Spec.Endpoint
	username, password := "", ""
	if spec.SecretRef != nil {
		secret, err := p.secret(ctx, spec.SecretRef.Name)
		if err != nil {
			return endpoint.Endpoint{}, err
		}
		username, password = string(secret.Data[keyUsername]), string(secret.Data[keyPassword])
		if username == "" {
			return endpoint.Endpoint{}, fmt.Errorf("secret %q has nothing under the key %q: put the proxy's user name there", secret.Name, keyUsername)
		}
	}
	scheme, hostport, _ := strings.Cut(strings.TrimSuffix(spec.URL, "/"), "://")
	url, err := endpoint.NewURL(scheme, hostport, username, password)
	if err != nil {
		return endpoint.Endpoint{}, err
	}
	p.url = hash64(p.r.Key, url)
	return endpoint.Endpoint{
		ID: p.id, URL: url, Generation: p.generation(), Attributes: p.attributes(nil),
	}, nil
}
