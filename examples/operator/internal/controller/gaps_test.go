package controller

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/examples/operator/api/v1alpha1"
	"github.com/egressfleet/egress/fleet"
	"github.com/egressfleet/egress/provider"
	"github.com/egressfleet/egress/provider/local"
)

// plain is a provider that knows addresses and nothing of proxies, as kvm and gcp.
type plain struct{ recorded *recorder }

func (p plain) Create(ctx context.Context, req provider.CreateRequest) (string, error) {
	return p.recorded.Create(ctx, req)
}

func (p plain) Get(ctx context.Context, id string) (provider.Instance, error) {
	return p.recorded.Get(ctx, id)
}

func (p plain) Delete(ctx context.Context, id string) error { return p.recorded.Delete(ctx, id) }

func (p plain) ListByTag(ctx context.Context, tag string) ([]provider.Instance, error) {
	return p.recorded.ListByTag(ctx, tag)
}

// Without cloud-init the operator installs Squid, and asks it with the password that it
// has put there.
func TestSquidIsInstalledWithAPasswordOfItsOwn(t *testing.T) {
	r := newRig(t)
	seen := &recorder{Provider: r.provider(r.host)}
	r.providers.known["dev"] = plain{seen}
	r.start()
	px := r.proxy("one", func(px *v1alpha1.Proxy) { px.Spec.Port = 8443 })
	require.NoError(t, r.c.Create(t.Context(), px))
	px = r.until(px, "running", func(px *v1alpha1.Proxy) bool { return px.Status.Address != "" })
	assert.Contains(t, seen.last(), "http_port 8443")
	assert.Contains(t, seen.last(), "egress.users")

	password, err := fleet.DerivePassword(rigKey, px.Status.Machine.UID)
	require.NoError(t, err)
	url, err := endpoint.NewURL("http", px.Status.Address, squidUser, password)
	require.NoError(t, err)
	assert.True(t, url.Equal(r.endpoint(px).URL), "%s and %s", url, r.endpoint(px).URL)
	assert.True(t, strings.HasSuffix(px.Status.Address, ":8443"), px.Status.Address)
	assert.NotContains(t, seen.last(), password, "the guest gets its hash")
}

// With cloud-init of the user's the proxy is asked with what the Secret says, and a change
// of that alone makes another machine too.
func TestCredentialsOfASecret(t *testing.T) {
	r := newRig(t)
	r.providers.known["dev"] = plain{&recorder{Provider: r.provider(r.host)}}
	r.start()
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: r.ns, Name: "init", Labels: map[string]string{v1alpha1.LabelCloudInit: "true"}},
		Data:       map[string][]byte{"user-data": []byte("#cloud-config\n"), "username": []byte("me"), "password": []byte("first")},
	}
	require.NoError(t, r.c.Create(t.Context(), secret))
	px := r.proxy("one", func(px *v1alpha1.Proxy) {
		px.Spec.CloudInit = &v1alpha1.CloudInit{SecretRef: &v1alpha1.SecretRef{Name: "init"}}
	})
	require.NoError(t, r.c.Create(t.Context(), px))
	for i, password := range []string{"first", "second"} {
		secret.Data["password"] = []byte(password)
		require.NoError(t, r.c.Update(t.Context(), secret))
		px = r.until(px, "running", func(px *v1alpha1.Proxy) bool {
			return px.Status.Incarnation == int64(i+1) && px.Status.Address != ""
		})
		url, err := endpoint.NewURL("http", px.Status.Address, "me", password)
		require.NoError(t, err)
		assert.True(t, url.Equal(r.endpoint(px).URL), password)
	}
}

