package kvm_test

import (
	"bytes"
	"testing"

	"github.com/digitalocean/go-libvirt"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/internal/fakelibvirt"
	"github.com/egressfleet/egress/provider"
)

func consolePath(uid string) string {
	return "/var/log/libvirt/qemu/" + provider.Name(uid) + "-console.log"
}

func TestReadConsole(t *testing.T) {
	r := newRig(t)
	ctx := testContext(t)
	id := mustCreate(t, r, r.Provider, request("u1"))
	log := bytes.Repeat([]byte("0123456789"), 20_000)
	r.host().PutFile(consolePath("u1"), log)
	for limit, want := range map[int][]byte{
		0: log[len(log)-provider.DefaultConsoleBytes:], 25: log[len(log)-25:], 1 << 30: log,
	} {
		got, err := r.ReadConsole(ctx, id, limit)
		require.NoError(t, err)
		assert.Equal(t, len(want), len(got))
		assert.True(t, bytes.Equal(want, got))
	}
	assert.Equal(t, []string{"default"}, r.host().Pools(), "nothing is left on the host")

	r.host().PutFile(consolePath("u1"), nil)
	got, err := r.ReadConsole(ctx, id, 0)
	require.NoError(t, err)
	assert.Empty(t, got)
}

// TestReadConsoleThroughAPoolOfTheHost uses one that the administrator has, and
// leaves it.
func TestReadConsoleThroughAPoolOfTheHost(t *testing.T) {
	r := newRig(t)
	id := mustCreate(t, r, r.Provider, request("u1"))
	r.host().PutFile(consolePath("u1"), []byte("login:"))
	_, err := r.host().Connect().StoragePoolCreateXML("<pool type='dir'><name>logs</name><target><path>/var/log/libvirt/qemu</path></target></pool>", 0)
	require.NoError(t, err)
	got, err := r.ReadConsole(testContext(t), id, 0)
	require.NoError(t, err)
	assert.Equal(t, "login:", string(got))
	assert.Equal(t, []string{"default", "logs"}, r.host().Pools())
}

// TestReadConsoleWhileAnotherDoes survives that the pool goes under it.
func TestReadConsoleWhileAnotherDoes(t *testing.T) {
	r := newRig(t)
	id := mustCreate(t, r, r.Provider, request("u1"))
	r.host().PutFile(consolePath("u1"), []byte("login:"))
	stopped := false
	r.host().Before = func(c fakelibvirt.Call) error {
		if c.RPC == "virStorageVolDownload" && !stopped {
			stopped = true
			return fakelibvirt.Errorf(libvirt.ErrNoStoragePool, "Storage pool not found")
		}
		return nil
	}
	got, err := r.ReadConsole(testContext(t), id, 0)
	require.NoError(t, err)
	assert.Equal(t, "login:", string(got))
	assert.Equal(t, []string{"default"}, r.host().Pools())
}

func TestReadConsoleOfNothing(t *testing.T) {
	r := newRig(t)
	ctx := testContext(t)
	id := mustCreate(t, r, r.Provider, request("u1"))
	_, err := r.ReadConsole(ctx, id, 0)
	require.ErrorIs(t, err, provider.ErrPermanent)
	assert.True(t, provider.HasCode(err, "NoConsole"), "%v", err)

	_, err = r.ReadConsole(ctx, "hosts/kvm1/domains/"+provider.Name("u2"), 0)
	require.ErrorIs(t, err, provider.ErrNotFound)
	_, err = r.ReadConsole(ctx, "hosts/kvm9/domains/"+provider.Name("u2"), 0)
	assert.True(t, provider.HasCode(err, provider.CodeUnconfigured))

	require.NoError(t, r.host().Define("<domain type='qemu'><name>"+provider.Name("u3")+"</name></domain>"))
	_, err = r.ReadConsole(ctx, "hosts/kvm1/domains/"+provider.Name("u3"), 0)
	assert.True(t, provider.HasCode(err, provider.CodeCollision), "%v", err)
}
