package kubernetes_test

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/egressfleet/egress/cloudinit"
	"github.com/egressfleet/egress/examples/operator/kubernetes"
	"github.com/egressfleet/egress/provider"
	"github.com/egressfleet/egress/provider/providertest"
)

func TestConformance(t *testing.T) {
	ns := newNamespace(t)
	providertest.Run(t, newRig(t, ns).harness())
}

// rig is a namespace whose pods run.
type rig struct {
	t    *testing.T
	ns   *namespace
	node *node
	wire wire
	conf []byte // a squid.conf for user-data

	mu  sync.Mutex
	log bytes.Buffer
}

func newRig(t *testing.T, ns *namespace) *rig {
	t.Helper()
	conf, err := cloudinit.Squid{
		Clients:   []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
		ExtraConf: []string{"pid_filename none", "cache_log /dev/null", "coredump_dir /var/spool/squid", "pinger_enable off"},
	}.Conf()
	require.NoError(t, err)
	return &rig{t: t, ns: ns, node: startNode(t, ns), conf: conf}
}

const password = "secret-password"

func (r *rig) provider() (provider.Provider, error) {
	return r.ns.provider(&r.wire, func(c *kubernetes.Config) {
		c.Clients = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
		c.Credentials = func(uid string) (string, string) { return "crawler", password + uid }
		c.FileDescriptors = 256
		c.Logger = funcr.New(r.keep, funcr.Options{Verbosity: 5})
	})
}

func (r *rig) keep(prefix, args string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprintln(&r.log, prefix, args)
}

func (r *rig) logs() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log.String()
}

// request has user-data every second time.
func (r *rig) request(uid, tag string) provider.CreateRequest {
	req := provider.CreateRequest{UID: uid, Tag: tag}
	if uid[len(uid)-1]%2 == 0 {
		req.UserData = fmt.Appendf(nil, "# the password of %s is hunter2\n%s", uid, r.conf)
	}
	return req
}

func (r *rig) harness() providertest.Harness {
	return providertest.Harness{
		New: r.provider, Request: r.request,
		Timeout: 30 * time.Second, Interval: 20 * time.Millisecond, Settle: 500 * time.Millisecond,
		Unconfigured: "namespaces/elsewhere/pods/" + provider.Name("x"),
		Stop:         r.node.signal(syscall.SIGTERM),
		Crash:        r.node.signal(syscall.SIGKILL),
		Vanish:       r.ns.vanish,
		Break:        r.wire.cut,
		Hang:         r.wire.hang,
		Exhaust: func(ctx context.Context) (func(), error) {
			return r.ns.exhaust(ctx, corev1.ResourcePods)
		},
		Foreign:   r.foreign,
		OtherUID:  r.otherUID,
		Leftovers: r.ns.leftovers,
		HasUserData: func(ctx context.Context, id string, want []byte) (bool, error) {
			secret, err := r.ns.secret(ctx, id)
			return bytes.Equal(secret.Data["user-data"], want), err
		},
		Logs:    r.logs,
		Secrets: []string{password},
	}
}

// foreign is a pod of somebody who knows nothing of this package.
func (r *rig) foreign(ctx context.Context, req provider.CreateRequest) (providertest.Stranger, error) {
	return r.stranger(ctx, restricted(r.ns.name, provider.Name(req.UID)))
}

// otherUID is a pod with our marks and another UID.
func (r *rig) otherUID(ctx context.Context, req provider.CreateRequest) (providertest.Stranger, error) {
	pod := restricted(r.ns.name, provider.Name(req.UID))
	pod.Labels = map[string]string{kubernetes.LabelManaged: "true", kubernetes.LabelTag: req.Tag}
	pod.Annotations = map[string]string{kubernetes.AnnotationUID: "another", kubernetes.AnnotationMetadata: `{"version":1}`}
	return r.stranger(ctx, pod)
}

func (r *rig) stranger(ctx context.Context, pod *corev1.Pod) (providertest.Stranger, error) {
	if err := r.ns.admin.Create(ctx, pod); err != nil {
		return providertest.Stranger{}, err
	}
	return providertest.Stranger{
		ID: "namespaces/" + r.ns.name + "/pods/" + pod.Name,
		Unchanged: func(ctx context.Context) (bool, error) {
			now, err := r.ns.pod(ctx, pod.Name)
			return err == nil && now.UID == pod.UID && now.DeletionTimestamp == nil && now.Generation == pod.Generation &&
				maps.Equal(now.Labels, pod.Labels) && maps.Equal(now.Annotations, pod.Annotations), err
		},
		Remove: func(ctx context.Context) error { return r.ns.admin.Delete(ctx, pod, client.GracePeriodSeconds(0)) },
	}, nil
}
