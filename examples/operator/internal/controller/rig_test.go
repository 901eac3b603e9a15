package controller

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/examples/operator/api/v1alpha1"
	"github.com/egressfleet/egress/examples/operator/internal/apitest"
	"github.com/egressfleet/egress/examples/operator/internal/serving"
	"github.com/egressfleet/egress/fleet"
	"github.com/egressfleet/egress/health"
	"github.com/egressfleet/egress/internal/proxytest"
	"github.com/egressfleet/egress/lease"
	"github.com/egressfleet/egress/provider"
	"github.com/egressfleet/egress/provider/local"
)

func TestMain(m *testing.M) { apitest.Main(m) }

const (
	rigTag  = "crawl-test"
	patient = 60 * time.Second
)

var rigKey = []byte("0123456789abcdef0123")

// rig is an operator on a real API server, with hosts of package local, whose proxies
// are probed and leased.
type rig struct {
	t         *testing.T
	cfg       *rest.Config
	c         client.WithWatch
	ns        string
	target    proxytest.Target
	host      *local.Host
	providers *fakeFile
	store     *lease.Memory
	inventory *leaseStore
	timing    Timing

	amend      func(*Reconciler)
	reconciler *Reconciler
	stop       func()
}

// newRig makes the parts. start runs the operator on them.
func newRig(t *testing.T) *rig {
	cfg := apitest.Config(t)
	r := &rig{t: t, cfg: cfg, stop: func() {}}
	r.c = apitest.Client(t, cfg).(client.WithWatch)
	r.ns = apitest.Namespace(t, r.c)
	r.target = proxytest.TLSTarget(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") }))
	r.host = r.newHost("local", 0)
	r.providers = &fakeFile{hash: "1", known: map[string]provider.Provider{"dev": r.provider(r.host)}}
	r.newStore()
	r.timing = Timing{
		PollInterval: 50 * time.Millisecond, ReadyInterval: 200 * time.Millisecond, CallTimeout: 5 * time.Second,
		BootTimeout: 30 * time.Second, UnhealthyTimeout: time.Second, DrainTimeout: time.Second,
		RetryInterval: 100 * time.Millisecond, QuotaInterval: 100 * time.Millisecond, MaxInterval: 5 * time.Second,
	}
	t.Cleanup(r.clean)
	return r
}

// newStore gives the rig a store that knows nothing, as that of another process.
func (r *rig) newStore() {
	store, err := lease.NewMemory(lease.MemoryConfig{Transport: endpoint.TransportConfig{TargetRoots: r.target.Roots}})
	require.NoError(r.t, err)
	r.store, r.inventory = store, &leaseStore{Inventory: store}
	r.t.Cleanup(store.Close)
}

// leaseStore is an inventory that can be down.
type leaseStore struct {
	lease.Inventory
	down atomic.Bool
}

var errDown = errors.New("the database does not answer")

func (s *leaseStore) Drain(ctx context.Context, id string) (int, error) {
	if s.down.Load() {
		return 0, errDown
	}
	return s.Inventory.Drain(ctx, id)
}

func (s *leaseStore) Remove(ctx context.Context, id string) error {
	if s.down.Load() {
		return errDown
	}
	return s.Inventory.Remove(ctx, id)
}

func (r *rig) newHost(name string, capacity int) *local.Host {
	host, err := local.NewHost(local.HostConfig{Name: name, Capacity: capacity, Resolve: r.target.Resolve})
	require.NoError(r.t, err)
	r.t.Cleanup(host.Close)
	return host
}

func (r *rig) provider(host *local.Host) provider.Provider {
	p, err := local.New(local.Config{Host: host, Credentials: func(uid string) (string, string) {
		password, err := fleet.DerivePassword(rigKey, uid)
		require.NoError(r.t, err)
		return squidUser, password
	}})
	require.NoError(r.t, err)
	return p
}

// start runs the operator until stop, as a process of its own would.
func (r *rig) start() {
	mgr, err := ctrl.NewManager(r.cfg, ctrl.Options{
		Scheme: apitest.Scheme(), Logger: rigLog, Metrics: metricsserver.Options{BindAddress: "0"},
		Cache: cache.Options{
			DefaultNamespaces: map[string]cache.Config{r.ns: {}},
			ByObject:          map[client.Object]cache.ByObject{&corev1.Secret{}: {Label: labels.SelectorFromSet(labels.Set{v1alpha1.LabelCloudInit: "true"})}},
		},
	})
	require.NoError(r.t, err)
	prober, err := health.NewProber(health.ProbeConfig{URL: r.target.URL, Transport: endpoint.TransportConfig{TargetRoots: r.target.Roots}})
	require.NoError(r.t, err)
	serve, err := serving.New(serving.Config{
		Health:    health.EngineConfig{Probe: prober.Probe, Interval: 100 * time.Millisecond, EdgeInterval: 20 * time.Millisecond, InitialJitter: -1},
		Inventory: r.inventory,
	})
	require.NoError(r.t, err)
	r.reconciler = &Reconciler{
		Client: &interrupted{Client: mgr.GetClient(), rig: r}, Live: r.c, Events: mgr.GetEventRecorder("test"),
		Providers: r.providers, Serving: serve, Tag: rigTag, Key: rigKey, Timing: r.timing,
	}
	if r.amend != nil {
		r.amend(r.reconciler)
	}
	ctx, cancel := context.WithCancel(context.Background())
	require.NoError(r.t, r.reconciler.SetupWithManager(ctx, mgr))
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	var once sync.Once
	r.stop = func() {
		once.Do(func() {
			cancel()
			assert.NoError(r.t, <-done)
			serve.Close()
		})
	}
}

// clean leaves nothing behind: neither objects with a finalizer nor machines.
func (r *rig) clean() {
	r.stop()
	var list v1alpha1.ProxyList
	require.NoError(r.t, r.c.List(context.Background(), &list, client.InNamespace(r.ns)))
	for i := range list.Items {
		px := &list.Items[i]
		px.Finalizers = nil
		_ = r.c.Update(context.Background(), px)
		_ = r.c.Delete(context.Background(), px)
	}
}

// proxy is a Proxy of the rig's namespace, on the provider "dev".
func (r *rig) proxy(name string, amend ...func(*v1alpha1.Proxy)) *v1alpha1.Proxy {
	px := &v1alpha1.Proxy{
		ObjectMeta: metav1.ObjectMeta{Namespace: r.ns, Name: name},
		Spec:       v1alpha1.ProxySpec{Provider: "dev"},
	}
	for _, f := range amend {
		f(px)
	}
	return px
}

// make creates a Proxy and waits until it is Ready.
func (r *rig) make(name string, amend ...func(*v1alpha1.Proxy)) *v1alpha1.Proxy {
	r.t.Helper()
	px := r.proxy(name, amend...)
	require.NoError(r.t, r.c.Create(context.Background(), px))
	return r.ready(px)
}

func (r *rig) ready(px *v1alpha1.Proxy) *v1alpha1.Proxy {
	r.t.Helper()
	return r.until(px, "Ready", func(px *v1alpha1.Proxy) bool { return px.Status.Phase == v1alpha1.PhaseReady })
}

// until waits for what the Proxy's status shall show, and returns the Proxy.
func (r *rig) until(px *v1alpha1.Proxy, what string, ok func(*v1alpha1.Proxy) bool) *v1alpha1.Proxy {
	r.t.Helper()
	deadline := time.Now().Add(patient)
	for {
		now := r.get(px)
		if now != nil && ok(now) {
			return now
		}
		if time.Now().After(deadline) {
			require.FailNow(r.t, "never "+what, "%+v", now)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (r *rig) get(px *v1alpha1.Proxy) *v1alpha1.Proxy {
	r.t.Helper()
	now := &v1alpha1.Proxy{}
	err := r.c.Get(context.Background(), client.ObjectKeyFromObject(px), now)
	if apierrors.IsNotFound(err) {
		return nil
	}
	require.NoError(r.t, err)
	return now
}

// gone waits until the object is.
func (r *rig) gone(px *v1alpha1.Proxy) {
	r.t.Helper()
	require.Eventually(r.t, func() bool { return r.get(px) == nil }, patient, 20*time.Millisecond, "%s stays", px.Name)
}

// edit changes the Proxy, again where somebody else was faster.
func (r *rig) edit(px *v1alpha1.Proxy, change func(*v1alpha1.Proxy)) {
	r.t.Helper()
	for {
		now := r.get(px)
		require.NotNil(r.t, now)
		change(now)
		err := r.c.Update(context.Background(), now)
		if !apierrors.IsConflict(err) {
			require.NoError(r.t, err)
			return
		}
	}
}

func (r *rig) annotate(px *v1alpha1.Proxy, key, value string) {
	r.t.Helper()
	r.edit(px, func(px *v1alpha1.Proxy) {
		if px.Annotations == nil {
			px.Annotations = map[string]string{}
		}
		px.Annotations[key] = value
	})
}

func (r *rig) remove(px *v1alpha1.Proxy) {
	r.t.Helper()
	require.NoError(r.t, r.c.Delete(context.Background(), px))
}

// machines are those of the host.
func (r *rig) machines(hosts ...*local.Host) (list []provider.Instance) {
	r.t.Helper()
	if len(hosts) == 0 {
		hosts = []*local.Host{r.host}
	}
	for _, host := range hosts {
		host.OnCall(nil)
		got, err := r.provider(host).ListByTag(context.Background(), rigTag)
		require.NoError(r.t, err)
		list = append(list, got...)
	}
	return list
}

// endpoint is what is leased of the Proxy.
func (r *rig) endpoint(px *v1alpha1.Proxy) endpoint.Endpoint {
	r.t.Helper()
	all, err := r.store.List(context.Background())
	require.NoError(r.t, err)
	for _, s := range all {
		if s.Endpoint.ID == px.Namespace+"/"+px.Name {
			return s.Endpoint
		}
	}
	require.FailNow(r.t, "not leased", px.Name)
	return endpoint.Endpoint{}
}

// leasable waits until something is leased.
func (r *rig) leasable() {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patient)
	defer cancel()
	l, err := r.store.Acquire(ctx, lease.Request{Holder: "test"})
	require.NoError(r.t, err)
	require.NoError(r.t, l.Release(ctx))
}

// events waits for an event of that reason, and returns its note.
func (r *rig) event(px *v1alpha1.Proxy, reason string) string {
	r.t.Helper()
	note := ""
	require.Eventually(r.t, func() bool {
		var list eventsv1.EventList
		require.NoError(r.t, r.c.List(context.Background(), &list, client.InNamespace(r.ns)))
		for _, e := range list.Items {
			if e.Regarding.Name == px.Name && e.Reason == reason {
				note = e.Note
				return true
			}
		}
		return false
	}, patient, 50*time.Millisecond, "no event %s of %s", reason, px.Name)
	return note
}

func condition(px *v1alpha1.Proxy, kind string) metav1.Condition {
	c := meta.FindStatusCondition(px.Status.Conditions, kind)
	if c == nil {
		return metav1.Condition{}
	}
	return *c
}

// fakeFile is a providers file that tests rewrite.
type fakeFile struct {
	mu    sync.Mutex
	hash  string
	known map[string]provider.Provider
}

func (f *fakeFile) Get(name string) (provider.Provider, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p, ok := f.known[name]
	if !ok {
		return nil, fmt.Errorf("there is no provider %q", name)
	}
	return p, nil
}

func (f *fakeFile) Names() (names []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name := range f.known {
		names = append(names, name)
	}
	return names
}

func (f *fakeFile) Hash() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.hash
}

// put changes an entry of the file; nil removes it.
func (f *fakeFile) put(name string, p provider.Provider) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hash += "+"
	if f.known[name] = p; p == nil {
		delete(f.known, name)
	}
}

// interrupted is the reconciler's client, with what a test does to it.
type interrupted struct {
	client.Client
	rig *rig
	mu  sync.Mutex

	getOld       func(px *v1alpha1.Proxy) // shows what a stale cache would
	statusWrites int
	failStatus   func(px *v1alpha1.Proxy) error
}

func (c *interrupted) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	err := c.Client.Get(ctx, key, o, opts...)
	c.mu.Lock()
	defer c.mu.Unlock()
	if px, ok := o.(*v1alpha1.Proxy); ok && c.getOld != nil {
		c.getOld(px)
		return nil
	}
	return err
}

