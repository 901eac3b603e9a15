package kubernetes

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/egressfleet/egress/provider"
)

const (
	resourcePods    = "pods"
	resourceSecrets = "secrets"
)

// Create implements [provider.Provider]. The pod comes first, because it carries
// the marks; it waits for its Secret.
func (p *Provider) Create(ctx context.Context, req provider.CreateRequest) (string, error) {
	if err := req.Validate(); err != nil {
		return "", p.failure("Create", "", provider.Permanentf(provider.CodeInvalidRequest, "%w", err))
	}
	id := ids.Format(p.cfg.Namespace, provider.Name(req.UID))
	pod, err := p.cfg.podFor(req)
	if err != nil {
		return id, p.failure("Create", id, err)
	}
	files, err := p.cfg.files(req.UID, req.UserData)
	if err != nil {
		return id, p.failure("Create", id, provider.Permanentf(provider.CodeInvalidRequest, "squid.conf: %w", err))
	}
	return id, p.failure("Create", id, p.make(ctx, pod, files))
}

// make makes what is missing of an instance.
func (p *Provider) make(ctx context.Context, want *corev1.Pod, files map[string][]byte) error {
	r, err := recordOf(want)
	if err != nil {
		return err
	}
	pod, err := p.claim(ctx, want, r)
	if err != nil {
		return err
	}
	err = p.fill(ctx, pod, r, files)
	if err != nil && final(err) && pod.Status.Phase == corev1.PodPending {
		p.undo(ctx, pod)
	}
	return err
}

// claim returns the request's pod: the one that is there, or a new one.
//
// It looks first. An API server counts a pod against the quota before it sees
// that the name is taken, and the count stays too high until the quota's
// controller looks again.
func (p *Provider) claim(ctx context.Context, want *corev1.Pod, r record) (*corev1.Pod, error) {
	pod, err := p.pod(ctx, want.Name)
	if absent(err, resourcePods, want.Name) {
		pod, err = create(ctx, p, "create pod", want)
		if apierrors.IsAlreadyExists(err) { // another caller was faster
			pod, err = p.pod(ctx, want.Name)
		}
	}
	if absent(err, resourcePods, want.Name) {
		return nil, busy("the pod was deleted at this moment")
	}
	if err != nil {
		return nil, err
	}
	return pod, r.same(pod)
}

// fill makes the pod's Secret, unless it is there.
func (p *Provider) fill(ctx context.Context, pod *corev1.Pod, r record, files map[string][]byte) error {
	have, err := p.secret(ctx, pod.Name)
	switch {
	case absent(err, resourceSecrets, pod.Name):
	case err != nil:
		return err
	case owned(have, pod):
		return nil
	default:
		if err := p.clear(ctx, pod, have); err != nil {
			return err
		}
	}
	_, err = create(ctx, p, "create secret", p.cfg.secretFor(pod, r, files))
	if apierrors.IsAlreadyExists(err) {
		return busy("another caller makes the Secret at this moment")
	}
	username, password := p.cfg.credentials(r.UID)
	return withheld(err, files, username, password)
}

// clear deletes a Secret that an earlier pod of the same instance left. While this
// pod is there, an owner of another UID is not.
func (p *Provider) clear(ctx context.Context, pod *corev1.Pod, stale *corev1.Secret) error {
	if r, err := marksOf(stale); err != nil || r.UID != pod.Annotations[AnnotationUID] {
		return provider.Permanentf(provider.CodeCollision, "the Secret %s is somebody else's", stale.Name)
	}
	now, err := p.pod(ctx, pod.Name)
	if absent(err, resourcePods, pod.Name) || err == nil && now.UID != pod.UID {
		return busy("the pod was deleted at this moment")
	}
	if err != nil {
		return err
	}
	err = p.remove(ctx, "delete secret", stale)
	if absent(err, resourceSecrets, stale.Name) {
		return nil
	}
	return err
}

// undo deletes a pod that will get no Secret.
func (p *Provider) undo(ctx context.Context, pod *corev1.Pod) {
	err := p.remove(ctx, "delete pod", pod)
	if err != nil && !absent(err, resourcePods, pod.Name) {
		p.logger(ctx).Error(err, "a pod without its Secret is left behind", "name", pod.Name)
	}
}
