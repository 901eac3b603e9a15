package kubernetes_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/egressfleet/egress/examples/operator/kubernetes"
	"github.com/egressfleet/egress/provider"
)

func TestConfigReportsEveryBadValue(t *testing.T) {
	_, err := kubernetes.New(kubernetes.Config{
		Namespace: "Proxies", Image: "squid 6", UserID: -1, Port: 80, CallTimeout: -1, FileDescriptors: 1,
		Resources:    corev1.ResourceRequirements{Limits: corev1.ResourceList{"memory": resource.MustParse("-1")}},
		NodeSelector: map[string]string{"bad key": "x"}, Labels: map[string]string{kubernetes.LabelTag: "x", "team": "a/b"},
		Clients: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}, ExtraConf: []string{"a\nb"},
	})
	for _, want := range []string{
		"kubernetes.Config: client: give one", `namespace: "Proxies": must be`, `image: "squid 6": must be`, "userID: -1: must be",
		"port: 80: must lie", `callTimeout: "-1ns": must be`, "fileDescriptors: 1: out of range", `resources.limits.memory: "-1": must not`,
		`nodeSelector["bad key"]: "bad key": must be a label's key`, "are this package's own", `labels["team"]: "a/b": must be`,
		"clients[0]: 0.0.0.0/0: all addresses without users", "extraConf[0]",
	} {
		assert.ErrorContains(t, err, want)
	}
}

// A proxy with credentials may be for all addresses; one without gets none.
func TestAnOpenProxyIsRefused(t *testing.T) {
	who := "crawler"
	p, err := kubernetes.New(kubernetes.Config{
		Client: fake.NewClientBuilder().Build(), Namespace: "proxies", Image: "squid",
		Clients: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}, Credentials: func(string) (string, string) { return who, who },
	})
	require.NoError(t, err)
	_, err = p.Create(t.Context(), provider.CreateRequest{UID: "a", Tag: "test"})
	require.NoError(t, err)
	who = ""
	_, err = p.Create(t.Context(), provider.CreateRequest{UID: "b", Tag: "test"})
	assert.True(t, provider.HasCode(err, provider.CodeInvalidRequest), err)
	assert.ErrorContains(t, err, "would be an open proxy")
	who = "a:secret"
	_, err = p.Create(t.Context(), provider.CreateRequest{UID: "c", Tag: "test"})
	assert.True(t, provider.HasCode(err, provider.CodeInvalidRequest), err)
}

func TestConfigFromAFile(t *testing.T) {
	text, err := yaml.YAMLToJSONStrict([]byte(`
namespace: proxies
image: registry.example.com/squid:6
userID: 31
resources: {limits: {memory: 128Mi}}
nodeSelector: {pool: egress}
labels: {team: crawl}
port: 8888
clients: [10.0.0.0/8]
connectPorts: ["443", "8000-8999"]
allowDestinations: [10.2.0.0/16]
fileDescriptors: 512
extraConf: [connect_timeout 5 seconds]
callTimeout: 5s
`))
	require.NoError(t, err)
	var c kubernetes.Config
	unknown, err := kjson.UnmarshalStrict(text, &c)
	require.NoError(t, err)
	require.Empty(t, unknown)
	c.Client = fake.NewClientBuilder().Build()
	require.NoError(t, c.Validate())
	assert.Equal(t, "5s", c.CallTimeout.String())
	assert.Equal(t, "128Mi", c.Resources.Limits.Memory().String())
}

func TestWhatAPlacementMayNotSay(t *testing.T) {
	p, err := kubernetes.New(kubernetes.Config{Client: fake.NewClientBuilder().Build(), Namespace: "proxies"})
	require.NoError(t, err)
	for want, placement := range map[string]provider.Placement{
		"placement.image: give an image":       {},
		`placement.image: "a b": must be`:      {Image: "a b"},
		`placement.zone: "a/b": must be a val`: {Image: "squid", Zone: "a/b"},
	} {
		id, err := p.Create(t.Context(), provider.CreateRequest{UID: "a", Tag: "test", Placement: placement})
		assert.Equal(t, "namespaces/proxies/pods/"+provider.Name("a"), id)
		assert.True(t, provider.HasCode(err, provider.CodeInvalidRequest), err)
		assert.ErrorIs(t, err, provider.ErrPermanent)
		assert.ErrorContains(t, err, want)
	}
}
