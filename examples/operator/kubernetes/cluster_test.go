package kubernetes_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/yaml"

	"github.com/egressfleet/egress/examples/operator/kubernetes"
)

// environment is a kube-apiserver with its etcd, started by the first test that
// needs it and shared by all.
var environment = struct {
	sync.Mutex
	env *envtest.Environment
	err error
}{}

func TestMain(m *testing.M) {
	log.SetLogger(logr.Discard())
	code := m.Run()
	environment.Lock()
	if environment.env != nil {
		_ = environment.env.Stop()
	}
	environment.Unlock()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// apiServer is the administrator's way to the API server.
func apiServer(t *testing.T) (*envtest.Environment, *rest.Config) {
	t.Helper()
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		t.Skip("needs KUBEBUILDER_ASSETS: run make operator-test")
	}
	environment.Lock()
	defer environment.Unlock()
	if environment.env == nil && environment.err == nil {
		environment.env = &envtest.Environment{}
		_, environment.err = environment.env.Start()
	}
	require.NoError(t, environment.err)
	return environment.env, quick(environment.env.Config)
}

// quick is a configuration without a limit of requests per second.
func quick(cfg *rest.Config) *rest.Config {
	cfg = rest.CopyConfig(cfg)
	cfg.QPS = -1
	return cfg
}

// namespace is one of its own, with a user that has role.yaml's rights there and
// no others.
type namespace struct {
	name  string
	admin client.WithWatch
	user  *rest.Config
	// adminConfig is the way of admin.
	adminConfig *rest.Config
}

// newNamespace makes one that accepts only what is restricted.
func newNamespace(t *testing.T) *namespace {
	t.Helper()
	env, cfg := apiServer(t)
	admin, err := client.NewWithWatch(cfg, client.Options{})
	require.NoError(t, err)
	n := &namespace{adminConfig: cfg, name: "test-" + strings.ToLower(rand.Text()[:8]), admin: admin}
	require.NoError(t, admin.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: n.name, Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"},
	}}))
	user, err := env.AddUser(envtest.User{Name: n.name}, cfg)
	require.NoError(t, err)
	n.user = quick(user.Config())
	n.grant(t)
	return n
}

// grant gives the user the rights of role.yaml.
func (n *namespace) grant(t *testing.T) {
	t.Helper()
	text, err := os.ReadFile("role.yaml")
	require.NoError(t, err)
	var role rbacv1.Role
	require.NoError(t, yaml.UnmarshalStrict(text, &role))
	role.Namespace = n.name
	require.NoError(t, n.admin.Create(t.Context(), &role))
	require.NoError(t, n.admin.Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role.Name, Namespace: n.name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role.Name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: n.name}},
	}))
}

// revoke takes all rights.
func (n *namespace) revoke(t *testing.T) {
	t.Helper()
	require.NoError(t, n.admin.DeleteAllOf(t.Context(), &rbacv1.RoleBinding{}, client.InNamespace(n.name)))
}

// provider returns one that has nothing in memory, over that wire.
func (n *namespace) provider(w *wire, change ...func(*kubernetes.Config)) (*kubernetes.Provider, error) {
	cfg := rest.CopyConfig(n.user)
	if w != nil {
		cfg.Wrap(w.wrap)
	}
	c, err := client.New(cfg, client.Options{})
	if err != nil {
		return nil, err
	}
	config := kubernetes.Config{Client: c, Namespace: n.name, Image: "registry.example.com/squid:6"}
	for _, f := range change {
		f(&config)
	}
	return kubernetes.New(config)
}

// newProvider is provider that must succeed.
func (n *namespace) newProvider(t *testing.T, w *wire, change ...func(*kubernetes.Config)) *kubernetes.Provider {
	t.Helper()
	p, err := n.provider(w, change...)
	require.NoError(t, err)
	return p
}

// leftovers are the names of all pods and Secrets.
func (n *namespace) leftovers(ctx context.Context) (names []string, err error) {
	var pods corev1.PodList
	var secrets corev1.SecretList
	err = errors.Join(n.admin.List(ctx, &pods, client.InNamespace(n.name)), n.admin.List(ctx, &secrets, client.InNamespace(n.name)))
	for _, p := range pods.Items {
		names = append(names, "pod "+p.Name)
	}
	for _, s := range secrets.Items {
		names = append(names, "secret "+s.Name)
	}
	return names, err
}

// pod reads one as the administrator; the last part of an ID will do.
func (n *namespace) pod(ctx context.Context, id string) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	return pod, n.admin.Get(ctx, n.key(id), pod)
}

