package kvm_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/digitalocean/go-libvirt"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"libvirt.org/go/libvirtxml"

	"github.com/egressfleet/egress/internal/fakelibvirt"
	"github.com/egressfleet/egress/kvm"
	"github.com/egressfleet/egress/provider"
)

func TestWalk(t *testing.T) {
	r := newRig(t)
	req := request("u1")
	id := mustCreate(t, r, r.Provider, req)
	assert.Equal(t, "hosts/kvm1/domains/"+provider.Name("u1"), id)

	again, err := r.Create(testContext(t), req)
	require.NoError(t, err)
	assert.Equal(t, id, again)
	assert.EqualValues(t, 1, r.image.requests.Load())

	in, err := r.Get(testContext(t), id)
	require.NoError(t, err)
	assert.Equal(t, provider.StateProvisioning, in.State)
	assert.Contains(t, in.Reason, "no address yet")

	r.host().SetAddresses(in.Name, libvirt.DomainInterfaceAddressesSrcAgent, libvirt.DomainInterface{
		Addrs: []libvirt.DomainIPAddr{{Addr: "fe80::1"}, {Addr: "2001:db8::5"}, {Addr: "10.0.0.5"}, {Addr: "127.0.0.1"}},
	})
	in, err = r.Get(testContext(t), id)
	require.NoError(t, err)
	assert.Equal(t, provider.StateRunning, in.State)
	assert.Equal(t, "10.0.0.5", in.Address().String())
	assert.Len(t, in.Addresses, 2)
	assert.Equal(t, req.Metadata, in.Metadata)
	assert.Equal(t, "u1", in.UID)
	assert.WithinDuration(t, time.Now(), in.CreatedAt, time.Minute)

	require.NoError(t, r.Delete(testContext(t), id))
	require.NoError(t, r.Delete(testContext(t), id))
	requireOnlyBase(t, r)
	_, err = r.Get(testContext(t), id)
	assert.ErrorIs(t, err, provider.ErrNotFound)
}

// TestCreateKilled lets the host see only the first calls of a Create, as when
// the process dies, and checks that another process finishes.
func TestCreateKilled(t *testing.T) {
	for k := 1; ; k++ {
		for _, effect := range []bool{false, true} {
			r := newRig(t, impatient)
			heal := kill(r.host(), k, effect)
			id, err := r.Create(testContext(t), request("u1"))
			if err == nil && !effect { // there are no k calls
				require.Greater(t, k, 15)
				return
			}
			heal()
			if domains := r.host().DomainNames(); len(domains) == 0 {
				for _, v := range r.host().Volumes("default") {
					assert.NotContains(t, v, provider.Name("u1"), "call %d: a volume that no list shows", k)
				}
			} else {
				l, err := r.again(t).ListByTag(testContext(t), "tag-a")
				require.NoError(t, err)
				require.Len(t, l, 1, "call %d", k)
			}
			p := r.again(t)
			assert.Equal(t, id, mustCreate(t, r, p, request("u1")), "call %d", k)
			require.NoError(t, p.Delete(testContext(t), id))
			requireOnlyBase(t, r)
		}
	}
}

// kill cuts every connection at the k-th call, before or after its effect.
func kill(h *fakelibvirt.Host, k int, effect bool) (heal func()) {
	cut := func(after bool) func(fakelibvirt.Call) error {
		return func(c fakelibvirt.Call) error {
			if c.Number > k || c.Number == k && after == effect {
				return fakelibvirt.ErrCut
			}
			return nil
		}
	}
	h.SetHooks(cut(false), cut(true))
	return func() {
		h.ForgetCalls()
		h.SetHooks(nil, nil)
	}
}

func TestDeleteKilled(t *testing.T) {
	for k := 1; ; k++ {
		for _, effect := range []bool{false, true} {
			r := newRig(t)
			id := mustCreate(t, r, r.Provider, request("u1"))
			r.host().ForgetCalls()
			heal := kill(r.host(), k, effect)
			err := r.again(t).Delete(testContext(t), id)
			if err == nil && !effect {
				require.Greater(t, k, 6)
				return
			}
			heal()
			p := r.again(t)
			require.NoError(t, p.Delete(testContext(t), id), "call %d", k)
			requireOnlyBase(t, r)
		}
	}
}

