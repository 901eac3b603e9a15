package local

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/egressfleet/egress/internal/check"
	"github.com/egressfleet/egress/internal/connectproxy"
	"github.com/egressfleet/egress/provider"
)

// HostConfig says how a [Host] behaves. The zero value boots at once and has
// room for any number.
type HostConfig struct {
	// Name is the host's in provider IDs and the only zone; "local" if empty.
	Name string
	// Listen is the IP address that proxies listen on; 127.0.0.1 if zero. It
	// must be a loopback address.
	Listen netip.Addr
	// BootDelay is the time from Create to Running.
	BootDelay time.Duration
	// DeleteDelay is the time from Delete until the instance is gone.
	DeleteDelay time.Duration
	// Capacity is how many instances fit; more are ErrQuotaExceeded. Zero means
	// no limit.
	Capacity int
	// Resolve maps "host:port" or "host" to what the proxies dial instead.
	Resolve map[string]string
	// WithoutProxies starts none: instances run and have an address, but nothing
	// listens. It is for tests under testing/synctest, where no socket may wait.
	WithoutProxies bool
}

// Host holds instances. It is safe for concurrent use.
type Host struct {
	cfg HostConfig

	mu        sync.Mutex
	instances map[string]*instance
	onCall    func(ctx context.Context, op string) error
}

// instance is one proxy and what is known of it.
type instance struct {
	provider.Instance
	deleting bool
	boot     *time.Timer
	removal  *time.Timer
	proxy    *connectproxy.Proxy
	proxyCfg connectproxy.Config
	fault    connectproxy.Fault
}

var ids = provider.IDFormat{Scopes: "hosts", Kinds: "proxies"}

// NewHost returns an empty host. The error lists all that is wrong with cfg.
func NewHost(cfg HostConfig) (*Host, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("local.HostConfig: %w", err)
	}
	return &Host{cfg: cfg, instances: map[string]*instance{}}, nil
}

func (c HostConfig) withDefaults() (HostConfig, error) {
	c.Name = cmp.Or(c.Name, "local")
	c.Listen = cmp.Or(c.Listen, netip.MustParseAddr("127.0.0.1"))
	c.Resolve = maps.Clone(c.Resolve)
	var problems check.Problems
	problems.Within("name", provider.ValidIDPart(c.Name))
	if !c.Listen.IsLoopback() {
		problems.Add("listen", c.Listen, "must be a loopback address: the proxies are not hardened")
	}
	if c.Capacity < 0 {
		problems.Add("capacity", c.Capacity, "must not be negative")
	}
	for path, delay := range map[string]time.Duration{"bootDelay": c.BootDelay, "deleteDelay": c.DeleteDelay} {
		if delay < 0 {
			problems.Add(path, delay, "must not be negative")
		}
	}
	return c, problems.Err()
}

// Close ends all instances.
func (h *Host) Close() {
	for _, in := range h.takeAll() {
		in.end()
	}
}

func (h *Host) takeAll() []*instance {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := slices.Collect(maps.Values(h.instances))
	clear(h.instances)
	return all
}

// OnCall sets a function that every call of a provider on this host runs first,
// with the name of the method. It may wait, as long as ctx lives, and its error
// becomes the call's. Nil, the default, does neither.
func (h *Host) OnCall(f func(ctx context.Context, op string) error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.onCall = f
}

func (h *Host) called(ctx context.Context, op string) error {
	h.mu.Lock()
	f := h.onCall
	h.mu.Unlock()
	if f == nil {
		return ctx.Err()
	}
	if err := f(ctx, op); err != nil {
		return err
	}
	return ctx.Err()
}

// Fault is a way in which an instance goes wrong.
type Fault string

// The faults.
const (
	// Sound ends those of the proxy that can end: Hang, Refuse and Impostor.
	Sound Fault = "sound"
	// Stop powers the instance off: its state is Stopped.
	Stop Fault = "stop"
	// Crash ends it as a guest that crashed: its state is Failed.
	Crash Fault = "crash"
	// Vanish removes it as an administrator would: it is not found.
	Vanish Fault = "vanish"
	// ProxyDown ends the proxy alone: the instance runs, nothing listens.
	ProxyDown Fault = "proxy-down"
	// Hang lets the proxy take requests and never answer.
	Hang Fault = "hang"
	// Refuse answers CONNECT with 503.
	Refuse Fault = "refuse"
	// Impostor answers in the target's place.
	Impostor Fault = "impostor"
)

// Inject makes the instance go wrong. It returns ErrNotFound if there is none
// of that ID.
func (h *Host) Inject(id string, f Fault) error {
	h.mu.Lock()
	in, err := h.findLocked(id)
	if err != nil {
		h.mu.Unlock()
		return err
	}
	stopped := in.injectLocked(f)
	if f == Vanish {
		delete(h.instances, in.Name)
	}
	h.mu.Unlock()
	if stopped != nil {
		stopped.Close()
	}
	return nil
}

// injectLocked returns the proxy that the fault ends, if it does.
func (in *instance) injectLocked(f Fault) *connectproxy.Proxy {
	switch f {
	case Stop:
		in.State, in.Reason = provider.StateStopped, "powered off"
	case Crash:
		in.State, in.Reason = provider.StateFailed, "the guest crashed"
	case Vanish, ProxyDown:
	default:
		in.misbehaveLocked(f)
		return nil
	}
	if in.boot != nil && f != ProxyDown {
		in.boot.Stop()
	}
	stopped := in.proxy
	in.proxy = nil
	return stopped
}

