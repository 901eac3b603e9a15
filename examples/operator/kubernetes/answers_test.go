package kubernetes_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/egressfleet/egress/examples/operator/kubernetes"
	"github.com/egressfleet/egress/provider"
)

// answering is a provider whose API server is that handler.
func answering(t *testing.T, handler http.HandlerFunc, change ...func(*kubernetes.Config)) *kubernetes.Provider {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return at(t, server.URL, server.Client(), change...)
}

// at is a provider with an API server at that URL, whose types it need not ask for.
func at(t *testing.T, url string, with *http.Client, change ...func(*kubernetes.Config)) *kubernetes.Provider {
	t.Helper()
	mapper := meta.NewDefaultRESTMapper(nil)
	for _, kind := range []string{"Pod", "Secret"} {
		mapper.Add(corev1.SchemeGroupVersion.WithKind(kind), meta.RESTScopeNamespace)
	}
	c, err := client.New(&rest.Config{Host: url, QPS: -1}, client.Options{Mapper: mapper, HTTPClient: with})
	require.NoError(t, err)
	cfg := kubernetes.Config{Client: c, Namespace: "proxies", Image: "squid"}
	for _, f := range change {
		f(&cfg)
	}
	p, err := kubernetes.New(cfg)
	require.NoError(t, err)
	return p
}

// send writes an object, or a status, as the API does.
func send(w http.ResponseWriter, code int, o any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(o)
}

func status(code int32, reason metav1.StatusReason, message string, details *metav1.StatusDetails) metav1.Status {
	return metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure, Code: code, Reason: reason, Message: message, Details: details,
	}
}

var id = "namespaces/proxies/pods/" + provider.Name("a")

func TestEveryAnswerHasAClass(t *testing.T) {
	ours := &metav1.StatusDetails{Name: provider.Name("a"), Kind: "pods"}
	for name, c := range map[string]struct {
		answer metav1.Status
		class  error
		code   string
	}{
		"the pod is absent":   {status(404, "NotFound", `pods "x" not found`, ours), provider.ErrNotFound, "NotFound"},
		"another is absent":   {status(404, "NotFound", "", &metav1.StatusDetails{Name: "b", Kind: "pods"}), provider.ErrPermanent, "NotFound"},
		"no permission":       {status(403, "Forbidden", `pods "x" is forbidden: User "u" cannot get resource`, ours), provider.ErrPermanent, "Forbidden"},
		"no quota":            {status(403, "Forbidden", `pods "x" is forbidden: exceeded quota: compute, requested: pods=1, used: pods=9, limited: pods=9`, ours), provider.ErrQuotaExceeded, "Forbidden"},
		"a quota that is new": {status(403, "Forbidden", `pods "x" is forbidden: status unknown for quota: compute`, ours), provider.ErrTransient, "Forbidden"},
		"a limit in a quota":  {status(403, "Forbidden", `pods "x" is forbidden: failed quota: compute: must specify limits.cpu`, ours), provider.ErrPermanent, "Forbidden"},
		"no credentials":      {status(401, "Unauthorized", "Unauthorized", nil), provider.ErrPermanent, "Unauthorized"},
		"invalid":             {status(422, "Invalid", "spec is invalid", ours), provider.ErrPermanent, "Invalid"},
		"a conflict":          {status(409, "Conflict", "the UID differs", ours), provider.ErrTransient, "Conflict"},
		"too many requests":   {status(429, "TooManyRequests", "wait", &metav1.StatusDetails{RetryAfterSeconds: 7}), provider.ErrTransient, "TooManyRequests"},
		"an internal error":   {status(500, "InternalError", "etcdserver: no leader", nil), provider.ErrTransient, "InternalError"},
		"a timeout":           {status(504, "Timeout", "took too long", nil), provider.ErrTransient, "Timeout"},
		"no storage":          {status(507, "", "full", nil), provider.ErrQuotaExceeded, "HTTP 507"},
	} {
		t.Run(name, func(t *testing.T) {
			p := answering(t, func(w http.ResponseWriter, _ *http.Request) { send(w, int(c.answer.Code), c.answer) })
			_, err := p.Get(t.Context(), id)
			assert.ErrorIs(t, err, c.class)
			assert.True(t, provider.HasCode(err, c.code), "%v", err)
			var known *provider.Error
			require.ErrorAs(t, err, &known)
			assert.Equal(t, c.answer.Code == 429, known.RetryAfter == 7*time.Second)
		})
	}
}

