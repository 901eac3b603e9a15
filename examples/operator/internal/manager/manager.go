// Package manager wires the operator: it opens what the options name, and runs the
// controller, the sweep of orphans and the discovery API under one manager, until it
// is told to stop.
package manager

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/trace"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	ctrlmanager "sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/egressfleet/egress/cloudinit"
	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/examples/operator/api/v1alpha1"
	"github.com/egressfleet/egress/examples/operator/internal/controller"
	"github.com/egressfleet/egress/examples/operator/internal/discovery"
	"github.com/egressfleet/egress/examples/operator/internal/providers"
	"github.com/egressfleet/egress/examples/operator/internal/serving"
	"github.com/egressfleet/egress/examples/operator/internal/tracing"
	"github.com/egressfleet/egress/health"
	"github.com/egressfleet/egress/health/healthmetrics"
	"github.com/egressfleet/egress/lease"
	"github.com/egressfleet/egress/lease/leasehttp"
	"github.com/egressfleet/egress/lease/leasemetrics"
	"github.com/egressfleet/egress/lease/redislease"
)

// ElectionID names the Lease by which replicas agree on a leader.
const ElectionID = "egress-operator"

// ManagerLabels are those of the operator's pods.
var ManagerLabels = map[string]string{"app.kubernetes.io/name": "egress-operator"}

// watchInterval is the time between two looks at the providers file.
const watchInterval = 10 * time.Second

// Hooks are for tests and tracing. All are optional.
type Hooks struct {
	// Tracer gets spans.
	Tracer trace.Tracer
	// Metrics is where metrics of the library go.
	Metrics prometheus.Registerer
	// Discovery is told where the discovery API listens.
	Discovery func(net.Addr)
	// Elected is told that this one leads.
	Elected func()
}

// Scheme has the kinds that the operator reads and writes.
func Scheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			panic(err) // kinds of this program
		}
	}
	return scheme
}

// RESTConfig says how to reach the cluster: by the file, or as kubectl would.
func RESTConfig(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		return ctrl.GetConfig()
	}
	return clientcmd.BuildConfigFromFlags("", kubeconfig)
}

// Run works until ctx ends. It returns providers.ErrChanged when there is another
// providers file: start again, to read it.
func Run(ctx context.Context, cfg *rest.Config, o Options, hooks Hooks, log logr.Logger) error {
	if err := o.Validate(); err != nil {
		return err
	}
	s, err := open(cfg, o, hooks, log)
	if err != nil {
		return err
	}
	defer s.close()
	if err := s.build(ctx); err != nil {
		return err
	}
	return s.mgr.Start(ctx)
}

// system is everything that is opened, in the order in which it is.
type system struct {
	o      Options
	hooks  Hooks
	log    logr.Logger
	mgr    ctrl.Manager
	term   *term         // nil without an election
	live   client.Client // uncached
	key    []byte
	store  leaseStore
	provs  *providers.Providers
	serve  *serving.Serving
	lease  *leasehttp.Handler
	closes []func()
}

// leaseStore is where the leases are: in this process, or on Redis.
type leaseStore interface {
	lease.Store
	lease.Inventory
	Close()
}

func (s *system) close() {
	for i := len(s.closes) - 1; i >= 0; i-- {
		s.closes[i]()
	}
}

func open(cfg *rest.Config, o Options, hooks Hooks, log logr.Logger) (_ *system, err error) {
	s := &system{o: o, hooks: hooks, log: log}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	for _, step := range []func() error{
		s.readKey,
		func() error { return s.newManager(cfg) },
		s.openProviders,
		s.openStore,
		s.openServing,
		s.openDiscovery,
	} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *system) readKey() (err error) {
	if s.key, err = os.ReadFile(s.o.ProxyKeyFile); err != nil {
		return fmt.Errorf("--proxy-key-file: %w", err)
	}
	return nil
}

func (s *system) newManager(cfg *rest.Config) (err error) {
	namespaces := map[string]cache.Config{}
	for _, ns := range s.o.namespaces() {
		namespaces[ns] = cache.Config{}
	}
	scheme := Scheme()
	lock, err := s.newTerm(cfg)
	if err != nil {
		return err
	}
	lease, deadline, retry := leaseDuration, renewDeadline, retryPeriod
	s.mgr, err = ctrl.NewManager(cfg, ctrl.Options{
		Scheme: scheme,
		Logger: s.log,
		Cache: cache.Options{
			DefaultNamespaces: namespaces,
			// Of Secrets it sees only those that were made for it.
			ByObject: map[client.Object]cache.ByObject{
				&corev1.Secret{}: {Label: labels.SelectorFromSet(labels.Set{v1alpha1.LabelCloudInit: "true"})},
			},
		},
		Metrics:                       metricsserver.Options{BindAddress: s.o.MetricsAddr},
		HealthProbeBindAddress:        s.o.HealthAddr,
		LeaderElection:                s.o.LeaderElect,
		LeaderElectionID:              ElectionID,
		LeaderElectionNamespace:       s.o.PodNamespace,
		LeaderElectionReleaseOnCancel: true, // nothing runs on after Run
		LeaseDuration:                 &lease,
		RenewDeadline:                 &deadline,
		RetryPeriod:                   &retry,

		LeaderElectionResourceLockInterface: lock,
	})
	if err != nil {
		return err
	}
	s.live, err = client.New(cfg, client.Options{Scheme: scheme, Mapper: s.mgr.GetRESTMapper(), HTTPClient: s.mgr.GetHTTPClient()})
	return err
}

