package kubernetes_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/egressfleet/egress/provider"
)

// Statuses as clusters write them.
func TestStates(t *testing.T) {
	squid := func(s corev1.ContainerState) []corev1.ContainerStatus {
		return []corev1.ContainerStatus{{Name: "squid", State: s}}
	}
	ended := func(code int32, reason string) []corev1.ContainerStatus {
		return squid(corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason, Message: "FATAL: hunter2"}})
	}
	condition := func(kind corev1.PodConditionType, s corev1.ConditionStatus, reason, message string) []corev1.PodCondition {
		return []corev1.PodCondition{{Type: kind, Status: s, Reason: reason, Message: message}}
	}
	ready := condition(corev1.PodReady, corev1.ConditionTrue, "", "")
	ips := []corev1.PodIP{{IP: "10.1.2.3"}, {IP: "fd00::3"}}
	for name, c := range map[string]struct {
		status corev1.PodStatus
		state  provider.State
		reason string
	}{
		"nobody saw it": {corev1.PodStatus{}, provider.StateProvisioning, ""},
		"no node has room": {
			corev1.PodStatus{Phase: corev1.PodPending, Conditions: condition(corev1.PodScheduled, corev1.ConditionFalse, "Unschedulable", "0/3 nodes are available:\n 3 Insufficient memory.")},
			provider.StateProvisioning, "Unschedulable: 0/3 nodes are available: 3 Insufficient memory.",
		},
		"no image": {
			corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: squid(corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "Back-off pulling image"}})},
			provider.StateProvisioning, "ImagePullBackOff: Back-off pulling image",
		},
		"a long story": {
			corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: squid(corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: strings.Repeat("ü", 200)}})},
			provider.StateProvisioning, "ErrImagePull: " + strings.Repeat("ü", 93) + "…",
		},
		"it does not listen": {corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: ips, Conditions: condition(corev1.PodReady, corev1.ConditionFalse, "ContainersNotReady", "")}, provider.StateProvisioning, "squid does not listen"},
		"no address":         {corev1.PodStatus{Phase: corev1.PodRunning, Conditions: ready}, provider.StateProvisioning, "the pod has no address yet"},
		"it runs":            {corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: ips, Conditions: ready}, provider.StateRunning, ""},
		"readiness unknown": {
			corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: ips, Conditions: condition(corev1.PodReady, corev1.ConditionUnknown, "NodeStatusUnknown", "Kubelet stopped posting node status.")},
			provider.StateUnknown, "NodeStatusUnknown: Kubelet stopped posting node status.",
		},
		"phase unknown":         {corev1.PodStatus{Phase: corev1.PodUnknown, Reason: "NodeLost"}, provider.StateUnknown, "NodeLost"},
		"out of memory":         {corev1.PodStatus{Phase: corev1.PodFailed, ContainerStatuses: ended(137, "OOMKilled")}, provider.StateFailed, "OOMKilled: squid ended with code 137"},
		"the phase lags behind": {corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: ips, Conditions: ready, ContainerStatuses: ended(1, "Error")}, provider.StateFailed, "Error: squid ended with code 1"},
		"it is about to stop":   {corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: ips, Conditions: ready, ContainerStatuses: ended(0, "Completed")}, provider.StateStopped, "Completed: squid ended with code 0"},
		"evicted":               {corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted", Message: "The node was low on resource: memory."}, provider.StateFailed, "Evicted: The node was low on resource: memory."},
		"it ended":              {corev1.PodStatus{Phase: corev1.PodSucceeded, ContainerStatuses: ended(0, "Completed")}, provider.StateStopped, "Completed: squid ended with code 0"},
	} {
		t.Run(name, func(t *testing.T) {
			pod := item("a", "test", `{"version":1}`)
			pod.TypeMeta, pod.Status = metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}, c.status
			p := answering(t, func(w http.ResponseWriter, _ *http.Request) { send(w, 200, &pod) })
			in, err := p.Get(t.Context(), id)
			require.NoError(t, err)
			assert.Equal(t, c.state, in.State)
			assert.Equal(t, c.reason, in.Reason)
			assert.NotContains(t, in.Reason, "hunter2")

			pod.DeletionTimestamp = new(metav1.Now())
			in, err = p.Get(t.Context(), id)
			require.NoError(t, err)
			assert.Equal(t, provider.StateStopping, in.State)
		})
	}
}
