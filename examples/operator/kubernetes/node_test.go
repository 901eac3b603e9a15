package kubernetes_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// node stands in for what a namespace lacks without a cluster: the scheduler, which
// binds its pods; the kubelet, which runs each pod's real Squid on a loopback
// address of its own, tells how it fares and finishes deletions; and the garbage
// collector, which deletes Secrets whose pod is gone.
type node struct {
	t      *testing.T
	ns     *namespace
	dir    string
	squid  string
	prefix string // of the addresses
	// grace is what Squid gets to end after SIGTERM; without it it is killed.
	grace time.Duration

	calls sync.WaitGroup // goroutines

	mu     sync.Mutex
	count  int
	guests map[types.UID]*guest
}

// guest is the process of one pod.
type guest struct {
	cmd *exec.Cmd
	ip  string
	// service is the name of its segments in /dev/shm, which a pod has to itself.
	service string
	log     *bytes.Buffer
	// ended is closed when the process is gone.
	ended chan struct{}
}

// startNode starts one, and ends it with the test.
func startNode(t *testing.T, ns *namespace) *node {
	t.Helper()
	squid, err := exec.LookPath("squid")
	if err != nil || runtime.GOOS != "linux" {
		t.Skip("needs squid on Linux: apt-get install --no-install-recommends squid")
	}
	n := &node{t: t, ns: ns, dir: t.TempDir(), squid: squid, prefix: loopback(), guests: map[types.UID]*guest{}}
	require.NoError(t, os.Chmod(filepath.Dir(n.dir), 0o755)) // Squid has another user
	require.NoError(t, os.Chmod(n.dir, 0o755))
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	events := make(chan struct{}, 1)
	n.watch(ctx, events, &corev1.PodList{})
	n.watch(ctx, events, &corev1.SecretList{})
	n.calls.Go(func() { n.run(ctx, events) })
	t.Cleanup(func() {
		cancel() // which kills every process
		n.calls.Wait()
	})
	return n
}

// loopback is a network that no other run of this test uses at the same time.
func loopback() string {
	var b [2]byte
	_, _ = rand.Read(b[:])
	return fmt.Sprintf("127.%d.%d.", 1+b[0]%254, b[1])
}

// watch tells of every change of a kind.
func (n *node) watch(ctx context.Context, events chan<- struct{}, list client.ObjectList) {
	n.t.Helper()
	w, err := n.ns.admin.Watch(ctx, list, client.InNamespace(n.ns.name))
	require.NoError(n.t, err)
	n.calls.Go(func() {
		defer w.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case _, ok := <-w.ResultChan():
				if !ok {
					return
				}
			}
			select {
			case events <- struct{}{}:
			default:
			}
		}
	})
}

func (n *node) run(ctx context.Context, events <-chan struct{}) {
	for {
		if err := n.look(ctx); err != nil && ctx.Err() == nil {
			n.t.Logf("the node: %v", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-events:
		case <-time.After(time.Second): // what failed is tried again
		}
	}
}

// look compares what runs with what should. Secrets are read first: the pod of one
// that is seen is seen too, if it is there.
func (n *node) look(ctx context.Context) error {
	var secrets corev1.SecretList
	var pods corev1.PodList
	if err := n.ns.admin.List(ctx, &secrets, client.InNamespace(n.ns.name)); err != nil {
		return err
	}
	if err := n.ns.admin.List(ctx, &pods, client.InNamespace(n.ns.name)); err != nil {
		return err
	}
	var errs []error
	there := map[types.UID]bool{}
	for _, pod := range pods.Items {
		there[pod.UID] = true
		errs = append(errs, n.tend(ctx, &pod, secrets.Items))
	}
	for _, s := range secrets.Items {
		if len(s.OwnerReferences) == 1 && !there[s.OwnerReferences[0].UID] {
			errs = append(errs, client.IgnoreNotFound(n.ns.admin.Delete(ctx, &s)))
		}
	}
	n.killStrays(there)
	return errors.Join(errs...)
}

// tend does what one pod needs.
func (n *node) tend(ctx context.Context, pod *corev1.Pod, secrets []corev1.Secret) error {
	switch g := n.guest(pod.UID); {
	case pod.DeletionTimestamp != nil:
		if g == nil {
			return client.IgnoreNotFound(n.ns.admin.Delete(ctx, pod, client.GracePeriodSeconds(0)))
		}
		n.end(g)
		return nil
	case pod.Spec.NodeName == "":
		return gone(n.ns.admin.SubResource("binding").Create(ctx, pod, &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace},
			Target:     corev1.ObjectReference{Kind: "Node", Name: "node-1"},
		}))
	case g == nil && pod.Status.Phase == corev1.PodPending:
		for _, s := range secrets {
			if s.Name == pod.Name {
				return n.start(ctx, pod, &s)
			}
		}
	}
	return nil
}

