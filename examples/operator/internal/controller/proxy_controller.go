package controller

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/egressfleet/egress/cloudinit"
	"github.com/egressfleet/egress/examples/operator/api/v1alpha1"
	"github.com/egressfleet/egress/examples/operator/internal/serving"
	"github.com/egressfleet/egress/provider"
)

// Providers are the named ones of the providers file.
type Providers interface {
	// Get returns the named provider, or the error that keeps it from being there.
	Get(name string) (provider.Provider, error)
	// Names are those of all entries.
	Names() []string
	// Hash changes with the file, and with the keys that belong to it.
	Hash() string
}

// Timing says how long things are waited for. Zero values are the defaults.
type Timing struct {
	// PollInterval is the time between two looks at a machine that is being made or
	// deleted; 5 s if zero.
	PollInterval time.Duration
	// ReadyInterval is that of one which serves; 30 s if zero.
	ReadyInterval time.Duration
	// CallTimeout bounds a call to a provider; 1 min if zero. CreateTimeout is that
	// of Create, which is resumed; 5 min if zero.
	CallTimeout, CreateTimeout time.Duration
	// BootTimeout is how long a machine may take to run, and then again to be
	// healthy; provider.BootTimeout if zero.
	BootTimeout time.Duration
	// UnhealthyTimeout is how long a proxy that was healthy may be unhealthy before
	// it is replaced; 2 min if zero.
	UnhealthyTimeout time.Duration
	// DrainTimeout is how long leases may hold up a deletion; 1 min if zero.
	DrainTimeout time.Duration
	// RetryInterval is the wait after a first failure that may heal by itself; 5 s if
	// zero. QuotaInterval is that after one for want of room; 1 min if zero. Both
	// double with each further failure, up to MaxInterval, 30 min if zero.
	RetryInterval, QuotaInterval, MaxInterval time.Duration
}

func (t Timing) withDefaults() Timing {
	for _, d := range []struct {
		of *time.Duration
		is time.Duration
	}{
		{&t.PollInterval, 5 * time.Second},
		{&t.ReadyInterval, 30 * time.Second},
		{&t.CallTimeout, time.Minute},
		{&t.CreateTimeout, 5 * time.Minute},
		{&t.BootTimeout, provider.BootTimeout},
		{&t.UnhealthyTimeout, 2 * time.Minute},
		{&t.DrainTimeout, time.Minute},
		{&t.RetryInterval, 5 * time.Second},
		{&t.QuotaInterval, time.Minute},
		{&t.MaxInterval, 30 * time.Minute},
	} {
		if *d.of == 0 {
			*d.of = d.is
		}
	}
	return t
}

// Trace is a set of optional functions that are told what the controller does.
type Trace struct {
	// Reconcile is called at the start of a pass, and what it returns at its end. The
	// context that it returns is used for what the pass does.
	Reconcile func(context.Context, types.NamespacedName) (context.Context, func(error))
}

func (t *Trace) start(ctx context.Context, name types.NamespacedName) (context.Context, func(error)) {
	if t == nil || t.Reconcile == nil {
		return ctx, func(error) {}
	}
	return t.Reconcile(ctx, name)
}

// Reconciler keeps Proxies. Set its fields, then call SetupWithManager.
type Reconciler struct {
	// Client reads from the cache.
	Client client.Client
	// Live reads from the API server itself.
	Live client.Reader
	// Events is told what a person must know.
	Events events.EventRecorder
	// Providers make the machines.
	Providers Providers
	// Serving probes the proxies and has them leased.
	Serving *serving.Serving
	// Tag marks the machines. No other installation may use it on the same
	// providers.
	Tag string
	// Key is what proxy passwords are derived from.
	Key []byte
	// Squid is the proxy of a Proxy without cloud-init; its port, users and salt are
	// set for each machine.
	Squid cloudinit.Squid
	// Timing says how long things are waited for.
	Timing Timing
	// MaxConcurrent is how many Proxies are worked on at a time; 8 if zero.
	MaxConcurrent int
	// Trace, if set, is told of every pass.
	Trace *Trace
	// Leads, if set, tells whether this process is sure to lead. While it is not,
	// nothing is done.
	Leads func() bool

	now     func() time.Time
	granted grants
}

// secretIndex finds the Proxies that refer to a Secret.
const secretIndex = "spec.secretRefs"

