package controller

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/egressfleet/egress/examples/operator/api/v1alpha1"
	"github.com/egressfleet/egress/lease"
	"github.com/egressfleet/egress/provider"
	"github.com/egressfleet/egress/provider/local"
)

// sayer is a provider whose machines are in the state that a test says.
type sayer struct {
	provider.Provider
	state   atomic.Value // provider.State
	deletes atomic.Int32
	creates atomic.Int32
}

func (s *sayer) Unwrap() provider.Provider { return s.Provider }

func (s *sayer) Get(ctx context.Context, id string) (provider.Instance, error) {
	in, err := s.Provider.Get(ctx, id)
	if state, ok := s.state.Load().(provider.State); ok && state != "" && err == nil {
		in.State, in.Addresses = state, nil
	}
	return in, err
}

func (s *sayer) Create(ctx context.Context, req provider.CreateRequest) (string, error) {
	s.creates.Add(1)
	return s.Provider.Create(ctx, req)
}

func (s *sayer) Delete(ctx context.Context, id string) error {
	s.deletes.Add(1)
	return s.Provider.Delete(ctx, id)
}

// The boot timeout of a machine that served counts from when the provider lost sight of
// it, however old it is.
func TestLostSightOfCountsFromItsBeginning(t *testing.T) {
	r := newRig(t)
	cloud := &sayer{Provider: r.provider(r.host)}
	r.providers.known["dev"] = cloud
	r.timing.BootTimeout, r.timing.UnhealthyTimeout = 6*time.Second, time.Hour
	r.start()
	px := r.make("one")
	time.Sleep(r.timing.BootTimeout)

	cloud.state.Store(provider.StateUnknown)
	require.NoError(t, r.host.Inject(px.Status.ProviderID, local.Refuse))
	r.until(px, "lost", func(px *v1alpha1.Proxy) bool {
		return px.Status.Phase == v1alpha1.PhaseUnhealthy && condition(px, "Provisioned").Status == metav1.ConditionFalse
	})
	time.Sleep(r.timing.BootTimeout / 2)
	now := r.get(px)
	assert.Equal(t, px.Status.Incarnation, now.Status.Incarnation)
	assert.Nil(t, now.Status.Machine.Ending, "it has its time")
	r.until(px, "replaced", func(now *v1alpha1.Proxy) bool { return now.Status.Incarnation > px.Status.Incarnation })
	r.event(px, "BootTimeout")
}

// What runs in the eyes of nobody but its probes is Ready, and stays.
func TestHealthyOutlivesTheBootTimeout(t *testing.T) {
	r := newRig(t)
	cloud := &sayer{Provider: r.provider(r.host)}
	r.providers.known["dev"] = cloud
	r.timing.BootTimeout = 4 * time.Second
	r.start()
	px := r.make("one")
	cloud.state.Store(provider.StateUnknown)
	time.Sleep(2 * r.timing.BootTimeout)
	now := r.get(px)
	assert.Equal(t, px.Status.Incarnation, now.Status.Incarnation)
	assert.Equal(t, v1alpha1.PhaseReady, now.Status.Phase)
}

// A process that starts while the provider tells nothing has the proxy of the record
// probed and leased: else it would be Ready, and used by nobody.
func TestRestartWhileTheProviderIsSilent(t *testing.T) {
	for name, silence := range map[string]func(*rig, *sayer){
		"it does not answer": func(r *rig, _ *sayer) {
			r.host.OnCall(refusing("Get", &provider.Error{Class: provider.ErrTransient, Err: errors.New("no route to host")}))
		},
		"it cannot tell the state":        func(_ *rig, s *sayer) { s.state.Store(provider.StateUnknown) },
		"it is not in the file any more":  func(r *rig, _ *sayer) { r.providers.put("dev", nil) },
		"it says that it has not address": func(_ *rig, s *sayer) { s.state.Store(provider.StateProvisioning) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			cloud := &sayer{Provider: r.provider(r.host)}
			r.providers.known["dev"] = cloud
			r.timing.BootTimeout = 4 * time.Second
			r.start()
			px := r.make("one")
			r.stop()
			time.Sleep(r.timing.BootTimeout)
			silence(r, cloud)
			r.newStore()
			r.start()
			r.leasable()
			time.Sleep(r.timing.BootTimeout)
			now := r.get(px)
			assert.Equal(t, px.Status.Incarnation, now.Status.Incarnation)
			assert.Equal(t, v1alpha1.PhaseReady, now.Status.Phase)

			require.NoError(t, r.host.Inject(px.Status.ProviderID, local.Refuse))
			// Where it has been out of sight for the boot timeout, it is replaced at once.
			r.until(px, "Unhealthy", func(now *v1alpha1.Proxy) bool {
				return now.Status.Phase == v1alpha1.PhaseUnhealthy || now.Status.Incarnation > px.Status.Incarnation
			})
		})
	}
}