// TestCreateAfterCutDelete heals what a deletion left without its volumes.
func TestCreateAfterCutDelete(t *testing.T) {
	r := newRig(t)
	mustCreate(t, r, r.Provider, request("u1"))
	name := provider.Name("u1")
	r.host().SetState(name, libvirt.DomainShutoff, 2)
	r.host().RemoveVolume("default", name+".qcow2")
	mustCreate(t, r, r.Provider, request("u1"))
}

func TestCreateStartsWhatStopped(t *testing.T) {
	r := newRig(t)
	mustCreate(t, r, r.Provider, request("u1"))
	r.host().SetState(provider.Name("u1"), libvirt.DomainShutoff, 1)
	r.host().ForgetCalls()
	mustCreate(t, r, r.Provider, request("u1"))
	assert.NotContains(t, r.host().Calls(), "virStorageVolUpload", "the seed of a started instance stays")
}

// TestSeedIsRebuilt checks that a seed that was cut off reaches no guest.
func TestSeedIsRebuilt(t *testing.T) {
	r := newRig(t)
	r.host().Before = failOn("virDomainSetMetadata", errors.New("cut"))
	_, err := r.Create(testContext(t), request("u1"))
	require.ErrorIs(t, err, provider.ErrTransient)
	r.host().PutVolume("default", provider.Name("u1")+"-seed.iso", []byte("half a se"))
	r.host().Before = nil
	mustCreate(t, r, r.Provider, request("u1"))
}

// failOn fails one function.
func failOn(rpc string, err error) func(fakelibvirt.Call) error {
	return func(c fakelibvirt.Call) error {
		if c.RPC == rpc {
			return err
		}
		return nil
	}
}

func TestCollision(t *testing.T) {
	name := provider.Name("u1")
	for _, c := range []struct{ what, xml string }{
		{"a stranger", "<domain type='qemu'><name>" + name + "</name><os><type>hvm</type></os></domain>"},
		{"another tag", "<domain type='qemu'><name>" + name + "</name>" + metadata(t, "tag-b", "u1") + "</domain>"},
		{"another uid", "<domain type='qemu'><name>" + name + "</name>" + metadata(t, "tag-a", "u2") + "</domain>"},
	} {
		t.Run(c.what, func(t *testing.T) {
			r := newRig(t)
			require.NoError(t, r.host().Define(c.xml))
			before, _ := r.host().Domain(name)
			id, err := r.Create(testContext(t), request("u1"))
			require.ErrorIs(t, err, provider.ErrPermanent)
			assert.True(t, provider.HasCode(err, provider.CodeCollision), "%v", err)
			assert.NotEmpty(t, id)
			after, _ := r.host().Domain(name)
			assert.Equal(t, before, after)
			assert.Empty(t, r.host().Volumes("default"), "nothing is fetched for a collision")
		})
	}
}

func metadata(t *testing.T, tag, uid string) string {
	t.Helper()
	text, err := kvm.Record{Tag: tag, UID: uid, Stage: "made", Created: time.Now()}.Element()
	require.NoError(t, err)
	return "<metadata>" + text + "</metadata>"
}

func TestDeleteLeavesStrangers(t *testing.T) {
	r := newRig(t)
	name := provider.Name("u1")
	require.NoError(t, r.host().Define("<domain type='qemu'><name>"+name+"</name></domain>"))
	r.host().PutVolume("default", name+".qcow2", []byte("theirs"))
	err := r.Delete(testContext(t), "hosts/kvm1/domains/"+name)
	require.ErrorIs(t, err, provider.ErrPermanent)
	assert.True(t, provider.HasCode(err, provider.CodeCollision))
	assert.Equal(t, []string{name}, r.host().DomainNames())
	assert.Equal(t, []string{name + ".qcow2"}, r.host().Volumes("default"))
	_, err = r.Get(testContext(t), "hosts/kvm1/domains/"+name)
	assert.True(t, provider.HasCode(err, provider.CodeCollision))
}

