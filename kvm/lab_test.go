package kvm_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressfleet/egress/internal/fakelibvirt"
	"github.com/egressfleet/egress/kvm"
	"github.com/egressfleet/egress/provider"
)

// The tests of this file run against a real hypervisor, which the variables
// KVM_TEST_* describe:
//
//	KVM_TEST_HOST         host:port of sshd, or "local" for the socket of this machine
//	KVM_TEST_USER         the account, KVM_TEST_SSH_KEY its private key
//	KVM_TEST_KNOWN_HOSTS  without it any host key is accepted
//	KVM_TEST_BRIDGE       a bridge with DHCP that this machine can reach
//	KVM_TEST_POOL         default "default"
//	KVM_TEST_SOCKET       default that of libvirtd
//	KVM_TEST_DOMAIN_TYPE  default "auto"
//	KVM_TEST_CPU_MODEL    default that of the domain type
//	KVM_TEST_IMAGE_URL    a cloud image with cloud-init and sshd, for the test that boots
//	KVM_TEST_IMAGE_SHA256 its digest
//	KVM_TEST_TIMEOUT      for the boot, default 20m
//	KVM_TEST_KEEP         keeps the booted instance
//	KVM_TEST_LOG_LEVEL    0, 1 or 2; 1 is one line for each call of libvirt
const labHint = "needs a hypervisor: set KVM_TEST_HOST, KVM_TEST_USER, KVM_TEST_SSH_KEY, KVM_TEST_BRIDGE (lab/up prints them)"

// lab is a provider on the hypervisor of the environment.
type lab struct {
	*kvm.Provider
	cfg    kvm.Config
	images *imageServer // of blank
}

func labConfig(t testing.TB) kvm.Config {
	t.Helper()
	host := os.Getenv("KVM_TEST_HOST")
	if host == "" || os.Getenv("KVM_TEST_BRIDGE") == "" {
		t.Skip(labHint)
	}
	known := os.Getenv("KVM_TEST_KNOWN_HOSTS")
	if known == "" && host != "local" {
		fmt.Fprintln(os.Stderr, "WARNING: KVM_TEST_KNOWN_HOSTS is not set: whoever answers at KVM_TEST_HOST is believed")
	}
	return kvm.Config{
		SSHKeyFile: os.Getenv("KVM_TEST_SSH_KEY"), KnownHostsFile: known, InsecureIgnoreHostKey: known == "",
		DomainType: os.Getenv("KVM_TEST_DOMAIN_TYPE"), CPUModel: os.Getenv("KVM_TEST_CPU_MODEL"),
		Hosts: []kvm.Host{{
			Name: "lab", Address: host, User: os.Getenv("KVM_TEST_USER"), Socket: os.Getenv("KVM_TEST_SOCKET"),
			Pool: os.Getenv("KVM_TEST_POOL"), Bridge: os.Getenv("KVM_TEST_BRIDGE"),
		}},
		MachineTypes: map[string]kvm.MachineType{"blank": {VCPUs: 1, MemoryMiB: 128}, "small": {VCPUs: 2, MemoryMiB: 768}},
		Timeouts:     kvm.Timeouts{Stall: provider.Duration(time.Second), ImageTakeover: provider.Duration(1500 * time.Millisecond)},
		Logger:       labLogger(t),
	}
}

func newLab(t *testing.T, amend ...func(*kvm.Config)) *lab {
	t.Helper()
	l := &lab{cfg: labConfig(t)}
	for _, f := range amend {
		f(&l.cfg)
	}
	l.Provider = l.again(t)
	return l
}

func (l *lab) again(t *testing.T) *kvm.Provider {
	t.Helper()
	p, err := kvm.New(l.cfg)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, p.Close()) })
	return p
}

func labContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// blank serves an image of a disk with nothing on it, of its own digest, and
// removes its volumes from the host in the end.
func (l *lab) blank(t *testing.T, key string, size uint64) (volume string) {
	t.Helper()
	content := fakelibvirt.BlankQCOW2(size)
	s := newImageServer(t)
	l.images = s
	s.serve(serveBytes(content))
	l.cfg.Images = map[string]kvm.Image{key: {URL: s.URL + "/blank.qcow2", SHA256: digestOf(content)}}
	l.Provider = l.again(t)
	volume = "base-" + key + "-" + digestOf(content)[:16] + ".qcow2"
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		assert.NoError(t, kvm.RemoveVolume(ctx, l.Provider, "lab", volume+".ok"))
		assert.NoError(t, kvm.RemoveVolume(ctx, l.Provider, "lab", volume))
	})
	return volume
}

func labRequest(uid, tag string) provider.CreateRequest {
	req := request(uid + "-" + strconv.Itoa(os.Getpid()))
	req.Tag = labTag(tag)
	req.Placement.MachineType = "blank"
	return req
}

// labTag is a tag that an earlier run did not have.
func labTag(tag string) string { return tag + "-" + strconv.Itoa(os.Getpid()) }

// volumesOf are the volumes of the host that belong to an instance or a base.
func (l *lab) volumesOf(t *testing.T, parts ...string) []string {
	t.Helper()
	all, err := kvm.PoolVolumes(labContext(t), l.Provider, "lab")
	require.NoError(t, err)
	return slices.DeleteFunc(all, func(v string) bool {
		return !slices.ContainsFunc(parts, func(p string) bool { return strings.HasPrefix(v, p) })
	})
}

// TestLabBlank is the walk with a disk that has no system on it.
func TestLabBlank(t *testing.T) {
	l := newLab(t)
	base := l.blank(t, "labblank", 1<<30)
	ctx := labContext(t)
	a, b := labRequest("lab-a", "lab-tag-a"), labRequest("lab-b", "lab-tag-b")
	start := time.Now()
	idA, err := l.Create(ctx, a)
	t.Cleanup(func() { _ = l.Delete(context.Background(), idA) })
	require.NoError(t, err)
	t.Logf("cold Create %s", time.Since(start))
	require.EqualValues(t, 1, l.images.requests.Load(), "the image was fetched")
	start = time.Now()
	idB, err := l.Create(ctx, b)
	t.Cleanup(func() { _ = l.Delete(context.Background(), idB) })
	require.NoError(t, err)
	t.Logf("warm Create %s", time.Since(start))

	again, err := l.again(t).Create(ctx, a)
	require.NoError(t, err)
	assert.Equal(t, idA, again)
	assert.EqualValues(t, 1, l.images.requests.Load(), "and never again")

	in, err := l.again(t).Get(ctx, idA)
	require.NoError(t, err)
	assert.Equal(t, provider.StateProvisioning, in.State, in.Reason)
	assert.Equal(t, a.Metadata, in.Metadata)
	for tag, id := range map[string]string{a.Tag: idA, b.Tag: idB} {
		list, err := l.again(t).ListByTag(ctx, tag)
		require.NoError(t, err)
		require.Len(t, list, 1)
		assert.Equal(t, id, list[0].ID)
		assert.Equal(t, provider.StateRunning, list[0].State)
	}
	for _, id := range []string{idA, idB} {
		require.NoError(t, l.Delete(ctx, id))
		require.NoError(t, l.Delete(ctx, id))
		_, err = l.Get(ctx, id)
		require.ErrorIs(t, err, provider.ErrNotFound)
	}
	assert.ElementsMatch(t, []string{base, base + ".ok"}, l.volumesOf(t, provider.Name(a.UID), provider.Name(b.UID), "base-labblank-"))
}

