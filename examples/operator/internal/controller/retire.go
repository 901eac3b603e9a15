package controller

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/egressfleet/egress/examples/operator/api/v1alpha1"
	"github.com/egressfleet/egress/provider"
)

// finish is one step of a Proxy that is being deleted. It acts on the record alone:
// the spec may be edited meanwhile.
func (p *pass) finish(ctx context.Context) (time.Duration, error) {
	if !controllerutil.ContainsFinalizer(p.px, v1alpha1.Finalizer) {
		p.released = true // others hold it
		return 0, p.r.Serving.Remove(ctx, p.id)
	}
	st := &p.px.Status
	m := st.Machine
	switch {
	case p.px.Annotations[v1alpha1.AnnotationSkipCleanup] == "true" && m != nil:
		return p.release(ctx, v1alpha1.ReasonAbandoned, fmt.Sprintf("left behind as asked by %s: %s of provider %q",
			v1alpha1.AnnotationSkipCleanup, orUnknown(st.ProviderID, m.UID), m.Provider))
	case m == nil:
		return p.release(ctx, "", "")
	}
	if st.Phase != v1alpha1.PhaseTerminating {
		st.Phase = v1alpha1.PhaseTerminating
		p.ready(metav1.ConditionFalse, v1alpha1.ReasonDeleting, "it is being deleted")
	}
	prov, err := p.r.Providers.Get(m.Provider)
	if err != nil {
		err = fmt.Errorf("%w: put the provider back, or leave %s behind by the annotation %s: \"true\"",
			p.unknownProvider(err), orUnknown(st.ProviderID, m.UID), v1alpha1.AnnotationSkipCleanup)
		p.unreached(v1alpha1.ReasonProviderUnknown, err)
		p.stuck(v1alpha1.ReasonProviderUnknown, err.Error())
		return p.r.Timing.ReadyInterval, nil
	}
	gone, wait, err := p.retire(ctx, prov, p.px.DeletionTimestamp.Time)
	if !gone {
		return wait, err
	}
	return p.release(ctx, v1alpha1.ReasonDeleted, "deleted "+orUnknown(st.ProviderID, m.UID))
}

func orUnknown(id, uid string) string {
	if id == "" {
		return "the machine with UID " + uid
	}
	return id
}

// withoutLeases says that the lease store fails: who holds a lease is not known, so the
// machine stays.
func (p *pass) withoutLeases(err error) error {
	err = fmt.Errorf("the lease store: %w", err)
	if p.stuck(v1alpha1.ReasonLeasesUnknown, err.Error()) {
		p.warn(v1alpha1.ReasonLeasesUnknown, "Drain", err.Error())
	}
	return err
}

// release lets the object go.
func (p *pass) release(ctx context.Context, reason, note string) (time.Duration, error) {
	if err := p.r.Serving.Remove(ctx, p.id); err != nil && reason != v1alpha1.ReasonAbandoned {
		return 0, p.withoutLeases(err)
	}
	controllerutil.RemoveFinalizer(p.px, v1alpha1.Finalizer)
	if err := p.r.Client.Update(ctx, p.px); err != nil {
		// The next look decides again: nothing is noted for this one.
		p.px.Status, p.events = *p.stored.DeepCopy(), nil
		_, err = later(err)
		return staleWait, err
	}
	p.released = true
	switch reason {
	case "":
	case v1alpha1.ReasonAbandoned:
		p.warn(reason, "Delete", note)
	default:
		p.tell(reason, "Delete", note)
	}
	return 0, nil
}

// retire ends the recorded machine: it drains its leases, for DrainTimeout counted
// from since, and calls Delete until Get says that it is gone.
func (p *pass) retire(ctx context.Context, prov provider.Provider, since time.Time) (gone bool, wait time.Duration, err error) {
	held, err := p.r.Serving.Drain(ctx, p.id)
	if err != nil {
		return false, 0, p.withoutLeases(err)
	}
	if left := p.r.Timing.DrainTimeout - p.now().Sub(since); held > 0 && left > 0 {
		p.stuck(v1alpha1.ReasonDraining, "crawlers hold leases: they have until the drain timeout to give them back")
		return false, min(left, p.r.Timing.PollInterval), nil
	}
	if err := p.r.Serving.Remove(ctx, p.id); err != nil {
		return false, 0, p.withoutLeases(err)
	}
	if p.px.Status.ProviderID == "" && !p.find(ctx, prov) {
		return true, 0, ctx.Err()
	}
	return p.remove(ctx, prov)
}

