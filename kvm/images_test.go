package kvm_test

import (
	"testing"
	"time"

	"github.com/digitalocean/go-libvirt"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/internal/fakelibvirt"
	"github.com/egressfleet/egress/kvm"
	"github.com/egressfleet/egress/provider"
)

func blankVolume() string { return "base-debian-" + digestOf(blankImage)[:16] + ".qcow2" }

func TestListImages(t *testing.T) {
	r := newRig(t)
	mustCreate(t, r, r.Provider, request("u1"))
	mustCreate(t, r, r.Provider, request("u2"))
	r.host().PutVolume("default", "base-old-0123456789abcdef.raw", []byte("half"))
	r.host().PutVolume("default", "somebody-elses.qcow2", []byte("x"))
	images, err := r.ListImages(testContext(t))
	require.NoError(t, err)
	require.Len(t, images, 2)
	assert.WithinDuration(t, time.Now(), images[0].ChangedAt, time.Minute)
	images[0].ChangedAt, images[1].ChangedAt = time.Time{}, time.Time{}
	assert.Equal(t, kvm.HostImage{
		Host: "kvm1", Volume: blankVolume(), Key: "debian", Format: "qcow2", Bytes: uint64(len(blankImage)), DiskBytes: 3 << 30,
		Whole: true, Configured: true, Users: 2,
	}, images[0])
	assert.Equal(t, kvm.HostImage{Host: "kvm1", Volume: "base-old-0123456789abcdef.raw", Key: "old", Format: "raw", Bytes: 4, DiskBytes: 4}, images[1])
}

// TestListImagesIsPartial tells which host did not answer.
func TestListImagesIsPartial(t *testing.T) {
	r := newRig(t, func(c *kvm.Config) {
		c.Hosts = append(c.Hosts, kvm.Host{Name: "kvm2", Address: "local", Bridge: "br0"})
	})
	req := request("u1")
	req.Placement.Zone = "kvm1"
	mustCreate(t, r, r.Provider, req)
	r.hosts["kvm2"].StopPool("default")
	images, err := r.ListImages(testContext(t))
	assert.Len(t, images, 1)
	var partial *provider.PartialError
	require.ErrorAs(t, err, &partial)
	require.Len(t, partial.Missing, 1)
	assert.Equal(t, "kvm2", partial.Missing[0].Scope)
	assert.ErrorContains(t, err, "virsh pool-start")
}

func TestPullImage(t *testing.T) {
	r := newRig(t, func(c *kvm.Config) { c.ImageFetch = "background" })
	image, err := r.PullImage(testContext(t), kvm.PullRequest{})
	require.NoError(t, err)
	assert.Equal(t, blankVolume(), image.Volume)
	assert.True(t, image.Whole && image.Configured)
	_, err = r.PullImage(testContext(t), kvm.PullRequest{Host: "kvm1", Image: "debian", Again: true})
	require.NoError(t, err)
	assert.EqualValues(t, 1, r.image.requests.Load(), "its digest says that it cannot have changed")
	mustCreate(t, r, r.Provider, request("u1"))
	for what, req := range map[string]kvm.PullRequest{
		"host":  {Host: "kvm9"},
		"image": {Image: "fedora"},
		"file":  {Image: "file:///etc/passwd"},
	} {
		_, err := r.PullImage(testContext(t), req)
		require.ErrorIs(t, err, provider.ErrPermanent, what)
	}
}

// TestPullAgain replaces an image without a digest, unless it is in use.
func TestPullAgain(t *testing.T) {
	r := newRig(t, func(c *kvm.Config) { c.Images["debian"] = kvm.Image{URL: c.Images["debian"].URL} })
	id := mustCreate(t, r, r.Provider, request("u1"))
	r.image.serve(serveBytes(bigImage))
	old, err := r.PullImage(testContext(t), kvm.PullRequest{})
	require.NoError(t, err)
	assert.EqualValues(t, len(blankImage), old.Bytes, "it was pinned")
	_, err = r.PullImage(testContext(t), kvm.PullRequest{Again: true})
	require.ErrorIs(t, err, provider.ErrPermanent)
	assert.True(t, provider.HasCode(err, kvm.CodeImageInUse), "%v", err)
	require.NoError(t, r.Delete(testContext(t), id))
	again, err := r.PullImage(testContext(t), kvm.PullRequest{Again: true})
	require.NoError(t, err)
	assert.EqualValues(t, len(bigImage), again.Bytes)
	assert.Equal(t, old.Volume, again.Volume)
}

