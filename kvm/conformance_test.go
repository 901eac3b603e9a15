package kvm_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/digitalocean/go-libvirt"
	"github.com/go-logr/logr/funcr"
	"github.com/kdomanski/iso9660"

	"github.com/egressfleet/egress/internal/fakelibvirt"
	"github.com/egressfleet/egress/kvm"
	"github.com/egressfleet/egress/provider"
	"github.com/egressfleet/egress/provider/providertest"
)

func TestConformance(t *testing.T) {
	providertest.Run(t, newMoodyRig(t).harness(t))
}

// moodyRig is a rig of two hosts, of which kvm1 misbehaves on demand. Guests get
// an address as they start.
type moodyRig struct {
	*rig

	mu           sync.Mutex
	held         chan struct{} // closed to go on; nil where nothing hangs
	broken, full bool
	log          bytes.Buffer
}

func newMoodyRig(t *testing.T) *moodyRig {
	t.Helper()
	m := &moodyRig{}
	m.rig = newRig(t, func(c *kvm.Config) {
		c.Hosts = append(c.Hosts, kvm.Host{Name: "kvm2", Address: "local", Bridge: "br0"})
		c.VendorData = "#cloud-config\nvendor_password: hunter2-of-the-vendor\n"
		c.Logger = funcr.New(m.keep, funcr.Options{Verbosity: 2})
	})
	for name, h := range m.hosts {
		h.Before = func(c fakelibvirt.Call) error {
			// Before, so that a call which is cut after its effect counts too.
			if _, defined := h.Domain(c.Object); defined && c.RPC == "virDomainCreate" {
				h.SetAddresses(c.Object, libvirt.DomainInterfaceAddressesSrcAgent, libvirt.DomainInterface{
					Addrs: []libvirt.DomainIPAddr{{Addr: "10.0.0.5"}},
				})
			}
			if name == "kvm1" {
				return m.before(c)
			}
			return nil
		}
	}
	return m
}

func (m *moodyRig) keep(prefix, args string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	fmt.Fprintln(&m.log, prefix, args)
}

func (m *moodyRig) logs() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.log.String()
}

func (m *moodyRig) before(c fakelibvirt.Call) error {
	m.mu.Lock()
	held, broken, full := m.held, m.broken, m.full
	m.mu.Unlock()
	switch {
	case held != nil:
		<-held
	case broken:
		return fakelibvirt.ErrCut
	case full && c.RPC == "virStorageVolCreateXML":
		return fakelibvirt.Errorf(libvirt.ErrSystemError, "cannot write: No space left on device")
	}
	return nil
}

// set makes a switch true until the function it returns is called.
func (m *moodyRig) set(value *bool) (unset func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	*value = true
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		*value = false
	}
}

func (m *moodyRig) hang() (func(), error) {
	held := make(chan struct{})
	m.mu.Lock()
	m.held = held
	m.mu.Unlock()
	return func() {
		m.mu.Lock()
		m.held = nil
		m.mu.Unlock()
		close(held)
	}, nil
}

func (m *moodyRig) harness(t *testing.T) providertest.Harness {
	t.Helper()
	on := func(host string) func(uid, tag string) provider.CreateRequest {
		return func(uid, tag string) provider.CreateRequest {
			req := request(uid)
			req.Tag, req.Placement.Zone = tag, host
			return req
		}
	}
	state := func(s libvirt.DomainState, reason int32) func(context.Context, string) error {
		return func(_ context.Context, id string) error {
			m.host().SetState(nameOf(id), s, reason)
			return nil
		}
	}
	return providertest.Harness{
		New:     func() (provider.Provider, error) { return m.again(t), nil },
		Request: on("kvm1"), Second: on("kvm2"),
		Unconfigured: "hosts/kvm9/domains/" + provider.Name("x"),
		Timeout:      10 * time.Second, Interval: 5 * time.Millisecond, Settle: 300 * time.Millisecond,
		Stop:        state(libvirt.DomainShutoff, int32(libvirt.DomainShutoffDestroyed)),
		Crash:       state(libvirt.DomainCrashed, 0),
		Vanish:      func(_ context.Context, id string) error { return m.undefine(nameOf(id)) },
		Break:       func() (func(), error) { return m.set(&m.broken), nil },
		Exhaust:     func(context.Context) (func(), error) { return m.set(&m.full), nil },
		Hang:        m.hang,
		Foreign:     m.foreign(func(provider.CreateRequest) string { return "" }),
		OtherUID:    m.foreign(func(req provider.CreateRequest) string { return metadata(t, req.Tag, "another-uid") }),
		Leftovers:   m.leftovers,
		HasUserData: m.hasUserData,
		Logs:        m.logs,
		Secrets:     []string{"hunter2-of-the-vendor"},
	}
}

