package kubernetes

import (
	"encoding/json"
	"errors"
	"maps"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/egressfleet/egress/provider"
)

// ourPrefix begins the keys of our labels and annotations.
const ourPrefix = "crawl.example.com/egress-"

// The marks of pods and Secrets. A label is what an API server can select by, but
// holds 63 characters at most: what is longer is an annotation.
const (
	// LabelManaged is "true" on what this package made.
	LabelManaged = ourPrefix + "managed"
	// LabelTag is the owner's tag.
	LabelTag = ourPrefix + "tag"
	// AnnotationUID is the instance's UID.
	AnnotationUID = ourPrefix + "uid"
	// AnnotationMetadata is the instance's metadata, as JSON with a version.
	AnnotationMetadata = ourPrefix + "metadata"

	managed = "true"
)

// recordVersion changes only if old readers could not read the record.
const recordVersion = 1

// record is what a pod says of its instance. Nothing of it changes after the
// pod was made.
type record struct {
	Tag, UID string
	Metadata map[string]string
}

// wireRecord is the value of AnnotationMetadata.
type wireRecord struct {
	Version  int               `json:"version"`
	Metadata map[string]string `json:"metadata,omitempty"`
}

// errNotOurs says that an object was made by somebody else.
var errNotOurs = errors.New("it has no mark of ours")

// mark puts tag and UID on an object, beside further labels.
func (r record) mark(meta *metav1.ObjectMeta, further map[string]string) {
	meta.Labels = map[string]string{}
	maps.Copy(meta.Labels, further)
	meta.Labels[LabelManaged], meta.Labels[LabelTag] = managed, r.Tag
	meta.Annotations = map[string]string{AnnotationUID: r.UID}
}

// markPod is mark with the metadata.
func (r record) markPod(meta *metav1.ObjectMeta, further map[string]string) error {
	text, err := json.Marshal(wireRecord{Version: recordVersion, Metadata: r.Metadata})
	if err != nil {
		return err
	}
	r.mark(meta, further)
	meta.Annotations[AnnotationMetadata] = string(text)
	return nil
}

// marksOf reads tag and UID of an object. One without our mark, or with a name
// that its UID does not have, is errNotOurs.
func marksOf(o client.Object) (record, error) {
	r := record{Tag: o.GetLabels()[LabelTag], UID: o.GetAnnotations()[AnnotationUID]}
	if o.GetLabels()[LabelManaged] != managed || r.Tag == "" || r.UID == "" || provider.Name(r.UID) != o.GetName() {
		return record{}, errNotOurs
	}
	return r, nil
}

// recordOf reads the record of a pod.
func recordOf(pod *corev1.Pod) (record, error) {
	r, err := marksOf(pod)
	if err != nil {
		return r, provider.Permanentf(provider.CodeCollision, "the pod %s is somebody else's: %w", pod.Name, err)
	}
	var w wireRecord
	if err := json.Unmarshal([]byte(pod.Annotations[AnnotationMetadata]), &w); err != nil {
		return r, provider.Permanentf(codeBadRecord, "the annotation %s of the pod %s cannot be read: %w", AnnotationMetadata, pod.Name, err)
	}
	if w.Version != recordVersion {
		return r, provider.Permanentf(codeBadRecord, "the annotation %s of the pod %s has version %d, this program reads %d", AnnotationMetadata, pod.Name, w.Version, recordVersion)
	}
	r.Metadata = w.Metadata
	return r, nil
}

// same tells whether a pod is the one that a request with this record makes, and
// here to stay.
func (r record) same(pod *corev1.Pod) error {
	have, err := marksOf(pod)
	if err != nil || have.Tag != r.Tag || have.UID != r.UID {
		return provider.Permanentf(provider.CodeCollision, "the pod %s belongs to another tag or UID, or to nobody of ours", pod.Name)
	}
	if pod.DeletionTimestamp != nil {
		return busy("the pod %s is still being deleted", pod.Name)
	}
	return nil
}