// TestLabAppArmor asks libvirt's helper which files its profile for the domain
// would allow. The helper needs no AppArmor, but must see the host's files.
func TestLabAppArmor(t *testing.T) {
	const helper = "/usr/lib/libvirt/virt-aa-helper"
	l := newLab(t)
	if _, err := os.Stat(helper); err != nil {
		t.Skip(helper + " is not here: install libvirt-daemon-system, and run this on the host itself")
	}
	base := l.blank(t, "labaa", 1<<30+1<<20)
	req := labRequest("lab-aa", "lab-tag-a")
	id, err := l.Create(labContext(t), req)
	require.NoError(t, err)
	defer func() { assert.NoError(t, l.Delete(context.Background(), id)) }()
	text, uuid, err := kvm.DomainXML(labContext(t), l.Provider, "lab", provider.Name(req.UID))
	require.NoError(t, err)
	cmd := exec.Command(helper, "-c", "-d", "-u", "libvirt-"+uuid)
	cmd.Stdin = strings.NewReader(text)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	for _, file := range []string{provider.Name(req.UID) + ".qcow2", provider.Name(req.UID) + "-seed.iso", base} {
		assert.Contains(t, string(out), "/"+file+`"`, "no rule for it in:\n%s", out)
	}
}

// TestLabKilledCreate ends a process after each of its calls in turn, and once
// before the first, and checks that the next Create finishes and that nothing
// is left but what the list shows. Each time the image is a new one.
func TestLabKilledCreate(t *testing.T) {
	newLab(t)
	var done bool
	for k := 0; !done; k++ {
		t.Run(fmt.Sprintf("after call %d", k), func(t *testing.T) {
			l := newLab(t)
			base := l.blank(t, "labkill", uint64(1<<30+(k+2)<<20))
			req := labRequest(fmt.Sprintf("lab-kill-%d", k), "lab-tag-kill")
			name := provider.Name(req.UID)
			done = !l.child(t, childJob{Calls: k, Request: req})
			id := "hosts/lab/domains/" + name

			list, err := l.ListByTag(labContext(t), req.Tag)
			require.NoError(t, err)
			if len(list) == 0 {
				assert.Empty(t, l.volumesOf(t, name), "volumes that no list shows")
			}
			start := time.Now()
			again, err := l.Create(labContext(t), req)
			require.NoError(t, err)
			t.Logf("the next Create took %s", time.Since(start))
			assert.Equal(t, id, again)
			in, err := l.Get(labContext(t), id)
			require.NoError(t, err)
			assert.Equal(t, provider.StateProvisioning, in.State, in.Reason)
			require.NoError(t, l.Delete(labContext(t), id))
			assert.ElementsMatch(t, []string{base, base + ".ok"}, l.volumesOf(t, name, base))
		})
		if t.Failed() {
			return
		}
	}
}

// TestLabKilledDelete does the same with Delete.
func TestLabKilledDelete(t *testing.T) {
	l := newLab(t)
	base := l.blank(t, "labkill", 1<<30+1<<20)
	var done bool
	for k := 0; !done; k++ {
		t.Run(fmt.Sprintf("after call %d", k), func(t *testing.T) {
			req := labRequest(fmt.Sprintf("lab-del-%d", k), "lab-tag-kill")
			id, err := l.Create(labContext(t), req)
			require.NoError(t, err)
			done = !l.child(t, childJob{Delete: true, Calls: k, Request: req})
			require.NoError(t, l.Delete(labContext(t), id))
			_, err = l.Get(labContext(t), id)
			require.ErrorIs(t, err, provider.ErrNotFound)
			assert.ElementsMatch(t, []string{base, base + ".ok"}, l.volumesOf(t, provider.Name(req.UID), base))
		})
		if t.Failed() {
			return
		}
	}
}

// killedCode is the exit code of a process that ended itself in time.
const killedCode = 77

// childJob is the work of another process: Create or Delete of one instance,
// ended after the given number of calls, or after a step.
type childJob struct {
	Delete  bool
	Calls   int
	Step    string
	Request provider.CreateRequest `json:"-"`
	Images  map[string]kvm.Image

	// The parts of Request, whose user-data marshals as its length.
	UID, Tag, MachineType string
	Metadata              map[string]string
	UserData              []byte
}

