package kubernetes

import (
	"context"
	"fmt"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/egressfleet/egress/provider"
)

// The checks of Diagnose.
const (
	checkPermissions = "permissions"
	checkCreate      = "create"
)

// needs are the verbs of the contract's methods, by resource.
var needs = []struct {
	resource string
	verbs    []string
}{
	{resourcePods, []string{"create", "get", "list", "delete"}},
	{resourceSecrets, []string{"create", "get", "delete"}},
}

// Diagnose implements [provider.Doctor]. It asks the API server which verbs are
// allowed, and then to try the creation of a pod without doing it: so namespace,
// quota, Pod Security and webhooks have their say.
func (p *Provider) Diagnose(ctx context.Context) ([]provider.Finding, error) {
	permissions := p.checkPermissions(ctx)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	findings := []provider.Finding{p.finding(checkPermissions, permissions), p.checkCreate(ctx, permissions.Status)}
	return findings, ctx.Err()
}

// finding completes what a check found.
func (p *Provider) finding(check string, f provider.Finding) provider.Finding {
	f.Scope, f.Check = p.cfg.Namespace, check
	return f
}

func (p *Provider) checkPermissions(ctx context.Context) provider.Finding {
	var allowed, denied []string
	for _, need := range needs {
		for _, verb := range need.verbs {
			ok, err := p.may(ctx, verb, need.resource)
			if err != nil {
				return failed(err, "is the API server up, and do the credentials of the client work?")
			}
			if ok {
				allowed = append(allowed, verb+" "+need.resource)
			} else {
				denied = append(denied, verb+" "+need.resource)
			}
		}
	}
	if len(denied) > 0 {
		return provider.Finding{
			Status: provider.FindingFailure, Evidence: "not allowed: " + strings.Join(denied, ", "),
			Remedy: "bind the Role of role.yaml to this program's service account in namespace " + p.cfg.Namespace,
		}
	}
	return provider.Finding{Status: provider.FindingOK, Evidence: strings.Join(allowed, ", ")}
}

// may asks whether the client may do that.
func (p *Provider) may(ctx context.Context, verb, resource string) (bool, error) {
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: p.cfg.Namespace, Verb: verb, Resource: resource},
	}}
	answered, err := create(ctx, p, "review access", review)
	if err != nil {
		return false, err
	}
	return answered.Status.Allowed, nil
}

func (p *Provider) checkCreate(ctx context.Context, permissions provider.FindingStatus) provider.Finding {
	if permissions != provider.FindingOK {
		return p.finding(checkCreate, provider.Finding{Status: provider.FindingSkipped, Evidence: "the permissions come first"})
	}
	return p.finding(checkCreate, p.tryCreate(ctx))
}

// tryCreate has the API server check a pod that is not made.
func (p *Provider) tryCreate(ctx context.Context) provider.Finding {
	pod, err := p.cfg.podFor(provider.CreateRequest{
		UID: "diagnose", Tag: "diagnose", Placement: provider.Placement{Image: or(p.cfg.Image, "squid")},
	})
	if err == nil {
		pod.Name, pod.GenerateName = "", "proxy-diagnose-"
		_, err = create(ctx, p, "try to create pod", pod, client.DryRunAll)
	}
	if err != nil {
		return failed(err, remedyFor(err, p.cfg.Namespace))
	}
	return provider.Finding{Status: provider.FindingOK, Evidence: "the API server would take " + describe(pod)}
}

func describe(pod *corev1.Pod) string {
	return fmt.Sprintf("a pod with the image %s", pod.Spec.Containers[0].Image)
}

// remedyFor is what mends the refusal of a pod.
func remedyFor(err error, namespace string) string {
	s, _ := statusOf(err)
	switch {
	case s.Reason == metav1.StatusReasonNotFound:
		return "kubectl create namespace " + namespace
	case classify(err).Class == provider.ErrQuotaExceeded: //nolint:errorlint // a sentinel itself.
		return "kubectl describe resourcequota -n " + namespace + "; raise it, or delete what is not needed"
	}
	return "change the configuration, or the policy that refuses it"
}

func failed(err error, remedy string) provider.Finding {
	return provider.Finding{Status: provider.FindingFailure, Evidence: err.Error(), Remedy: remedy}
}
