package main

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/examples/operator/api/v1alpha1"
	"github.com/egressfleet/egress/examples/operator/internal/apitest"
	"github.com/egressfleet/egress/internal/fakelibvirt"
	"github.com/egressfleet/egress/internal/proxytest"
	"github.com/egressfleet/egress/internal/redistest"
	"github.com/egressfleet/egress/internal/sshtest"
	"github.com/egressfleet/egress/lease"
	"github.com/egressfleet/egress/lease/leasehttp"
)

// asOperator in the environment has this program be the operator.
const asOperator = "EGRESS_TEST_AS_OPERATOR"

func TestMain(m *testing.M) {
	if os.Getenv(asOperator) != "" {
		main()
		return
	}
	apitest.Main(m)
}

const (
	namespace = "egress-system"
	account   = "system:serviceaccount:" + namespace + ":egress-operator"
	token     = "0123456789abcdef-token"
	patient   = 90 * time.Second
)

// cluster is an API server on which the operator is deployed as config/ says, but for
// the pods, which the test starts as processes of their own.
type cluster struct {
	t          *testing.T
	c          client.Client
	dir        string
	kubeconfig string // of the operator's service account
	target     proxytest.Target
}

func newCluster(t *testing.T, target proxytest.Target) *cluster {
	k := emptyCluster(t, apitest.Client(t, apitest.Config(t)), apitest.KubeConfig(t, account), target)
	apitest.Apply(t, k.c, apitest.Kustomize(t, "config", "default"),
		"Namespace", "ServiceAccount", "Role", "RoleBinding", "Service", "Deployment", "ConfigMap")
	t.Cleanup(k.clean)
	return k
}

// emptyCluster has nothing deployed on it.
func emptyCluster(t *testing.T, c client.Client, kubeconfig []byte, target proxytest.Target) *cluster {
	k := &cluster{t: t, c: c, dir: t.TempDir(), target: target}
	k.kubeconfig = k.write("kubeconfig", kubeconfig)
	k.write("key", []byte("0123456789abcdef0123456789abcdef"))
	k.providers("dev")
	k.write("roots.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: k.target.Certificate.Raw}))
	return k
}

// providers writes a file with providers of those names, whose proxies are in the
// operator's process.
func (k *cluster) providers(names ...string) {
	resolve, err := json.Marshal(k.target.Resolve)
	require.NoError(k.t, err)
	text := "providers:\n"
	for _, name := range names {
		text += fmt.Sprintf("- {name: %s, type: local, local: {resolve: %s}}\n", name, resolve)
	}
	k.write("providers.yaml", []byte(text))
}

// hello is a page that proxies in the operator's process can fetch.
func hello(t *testing.T) proxytest.Target {
	return proxytest.TLSTarget(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") }))
}

func (k *cluster) write(name string, text []byte) string {
	path := filepath.Join(k.dir, name)
	require.NoError(k.t, os.WriteFile(path, text, 0o600))
	return path
}

func (k *cluster) clean() {
	ctx := context.Background()
	var list v1alpha1.ProxyList
	require.NoError(k.t, k.c.List(ctx, &list, client.InNamespace(namespace)))
	for i := range list.Items {
		list.Items[i].Finalizers = nil
		_ = k.c.Update(ctx, &list.Items[i])
		_ = k.c.Delete(ctx, &list.Items[i])
	}
	_ = k.c.DeleteAllOf(ctx, &corev1.Pod{}, client.InNamespace(namespace), client.GracePeriodSeconds(0))
}

// pod is an operator that runs.
type pod struct {
	k       *cluster
	name    string
	api     string // its discovery API
	metrics string
	cmd     *exec.Cmd
	done    chan error
	// refused says that it may be refused what its role allows: it has seen the API
	// server start, or its role go.
	refused bool

	mu  sync.Mutex
	log strings.Builder
}

// Write implements io.Writer for the log.
func (p *pod) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.Write(b)
}

func (p *pod) logged() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.String()
}

