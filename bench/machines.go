package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/egressfleet/egress/kvm"
	"github.com/egressfleet/egress/provider"
)

// createRounds is how often each side makes a machine, and cycles how often one
// is made and deleted to see whether anything stays.
const (
	createRounds = 5
	cycles       = 200
)

const benchTag = "egress-bench"

var machineTargets = []target{
	{"kvm-create-rpcs", "<=", 10, measureCreateCalls},
	{"kvm-create-virtinstall", "<=", 0.7, measureCreate("virt-install", (*maker).virtInstall)},
	{"kvm-create-define", "<=", 1.25, measureCreate("virsh", (*maker).defineAndStart)},
	{"kvm-list-first-rpcs", "<=", 22, measureList(true)},
	{"kvm-list-later-rpcs", "<=", 3, measureList(false)},
	{"kvm-cycles-left", "<=", 0, measureCycles},
}

// maker makes machines of a blank image that is in the pool already.
type maker struct {
	h     hypervisor
	p     *kvm.Provider
	rec   recorder
	image kvm.HostImage
	dir   string
	count int
}

func newMaker() (*maker, error) {
	h, err := theHypervisor()
	if err != nil {
		return nil, err
	}
	m := &maker{h: h, dir: filepath.Join(os.TempDir(), fmt.Sprintf("egress-bench-%d", os.Getpid()))}
	must(os.MkdirAll(m.dir, 0o755))
	blank := filepath.Join(m.dir, "blank.qcow2")
	mustRun("qemu-img", "create", "-q", "-f", "qcow2", blank, "1G")
	content, err := os.ReadFile(blank)
	must(err)
	m.p = h.provider("", m.rec.trace(), map[string]kvm.Image{"blank": {URL: blank, SHA256: fmt.Sprintf("%x", sha256.Sum256(content))}})
	m.image, err = m.p.PullImage(context.Background(), kvm.PullRequest{})
	return m, err
}

func (m *maker) close() {
	_, err := m.p.PruneImages(context.Background(), kvm.PruneRequest{Configured: true, MinAge: time.Nanosecond})
	must(err)
	must(m.p.Close())
	must(os.RemoveAll(m.dir))
}

// create makes one and returns its ID and the time until it runs.
func (m *maker) create() (id string, took time.Duration) {
	m.count++
	start := time.Now()
	id, err := m.p.Create(context.Background(), provider.CreateRequest{
		UID: fmt.Sprintf("bench-%d-%d", os.Getpid(), m.count), Tag: benchTag, UserData: userData,
	})
	must(err)
	return id, time.Since(start)
}

func (m *maker) delete(id string) {
	for {
		must(m.p.Delete(context.Background(), id))
		_, err := m.p.Get(context.Background(), id)
		if errors.Is(err, provider.ErrNotFound) {
			return
		}
	}
}

func measureCreateCalls() (float64, string, error) {
	m, err := newMaker()
	if err != nil {
		return 0, "", err
	}
	defer m.close()
	id, _ := m.create() // the connection's first calls are no part of it
	m.delete(id)
	m.rec.take()
	id, _ = m.create()
	calls := m.rec.take()
	m.delete(id)
	return float64(inSeries(calls)), fmt.Sprintf("%d calls in all, with the seed's upload", len(calls)), nil
}

// measureCreate compares the time until a machine runs with that of other means.
func measureCreate(needs string, peer func(*maker) time.Duration) func() (float64, string, error) {
	return func() (float64, string, error) {
		if _, err := exec.LookPath(needs); err != nil {
			return 0, "", skipped(needs + " is not installed")
		}
		m, err := newMaker()
		if err != nil {
			return 0, "", err
		}
		defer m.close()
		id, _ := m.create()
		m.delete(id)
		var ours, theirs []float64
		for range createRounds {
			id, took := m.create()
			m.delete(id)
			ours = append(ours, took.Seconds())
			theirs = append(theirs, peer(m).Seconds())
		}
		return median(ours) / median(theirs), fmt.Sprintf("ours %s s, theirs %s s", spread(ours), spread(theirs)), nil
	}
}

const peerName = "egress-bench-peer"

func (m *maker) path(name string) string { return filepath.Join(m.h.dir, name) }

// overlay makes a disk as the library does.
func (m *maker) overlay() string {
	disk := m.path(peerName + ".qcow2")
	mustRun("qemu-img", "create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", m.path(m.image.Volume), disk, "10G")
	return disk
}

