package controller

import (
	"context"
	"errors"
	"fmt"
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
	"github.com/egressfleet/egress/lease"
	"github.com/egressfleet/egress/provider"
	"github.com/egressfleet/egress/provider/local"
)

func TestCreateProbesAndLeases(t *testing.T) {
	r := newRig(t)
	r.start()
	px := r.make("one", func(px *v1alpha1.Proxy) { px.Spec.Attributes = map[string]string{"geo": "eu"} })

	assert.Equal(t, px.Generation, px.Status.ObservedGeneration)
	assert.Equal(t, int64(1), px.Status.Incarnation)
	assert.Contains(t, px.Finalizers, v1alpha1.Finalizer)
	assert.Equal(t, string(px.UID)+"-1", px.Status.Machine.UID)
	assert.True(t, strings.HasPrefix(px.Status.ProviderID, "hosts/local/"), px.Status.ProviderID)
	assert.NotEmpty(t, px.Status.Address)
	for kind, reason := range map[string]string{"Ready": "Healthy", "Provisioned": "Running", "ProviderReachable": "ProviderAnswers"} {
		c := condition(px, kind)
		assert.Equal(t, metav1.ConditionTrue, c.Status, kind)
		assert.Equal(t, reason, c.Reason, kind)
	}
	assert.Contains(t, r.event(px, "Created"), px.Status.ProviderID)
	r.event(px, "Healthy")

	l, err := r.store.Acquire(t.Context(), lease.Request{Holder: "test", Domain: "example.com", Selector: lease.Selector{{Key: "geo", Operator: lease.In, Values: []string{"eu"}}}})
	require.NoError(t, err)
	defer l.Release(t.Context())
	resp, err := l.Client().Get(r.target.URL)
	require.NoError(t, err)
	resp.Body.Close()
	assert.Equal(t, 200, resp.StatusCode)
}

func TestStatusIsWrittenOnlyOnChange(t *testing.T) {
	r := newRig(t)
	r.start()
	px := r.make("one")
	time.Sleep(2 * r.timing.ReadyInterval) // what was under way is done
	px = r.get(px)
	before := r.writes()
	time.Sleep(5 * r.timing.ReadyInterval)
	assert.Equal(t, before, r.writes(), "a look that sees nothing new writes nothing")
	assert.Equal(t, px.ResourceVersion, r.get(px).ResourceVersion)
}

// The record is there before the machine, and a crash between Create and the write
// of its ID makes no second one.
func TestCrashBetweenCreateAndStatusWrite(t *testing.T) {
	r := newRig(t)
	r.start()
	var crashed atomic.Int32
	r.meddle(func(c *interrupted) {
		c.failStatus = func(px *v1alpha1.Proxy) error {
			if px.Status.ProviderID != "" {
				crashed.Add(1)
				return errCrash
			}
			return nil
		}
	})
	px := r.proxy("one")
	require.NoError(t, r.c.Create(t.Context(), px))
	require.Eventually(t, func() bool { return crashed.Load() > 0 }, patient, 10*time.Millisecond)
	r.stop()
	left := r.get(px)
	require.NotNil(t, left.Status.Machine, "the record was written first")
	assert.Empty(t, left.Status.ProviderID)
	require.Len(t, r.machines(), 1)

	r.start() // another process
	px = r.ready(px)
	require.Len(t, r.machines(), 1)
	assert.Equal(t, left.Status.Machine.UID, px.Status.Machine.UID)
	assert.Equal(t, int64(1), px.Status.Incarnation)
}