// gone ignores what a pod's disappearance explains.
func gone(err error) error {
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

func (n *node) guest(uid types.UID) *guest {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.guests[uid]
}

// end asks a process to end, or kills it.
func (n *node) end(g *guest) {
	if n.grace == 0 {
		_ = g.cmd.Process.Kill()
		return
	}
	_ = g.cmd.Process.Signal(syscall.SIGTERM)
}

// killStrays ends the processes of pods that are gone.
func (n *node) killStrays(there map[types.UID]bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for uid, g := range n.guests {
		if !there[uid] {
			_ = g.cmd.Process.Kill()
		}
	}
}

// start mounts the volumes and runs the pod's command.
func (n *node) start(ctx context.Context, pod *corev1.Pod, secret *corev1.Secret) error {
	n.mu.Lock()
	n.count++
	ip := fmt.Sprintf("%s%d", n.prefix, 1+n.count%250)
	service := strings.ReplaceAll(ip, ".", "x")
	n.mu.Unlock()
	mount, err := n.mount(pod, secret, ip)
	if err != nil {
		return err
	}
	c := pod.Spec.Containers[0]
	g := &guest{ip: ip, service: service, log: &bytes.Buffer{}, ended: make(chan struct{})}
	args := []string{"-n", service}
	for _, a := range c.Command[1:] {
		args = append(args, mount.Replace(a))
	}
	g.cmd = exec.CommandContext(ctx, n.squid, args...)
	g.cmd.Stdout, g.cmd.Stderr, g.cmd.Dir = g.log, g.log, n.dir
	if os.Geteuid() == 0 {
		user := uint32(*pod.Spec.SecurityContext.RunAsUser) //nolint:gosec // a user
		g.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}
	}
	if err := g.cmd.Start(); err != nil {
		return err
	}
	n.mu.Lock()
	n.guests[pod.UID] = g
	n.mu.Unlock()
	n.calls.Go(func() {
		_ = g.cmd.Wait()
		close(g.ended)
	})
	n.calls.Go(func() {
		n.waitReady(ctx, pod, g)
		n.waitEnd(ctx, pod, g)
	})
	return nil
}