// gone removes the peer's machine.
func (m *maker) gone() {
	virsh("destroy", peerName)
	virsh("undefine", peerName, "--nvram")
	for _, suffix := range []string{".qcow2", "-seed.iso"} {
		if err := os.Remove(m.path(peerName + suffix)); !errors.Is(err, fs.ErrNotExist) {
			must(err)
		}
	}
}

// virtInstall is what people type: a seed, a disk, and virt-install.
func (m *maker) virtInstall() time.Duration {
	defer m.gone()
	user, meta := filepath.Join(m.dir, "user-data"), filepath.Join(m.dir, "meta-data")
	must(os.WriteFile(user, userData, 0o600))
	must(os.WriteFile(meta, []byte("instance-id: x\nlocal-hostname: x\n"), 0o600))
	seed := m.path(peerName + "-seed.iso")
	start := time.Now()
	mustRun("cloud-localds", seed, user, meta)
	disk := m.overlay()
	args := []string{
		"--connect", "qemu:///system", "--import", "--name", peerName, "--memory", "128", "--vcpus", "1", "--virt-type", "qemu", "--boot", "uefi",
		"--osinfo", "detect=off,require=off", "--graphics", "none", "--noautoconsole", "--network", "bridge=" + m.h.bridge + ",model=virtio",
		"--disk", "path=" + disk + ",format=qcow2,bus=virtio", "--disk", "path=" + seed + ",format=raw,bus=virtio,readonly=on",
	}
	if cpu := os.Getenv("KVM_TEST_CPU_MODEL"); cpu != "" {
		args = append(args, "--cpu", cpu)
	}
	mustRun("virt-install", args...)
	return time.Since(start)
}

// defineAndStart is the hypervisor's own part: what the library defines is
// defined again and started, with its disks there already.
func (m *maker) defineAndStart() time.Duration {
	id, _ := m.create()
	name := id[strings.LastIndex(id, "/")+1:]
	xml, err := output("virsh", "-c", "qemu:///system", "dumpxml", "--inactive", name)
	must(err)
	defer m.gone()
	m.overlay()
	mustRun("cp", m.path(name+"-seed.iso"), m.path(peerName+"-seed.iso"))
	m.delete(id)
	file := filepath.Join(m.dir, "peer.xml")
	must(os.WriteFile(file, []byte(renamed(xml, name, peerName)), 0o600))
	start := time.Now()
	virsh("define", file)
	virsh("start", peerName)
	return time.Since(start)
}

// renamed gives a definition another name, and no UUID.
func renamed(xml, from, to string) string {
	xml = strings.ReplaceAll(xml, from, to)
	before, rest, ok := strings.Cut(xml, "<uuid>")
	if !ok {
		return xml
	}
	_, after, _ := strings.Cut(rest, "</uuid>")
	return before + after
}

// oursInCrowd is how many of a host's domains are ours, where it has as many.
const oursInCrowd = 20

// measureList counts the calls of a list on a host with 500 domains, of which 20
// are ours: of the first one of a process, or of a later one.
func measureList(first bool) func() (float64, string, error) {
	return func() (float64, string, error) {
		m, err := newMaker()
		if err != nil {
			return 0, "", err
		}
		defer m.close()
		c := m.newCrowd()
		defer c.close()
		c.growTo(500)
		firstCalls, firstTook, laterCalls, laterTook := c.list(bySSH, 1)
		calls, took := laterCalls, laterTook
		if first {
			calls, took = firstCalls, firstTook
		}
		return float64(calls), fmt.Sprintf("%s over SSH", took.Round(100*time.Microsecond)), nil
	}
}

// listCurve is the time and the calls of lists on a host that has ever more domains.
// Its value is the time of a later list with the most, to that with the fewest.
func listCurve() (float64, string, error) {
	m, err := newMaker()
	if err != nil {
		return 0, "", err
	}
	defer m.close()
	c := m.newCrowd()
	defer c.close()
	var points []string
	var medians []float64
	for _, n := range []int{10, 50, 100, 250, 500} {
		c.growTo(n)
		var firsts, laters, locals []float64
		var firstCalls, laterCalls int
		for range 3 {
			var first, later time.Duration
			firstCalls, first, laterCalls, later = c.list(bySSH, 20)
			firsts, laters = append(firsts, 1000*first.Seconds()), append(laters, 1000*later.Seconds())
			_, _, _, local := c.list(byLocal, 20)
			locals = append(locals, 1000*local.Seconds())
		}
		points = append(points, fmt.Sprintf("%d: first %s ms in %d calls, later %s ms in %d, by the local socket %s ms",
			n, spread(firsts), firstCalls, spread(laters), laterCalls, spread(locals)))
		medians = append(medians, median(laters))
	}
	return medians[len(medians)-1] / medians[0], strings.Join(points, "\n  "), nil
}

