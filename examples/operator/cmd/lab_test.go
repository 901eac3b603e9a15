package main

import (
	"crypto/x509"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/egressfleet/egress/examples/operator/api/v1alpha1"
	"github.com/egressfleet/egress/internal/labtest"
	"github.com/egressfleet/egress/internal/proxytest"
)

// TestLabOperator goes the whole way on a real hypervisor: a Proxy object, a virtual
// machine, Ready, a lease by HTTP, a page through its Squid, and deletion. The SSH key
// comes late, as from a Secret that is made after the operator.
func TestLabOperator(t *testing.T) {
	labtest.Require(t)
	certificate := labtest.Site(t)
	roots := x509.NewCertPool()
	roots.AddCert(certificate)
	k := newCluster(t, proxytest.Target{URL: labtest.URL, Roots: roots, Certificate: certificate})
	key := k.dir + "/late/ssh-privatekey"
	k.write("providers.yaml", labtest.Providers(key))
	p := k.start("operator-a", nil, "--proxy-destination", labtest.Network, "--orphan-interval", "-1s")
	px := k.proxy("vm", func(px *v1alpha1.Proxy) { px.Spec.Provider = "lab" })
	k.eventually("the missing key is told", func() bool {
		return k.phase(px) != "" && conditionOf(px, v1alpha1.ConditionProviderReachable).Status == "False"
	})
	assert.Contains(t, conditionOf(px, v1alpha1.ConditionProviderReachable).Message, key)

	secret, err := os.ReadFile(labtest.KeyFile())
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
