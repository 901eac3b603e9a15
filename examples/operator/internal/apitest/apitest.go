// Package apitest starts a real kube-apiserver and etcd for tests, once for all of
// them in a program.
package apitest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"

	apiruntime "k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"

	"github.com/egressfleet/egress/examples/operator/api/v1alpha1"
)

var shared struct {
	sync.Mutex
	env *envtest.Environment
	cfg *rest.Config
}

// Main runs the tests of a package and ends what they started: call it from
// TestMain.
func Main(m *testing.M) {
	code := m.Run()
	shared.Lock()
	defer shared.Unlock()
	if shared.env != nil {
		if err := shared.env.Stop(); err != nil && code == 0 {
			code = 1
		}
		_ = os.RemoveAll(shared.env.ControlPlane.GetAPIServer().CertDir)
	}
	os.Exit(code)
}

// Config starts the API server, with the CRD, unless it runs, and returns how an
// administrator reaches it. Where its programs are not there, the test is skipped.
func Config(t testing.TB) *rest.Config {
	t.Helper()
	needAssets(t)
	shared.Lock()
	defer shared.Unlock()
	if shared.env == nil {
		env := &envtest.Environment{
			CRDDirectoryPaths:     []string{Path("config", "crd", "bases")},
			ErrorIfCRDPathMissing: true,
		}
		server := env.ControlPlane.GetAPIServer()
		if address := bridgeAddress(); address != "" {
			server.Configure().Set("advertise-address", address)
		}
		var err error
		server.CertDir, err = os.MkdirTemp("", "apiserver-") // its own would go with it in an Outage
		require.NoError(t, err)
		cfg, err := env.Start()
		require.NoError(t, err)
		cfg.QPS, cfg.Burst = -1, 0 // tests wait for the API server alone
		shared.env, shared.cfg = env, cfg
	}
	return rest.CopyConfig(shared.cfg)
}

// Empty starts an API server for one test alone, without the CRD.
func Empty(t testing.TB) *envtest.Environment {
	t.Helper()
	needAssets(t)
	env := &envtest.Environment{}
	_, err := env.Start()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, env.Stop()) })
	return env
}

func needAssets(t testing.TB) {
	t.Helper()
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		t.Skip("needs KUBEBUILDER_ASSETS, a folder with kube-apiserver, etcd and kubectl: make operator-test builds them")
	}
}

// Kubectl is the path of kubectl. Where it is not there, the test is skipped.
func Kubectl(t testing.TB) string {
	t.Helper()
	needAssets(t)
	path := filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), "kubectl")
	if _, err := os.Stat(path); err != nil {
		t.Skip("needs kubectl in KUBEBUILDER_ASSETS: make operator-test builds it")
	}
	return path
}

// Outage ends the API server, runs f, and starts it again with all that it had. While
// somebody watches it does not end by itself: then it is killed after 20 seconds, in
// which it takes no connections either.
func Outage(t testing.TB, f func()) {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	server := shared.env.ControlPlane.GetAPIServer()
	if err := server.Stop(); err != nil {
		require.ErrorContains(t, err, "timeout waiting for process")
	}
	defer func() { require.NoError(t, server.Start()) }()
	f()
}

// bridgeAddress is the lab's own address, where the tests run in it. There is no
// default route there, from which an API server tells what to call itself.
func bridgeAddress() string {
	bridge, err := net.InterfaceByName(os.Getenv("KVM_TEST_BRIDGE"))
	if err != nil {
		return ""
	}
	addresses, err := bridge.Addrs()
	if err != nil || len(addresses) == 0 {
		return ""
	}
	host, _, _ := strings.Cut(addresses[0].String(), "/")
	return host
}

// Path is that of a file of the operator's folder.
func Path(elements ...string) string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(append([]string{filepath.Dir(file), "..", ".."}, elements...)...)
}

// Scheme has the kinds of the operator and Kubernetes' own.
func Scheme() *apiruntime.Scheme {
	scheme := apiruntime.NewScheme()
	_ = clientgoscheme.AddToScheme(scheme)
	_ = v1alpha1.AddToScheme(scheme)
	return scheme
}

// Client is an administrator's.
func Client(t testing.TB, cfg *rest.Config) client.Client {
	t.Helper()
	c, err := client.NewWithWatch(cfg, client.Options{Scheme: Scheme()})
	require.NoError(t, err)
	return c
}

// Namespace makes a namespace for one test.
func Namespace(t testing.TB, c client.Client) string {
	t.Helper()
	name := strings.NewReplacer("/", "-", "_", "-", ".", "-").Replace(strings.ToLower(t.Name()))
	ns := &corev1.Namespace{}
	ns.GenerateName = name[:min(len(name), 40)] + "-"
	require.NoError(t, c.Create(context.Background(), ns))
	return ns.Name
}

// Kustomize builds a folder of the operator, as kubectl apply -k does.
func Kustomize(t testing.TB, elements ...string) (objects []*unstructured.Unstructured) {
	t.Helper()
	resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), Path(elements...))
	require.NoError(t, err)
	text, err := resources.AsYaml()
	require.NoError(t, err)
	return Parse(t, text)
}

// Parse reads the documents of a YAML file.
func Parse(t testing.TB, text []byte) (objects []*unstructured.Unstructured) {
	t.Helper()
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	for {
		o := &unstructured.Unstructured{}
		err := decoder.Decode(o)
		if errors.Is(err, io.EOF) {
			return objects
		}
		require.NoError(t, err, "%s", text)
		objects = append(objects, o)
	}
}

// Apply makes the objects of those kinds, all kinds if none is given. What is there
// already stays.
func Apply(t testing.TB, c client.Client, objects []*unstructured.Unstructured, kinds ...string) {
	t.Helper()
	slices.SortStableFunc(objects, func(a, b *unstructured.Unstructured) int { return rank(a) - rank(b) })
	for _, o := range objects {
		if len(kinds) > 0 && !slices.Contains(kinds, o.GetKind()) {
			continue
		}
		err := c.Create(context.Background(), o.DeepCopy())
		if !apierrors.IsAlreadyExists(err) {
			require.NoError(t, err, "%s %s", o.GetKind(), o.GetName())
		}
	}
}

// rank has namespaces come first, since the others go into them.
func rank(o *unstructured.Unstructured) int {
	if o.GetKind() == "Namespace" {
		return 0
	}
	return 1
}

// KubeConfig is that of a user of the API server, who has what the roles give to
// that name.
func KubeConfig(t testing.TB, name string) []byte {
	t.Helper()
	Config(t)
	shared.Lock()
	defer shared.Unlock()
	return KubeConfigOf(t, shared.env, name)
}

// KubeConfigOf is KubeConfig for that API server.
func KubeConfigOf(t testing.TB, env *envtest.Environment, name string) []byte {
	t.Helper()
	user, err := env.AddUser(envtest.User{Name: name, Groups: []string{"system:serviceaccounts"}}, nil)
	require.NoError(t, err)
	text, err := user.KubeConfig()
	require.NoError(t, err)
	return text
}
