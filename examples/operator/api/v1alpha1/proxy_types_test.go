package v1alpha1_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/egressfleet/egress/examples/operator/api/v1alpha1"
	"github.com/egressfleet/egress/examples/operator/internal/apitest"
)

func TestMain(m *testing.M) { apitest.Main(m) }

func managed(change func(*v1alpha1.ProxySpec)) v1alpha1.ProxySpec {
	spec := v1alpha1.ProxySpec{Mode: v1alpha1.Managed, Provider: "dev"}
	change(&spec)
	return spec
}

func external(change func(*v1alpha1.ProxySpec)) v1alpha1.ProxySpec {
	spec := v1alpha1.ProxySpec{Mode: v1alpha1.External, Endpoint: &v1alpha1.Endpoint{URL: "http://192.0.2.7:3128"}}
	change(&spec)
	return spec
}

// The API server itself refuses what makes no sense, and says what does.
func TestWhatIsRefused(t *testing.T) {
	c := apitest.Client(t, apitest.Config(t))
	ns := apitest.Namespace(t, c)
	for name, row := range map[string]struct {
		spec v1alpha1.ProxySpec
		says string
	}{
		"managed without a provider":    {managed(func(s *v1alpha1.ProxySpec) { s.Provider = "" }), "mode Managed needs a provider"},
		"managed with an endpoint":      {managed(func(s *v1alpha1.ProxySpec) { s.Endpoint = &v1alpha1.Endpoint{URL: "http://192.0.2.7:3128"} }), "mode Managed has no endpoint"},
		"external without an endpoint":  {external(func(s *v1alpha1.ProxySpec) { s.Endpoint = nil }), "mode External needs an endpoint"},
		"external with a provider":      {external(func(s *v1alpha1.ProxySpec) { s.Provider = "dev" }), "mode External has no provider"},
		"external with a placement":     {external(func(s *v1alpha1.ProxySpec) { s.Placement = &v1alpha1.Placement{Zone: "a"} }), "mode External has no provider"},
		"external with cloud-init":      {external(func(s *v1alpha1.ProxySpec) { s.CloudInit = &v1alpha1.CloudInit{Inline: "#!/bin/sh\n"} }), "mode External has no provider"},
		"external with a port":          {external(func(s *v1alpha1.ProxySpec) { s.Port = 3128 }), "mode External has no provider"},
		"an endpoint with credentials":  {external(func(s *v1alpha1.ProxySpec) { s.Endpoint.URL = "http://user:secret@192.0.2.7:3128" }), "credentials go into a Secret"},
		"an endpoint without a port":    {external(func(s *v1alpha1.ProxySpec) { s.Endpoint.URL = "http://192.0.2.7" }), "http://host:port"},
		"an endpoint with a path":       {external(func(s *v1alpha1.ProxySpec) { s.Endpoint.URL = "http://192.0.2.7:3128/x" }), "http://host:port"},
		"an endpoint of another scheme": {external(func(s *v1alpha1.ProxySpec) { s.Endpoint.URL = "ftp://192.0.2.7:21" }), "http://host:port"},
		"a mode that is none":           {managed(func(s *v1alpha1.ProxySpec) { s.Mode = "Both" }), "supported values"},
		"a provider with a slash":       {managed(func(s *v1alpha1.ProxySpec) { s.Provider = "a/b" }), "spec.provider"},
		"a port beyond 65535":           {managed(func(s *v1alpha1.ProxySpec) { s.Port = 70000 }), "spec.port"},
		"cloud-init twice": {managed(func(s *v1alpha1.ProxySpec) {
			s.CloudInit = &v1alpha1.CloudInit{Inline: "x", SecretRef: &v1alpha1.SecretRef{Name: "x"}}
		}), "either inline or secretRef"},
		"cloud-init with nothing":          {managed(func(s *v1alpha1.ProxySpec) { s.CloudInit = &v1alpha1.CloudInit{} }), "either inline or secretRef"},
		"inline cloud-init beyond 256 KiB": {managed(func(s *v1alpha1.ProxySpec) { s.CloudInit = &v1alpha1.CloudInit{Inline: strings.Repeat("x", 1<<18+1)} }), "spec.cloudInit.inline"},
		"an attribute without a name":      {managed(func(s *v1alpha1.ProxySpec) { s.Attributes = map[string]string{"": "x"} }), "keys have 1 to 63 characters"},
	} {
		t.Run(name, func(t *testing.T) {
			px := &v1alpha1.Proxy{ObjectMeta: metav1.ObjectMeta{Namespace: ns, GenerateName: "x-"}, Spec: row.spec}
			err := c.Create(t.Context(), px, client.DryRunAll)
			require.Error(t, err)
			assert.Contains(t, err.Error(), row.says)
			assert.NotContains(t, err.Error(), "user:secret@192.0.2.7:3128 ")
		})
	}
}

func TestWhatIsAccepted(t *testing.T) {
	c := apitest.Client(t, apitest.Config(t))
	ns := apitest.Namespace(t, c)
	for name, spec := range map[string]v1alpha1.ProxySpec{
		"mode left out":         {Provider: "dev"},
		"all of a managed one":  managed(func(s *v1alpha1.ProxySpec) { s.Port, s.Placement = 8080, &v1alpha1.Placement{Zone: "a"} }),
		"external":              external(func(*v1alpha1.ProxySpec) {}),
		"external by IPv6":      external(func(s *v1alpha1.ProxySpec) { s.Endpoint.URL = "https://[2001:db8::1]:3129" }),
		"external by a slash":   external(func(s *v1alpha1.ProxySpec) { s.Endpoint.URL = "socks5://proxy.example.com:1080/" }),
		"external with a login": external(func(s *v1alpha1.ProxySpec) { s.Endpoint.SecretRef = &v1alpha1.SecretRef{Name: "login"} }),
	} {
		t.Run(name, func(t *testing.T) {
			px := &v1alpha1.Proxy{ObjectMeta: metav1.ObjectMeta{Namespace: ns, GenerateName: "x-"}, Spec: spec}
			require.NoError(t, c.Create(t.Context(), px, client.DryRunAll))
			assert.NotEmpty(t, px.Spec.Mode, "the default is Managed")
		})
	}
}

func TestWhatCannotBeChanged(t *testing.T) {
	c := apitest.Client(t, apitest.Config(t))
	ns := apitest.Namespace(t, c)
	px := &v1alpha1.Proxy{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "x"}, Spec: managed(func(*v1alpha1.ProxySpec) {})}
	require.NoError(t, c.Create(t.Context(), px))
	for name, row := range map[string]struct {
		change func(*v1alpha1.ProxySpec)
		says   string
	}{
		"another provider": {func(s *v1alpha1.ProxySpec) { s.Provider = "other" }, "provider is immutable"},
		"another mode":     {func(s *v1alpha1.ProxySpec) { *s = external(func(*v1alpha1.ProxySpec) {}) }, "mode is immutable"},
	} {
		t.Run(name, func(t *testing.T) {
			changed := px.DeepCopy()
			row.change(&changed.Spec)
			err := c.Update(t.Context(), changed)
			require.Error(t, err)
			assert.Contains(t, err.Error(), row.says)
		})
	}
	px.Spec.Port, px.Spec.Attributes = 9999, map[string]string{"geo": "eu"}
	require.NoError(t, c.Update(t.Context(), px), "all else can be")
}
