package kubernetes

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/egressfleet/egress/provider"
)

// What is read of a pod is what a later mark says again; what cannot be read is
// permanent, and never a pod of ours without metadata.
func FuzzRecord(f *testing.F) {
	f.Add("tag-1", "uid-1", `{"version":1,"metadata":{"port":"3128"}}`)
	f.Fuzz(func(t *testing.T, tag, uid, metadata string) {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Name: provider.Name(uid), Labels: map[string]string{LabelManaged: managed, LabelTag: tag},
			Annotations: map[string]string{AnnotationUID: uid, AnnotationMetadata: metadata},
		}}
		r, err := recordOf(pod)
		if err != nil {
			require.ErrorIs(t, err, provider.ErrPermanent)
			return
		}
		assert.Equal(t, tag, r.Tag)
		assert.Equal(t, uid, r.UID)
		require.NoError(t, r.markPod(&pod.ObjectMeta, map[string]string{"further": "label"}))
		again, err := recordOf(pod)
		require.NoError(t, err)
		assert.Equal(t, len(r.Metadata), len(again.Metadata))
		for key, value := range r.Metadata {
			assert.Equal(t, value, again.Metadata[key])
		}
	})
}
