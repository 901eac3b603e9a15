package kvm_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/digitalocean/go-libvirt"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/internal/fakelibvirt"
	"github.com/egressfleet/egress/kvm"
	"github.com/egressfleet/egress/provider"
)

// threeHosts adds kvm2 and kvm3.
func threeHosts(c *kvm.Config) {
	for _, name := range []string{"kvm2", "kvm3"} {
		h := c.Hosts[0]
		h.Name = name
		c.Hosts = append(c.Hosts, h)
	}
}

func place(t *testing.T, r *rig, uid string, avoid ...provider.Placement) (provider.Placement, error) {
	t.Helper()
	return provider.Place(testContext(t), r.Provider, provider.PlaceRequest{UID: uid, Avoid: avoid})
}

func TestPlaceByMemory(t *testing.T) {
	r := newRig(t, threeHosts)
	r.hosts["kvm1"].MemoryBytes, r.hosts["kvm1"].FreeBytes = 64<<30, 2<<30 // in use by others
	r.hosts["kvm2"].MemoryBytes = 16 << 30
	r.hosts["kvm3"].MemoryBytes = 32 << 30
	got, err := place(t, r, "u1")
	require.NoError(t, err)
	assert.Equal(t, provider.Placement{Zone: "kvm3", MachineType: "small", Image: "debian"}, got)

	// A guest counts with what it may take, whether or not it has it yet.
	require.NoError(t, r.hosts["kvm3"].Define("<domain type='qemu'><name>big</name><memory unit='bytes'>"+fmt.Sprint(uint64(30)<<30)+"</memory></domain>"))
	r.hosts["kvm3"].SetState("big", libvirt.DomainRunning, 1)
	got, err = place(t, r, "u2")
	require.NoError(t, err)
	assert.Equal(t, "kvm2", got.Zone)
}

// TestPlaceIsEven spreads over equal hosts, the same way each time, also where
// nothing was made yet of what was chosen before.
func TestPlaceIsEven(t *testing.T) {
	r, again := newRig(t, threeHosts), newRig(t, threeHosts)
	counts := map[string]int{}
	for i := range 30 {
		uid := fmt.Sprintf("u%d", i)
		got, err := place(t, r, uid)
		require.NoError(t, err)
		same, err := place(t, again, uid)
		require.NoError(t, err)
		assert.Equal(t, same, got)
		counts[got.Zone]++
	}
	assert.Equal(t, map[string]int{"kvm1": 10, "kvm2": 10, "kvm3": 10}, counts)
	zones := map[string]bool{}
	for i := range 20 {
		got, err := place(t, newRig(t, threeHosts), fmt.Sprintf("v%d", i))
		require.NoError(t, err)
		zones[got.Zone] = true
	}
	assert.Len(t, zones, 3, "the first choice depends on the UID")
}

func TestPlaceByCount(t *testing.T) {
	r := newRig(t, threeHosts, func(c *kvm.Config) {
		c.Hosts[0].MaxInstances = 1
		c.Hosts[1].Addresses = []string{"10.0.0.1/24"}
		c.Hosts[2].MaxInstances = 1
	})
	zones := map[string]bool{}
	for i := range 3 {
		got, err := place(t, r, fmt.Sprint(i))
		require.NoError(t, err)
		req := request(fmt.Sprint(i))
		req.Placement = got
		_, err = r.Create(testContext(t), req)
		require.NoError(t, err)
		zones[got.Zone] = true
	}
	assert.Len(t, zones, 3)
	_, err := place(t, r, "u4")
	require.ErrorIs(t, err, provider.ErrQuotaExceeded)
	assert.ErrorContains(t, err, "kvm1: there are 1 instances, and 1 is the most")
	assert.ErrorContains(t, err, "kvm2: there are 1 instances, and 1 is the most")
}

func TestPlaceAvoids(t *testing.T) {
	r := newRig(t, threeHosts)
	got, err := place(t, r, "u1", provider.Placement{Zone: "kvm1"}, provider.Placement{Zone: "kvm2", MachineType: "small", Image: "debian"})
	require.NoError(t, err)
	assert.Equal(t, "kvm3", got.Zone)
	got, err = place(t, r, "u1", provider.Placement{Zone: "kvm1"}, provider.Placement{Zone: "kvm2"}, provider.Placement{Zone: "kvm3", MachineType: "large"})
	require.NoError(t, err)
	assert.Equal(t, "kvm3", got.Zone, "no room for a large one may be room for a small one")
	_, err = place(t, r, "u1", provider.Placement{Zone: "kvm1"}, provider.Placement{Zone: "kvm2"}, provider.Placement{Zone: "kvm3"})
	require.ErrorIs(t, err, provider.ErrQuotaExceeded)
}