// SetupWithManager adds the controller to the manager.
func (r *Reconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager) error {
	r.Timing = r.Timing.withDefaults()
	if r.now == nil {
		r.now = time.Now
	}
	if r.MaxConcurrent == 0 {
		r.MaxConcurrent = 8
	}
	err := mgr.GetFieldIndexer().IndexField(ctx, &v1alpha1.Proxy{}, secretIndex, func(o client.Object) []string {
		return secretsOf(o.(*v1alpha1.Proxy))
	})
	if err != nil {
		return err
	}
	skipName := true // tests run several in one process
	return ctrl.NewControllerManagedBy(mgr).
		Named("proxy").
		// Annotations leave the generation alone, and pause and skip-cleanup are
		// annotations. The status raises neither: what is written here wakes nobody.
		For(&v1alpha1.Proxy{}, builder.WithPredicates(predicate.Or(
			predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{}))).
		Watches(&corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(r.proxiesOfSecret)).
		WatchesRawSource(source.Channel(r.Serving.Changes(), &handler.EnqueueRequestForObject{})).
		WithOptions(controller.Options{MaxConcurrentReconciles: r.MaxConcurrent, SkipNameValidation: &skipName}).
		Complete(r)
}

func secretsOf(px *v1alpha1.Proxy) (names []string) {
	if ci := px.Spec.CloudInit; ci != nil && ci.SecretRef != nil {
		names = append(names, ci.SecretRef.Name)
	}
	if ep := px.Spec.Endpoint; ep != nil && ep.SecretRef != nil {
		names = append(names, ep.SecretRef.Name)
	}
	return names
}

func (r *Reconciler) proxiesOfSecret(ctx context.Context, secret client.Object) (requests []reconcile.Request) {
	var list v1alpha1.ProxyList
	if err := r.Client.List(ctx, &list, client.InNamespace(secret.GetNamespace()), client.MatchingFields{secretIndex: secret.GetName()}); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "the Proxies of a Secret are not known: they see its change at their next look", "secret", secret.GetName())
	}
	for i := range list.Items {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
	}
	return requests
}

// The rights of the operator, in the namespace of its pod. Updates of Proxies are for
// the finalizer.
//
// +kubebuilder:rbac:groups=crawl.example.com,namespace=egress-system,resources=proxies,verbs=get;list;watch;update
// +kubebuilder:rbac:groups=crawl.example.com,namespace=egress-system,resources=proxies/status,verbs=update
// +kubebuilder:rbac:groups="",namespace=egress-system,resources=secrets,verbs=get;list;watch
// +kubebuilder:rbac:groups="",namespace=egress-system,resources=pods,verbs=list;patch
// +kubebuilder:rbac:groups=events.k8s.io,namespace=egress-system,resources=events,verbs=create;patch
// +kubebuilder:rbac:groups=coordination.k8s.io,namespace=egress-system,resources=leases,verbs=create
// +kubebuilder:rbac:groups=coordination.k8s.io,namespace=egress-system,resources=leases,resourceNames=egress-operator,verbs=get;update

// Reconcile takes one Proxy as far as it goes at once.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (result ctrl.Result, err error) {
	if r.Leads != nil && !r.Leads() {
		return ctrl.Result{RequeueAfter: doubtWait}, nil
	}
	ctx, end := r.Trace.start(ctx, req.NamespacedName)
	defer func() { end(err) }()

	px := &v1alpha1.Proxy{}
	if err := r.Client.Get(ctx, req.NamespacedName, px); err != nil {
		if apierrors.IsNotFound(err) {
			return ctrl.Result{}, r.Serving.Remove(ctx, serving.ID(req.NamespacedName))
		}
		return ctrl.Result{}, err
	}
	// The finalizer is there before anything is made.
	if px.DeletionTimestamp.IsZero() && controllerutil.AddFinalizer(px, v1alpha1.Finalizer) {
		if err := r.Client.Update(ctx, px); err != nil {
			return later(err)
		}
	}
	return r.pass(ctx, px)
}

// maxSteps bounds the steps of a pass. None needs more than a handful: a pass that
// takes as many goes in a circle, and goes on later.
const maxSteps = 12

func (r *Reconciler) pass(ctx context.Context, px *v1alpha1.Proxy) (ctrl.Result, error) {
	p := r.begin(ctx, px)
	for range maxSteps {
		wait, err := p.step(ctx)
		if stored := p.store(ctx); stored != nil {
			return later(stored)
		}
		switch {
		case err != nil:
			return ctrl.Result{}, err
		case p.released:
			return ctrl.Result{}, nil
		case wait > 0:
			return ctrl.Result{RequeueAfter: wait}, nil
		}
	}
	return ctrl.Result{RequeueAfter: r.Timing.PollInterval}, nil
}

// doubtWait is the time after which it is known who leads.
const doubtWait = 2 * time.Second

// staleWait is the time after which the cache is likely to have what was written.
const staleWait = 200 * time.Millisecond

// later turns a conflict, which only says that the cache is behind, into a look a
// little later, and an object that is gone into nothing.
func later(err error) (ctrl.Result, error) {
	switch {
	case apierrors.IsConflict(err):
		return ctrl.Result{RequeueAfter: staleWait}, nil
	case apierrors.IsNotFound(err):
		return ctrl.Result{}, nil
	}
	return ctrl.Result{}, err
}
