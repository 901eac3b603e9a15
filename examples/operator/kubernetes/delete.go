package kubernetes

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/egressfleet/egress/provider"
)

// Delete implements [provider.Provider]. It looks first, so as to touch nothing
// that is not ours. The pod goes last, because it carries the marks.
func (p *Provider) Delete(ctx context.Context, id string) error {
	name, err := p.parse(id)
	if err != nil {
		return p.failure("Delete", id, err)
	}
	return p.failure("Delete", id, p.delete(ctx, name))
}

func (p *Provider) delete(ctx context.Context, name string) error {
	pod, err := p.pod(ctx, name)
	if absent(err, resourcePods, name) {
		return p.deleteSecret(ctx, name)
	}
	if err != nil {
		return err
	}
	if _, err := marksOf(pod); err != nil {
		return provider.Permanentf(provider.CodeCollision, "the pod %s is somebody else's: %w", name, err)
	}
	if err := p.deleteSecret(ctx, name); err != nil {
		return err
	}
	if pod.DeletionTimestamp != nil {
		return nil
	}
	err = p.remove(ctx, "delete pod", pod)
	if absent(err, resourcePods, name) {
		return nil
	}
	return err
}

// deleteSecret deletes the instance's Secret, if it has one. What somebody else
// made under that name stays.
func (p *Provider) deleteSecret(ctx context.Context, name string) error {
	secret, err := p.secret(ctx, name)
	if absent(err, resourceSecrets, name) {
		return nil
	}
	if err != nil {
		return err
	}
	if _, err := marksOf(secret); err != nil {
		return nil //nolint:nilerr // it is not ours.
	}
	err = p.remove(ctx, "delete secret", secret)
	if absent(err, resourceSecrets, name) || apierrors.IsConflict(err) { // another one took its place
		return nil
	}
	return err
}