func TestUndoOnPermanent(t *testing.T) {
	for _, c := range []struct {
		what  string
		setup func(*fakelibvirt.Host)
		class error
		code  string
		says  string
	}{
		{"no bridge", func(h *fakelibvirt.Host) { h.NoBridges = []string{"br0"} }, provider.ErrPermanent, "NoBridge", "br0"},
		{"no firmware", func(h *fakelibvirt.Host) { h.NoFirmware = true }, provider.ErrPermanent, "NoFirmware", "ovmf"},
		{"disk full", func(h *fakelibvirt.Host) { h.PoolBytes = uint64(len(blankImage)) + 10 }, provider.ErrQuotaExceeded, "ErrSystemError", "No space left"},
		{"denied", func(h *fakelibvirt.Host) {
			h.Before = failOn("virDomainCreate", fakelibvirt.Errorf(libvirt.ErrAccessDenied, "access denied"))
		}, provider.ErrPermanent, "ErrAccessDenied", "access denied"},
		{"bad definition", func(h *fakelibvirt.Host) {
			h.Before = failOn("virDomainDefineXMLFlags", fakelibvirt.Errorf(libvirt.ErrConfigUnsupported, "unsupported configuration"))
		}, provider.ErrPermanent, "ErrConfigUnsupported", "unsupported"},
	} {
		t.Run(c.what, func(t *testing.T) {
			r := newRig(t)
			c.setup(r.host())
			_, err := r.Create(testContext(t), request("u1"))
			require.ErrorIs(t, err, c.class)
			assert.True(t, provider.HasCode(err, c.code), "%v", err)
			assert.ErrorContains(t, err, c.says)
			requireOnlyBase(t, r)
		})
	}
}

// TestStartedIsNotUndone keeps an instance that ran before, whatever a new
// start says.
func TestStartedIsNotUndone(t *testing.T) {
	r := newRig(t)
	mustCreate(t, r, r.Provider, request("u1"))
	r.host().SetState(provider.Name("u1"), libvirt.DomainShutoff, 1)
	r.host().Before = failOn("virDomainCreate", fakelibvirt.Errorf(libvirt.ErrAccessDenied, "access denied"))
	_, err := r.Create(testContext(t), request("u1"))
	require.ErrorIs(t, err, provider.ErrPermanent)
	assert.Len(t, r.host().DomainNames(), 1)
}

// TestNoConsoleLog starts without the log where the host has no place for it.
func TestNoConsoleLog(t *testing.T) {
	r := newRig(t)
	r.host().NoConsoleLogs = true
	id := mustCreate(t, r, r.Provider, request("u1"))
	d, _ := r.host().Domain(provider.Name("u1"))
	require.Len(t, d.XML.Devices.Serials, 1)
	assert.Nil(t, d.XML.Devices.Serials[0].Log)
	in, err := r.again(t).Get(testContext(t), id)
	require.NoError(t, err)
	assert.Equal(t, provider.StateProvisioning, in.State)
	assert.Contains(t, in.Reason, "no address", "it is marked as made")
	r.host().SetState(in.Name, libvirt.DomainShutoff, 1)
	mustCreate(t, r, r.again(t), request("u1"))
}

func TestDeletedMeanwhile(t *testing.T) {
	r := newRig(t)
	name := provider.Name("u1")
	r.host().Before = failOn("virDomainSetMetadata", fakelibvirt.Errorf(libvirt.ErrNoDomain, "Domain not found"))
	_, err := r.Create(testContext(t), request("u1"))
	require.ErrorIs(t, err, provider.ErrTransient)
	require.NotErrorIs(t, err, provider.ErrNotFound)
	assert.NotContains(t, r.host().Volumes("default"), name+".qcow2")
	assert.NotContains(t, r.host().Volumes("default"), name+"-seed.iso")
}

func TestUndefineOnOldLibvirt(t *testing.T) {
	r := newRig(t)
	r.host().UndefineFlags = libvirt.DomainUndefineManagedSave | libvirt.DomainUndefineNvram
	id := mustCreate(t, r, r.Provider, request("u1"))
	require.NoError(t, r.Delete(testContext(t), id))
	requireOnlyBase(t, r)
}

func TestDeleteWithoutPool(t *testing.T) {
	r := newRig(t)
	id := mustCreate(t, r, r.Provider, request("u1"))
	r.host().RemovePool("default")
	require.NoError(t, r.Delete(testContext(t), id))
	assert.Empty(t, r.host().DomainNames())

	r.host().AddPool("default")
	r.host().PutVolume("default", provider.Name("u1")+".qcow2", nil)
	require.NoError(t, r.Delete(testContext(t), id), "volumes go by name even without their domain")
	assert.Empty(t, r.host().Volumes("default"))
}

func TestNoPool(t *testing.T) {
	r := newRig(t, func(c *kvm.Config) { c.Hosts[0].Pool = "fast" })
	_, err := r.Create(testContext(t), request("u1"))
	require.ErrorIs(t, err, provider.ErrPermanent)
	assert.True(t, provider.HasCode(err, "ErrNoStoragePool"))
	assert.ErrorContains(t, err, "fast")
	r.host().AddPool("fast")
	r.host().StopPool("fast")
	_, err = r.Create(testContext(t), request("u1"))
	require.ErrorIs(t, err, provider.ErrTransient)
	assert.ErrorContains(t, err, "pool-start")
}