func nameOf(id string) string { return id[strings.LastIndex(id, "/")+1:] }

// undefine removes a domain as "virsh undefine" does.
func (m *moodyRig) undefine(name string) error {
	conn := m.host().Connect()
	dom, err := conn.DomainLookupByName(name)
	if err != nil {
		return err
	}
	_ = conn.DomainDestroyFlags(dom, 0)
	return conn.DomainUndefineFlags(dom, libvirt.DomainUndefineNvram)
}

func (m *moodyRig) foreign(metadata func(provider.CreateRequest) string) func(context.Context, provider.CreateRequest) (providertest.Stranger, error) {
	return func(_ context.Context, req provider.CreateRequest) (providertest.Stranger, error) {
		name := provider.Name(req.UID)
		err := m.host().Define("<domain type='qemu'><name>" + name + "</name><os><type>hvm</type></os>" + metadata(req) + "</domain>")
		before, _ := m.host().Domain(name)
		return providertest.Stranger{
			ID: "hosts/kvm1/domains/" + name,
			Unchanged: func(context.Context) (bool, error) {
				after, ok := m.host().Domain(name)
				return ok && after.UUID == before.UUID && after.State == before.State, nil
			},
			Remove: func(context.Context) error { return m.undefine(name) },
		}, err
	}
}

// leftovers are domains and volumes, but for the base images.
func (m *moodyRig) leftovers(context.Context) (all []string, err error) {
	for _, h := range m.hosts {
		all = append(all, h.DomainNames()...)
		for _, v := range h.Volumes("default") {
			if !strings.HasPrefix(v, "base-") {
				all = append(all, v)
			}
		}
	}
	return all, nil
}

// hasUserData reads the seed that the guest had at its start.
func (m *moodyRig) hasUserData(_ context.Context, id string, want []byte) (bool, error) {
	d, _ := m.host().Domain(nameOf(id))
	image, err := iso9660.OpenImage(bytes.NewReader(d.Seed))
	if err != nil {
		return false, err
	}
	root, err := image.RootDir()
	if err != nil {
		return false, err
	}
	files, err := root.GetChildren()
	for _, f := range files {
		if f.Name() == "user-data" {
			got, err := io.ReadAll(f.Reader())
			return bytes.Equal(got, want), err
		}
	}
	return false, err
}

// TestLabConformance is the suite on a real hypervisor, with blank disks. The
// wire between here and there hangs on demand where it is SSH.
func TestLabConformance(t *testing.T) {
	l := newLab(t, func(c *kvm.Config) {
		c.Timeouts.Keepalive = provider.Duration(500 * time.Millisecond)
		c.Timeouts.Dial = provider.Duration(5 * time.Second)
	})
	l.blank(t, "labconf", 1<<30+1<<20)
	h := l.harness(t)
	if host := os.Getenv("KVM_TEST_HOST"); host != "local" {
		proxy := newStallProxy(t, host)
		h.New = func() (provider.Provider, error) {
			cfg := l.cfg
			cfg.Hosts = slices.Clone(cfg.Hosts)
			cfg.Hosts[0].Address = proxy.listener.Addr().String()
			cfg.InsecureIgnoreHostKey, cfg.KnownHostsFile = true, "" // the name is the proxy's
			return kvm.New(cfg)
		}
		h.Hang = func() (func(), error) {
			proxy.stalled.Store(true)
			return proxy.heal, nil
		}
	}
	providertest.Run(t, h)
}

func (l *lab) harness(t *testing.T) providertest.Harness {
	t.Helper()
	var names []string // of this run
	return providertest.Harness{
		New: func() (provider.Provider, error) { return kvm.New(l.cfg) },
		Request: func(uid, tag string) provider.CreateRequest {
			names = append(names, provider.Name(uid))
			req := request(uid)
			req.Tag, req.Placement.MachineType = tag, "blank"
			return req
		},
		NoBoot: true, Timeout: 2 * time.Minute, Interval: 200 * time.Millisecond, Settle: 2 * time.Second, Concurrency: 4,
		Unconfigured: "hosts/elsewhere/domains/" + provider.Name("x"),
		Leftovers: func(ctx context.Context) ([]string, error) {
			all, err := kvm.PoolVolumes(ctx, l.Provider, "lab")
			return slices.DeleteFunc(all, func(v string) bool {
				return !slices.ContainsFunc(names, func(name string) bool { return strings.HasPrefix(v, name) })
			}), err
		},
	}
}
