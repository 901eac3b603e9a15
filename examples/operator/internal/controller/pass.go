package controller

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/egressfleet/egress/examples/operator/api/v1alpha1"
	"github.com/egressfleet/egress/examples/operator/internal/serving"
	"github.com/egressfleet/egress/provider"
)

// pass is one look at one Proxy. Its steps change px.Status in memory and note
// events; store writes both.
type pass struct {
	r        *Reconciler
	log      logr.Logger
	px       *v1alpha1.Proxy
	id       string               // the endpoint's
	url      uint64               // a hash of its URL, in mode External
	stored   v1alpha1.ProxyStatus // what the API server has
	events   []eventNote          // for after the next write
	released bool                 // the finalizer is gone
}

type eventNote struct{ kind, reason, action, note string }

func (r *Reconciler) begin(ctx context.Context, px *v1alpha1.Proxy) *pass {
	p := &pass{
		r: r, log: ctrl.LoggerFrom(ctx), px: px,
		id: serving.ID(client.ObjectKeyFromObject(px)), stored: *px.Status.DeepCopy(),
	}
	st := &px.Status
	if st.ObservedGeneration != px.Generation {
		st.BackOff = nil // what failed was something else
	}
	st.ObservedGeneration = px.Generation
	if at := px.Annotations[v1alpha1.AnnotationReconcile]; at != st.LastHandledReconcileAt {
		st.LastHandledReconcileAt, st.BackOff, st.FailedFor = at, nil, ""
		r.Serving.ProbeNow(p.id)
	}
	if p.paused() {
		p.condition(v1alpha1.ConditionPaused, metav1.ConditionTrue, v1alpha1.ReasonPaused,
			"nothing is made or replaced while the annotation "+v1alpha1.AnnotationPaused+" is \"true\"")
	} else {
		meta.RemoveStatusCondition(&st.Conditions, v1alpha1.ConditionPaused)
	}
	return p
}

// step goes one step. It returns how long to wait for the next one; zero is not at
// all.
func (p *pass) step(ctx context.Context) (time.Duration, error) {
	switch {
	case !p.px.DeletionTimestamp.IsZero():
		return p.finish(ctx)
	case p.px.Spec.Mode == v1alpha1.External:
		return p.external(ctx)
	}
	return p.managed(ctx)
}

// store writes the status if it changed, and then sends the events.
func (p *pass) store(ctx context.Context) error {
	if !p.released && !equality.Semantic.DeepEqual(p.stored, p.px.Status) {
		wanted := *p.px.Status.DeepCopy()
		if err := p.r.Client.Status().Update(ctx, p.px); err != nil {
			return err
		}
		p.px.Status, p.stored = wanted, *wanted.DeepCopy()
	}
	for _, e := range p.events {
		p.r.Events.Eventf(p.px, nil, e.kind, e.reason, e.action, "%s", e.note)
		p.log.Info(e.note, "reason", e.reason)
	}
	p.events = nil
	return nil
}

// fresh tells whether the object is as the API server has it: whatever a stale
// cache shows, nothing is made for an object that has changed or is gone.
func (p *pass) fresh(ctx context.Context) (bool, error) {
	live := &v1alpha1.Proxy{}
	if err := p.r.Live.Get(ctx, client.ObjectKeyFromObject(p.px), live); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	return live.UID == p.px.UID && live.ResourceVersion == p.px.ResourceVersion, nil
}

func (p *pass) paused() bool { return p.px.Annotations[v1alpha1.AnnotationPaused] == "true" }

func (p *pass) now() time.Time { return p.r.now() }

// stamp is the time as the API keeps it.
func (p *pass) stamp() metav1.Time { return metav1.NewTime(p.now().Truncate(time.Second)) }