// What tells of itself is not waited for: a Secret, a verdict, an annotation.
func TestChangesWakeTheirProxy(t *testing.T) {
	r := newRig(t)
	r.timing.PollInterval, r.timing.ReadyInterval, r.timing.UnhealthyTimeout = time.Hour, time.Hour, time.Hour
	r.start()
	px := r.proxy("one", func(px *v1alpha1.Proxy) {
		px.Spec.CloudInit = &v1alpha1.CloudInit{SecretRef: &v1alpha1.SecretRef{Name: "init"}}
	})
	require.NoError(t, r.c.Create(t.Context(), px))
	r.until(px, "waiting", func(px *v1alpha1.Proxy) bool { return condition(px, "Provisioned").Reason == "CloudInitError" })
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: r.ns, Name: "init", Labels: map[string]string{v1alpha1.LabelCloudInit: "true"}},
		Data:       map[string][]byte{"user-data": []byte("#cloud-config\n")},
	}
	require.NoError(t, r.c.Create(t.Context(), secret))
	px = r.ready(px)
	require.NoError(t, r.host.Inject(px.Status.ProviderID, local.Refuse))
	r.until(px, "Unhealthy", func(px *v1alpha1.Proxy) bool { return px.Status.Phase == v1alpha1.PhaseUnhealthy })
	r.annotate(px, v1alpha1.AnnotationPaused, "true")
	r.until(px, "Paused", func(px *v1alpha1.Proxy) bool { return condition(px, "Paused").Status == metav1.ConditionTrue })
	r.annotate(px, v1alpha1.AnnotationPaused, "false")
	secret.Data["user-data"] = []byte("#cloud-config\n# two\n")
	require.NoError(t, r.c.Update(t.Context(), secret))
	r.event(px, "SpecChanged")
}

// A machine that runs, and whose proxy never answers, has its time, and is replaced.
func TestNeverFetchedThrough(t *testing.T) {
	r := newRig(t)
	r.timing.BootTimeout, r.timing.UnhealthyTimeout = 3*time.Second, time.Millisecond
	r.providers.known["dev"] = plain{&recorder{Provider: r.provider(r.host)}}
	r.start()
	px := r.proxy("one")
	require.NoError(t, r.c.Create(t.Context(), px))
	px = r.until(px, "running", func(px *v1alpha1.Proxy) bool { return px.Status.Address != "" })
	began := time.Now()
	px = r.until(px, "replaced", func(px *v1alpha1.Proxy) bool { return px.Status.Incarnation == 2 })
	assert.Greater(t, time.Since(began), 2*time.Second)
	assert.Equal(t, "BootTimeout", px.Status.BackOff.Reason)
	assert.Contains(t, r.event(px, "BootTimeout"), "never fetched through")
}

// Machines that vanish before they served are not made at full speed.
func TestMachinesThatVanishAtOnceAreWaitedOut(t *testing.T) {
	r := newRig(t)
	cloud := &sayer{Provider: r.provider(r.host)}
	r.providers.known["dev"] = cloud
	r.host.OnCall(refusing("Get", &provider.Error{Class: provider.ErrNotFound, Err: errors.New("not found")}))
	r.timing.RetryInterval = time.Second
	r.start()
	px := r.proxy("one")
	require.NoError(t, r.c.Create(t.Context(), px))
	px = r.until(px, "waiting", func(px *v1alpha1.Proxy) bool { return px.Status.BackOff != nil && px.Status.BackOff.Failures == 2 })
	assert.Equal(t, "Vanished", px.Status.BackOff.Reason)
	assert.LessOrEqual(t, cloud.creates.Load(), int32(2))
}

// What somebody else has under the machine's name is not deleted, neither after a
// collision nor when the record leads there.
func TestAStrangersMachineStays(t *testing.T) {
	r := newRig(t)
	r.start()
	px := r.make("one")
	r.stop()
	stranger, err := r.provider(r.host).Create(t.Context(), provider.CreateRequest{UID: "stranger", Tag: rigTag})
	require.NoError(t, err)
	now := r.get(px)
	now.Status.ProviderID = stranger
	require.NoError(t, r.c.Status().Update(t.Context(), now))
	r.start()
	r.remove(px)
	r.gone(px)
	_, err = r.provider(r.host).Get(t.Context(), stranger)
	require.NoError(t, err)
	assert.Contains(t, r.event(px, "Released"), stranger)

	cloud := &sayer{Provider: r.provider(r.host)}
	r.providers.put("dev", cloud)
	r.host.OnCall(refusing("Create", &provider.Error{
		Class: provider.ErrPermanent, Code: provider.CodeCollision, ID: stranger, Err: errors.New("the name is taken")}))
	other := r.proxy("two")
	require.NoError(t, r.c.Create(t.Context(), other))
	r.until(other, "Failed", func(px *v1alpha1.Proxy) bool {
		return px.Status.Phase == v1alpha1.PhaseFailed && px.Status.Machine == nil
	})
	assert.Zero(t, cloud.deletes.Load())
}