func TestSpecChangeReplaces(t *testing.T) {
	for name, change := range map[string]func(*v1alpha1.Proxy){
		"port":       func(px *v1alpha1.Proxy) { px.Spec.Port = 3129 },
		"cloud-init": func(px *v1alpha1.Proxy) { px.Spec.CloudInit = &v1alpha1.CloudInit{Inline: "#cloud-config\n"} },
		"image":      func(px *v1alpha1.Proxy) { px.Spec.Placement = &v1alpha1.Placement{Image: "other"} },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.start()
			px := r.make("one")
			old := px.Status
			r.edit(px, change)
			px = r.until(px, "replaced", func(px *v1alpha1.Proxy) bool {
				return px.Status.Incarnation == 2 && px.Status.Phase == v1alpha1.PhaseReady
			})
			assert.NotEqual(t, old.Machine.UID, px.Status.Machine.UID)
			machines := r.machines()
			require.Len(t, machines, 1, "the former one is gone")
			assert.Equal(t, px.Status.ProviderID, machines[0].ID)
			assert.Contains(t, r.event(px, "SpecChanged"), old.ProviderID)
		})
	}
}

func TestAttributesChangeKeepsTheMachine(t *testing.T) {
	r := newRig(t)
	r.start()
	px := r.make("one")
	r.edit(px, func(px *v1alpha1.Proxy) { px.Spec.Attributes = map[string]string{"purpose": "news"} })
	wanted := lease.Request{Holder: "test", Selector: lease.Selector{{Key: "purpose", Operator: lease.In, Values: []string{"news"}}}}
	require.Eventually(t, func() bool {
		l, err := r.store.TryAcquire(t.Context(), wanted)
		if err == nil {
			_ = l.Release(t.Context())
		}
		return err == nil
	}, patient, 20*time.Millisecond)
	assert.Equal(t, px.Status.Machine.UID, r.get(px).Status.Machine.UID)
}

// An empty placement says as much as none.
func TestEmptyPlacementKeepsTheMachine(t *testing.T) {
	r := newRig(t)
	r.start()
	px := r.make("one")
	r.edit(px, func(px *v1alpha1.Proxy) { px.Spec.Placement = &v1alpha1.Placement{} })
	now := r.until(px, "looked at", func(now *v1alpha1.Proxy) bool { return now.Status.ObservedGeneration > px.Generation })
	assert.Equal(t, px.Status.Machine.UID, now.Status.Machine.UID)
	assert.Nil(t, now.Status.Machine.Ending)
}

// A zone edit moves the machine: the old one, in the old zone, is deleted.
func TestZoneEditLosesNoMachine(t *testing.T) {
	r := newRig(t)
	other := r.newHost("other", 0)
	r.providers.known["dev"] = byZone{"local": r.provider(r.host), "other": r.provider(other)}
	r.start()
	px := r.make("one", func(px *v1alpha1.Proxy) { px.Spec.Placement = &v1alpha1.Placement{Zone: "local"} })
	require.Len(t, r.machines(), 1)
	r.edit(px, func(px *v1alpha1.Proxy) { px.Spec.Placement.Zone = "other" })
	px = r.until(px, "moved", func(px *v1alpha1.Proxy) bool {
		return strings.HasPrefix(px.Status.ProviderID, "hosts/other/") && px.Status.Phase == v1alpha1.PhaseReady
	})
	assert.Empty(t, r.machines(r.host), "nothing is left in the old zone")
	assert.Len(t, r.machines(other), 1)
	r.remove(px)
	r.gone(px)
	assert.Empty(t, r.machines(r.host, other))
}