// TestPullReadsChecksumsAgain finds what was published since.
func TestPullReadsChecksumsAgain(t *testing.T) {
	r, s := newSumsRig(t)
	_, err := r.PullImage(testContext(t), kvm.PullRequest{})
	require.NoError(t, err)
	s.publish(bigImage)
	image, err := r.PullImage(testContext(t), kvm.PullRequest{})
	require.NoError(t, err)
	assert.Equal(t, "base-debian-"+digestOf(bigImage)[:16]+".qcow2", image.Volume)
	images, err := r.ListImages(testContext(t))
	require.NoError(t, err)
	require.Len(t, images, 2)
	for _, i := range images {
		assert.Equal(t, i.Volume == image.Volume, i.Configured, i.Volume)
	}
}

func TestPruneImages(t *testing.T) {
	r := newRig(t)
	mustCreate(t, r, r.Provider, request("u1")) // uses blankVolume
	r.image.serve(serveBytes(bigImage))
	r.cfg.Images["debian"] = kvm.Image{URL: r.image.URL, SHA256: digestOf(bigImage)}
	p := r.again(t)
	image, err := p.PullImage(testContext(t), kvm.PullRequest{})
	require.NoError(t, err)
	const old, young = "base-old-0123456789abcdef.qcow2", "base-young-0123456789abcdef.qcow2"
	for _, name := range []string{old, young, "not-ours.qcow2"} {
		r.host().PutVolume("default", name, blankImage)
		r.host().PutVolume("default", name+".ok", nil)
	}
	for _, name := range []string{old, blankVolume(), image.Volume, "not-ours.qcow2"} {
		r.host().Age("default", name, 2*time.Hour)
	}
	before := r.host().Volumes("default")
	prune := func(req kvm.PruneRequest) map[string]string {
		found, err := p.PruneImages(testContext(t), req)
		require.NoError(t, err)
		got := map[string]string{}
		for _, f := range found {
			assert.Equal(t, "kvm1", f.Scope)
			require.NoError(t, f.Err)
			got[f.Name] = f.Reason
			if f.Removed {
				got[f.Name] = "removed"
			}
		}
		return got
	}
	want := map[string]string{
		old: "removed", young: "kept: it is younger than 1h0m0s",
		blankVolume(): "kept: 1 disks are based on it", image.Volume: "kept: the configuration uses it",
	}
	assert.Equal(t, want, prune(kvm.PruneRequest{DryRun: true}))
	assert.Equal(t, before, r.host().Volumes("default"))
	assert.Equal(t, want, prune(kvm.PruneRequest{}))
	assert.NotContains(t, r.host().Volumes("default"), old)
	assert.NotContains(t, r.host().Volumes("default"), old+".ok")
	delete(want, old)
	want[image.Volume], want[young] = "removed", "removed"
	assert.Equal(t, want, prune(kvm.PruneRequest{Configured: true, MinAge: time.Nanosecond, Host: "kvm1"}))
	assert.Contains(t, r.host().Volumes("default"), "not-ours.qcow2")
	requireWhole(t, r, request("u1"))
}

// TestPruneMeetsCreate has an instance fetch anew what was pruned under it.
func TestPruneMeetsCreate(t *testing.T) {
	r := newRig(t)
	_, err := r.PullImage(testContext(t), kvm.PullRequest{})
	require.NoError(t, err)
	pruned := false
	r.host().Before = func(c fakelibvirt.Call) error {
		if c.RPC == "virDomainDefineXMLFlags" && !pruned {
			pruned = true
			_, err := r.PruneImages(testContext(t), kvm.PruneRequest{Configured: true, MinAge: time.Nanosecond})
			return err
		}
		return nil
	}
	mustCreate(t, r, r.Provider, request("u1"))
	assert.EqualValues(t, 2, r.image.requests.Load())
}