// start makes the pod that the Deployment describes, and runs its program here.
func (k *cluster) start(name string, env []string, flags ...string) *pod {
	k.t.Helper()
	var deployment appsv1.Deployment
	require.NoError(k.t, k.c.Get(k.t.Context(), client.ObjectKey{Namespace: namespace, Name: "egress-operator"}, &deployment))
	object := &corev1.Pod{ObjectMeta: *deployment.Spec.Template.ObjectMeta.DeepCopy(), Spec: *deployment.Spec.Template.Spec.DeepCopy()}
	object.Namespace, object.Name = namespace, name
	require.NoError(k.t, k.c.Create(k.t.Context(), object), "the API server takes the pod, in a namespace of restricted ones")

	p := &pod{k: k, name: name, api: freeAddress(k.t), metrics: freeAddress(k.t), done: make(chan error, 1)}
	args := append([]string{
		"--kubeconfig", k.kubeconfig, "--tag", "crawl-test", "--probe-url", k.target.URL, "--probe-ca", filepath.Join(k.dir, "roots.pem"),
		"--providers-config", filepath.Join(k.dir, "providers.yaml"), "--proxy-key-file", filepath.Join(k.dir, "key"),
		"--discovery-bind-address", p.api, "--metrics-bind-address", p.metrics, "--health-probe-bind-address", "0",
		"--poll-interval", "100ms", "--ready-interval", "1s", "--probe-interval", "1s", "--lease-takeover-delay", "1s",
	}, flags...)
	p.cmd = exec.Command(os.Args[0], args...)
	p.cmd.Env = append(os.Environ(), asOperator+"=1", "POD_NAMESPACE="+namespace, "POD_NAME="+name, "DISCOVERY_TOKEN="+token)
	p.cmd.Env = append(p.cmd.Env, env...)
	p.cmd.Stdout, p.cmd.Stderr = p, p
	require.NoError(k.t, p.cmd.Start())
	go func() { p.done <- p.cmd.Wait() }()
	k.t.Cleanup(func() {
		p.kill()
		if k.t.Failed() {
			k.t.Logf("log of %s:\n%s", name, p.logged())
		}
		for line := range strings.Lines(p.logged()) {
			if !p.refused {
				assert.NotContains(k.t, line, "forbidden", "its rights suffice")
			}
		}
		assert.NotContains(k.t, p.logged(), token)
	})
	return p
}

// kill ends the process without a word, as a machine that dies does.
func (p *pod) kill() {
	_ = p.cmd.Process.Kill()
	p.wait()
}

func (p *pod) wait() error {
	err := <-p.done
	p.done <- err
	return err
}

func freeAddress(t testing.TB) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

func (k *cluster) proxy(name string, amend ...func(*v1alpha1.Proxy)) *v1alpha1.Proxy {
	k.t.Helper()
	px := &v1alpha1.Proxy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: v1alpha1.ProxySpec{Provider: "dev"}}
	for _, f := range amend {
		f(px)
	}
	require.NoError(k.t, k.c.Create(k.t.Context(), px))
	return px
}

func (k *cluster) eventually(what string, ok func() bool) {
	k.t.Helper()
	require.Eventually(k.t, ok, patient, 50*time.Millisecond, what)
}

func (k *cluster) phase(px *v1alpha1.Proxy) v1alpha1.Phase {
	if err := k.c.Get(k.t.Context(), client.ObjectKeyFromObject(px), px); err != nil {
		return ""
	}
	return px.Status.Phase
}

func (k *cluster) ready(px *v1alpha1.Proxy) {
	k.t.Helper()
	k.eventually(px.Name+" is Ready", func() bool { return k.phase(px) == v1alpha1.PhaseReady })
}

func conditionOf(px *v1alpha1.Proxy, kind string) metav1.Condition {
	if c := meta.FindStatusCondition(px.Status.Conditions, kind); c != nil {
		return *c
	}
	return metav1.Condition{}
}

// serving are the pods that the Service leads to.
func (k *cluster) serving() (names []string) {
	k.t.Helper()
	var service corev1.Service
	require.NoError(k.t, k.c.Get(k.t.Context(), client.ObjectKey{Namespace: namespace, Name: "egress-discovery"}, &service))
	var pods corev1.PodList
	require.NoError(k.t, k.c.List(k.t.Context(), &pods, client.InNamespace(namespace), client.MatchingLabels(service.Spec.Selector)))
	for _, p := range pods.Items {
		names = append(names, p.Name)
	}
	return names
}