func TestPermanentFailureStopsUntilSomethingChanges(t *testing.T) {
	r := newRig(t)
	var calls atomic.Int32
	refuse := func(_ context.Context, op string) error {
		if op == "Create" {
			calls.Add(1)
			return &provider.Error{Class: provider.ErrPermanent, Code: "BadImage", Err: errors.New(`image "debian-99" is not configured`)}
		}
		return nil
	}
	r.host.OnCall(refuse)
	r.start()
	px := r.proxy("one", func(px *v1alpha1.Proxy) { px.Spec.Placement = &v1alpha1.Placement{Image: "debian-99"} })
	require.NoError(t, r.c.Create(t.Context(), px))
	px = r.until(px, "Failed", func(px *v1alpha1.Proxy) bool {
		return px.Status.Phase == v1alpha1.PhaseFailed && px.Status.Machine == nil
	})
	assert.Contains(t, px.Status.LastReason, "debian-99", "it names the value")
	assert.Equal(t, "Refused", condition(px, "Provisioned").Reason)
	assert.Contains(t, r.event(px, "Refused"), "debian-99")
	n := calls.Load()
	r.annotate(px, "unrelated", "x")
	time.Sleep(time.Second)
	assert.Equal(t, n, calls.Load(), "it is not tried again as it is")

	for what, mend := range map[string]func(){
		"another spec":           func() { r.edit(px, func(px *v1alpha1.Proxy) { px.Spec.Port = px.Spec.Port%1000 + 3200 }) },
		"another providers file": func() { r.providers.put("dev", r.provider(r.host)); r.annotate(px, "unrelated", "y") },
		"a wish":                 func() { r.annotate(px, v1alpha1.AnnotationReconcile, "1") },
	} {
		n := calls.Load()
		mend()
		require.Eventually(t, func() bool { return calls.Load() > n }, patient, 20*time.Millisecond, what)
		px = r.until(px, "Failed again", func(px *v1alpha1.Proxy) bool {
			return px.Status.Phase == v1alpha1.PhaseFailed && px.Status.Machine == nil
		})
	}
	r.host.OnCall(nil)
	r.annotate(px, v1alpha1.AnnotationReconcile, "2")
	r.ready(px)
}

func TestQuotaIsWaitedOutAndRemembered(t *testing.T) {
	r := newRig(t)
	full := r.newHost("full", 1)
	r.providers.known["dev"] = r.provider(full)
	r.timing.QuotaInterval = 2 * time.Second
	r.start()
	first := r.make("first")
	px := r.proxy("second")
	require.NoError(t, r.c.Create(t.Context(), px))
	px = r.until(px, "without room", func(px *v1alpha1.Proxy) bool { return px.Status.BackOff != nil && px.Status.Machine == nil })
	assert.Equal(t, "QuotaExceeded", px.Status.BackOff.Reason)
	assert.Equal(t, v1alpha1.PhasePending, px.Status.Phase)
	assert.True(t, px.Status.BackOff.NextTry.After(time.Now()), "it waits")
	r.event(px, "QuotaExceeded")

	r.stop()
	r.start() // a restart forgets no back-off
	again := r.until(px, "tried again", func(px *v1alpha1.Proxy) bool { return px.Status.BackOff != nil && px.Status.BackOff.Failures >= 2 })
	assert.Greater(t, again.Status.Incarnation, px.Status.Incarnation, "each machine has a UID of its own")
	r.remove(first)
	r.gone(first)
	px = r.ready(px)
	assert.Nil(t, px.Status.BackOff)
}

// Where the place is the provider's to choose, one without room is left for another.
func TestStockoutGoesElsewhere(t *testing.T) {
	r := newRig(t)
	full, free := r.newHost("a-full", 1), r.newHost("b-free", 0)
	r.providers.known["dev"] = byZone{"a-full": r.provider(full), "b-free": r.provider(free)}
	r.start()
	r.make("first")
	px := r.make("second")
	assert.Equal(t, "b-free", px.Status.Machine.Placement.Zone)
	assert.Equal(t, int64(2), px.Status.Incarnation)
	assert.Len(t, r.machines(full, free), 2)
}

func TestBootTimeoutReplacesAndBacksOff(t *testing.T) {
	r := newRig(t)
	slow, err := local.NewHost(local.HostConfig{Name: "slow", BootDelay: time.Hour})
	require.NoError(t, err)
	t.Cleanup(slow.Close)
	r.providers.known["dev"] = r.provider(slow)
	r.timing.BootTimeout = time.Second
	r.start()
	px := r.proxy("one")
	require.NoError(t, r.c.Create(t.Context(), px))
	px = r.until(px, "replaced twice", func(px *v1alpha1.Proxy) bool { return px.Status.BackOff != nil && px.Status.BackOff.Failures == 2 })
	assert.Equal(t, "BootTimeout", px.Status.BackOff.Reason)
	assert.Contains(t, px.Status.LastReason, "Provisioning")
	r.event(px, "BootTimeout")
	assert.LessOrEqual(t, len(r.machines(slow)), 1)
}