// TestPlaceKeepsWhatIsGiven and does not choose what has more than one.
func TestPlaceKeepsWhatIsGiven(t *testing.T) {
	r := newRig(t, threeHosts, func(c *kvm.Config) { c.MachineTypes["large"] = kvm.MachineType{VCPUs: 1, MemoryMiB: 1 << 20} })
	given := provider.Placement{Zone: "kvm2", Region: "r", MachineType: "small", Image: r.image.URL + "/x.qcow2"}
	got, err := r.Place(testContext(t), provider.PlaceRequest{UID: "u1", Placement: given})
	require.NoError(t, err)
	assert.Equal(t, given, got)

	for _, bad := range []provider.Placement{{}, {MachineType: "huge"}, {MachineType: "small", Zone: "kvm9"}, {MachineType: "small", Image: "x"}} {
		_, err := r.Place(testContext(t), provider.PlaceRequest{UID: "u1", Placement: bad})
		require.ErrorIs(t, err, provider.ErrPermanent, "%+v", bad)
		assert.True(t, provider.HasCode(err, "BadPlacement"), "%v", err)
	}
	_, err = r.Place(testContext(t), provider.PlaceRequest{UID: "u1", Placement: provider.Placement{MachineType: "large"}})
	require.ErrorIs(t, err, provider.ErrQuotaExceeded)
	assert.ErrorContains(t, err, "kvm2: 65536 MiB of memory are free of 65536, and the instance needs 1048576")
}

// TestPlaceSkipsWhatDoesNotAnswer within its own short time.
func TestPlaceSkipsWhatDoesNotAnswer(t *testing.T) {
	r := newRig(t, threeHosts, func(c *kvm.Config) { c.Timeouts.Place = provider.Duration(50 * time.Millisecond) })
	kvm.FailDial(r.Provider, "kvm1", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
	kvm.FailDial(r.Provider, "kvm2", func(context.Context) error { return errors.New("refused") })
	got, err := place(t, r, "u1")
	require.NoError(t, err)
	assert.Equal(t, "kvm3", got.Zone)

	_, err = place(t, r, "u1", provider.Placement{Zone: "kvm3"})
	require.ErrorIs(t, err, provider.ErrQuotaExceeded, "one has no room")
	assert.ErrorContains(t, err, "kvm2: refused")
	kvm.FailDial(r.Provider, "kvm3", func(context.Context) error { return errors.New("refused") })
	r.hosts["kvm3"].Before = func(fakelibvirt.Call) error { return fakelibvirt.ErrCut }
	_, err = place(t, r, "u1")
	require.ErrorIs(t, err, provider.ErrTransient, "none told of room")
	require.NotErrorIs(t, err, provider.ErrQuotaExceeded)
}

// TestPlaceIsCanceled when its caller leaves.
func TestPlaceIsCanceled(t *testing.T) {
	r := newRig(t)
	kvm.FailDial(r.Provider, "kvm1", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := r.Place(ctx, provider.PlaceRequest{UID: "u1"})
	require.ErrorIs(t, err, context.Canceled)
}

// TestNoRoom refuses before any work, with the numbers.
func TestNoRoom(t *testing.T) {
	for _, c := range []struct {
		what  string
		setup func(*rig)
		code  string
		says  string
	}{
		{"memory", func(r *rig) { r.host().MemoryBytes, r.host().FreeBytes = 8<<30, 200<<20 }, "NoMemory", "200 MiB of memory are free of 8192, and the instance needs 256"},
		{"space", func(r *rig) { r.host().PoolFree = 400 << 20 }, "NoSpace", "the pool default has 400 MiB free"},
		{"count", func(r *rig) {
			_, err := r.Create(testContext(t), request("u0"))
			require.NoError(t, err)
		}, "HostFull", "there are 1 instances, and 1 is the most"},
	} {
		t.Run(c.what, func(t *testing.T) {
			r := newRig(t, func(cfg *kvm.Config) { cfg.Hosts[0].MaxInstances = 1 })
			c.setup(r)
			before := r.host().Volumes("default")
			_, err := r.Create(testContext(t), request("u1"))
			require.ErrorIs(t, err, provider.ErrQuotaExceeded)
			assert.True(t, provider.HasCode(err, c.code), "%v", err)
			assert.ErrorContains(t, err, c.says)
			var known *provider.Error
			require.ErrorAs(t, err, &known)
			assert.Equal(t, "kvm1", known.Scope)
			assert.Equal(t, before, r.host().Volumes("default"))
			assert.NotContains(t, r.host().DomainNames(), provider.Name("u1"))
		})
	}
}

// TestRoomIsNotAskedOfWhatRuns lets an instance be found, started again and be
// read on a host that is full.
func TestRoomIsNotAskedOfWhatRuns(t *testing.T) {
	r := newRig(t)
	mustCreate(t, r, r.Provider, request("u1"))
	r.host().PoolFree = 1
	mustCreate(t, r, r.Provider, request("u1"))
	r.host().SetState(provider.Name("u1"), libvirt.DomainShutoff, 1)
	mustCreate(t, r, r.Provider, request("u1"))
}

// TestHostCannotTell makes instances where libvirt does not know the memory.
func TestHostCannotTell(t *testing.T) {
	r := newRig(t, func(c *kvm.Config) { c.Hosts[0].KeepFreeMiB = -1 })
	r.host().Before = failOn("virNodeGetMemoryStats", fakelibvirt.Errorf(libvirt.ErrNoSupport, "this function is not supported"))
	r.host().PoolFree = 1
	mustCreate(t, r, r.Provider, request("u1"))
	_, err := place(t, r, "u2")
	require.NoError(t, err)
}