// crawl leases from that pod and fetches the target.
func (k *cluster) crawl(p *pod) {
	k.t.Helper()
	store := k.store(p)
	ctx, cancel := context.WithTimeout(k.t.Context(), patient)
	defer cancel()
	l, err := store.Acquire(ctx, lease.Request{Holder: "test", Domain: k.domain()})
	require.NoError(k.t, err)
	resp, err := l.Client().Get(k.target.URL)
	require.NoError(k.t, err)
	resp.Body.Close()
	assert.Equal(k.t, 200, resp.StatusCode)
	require.NoError(k.t, l.Release(ctx))
}

func (k *cluster) domain() string {
	u, err := url.Parse(k.target.URL)
	require.NoError(k.t, err)
	return u.Hostname()
}

func (k *cluster) store(p *pod) *leasehttp.Client {
	k.t.Helper()
	store, err := leasehttp.NewClient(leasehttp.ClientConfig{
		URL: "http://" + p.api, Token: token, Wait: time.Second, Transport: endpoint.TransportConfig{TargetRoots: k.target.Roots},
	})
	require.NoError(k.t, err)
	return store
}

// The operator runs with the rights that config/rbac gives, and nothing is denied.
func TestOperatorAsItsServiceAccount(t *testing.T) {
	k := newCluster(t, hello(t))
	p := k.start("operator-a", nil)
	px := k.proxy("one")
	k.ready(px)
	k.eventually("the Service finds the leader", func() bool { return assert.ObjectsAreEqual([]string{"operator-a"}, k.serving()) })
	k.crawl(p)

	resp, err := http.Get("http://" + p.metrics + "/metrics")
	require.NoError(t, err)
	defer resp.Body.Close()
	var text bytes.Buffer
	_, err = text.ReadFrom(resp.Body)
	require.NoError(t, err)
	for _, name := range []string{"egress_operator_build_info", `egress_provider_calls_total{class="ok",op="Create",provider="dev"}`, "egress_health_endpoints", "egress_lease_endpoints", "controller_runtime_reconcile_total"} {
		assert.Contains(t, text.String(), name)
	}

	require.NoError(t, k.c.Delete(t.Context(), px))
	k.eventually("gone", func() bool {
		return client.IgnoreNotFound(k.c.Get(t.Context(), client.ObjectKeyFromObject(px), px)) == nil && k.phase(px) == ""
	})
	require.NoError(t, p.cmd.Process.Signal(os.Interrupt))
	require.NoError(t, p.wait(), "an interrupt ends it in order")
	k.eventually("nobody serves", func() bool { return len(k.serving()) == 0 })
}

// Of two replicas one works. When it is killed the other one takes over: it leases
// nothing until the leases of the first have run out, and has the label to itself.
func TestLeaderIsKilled(t *testing.T) {
	k := newCluster(t, hello(t))
	a := k.start("operator-a", nil)
	px := k.proxy("one")
	k.ready(px)
	b := k.start("operator-b", nil)
	k.crawl(a)
	_, err := net.DialTimeout("tcp", b.api, time.Second)
	require.Error(t, err, "the second one serves nothing")

	a.kill()
	k.eventually("the Service finds the new leader alone", func() bool { return assert.ObjectsAreEqual([]string{"operator-b"}, k.serving()) })
	k.crawl(b) // the machine died with the process it was in, and was replaced
	k.ready(px)
	assert.Equal(t, int64(2), px.Status.Incarnation)
	assert.Contains(t, b.logged(), "leases of the former leader")
}