// TestSweep removes what was left, reports what may be somebody's, and touches
// nothing else.
func TestSweep(t *testing.T) {
	r := newRig(t)
	ctx := testContext(t)
	mustCreate(t, r, r.Provider, request("whole"))
	gone := mustCreate(t, r, r.Provider, request("gone"))
	orphan := mustCreate(t, r, r.Provider, request("orphan"))
	other := request("other")
	other.Tag = "tag-b"
	mustCreate(t, r, r.Provider, other)
	// Never finished.
	r.host().Before = func(c fakelibvirt.Call) error {
		if c.RPC == "virDomainSetMetadata" {
			return fakelibvirt.ErrCut
		}
		return nil
	}
	_, err := r.Create(ctx, request("half"))
	require.Error(t, err)
	r.host().Before = nil
	// Deleted half.
	r.host().SetState(provider.Name("gone"), libvirt.DomainShutoff, 0)
	r.host().RemoveVolume("default", provider.Name("gone")+".qcow2")
	// What a foreign hand, or a very old crash, left.
	r.host().PutVolume("default", provider.Name("lost")+".qcow2", []byte("x"))
	r.host().PutVolume("default", "base-debian-0123456789abcdef.qcow2", []byte("half"))
	r.host().PutVolume("default", "base-debian-fedcba9876543210.qcow2.ok", nil)
	r.host().PutVolume("default", "backup.qcow2", []byte("x"))
	for _, name := range []string{"base-debian-0123456789abcdef.qcow2", "base-debian-fedcba9876543210.qcow2.ok", "backup.qcow2"} {
		r.host().Age("default", name, 2*time.Hour)
	}

	sweep := func(req provider.SweepRequest) map[string]bool {
		req.Tag = "tag-a"
		found, err := r.Sweep(ctx, req)
		require.NoError(t, err)
		got := map[string]bool{}
		for _, f := range found {
			require.NoError(t, f.Err)
			assert.NotEmpty(t, f.Reason)
			got[f.Kind+" "+f.Name] = f.Removed
		}
		return got
	}
	old := map[string]bool{
		"volume " + provider.Name("lost") + ".qcow2":   false,
		"image base-debian-0123456789abcdef.qcow2":     true,
		"marker base-debian-fedcba9876543210.qcow2.ok": true,
		"domain " + provider.Name("half"):              false, // too young
		"domain " + provider.Name("gone"):              false,
	}
	before := r.host().Volumes("default")
	assert.Equal(t, old, sweep(provider.SweepRequest{DryRun: true}))
	assert.Equal(t, before, r.host().Volumes("default"))
	assert.Equal(t, old, sweep(provider.SweepRequest{}))
	assert.NotContains(t, r.host().Volumes("default"), "base-debian-0123456789abcdef.qcow2")

	got := sweep(provider.SweepRequest{MinAge: time.Nanosecond, Owned: func(in provider.Instance) bool { return in.UID != "orphan" }})
	assert.Equal(t, map[string]bool{
		"volume " + provider.Name("lost") + ".qcow2": false,
		"domain " + provider.Name("half"):            true,
		"domain " + provider.Name("gone"):            true,
		"domain " + provider.Name("orphan"):          true,
	}, got)
	for _, id := range []string{gone, orphan} {
		_, err := r.Get(ctx, id)
		require.ErrorIs(t, err, provider.ErrNotFound)
	}
	requireWhole(t, r, request("whole"))
	requireWhole(t, r, other)
	assert.Contains(t, r.host().Volumes("default"), "backup.qcow2")
	assert.Contains(t, r.host().Volumes("default"), provider.Name("lost")+".qcow2")
}

// TestSweepWorksWhereItCan sweeps the hosts that answer.
func TestSweepWorksWhereItCan(t *testing.T) {
	r := newRig(t, func(c *kvm.Config) {
		c.Hosts = append(c.Hosts, kvm.Host{Name: "kvm2", Address: "local", Bridge: "br0"})
	})
	r.host().PutVolume("default", "base-debian-0123456789abcdef.qcow2", []byte("half"))
	r.host().Age("default", "base-debian-0123456789abcdef.qcow2", 2*time.Hour)
	r.hosts["kvm2"].StopPool("default")
	found, err := r.Sweep(testContext(t), provider.SweepRequest{Tag: "tag-a"})
	require.ErrorIs(t, err, provider.ErrTransient)
	require.Len(t, found, 1)
	assert.True(t, found[0].Removed)
	_, err = r.Sweep(testContext(t), provider.SweepRequest{Tag: "Not A Tag"})
	require.ErrorIs(t, err, provider.ErrPermanent)
}
