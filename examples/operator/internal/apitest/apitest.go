// Package apitest starts a real kube-apiserver and etcd for tests, once for all of
// them in a program.
package apitest

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

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
	}
	os.Exit(code)
}

// Config starts the API server, with the CRD, unless it runs, and returns how an
// administrator reaches it. Where its programs are not there, the test is skipped.
func Config(t testing.TB) *rest.Config {
	t.Helper()
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		t.Skip("needs KUBEBUILDER_ASSETS, a folder with kube-apiserver and etcd: make operator-test builds them")
	}
	shared.Lock()
	defer shared.Unlock()
	if shared.env == nil {
		env := &envtest.Environment{
			CRDDirectoryPaths:     []string{Path("config", "crd", "bases")},
			ErrorIfCRDPathMissing: true,
		}
		cfg, err := env.Start()
		require.NoError(t, err)
		cfg.QPS, cfg.Burst = -1, 0 // tests wait for the API server alone
		shared.env, shared.cfg = env, cfg
	}
	return rest.CopyConfig(shared.cfg)
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

// As is a configuration that acts as a service account.
func As(cfg *rest.Config, namespace, account string) *rest.Config {
	cfg = rest.CopyConfig(cfg)
	cfg.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:" + namespace + ":" + account,
		Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"},
	}
	return cfg
}