func (c *interrupted) Status() client.SubResourceWriter {
	return &interruptedStatus{c.Client.Status(), c}
}

type interruptedStatus struct {
	client.SubResourceWriter
	c *interrupted
}

var errCrash = errors.New("the operator dies here")

func (s *interruptedStatus) Update(ctx context.Context, o client.Object, opts ...client.SubResourceUpdateOption) error {
	s.c.mu.Lock()
	fail := s.c.failStatus
	s.c.statusWrites++
	s.c.mu.Unlock()
	if px, ok := o.(*v1alpha1.Proxy); ok && fail != nil {
		if err := fail(px); err != nil {
			return err
		}
	}
	return s.SubResourceWriter.Update(ctx, o, opts...)
}

func (r *rig) client() *interrupted { return r.reconciler.Client.(*interrupted) }

func (r *rig) meddle(f func(*interrupted)) {
	c := r.client()
	c.mu.Lock()
	defer c.mu.Unlock()
	f(c)
}

func (r *rig) writes() (n int) {
	r.meddle(func(c *interrupted) { n = c.statusWrites })
	return n
}

// rigLog is the operator's log, on the test's output if asked for.
var rigLog = newRigLog()

func newRigLog() logr.Logger {
	log := logr.Discard()
	if os.Getenv("RIG_LOG") != "" {
		log = zap.New(zap.UseDevMode(true))
	}
	ctrl.SetLogger(log)
	return log
}
