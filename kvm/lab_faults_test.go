package kvm_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/internal/fakelibvirt"
	"github.com/egressfleet/egress/kvm"
	"github.com/egressfleet/egress/provider"
)

// labFaults are what may happen to the way to a host. Each is mended before the
// next try.
func labFaults() map[string]func(*stallProxy) {
	return map[string]func(*stallProxy){
		"cut":    (*stallProxy).cut,
		"silent": func(p *stallProxy) { p.stalled.Store(true) },
	}
}

// stride is how many calls lie between two that are disturbed: all of them with
// FULL=1.
func stride() int {
	if os.Getenv("EGRESS_LAB_FULL") != "" {
		return 1
	}
	return 4
}

// unsteady is a lab whose way goes through a proxy, and that is disturbed once.
type unsteady struct {
	*lab
	proxy *stallProxy

	mu    sync.Mutex
	calls int
	at    int // the call at which to disturb; below zero for none
	fault func(*stallProxy)
}

func newUnsteady(t *testing.T) *unsteady {
	t.Helper()
	u := &unsteady{at: -1}
	u.lab = newLab(t, func(c *kvm.Config) {
		u.proxy = newStallProxy(t, c.Hosts[0].Address)
		c.Hosts[0].Address = u.proxy.listener.Addr().String()
		c.InsecureIgnoreHostKey, c.KnownHostsFile = true, "" // the name is the proxy's
		c.Timeouts.Keepalive, c.Timeouts.Grace = provider.Duration(500*time.Millisecond), provider.Duration(500*time.Millisecond)
		c.Timeouts.Dial = provider.Duration(3 * time.Second)
		c.Trace = &kvm.Trace{Call: func(context.Context, kvm.CallInfo) func(error) { u.disturb(); return nil }}
	})
	return u
}

// disturb is told of each call before it is made.
func (u *unsteady) disturb() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.calls++; u.calls-1 == u.at {
		u.fault(u.proxy)
	}
}

// arm has the k-th call from now on disturbed.
func (u *unsteady) arm(k int, fault func(*stallProxy)) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.calls, u.at, u.fault = 0, k, fault
}

// disarm tells whether it happened, and mends it.
func (u *unsteady) disarm() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	happened := u.at >= 0 && u.calls > u.at
	u.at = -1
	u.proxy.heal()
	return happened
}

// counted counts what happened.
func counted(happened bool, n *int) bool {
	if happened {
		*n++
	}
	return happened
}

// disturbed holds that as many were as there are at least, one in step of them: a test
// that disturbs nothing has nothing to say.
func disturbed(t *testing.T, what string, n, least, step int) {
	t.Helper()
	assert.GreaterOrEqual(t, n, max(1, least/step), "%s were disturbed", what)
}

// again repeats f until it succeeds: what a fault broke heals by itself. How often, the
// log tells.
func again(t *testing.T, f func() error) {
	t.Helper()
	var err error
	tries := 0
	defer func() {
		if tries > 1 {
			t.Logf("it took %d tries", tries)
		}
	}()
	require.Eventually(t, func() bool {
		tries++
		err = f()
		require.NotErrorIs(t, err, provider.ErrPermanent)
		return err == nil
	}, time.Minute, 100*time.Millisecond, "%v", err)
}

// TestLabFaultsOfCreate disturbs the calls of Create in turn, with an image to
// fetch. What it returns is success or a transient error, and the next Create
// finishes.
func TestLabFaultsOfCreate(t *testing.T) {
	labConfig(t)
	for what, fault := range labFaults() {
		n := 0
		for k, happened := 0, true; happened; k += stride() {
			t.Run(fmt.Sprintf("%s at call %d", what, k), func(t *testing.T) {
				u := newUnsteady(t)
				base := u.blank(t, "labfault", uint64(1<<30+(k+40)<<20))
				req := labRequest(fmt.Sprintf("lab-fault-%s-%d", what, k), "lab-tag-fault")
				name := provider.Name(req.UID)
				u.arm(k, fault)
				_, err := u.Create(labContext(t), req)
				happened = counted(u.disarm(), &n)
				if err != nil {
					require.ErrorIs(t, err, provider.ErrTransient, "%v", err)
				}
				id := "hosts/lab/domains/" + name
				again(t, func() error { _, err := u.Create(labContext(t), req); return err })
				in, err := u.Get(labContext(t), id)
				require.NoError(t, err)
				assert.Equal(t, provider.StateProvisioning, in.State, in.Reason)
				again(t, func() error { return u.Delete(labContext(t), id) })
				assert.ElementsMatch(t, []string{base, base + ".ok"}, u.volumesOf(t, name, base))
			})
			if t.Failed() {
				return
			}
		}
		disturbed(t, "calls of Create", n, 20, stride())
	}
}

// TestLabFaultsOfDelete does the same with Delete.
func TestLabFaultsOfDelete(t *testing.T) {
	u := newUnsteady(t)
	base := u.blank(t, "labfaultdel", 1<<30+30<<20)
	for what, fault := range labFaults() {
		n := 0
		for k, happened := 0, true; happened; k += stride() {
			t.Run(fmt.Sprintf("%s at call %d", what, k), func(t *testing.T) {
				req := labRequest(fmt.Sprintf("lab-faultdel-%s-%d", what, k), "lab-tag-fault")
				var id string
				again(t, func() (err error) { id, err = u.Create(labContext(t), req); return err })
				u.arm(k, fault)
				err := u.Delete(labContext(t), id)
				happened = counted(u.disarm(), &n)
				if err != nil {
					require.ErrorIs(t, err, provider.ErrTransient, "%v", err)
				}
				again(t, func() error { return u.Delete(labContext(t), id) })
				_, err = u.Get(labContext(t), id)
				require.ErrorIs(t, err, provider.ErrNotFound)
				assert.ElementsMatch(t, []string{base, base + ".ok"}, u.volumesOf(t, provider.Name(req.UID), base))
			})
			if t.Failed() {
				return
			}
		}
		disturbed(t, "calls of Delete", n, 6, stride())
	}
}