// newTerm is the lock of the election, nil without one. Its holder is told by the pod's
// name, and by a part that no other process has.
func (s *system) newTerm(cfg *rest.Config) (resourcelock.Interface, error) {
	if !s.o.LeaderElect {
		return nil, nil
	}
	cfg = rest.AddUserAgent(rest.CopyConfig(cfg), "leader-election")
	cfg.Timeout = renewDeadline / 2 // one request that hangs loses no leadership
	clients, err := coordinationclient.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	s.term = &term{Interface: &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: s.o.PodNamespace, Name: ElectionID},
		Client:     clients,
		LockConfig: resourcelock.ResourceLockConfig{Identity: s.o.PodName + "_" + string(uuid.NewUUID())},
	}}
	return s.term, nil
}

// leads tells whether this process is sure to lead, or the only one.
func (s *system) leads() bool { return s.term == nil || s.term.leads() }

func (s *system) openProviders() (err error) {
	cfg := providers.Config{
		Path: s.o.ProvidersConfig, Key: s.key, Client: s.live, Namespace: cmp.Or(s.o.PodNamespace, s.o.namespaces()[0]),
		Metrics: s.hooks.Metrics, Logger: s.log.WithName("provider"),
	}
	if s.hooks.Tracer != nil {
		cfg.KVMTrace, cfg.GCPTrace = tracing.KVM(s.hooks.Tracer), tracing.GCP(s.hooks.Tracer)
	}
	if s.provs, err = providers.Open(cfg); err != nil {
		return err
	}
	s.closes = append(s.closes, func() { _ = s.provs.Close() })
	return nil
}

func (s *system) openStore() error {
	at, err := s.o.redis()
	if err != nil {
		return err
	}
	log := s.log.WithName("lease")
	if at == nil {
		s.store, err = lease.NewMemory(lease.MemoryConfig{MaxHolders: s.o.MaxHolders, DefaultTTL: s.o.LeaseTTL, MaxTTL: s.o.LeaseMaxTTL, Logger: log})
		if err != nil {
			return err
		}
		s.closes = append(s.closes, s.store.Close)
		return nil
	}
	conn := redis.NewClient(at)
	s.closes = append(s.closes, func() { _ = conn.Close() })
	s.store, err = redislease.New(redislease.Config{
		Client: conn, Fleet: s.o.Tag, Fresh: s.o.RedisFresh,
		MaxHolders: s.o.MaxHolders, DefaultTTL: s.o.LeaseTTL, MaxTTL: s.o.LeaseMaxTTL, Logger: log,
	})
	if err != nil {
		return err
	}
	s.closes = append(s.closes, s.store.Close)
	return nil
}

func (s *system) shared() bool { return s.o.RedisURL != "" }

func (s *system) openServing() error {
	roots, err := s.o.roots()
	if err != nil {
		return err
	}
	engine := health.EngineConfig{Interval: s.o.ProbeInterval, Logger: s.log.WithName("health")}
	for _, url := range s.o.ProbeURLs {
		prober, err := health.NewProber(health.ProbeConfig{URL: url, Transport: endpoint.TransportConfig{TargetRoots: roots}})
		if err != nil {
			return err
		}
		engine.Targets = append(engine.Targets, health.Target{Name: url, Probe: prober.Probe})
	}
	if s.serve, err = serving.New(serving.Config{
		Health: engine, Inventory: s.store, Withheld: !s.shared(), Logger: s.log.WithName("serving"),
	}); err != nil {
		return err
	}
	s.closes = append(s.closes, s.serve.Close)
	if s.hooks.Metrics == nil {
		return nil
	}
	return errors.Join(
		healthmetrics.Register(s.serve.Engine(), nil, s.hooks.Metrics),
		leasemetrics.Register(s.store, nil, s.hooks.Metrics),
	)
}

