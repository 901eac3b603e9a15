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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/egressfleet/egress/examples/operator/api/v1alpha1"
	"github.com/egressfleet/egress/lease"
	"github.com/egressfleet/egress/provider"
	"github.com/egressfleet/egress/provider/local"
)

func TestDeleteWaitsUntilTheMachineIsGone(t *testing.T) {
	r := newRig(t)
	slow, err := local.NewHost(local.HostConfig{Name: "slow", DeleteDelay: 2 * time.Second, Resolve: r.target.Resolve})
	require.NoError(t, err)
	t.Cleanup(slow.Close)
	r.providers.known["dev"] = r.provider(slow)
	r.start()
	px := r.make("one")
	r.remove(px)
	r.until(px, "Terminating", func(px *v1alpha1.Proxy) bool {
		return px.Status.Phase == v1alpha1.PhaseTerminating && condition(px, "Provisioned").Reason == "Deleting"
	})
	for r.get(px) != nil { // the object outlives the machine, not the other way round
		time.Sleep(10 * time.Millisecond)
	}
	assert.Empty(t, r.machines(slow))
	assert.Contains(t, r.event(px, "Deleted"), px.Status.ProviderID)
}

func TestDeleteDrainsLeases(t *testing.T) {
	r := newRig(t)
	r.timing.DrainTimeout = time.Hour
	r.start()
	px := r.make("one")
	l, err := r.store.Acquire(t.Context(), lease.Request{Holder: "test"})
	require.NoError(t, err)
	r.remove(px)
	r.until(px, "draining", func(px *v1alpha1.Proxy) bool { return condition(px, "Provisioned").Reason == "Draining" })
	time.Sleep(500 * time.Millisecond)
	require.NoError(t, l.Err(), "the holder has its time")
	assert.Len(t, r.machines(), 1)
	require.NoError(t, l.Release(t.Context()))
	r.gone(px)
}

func TestDrainTimeoutRevokes(t *testing.T) {
	r := newRig(t)
	r.start()
	px := r.make("one")
	l, err := r.store.Acquire(t.Context(), lease.Request{Holder: "test"})
	require.NoError(t, err)
	r.remove(px)
	r.gone(px)
	assert.ErrorIs(t, l.Err(), lease.ErrLost)
}

func TestDeleteWithoutARecord(t *testing.T) {
	r := newRig(t)
	r.start()
	px := r.proxy("one", func(px *v1alpha1.Proxy) { px.Spec.Provider = "absent" })
	require.NoError(t, r.c.Create(t.Context(), px))
	px = r.until(px, "told", func(px *v1alpha1.Proxy) bool { return condition(px, "ProviderReachable").Reason == "ProviderUnknown" })
	assert.Contains(t, condition(px, "ProviderReachable").Message, "dev", "it says what there is")
	r.remove(px)
	r.gone(px)
}

// A Create that was cut leaves a record without an ID. The machine is found by its
// UID.
func TestDeleteOfARecordWithoutAnID(t *testing.T) {
	r := newRig(t)
	r.start()
	r.meddle(func(c *interrupted) {
		c.failStatus = func(px *v1alpha1.Proxy) error {
			if px.Status.ProviderID != "" && px.DeletionTimestamp.IsZero() {
				return errCrash
			}
			return nil
		}
	})
	px := r.proxy("one")
	require.NoError(t, r.c.Create(t.Context(), px))
	require.Eventually(t, func() bool { return len(r.machines()) == 1 }, patient, 20*time.Millisecond)
	r.remove(px)
	r.gone(px)
	assert.Empty(t, r.machines())
}

func TestDeleteWhatIsGoneAlready(t *testing.T) {
	r := newRig(t)
	r.start()
	px := r.make("one")
	r.stop()
	require.NoError(t, r.host.Inject(px.Status.ProviderID, local.Vanish))
	r.remove(px)
	r.start()
	r.gone(px)
}

// refusing makes chosen calls of a provider fail.
func refusing(op string, err error) func(context.Context, string) error {
	return func(_ context.Context, called string) error {
		if strings.Contains(op, called) {
			return err
		}
		return nil
	}
}