func TestPlacement(t *testing.T) {
	r := newRig(t, func(c *kvm.Config) {
		c.Hosts = append(c.Hosts, kvm.Host{Name: "kvm2", Address: "local", Bridge: "br0"})
		c.Images["other"] = c.Images["debian"]
	})
	for _, c := range []struct {
		place provider.Placement
		id    bool
		says  string
	}{
		{provider.Placement{}, false, "zone: choose one of kvm1, kvm2"},
		{provider.Placement{Zone: "kvm9"}, false, `zone: "kvm9" is not configured, there are kvm1, kvm2`},
		{provider.Placement{Zone: "kvm1"}, true, "image: choose one of debian, other"},
		{provider.Placement{Zone: "kvm1", Image: "centos"}, true, `"centos"`},
		{provider.Placement{Zone: "kvm1", Image: "ftp://user:secret@x/y"}, true, "http or https"},
		{provider.Placement{Zone: "kvm1", Image: "debian", MachineType: "huge"}, true, `machineType: "huge" is not configured, there are small`},
	} {
		req := request("u1")
		req.Placement = c.place
		id, err := r.Create(testContext(t), req)
		require.ErrorIs(t, err, provider.ErrPermanent)
		assert.ErrorContains(t, err, c.says)
		assert.NotContains(t, err.Error(), "secret")
		assert.Equal(t, c.id, id != "", "%+v", c.place)
	}
	req := request("u1")
	req.Placement = provider.Placement{Zone: "kvm2", Image: r.image.URL + "/direct.qcow2", Region: "ignored"}
	id, err := r.Create(testContext(t), req)
	require.NoError(t, err)
	assert.Equal(t, "hosts/kvm2/domains/"+provider.Name("u1"), id)
}

func TestIDs(t *testing.T) {
	r := newRig(t)
	for id, code := range map[string]string{
		"":                         provider.CodeMalformedID,
		"zones/a/instances/proxy-": provider.CodeMalformedID,
		"hosts/kvm9/domains/" + provider.Name("u"): provider.CodeUnconfigured,
	} {
		_, err := r.Get(testContext(t), id)
		require.ErrorIs(t, err, provider.ErrPermanent)
		assert.True(t, provider.HasCode(err, code), "%v", err)
		err = r.Delete(testContext(t), id)
		assert.True(t, provider.HasCode(err, code), "%v", err)
	}
}

func TestInvalidRequest(t *testing.T) {
	r := newRig(t)
	id, err := r.Create(testContext(t), provider.CreateRequest{Tag: "BAD"})
	require.ErrorIs(t, err, provider.ErrPermanent)
	assert.True(t, provider.HasCode(err, provider.CodeInvalidRequest))
	assert.Empty(t, id)
	_, err = r.ListByTag(testContext(t), "BAD")
	assert.True(t, provider.HasCode(err, provider.CodeInvalidRequest))
}

func TestAmend(t *testing.T) {
	var change func(*libvirtxml.Domain) error
	r := newRig(t, func(c *kvm.Config) { c.AmendDomain = func(d *libvirtxml.Domain) error { return change(d) } })
	for what, f := range map[string]func(*libvirtxml.Domain) error{
		"an error": func(*libvirtxml.Domain) error { return errors.New("no") },
		"the name": func(d *libvirtxml.Domain) error { d.Name = "x"; return nil },
		"metadata": func(d *libvirtxml.Domain) error { d.Metadata = nil; return nil },
		"no card":  func(d *libvirtxml.Domain) error { d.Devices.Interfaces = nil; return nil },
	} {
		change = f
		_, err := r.Create(testContext(t), request("u1"))
		require.ErrorIs(t, err, provider.ErrPermanent, what)
		assert.True(t, provider.HasCode(err, "Amended"), what)
	}
	change = func(d *libvirtxml.Domain) error {
		d.Title = "amended"
		d.Devices.Interfaces[0].MAC.Address = "52:54:00:AA:BB:CC"
		return nil
	}
	id := mustCreate(t, r, r.Provider, request("u1"))
	d, _ := r.host().Domain(provider.Name("u1"))
	assert.Equal(t, "amended", d.XML.Title)
	r.host().SetAddresses(provider.Name("u1"), libvirt.DomainInterfaceAddressesSrcLease, libvirt.DomainInterface{
		Hwaddr: libvirt.OptString{"52:54:00:aa:bb:cc"}, Addrs: []libvirt.DomainIPAddr{{Addr: "10.0.0.9"}},
	})
	in, err := r.Get(testContext(t), id)
	require.NoError(t, err)
	assert.Equal(t, "10.0.0.9", in.Address().String(), "addresses are those of the card the hook chose")
}