// When all are unhealthy at once, one is replaced, however many are looked at together
// and however far the cache is behind.
func TestReplacementsKeepToTheBudget(t *testing.T) {
	r := newRig(t)
	cloud := &sayer{Provider: r.provider(r.host)}
	r.providers.known["dev"] = cloud
	r.timing.PollInterval = 20 * time.Millisecond
	r.start()
	var all []*v1alpha1.Proxy
	for _, name := range strings.Fields("a b c d e f g h i j") {
		px := r.proxy(name)
		require.NoError(t, r.c.Create(t.Context(), px))
		all = append(all, px)
	}
	for i, px := range all {
		all[i] = r.ready(px)
	}
	r.host.OnCall(refusing("Create", &provider.Error{Class: provider.ErrTransient, Err: errors.New("the host reboots")}))
	for _, px := range all {
		require.NoError(t, r.host.Inject(px.Status.ProviderID, local.Refuse))
	}
	time.Sleep(r.timing.UnhealthyTimeout + 3*time.Second)
	// One where most are known to be unwell by then, and a fifth before.
	assert.Positive(t, cloud.deletes.Load())
	assert.LessOrEqual(t, cloud.deletes.Load(), int32(2), "the others wait")
	for _, px := range all {
		_ = r.host.Inject(px.Status.ProviderID, local.Sound)
	}
	require.Eventually(t, func() bool {
		n := 0
		for _, px := range all {
			if r.get(px).Status.Phase == v1alpha1.PhaseReady {
				n++
			}
		}
		return n >= len(all)-2 // a fifth, once most are well again
	}, patient, 20*time.Millisecond)
	r.host.OnCall(nil)
	replaced := 0
	for _, px := range all {
		replaced += int(r.ready(px).Status.Incarnation - 1)
	}
	assert.LessOrEqual(t, replaced, 2, "what heals stays")
}

// Machines that end as soon as they are made are not made at full speed.
func TestMachinesThatEndAtOnceAreWaitedOut(t *testing.T) {
	r := newRig(t)
	cloud := &sayer{Provider: r.provider(r.host)}
	cloud.state.Store(provider.StateFailed)
	r.providers.known["dev"] = cloud
	r.timing.RetryInterval = time.Second
	r.start()
	px := r.proxy("one")
	require.NoError(t, r.c.Create(t.Context(), px))
	px = r.until(px, "waiting", func(px *v1alpha1.Proxy) bool { return px.Status.BackOff != nil && px.Status.BackOff.Failures == 2 })
	assert.Equal(t, "Terminated", px.Status.BackOff.Reason)
	time.Sleep(time.Second)
	assert.LessOrEqual(t, cloud.creates.Load(), int32(3))
	cloud.state.Store(provider.State(""))
	assert.Nil(t, r.ready(px).Status.BackOff)
}

// What was accepted, and refused for good later, is Failed as if it was refused at once.
func TestRefusedForGoodAfterItWasAccepted(t *testing.T) {
	r := newRig(t)
	cloud := &tardy{Provider: r.provider(r.host), refused: &provider.Error{
		Class: provider.ErrPermanent, Code: "PERMISSION_DENIED", Err: errors.New(`image "debian-99" may not be used`)}}
	r.providers.known["dev"] = cloud
	r.start()
	px := r.proxy("one")
	require.NoError(t, r.c.Create(t.Context(), px))
	px = r.until(px, "Failed", func(px *v1alpha1.Proxy) bool {
		return px.Status.Phase == v1alpha1.PhaseFailed && px.Status.Machine == nil
	})
	assert.Contains(t, px.Status.LastReason, "debian-99")
	assert.Contains(t, r.event(px, "Refused"), "debian-99")
	r.annotate(px, "unrelated", "x")
	time.Sleep(5 * r.timing.RetryInterval)
	assert.Equal(t, 1, cloud.accepted(), "it is not asked for again")
}

