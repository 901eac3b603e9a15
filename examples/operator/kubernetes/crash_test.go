package kubernetes_test

import (
	"context"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/egressfleet/egress/provider"
)

// cutAfter lets n requests about pods and Secrets through and cuts the wire then.
// With lost set the n-th has its effect, and its answer is lost.
func (w *wire) cutAfter(n int64, lost bool) {
	var seen atomic.Int64
	w.set(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		if !strings.Contains(r.URL.Path, "/namespaces/") {
			return next.RoundTrip(r)
		}
		count := seen.Add(1)
		if count > n {
			return nil, errCut
		}
		resp, err := next.RoundTrip(r)
		if err == nil && lost && count == n {
			_ = resp.Body.Close()
			return nil, errCut
		}
		return resp, err
	})
}

// A program may be killed after each call, and after each answer that got lost.
func TestCreateAndDeleteCutAfterEachCall(t *testing.T) {
	ns := newNamespace(t)
	for n := range int64(6) {
		for _, lost := range []bool{false, true} {
			uid := "cut-" + string(rune('a'+n))
			if lost {
				uid += "-lost"
			}
			req := provider.CreateRequest{UID: uid, Tag: "test", Metadata: map[string]string{"part": uid}}
			w := &wire{}
			w.cutAfter(n, lost)
			early, err := ns.newProvider(t, w).Create(t.Context(), req)
			if err != nil {
				assert.ErrorIs(t, err, provider.ErrTransient)
			}
			p := ns.newProvider(t, nil)
			id, err := p.Create(t.Context(), req)
			require.NoError(t, err)
			assert.Equal(t, early, id)
			ns.wantWhole(t, id)

			w = &wire{}
			w.cutAfter(n, lost)
			err = ns.newProvider(t, w).Delete(t.Context(), id)
			if err != nil {
				assert.ErrorIs(t, err, provider.ErrTransient)
				all, err := p.ListByTag(t.Context(), "test")
				require.NoError(t, err)
				if left, _ := ns.leftovers(t.Context()); len(left) > 0 {
					assert.Len(t, all, 1, "what is there is listed: %q", left)
				}
			}
			require.NoError(t, p.Delete(t.Context(), id))
			left, err := ns.leftovers(t.Context())
			require.NoError(t, err)
			assert.Empty(t, left)
		}
	}
}

// wantWhole checks that an instance has its pod and the Secret of that pod.
func (n *namespace) wantWhole(t *testing.T, id string) {
	t.Helper()
	pod, err := n.pod(t.Context(), id)
	require.NoError(t, err)
	secret, err := n.secret(t.Context(), id)
	require.NoError(t, err)
	require.Len(t, secret.OwnerReferences, 1)
	assert.Equal(t, pod.UID, secret.OwnerReferences[0].UID)
}

// Without its garbage collector a cluster keeps the Secret of a pod that vanished.
func TestTheSecretOfAnEarlierPodIsReplaced(t *testing.T) {
	ns := newNamespace(t)
	p := ns.newProvider(t, nil)
	req := provider.CreateRequest{UID: "a", Tag: "test"}
	id, err := p.Create(t.Context(), req)
	require.NoError(t, err)
	require.NoError(t, ns.vanish(t.Context(), id))
	_, err = p.Get(t.Context(), id)
	require.ErrorIs(t, err, provider.ErrNotFound)
	_, err = p.Create(t.Context(), req)
	require.NoError(t, err)
	ns.wantWhole(t, id)

	require.NoError(t, ns.vanish(t.Context(), id))
	require.NoError(t, p.Delete(t.Context(), id))
	left, err := ns.leftovers(t.Context())
	require.NoError(t, err)
	assert.Empty(t, left, "Delete of what vanished takes what it left")
}

func TestASecretOfSomebodyElse(t *testing.T) {
	ns := newNamespace(t)
	p := ns.newProvider(t, nil)
	theirs := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns.name, Name: provider.Name("a")}, Data: map[string][]byte{"k": []byte("v")},
	}
	require.NoError(t, ns.admin.Create(t.Context(), theirs))
	id, err := p.Create(t.Context(), provider.CreateRequest{UID: "a", Tag: "test"})
	assert.True(t, provider.HasCode(err, provider.CodeCollision), err)
	_, err = p.Get(t.Context(), id)
	assert.ErrorIs(t, err, provider.ErrNotFound, "the pod that cannot get its Secret is undone")
	require.NoError(t, p.Delete(t.Context(), id))
	now, err := ns.secret(t.Context(), id)
	require.NoError(t, err)
	assert.Equal(t, theirs.UID, now.UID)
}

func TestAPodWithoutQuotaForItsSecretIsUndone(t *testing.T) {
	ns := newNamespace(t)
	p := ns.newProvider(t, nil)
	restore, err := ns.exhaust(t.Context(), corev1.ResourceSecrets)
	require.NoError(t, err)
	req := provider.CreateRequest{UID: "a", Tag: "test"}
	id, err := p.Create(t.Context(), req)
	require.ErrorIs(t, err, provider.ErrQuotaExceeded)
	assert.ErrorContains(t, err, "exceeded quota: none")
	_, err = p.Get(t.Context(), id)
	assert.ErrorIs(t, err, provider.ErrNotFound)
	restore()
	_, err = p.Create(t.Context(), req)
	require.NoError(t, err)

	restore, err = ns.exhaust(t.Context(), corev1.ResourcePods)
	require.NoError(t, err)
	defer restore()
	_, err = p.Create(t.Context(), req)
	assert.NoError(t, err, "what exists needs no quota")
}

// A Delete that comes late takes no pod that took the name since.
func TestALateDeleteSparesTheNextPod(t *testing.T) {
	ns := newNamespace(t)
	p := ns.newProvider(t, nil)
	req := provider.CreateRequest{UID: "a", Tag: "test"}
	id, err := p.Create(t.Context(), req)
	require.NoError(t, err)
	w := &wire{}
	w.set(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		if r.Method == http.MethodDelete && strings.Contains(r.URL.Path, "/pods/") {
			require.NoError(t, p.Delete(context.WithoutCancel(r.Context()), id))
			_, err := p.Create(context.WithoutCancel(r.Context()), req)
			require.NoError(t, err)
		}
		return next.RoundTrip(r)
	})
	assert.ErrorIs(t, ns.newProvider(t, w).Delete(t.Context(), id), provider.ErrTransient)
	ns.wantWhole(t, id)
}