func TestDeleteThatCannotSucceed(t *testing.T) {
	permanent := &provider.Error{Class: provider.ErrPermanent, Code: "Forbidden", Err: errors.New("the key has no rights")}
	transient := &provider.Error{Class: provider.ErrTransient, Err: errors.New("no route to host")}
	unconfigured := &provider.Error{Class: provider.ErrPermanent, Code: provider.CodeUnconfigured, Err: errors.New(`host "local" is not configured`)}

	t.Run("get permanent, delete accepted: released", func(t *testing.T) {
		r := newRig(t)
		r.start()
		px := r.make("one")
		r.host.OnCall(refusing("Get", permanent))
		r.remove(px)
		r.gone(px)
		assert.Empty(t, r.machines())
		assert.Contains(t, r.event(px, "Released"), px.Status.ProviderID)
	})
	t.Run("get unconfigured: released, with the ID", func(t *testing.T) {
		r := newRig(t)
		r.start()
		px := r.make("one")
		r.host.OnCall(refusing("Get Delete", unconfigured))
		r.remove(px)
		r.gone(px)
		assert.Contains(t, r.event(px, "Released"), px.Status.ProviderID)
	})
	t.Run("get and delete permanent: kept, with both errors", func(t *testing.T) {
		r := newRig(t)
		r.start()
		px := r.make("one")
		r.host.OnCall(refusing("Get Delete", permanent))
		r.remove(px)
		px = r.until(px, "stuck", func(px *v1alpha1.Proxy) bool { return condition(px, "Provisioned").Reason == "DeleteFailed" })
		assert.Equal(t, 2, strings.Count(condition(px, "Provisioned").Message, "no rights"), condition(px, "Provisioned").Message)
		r.event(px, "DeleteFailed")
		assert.Contains(t, px.Finalizers, v1alpha1.Finalizer)
		r.host.OnCall(nil)
		r.gone(px)
		assert.Empty(t, r.machines())
	})
	t.Run("get transient: kept, and tried again", func(t *testing.T) {
		r := newRig(t)
		r.start()
		px := r.make("one")
		r.host.OnCall(refusing("Get", transient))
		r.remove(px)
		px = r.until(px, "stuck", func(px *v1alpha1.Proxy) bool { return condition(px, "Provisioned").Reason == "DeleteFailed" })
		assert.Equal(t, metav1.ConditionFalse, condition(px, "ProviderReachable").Status)
		r.host.OnCall(nil)
		r.gone(px)
		assert.Empty(t, r.machines())
	})
}

func TestSkipCleanup(t *testing.T) {
	r := newRig(t)
	r.start()
	px := r.make("one")
	r.annotate(px, v1alpha1.AnnotationSkipCleanup, "true")
	r.remove(px)
	r.gone(px)
	assert.Len(t, r.machines(), 1, "the machine stays")
	assert.Contains(t, r.event(px, "Abandoned"), px.Status.ProviderID)
}

// skip-cleanup is looked at before the provider, so it frees what nobody can delete.
func TestProviderGoneFromTheConfig(t *testing.T) {
	r := newRig(t)
	r.start()
	px := r.make("one")
	dev, err := r.providers.Get("dev")
	require.NoError(t, err)
	r.providers.put("dev", nil)
	px = r.until(px, "told", func(px *v1alpha1.Proxy) bool { return condition(px, "ProviderReachable").Reason == "ProviderUnknown" })
	assert.Equal(t, v1alpha1.PhaseReady, px.Status.Phase, "the proxy itself works")
	r.remove(px)
	px = r.until(px, "stuck", func(px *v1alpha1.Proxy) bool { return condition(px, "Provisioned").Reason == "ProviderUnknown" })
	assert.Contains(t, condition(px, "Provisioned").Message, v1alpha1.AnnotationSkipCleanup, "it says what to do")
	r.annotate(px, v1alpha1.AnnotationSkipCleanup, "true")
	r.gone(px)

	r.providers.put("dev", dev)
	other := r.make("two")
	r.providers.put("dev", nil)
	r.remove(other)
	r.until(other, "stuck", func(px *v1alpha1.Proxy) bool { return condition(px, "Provisioned").Reason == "ProviderUnknown" })
	r.providers.put("dev", dev)
	r.annotate(other, "look", "again")
	r.gone(other)
}

// A spec that is edited while the object is deleted has no effect.
func TestEditWhileDeleting(t *testing.T) {
	r := newRig(t)
	r.start()
	px := r.make("one")
	var deletes atomic.Int32
	hold := make(chan struct{})
	r.host.OnCall(func(ctx context.Context, op string) error {
		if op == "Delete" && deletes.Add(1) == 1 {
			select {
			case <-hold:
			case <-ctx.Done():
			}
		}
		return nil
	})
	r.remove(px)
	require.Eventually(t, func() bool { return deletes.Load() > 0 }, patient, 10*time.Millisecond)
	r.edit(px, func(px *v1alpha1.Proxy) { px.Spec.Port = 4444 })
	close(hold)
	r.gone(px)
	assert.Empty(t, r.machines())
}
