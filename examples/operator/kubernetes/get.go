package kubernetes

import (
	"context"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/egressfleet/egress/provider"
)

// Get implements [provider.Provider].
func (p *Provider) Get(ctx context.Context, id string) (provider.Instance, error) {
	name, err := p.parse(id)
	if err != nil {
		return provider.Instance{}, p.failure("Get", id, err)
	}
	pod, err := p.pod(ctx, name)
	if absent(err, resourcePods, name) {
		err = &provider.Error{Class: provider.ErrNotFound, Code: "NotFound", Err: err}
	}
	if err != nil {
		return provider.Instance{}, p.failure("Get", id, err)
	}
	in, err := instanceOf(pod)
	return in, p.failure("Get", id, err)
}

// instanceOf says in the contract's words what a pod is.
func instanceOf(pod *corev1.Pod) (provider.Instance, error) {
	r, err := recordOf(pod)
	if err != nil {
		return provider.Instance{}, err
	}
	in := provider.Instance{
		ID: ids.Format(pod.Namespace, pod.Name), Name: pod.Name, UID: r.UID, Tag: r.Tag,
		Addresses: addresses(pod), CreatedAt: pod.CreationTimestamp.Time, Metadata: r.Metadata,
	}
	in.State, in.Reason = stateOf(pod)
	return in, nil
}

// addresses are those of the cluster's network, the primary one first.
func addresses(pod *corev1.Pod) []provider.Address {
	var out []provider.Address
	for _, ip := range pod.Status.PodIPs {
		if addr, err := netip.ParseAddr(ip.IP); err == nil {
			out = append(out, provider.Address{Type: provider.AddressInternal, Addr: addr})
		}
	}
	return out
}

// pageSize is how many pods one answer of the API server holds.
const pageSize = 250

// ListByTag implements [provider.Provider]. It reads to the last page, and looks
// again at what the API server selected.
func (p *Provider) ListByTag(ctx context.Context, tag string) ([]provider.Instance, error) {
	if err := provider.ValidTag(tag); err != nil {
		return nil, p.failure("ListByTag", "", provider.Permanentf(provider.CodeInvalidRequest, "%w", err))
	}
	pods, err := p.pods(ctx, tag)
	if err != nil {
		return nil, p.failure("ListByTag", "", err)
	}
	var (
		all     []provider.Instance
		missing []provider.Missing
	)
	for _, pod := range pods {
		if r, err := marksOf(&pod); err != nil || r.Tag != tag {
			continue
		}
		in, err := instanceOf(&pod)
		if err != nil {
			id := ids.Format(pod.Namespace, pod.Name)
			missing = append(missing, provider.Missing{Scope: id, Err: p.failure("ListByTag", id, err)})
			continue
		}
		all = append(all, in)
	}
	if len(missing) > 0 {
		return all, &provider.PartialError{Missing: missing}
	}
	return all, nil
}

// pods reads all of a tag, page by page. A list that got too old on the way is read
// again in one piece.
func (p *Provider) pods(ctx context.Context, tag string) ([]corev1.Pod, error) {
	var all []corev1.Pod
	for next := ""; ; {
		page, err := p.page(ctx, tag, pageSize, next)
		if next != "" && apierrors.IsResourceExpired(err) {
			page, err = p.page(ctx, tag, 0, "")
			all = nil
		}
		if err != nil {
			return nil, err
		}
		all = append(all, page.Items...)
		if next = page.Continue; next == "" {
			return all, nil
		}
	}
}

func (p *Provider) page(ctx context.Context, tag string, limit int64, next string) (*corev1.PodList, error) {
	return ask(ctx, p, "list pods", "", func(ctx context.Context) (*corev1.PodList, error) {
		page := &corev1.PodList{}
		return page, p.cfg.Client.List(ctx, page, client.InNamespace(p.cfg.Namespace),
			client.MatchingLabels{LabelManaged: managed, LabelTag: tag}, client.Limit(limit), client.Continue(next))
	})
}