func TestDeadMachinesAreReplaced(t *testing.T) {
	for fault, reason := range map[local.Fault]string{
		local.Stop: "Terminated", local.Crash: "Terminated", local.Vanish: "Vanished", local.ProxyDown: "UnhealthyTimeout", local.Hang: "UnhealthyTimeout",
	} {
		t.Run(string(fault), func(t *testing.T) {
			r := newRig(t)
			r.start()
			px := r.make("one")
			old := px.Status.Machine.UID
			require.NoError(t, r.host.Inject(px.Status.ProviderID, fault))
			px = r.until(px, "replaced", func(px *v1alpha1.Proxy) bool {
				return px.Status.Machine != nil && px.Status.Machine.UID != old && px.Status.Phase == v1alpha1.PhaseReady
			})
			r.event(px, reason)
			assert.Len(t, r.machines(), 1)
		})
	}
}

func TestBlipReplacesNothing(t *testing.T) {
	r := newRig(t)
	r.timing.UnhealthyTimeout = time.Hour
	r.start()
	px := r.make("one")
	require.NoError(t, r.host.Inject(px.Status.ProviderID, local.Refuse))
	r.until(px, "Unhealthy", func(px *v1alpha1.Proxy) bool { return px.Status.Phase == v1alpha1.PhaseUnhealthy })
	_, err := r.store.TryAcquire(t.Context(), lease.Request{Holder: "test"})
	require.Error(t, err, "an unhealthy proxy is not leased")
	require.NoError(t, r.host.Inject(px.Status.ProviderID, local.Sound))
	now := r.ready(px)
	assert.Equal(t, px.Status.Machine.UID, now.Status.Machine.UID)
}

// A provider that does not answer is a condition, and no reason to be unready.
func TestProviderUnreachableKeepsReady(t *testing.T) {
	r := newRig(t)
	r.start()
	px := r.make("one")
	n := 0
	r.host.OnCall(func(context.Context, string) error {
		n++
		return &provider.Error{Class: provider.ErrTransient, Err: fmt.Errorf("connection refused, attempt %d", n)}
	})
	px = r.until(px, "unreachable", func(px *v1alpha1.Proxy) bool {
		return condition(px, "ProviderReachable").Status == metav1.ConditionFalse
	})
	assert.Equal(t, v1alpha1.PhaseReady, px.Status.Phase)
	assert.Equal(t, metav1.ConditionTrue, condition(px, "Ready").Status)
	time.Sleep(5 * r.timing.ReadyInterval)
	assert.Equal(t, px.ResourceVersion, r.get(px).ResourceVersion, "the same failure again is not written again")
	r.host.OnCall(nil)
	px = r.until(px, "reachable", func(px *v1alpha1.Proxy) bool {
		return condition(px, "ProviderReachable").Status == metav1.ConditionTrue
	})
	assert.Equal(t, int64(1), px.Status.Incarnation)
}

// What was accepted and is not there yet is neither made again nor taken for gone.
func TestAcceptedAndNotThereYet(t *testing.T) {
	r := newRig(t)
	cloud := &tardy{Provider: r.provider(r.host)}
	r.providers.known["dev"] = cloud
	r.start()
	px := r.proxy("one")
	require.NoError(t, r.c.Create(t.Context(), px))
	r.until(px, "told", func(px *v1alpha1.Proxy) bool {
		return strings.Contains(condition(px, "Provisioned").Message, "it is being made")
	})
	time.Sleep(5 * r.timing.PollInterval)
	assert.Equal(t, 1, cloud.accepted())
	require.NoError(t, cloud.land(t.Context()))
	px = r.ready(px)
	assert.Equal(t, int64(1), px.Status.Incarnation)

	other := r.proxy("two")
	require.NoError(t, r.c.Create(t.Context(), other))
	other = r.until(other, "accepted", func(px *v1alpha1.Proxy) bool { return px.Status.Machine != nil && px.Status.Machine.Accepted })
	r.remove(other)
	r.until(other, "waiting", func(px *v1alpha1.Proxy) bool {
		return strings.Contains(condition(px, "Provisioned").Message, "once it is there")
	})
	require.NoError(t, cloud.land(t.Context()))
	r.gone(other)
	assert.Len(t, r.machines(), 1, "the late one was deleted")
}

