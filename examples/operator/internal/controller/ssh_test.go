package controller

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/egressfleet/egress/examples/operator/api/v1alpha1"
	"github.com/egressfleet/egress/internal/fakelibvirt"
	"github.com/egressfleet/egress/internal/sshtest"
	"github.com/egressfleet/egress/kvm"
	"github.com/egressfleet/egress/provider"
)

// behindSSH is a provider whose every call asks a hypervisor first.
type behindSSH struct {
	provider.Provider
	host *kvm.Provider
}

func (b behindSSH) Unwrap() provider.Provider { return b.Provider }

func (b behindSSH) ask(ctx context.Context) error {
	_, err := b.host.ListByTag(ctx, rigTag)
	if partial, ok := err.(*provider.PartialError); ok {
		return partial.Missing[0].Err
	}
	return err
}

func (b behindSSH) Create(ctx context.Context, req provider.CreateRequest) (string, error) {
	if err := b.ask(ctx); err != nil {
		return "", err
	}
	return b.Provider.Create(ctx, req)
}

func (b behindSSH) Get(ctx context.Context, id string) (provider.Instance, error) {
	if err := b.ask(ctx); err != nil {
		return provider.Instance{}, err
	}
	return b.Provider.Get(ctx, id)
}

// The key for hypervisors may be absent, come later, and be rotated, without a
// restart. What is Ready stays so meanwhile, and a condition tells.
func TestSSHSecret(t *testing.T) {
	r := newRig(t)
	dir, wire, first := t.TempDir(), &fakelibvirt.Wire{}, sshtest.NewKey(t)
	socket := filepath.Join(dir, "sock")
	l, err := net.Listen("unix", socket)
	require.NoError(t, err)
	served := make(chan struct{})
	go func() { wire.Serve(l); close(served) }()
	t.Cleanup(func() { _ = l.Close(); <-served })
	server := sshtest.New(t, first.PublicKey())
	host, err := kvm.New(kvm.Config{
		SSHKeyFile:     filepath.Join(dir, "id"),
		KnownHostsFile: sshtest.WriteFile(t, dir, "known_hosts", []byte(server.KnownHosts())),
		Hosts:          []kvm.Host{{Name: "kvm1", Address: server.Address(), User: "egress", Socket: socket, Bridge: "br0"}},
		MachineTypes:   map[string]kvm.MachineType{"small": {VCPUs: 1, MemoryMiB: 256}},
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = host.Close() })
	r.providers.known["dev"] = behindSSH{r.provider(r.host), host}
	r.start()

	unreachable := func(px *v1alpha1.Proxy) bool {
		return condition(px, "ProviderReachable").Status == metav1.ConditionFalse
	}
	px := r.proxy("one")
	require.NoError(t, r.c.Create(t.Context(), px))
	px = r.until(px, "told that the key is absent", unreachable)
	assert.Contains(t, condition(px, "ProviderReachable").Message, filepath.Join(dir, "id"))

	sshtest.WriteFile(t, dir, "id", first.PEM)
	px = r.ready(px)

	second := sshtest.NewKey(t)
	server.Authorize(second.PublicKey())
	server.Disconnect()
	px = r.until(px, "told that the key is refused", unreachable)
	assert.Equal(t, v1alpha1.PhaseReady, px.Status.Phase)
	require.NoError(t, os.Remove(filepath.Join(dir, "id")))
	sshtest.WriteFile(t, dir, "id", second.PEM)
	px = r.until(px, "reachable", func(px *v1alpha1.Proxy) bool { return !unreachable(px) })
	assert.Equal(t, int64(1), px.Status.Incarnation)
	assert.Len(t, r.machines(), 1)
}
