package discovery_test

import (
	"errors"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/examples/operator/api/v1alpha1"
	"github.com/egressfleet/egress/examples/operator/internal/discovery"
	"github.com/egressfleet/egress/lease"
)

// stock is a store with one healthy endpoint.
func stock(t *testing.T) *lease.Memory {
	store, err := lease.NewMemory(lease.MemoryConfig{})
	require.NoError(t, err)
	t.Cleanup(store.Close)
	url, err := endpoint.NewURL("http", "192.0.2.7:3128", "", "")
	require.NoError(t, err)
	require.NoError(t, store.Put(t.Context(), endpoint.Endpoint{ID: "crawl/one", URL: url, Generation: 1}))
	require.NoError(t, store.SetVerdict(t.Context(), "crawl/one", endpoint.Verdict{Health: endpoint.Healthy, Generation: 1}))
	return store
}

// answers is a function that says true so many times, and false from then on.
func answers(n int) func() bool {
	return func() bool { n--; return n >= 0 }
}

func TestNothingIsGrantedWithoutLeading(t *testing.T) {
	req := lease.Request{Holder: "test"}
	for name, leads := range map[string]int{"before it is asked": 0, "while it is asked": 1} {
		t.Run(name, func(t *testing.T) {
			store := stock(t)
			_, err := discovery.WhileLeading(store, answers(leads)).TryAcquire(t.Context(), req)
			require.Error(t, err)
			_, err = discovery.WhileLeading(store, answers(leads)).Acquire(t.Context(), req)
			require.Error(t, err)

			l, err := store.TryAcquire(t.Context(), req)
			require.NoError(t, err, "what was not told is free again")
			_, err = discovery.WhileLeading(store, answers(leads)).Renew(t.Context(), l.Grant().Key, time.Minute)
			require.Error(t, err)
			require.NoError(t, discovery.WhileLeading(store, answers(0)).Release(t.Context(), l.Grant().Key), "giving back harms nobody")
		})
	}
	l, err := discovery.WhileLeading(stock(t), answers(2)).TryAcquire(t.Context(), req)
	require.NoError(t, err)
	assert.NoError(t, l.Release(t.Context()))
}

func pods(t *testing.T, labelled ...string) client.Client {
	b := fake.NewClientBuilder()
	for _, name := range []string{"a", "b"} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "crawl", Name: name, Labels: map[string]string{"app": "x"}}}
		for _, l := range labelled {
			if l == name {
				pod.Labels[v1alpha1.LabelServing] = "true"
			}
		}
		b.WithObjects(pod)
	}
	return b.Build()
}

func labelled(t *testing.T, c client.Client) (names []string) {
	var list corev1.PodList
	require.NoError(t, c.List(t.Context(), &list, client.HasLabels{v1alpha1.LabelServing}))
	for _, p := range list.Items {
		names = append(names, p.Name)
	}
	return names
}

func server(c client.Client) *discovery.Server {
	return &discovery.Server{
		Listen: "127.0.0.1:0", Handler: http.NotFoundHandler(), Client: c,
		Pod: types.NamespacedName{Namespace: "crawl", Name: "a"}, PodLabels: map[string]string{"app": "x"},
	}
}

// A certificate that cannot be read ends the server, and with it the operator, which says
// so: nobody is led to a pod that does not serve.
func TestBadCertificateEndsTheServer(t *testing.T) {
	c := pods(t)
	s := server(c)
	s.CertFile, s.KeyFile = filepath.Join(t.TempDir(), "absent"), "absent"
	done := make(chan error, 1)
	go func() { done <- s.Start(t.Context()) }()
	select {
	case err := <-done:
		require.ErrorContains(t, err, "absent")
	case <-time.After(10 * time.Second):
		require.FailNow(t, "it goes on without serving")
	}
	assert.Empty(t, labelled(t, c))
}

// A former leader that does not know yet takes the label from nobody.
func TestLabelsAreLeftAloneWithoutLeading(t *testing.T) {
	c := pods(t, "b")
	s := server(c)
	s.Leads = func() bool { return false }
	done := make(chan error, 1)
	go func() { done <- s.Start(t.Context()) }()
	select {
	case err := <-done:
		require.NoError(t, errors.Join(err, errors.New("it ended")))
	case <-time.After(500 * time.Millisecond):
	}
	assert.Equal(t, []string{"b"}, labelled(t, c))
}