// Another spec is not made to wait for what the former one met with.
func TestEditOvertakesTheBackOff(t *testing.T) {
	r := newRig(t)
	full := r.newHost("full", 1)
	r.providers.known["dev"] = r.provider(full)
	r.timing.QuotaInterval, r.timing.MaxInterval = time.Hour, time.Hour
	r.start()
	first := r.make("first")
	px := r.proxy("second")
	require.NoError(t, r.c.Create(t.Context(), px))
	r.until(px, "waiting", func(px *v1alpha1.Proxy) bool { return px.Status.BackOff != nil && px.Status.Machine == nil })
	r.remove(first)
	r.gone(first)
	r.edit(px, func(px *v1alpha1.Proxy) { px.Spec.Placement = &v1alpha1.Placement{MachineType: "smaller"} })
	r.ready(px)
}

// A machine that stops while its Proxy is paused is neither replaced nor told of again and
// again.
func TestPausedMachineStops(t *testing.T) {
	r := newRig(t)
	r.start()
	px := r.make("one")
	r.annotate(px, v1alpha1.AnnotationPaused, "true")
	r.until(px, "Paused", func(px *v1alpha1.Proxy) bool { return condition(px, "Paused").Status == metav1.ConditionTrue })
	require.NoError(t, r.host.Inject(px.Status.ProviderID, local.Stop))
	r.until(px, "told", func(px *v1alpha1.Proxy) bool { return condition(px, "Provisioned").Reason == "Terminated" })
	before := r.writes()
	time.Sleep(5 * r.timing.ReadyInterval)
	assert.LessOrEqual(t, r.writes()-before, 2)
	assert.Equal(t, px.Status.Machine.UID, r.get(px).Status.Machine.UID)
	r.edit(px, func(px *v1alpha1.Proxy) { delete(px.Annotations, v1alpha1.AnnotationPaused) })
	r.until(px, "replaced", func(px *v1alpha1.Proxy) bool {
		return px.Status.Incarnation == 2 && px.Status.Phase == v1alpha1.PhaseReady
	})
}

// A replacement that was decided on waits for the pause to end.
func TestPauseInTheMiddleOfAReplacement(t *testing.T) {
	r := newRig(t)
	r.timing.DrainTimeout = time.Hour
	r.start()
	px := r.make("one")
	l, err := r.store.Acquire(t.Context(), lease.Request{Holder: "test"})
	require.NoError(t, err)
	r.edit(px, func(px *v1alpha1.Proxy) { px.Spec.Port = 4444 })
	r.until(px, "draining", func(px *v1alpha1.Proxy) bool { return condition(px, "Provisioned").Reason == "Draining" })
	r.annotate(px, v1alpha1.AnnotationPaused, "true")
	r.until(px, "Paused", func(px *v1alpha1.Proxy) bool { return condition(px, "Paused").Status == metav1.ConditionTrue })
	require.NoError(t, l.Release(t.Context()))
	time.Sleep(5 * r.timing.ReadyInterval)
	assert.Equal(t, px.Status.Machine.UID, r.get(px).Status.Machine.UID)
	r.edit(px, func(px *v1alpha1.Proxy) { delete(px.Annotations, v1alpha1.AnnotationPaused) })
	r.until(px, "replaced", func(px *v1alpha1.Proxy) bool {
		return px.Status.Incarnation == 2 && px.Status.Phase == v1alpha1.PhaseReady
	})
}

// A guest that hangs in its shutdown is deleted, and not waited for.
func TestDeleteOfAMachineThatIsStopping(t *testing.T) {
	r := newRig(t)
	cloud := &sayer{Provider: r.provider(r.host)}
	r.providers.known["dev"] = cloud
	r.start()
	px := r.make("one")
	cloud.state.Store(provider.StateStopping)
	r.remove(px)
	r.gone(px)
	assert.Empty(t, r.machines())
}