func (s *system) openDiscovery() error {
	if s.o.DiscoveryAddr == "0" {
		return nil
	}
	clients, err := s.o.clients()
	if err != nil {
		return err
	}
	if len(clients) == 0 {
		s.log.Info("WARNING: the discovery API asks for no token: everyone who can connect may lease, and reads the proxies' passwords")
	}
	if s.o.DiscoveryCert == "" {
		s.log.Info("WARNING: the discovery API speaks plain HTTP, and its answers hold the proxies' passwords: let a network policy or a mesh guard it, or set --discovery-tls-cert")
	}
	store := lease.Store(s.store)
	if !s.shared() {
		store = discovery.WhileLeading(store, s.leads)
	}
	s.lease, err = leasehttp.NewHandler(leasehttp.HandlerConfig{
		Store: store, Clients: clients, Anonymous: len(clients) == 0, Logger: s.log.WithName("discovery"),
	})
	if err != nil {
		return fmt.Errorf("the discovery API: %w", err)
	}
	s.closes = append(s.closes, s.lease.Close)
	return nil
}

// build adds everything that runs to the manager.
func (s *system) build(ctx context.Context) error {
	r := &controller.Reconciler{
		Client: s.mgr.GetClient(), Live: s.live, Events: s.mgr.GetEventRecorder("egress-operator"),
		Providers: s.provs, Serving: s.serve, Tag: s.o.Tag, Key: s.key,
		Squid: cloudinit.Squid{Clients: s.o.ProxyClients, AllowDestinations: s.o.ProxyDestinations},
		Timing: controller.Timing{
			PollInterval: s.o.PollInterval, ReadyInterval: s.o.ReadyInterval, BootTimeout: s.o.BootTimeout,
			UnhealthyTimeout: s.o.UnhealthyTimeout, DrainTimeout: s.o.DrainTimeout,
		},
		MaxConcurrent: s.o.MaxConcurrent, Leads: s.leads,
	}
	if s.hooks.Tracer != nil {
		r.Trace = tracing.Controller(s.hooks.Tracer)
	}
	if err := r.SetupWithManager(ctx, s.mgr); err != nil {
		return err
	}
	runnables := []ctrlmanager.Runnable{
		ctrlmanager.RunnableFunc(s.lead),
		everywhere(func(ctx context.Context) error { return s.provs.Watch(ctx, watchInterval) }),
	}
	if s.o.OrphanInterval >= 0 {
		runnables = append(runnables, &controller.Orphans{
			Live: s.live, Namespaces: s.o.namespaces(), Providers: s.provs, Tag: s.o.Tag,
			Interval: s.o.OrphanInterval, Grace: s.o.OrphanGrace, MaxPercent: s.o.OrphanMaxPercent, Leads: s.leads, Logger: s.log.WithName("orphans"),
		})
	}
	if s.lease != nil {
		runnables = append(runnables, s.discovery())
	}
	for _, runnable := range runnables {
		if err := s.mgr.Add(runnable); err != nil {
			return err
		}
	}
	return errors.Join(s.mgr.AddHealthzCheck("ping", healthz.Ping), s.mgr.AddReadyzCheck("ping", healthz.Ping))
}

func (s *system) discovery() *discovery.Server {
	server := &discovery.Server{
		Listen: s.o.DiscoveryAddr, CertFile: s.o.DiscoveryCert, KeyFile: s.o.DiscoveryKey,
		Handler: s.lease, Shared: s.shared(), PodLabels: ManagerLabels, Client: s.live,
		Ready: s.hooks.Discovery, Logger: s.log.WithName("discovery"),
	}
	if !s.shared() {
		server.Leads = s.leads
	}
	if s.o.PodNamespace != "" && s.o.PodName != "" {
		server.Pod = types.NamespacedName{Namespace: s.o.PodNamespace, Name: s.o.PodName}
	}
	return server
}

// lead runs on the leader: it follows reports, and holds leasing back while those of
// a former leader may still be used.
func (s *system) lead(ctx context.Context) error {
	if s.hooks.Elected != nil {
		s.hooks.Elected()
	}
	go s.serve.Follow(ctx)
	if !s.shared() {
		s.serve.Withhold(ctx, s.takeover(ctx))
	}
	<-ctx.Done()
	return nil
}

// takeover is how long leases of a former leader may still be used.
func (s *system) takeover(ctx context.Context) time.Duration {
	if !s.followsAnother(ctx) {
		return 0
	}
	wait := cmp.Or(s.o.TakeoverDelay, s.o.LeaseMaxTTL)
	s.log.Info("leasing begins when the leases of the former leader have run out", "after", wait.String())
	return wait
}

// followsAnother tells whether there was a leader before, whose leases this process
// does not know. When in doubt there was.
func (s *system) followsAnother(ctx context.Context) bool {
	if !s.o.LeaderElect {
		return s.o.TakeoverDelay > 0
	}
	var election coordinationv1.Lease
	err := s.live.Get(ctx, types.NamespacedName{Namespace: s.o.PodNamespace, Name: ElectionID}, &election)
	return err != nil || election.Spec.LeaseTransitions != nil && *election.Spec.LeaseTransitions > 0
}

// everywhere runs on every replica.
type everywhere func(context.Context) error

func (f everywhere) Start(ctx context.Context) error { return f(ctx) }
func (everywhere) NeedLeaderElection() bool          { return false }