// A leader that hangs, and goes on when another one leads, grants nothing more, takes the
// label from nobody, and ends.
func TestLeaderHangs(t *testing.T) {
	k := newCluster(t, hello(t))
	a := k.start("operator-a", nil)
	px := k.proxy("one")
	k.ready(px)
	b := k.start("operator-b", nil)
	k.crawl(a)

	require.NoError(t, a.cmd.Process.Signal(syscall.SIGSTOP))
	k.eventually("the Service finds the new leader alone", func() bool { return assert.ObjectsAreEqual([]string{"operator-b"}, k.serving()) })
	k.crawl(b)
	require.NoError(t, k.c.Get(t.Context(), client.ObjectKeyFromObject(px), px))
	uid := px.Status.Machine.UID

	require.NoError(t, a.cmd.Process.Signal(syscall.SIGCONT))
	granted := 0
	for ended := false; !ended; {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		if _, err := k.store(a).TryAcquire(ctx, lease.Request{Holder: "late"}); err == nil {
			granted++
		}
		cancel()
		select {
		case err := <-a.done:
			a.done <- err
			ended = true
		default:
		}
	}
	assert.Zero(t, granted, "two replicas lease one proxy")
	assert.Contains(t, a.logged(), "leader election lost")
	assert.Equal(t, []string{"operator-b"}, k.serving())
	k.crawl(b)
	require.NoError(t, k.c.Get(t.Context(), client.ObjectKeyFromObject(px), px))
	assert.Equal(t, uid, px.Status.Machine.UID, "the former leader replaced nothing")
}

// While the API server is away what serves goes on serving, nothing is swept or made
// again, and afterwards the operator works on.
func TestTheAPIServerRestarts(t *testing.T) {
	k := newCluster(t, hello(t))
	p := k.start("operator-a", nil, "--leader-elect=false", "--orphan-interval=100ms", "--orphan-grace=1ms", "--orphan-max-percent=100")
	px := k.proxy("one")
	k.ready(px)
	uid := px.Status.Machine.UID
	k.crawl(p)
	apitest.Outage(t, func() {
		require.Contains(t, p.logged(), "orphans were not swept everywhere", "the operator sees that it is away")
		k.crawl(p)
	})
	p.refused = true // the API server may not have read its roles yet
	k.ready(k.proxy("two"))
	k.ready(px)
	assert.Equal(t, uid, px.Status.Machine.UID, "nothing was made again")
	require.NoError(t, k.c.Delete(t.Context(), px))
	k.eventually("gone", func() bool { return apierrors.IsNotFound(k.c.Get(t.Context(), client.ObjectKeyFromObject(px), px)) })
	k.crawl(p)
}

// A leader that cannot keep its election, because the API server is away for too long,
// ends; whoever starts next takes up its work.
func TestTheAPIServerIsAwayForLong(t *testing.T) {
	k := newCluster(t, hello(t))
	a := k.start("operator-a", nil)
	px := k.proxy("one")
	k.ready(px)
	k.crawl(a)
	apitest.Outage(t, func() {
		require.Error(t, a.wait())
		assert.Contains(t, a.logged(), "leader election lost")
	})
	b := k.start("operator-b", nil)
	k.eventually("the Service finds the new leader alone", func() bool { return assert.ObjectsAreEqual([]string{"operator-b"}, k.serving()) })
	k.crawl(b)
	k.ready(px)
}

// The levels of the log show what a provider asks its host for.
func TestTraceLevels(t *testing.T) {
	for level, row := range map[string]struct{ shown, hidden []string }{
		"info": {nil, []string{"virConnect", "rpc"}},
		"1":    {[]string{"virConnectListAllDomains"}, []string{`"names":`}},
		"2":    {[]string{"virConnectListAllDomains", `"names":`}, nil},
	} {
		t.Run(level, func(t *testing.T) {
			k := newCluster(t, hello(t))
			key, wire := sshtest.NewKey(t), &fakelibvirt.Wire{}
			socket := filepath.Join(k.dir, "sock")
			l, err := net.Listen("unix", socket)
			require.NoError(t, err)
			served := make(chan struct{})
			go func() { wire.Serve(l); close(served) }()
			t.Cleanup(func() { _ = l.Close(); <-served })
			server := sshtest.New(t, key.PublicKey())
			k.write("id", key.PEM)
			k.write("known_hosts", []byte(server.KnownHosts()))
			k.write("providers.yaml", fmt.Appendf(nil, `providers:
- name: rack
  type: kvm
  kvm:
    sshKeyFile: %s/id
    knownHostsFile: %s/known_hosts
    hosts: [{name: kvm1, address: %q, user: egress, socket: %s, bridge: br0}]
    machineTypes: {small: {vcpus: 1, memoryMiB: 256}}
`, k.dir, k.dir, server.Address(), socket))
			p := k.start("operator-a", nil, "--leader-elect=false", "--zap-log-level="+level, "--orphan-interval=200ms")
			if len(row.shown) == 0 {
				time.Sleep(3 * time.Second)
			}
			for _, text := range row.shown {
				k.eventually(text, func() bool { return strings.Contains(p.logged(), text) })
			}
			for _, text := range row.hidden {
				assert.NotContains(t, p.logged(), text)
			}
		})
	}
}

