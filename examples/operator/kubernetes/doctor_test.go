package kubernetes_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/egressfleet/egress/provider"
)

func TestDiagnose(t *testing.T) {
	ns := newNamespace(t)
	p := ns.newProvider(t, nil)
	findings, err := provider.Diagnose(t.Context(), p)
	require.NoError(t, err)
	assert.Equal(t, []provider.Finding{
		{Scope: ns.name, Check: "permissions", Status: provider.FindingOK, Evidence: "create pods, get pods, list pods, delete pods, create secrets, get secrets, delete secrets"},
		{Scope: ns.name, Check: "create", Status: provider.FindingOK, Evidence: "the API server would take a pod with the image registry.example.com/squid:6"},
	}, findings)
	left, err := ns.leftovers(t.Context())
	require.NoError(t, err)
	assert.Empty(t, left)

	restore, err := ns.exhaust(t.Context(), corev1.ResourcePods)
	require.NoError(t, err)
	findings, err = provider.Diagnose(t.Context(), p)
	restore()
	require.NoError(t, err)
	assert.Equal(t, provider.FindingFailure, findings[1].Status)
	assert.Contains(t, findings[1].Evidence, "exceeded quota")
	assert.Contains(t, findings[1].Remedy, "kubectl describe resourcequota -n "+ns.name)

	elsewhere := *ns
	elsewhere.name, elsewhere.user = ns.name+"-absent", ns.adminConfig
	findings, err = provider.Diagnose(t.Context(), elsewhere.newProvider(t, nil))
	require.NoError(t, err)
	assert.Equal(t, "kubectl create namespace "+elsewhere.name, findings[1].Remedy)
}

func TestWithoutPermissions(t *testing.T) {
	ns := newNamespace(t)
	p := ns.newProvider(t, nil)
	ns.revoke(t)
	id := "namespaces/" + ns.name + "/pods/" + provider.Name("a")
	require.Eventually(t, func() bool { // the authorizer hears of it a little later
		_, err := p.Get(t.Context(), id)
		return provider.HasCode(err, "Forbidden")
	}, 20*time.Second, 20*time.Millisecond)
	_, err := p.Create(t.Context(), provider.CreateRequest{UID: "a", Tag: "test"})
	assert.ErrorIs(t, err, provider.ErrPermanent)
	assert.ErrorIs(t, p.Delete(t.Context(), id), provider.ErrPermanent)
	_, err = p.ListByTag(t.Context(), "test")
	assert.ErrorIs(t, err, provider.ErrPermanent)
	findings, err := provider.Diagnose(t.Context(), p)
	require.NoError(t, err)
	assert.Equal(t, provider.FindingFailure, findings[0].Status)
	assert.Contains(t, findings[0].Evidence, "not allowed: create pods, get pods")
	assert.Equal(t, provider.FindingSkipped, findings[1].Status)
}