// TestLabFaultsOfUploads disturbs an image in the middle, over one connection and
// over several.
func TestLabFaultsOfUploads(t *testing.T) {
	labConfig(t)
	image := append(fakelibvirt.BlankQCOW2(1<<30), randomBytes(3*kvm.SegmentSize)...)
	path := t.TempDir() + "/image"
	require.NoError(t, os.WriteFile(path, image, 0o600))
	faults := labFaults()
	faults["libvirtd restarted"] = func(*stallProxy) { restartLibvirtd(t) }
	for what, fault := range faults {
		for _, lanes := range []int{1, 4} {
			t.Run(fmt.Sprintf("%s, %d lanes", what, lanes), func(t *testing.T) {
				if what == "libvirtd restarted" {
					needsLibvirtd(t)
				}
				u := newUnsteady(t)
				var once sync.Once
				var happened atomic.Bool
				u.cfg.Progress = func(p kvm.ImageProgress) {
					if p.Bytes > p.Total/2 {
						once.Do(func() { happened.Store(true); fault(u.proxy) })
					}
				}
				u.only(t, "labmiddle", kvm.Image{URL: path, SHA256: digestOf(image)})
				kvm.UseLanes(u.Provider, "lab", lanes)
				_, err := u.PullImage(labContext(t), kvm.PullRequest{})
				u.proxy.heal()
				require.True(t, happened.Load(), "it was disturbed")
				if err != nil {
					require.ErrorIs(t, err, provider.ErrTransient, "%v", err)
				}
				again(t, func() error { _, err := u.PullImage(labContext(t), kvm.PullRequest{}); return err })
				var got []byte
				again(t, func() (err error) { // what was cut may be noticed only now
					got, err = kvm.VolumeContent(labContext(t), u.Provider, "lab", "base-labmiddle-"+digestOf(image)[:16]+".qcow2")
					return err
				})
				assert.Equal(t, digestOf(image), digestOf(got))
			})
		}
	}
}

// TestLabDaemonRestarts has libvirtd restarted at the calls of Create and Delete in
// turn. What runs goes on running.
func TestLabDaemonRestarts(t *testing.T) {
	needsLibvirtd(t)
	u := newUnsteady(t)
	base := u.blank(t, "labrestart", 1<<30+31<<20)
	req := labRequest("lab-restart-first", "lab-tag-restart")
	var first string
	again(t, func() (err error) { first, err = u.Create(labContext(t), req); return err })
	made, deleted := 0, 0
	for k, happened := 0, true; happened && !t.Failed(); k += stride() {
		t.Run(fmt.Sprintf("at call %d", k), func(t *testing.T) {
			req := labRequest(fmt.Sprintf("lab-restart-%d", k), "lab-tag-restart")
			restart := func(*stallProxy) { restartLibvirtd(t) }
			u.arm(k, restart)
			id, err := u.Create(labContext(t), req)
			happened = counted(u.disarm(), &made)
			if err != nil {
				require.ErrorIs(t, err, provider.ErrTransient, "%v", err)
			}
			again(t, func() error { id, err = u.Create(labContext(t), req); return err })
			u.arm(k, restart) // Delete has fewer calls
			err = u.Delete(labContext(t), id)
			counted(u.disarm(), &deleted)
			if err != nil {
				require.ErrorIs(t, err, provider.ErrTransient, "%v", err)
			}
			again(t, func() error { return u.Delete(labContext(t), id) })
			assert.ElementsMatch(t, []string{base, base + ".ok"}, u.volumesOf(t, provider.Name(req.UID), base))
		})
	}
	disturbed(t, "calls of Create", made, 8, stride())
	disturbed(t, "calls of Delete", deleted, 6, stride())
	in, err := u.Get(labContext(t), first)
	require.NoError(t, err)
	assert.Equal(t, provider.StateProvisioning, in.State, "it runs: %s", in.Reason)
	again(t, func() error { return u.Delete(labContext(t), first) })
}

const libvirtdPID = "/run/libvirtd.pid"

func needsLibvirtd(t *testing.T) {
	t.Helper()
	labConfig(t)
	if _, err := os.Stat(libvirtdPID); err != nil {
		t.Skip("needs a libvirtd on this machine that it may restart, as in the lab")
	}
}

// restartLibvirtd ends the daemon and starts it as it was.
func restartLibvirtd(t *testing.T) {
	t.Helper()
	text, err := os.ReadFile(libvirtdPID)
	require.NoError(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	require.NoError(t, err)
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	require.NoError(t, err)
	args := strings.Split(strings.TrimRight(string(line), "\x00"), "\x00")
	require.NoError(t, syscall.Kill(pid, syscall.SIGTERM))
	require.Eventually(t, func() bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) || isZombie(pid) }, 20*time.Second, 10*time.Millisecond)
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// isZombie tells of a process that has ended and whose parent has not looked.
func isZombie(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || bytes.Contains(stat, []byte(") Z "))
}