// find looks for a machine whose ID was never written down, once. What a cut Create
// leaves and this does not see, the sweep of orphans takes.
func (p *pass) find(ctx context.Context, prov provider.Provider) bool {
	call, cancel := p.call(ctx)
	defer cancel()
	list, err := prov.ListByTag(call, p.r.Tag)
	for _, in := range list {
		if in.UID == p.px.Status.Machine.UID {
			p.px.Status.ProviderID = in.ID
			return true
		}
	}
	if err != nil {
		p.log.V(1).Info("a machine without an ID was not looked for everywhere: the sweep of orphans takes it", "uid", p.px.Status.Machine.UID, "error", err.Error())
	}
	return false
}

// remove calls Delete until Get says ErrNotFound.
func (p *pass) remove(ctx context.Context, prov provider.Provider) (gone bool, wait time.Duration, err error) {
	id, m := p.px.Status.ProviderID, p.px.Status.Machine
	call, cancel := p.call(ctx)
	defer cancel()
	in, getErr := prov.Get(call, id)
	switch {
	case ctx.Err() != nil:
		return false, 0, ctx.Err()
	case errors.Is(getErr, provider.ErrNotFound):
		return p.gone(call, prov)
	case getErr == nil && in.UID != m.UID:
		p.warn(v1alpha1.ReasonReleased, "Delete", fmt.Sprintf("%s has UID %q and not %q: it belongs to somebody else, and stays", id, in.UID, m.UID))
		return true, 0, nil
	case provider.HasCode(getErr, provider.CodeUnconfigured):
		return p.letGo(getErr), 0, nil
	case getErr != nil && !errors.Is(getErr, provider.ErrPermanent):
		return p.failedToDelete(getErr, nil)
	}
	delErr := prov.Delete(call, id)
	switch {
	case ctx.Err() != nil:
		return false, 0, ctx.Err()
	case provider.HasCode(delErr, provider.CodeUnconfigured):
		return p.letGo(delErr), 0, nil
	case delErr != nil:
		return p.failedToDelete(getErr, delErr)
	}
	p.reached()
	if getErr != nil { // Get is refused for good, so nobody can see it go
		p.warn(v1alpha1.ReasonReleased, "Delete", fmt.Sprintf("deletion of %s was accepted, and cannot be followed: %v", id, getErr))
		return true, 0, nil
	}
	p.stuck(v1alpha1.ReasonDeleting, id+" is being deleted")
	return false, p.r.Timing.PollInterval, nil
}

// gone follows ErrNotFound: it is gone, unless it is still on its way.
func (p *pass) gone(ctx context.Context, prov provider.Provider) (bool, time.Duration, error) {
	cause := p.whyAbsent(ctx, prov)
	if !provider.HasCode(cause, provider.CodeInFlight) {
		return true, 0, nil
	}
	p.stuck(v1alpha1.ReasonDeleting, "it is deleted once it is there: "+cause.Error())
	return false, p.r.Timing.PollInterval, nil
}

// letGo forgets a machine in a place that is not configured any more.
func (p *pass) letGo(err error) bool {
	p.warn(v1alpha1.ReasonReleased, "Delete", fmt.Sprintf("%s of provider %q is let go: what runs there is the administrator's now: %v",
		p.px.Status.ProviderID, p.px.Status.Machine.Provider, err))
	return true
}

// failedToDelete keeps the record, and says both errors.
func (p *pass) failedToDelete(getErr, delErr error) (bool, time.Duration, error) {
	err := errors.Join(getErr, delErr)
	p.unreached(v1alpha1.ReasonProviderFails, err)
	if p.stuck(v1alpha1.ReasonDeleteFailed, err.Error()) {
		p.warn(v1alpha1.ReasonDeleteFailed, "Delete", fmt.Sprintf("%s is tried again: %v", p.px.Status.ProviderID, err))
	}
	p.backOff(v1alpha1.ReasonDeleteFailed, p.r.Timing.RetryInterval, err)
	return false, max(p.waiting(), p.r.Timing.PollInterval), nil
}

// stuck says why the machine is not gone yet.
func (p *pass) stuck(reason, message string) bool {
	return p.condition(v1alpha1.ConditionProvisioned, metav1.ConditionFalse, reason, message)
}
