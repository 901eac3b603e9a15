package kubernetes

import (
	"maps"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/egressfleet/egress/provider"
)

// The keys of an instance's Secret.
const (
	// keyConf is the rendered squid.conf, where no user-data is given.
	keyConf = "squid.conf"
	// keyUserData is the request's user-data, which then is squid.conf.
	keyUserData = "user-data"
	// keyUsers is the password file, where there are credentials.
	keyUsers = "egress.users"
)

// Places in the container.
const (
	confDir  = "/etc/squid"
	confPath = confDir + "/squid.conf"
)

// writableDirs are all that Squid may write to, beside /dev/shm, which a container
// has to itself.
var writableDirs = []struct{ name, path string }{
	{"run", "/run"}, {"log", "/var/log/squid"}, {"spool", "/var/spool/squid"},
}

const (
	volumeConf    = "conf"
	containerName = "squid"
	zoneLabel     = corev1.LabelTopologyZone
)

// terminationGrace is for Squid to end its connections, in seconds: its
// shutdown_lifetime is one, and its end takes three.
const terminationGrace = 10

// podFor is the pod of a request's instance.
func (c Config) podFor(req provider.CreateRequest) (*corev1.Pod, error) {
	image := or(req.Placement.Image, c.Image)
	switch {
	case image == "":
		return nil, provider.Permanentf(provider.CodeInvalidRequest, "placement.image: give an image, here or as image in the configuration")
	case !isImage(image):
		return nil, provider.Permanentf(provider.CodeInvalidRequest, "placement.image: %q: must be the name of an image", image)
	case len(validation.IsValidLabelValue(req.Placement.Zone)) > 0:
		return nil, provider.Permanentf(provider.CodeInvalidRequest, "placement.zone: %q: must be a value of the nodes' label %s", req.Placement.Zone, zoneLabel)
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: provider.Name(req.UID), Namespace: c.Namespace},
		Spec:       c.podSpec(image, req.Placement.Zone, c.confVolume(req)),
	}
	r := record{Tag: req.Tag, UID: req.UID, Metadata: req.Metadata}
	return pod, r.markPod(&pod.ObjectMeta, c.Labels)
}

// podSpec runs Squid in the foreground, without privileges, and not again after
// its end: what ended is for the caller to see and to replace.
func (c Config) podSpec(image, zone string, conf corev1.Volume) corev1.PodSpec {
	return corev1.PodSpec{
		RestartPolicy:                 corev1.RestartPolicyNever,
		AutomountServiceAccountToken:  new(false),
		EnableServiceLinks:            new(false),
		TerminationGracePeriodSeconds: new(int64(terminationGrace)),
		NodeSelector:                  c.nodeSelector(zone),
		SecurityContext: &corev1.PodSecurityContext{
			RunAsNonRoot: new(true), RunAsUser: &c.UserID, RunAsGroup: &c.UserID, FSGroup: &c.UserID,
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		Containers: []corev1.Container{c.container(image)},
		Volumes:    append([]corev1.Volume{conf}, writableVolumes()...),
	}
}

func (c Config) nodeSelector(zone string) map[string]string {
	if zone == "" {
		return maps.Clone(c.NodeSelector)
	}
	selector := map[string]string{}
	maps.Copy(selector, c.NodeSelector)
	selector[zoneLabel] = zone
	return selector
}

func (c Config) container(image string) corev1.Container {
	return corev1.Container{
		Name: containerName, Image: image,
		Command:      []string{"squid", "-N", "-d", "1", "-f", confPath},
		Ports:        []corev1.ContainerPort{{Name: "proxy", ContainerPort: int32(c.Port), Protocol: corev1.ProtocolTCP}}, //nolint:gosec // a port
		Resources:    *c.Resources.DeepCopy(),
		VolumeMounts: mounts(),
		ReadinessProbe: &corev1.Probe{
			ProbeHandler:  corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt(c.Port)}},
			PeriodSeconds: 2, TimeoutSeconds: 2,
		},
		SecurityContext: &corev1.SecurityContext{
			RunAsNonRoot: new(true), AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true),
			Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		},
	}
}

// confVolume is the part of the Secret that the container sees. The kubelet waits
// until the Secret is there.
func (c Config) confVolume(req provider.CreateRequest) corev1.Volume {
	key := keyConf
	if len(req.UserData) > 0 {
		key = keyUserData
	}
	items := []corev1.KeyToPath{{Key: key, Path: keyConf}}
	if username, password := c.credentials(req.UID); username != "" || password != "" {
		items = append(items, corev1.KeyToPath{Key: keyUsers, Path: keyUsers})
	}
	return corev1.Volume{Name: volumeConf, VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{
		SecretName: provider.Name(req.UID), Items: items, DefaultMode: new(int32(0o440)),
	}}}
}

// writableVolumes are small: Squid caches nothing.
func writableVolumes() []corev1.Volume {
	var out []corev1.Volume
	for _, dir := range writableDirs {
		limit := resource.MustParse("64Mi")
		out = append(out, corev1.Volume{Name: dir.name, VolumeSource: corev1.VolumeSource{
			EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: &limit},
		}})
	}
	return out
}

func mounts() []corev1.VolumeMount {
	out := []corev1.VolumeMount{{Name: volumeConf, MountPath: confDir, ReadOnly: true}}
	for _, dir := range writableDirs {
		out = append(out, corev1.VolumeMount{Name: dir.name, MountPath: dir.path})
	}
	return out
}

// secretFor is the Secret of a pod's instance. It goes with the pod.
func (c Config) secretFor(pod *corev1.Pod, r record, files map[string][]byte) *corev1.Secret {
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Name: pod.Name, Namespace: c.Namespace,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}},
		},
		Type: corev1.SecretTypeOpaque, Immutable: new(true), Data: files,
	}
	r.mark(&secret.ObjectMeta, c.Labels)
	return secret
}

// owned tells whether a Secret is that of this pod, and not of an earlier one.
func owned(secret *corev1.Secret, pod *corev1.Pod) bool {
	for _, owner := range secret.OwnerReferences {
		if owner.UID == pod.UID {
			return true
		}
	}
	return false
}

// port is the text form.
func (c Config) port() string { return strconv.Itoa(c.Port) }