// A load balancer whose API servers are gone says 404 or 502 of everything.
func TestOnlyTheAPIServerProvesAnAbsence(t *testing.T) {
	for code, word := range map[int]string{404: "HTTP 404", 502: "HTTP 502"} {
		p := answering(t, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "default backend", code) })
		_, err := p.Get(t.Context(), id)
		assert.ErrorIs(t, err, provider.ErrTransient)
		assert.NotErrorIs(t, err, provider.ErrNotFound)
		assert.True(t, provider.HasCode(err, word), err)
		assert.ErrorIs(t, p.Delete(t.Context(), id), provider.ErrTransient)
	}
}

func TestAServerThatIsDownIsTransient(t *testing.T) {
	server := httptest.NewServer(nil)
	server.Close()
	p := at(t, server.URL, server.Client())
	_, err := p.ListByTag(t.Context(), "test")
	assert.ErrorIs(t, err, provider.ErrTransient)
	assert.True(t, provider.HasCode(err, "ConnectionLost"), err)
}

func TestItsOwnTimeoutIsNotTheCallers(t *testing.T) {
	p := answering(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		func(c *kubernetes.Config) { c.CallTimeout = provider.Duration(20 * time.Millisecond) })
	_, err := p.Get(t.Context(), id)
	assert.ErrorIs(t, err, provider.ErrTransient)
	assert.NotErrorIs(t, err, context.DeadlineExceeded)
	assert.True(t, provider.HasCode(err, "NoAnswer"), err)
}

// A client asks for the API's types first, and takes no context for that.
func TestAClientThatForgetsTheContextIsLeftBehind(t *testing.T) {
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	defer server.Close()
	defer close(release)
	c, err := client.New(&rest.Config{Host: server.URL}, client.Options{HTTPClient: server.Client()})
	require.NoError(t, err)
	p, err := kubernetes.New(kubernetes.Config{Client: c, Namespace: "proxies", Image: "squid"})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err = p.Get(ctx, id)
	assert.ErrorIs(t, err, context.DeadlineExceeded)
}

func TestAClientWithoutTheCoreTypes(t *testing.T) {
	c, err := client.New(&rest.Config{Host: "http://127.0.0.1:1"}, client.Options{
		Scheme: runtime.NewScheme(), Mapper: meta.NewDefaultRESTMapper(nil),
	})
	require.NoError(t, err)
	p, err := kubernetes.New(kubernetes.Config{Client: c, Namespace: "proxies", Image: "squid"})
	require.NoError(t, err)
	_, err = p.Get(t.Context(), id)
	assert.ErrorIs(t, err, provider.ErrPermanent)
	assert.True(t, provider.HasCode(err, "BadClient"), err)
}

