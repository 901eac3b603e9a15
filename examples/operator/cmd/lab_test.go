package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/egressfleet/egress/examples/operator/api/v1alpha1"
	"github.com/egressfleet/egress/internal/proxytest"
)

// The lab's own address, and a name that its resolver gives to every guest.
const (
	labAddress = "10.77.0.1"
	labSite    = "site.lab.test"
)

// labTarget serves pages over TLS on the lab's bridge, under a name that only guests
// can resolve.
func labTarget(t *testing.T) proxytest.Target {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{labSite}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	leaf, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	listener, err := net.Listen("tcp", net.JoinHostPort(labAddress, "443"))
	require.NoError(t, err)
	server := &http.Server{
		ReadHeaderTimeout: 10 * time.Second,
		TLSConfig:         &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}},
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") }),
	}
	go func() { _ = server.ServeTLS(listener, "", "") }()
	t.Cleanup(func() { _ = server.Close() })
	roots := x509.NewCertPool()
	roots.AddCert(leaf)
	return proxytest.Target{URL: "https://" + labSite + "/", Roots: roots, Certificate: leaf}
}

// TestLabOperator goes the whole way on a real hypervisor: a Proxy object, a virtual
// machine, Ready, a lease by HTTP, a page through its Squid, and deletion. The SSH key
// comes late, as from a Secret that is made after the operator.
func TestLabOperator(t *testing.T) {
	if os.Getenv("KVM_TEST_IMAGE_URL") == "" || os.Getenv("KVM_TEST_BRIDGE") == "" {
		t.Skip("needs the lab: make lab-test")
	}
	env := os.Getenv
	k := newCluster(t, labTarget(t))
	key := k.dir + "/late/ssh-privatekey"
	k.write("providers.yaml", fmt.Appendf(nil, `
providers:
  - name: lab
    type: kvm
    kvm:
      sshKeyFile: %q
      knownHostsFile: %q
      images: {lab: {url: %q, sha256: %q}}
      machineTypes: {small: {vcpus: 2, memoryMiB: 768}}
      hosts: [{name: lab, address: %q, user: %q, pool: %q, bridge: %q}]
`, key, env("KVM_TEST_KNOWN_HOSTS"), env("KVM_TEST_IMAGE_URL"), env("KVM_TEST_IMAGE_SHA256"),
		env("KVM_TEST_HOST"), env("KVM_TEST_USER"), env("KVM_TEST_POOL"), env("KVM_TEST_BRIDGE")))
	p := k.start("operator-a", nil, "--proxy-destination", labAddress+"/24", "--orphan-interval", "-1s")
	px := k.proxy("vm", func(px *v1alpha1.Proxy) { px.Spec.Provider = "lab" })
	k.eventually("the missing key is told", func() bool {
		return k.phase(px) != "" && conditionOf(px, v1alpha1.ConditionProviderReachable).Status == "False"
	})
	assert.Contains(t, conditionOf(px, v1alpha1.ConditionProviderReachable).Message, key)

	secret, err := os.ReadFile(env("KVM_TEST_SSH_KEY"))
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(k.dir+"/late", 0o700))
	k.write("late/ssh-privatekey", secret)
	require.Eventually(t, func() bool { return k.phase(px) == v1alpha1.PhaseReady }, 10*time.Minute, time.Second, "%+v", px)
	t.Logf("ready at %s, %s", px.Status.Address, px.Status.ProviderID)
	k.crawl(p)

	require.NoError(t, k.c.Delete(t.Context(), px))
	require.Eventually(t, func() bool {
		return client.IgnoreNotFound(k.c.Get(t.Context(), client.ObjectKeyFromObject(px), px)) == nil && k.phase(px) == ""
	}, 5*time.Minute, time.Second)
	assert.NotContains(t, p.logged(), "DeleteFailed")
}
