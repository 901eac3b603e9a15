package kubernetes

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/egressfleet/egress/provider"
)

// stateOf says where a pod stands, and why.
func stateOf(pod *corev1.Pod) (provider.State, string) {
	if pod.DeletionTimestamp != nil {
		return provider.StateStopping, "the pod is being deleted"
	}
	switch pod.Status.Phase {
	case corev1.PodFailed:
		return provider.StateFailed, or(endOf(pod), or(told(pod.Status.Reason, pod.Status.Message), "the pod failed"))
	case corev1.PodSucceeded:
		return provider.StateStopped, or(endOf(pod), "squid ended")
	case corev1.PodPending, "":
		return provider.StateProvisioning, waiting(pod)
	case corev1.PodRunning:
		return running(pod)
	}
	return provider.StateUnknown, told(pod.Status.Reason, pod.Status.Message)
}

// running looks behind the phase, which lags behind the container and does not
// tell whether squid listens.
func running(pod *corev1.Pod) (provider.State, string) {
	if t := terminated(pod); t != nil {
		if t.ExitCode == 0 {
			return provider.StateStopped, endOf(pod)
		}
		return provider.StateFailed, endOf(pod)
	}
	ready := condition(pod, corev1.PodReady)
	switch {
	case ready != nil && ready.Status == corev1.ConditionUnknown:
		return provider.StateUnknown, told(ready.Reason, ready.Message)
	case ready == nil || ready.Status != corev1.ConditionTrue:
		return provider.StateProvisioning, or(waiting(pod), "squid does not listen")
	case len(addresses(pod)) == 0:
		return provider.StateProvisioning, "the pod has no address yet"
	}
	return provider.StateRunning, ""
}

// waiting is what a pod waits for, where it is known.
func waiting(pod *corev1.Pod) string {
	if c := condition(pod, corev1.PodScheduled); c != nil && c.Status == corev1.ConditionFalse {
		return told(c.Reason, c.Message)
	}
	for _, c := range pod.Status.ContainerStatuses {
		if w := c.State.Waiting; w != nil {
			return told(w.Reason, w.Message)
		}
	}
	return ""
}

// endOf is how the container ended. What squid wrote last is left out: it can quote
// its configuration.
func endOf(pod *corev1.Pod) string {
	t := terminated(pod)
	switch {
	case t == nil:
		return ""
	case t.Signal != 0:
		return fmt.Sprintf("%s: squid was ended by signal %d", or(t.Reason, "Error"), t.Signal)
	}
	return fmt.Sprintf("%s: squid ended with code %d", or(t.Reason, "Error"), t.ExitCode)
}

func terminated(pod *corev1.Pod) *corev1.ContainerStateTerminated {
	for _, c := range pod.Status.ContainerStatuses {
		if c.Name == containerName && c.State.Terminated != nil {
			return c.State.Terminated
		}
	}
	return nil
}

func condition(pod *corev1.Pod, kind corev1.PodConditionType) *corev1.PodCondition {
	for i, c := range pod.Status.Conditions {
		if c.Type == kind {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}

// longestReason is enough for people.
const longestReason = 200

// told joins a reason and a message of the cluster's.
func told(reason, message string) string {
	out := strings.Trim(reason+": "+strings.Join(strings.Fields(message), " "), ": ")
	if len(out) > longestReason {
		out = strings.ToValidUTF8(out[:longestReason], "") + "…"
	}
	return out
}