// An image that is on its way is told of, and is no failure.
func TestImageOnItsWay(t *testing.T) {
	r := newRig(t)
	var calls atomic.Int32
	r.host.OnCall(func(_ context.Context, op string) error {
		if op == "Create" && calls.Add(1) <= 3 {
			return &provider.Error{Class: provider.ErrTransient, Code: codeFetchingImage, Err: errors.New("120 of 400 MiB")}
		}
		return nil
	})
	r.timing.RetryInterval, r.timing.PollInterval = time.Hour, 300*time.Millisecond
	r.start()
	px := r.proxy("one")
	require.NoError(t, r.c.Create(t.Context(), px))
	px = r.until(px, "told", func(px *v1alpha1.Proxy) bool {
		return strings.Contains(condition(px, "Provisioned").Message, "120 of 400")
	})
	assert.Nil(t, px.Status.BackOff)
	assert.Equal(t, metav1.ConditionTrue, condition(px, "ProviderReachable").Status)
	r.ready(px)
}

func TestBackOffGrowsToItsMost(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	p := &pass{r: &Reconciler{Timing: Timing{}.withDefaults(), now: func() time.Time { return now }}, px: &v1alpha1.Proxy{}}
	var waits []time.Duration
	for range 10 {
		p.backOff("QuotaExceeded", time.Minute, errors.New("no room"))
		waits = append(waits, p.waiting())
	}
	assert.Equal(t, []time.Duration{time.Minute, 2 * time.Minute, 4 * time.Minute, 8 * time.Minute, 16 * time.Minute}, waits[:5])
	assert.Equal(t, 30*time.Minute, waits[9])
	p.backOff("Vanished", time.Second, errors.New("gone"))
	assert.Equal(t, int32(1), p.px.Status.BackOff.Failures, "another reason begins anew")
	p.backOff("Vanished", time.Second, &provider.Error{Class: provider.ErrQuotaExceeded, RetryAfter: time.Hour, Err: errors.New("later")})
	assert.Equal(t, time.Hour, p.waiting(), "the provider knows better")
}

// Whoever loses the login of a proxy of somebody else's ends leasing it.
func TestExternalLosesItsSecret(t *testing.T) {
	r := newRig(t)
	r.start()
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: r.ns, Name: "login", Labels: map[string]string{v1alpha1.LabelCloudInit: "true"}},
		StringData: map[string]string{"username": "crawler", "password": "secret"},
	}
	require.NoError(t, r.c.Create(t.Context(), secret))
	px := r.proxy("one", func(px *v1alpha1.Proxy) {
		px.Spec = v1alpha1.ProxySpec{Mode: v1alpha1.External, Endpoint: &v1alpha1.Endpoint{
			URL: "http://127.0.0.1:1", SecretRef: &v1alpha1.SecretRef{Name: "login"}}}
	})
	require.NoError(t, r.c.Create(t.Context(), px))
	px = r.until(px, "Unhealthy", func(px *v1alpha1.Proxy) bool { return px.Status.Phase == v1alpha1.PhaseUnhealthy })
	assert.Equal(t, uint64(0), r.endpoint(px).Generation>>53, "JSON keeps the number")
	require.NoError(t, r.c.Delete(t.Context(), secret))
	r.until(px, "told", func(px *v1alpha1.Proxy) bool { return condition(px, "Ready").Reason == "CredentialsError" })
	stats, err := r.store.Stats(t.Context())
	require.NoError(t, err)
	assert.Zero(t, stats.Endpoints.Total)
}