// Where nobody can tell what became of what was accepted, it may still come, for a
// while.
func TestAcceptedAndNobodyCanTell(t *testing.T) {
	r := newRig(t)
	cloud := &tardy{Provider: r.provider(r.host), silent: true}
	r.providers.known["dev"] = cloud
	r.start()
	px := r.proxy("one")
	require.NoError(t, r.c.Create(t.Context(), px))
	r.until(px, "told", func(px *v1alpha1.Proxy) bool {
		return strings.Contains(condition(px, "Provisioned").Message, "nobody can tell")
	})
	require.NoError(t, cloud.land(t.Context()))
	px = r.ready(px)
	assert.Equal(t, int64(1), px.Status.Incarnation)
	assert.Len(t, r.machines(), 1)
}

// What was accepted and then refused for want of room backs off as a refusal at once.
func TestRefusedAfterItWasAccepted(t *testing.T) {
	r := newRig(t)
	r.providers.known["dev"] = &tardy{Provider: r.provider(r.host), refused: &provider.Error{
		Class: provider.ErrQuotaExceeded, Code: "ZONE_RESOURCE_POOL_EXHAUSTED", Scope: "zone-a", Err: errors.New("no capacity")}}
	r.timing.QuotaInterval = 2 * time.Second
	r.start()
	px := r.proxy("one")
	require.NoError(t, r.c.Create(t.Context(), px))
	px = r.until(px, "backing off", func(px *v1alpha1.Proxy) bool { return px.Status.BackOff != nil && px.Status.Machine == nil })
	assert.Equal(t, "QuotaExceeded", px.Status.BackOff.Reason)
	assert.Contains(t, px.Status.LastReason, "ZONE_RESOURCE_POOL_EXHAUSTED")
}

func TestRestartMakesNobodyUnready(t *testing.T) {
	r := newRig(t)
	r.start()
	px := r.make("one")
	r.stop()
	r.target.Roots = nil
	r.start() // probes fail or have not come yet: nothing is known
	time.Sleep(100 * time.Millisecond)
	assert.Equal(t, px.Status.Machine.UID, r.get(px).Status.Machine.UID)
	ready := condition(r.get(px), "Ready")
	assert.NotEqual(t, metav1.ConditionUnknown, ready.Status)
}

// A cache that is behind shows a Proxy as it was: no second machine comes of it.
func TestStaleCacheMakesNothing(t *testing.T) {
	r := newRig(t)
	r.start()
	px := r.proxy("one")
	require.NoError(t, r.c.Create(t.Context(), px))
	recorded := r.until(px, "recorded", func(px *v1alpha1.Proxy) bool { return px.Status.Machine != nil })
	recorded.Status.Machine.Accepted, recorded.Status.ProviderID = false, ""
	recorded.ResourceVersion = "1"
	r.ready(px)
	r.remove(px)
	r.gone(px)
	require.Empty(t, r.machines())

	recorded.DeletionTimestamp = nil
	r.meddle(func(c *interrupted) { c.getOld = func(px *v1alpha1.Proxy) { recorded.DeepCopyInto(px) } })
	for range 3 {
		_, err := r.reconciler.Reconcile(t.Context(), reconcileRequest(px))
		assert.NoError(t, err)
	}
	blank := recorded.DeepCopy()
	blank.Status = v1alpha1.ProxyStatus{}
	r.meddle(func(c *interrupted) { c.getOld = func(px *v1alpha1.Proxy) { blank.DeepCopyInto(px) } })
	_, _ = r.reconciler.Reconcile(t.Context(), reconcileRequest(px))
	assert.Empty(t, r.machines(), "nothing is made for an object that is gone")
	r.meddle(func(c *interrupted) { c.getOld = nil })
}