// secret reads one as the administrator.
func (n *namespace) secret(ctx context.Context, id string) (*corev1.Secret, error) {
	secret := &corev1.Secret{}
	return secret, n.admin.Get(ctx, n.key(id), secret)
}

func (n *namespace) key(id string) client.ObjectKey {
	return client.ObjectKey{Namespace: n.name, Name: id[strings.LastIndex(id, "/")+1:]}
}

// vanish removes a pod as an impatient administrator does.
func (n *namespace) vanish(ctx context.Context, id string) error {
	pod, err := n.pod(ctx, id)
	if err != nil {
		return err
	}
	return n.admin.Delete(ctx, pod, client.GracePeriodSeconds(0))
}

// exhaust uses up the quota of pods or Secrets. There is no controller of quotas
// here, so the status is the test's to write; admission hears of it a little later.
func (n *namespace) exhaust(ctx context.Context, what corev1.ResourceName) (restore func(), err error) {
	none := corev1.ResourceList{what: {}}
	quota := &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "none", Namespace: n.name},
		Spec:       corev1.ResourceQuotaSpec{Hard: none},
	}
	if err := n.admin.Create(ctx, quota); err != nil {
		return nil, err
	}
	quota.Status = corev1.ResourceQuotaStatus{Hard: none, Used: none}
	if err := n.admin.Status().Update(ctx, quota); err != nil {
		return nil, err
	}
	restore = func() {
		_ = n.admin.Delete(ctx, quota)
		_ = n.waitForQuota(ctx, what, false)
	}
	return restore, n.waitForQuota(ctx, what, true)
}

// waitForQuota tries creations until the quota does, or does not, refuse them.
func (n *namespace) waitForQuota(ctx context.Context, what corev1.ResourceName, want bool) error {
	deadline := time.Now().Add(30 * time.Second)
	for time.Now().Before(deadline) {
		var probe client.Object = restricted(n.name, "")
		if what == corev1.ResourceSecrets {
			probe = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: n.name}}
		}
		probe.SetGenerateName("quota-")
		err := n.admin.Create(ctx, probe, client.DryRunAll)
		if refused := err != nil && strings.Contains(err.Error(), "exceeded quota"); refused == want && (refused || err == nil) {
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	return errors.New("the quota does not take effect")
}

// restricted is a pod of nobody that the namespace accepts.
func restricted(ns, name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name},
		Spec: corev1.PodSpec{
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: new(true), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{{Name: "c", Image: "registry.example.com/c", SecurityContext: &corev1.SecurityContext{
				AllowPrivilegeEscalation: new(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			}}},
		},
	}
}

// wire is the way to the API server, which misbehaves on demand.
type wire struct {
	mu   sync.Mutex
	held chan struct{} // closed to go on; nil where nothing hangs
	next func(*http.Request, http.RoundTripper) (*http.Response, error)
}

func (w *wire) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		w.mu.Lock()
		held, f := w.held, w.next
		w.mu.Unlock()
		switch {
		case held != nil:
			return late(r, next, held)
		case f != nil:
			return f(r, next)
		}
		return next.RoundTrip(r)
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// set has every request go through f, until the function it returns is called.
func (w *wire) set(f func(*http.Request, http.RoundTripper) (*http.Response, error)) (unset func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.next = f
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.next = nil
	}
}

var errCut = errors.New("dial tcp 192.0.2.1:6443: connect: no route to host")

// cut is a wire that is cut.
func (w *wire) cut() (restore func(), err error) {
	return w.set(func(*http.Request, http.RoundTripper) (*http.Response, error) { return nil, errCut }), nil
}

// hang holds requests up until release, when they go on.
func (w *wire) hang() (release func(), err error) {
	held := make(chan struct{})
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held = held
	return func() {
		w.mu.Lock()
		w.held = nil
		w.mu.Unlock()
		close(held)
	}, nil
}

// late sends a request once it is released, whether or not its caller is still
// there.
func late(r *http.Request, next http.RoundTripper, held <-chan struct{}) (*http.Response, error) {
	again := r.Clone(context.WithoutCancel(r.Context()))
	if r.Body != nil {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		again.Body = io.NopCloser(bytes.NewReader(body))
	}
	type answer struct {
		resp *http.Response
		err  error
	}
	done := make(chan answer)
	go func() {
		<-held
		resp, err := next.RoundTrip(again)
		select {
		case done <- answer{resp, err}:
		case <-r.Context().Done():
			if err == nil {
				_ = resp.Body.Close()
			}
		}
	}()
	select {
	case a := <-done:
		return a.resp, a.err
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
}