// With Redis every replica serves, and all lease from one set.
func TestReplicasShareLeasesOnRedis(t *testing.T) {
	redis := redistest.Start(t)
	k := newCluster(t, hello(t))
	env := []string{"EGRESS_REDIS=redis://" + redis.Addr + "/0"}
	a := k.start("operator-a", env, "--redis-fresh")
	px := k.proxy("one")
	k.ready(px)
	b := k.start("operator-b", env)
	k.eventually("both serve", func() bool { return len(k.serving()) == 2 })
	k.crawl(a)
	k.crawl(b)
	held, err := k.store(b).Acquire(t.Context(), lease.Request{Holder: "test"})
	require.NoError(t, err)
	_, err = k.store(a).TryAcquire(t.Context(), lease.Request{Holder: "other"})
	require.ErrorIs(t, err, lease.ErrNoneFree, "what one replica leased is not free on the other")
	require.NoError(t, held.Release(t.Context()))
}

// A new providers file ends the operator, to be started again with it; a broken one
// does not.
func TestNewProvidersFile(t *testing.T) {
	k := newCluster(t, hello(t))
	p := k.start("operator-a", nil, "--leader-elect=false")
	px := k.proxy("one")
	k.ready(px)
	good, err := os.ReadFile(filepath.Join(k.dir, "providers.yaml"))
	require.NoError(t, err)
	k.write("providers.yaml", []byte("providers:\n- {name: dev, type: local, local: {bootDelai: 1s}}\n"))
	k.eventually("the broken file is refused", func() bool { return strings.Contains(p.logged(), "bootDelai") })
	assert.Equal(t, v1alpha1.PhaseReady, k.phase(px))
	k.write("providers.yaml", append(good, "# new\n"...))
	require.NoError(t, p.wait())
}

func TestRefusesToStart(t *testing.T) {
	for name, row := range map[string]struct {
		args []string
		env  []string
		says []string
	}{
		"with nothing": {nil, nil, []string{"--tag is required", "--probe-url is required", "DISCOVERY_TOKEN", "--namespace is required"}},
		"with a tag that is none": {
			[]string{"--tag", "Crawl Prod"}, nil, []string{"--tag: "}},
		"with a Redis URL that is none": {
			nil, []string{"EGRESS_REDIS=redis://:hunter2@[nowhere"}, []string{"EGRESS_REDIS: write it like"}},
	} {
		t.Run(name, func(t *testing.T) {
			kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
			require.NoError(t, os.WriteFile(kubeconfig, []byte(nowhere), 0o600))
			cmd := exec.Command(os.Args[0], append([]string{"--kubeconfig", kubeconfig}, row.args...)...)
			cmd.Env = append([]string{asOperator + "=1"}, row.env...)
			out, err := cmd.CombinedOutput()
			require.Error(t, err)
			for _, says := range row.says {
				assert.Contains(t, string(out), says)
			}
			assert.NotContains(t, string(out), "hunter2")
		})
	}
}

const nowhere = `{"apiVersion": "v1", "kind": "Config", "current-context": "x",
"contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
"clusters": [{"name": "x", "cluster": {"server": "http://127.0.0.1:1"}}], "users": [{"name": "x", "user": {}}]}`