// condition sets a condition and tells whether its status or reason is another one
// than that which is stored.
func (p *pass) condition(kind string, status metav1.ConditionStatus, reason, message string) bool {
	before := meta.FindStatusCondition(p.stored.Conditions, kind)
	changed := before == nil || before.Status != status || before.Reason != reason
	meta.SetStatusCondition(&p.px.Status.Conditions, metav1.Condition{
		Type: kind, Status: status, Reason: reason, Message: clip(message, 1024),
		ObservedGeneration: p.px.Generation, LastTransitionTime: p.stamp(),
	})
	return changed
}

// since is when a condition got its status; zero where there is none.
func (p *pass) since(kind string, status metav1.ConditionStatus) time.Time {
	c := meta.FindStatusCondition(p.px.Status.Conditions, kind)
	if c == nil || c.Status != status {
		return time.Time{}
	}
	return c.LastTransitionTime.Time
}

// pending says why there is no machine, or none that runs.
func (p *pass) pending(phase v1alpha1.Phase, reason, message string) bool {
	p.px.Status.Phase = phase
	p.ready(metav1.ConditionFalse, reason, message)
	return p.condition(v1alpha1.ConditionProvisioned, metav1.ConditionFalse, reason, message)
}

// ready says whether the proxy is, and why.
func (p *pass) ready(status metav1.ConditionStatus, reason, message string) bool {
	return p.condition(v1alpha1.ConditionReady, status, reason, message)
}

// reached says that the provider answered.
func (p *pass) reached() {
	p.condition(v1alpha1.ConditionProviderReachable, metav1.ConditionTrue, v1alpha1.ReasonProviderAnswers, "")
}

// unreached says that it did not. The message is that of the first failure in a
// row: the later ones differ in ports and times, and would have the status written
// for nothing.
func (p *pass) unreached(reason string, err error) {
	c := meta.FindStatusCondition(p.px.Status.Conditions, v1alpha1.ConditionProviderReachable)
	if c != nil && c.Status == metav1.ConditionFalse && c.Reason == reason {
		return
	}
	p.px.Status.LastReason = clip(err.Error(), 1024)
	p.condition(v1alpha1.ConditionProviderReachable, metav1.ConditionFalse, reason, err.Error())
	p.warn(reason, "Ask", err.Error())
}

func (p *pass) warn(reason, action, note string) {
	p.events = append(p.events, eventNote{corev1.EventTypeWarning, reason, action, clip(note, 1000)})
}

func (p *pass) tell(reason, action, note string) {
	p.events = append(p.events, eventNote{corev1.EventTypeNormal, reason, action, clip(note, 1000)})
}

// backOff notes a failure, and until when it is waited out.
func (p *pass) backOff(reason string, first time.Duration, err error) {
	st := &p.px.Status
	if st.BackOff == nil {
		st.BackOff = &v1alpha1.BackOff{}
	}
	b := st.BackOff
	if b.Reason != reason {
		b.Failures = 0
	}
	b.Failures++
	b.Reason = reason
	wait := min(first<<min(b.Failures-1, 16), p.r.Timing.MaxInterval)
	if e, ok := errors.AsType[*provider.Error](err); ok {
		wait = max(wait, e.RetryAfter)
	}
	b.NextTry = metav1.NewTime(p.now().Add(wait).Add(time.Second - 1).Truncate(time.Second))
	st.LastReason = clip(err.Error(), 1024)
}

// waiting is how long the back-off lasts; zero if it does not.
func (p *pass) waiting() time.Duration {
	if b := p.px.Status.BackOff; b != nil {
		return max(0, b.NextTry.Sub(p.now()))
	}
	return 0
}

// forget removes the record of the machine.
func (p *pass) forget() {
	p.px.Status.Machine, p.px.Status.ProviderID, p.px.Status.Address, p.px.Status.EgressIP = nil, "", "", ""
}

// call bounds a call to a provider.
func (p *pass) call(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, p.r.Timing.CallTimeout)
}

// unknownProvider says what a user does about a provider that is not there.
func (p *pass) unknownProvider(err error) error {
	return fmt.Errorf("%w; the providers file has %q", err, p.r.Providers.Names())
}