// child runs this test's binary as another process. It returns false if the
// work needed fewer calls.
func (l *lab) child(t *testing.T, job childJob) bool {
	t.Helper()
	r := job.Request
	job.Images, job.UID, job.Tag, job.MachineType, job.Metadata, job.UserData = l.cfg.Images, r.UID, r.Tag, r.Placement.MachineType, r.Metadata, r.UserData
	text, err := json.Marshal(job)
	require.NoError(t, err)
	cmd := exec.Command(os.Args[0], "-test.run", "^TestLabChild$", "-test.timeout", "5m")
	cmd.Env = append(os.Environ(), "KVM_TEST_CHILD="+string(text))
	out, err := cmd.CombinedOutput()
	if err == nil {
		return false
	}
	require.Equal(t, killedCode, cmd.ProcessState.ExitCode(), "%s", out)
	return true
}

// TestLabChild is the other process of the tests above.
func TestLabChild(t *testing.T) {
	text := os.Getenv("KVM_TEST_CHILD")
	if text == "" {
		t.Skip("runs as a process of other tests only")
	}
	var job childJob
	require.NoError(t, json.Unmarshal([]byte(text), &job))
	req := provider.CreateRequest{UID: job.UID, Tag: job.Tag, UserData: job.UserData, Metadata: job.Metadata}
	req.Placement.MachineType = job.MachineType
	l := newLab(t, func(c *kvm.Config) {
		c.Images = job.Images
		c.Trace = &kvm.Trace{Call: exitAfter(job.Calls), Step: func(ctx context.Context, info kvm.StepInfo) (context.Context, func(error)) {
			return ctx, func(error) {
				if info.Step == job.Step {
					os.Exit(killedCode)
				}
			}
		}}
	})
	var err error
	if job.Delete {
		err = l.Delete(labContext(t), "hosts/lab/domains/"+provider.Name(job.UID))
	} else {
		_, err = l.Create(labContext(t), req)
	}
	require.NoError(t, err)
}

// exitAfter ends the process at the end of its k-th call, or before the first.
func exitAfter(k int) func(context.Context, kvm.CallInfo) func(error) {
	var ended atomic.Int64
	return func(context.Context, kvm.CallInfo) func(error) {
		if k == 0 {
			os.Exit(killedCode)
		}
		return func(error) {
			if ended.Add(1) == int64(k) {
				os.Exit(killedCode)
			}
		}
	}
}

// TestLabCancel ends the context of a Create in the middle of its work, at
// several times, and checks that it returns within a second.
func TestLabCancel(t *testing.T) {
	l := newLab(t)
	base := l.blank(t, "labcancel", 1<<30+1<<20)
	req := labRequest("lab-cancel", "lab-tag-cancel")
	id := "hosts/lab/domains/" + provider.Name(req.UID)
	for _, after := range []time.Duration{1, 5, 20, 50, 100, 200, 400} {
		ctx, cancel := context.WithTimeout(t.Context(), after*time.Millisecond)
		_, err := l.Create(ctx, req)
		late := time.Since(deadlineOf(ctx))
		cancel()
		assert.Less(t, late, time.Second)
		t.Logf("after %dms: %v", after, err)
		require.NoError(t, l.Delete(labContext(t), id))
	}
	id, err := l.Create(labContext(t), req)
	require.NoError(t, err)
	require.NoError(t, l.Delete(labContext(t), id))
	assert.ElementsMatch(t, []string{base, base + ".ok"}, l.volumesOf(t, provider.Name(req.UID), base))
}

// TestLabImageFileRemoved removes the file of a base image behind libvirt's
// back: the next Create fetches it again.
func TestLabImageFileRemoved(t *testing.T) {
	l := newLab(t)
	base := l.blank(t, "labgone", 1<<30+1<<20)
	req := labRequest("lab-gone", "lab-tag-gone")
	id, err := l.Create(labContext(t), req)
	require.NoError(t, err)
	defer func() { _ = l.Delete(context.Background(), id) }()
	text, _, err := kvm.DomainXML(labContext(t), l.Provider, "lab", provider.Name(req.UID))
	require.NoError(t, err)
	_, path, _ := strings.Cut(text, "source file='")
	file := strings.Replace(path[:strings.Index(path, "'")], provider.Name(req.UID)+".qcow2", base, 1)
	require.NoError(t, l.Delete(labContext(t), id))
	if os.Remove(file) != nil {
		t.Skip("the pool of the host is not in this file system: run this on the host itself")
	}
	_, err = l.Create(labContext(t), req)
	require.NoError(t, err)
	require.NoError(t, l.Delete(labContext(t), id))
	assert.ElementsMatch(t, []string{base, base + ".ok"}, l.volumesOf(t, provider.Name(req.UID), base))
}