func TestPause(t *testing.T) {
	r := newRig(t)
	r.start()
	px := r.make("one")
	r.annotate(px, v1alpha1.AnnotationPaused, "true")
	px = r.until(px, "Paused", func(px *v1alpha1.Proxy) bool { return condition(px, "Paused").Status == metav1.ConditionTrue })
	r.edit(px, func(px *v1alpha1.Proxy) { px.Spec.Port = 4000 })
	time.Sleep(3 * r.timing.ReadyInterval)
	assert.Equal(t, px.Status.Machine.UID, r.get(px).Status.Machine.UID, "nothing is replaced")

	other := r.proxy("two")
	other.Annotations = map[string]string{v1alpha1.AnnotationPaused: "true"}
	require.NoError(t, r.c.Create(t.Context(), other))
	r.until(other, "Paused", func(px *v1alpha1.Proxy) bool { return condition(px, "Provisioned").Reason == "Paused" })
	assert.Len(t, r.machines(), 1, "nothing is made")

	r.edit(px, func(px *v1alpha1.Proxy) { delete(px.Annotations, v1alpha1.AnnotationPaused) })
	r.until(px, "replaced", func(px *v1alpha1.Proxy) bool {
		return px.Status.Incarnation == 2 && px.Status.Phase == v1alpha1.PhaseReady
	})
	r.remove(other)
	r.gone(other)
	r.annotate(px, v1alpha1.AnnotationPaused, "true")
	r.remove(px)
	r.gone(px)
	assert.Empty(t, r.machines(), "a paused Proxy still deletes")
}

// An operator with another form of the hash replaces nothing, and one with the same
// form goes on comparing.
func TestUpgradeOfTheHashReplacesNothing(t *testing.T) {
	r := newRig(t)
	r.start()
	px := r.make("one")
	old := px.Status.Machine.UID
	r.stop()
	now := r.get(px)
	now.Status.Machine.SpecHash = "0.oldoldol:another form"
	require.NoError(t, r.c.Status().Update(t.Context(), now))
	r.start()
	px = r.until(px, "stamped anew", func(px *v1alpha1.Proxy) bool { return strings.HasPrefix(px.Status.Machine.SpecHash, hashVersion+".") })
	assert.Equal(t, old, px.Status.Machine.UID)
	r.edit(px, func(px *v1alpha1.Proxy) { px.Spec.Port = 4001 })
	r.until(px, "replaced", func(px *v1alpha1.Proxy) bool { return px.Status.Incarnation == 2 })
}

func TestCloudInitSecret(t *testing.T) {
	r := newRig(t)
	seen := &recorder{Provider: r.provider(r.host)}
	r.providers.known["dev"] = seen
	r.start()
	px := r.proxy("one", func(px *v1alpha1.Proxy) {
		px.Spec.CloudInit = &v1alpha1.CloudInit{SecretRef: &v1alpha1.SecretRef{Name: "init"}}
	})
	require.NoError(t, r.c.Create(t.Context(), px))
	noCloudInit := func(px *v1alpha1.Proxy) bool { return condition(px, "Provisioned").Reason == "CloudInitError" }
	px = r.until(px, "told that it is absent", noCloudInit)
	assert.Equal(t, v1alpha1.PhasePending, px.Status.Phase)
	assert.Contains(t, condition(px, "Provisioned").Message, v1alpha1.LabelCloudInit, "it says what to do")
	r.event(px, "CloudInitError")

	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: r.ns, Name: "init"}, Data: map[string][]byte{"user-data": []byte("#cloud-config\n# one\n")}}
	require.NoError(t, r.c.Create(t.Context(), secret))
	time.Sleep(3 * r.timing.ReadyInterval)
	assert.True(t, noCloudInit(r.get(px)), "an unlabelled one is not seen")

	secret.Labels = map[string]string{v1alpha1.LabelCloudInit: "true"}
	require.NoError(t, r.c.Update(t.Context(), secret))
	px = r.ready(px)
	assert.Equal(t, "#cloud-config\n# one\n", seen.last())

	secret.Data["user-data"] = []byte("#cloud-config\n# two\n")
	require.NoError(t, r.c.Update(t.Context(), secret))
	px = r.until(px, "replaced", func(px *v1alpha1.Proxy) bool {
		return px.Status.Incarnation == 2 && px.Status.Phase == v1alpha1.PhaseReady
	})
	assert.Equal(t, "#cloud-config\n# two\n", seen.last())

	require.NoError(t, r.c.Delete(t.Context(), secret))
	px = r.until(px, "told", func(px *v1alpha1.Proxy) bool { return strings.Contains(px.Status.LastReason, `"init"`) })
	time.Sleep(3 * r.timing.ReadyInterval)
	now := r.get(px)
	assert.Equal(t, v1alpha1.PhaseReady, now.Status.Phase, "what runs goes on")
	assert.Equal(t, int64(2), now.Status.Incarnation)
}

