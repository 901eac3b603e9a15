package kubernetes_test

import (
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/yaml"

	"github.com/egressfleet/egress/cloudinit"
	"github.com/egressfleet/egress/examples/operator/kubernetes"
	"github.com/egressfleet/egress/provider"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares with a file of testdata.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name+".golden")
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(path, got, 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, string(want), string(got))
}

// made is what a Create makes over a client of memory.
func made(t *testing.T, cfg kubernetes.Config, req provider.CreateRequest) (pod *corev1.Pod, secret *corev1.Secret) {
	t.Helper()
	cfg.Client = fake.NewClientBuilder().Build()
	p, err := kubernetes.New(cfg)
	require.NoError(t, err)
	_, err = p.Create(t.Context(), req)
	require.NoError(t, err)
	pod, secret = &corev1.Pod{}, &corev1.Secret{}
	key := client.ObjectKey{Namespace: cfg.Namespace, Name: provider.Name(req.UID)}
	require.NoError(t, cfg.Client.Get(t.Context(), key, pod))
	require.NoError(t, cfg.Client.Get(t.Context(), key, secret))
	pod.ResourceVersion, secret.ResourceVersion = "", ""
	return pod, secret
}

func asYAML(t *testing.T, o any) []byte {
	t.Helper()
	text, err := yaml.Marshal(o)
	require.NoError(t, err)
	return text
}

func TestTheLeastPod(t *testing.T) {
	pod, secret := made(t, kubernetes.Config{Namespace: "proxies", Image: "registry.example.com/squid:6"},
		provider.CreateRequest{UID: "6f0c1d", Tag: "docs"})
	golden(t, "least.pod.yaml", asYAML(t, pod))
	golden(t, "least.squid.conf", secret.Data["squid.conf"])
	assert.Len(t, secret.Data, 1)
}

func TestThePodWithEverything(t *testing.T) {
	pod, secret := made(t, kubernetes.Config{
		Namespace: "proxies", Image: "registry.example.com/squid:5", UserID: 31, Port: 8888,
		Resources:    corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")}},
		NodeSelector: map[string]string{"pool": "egress"}, Labels: map[string]string{"team": "crawl"},
		Credentials: func(string) (string, string) { return "crawler", "hunter2" },
	}, provider.CreateRequest{
		UID: "6f0c1d", Tag: "docs", Metadata: map[string]string{"spec-hash": "1", "odd": "<\x01>"}, UserData: provider.UserData("http_port 8888\n"),
		Placement: provider.Placement{Zone: "zone-a", Image: "registry.example.com/squid:7"},
	})
	golden(t, "everything.pod.yaml", asYAML(t, pod))
	golden(t, "everything.secret.yaml", asYAML(t, secret))
}

func TestSquidIsConfiguredByTheConfiguration(t *testing.T) {
	_, secret := made(t, kubernetes.Config{
		Namespace: "proxies", Image: "squid", Port: 8888, FileDescriptors: 512,
		Clients:           []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")},
		ConnectPorts:      []cloudinit.PortRange{{First: 8000, Last: 8999}},
		AllowDestinations: []netip.Prefix{netip.MustParsePrefix("10.2.0.0/16")},
		ExtraConf:         []string{"connect_timeout 5 seconds"},
	}, provider.CreateRequest{UID: "6f0c1d", Tag: "docs"})
	conf := string(secret.Data["squid.conf"])
	for _, want := range []string{
		"http_port 8888\n", "egress_clients src 10.1.0.0/16\n", "egress_connect_ports port 8000-8999\n",
		"max_filedescriptors 512\n", "connect_timeout 5 seconds\n",
	} {
		assert.Contains(t, conf, want)
	}
	assert.NotContains(t, conf, "egress_inner dst 10.0.0.0/8")
}