func (in *instance) misbehaveLocked(f Fault) {
	switch f {
	case Hang:
		in.fault = connectproxy.Fault{Kind: connectproxy.Hang}
	case Refuse:
		in.fault = connectproxy.Fault{Kind: connectproxy.Refuse, Status: 503}
	case Impostor:
		in.fault = connectproxy.Fault{Kind: connectproxy.Captive}
	default:
		in.fault = connectproxy.Fault{}
	}
	if in.proxy != nil {
		in.proxy.SetFault(in.fault)
	}
}

// Origin returns the ID of the instance whose proxy opened the connection that
// a target sees as coming from remote. On loopback all proxies share one IP
// address: this is how a target on the same machine tells them apart.
func (h *Host) Origin(remote netip.AddrPort) (id string, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, in := range h.instances {
		if in.proxy != nil && in.proxy.Opened(remote) {
			return in.ID, true
		}
	}
	return "", false
}

// findLocked returns the instance of an ID on this host.
func (h *Host) findLocked(id string) (*instance, error) {
	name, err := h.parse(id)
	if err != nil {
		return nil, err
	}
	in, ok := h.instances[name]
	if !ok {
		return nil, &provider.Error{Class: provider.ErrNotFound, ID: id}
	}
	return in, nil
}

func (h *Host) parse(id string) (name string, err error) {
	scope, name, err := ids.Parse(id)
	if err != nil {
		return "", err
	}
	if scope != h.cfg.Name {
		return "", &provider.Error{
			Class: provider.ErrPermanent, ID: id, Code: provider.CodeUnconfigured, Scope: scope,
			Err: fmt.Errorf("this provider has only the host %q", h.cfg.Name),
		}
	}
	return name, nil
}

// create makes the instance, or finds the one that the same request made.
func (h *Host) create(req provider.CreateRequest, id string, proxyCfg connectproxy.Config) error {
	name := provider.Name(req.UID)
	h.mu.Lock()
	defer h.mu.Unlock()
	if in, ok := h.instances[name]; ok {
		return in.sameLocked(req)
	}
	if h.cfg.Capacity > 0 && len(h.instances) >= h.cfg.Capacity {
		return &provider.Error{
			Class: provider.ErrQuotaExceeded, ID: id, Scope: h.cfg.Name,
			Err: fmt.Errorf("%d of %d instances are in use", len(h.instances), h.cfg.Capacity),
		}
	}
	in := &instance{
		Instance: provider.Instance{
			ID: id, Name: name, UID: req.UID, Tag: req.Tag, State: provider.StateProvisioning,
			CreatedAt: time.Now(), Metadata: maps.Clone(req.Metadata),
		},
		proxyCfg: proxyCfg,
	}
	in.proxyCfg.Listen = netip.AddrPortFrom(h.cfg.Listen, 0).String()
	in.proxyCfg.Resolve = h.cfg.Resolve
	h.instances[name] = in
	if h.cfg.BootDelay <= 0 {
		h.bootLocked(in)
		return nil
	}
	in.boot = time.AfterFunc(h.cfg.BootDelay, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.instances[name] == in {
			h.bootLocked(in)
		}
	})
	return nil
}

func (in *instance) sameLocked(req provider.CreateRequest) error {
	switch {
	case in.Tag != req.Tag || in.UID != req.UID:
		return &provider.Error{
			Class: provider.ErrPermanent, ID: in.ID, Code: provider.CodeCollision,
			Err: errors.New("the name is held by another tag or UID"),
		}
	case in.deleting:
		return &provider.Error{
			Class: provider.ErrTransient, ID: in.ID,
			Err: errors.New("an instance of that name is still being deleted"),
		}
	}
	return nil
}

func (h *Host) bootLocked(in *instance) {
	if in.State != provider.StateProvisioning {
		return
	}
	if !h.cfg.WithoutProxies {
		proxy, err := connectproxy.Start(in.proxyCfg)
		if err != nil {
			in.State, in.Reason = provider.StateFailed, err.Error()
			return
		}
		proxy.SetFault(in.fault)
		in.proxy = proxy
	}
	in.State = provider.StateRunning
	in.Addresses = []provider.Address{{Type: provider.AddressInternal, Addr: h.cfg.Listen}}
}

// remove deletes the instance, at once or after the delay.
func (h *Host) remove(name string) {
	h.mu.Lock()
	in, ok := h.instances[name]
	if !ok || in.deleting {
		h.mu.Unlock()
		return
	}
	in.deleting = true
	if h.cfg.DeleteDelay > 0 {
		in.State = provider.StateStopping
		in.removal = time.AfterFunc(h.cfg.DeleteDelay, func() { h.drop(name, in) })
		h.mu.Unlock()
		return
	}
	h.mu.Unlock()
	h.drop(name, in)
}

func (h *Host) drop(name string, in *instance) {
	h.mu.Lock()
	if h.instances[name] == in {
		delete(h.instances, name)
	}
	h.mu.Unlock()
	in.end()
}

// end stops what runs for an instance that no map holds any more.
func (in *instance) end() {
	if in.boot != nil {
		in.boot.Stop()
	}
	if in.removal != nil {
		in.removal.Stop()
	}
	if in.proxy != nil {
		in.proxy.Close()
	}
}

func (in *instance) snapshotLocked() provider.Instance {
	out := in.Instance
	out.Addresses = slices.Clone(in.Addresses)
	out.Metadata = maps.Clone(in.Metadata)
	return out
}

// port is the one that the instance's proxy listens on, or zero.
func (h *Host) port(id string) (uint16, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	in, err := h.findLocked(id)
	if err != nil || in.proxy == nil {
		return 0, err
	}
	return in.proxy.Addr().Port(), nil
}