// TestLabBadImages leaves nothing of an image that was cut or is not what its
// digest says.
func TestLabBadImages(t *testing.T) {
	labConfig(t)
	big := append(fakelibvirt.BlankQCOW2(1<<30), randomBytes(20*kvm.PacketSize)...)
	for what, c := range map[string]struct {
		serve http.HandlerFunc
		code  string
	}{
		"cut": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", strconv.Itoa(len(big)))
			_, _ = w.Write(big[:len(big)/2])
		}, "DownloadFailed"},
		"stalled": {func(w http.ResponseWriter, r *http.Request) {
			_, _ = w.Write(big[:len(big)/2])
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}, "DownloadFailed"},
		"wrong": {serveBytes(big), "DigestMismatch"},
	} {
		t.Run(what, func(t *testing.T) {
			l := newLab(t)
			s := newImageServer(t)
			s.serve(c.serve)
			l.cfg.Images = map[string]kvm.Image{"labbad": {URL: s.URL, SHA256: strings.Repeat("0", 64)}}
			l.Provider = l.again(t)
			_, err := l.Create(labContext(t), labRequest("lab-bad", "lab-tag-bad"))
			require.Error(t, err)
			assert.True(t, provider.HasCode(err, c.code), "%v", err)
			assert.Empty(t, l.volumesOf(t, "base-labbad-"))
		})
	}
}

func deadlineOf(ctx context.Context) time.Time {
	d, _ := ctx.Deadline()
	return d
}

// bootUserData serves its own text, so that the test can compare what arrived.
const bootUserData = `#!/bin/sh
# Trailing spaces and odd bytes shall arrive as they are:   ` + "\t\xc3\xbc" + `
cd /var/lib/cloud/instance && exec setsid python3 -m http.server 8099 >/dev/null 2>&1 </dev/null &
`

// TestLabBoot is one run with a real guest: two Creates, an address, TCP, the
// user-data as it arrived, the list, two Deletes, nothing left.
func TestLabBoot(t *testing.T) {
	url := os.Getenv("KVM_TEST_IMAGE_URL")
	if url == "" {
		t.Skip(labHint + ", and KVM_TEST_IMAGE_URL")
	}
	var told atomic.Int64
	l := newLab(t, func(c *kvm.Config) {
		c.Images = map[string]kvm.Image{"lab": {URL: url, SHA256: os.Getenv("KVM_TEST_IMAGE_SHA256")}}
		c.Progress = func(p kvm.ImageProgress) { told.Store(p.Bytes) }
		c.Timeouts = kvm.Timeouts{}
	})
	ctx, cancel := context.WithTimeout(t.Context(), labTimeout(t))
	defer cancel()
	req := provider.CreateRequest{
		UID: "lab-boot-" + strconv.Itoa(os.Getpid()), Tag: labTag("lab-tag-boot"), UserData: provider.UserData(bootUserData),
		Placement: provider.Placement{MachineType: "small"}, Metadata: map[string]string{"port": "8099"},
	}
	start := time.Now()
	require.True(t, l.child(t, childJob{Calls: -1, Step: "seed", Request: req}), "a process that dies in the middle")
	t.Logf("killed after %s", time.Since(start))
	start = time.Now()
	id, err := l.Create(ctx, req)
	if os.Getenv("KVM_TEST_KEEP") == "" {
		t.Cleanup(func() { _ = l.Delete(context.Background(), id) })
	}
	require.NoError(t, err)
	t.Logf("Create %s, %d image bytes", time.Since(start), told.Load())
	second := time.Now()
	again, err := l.Create(ctx, req)
	require.NoError(t, err)
	assert.Equal(t, id, again)
	t.Logf("second Create %s", time.Since(second))

	in, err := provider.WaitRunning(ctx, l, id, provider.WaitOptions{})
	require.NoError(t, err)
	t.Logf("running with %v after %s", in.Addresses, time.Since(start))
	waitTCP(t, ctx, net.JoinHostPort(in.Address().String(), "22"))
	t.Logf("TCP after %s", time.Since(start))
	assert.Equal(t, bootUserData, fetchUserData(t, ctx, "http://"+net.JoinHostPort(in.Address().String(), "8099")+"/user-data.txt"))
	t.Logf("user-data compared after %s", time.Since(start))

	list, err := l.ListByTag(ctx, req.Tag)
	require.NoError(t, err)
	require.True(t, slices.ContainsFunc(list, func(i provider.Instance) bool { return i.ID == id }))
	if os.Getenv("KVM_TEST_KEEP") != "" {
		t.Logf("kept %s at %s", id, in.Address())
		return
	}
	require.True(t, l.child(t, childJob{Delete: true, Calls: -1, Step: "destroy", Request: req}), "a process that dies in the middle")
	require.NoError(t, l.Delete(ctx, id))
	require.NoError(t, l.Delete(ctx, id))
	_, err = l.Get(ctx, id)
	require.ErrorIs(t, err, provider.ErrNotFound)
	assert.Empty(t, l.volumesOf(t, provider.Name(req.UID)))
	assert.Len(t, l.volumesOf(t, "base-lab-"), 2, "only the base image and its marker remain")
}

