package kubernetes_test

import (
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/cloudinit"
	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/examples/operator/kubernetes"
	"github.com/egressfleet/egress/health"
	"github.com/egressfleet/egress/provider"
)

var loopbacks = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}

// target is a page behind TLS, and a prober of it.
func target(t *testing.T) (*health.Prober, cloudinit.PortRange) {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(server.Close)
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	prober, err := health.NewProber(health.ProbeConfig{
		URL: server.URL, Timeout: 20 * time.Second, Transport: endpoint.TransportConfig{TargetRoots: roots},
	})
	require.NoError(t, err)
	u, err := url.Parse(server.URL)
	require.NoError(t, err)
	port, err := strconv.ParseUint(u.Port(), 10, 16)
	require.NoError(t, err)
	return prober, cloudinit.PortRange{First: uint16(port)}
}

// waitRunning waits with the test's patience.
func waitRunning(t *testing.T, p provider.Provider, id string) provider.Instance {
	t.Helper()
	in, err := provider.WaitRunning(t.Context(), p, id, provider.WaitOptions{Interval: 20 * time.Millisecond})
	require.NoError(t, err)
	return in
}

func TestAPageIsFetchedThroughAPod(t *testing.T) {
	ns := newNamespace(t)
	node := startNode(t, ns)
	node.grace = 20 * time.Second
	prober, port := target(t)
	p := ns.newProvider(t, nil, func(c *kubernetes.Config) {
		c.Clients, c.AllowDestinations, c.ConnectPorts = loopbacks, loopbacks, []cloudinit.PortRange{port}
		c.Credentials = func(uid string) (string, string) { return "crawler", "p@:" + uid }
	})
	created := map[string]string{}
	for _, uid := range []string{"a", "b"} {
		id, err := p.Create(t.Context(), provider.CreateRequest{UID: uid, Tag: "test"})
		require.NoError(t, err)
		created[uid] = id
	}
	for uid, id := range created {
		in := waitRunning(t, p, id)
		proxy, err := p.Endpoint(uid, in)
		require.NoError(t, err)
		require.NoError(t, prober.Probe(t.Context(), proxy).Err)

		other, err := p.Endpoint(uid+"?", in)
		require.NoError(t, err)
		assert.Equal(t, endpoint.StageConnect, prober.Probe(t.Context(), other).Stage(), "another one's password")
	}

	// Squid gets time to end its connections.
	require.NoError(t, p.Delete(t.Context(), created["a"]))
	in, err := p.Get(t.Context(), created["a"])
	require.NoError(t, err)
	assert.Equal(t, provider.StateStopping, in.State)
	_, err = p.Create(t.Context(), provider.CreateRequest{UID: "a", Tag: "test"})
	assert.ErrorIs(t, err, provider.ErrTransient, "still being deleted")
	require.NoError(t, provider.WaitGone(t.Context(), p, created["a"], provider.WaitOptions{Interval: 20 * time.Millisecond}))
	proxy, err := p.Endpoint("b", waitRunning(t, p, created["b"]))
	require.NoError(t, err)
	assert.NoError(t, prober.Probe(t.Context(), proxy).Err)
}

func TestUserDataTakesThePlaceOfSquidConf(t *testing.T) {
	ns := newNamespace(t)
	startNode(t, ns)
	prober, port := target(t)
	s := cloudinit.Squid{
		Clients: loopbacks, AllowDestinations: loopbacks, ConnectPorts: []cloudinit.PortRange{port}, FileDescriptors: 256,
		Users:     []cloudinit.SquidUser{{Name: "any", Password: "any"}}, // so that it asks the password file
		ExtraConf: []string{"pid_filename none", "cache_log /dev/null", "pinger_enable off", "coredump_dir /var/spool/squid"},
	}
	conf, err := s.Conf()
	require.NoError(t, err)
	p := ns.newProvider(t, nil, func(c *kubernetes.Config) {
		c.Credentials = func(string) (string, string) { return "crawler", "secret" }
	})
	id, err := p.Create(t.Context(), provider.CreateRequest{UID: "a", Tag: "test", UserData: conf})
	require.NoError(t, err)
	proxy, err := p.Endpoint("a", waitRunning(t, p, id))
	require.NoError(t, err)
	assert.NoError(t, prober.Probe(t.Context(), proxy).Err)
}

// What is no squid.conf is to be seen as a failure.
func TestAConfigurationThatSquidRefuses(t *testing.T) {
	ns := newNamespace(t)
	startNode(t, ns)
	p := ns.newProvider(t, nil)
	id, err := p.Create(t.Context(), provider.CreateRequest{UID: "a", Tag: "test", UserData: provider.UserData("#cloud-config\npassword: hunter2\n")})
	require.NoError(t, err)
	_, err = provider.WaitRunning(t.Context(), p, id, provider.WaitOptions{Interval: 20 * time.Millisecond})
	assert.True(t, provider.HasCode(err, provider.CodeTerminal), err)
	assert.ErrorContains(t, err, "squid ended with code 1")
	assert.NotContains(t, err.Error(), "hunter2")
}

func TestEndpoints(t *testing.T) {
	p := answering(t, func(http.ResponseWriter, *http.Request) {}, func(c *kubernetes.Config) { c.Port = 8888 })
	in := provider.Instance{ID: id, Name: provider.Name("a")}
	_, err := p.Endpoint("a", in)
	assert.ErrorContains(t, err, "has no address yet")
	for addr, want := range map[string]string{"10.1.2.3": "http://10.1.2.3:8888", "fd00::3": "http://[fd00::3]:8888"} {
		in.Addresses = []provider.Address{{Type: provider.AddressInternal, Addr: netip.MustParseAddr(addr)}}
		e, err := p.Endpoint("a", in)
		require.NoError(t, err)
		assert.Equal(t, want, e.URL.String())
		assert.Equal(t, in.Name, e.ID)
	}
}