// Leases that cannot be asked for hold a deletion up, and the status says so. What is to
// be left behind does not wait.
func TestDeleteWithoutTheLeaseStore(t *testing.T) {
	r := newRig(t)
	r.start()
	px, other := r.make("one"), r.make("two")
	r.inventory.down.Store(true)
	r.remove(px)
	px = r.until(px, "stuck", func(px *v1alpha1.Proxy) bool { return condition(px, "Provisioned").Reason == "LeasesUnknown" })
	assert.Contains(t, condition(px, "Provisioned").Message, errDown.Error())
	r.event(px, "LeasesUnknown")
	assert.Len(t, r.machines(), 2)
	r.annotate(other, v1alpha1.AnnotationSkipCleanup, "true")
	r.remove(other)
	r.gone(other)
	r.inventory.down.Store(false)
	r.gone(px)
	assert.Len(t, r.machines(), 1, "the one that was left behind")
}

// A deletion in the course of a replacement that fails is told once, not at every try.
func TestFailingReplacementIsToldOnce(t *testing.T) {
	r := newRig(t)
	r.timing.RetryInterval = 50 * time.Millisecond
	told := &eventCounter{of: "DeleteFailed"}
	r.amend = func(rec *Reconciler) { told.EventRecorder, rec.Events = rec.Events, told }
	r.start()
	px := r.make("one")
	var tries atomic.Int32
	r.host.OnCall(func(_ context.Context, op string) error {
		if op == "Delete" {
			tries.Add(1)
			return &provider.Error{Class: provider.ErrPermanent, Code: "Forbidden", Err: errors.New("the key has no rights")}
		}
		return nil
	})
	r.edit(px, func(px *v1alpha1.Proxy) { px.Spec.Port = 4444 })
	require.Eventually(t, func() bool { return tries.Load() >= 3 }, patient, 20*time.Millisecond)
	assert.Equal(t, int32(1), told.n.Load())
	assert.NotNil(t, r.get(px).Status.Machine, "the old one is not forgotten")
	r.host.OnCall(nil)
	r.until(px, "replaced", func(px *v1alpha1.Proxy) bool {
		return px.Status.Incarnation == 2 && px.Status.Phase == v1alpha1.PhaseReady
	})
	assert.Len(t, r.machines(), 1)
}

// A process that is not sure to lead does nothing.
func TestWithoutLeadingNothingIsDone(t *testing.T) {
	r := newRig(t)
	var leads atomic.Bool
	r.amend = func(rec *Reconciler) { rec.Leads = leads.Load }
	r.start()
	px := r.proxy("one")
	require.NoError(t, r.c.Create(t.Context(), px))
	time.Sleep(time.Second)
	assert.Empty(t, r.get(px).Finalizers)
	leads.Store(true)
	r.ready(px)
}

// Create that hangs is cut off when the operator ends, and is gone on with by the next
// one, under the same name.
func TestEndInTheMiddleOfCreate(t *testing.T) {
	r := newRig(t)
	entered := make(chan struct{})
	var once sync.Once
	r.host.OnCall(func(ctx context.Context, op string) error {
		if op != "Create" {
			return nil
		}
		once.Do(func() { close(entered) })
		<-ctx.Done()
		return ctx.Err()
	})
	r.start()
	px := r.proxy("one")
	require.NoError(t, r.c.Create(t.Context(), px))
	<-entered
	began := time.Now()
	r.stop()
	assert.Less(t, time.Since(began), 5*time.Second)
	r.host.OnCall(nil)
	r.start()
	px = r.ready(px)
	assert.Equal(t, int64(1), px.Status.Incarnation)
	assert.Len(t, r.machines(), 1)
}

func TestClip(t *testing.T) {
	assert.Equal(t, "ab", clip("abc", 2))
	for n := range 12 {
		got := clip("ä\xff日本x", n)
		assert.True(t, utf8.ValidString(got), "%d: %q", n, got)
		assert.LessOrEqual(t, len(got), n)
	}
	assert.Equal(t, "\uFFFDa", clip("\xffa", 10))
}