func TestExternal(t *testing.T) {
	r := newRig(t)
	r.start()
	// A proxy that somebody else runs: one of another host, whose URL is known.
	host := r.newHost("theirs", 0)
	theirs, err := local.New(local.Config{Host: host, Username: "crawler", Password: "secret"})
	require.NoError(t, err)
	id, err := theirs.Create(t.Context(), provider.CreateRequest{UID: "theirs", Tag: "theirs"})
	require.NoError(t, err)
	in, err := provider.WaitRunning(t.Context(), theirs, id, provider.WaitOptions{})
	require.NoError(t, err)
	ep, err := theirs.Endpoint("theirs", in)
	require.NoError(t, err)

	px := r.proxy("one", func(px *v1alpha1.Proxy) {
		px.Spec = v1alpha1.ProxySpec{Mode: v1alpha1.External, Endpoint: &v1alpha1.Endpoint{
			URL: "http://" + ep.URL.Host(), SecretRef: &v1alpha1.SecretRef{Name: "login"}}}
	})
	require.NoError(t, r.c.Create(t.Context(), px))
	r.until(px, "told", func(px *v1alpha1.Proxy) bool { return condition(px, "Ready").Reason == "CredentialsError" })
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: r.ns, Name: "login", Labels: map[string]string{v1alpha1.LabelCloudInit: "true"}},
		StringData: map[string]string{"username": "crawler", "password": "secret"},
	}
	require.NoError(t, r.c.Create(t.Context(), secret))
	px = r.ready(px)
	assert.Equal(t, ep.URL.Host(), px.Status.Address)
	assert.Nil(t, px.Status.Machine)
	l, err := r.store.TryAcquire(t.Context(), lease.Request{Holder: "test", Selector: lease.Selector{{Key: "mode", Operator: lease.In, Values: []string{"External"}}}})
	require.NoError(t, err)
	_ = l.Release(t.Context())

	r.edit(px, func(px *v1alpha1.Proxy) { px.Spec.Attributes = map[string]string{"geo": "us"} })
	px = r.until(px, "seen again", func(px *v1alpha1.Proxy) bool { return px.Status.ObservedGeneration == px.Generation })
	assert.Equal(t, v1alpha1.PhaseReady, px.Status.Phase)
	verdict := r.reconciler.Serving.Verdict(px.Namespace+"/"+px.Name, r.endpoint(px).Generation)
	assert.Equal(t, endpoint.Healthy, verdict.Health)
	assert.True(t, verdict.Since.Before(condition(px, "Ready").LastTransitionTime.Add(time.Second)), "attributes make no other endpoint of it")

	secret.Data["password"] = []byte("wrong")
	require.NoError(t, r.c.Update(t.Context(), secret))
	px = r.until(px, "Unhealthy", func(px *v1alpha1.Proxy) bool {
		return px.Status.Phase == v1alpha1.PhaseUnhealthy || px.Status.Phase == v1alpha1.PhaseRunning
	})
	r.remove(px)
	r.gone(px)
	_, err = theirs.Get(t.Context(), id)
	assert.NoError(t, err, "what somebody else runs is not touched")
	stats, err := r.store.Stats(t.Context())
	require.NoError(t, err)
	assert.Zero(t, stats.Endpoints.Total)
}