// A webhook may repeat what it refuses.
func TestAMessageThatRepeatsTheSecretIsWithheld(t *testing.T) {
	var said string
	p := answering(t, func(w http.ResponseWriter, r *http.Request) {
		name := provider.Name("a")
		switch {
		case strings.HasSuffix(r.URL.Path, "/secrets") && r.Method == http.MethodPost:
			send(w, 403, status(403, "Forbidden", "admission webhook denied: "+said, nil))
		case r.Method == http.MethodGet:
			send(w, 404, status(404, "NotFound", "", &metav1.StatusDetails{Name: name, Kind: strings.Split(r.URL.Path, "/")[5]}))
		default:
			send(w, 201, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
				kubernetes.LabelManaged: "true", kubernetes.LabelTag: "test",
			}, Annotations: map[string]string{kubernetes.AnnotationUID: "a", kubernetes.AnnotationMetadata: `{"version":1}`}}})
		}
	}, func(c *kubernetes.Config) {
		c.Credentials = func(string) (string, string) { return "crawler", "correct horse" }
	})
	for _, said = range []string{"auth_param basic hunter2", "password: correct horse", "no such team"} {
		_, err := p.Create(t.Context(), provider.CreateRequest{UID: "a", Tag: "test", UserData: provider.UserData("# conf\nauth_param basic hunter2\n")})
		assert.ErrorIs(t, err, provider.ErrPermanent)
		assert.True(t, provider.HasCode(err, "Forbidden"), err)
		assert.NotContains(t, err.Error(), "hunter2")
		assert.NotContains(t, err.Error(), "correct horse")
	}
	_, err := p.Create(t.Context(), provider.CreateRequest{UID: "a", Tag: "test"})
	assert.ErrorContains(t, err, "no such team")
}

// item is a pod of a list.
func item(uid, tag, metadata string) corev1.Pod {
	return corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "proxies", Name: provider.Name(uid),
		Labels:      map[string]string{kubernetes.LabelManaged: "true", kubernetes.LabelTag: tag},
		Annotations: map[string]string{kubernetes.AnnotationUID: uid, kubernetes.AnnotationMetadata: metadata},
	}}
}

func list(next string, items ...corev1.Pod) *corev1.PodList {
	return &corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}, ListMeta: metav1.ListMeta{Continue: next}, Items: items}
}

func TestListsAreReadToTheLastPage(t *testing.T) {
	good := `{"version":1}`
	pages := map[string]*corev1.PodList{
		"":    list("two", item("a", "test", good), item("b", "other", good)),
		"two": list("three", item("c", "test", good)), "three": list("", item("d", "test", good)),
	}
	p := answering(t, func(w http.ResponseWriter, r *http.Request) {
		assert.Contains(t, r.URL.Query().Get("labelSelector"), kubernetes.LabelTag+"=test")
		send(w, 200, pages[r.URL.Query().Get("continue")])
	})
	all, err := p.ListByTag(t.Context(), "test")
	require.NoError(t, err)
	var uids []string
	for _, in := range all {
		uids = append(uids, in.UID)
	}
	assert.Equal(t, []string{"a", "c", "d"}, uids, "all pages, and nothing of another tag")
}

func TestAListThatGotTooOldIsReadAgain(t *testing.T) {
	whole := list("", item("a", "test", `{"version":1}`), item("b", "test", `{"version":1}`))
	p := answering(t, func(w http.ResponseWriter, r *http.Request) {
		switch q := r.URL.Query(); {
		case q.Get("continue") != "":
			send(w, 410, status(410, metav1.StatusReasonExpired, "the continue parameter is too old", nil))
		case q.Get("limit") != "":
			send(w, 200, list("two", item("a", "test", `{"version":1}`)))
		default:
			send(w, 200, whole)
		}
	})
	all, err := p.ListByTag(t.Context(), "test")
	require.NoError(t, err)
	assert.Len(t, all, 2)
}

func TestAnUnreadableInstanceIsMissingInTheList(t *testing.T) {
	p := answering(t, func(w http.ResponseWriter, _ *http.Request) {
		send(w, 200, list("", item("a", "test", `{"version":1}`), item("b", "test", `{"version":2}`), item("c", "test", "{")))
	})
	all, err := p.ListByTag(t.Context(), "test")
	assert.Len(t, all, 1)
	var partial *provider.PartialError
	require.ErrorAs(t, err, &partial)
	require.Len(t, partial.Missing, 2)
	assert.Equal(t, "namespaces/proxies/pods/"+provider.Name("b"), partial.Missing[0].Scope)
	assert.True(t, provider.HasCode(partial.Missing[0].Err, "BadRecord"))
	assert.ErrorContains(t, partial.Missing[0].Err, "has version 2, this program reads 1")
}