func labTimeout(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("KVM_TEST_TIMEOUT")
	if text == "" {
		return 20 * time.Minute
	}
	d, err := time.ParseDuration(text)
	require.NoError(t, err, "KVM_TEST_TIMEOUT")
	return d
}

func waitTCP(t *testing.T, ctx context.Context, address string) {
	t.Helper()
	var d net.Dialer
	for {
		conn, err := d.DialContext(ctx, "tcp", address)
		if err == nil {
			_ = conn.Close()
			return
		}
		require.NoError(t, ctx.Err(), "%s: %v", address, err)
		time.Sleep(time.Second)
	}
}

func fetchUserData(t *testing.T, ctx context.Context, url string) string {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
	for {
		resp, err := client.Get(url)
		if err == nil {
			body, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			require.NoError(t, err)
			require.Equal(t, 200, resp.StatusCode)
			return string(body)
		}
		require.NoError(t, ctx.Err(), "%v", err)
		time.Sleep(time.Second)
	}
}

// labLogger prints one compact line for each entry, at the level that
// KVM_TEST_LOG_LEVEL names: "HH:MM:SS.mmm libvirt virDomainCreate domain=…".
func labLogger(t testing.TB) logr.Logger {
	t.Helper()
	level, err := strconv.Atoi(os.Getenv("KVM_TEST_LOG_LEVEL"))
	if err != nil {
		return logr.Discard()
	}
	return logr.New(&compactSink{level: level, mu: &sync.Mutex{}})
}

// compactSink is a logr.LogSink for people.
type compactSink struct {
	level  int
	name   string
	values []any
	mu     *sync.Mutex
}

func (s *compactSink) Init(logr.RuntimeInfo)  {}
func (s *compactSink) Enabled(level int) bool { return level <= s.level }

func (s *compactSink) WithName(name string) logr.LogSink {
	c := *s
	c.name = name
	return &c
}

func (s *compactSink) WithValues(kv ...any) logr.LogSink {
	c := *s
	c.values = append(slices.Clip(c.values), kv...)
	return &c
}

func (s *compactSink) Error(err error, msg string, kv ...any) {
	s.Info(0, msg, append(kv, "error", err)...)
}