// TestConcurrent hammers one name with Create and Delete, and then checks that
// nothing is left that no list shows.
func TestConcurrent(t *testing.T) {
	r := newRig(t)
	id := "hosts/kvm1/domains/" + provider.Name("u1")
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 5 {
				if i%2 == 0 {
					_, err := r.Create(testContext(t), request("u1"))
					assert.NoError(t, err)
				} else {
					assert.NoError(t, r.Delete(testContext(t), id))
				}
			}
		})
	}
	wg.Wait()
	require.NoError(t, r.Delete(testContext(t), id))
	requireOnlyBase(t, r)
	assert.EqualValues(t, 1, r.image.requests.Load())
}

// TestCancelAtEveryCall hangs each call in turn: Create and Delete return within
// a second of their context's end, and later calls work.
func TestCancelAtEveryCall(t *testing.T) {
	t.Parallel()
	for _, rpc := range kvm.APIMethods() {
		t.Run(rpc, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, func(c *kvm.Config) { c.Timeouts.Grace = provider.Duration(50 * time.Millisecond) })
			release := make(chan struct{})
			var hung atomic.Bool
			r.host().Before = func(c fakelibvirt.Call) error {
				if c.RPC == "vir"+rpc && hung.CompareAndSwap(false, true) {
					<-release
				}
				return nil
			}
			defer close(release)
			id := "hosts/kvm1/domains/" + provider.Name("u1")
			for _, op := range []func(context.Context) error{
				func(ctx context.Context) error { _, err := r.Create(ctx, request("u1")); return err },
				func(ctx context.Context) error { _, err := r.Get(ctx, id); return err },
				func(ctx context.Context) error { _, err := r.ListByTag(ctx, "tag-a"); return err },
				func(ctx context.Context) error { return r.Delete(ctx, id) },
			} {
				ctx, cancel := context.WithTimeout(t.Context(), 400*time.Millisecond)
				start := time.Now()
				err := op(ctx)
				if ctx.Err() != nil && err != nil {
					assert.ErrorIs(t, err, context.DeadlineExceeded)
				}
				cancel()
				assert.Less(t, time.Since(start), 1400*time.Millisecond)
			}
			// The connection is given up while the call that hung is in it: one that
			// comes in that moment fails, as something that may heal.
			again(t, func() error { return r.Delete(testContext(t), id) })
			again(t, func() (err error) { id, err = r.Create(testContext(t), request("u1")); return err })
			require.NoError(t, r.Delete(testContext(t), id))
			requireOnlyBase(t, r)
		})
	}
}

func TestMetadataForms(t *testing.T) {
	for _, form := range []fakelibvirt.MetadataForm{fakelibvirt.Prefixed, fakelibvirt.Bare, fakelibvirt.Default} {
		t.Run(fmt.Sprint(form), func(t *testing.T) {
			r := newRig(t)
			r.host().Form = form
			req := request("u1")
			id := mustCreate(t, r, r.Provider, req)
			in, err := r.again(t).Get(testContext(t), id)
			require.NoError(t, err)
			assert.Equal(t, req.Metadata, in.Metadata)
		})
	}
}

func TestClosed(t *testing.T) {
	r := newRig(t)
	require.NoError(t, r.Close())
	_, err := r.Create(testContext(t), request("u1"))
	require.Error(t, err)
	require.NoError(t, r.Close())
}

// TestUserDataIsTooLarge is told before anything is made.
func TestUserDataIsTooLarge(t *testing.T) {
	r := newRig(t)
	req := request("u1")
	req.UserData = make(provider.UserData, 4<<20+1)
	_, err := r.Create(testContext(t), req)
	require.ErrorIs(t, err, provider.ErrPermanent)
	assert.True(t, provider.HasCode(err, provider.CodeInvalidRequest))
	require.ErrorContains(t, err, "userData has 4194305 bytes")
	assert.Empty(t, r.host().DomainNames())
	assert.Empty(t, r.host().Volumes("default"))
	req.UserData = req.UserData[1:]
	_, err = r.Create(testContext(t), req)
	require.NoError(t, err)
}
