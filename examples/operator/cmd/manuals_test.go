package main

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/egressfleet/egress/examples/operator/api/v1alpha1"
	"github.com/egressfleet/egress/examples/operator/internal/apitest"
	"github.com/egressfleet/egress/internal/mdtest"
)

const manual = "docs/operator.md"

// guide is a cluster that whoever follows docs/operator.md has, and their shell.
type guide struct {
	*cluster
	blocks []mdtest.Block
	env    []string
	// here is the folder that the shell is in.
	here string
	// operator is the one that runs, by what the guide has deployed.
	operator *pod
}

// Every command of docs/operator.md, in its order, does what the guide says, on an API
// server with nothing in it. The operator is a process of the test, with providers that
// have their proxies in it; docker is a stand-in that notes what it is asked for; what
// controllers and kubelets do is done by [guide.controllers].
func TestTheGuideAsItStands(t *testing.T) {
	g := newGuide(t)
	did := map[string]bool{}
	for _, b := range g.blocks {
		if b.Kind != "sh" {
			assert.NotContains(t, b.Text, "kubectl ", "%s:%d: commands are of kind sh", manual, b.Line)
			continue
		}
		script, check := b.Text, func(string) {}
		for has, step := range g.steps() {
			if !strings.Contains(b.Text, has) {
				continue
			}
			did[has] = true
			if step.before != nil {
				step.before(&script)
			}
			check = step.after
		}
		t.Logf("%s:%d", manual, b.Line)
		check(g.run(script))
	}
	for has := range g.steps() {
		assert.True(t, did[has], "%s has no %q any more", manual, has)
	}
}

// step is what a block of the guide takes for granted, and what it leads to.
type step struct {
	before func(script *string)
	after  func(out string)
}

// steps are by what their blocks have.
func (g *guide) steps() map[string]step {
	return map[string]step{
		"rollout status":     {after: g.deployed},
		"get px":             {after: g.listed},
		"port-forward":       {before: g.forward, after: g.leased},
		"delete proxy/pod-1": {after: func(string) { g.gone("pod-1") }},
		"get proxy kvm-1":    {before: g.beStuck, after: g.saysWhy},
		"annotate":           {after: g.abandoned},
		"kvm-ssh-secret":     {before: g.makeKeys, after: g.keysAreThere},
		"rollout restart":    {after: g.restartsWithRedis},
		"make undeploy":      {before: g.makeAnother, after: g.removed},
		"patch proxy kvm-1":  {before: g.loseOperator, after: func(string) { g.gone("kvm-1") }},
	}
}

func newGuide(t *testing.T) *guide {
	t.Helper()
	kubectl := apitest.Kubectl(t)
	for _, name := range []string{"make", "curl"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("needs %s", name)
		}
	}
	env := apitest.Empty(t)
	g := &guide{cluster: emptyCluster(t, apitest.Client(t, env.Config), apitest.KubeConfigOf(t, env, account), hello(t))}
	g.providers("pods", "kvm-home")
	for _, b := range mdtest.Blocks(t, apitest.Path("..", "..")) {
		if b.File == manual {
			g.blocks = append(g.blocks, b)
		}
	}
	g.here = filepath.Join(g.dir, "checkout")
	for _, name := range []string{"config", "hack"} {
		require.NoError(t, os.CopyFS(g.path("checkout/examples/operator", name), os.DirFS(apitest.Path(name))))
	}
	for _, name := range []string{"Makefile", "Dockerfile"} {
		require.NoError(t, os.Symlink(apitest.Path(name), g.path("checkout/examples/operator", name)))
	}
	require.NoError(t, os.MkdirAll(g.path("bin"), 0o755))
	require.NoError(t, os.Symlink(kubectl, g.path("bin", "kubectl")))
	require.NoError(t, os.WriteFile(g.path("bin", "docker"), []byte("#!/bin/sh\necho \"$*\" >> "+g.path("docker.log")+"\n"), 0o755))
	g.env = append(os.Environ(), "HOME="+g.dir, "KUBECTL=kubectl", "KUBECONFIG="+g.write("admin", env.KubeConfig),
		"PATH="+g.path("bin")+":"+os.Getenv("PATH"))
	g.controllers()
	return g
}

func (g *guide) path(elements ...string) string {
	return filepath.Join(append([]string{g.dir}, elements...)...)
}

// run has a shell run the script, and returns what that prints. The shell stays where
// the script went.
func (g *guide) run(script string) string {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(g.t.Context(), patient)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", "trap 'pwd > ~/here' EXIT\n"+script)
	cmd.Dir, cmd.Env = g.here, g.env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) } // what waits, too
	out, err := cmd.CombinedOutput()
	require.NoError(g.t, err, "%s\n%s", script, out)
	here, err := os.ReadFile(g.path("here"))
	require.NoError(g.t, err)
	g.here = strings.TrimSpace(string(here))
	return string(out)
}

// get reads an object of the operator's namespace.
func (g *guide) get(name string, o client.Object) error {
	return g.c.Get(g.t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, o)
}