func (s *compactSink) Info(_ int, msg string, kv ...any) {
	line := bytes.NewBufferString(time.Now().Format("15:04:05.000 ") + s.name)
	if len(kv) > 1 && kv[0] == "rpc" {
		msg, kv = fmt.Sprint(kv[1]), kv[2:]
	}
	fmt.Fprintf(line, " %s", msg)
	for i := 0; i+1 < len(kv); i += 2 {
		fmt.Fprintf(line, " %v=%v", kv[i], kv[i+1])
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintln(os.Stderr, line.String())
}

// TestLabMany makes and deletes several instances at the same time, so that
// libvirt reads its pool while others change it.
func TestLabMany(t *testing.T) {
	l := newLab(t)
	base := l.blank(t, "labmany", 1<<30+1<<20)
	parts := []string{base}
	var work sync.WaitGroup
	for i := range 6 {
		req := labRequest(fmt.Sprintf("lab-many-%d", i), "lab-tag-many")
		parts = append(parts, provider.Name(req.UID))
		work.Go(func() {
			for range 2 {
				id, err := l.Create(labContext(t), req)
				assert.NoError(t, err)
				_, err = l.Get(labContext(t), id)
				assert.NoError(t, err)
				assert.NoError(t, l.Delete(labContext(t), id))
			}
		})
	}
	work.Wait()
	list, err := l.ListByTag(labContext(t), labTag("lab-tag-many"))
	require.NoError(t, err)
	assert.Empty(t, list)
	assert.ElementsMatch(t, []string{base, base + ".ok"}, l.volumesOf(t, parts...))
}

// TestLabHostFallsSilent has everything between here and the host stop in the
// middle of a call: the caller returns in time, and once the silence is noticed
// a new connection serves.
func TestLabHostFallsSilent(t *testing.T) {
	proxy := newStallProxy(t, os.Getenv("KVM_TEST_HOST"))
	l := newLab(t, func(c *kvm.Config) {
		c.Hosts[0].Address = proxy.listener.Addr().String()
		c.InsecureIgnoreHostKey, c.KnownHostsFile = true, "" // the name is the proxy's
		c.Timeouts.Keepalive = provider.Duration(500 * time.Millisecond)
	})
	_, err := l.ListByTag(labContext(t), "lab-tag-silent")
	require.NoError(t, err)
	proxy.stalled.Store(true)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err = l.ListByTag(ctx, "lab-tag-silent")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	assert.Less(t, time.Since(deadlineOf(ctx)), time.Second)

	patient := make(chan error, 1)
	go func() {
		_, err := l.ListByTag(labContext(t), "lab-tag-silent")
		patient <- err
	}()
	time.Sleep(200 * time.Millisecond)
	proxy.heal()
	require.NoError(t, <-patient)
}

// stallProxy forwards TCP until it is told to stop.
type stallProxy struct {
	listener net.Listener
	stalled  atomic.Bool // connections of before are silent for ever

	mu    sync.Mutex
	conns []net.Conn
}

func newStallProxy(t *testing.T, target string) *stallProxy {
	t.Helper()
	if _, _, err := net.SplitHostPort(target); err != nil {
		t.Skip(labHint + ", the host by SSH")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &stallProxy{listener: l}
	var conns sync.WaitGroup
	t.Cleanup(func() { _ = l.Close(); conns.Wait() })
	conns.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", target)
			if err != nil {
				_ = in.Close()
				continue
			}
			p.mu.Lock()
			p.conns = append(p.conns, in, out)
			p.mu.Unlock()
			dead := &atomic.Bool{}
			conns.Go(func() { p.copy(out, in, dead) })
			conns.Go(func() { p.copy(in, out, dead) })
		}
	})
	return p
}

// cut ends all connections.
func (p *stallProxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		_ = c.Close()
	}
	p.conns = nil
}

// heal lets new connections through.
func (p *stallProxy) heal() { p.stalled.Store(false) }

func (p *stallProxy) copy(dst, src net.Conn, dead *atomic.Bool) {
	defer func() { _, _ = dst.Close(), src.Close() }()
	buf := make([]byte, 32<<10)
	for {
		n, err := src.Read(buf)
		if p.stalled.Load() {
			dead.Store(true)
		}
		if err != nil {
			return
		}
		if dead.Load() {
			continue
		}
		if _, err := dst.Write(buf[:n]); err != nil {
			return
		}
	}
}