// crowd is many domains on the host: ours, and those of others.
type crowd struct {
	m     *maker
	uid   string // of the model, name is its name
	name  string
	xml   string
	names []string
}

func (m *maker) newCrowd() *crowd {
	id, _ := m.create()
	c := &crowd{m: m, uid: fmt.Sprintf("bench-%d-%d", os.Getpid(), m.count), name: id[strings.LastIndex(id, "/")+1:]}
	var err error
	c.xml, err = output("virsh", "-c", "qemu:///system", "dumpxml", "--inactive", c.name)
	must(err)
	m.delete(id)
	return c
}

// growTo defines domains until there are so many. The first ones are ours.
func (c *crowd) growTo(n int) {
	for i := len(c.names); i < n; i++ {
		name := fmt.Sprintf("egress-bench-other-%d", i)
		xml := "<domain type='qemu'><name>" + name + "</name><memory unit='MiB'>128</memory><os><type arch='x86_64' machine='q35'>hvm</type></os></domain>"
		if i < oursInCrowd {
			uid := fmt.Sprintf("crowd-%d-%d", os.Getpid(), i)
			name = provider.Name(uid)
			xml = strings.ReplaceAll(renamed(c.xml, c.name, name), c.uid, uid)
		}
		file := filepath.Join(c.m.dir, "crowd.xml")
		must(os.WriteFile(file, []byte(xml), 0o600))
		virsh("define", file)
		c.names = append(c.names, name)
	}
}

func (c *crowd) close() {
	for _, name := range c.names {
		virsh("undefine", name, "--nvram")
	}
}

// list is the calls and the time of a process's first list, with what connecting
// takes, and of a later one: the median of so many.
func (c *crowd) list(way string, later int) (firstCalls int, first time.Duration, laterCalls int, typical time.Duration) {
	var rec recorder
	p := c.m.h.provider(way, rec.trace(), nil)
	defer func() { must(p.Close()) }()
	once := func() (int, time.Duration) {
		rec.take()
		start := time.Now()
		found, err := p.ListByTag(context.Background(), benchTag)
		took := time.Since(start)
		must(err)
		if want := min(len(c.names), oursInCrowd); len(found) != want {
			must(fmt.Errorf("the list has %d instances, wanted %d", len(found), want))
		}
		return len(rec.take()), took
	}
	firstCalls, first = once()
	var times []time.Duration
	for range later {
		var took time.Duration
		laterCalls, took = once()
		times = append(times, took)
	}
	slices.Sort(times)
	return firstCalls, first, laterCalls, times[len(times)/2]
}

// measureCycles makes and deletes, and counts what stays: goroutines and
// descriptors here, and descriptors of libvirtd.
func measureCycles() (float64, string, error) {
	m, err := newMaker()
	if err != nil {
		return 0, "", err
	}
	defer m.close()
	cycle := func(n int) {
		for range n {
			id, _ := m.create()
			m.delete(id)
		}
	}
	cycle(10)
	before := m.counts()
	cycle(cycles)
	after := m.counts()
	left := 0
	for i := range before {
		left += max(after[i]-before[i], 0)
	}
	return float64(left), fmt.Sprintf("%d cycles: goroutines %d to %d, descriptors %d to %d, libvirtd's %d to %d", cycles, before[0], after[0], before[1], after[1], before[2], after[2]), nil
}

// counts settles for a moment: libvirtd works on for a little after each upload.
func (m *maker) counts() [3]int {
	time.Sleep(2 * time.Second)
	pid, err := os.ReadFile("/run/libvirtd.pid")
	must(err)
	return [3]int{runtime.NumGoroutine(), descriptors("self"), descriptors(strings.TrimSpace(string(pid)))}
}

func descriptors(pid string) int {
	all, err := os.ReadDir("/proc/" + pid + "/fd")
	must(err)
	return len(all)
}