func (g *guide) px(name string) *v1alpha1.Proxy {
	g.t.Helper()
	px := &v1alpha1.Proxy{}
	require.NoError(g.t, g.get(name, px))
	return px
}

func (g *guide) gone(name string) {
	g.t.Helper()
	assert.True(g.t, apierrors.IsNotFound(g.get(name, &v1alpha1.Proxy{})), "%s is gone", name)
}

// deployed has the operator run that the guide has deployed.
func (g *guide) deployed(out string) {
	assert.Contains(g.t, out, `deployment "egress-operator" successfully rolled out`)
	var deployment appsv1.Deployment
	require.NoError(g.t, g.get("egress-operator", &deployment))
	container := deployment.Spec.Template.Spec.Containers[0]
	var settings corev1.ConfigMap
	require.NoError(g.t, g.get(container.EnvFrom[0].ConfigMapRef.Name, &settings))
	for _, m := range regexp.MustCompile(`\$\((\w+)\)`).FindAllStringSubmatch(strings.Join(container.Args, " "), -1) {
		assert.NotEmpty(g.t, settings.Data[m[1]], "the settings have %s", m[1])
	}
	image := container.Image
	asked, err := os.ReadFile(g.path("docker.log"))
	require.NoError(g.t, err)
	assert.Equal(g.t, "build -f Dockerfile -t "+image+" ../..\npush "+image+"\n", string(asked))
	g.operate("operator-a")
}

func (g *guide) operate(name string) {
	g.t.Helper()
	var secret corev1.Secret
	require.NoError(g.t, g.get("egress-operator", &secret))
	g.operator = g.start(name, []string{"DISCOVERY_TOKEN=" + string(secret.Data["discovery-token"])}, "--drain-timeout=1s")
}

// listed compares the table with the guide's.
func (g *guide) listed(out string) {
	rows := func(table string) (rows [][]string) {
		for line := range strings.Lines(table[strings.Index(table, "NAME "):]) {
			rows = append(rows, strings.Fields(line))
		}
		return rows
	}
	i := slices.IndexFunc(g.blocks, func(b mdtest.Block) bool { return strings.HasPrefix(b.Text, "NAME ") })
	require.GreaterOrEqual(g.t, i, 0)
	require.Contains(g.t, out, "NAME ")
	want, got := rows(g.blocks[i].Text), rows(out)
	require.Len(g.t, got, len(want))
	require.Len(g.t, got[1], len(want[1]))
	for _, column := range []string{"ADDRESS", "AGE"} {
		i := slices.Index(want[0], column)
		require.GreaterOrEqual(g.t, i, 0)
		got[1][i] = want[1][i]
	}
	assert.Equal(g.t, want, got)
	g.mentioned()
}

// mentioned are commands within sentences: those of a Proxy are tried, and of others the
// name is one that kubectl knows.
func (g *guide) mentioned() {
	said := ""
	for _, command := range mdtest.Commands(g.t, apitest.Path("..", "..", manual)) {
		inBlock := slices.ContainsFunc(g.blocks, func(b mdtest.Block) bool { return strings.Contains(b.Text, command) })
		rest, isKubectl := strings.CutPrefix(command, "kubectl ")
		switch {
		case !isKubectl || inBlock:
		case strings.Contains(rest, " "):
			said += g.run("kubectl -n " + namespace + " " + rest)
		default:
			g.run("kubectl " + rest + " --help")
		}
	}
	assert.Regexp(g.t, `NAME .* ID +REASON\n.*`+g.px("pod-1").Status.ProviderID, said, "the guide says that -o wide shows them")
}

// forward has the operator's port be where kubectl would forward it: kubectl finds the
// Service, its port and the pod, and then has no kubelet to ask.
func (g *guide) forward(script *string) {
	g.eventually("it serves", func() bool { return len(g.serving()) == 1 })
	const local = "http://localhost:8090/"
	require.Contains(g.t, *script, local)
	*script = strings.ReplaceAll(*script, local, "http://"+g.operator.api+"/")
}

func (g *guide) leased(out string) {
	assert.Contains(g.t, out, "pod "+g.operator.name+" does not have a host assigned", "port-forward comes as far as to the kubelet")
	assert.Regexp(g.t, `"url": ?"http://crawler:[^@"]+@127\.0\.0\.1:\d+"`, out)
}

// beStuck has kvm-1 be deleted when the providers file has its provider no more.
func (g *guide) beStuck(*string) {
	g.run("kubectl -n egress-system apply -f config/samples/managed_kvm.yaml")
	px := g.px("kvm-1")
	g.ready(px)
	g.providers("pods")
	require.NoError(g.t, g.operator.wait(), "it ends, to be started again with the new file")
	g.operate("operator-b")
	require.NoError(g.t, g.c.Delete(g.t.Context(), px))
	g.eventually("it is stuck", func() bool {
		return conditionOf(g.px("kvm-1"), v1alpha1.ConditionProvisioned).Reason == v1alpha1.ReasonProviderUnknown
	})
}

func (g *guide) saysWhy(out string) {
	var condition metav1.Condition
	require.NoError(g.t, json.Unmarshal([]byte(out), &condition), "%q", out)
	assert.Equal(g.t, v1alpha1.ConditionProvisioned, condition.Type)
	assert.NotEmpty(g.t, condition.Message)
}