// mount lays the volumes out below a folder, and returns what turns the paths in
// the container into those here. The pod's address is the other thing that a
// container has to itself.
func (n *node) mount(pod *corev1.Pod, secret *corev1.Secret, ip string) (*strings.Replacer, error) {
	root := filepath.Join(n.dir, string(pod.UID))
	volumes := map[string]corev1.Volume{}
	for _, v := range pod.Spec.Volumes {
		volumes[v.Name] = v
	}
	var paths []string
	for _, m := range pod.Spec.Containers[0].VolumeMounts {
		paths = append(paths, m.MountPath+"/", filepath.Join(root, m.Name)+"/")
	}
	paths = append(paths, "coredump_dir /var/spool/squid", "coredump_dir "+filepath.Join(root, "spool"))
	port := fmt.Sprint(pod.Spec.Containers[0].Ports[0].ContainerPort)
	mount := strings.NewReplacer(append(paths, "http_port "+port+"\n", "http_port "+net.JoinHostPort(ip, port)+"\n")...)
	for _, m := range pod.Spec.Containers[0].VolumeMounts {
		dir := filepath.Join(root, m.Name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
		if v := volumes[m.Name]; v.Secret != nil {
			for _, item := range v.Secret.Items {
				content, ok := secret.Data[item.Key]
				if !ok {
					return nil, fmt.Errorf("the Secret %s has no key %s", secret.Name, item.Key)
				}
				if err := os.WriteFile(filepath.Join(dir, item.Path), []byte(mount.Replace(string(content))), 0o444); err != nil {
					return nil, err
				}
			}
			continue
		}
		if os.Geteuid() == 0 {
			if err := os.Chown(dir, int(*pod.Spec.SecurityContext.RunAsUser), int(*pod.Spec.SecurityContext.FSGroup)); err != nil {
				return nil, err
			}
		}
	}
	return mount, nil
}

// waitReady is the readiness probe.
func (n *node) waitReady(ctx context.Context, pod *corev1.Pod, g *guest) {
	address := net.JoinHostPort(g.ip, pod.Spec.Containers[0].ReadinessProbe.TCPSocket.Port.String())
	for {
		conn, err := net.DialTimeout("tcp", address, time.Second)
		if err == nil {
			_ = conn.Close()
			break
		}
		select {
		case <-g.ended:
			return
		case <-ctx.Done():
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
	n.tell(ctx, pod, corev1.PodStatus{
		Phase: corev1.PodRunning, PodIP: g.ip, PodIPs: []corev1.PodIP{{IP: g.ip}},
		Conditions:        []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		ContainerStatuses: []corev1.ContainerStatus{{Name: "squid", Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}},
	})
}

// waitEnd tells how the process ended, and finishes a deletion.
func (n *node) waitEnd(ctx context.Context, pod *corev1.Pod, g *guest) {
	<-g.ended
	if n.t.Failed() {
		n.t.Logf("squid of %s: %s\n%s", pod.Name, g.cmd.ProcessState, g.log)
	}
	_ = os.RemoveAll(filepath.Join(n.dir, string(pod.UID)))
	segments, _ := filepath.Glob("/dev/shm/" + g.service + "-*.shm")
	for _, path := range segments {
		_ = os.Remove(path)
	}
	end := &corev1.ContainerStateTerminated{ExitCode: int32(g.cmd.ProcessState.ExitCode()), Reason: "Completed"} //nolint:gosec // a code
	phase := corev1.PodSucceeded
	if status, ok := g.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		end.ExitCode = 128 + int32(status.Signal()) //nolint:gosec // a signal
	}
	if end.ExitCode != 0 {
		phase, end.Reason = corev1.PodFailed, "Error"
	}
	n.tell(ctx, pod, corev1.PodStatus{
		Phase:             phase,
		ContainerStatuses: []corev1.ContainerStatus{{Name: "squid", State: corev1.ContainerState{Terminated: end}}},
	})
	n.mu.Lock()
	delete(n.guests, pod.UID)
	n.mu.Unlock()
	if err := n.look(ctx); err != nil && ctx.Err() == nil {
		n.t.Logf("the node: %v", err)
	}
}

// tell writes a pod's status, unless the pod is gone.
func (n *node) tell(ctx context.Context, pod *corev1.Pod, status corev1.PodStatus) {
	for ctx.Err() == nil {
		now, err := n.ns.pod(ctx, pod.Name)
		if err == nil && now.UID != pod.UID {
			return
		}
		if err == nil {
			status.QOSClass = now.Status.QOSClass
			now.Status = status
			err = n.ns.admin.Status().Update(ctx, now)
		}
		if err == nil || apierrors.IsNotFound(err) {
			return
		}
		if !apierrors.IsConflict(err) && ctx.Err() == nil {
			n.t.Errorf("the node: the status of %s: %v", pod.Name, err)
			return
		}
	}
}

// signal sends one to the process of an instance.
func (n *node) signal(s syscall.Signal) func(context.Context, string) error {
	return func(ctx context.Context, id string) error {
		pod, err := n.ns.pod(ctx, id)
		if err != nil {
			return err
		}
		g := n.guest(pod.UID)
		if g == nil {
			return fmt.Errorf("no process runs for %s", id)
		}
		return g.cmd.Process.Signal(s)
	}
}
