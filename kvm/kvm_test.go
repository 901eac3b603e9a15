package kvm_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/egressfleet/egress/internal/fakelibvirt"
	"github.com/egressfleet/egress/kvm"
	"github.com/egressfleet/egress/provider"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// imageServer serves one image and counts the requests.
type imageServer struct {
	*httptest.Server
	requests atomic.Int32
	handler  atomic.Pointer[http.HandlerFunc]
}

var blankImage = fakelibvirt.BlankQCOW2(3 << 30)

func digestOf(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

func newImageServer(t testing.TB) *imageServer {
	t.Helper()
	s := &imageServer{}
	s.serve(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(blankImage) })
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.requests.Add(1)
		(*s.handler.Load())(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *imageServer) serve(h http.HandlerFunc) { s.handler.Store(&h) }

// bench is a provider with one or more fake hosts.
type rig struct {
	*kvm.Provider
	cfg   kvm.Config
	image *imageServer
	hosts map[string]*fakelibvirt.Host
}

// newRig has the host "kvm1". amend may change the configuration.
func newRig(t testing.TB, amend ...func(*kvm.Config)) *rig {
	t.Helper()
	r := &rig{image: newImageServer(t), hosts: map[string]*fakelibvirt.Host{}}
	r.cfg = kvm.Config{
		Hosts:        []kvm.Host{{Name: "kvm1", Address: "local", Bridge: "br0"}},
		MachineTypes: map[string]kvm.MachineType{"small": {VCPUs: 1, MemoryMiB: 256}},
		Images:       map[string]kvm.Image{"debian": {URL: r.image.URL + "/debian.qcow2", SHA256: digestOf(blankImage)}},
		Timeouts: kvm.Timeouts{
			Grace: provider.Duration(100 * time.Millisecond), Stall: provider.Duration(10 * time.Second),
			ImageTakeover: provider.Duration(11 * time.Second), Address: provider.Duration(100 * time.Millisecond),
		},
	}
	for _, f := range amend {
		f(&r.cfg)
	}
	for _, h := range r.cfg.Hosts {
		r.hosts[h.Name] = fakelibvirt.New()
	}
	r.Provider = r.again(t)
	return r
}

// again is another provider on the same hosts, as after a restart.
func (r *rig) again(t testing.TB) *kvm.Provider {
	t.Helper()
	p, err := kvm.New(r.cfg)
	require.NoError(t, err)
	for name, h := range r.hosts {
		kvm.UseFake(p, name, h)
	}
	t.Cleanup(func() { assert.NoError(t, p.Close()) })
	return p
}

func (r *rig) host() *fakelibvirt.Host { return r.hosts["kvm1"] }

// request asks for an instance of tag-a.
func request(uid string) provider.CreateRequest {
	return provider.CreateRequest{
		UID: uid, Tag: "tag-a", UserData: provider.UserData("#cloud-config\n# secret-" + uid + "\n"),
		Metadata: map[string]string{"spec-hash": "abc", "odd-text": " <&> \n\x01 ü "},
	}
}

func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// mustCreate creates and checks that the instance is whole.
func mustCreate(t testing.TB, r *rig, p *kvm.Provider, req provider.CreateRequest) string {
	t.Helper()
	id, err := p.Create(testContext(t), req)
	require.NoError(t, err)
	requireWhole(t, r, req)
	return id
}

// requireWhole checks what the host has: the domain runs on its files, and the
// seed that its guest read holds all of the user-data.
func requireWhole(t testing.TB, r *rig, req provider.CreateRequest) {
	t.Helper()
	name := provider.Name(req.UID)
	d, ok := r.host().Domain(name)
	require.True(t, ok)
	require.EqualValues(t, 1, d.State, "it runs")
	require.True(t, d.Autostart)
	require.Contains(t, string(d.Seed), string(req.UserData))
	require.Contains(t, r.host().Volumes("default"), name+".qcow2")
	require.Contains(t, r.host().Volumes("default"), name+"-seed.iso")
}

// requireOnlyBase checks that nothing of any instance is left.
func requireOnlyBase(t testing.TB, r *rig) {
	t.Helper()
	require.Empty(t, r.host().DomainNames())
	base := "base-debian-" + digestOf(blankImage)[:16] + ".qcow2"
	require.Equal(t, []string{base, base + ".ok"}, r.host().Volumes("default"))
	require.Equal(t, blankImage, r.host().Content("default", base))
}