// abandoned is a Proxy whose machine stays, which an event tells.
func (g *guide) abandoned(string) {
	g.eventually("it is let go", func() bool { return apierrors.IsNotFound(g.get("kvm-1", &v1alpha1.Proxy{})) })
	g.eventually("the event", func() bool {
		var events corev1.EventList
		require.NoError(g.t, g.c.List(g.t.Context(), &events, client.InNamespace(namespace)))
		return slices.ContainsFunc(events.Items, func(e corev1.Event) bool { return e.Reason == "Abandoned" && e.InvolvedObject.Name == "kvm-1" })
	})
}

const sshKey = "-----BEGIN OPENSSH PRIVATE KEY-----"

func (g *guide) makeKeys(*string) {
	require.NoError(g.t, os.MkdirAll(g.path(".ssh"), 0o700))
	g.write(".ssh/egress", []byte(sshKey))
	require.NoError(g.t, os.WriteFile(filepath.Join(g.here, "known_hosts"), []byte("kvm1 ssh-ed25519 AAAA\n"), 0o600))
}

func (g *guide) keysAreThere(string) {
	var secret corev1.Secret
	require.NoError(g.t, g.get("kvm-ssh", &secret))
	assert.Equal(g.t, sshKey, string(secret.Data["ssh-privatekey"]))
	assert.NotEmpty(g.t, secret.Data["known_hosts"])
}

// restartsWithRedis looks for the URL where the Deployment does, and for what a roll-out
// begins with.
func (g *guide) restartsWithRedis(string) {
	var deployment appsv1.Deployment
	require.NoError(g.t, g.get("egress-operator", &deployment))
	assert.Contains(g.t, deployment.Spec.Template.Annotations, "kubectl.kubernetes.io/restartedAt")
	env := deployment.Spec.Template.Spec.Containers[0].Env
	i := slices.IndexFunc(env, func(e corev1.EnvVar) bool { return e.Name == "EGRESS_REDIS" })
	require.GreaterOrEqual(g.t, i, 0)
	from := env[i].ValueFrom.SecretKeyRef
	var secret corev1.Secret
	require.NoError(g.t, g.get(from.Name, &secret))
	assert.Contains(g.t, string(secret.Data[from.Key]), "rediss://")
	assert.NotEmpty(g.t, secret.Data["proxy-key"], "the rest of the Secret stays")
}

func (g *guide) makeAnother(*string) {
	g.run("kubectl -n egress-system apply -f config/samples/managed_kubernetes.yaml")
	g.ready(g.px("pod-1"))
	g.operator.refused = true // its role goes before it does
}

func (g *guide) removed(out string) {
	assert.Contains(g.t, out, `"pod-1" deleted`)
	assert.True(g.t, apierrors.IsNotFound(g.c.Get(g.t.Context(), client.ObjectKey{Name: namespace}, &corev1.Namespace{})))
	assert.NotContains(g.t, g.run("kubectl get crd"), "crawl.example.com")
	g.operator.kill()
}

// loseOperator has a Proxy be deleted where nobody takes its finalizer away.
func (g *guide) loseOperator(*string) {
	g.run("make install && kubectl apply -f config/manager/namespace.yaml && kubectl wait --for=condition=Established crd/proxies.crawl.example.com")
	px := g.proxy("kvm-1", func(px *v1alpha1.Proxy) { px.Finalizers = []string{v1alpha1.Finalizer} })
	require.NoError(g.t, g.c.Delete(g.t.Context(), px))
	require.NoError(g.t, g.get("kvm-1", px))
}

// controllers does what nobody does on an API server alone: Deployments are rolled out,
// pods run, and namespaces that are deleted go.
func (g *guide) controllers() {
	ctx, cancel := context.WithCancel(context.WithoutCancel(g.t.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			g.control(ctx)
			time.Sleep(50 * time.Millisecond)
		}
	}()
	g.t.Cleanup(func() { cancel(); <-done })
}

// control looks at all of them once. What fails is tried again.
func (g *guide) control(ctx context.Context) {
	var deployments appsv1.DeploymentList
	var pods corev1.PodList
	var namespaces corev1.NamespaceList
	_ = g.c.List(ctx, &deployments)
	for _, d := range deployments.Items {
		n := *d.Spec.Replicas
		d.Status = appsv1.DeploymentStatus{ObservedGeneration: d.Generation, Replicas: n, UpdatedReplicas: n, ReadyReplicas: n, AvailableReplicas: n}
		_ = g.c.Status().Update(ctx, &d)
	}
	_ = g.c.List(ctx, &pods)
	for _, p := range pods.Items {
		p.Status.Phase = corev1.PodRunning
		_ = g.c.Status().Update(ctx, &p)
	}
	_ = g.c.List(ctx, &namespaces)
	for _, ns := range namespaces.Items {
		if ns.DeletionTimestamp != nil {
			ns.Spec.Finalizers = nil
			_ = g.c.SubResource("finalize").Update(ctx, &ns)
		}
	}
}
