package kvm

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"

	"github.com/egressfleet/egress/internal/lifetime"
	"github.com/egressfleet/egress/provider"
)

// ids is the form of our IDs.
var ids = provider.IDFormat{Scopes: "hosts", Kinds: "domains"}

// Provider makes instances on the configured hosts. It implements
// [provider.Provider]. All methods are safe for concurrent use.
type Provider struct {
	cfg   Config
	log   logr.Logger
	hosts map[string]*host
	// order has the hosts as they are configured.
	order []*host
	// jumps are the SSH servers that hosts are reached through.
	jumps []*sshHop
	names nameLocks
	// checksums are what checksums files said.
	checksums checksumCache
	// ownHTTP fetches the images unless the configuration has its own.
	ownHTTP *http.Client
	life    *lifetime.Lifetime
}

var _ provider.Provider = (*Provider)(nil)

// host is one hypervisor with what is known of it.
type host struct {
	Host
	*hostConn
	log    logr.Logger
	facts  factsCache
	images imageFetches
	seen   recordCache
	static staticPool
	chosen choices
}

// New checks the configuration and returns a provider, without connecting to
// any host. SSH material that is missing or broken is no error: it is logged,
// and read again when it is needed.
//
// The caller must Close the provider.
func New(cfg Config) (*Provider, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("kvm: %w", err)
	}
	cfg = cfg.withDefaults()
	p := &Provider{
		cfg: cfg, hosts: map[string]*host{}, log: scoped(cfg.Logger, cfg.Name),
		ownHTTP: &http.Client{Transport: http.DefaultTransport.(*http.Transport).Clone()},
	}
	if cfg.HTTPClient == nil {
		p.cfg.HTTPClient = p.ownHTTP
	}
	p.life = lifetime.New(errClosed)
	keys := newSSHKeys(cfg, cfg.hops())
	for _, h := range cfg.Hosts {
		p.addHost(h, keys)
	}
	p.warn(keys)
	return p, nil
}

// hops are all SSH servers.
func (c Config) hops() (all []hop) {
	for _, h := range c.Hosts {
		if h.local() {
			continue
		}
		all = append(all, c.target(h))
		if jump, ok := c.jump(h); ok {
			all = append(all, jump)
		}
	}
	return all
}

func scoped(log logr.Logger, name string) logr.Logger {
	return log.WithName("kvm").WithValues("provider", name)
}

func (p *Provider) addHost(cfg Host, keys *sshKeys) {
	log := p.log.WithValues("host", cfg.Name)
	var t transport = localTransport{cfg}
	if !cfg.local() {
		t = sshTransport{newSSHHop(p.life.Context(), p.cfg.target(cfg), p.jumpFor(cfg, keys), keys, p.cfg.Timeouts, log), cfg}
	}
	h := &host{Host: cfg, log: log, hostConn: newHostConn(p.life.Context(), cfg.Name, t, p.cfg.Timeouts, p.cfg.Trace, log)}
	h.static, _ = cfg.staticPool() // Validate has seen that it is good
	p.hosts[cfg.Name] = h
	p.order = append(p.order, h)
}

// jumpFor returns the host's jump, which may be that of another host too; nil for
// none.
func (p *Provider) jumpFor(cfg Host, keys *sshKeys) *sshHop {
	want, ok := p.cfg.jump(cfg)
	if !ok {
		return nil
	}
	for _, j := range p.jumps {
		if j.hop == want {
			return j
		}
	}
	j := newSSHHop(p.life.Context(), want, nil, keys, p.cfg.Timeouts, p.log)
	p.jumps = append(p.jumps, j)
	return j
}

func (p *Provider) warn(keys *sshKeys) {
	if !slices.ContainsFunc(p.order, func(h *host) bool { return !h.local() }) {
		return
	}
	if err := keys.check(); err != nil {
		p.log.Info("kvm ssh material is not usable; proxies on this provider will fail until it is", "error", err.Error())
	}
	if slices.ContainsFunc(p.cfg.hops(), func(h hop) bool { return h.knownHosts == "" }) {
		p.log.Info("kvm host keys are not checked: whoever answers in place of a host gets the user-data")
	}
}

// Close ends the connections and waits for what runs, which fails with
// context.Canceled. Calls after it fail. It may be called more than once.
func (p *Provider) Close() error {
	p.life.Close()
	for _, j := range p.jumps {
		j.close() // before what goes through them, which could wait for them
	}
	for _, h := range p.order {
		h.images.wait()
		h.close()
	}
	p.ownHTTP.CloseIdleConnections()
	return nil
}

var errClosed = errors.New("the provider is closed")

// operation is one call of a method of the contract, once its place is known.
type operation struct {
	p     *Provider
	info  OperationInfo
	host  *host
	name  string
	log   logr.Logger
	start time.Time
}

// client is the way to the operation's host.
func (o *operation) client() client { return o.host.controlClient() }

// operate runs f as one operation on the instance with that name: logged,
// traced, and with the error of the contract.
func (p *Provider) operate(ctx context.Context, op string, h *host, name string, f func(context.Context, *operation) error) error {
	id := ids.Format(h.Name, name)
	ctx, leave, err := p.life.Enter(ctx)
	if err != nil {
		return p.failure(op, id, h.Name, err)
	}
	defer leave()
	o := &operation{p: p, host: h, name: name, start: time.Now(), info: OperationInfo{Op: op, Provider: p.cfg.Name, ID: id}}
	ctx = p.withLogger(ctx, h, name)
	o.log = logr.FromContextOrDiscard(ctx)
	ctx, end := p.cfg.Trace.operation(ctx, o.info)
	err = p.failure(op, id, h.Name, f(ctx, o))
	end(err)
	return err
}

// withLogger puts the logger of an operation into its context. The caller's own
// logger there is preferred to the provider's.
func (p *Provider) withLogger(ctx context.Context, h *host, name string) context.Context {
	log := p.log
	if own, err := logr.FromContext(ctx); err == nil {
		log = scoped(own, p.cfg.Name)
	}
	log = log.WithValues("host", h.Name)
	if name != "" {
		log = log.WithValues("name", name)
	}
	return logr.NewContext(ctx, log)
}

// exclusively runs f while no other call works on that name. What f abandoned
// has ended, or its connection is given up, before the next one's turn.
func (p *Provider) exclusively(ctx context.Context, h *host, name string, f func(context.Context) error) error {
	unlock, err := p.names.lock(ctx, h.Name+"/"+name)
	if err != nil {
		return err
	}
	ctx, left := withLeftovers(ctx)
	err = f(ctx)
	if ctx.Err() == nil {
		unlock()
		return err
	}
	h.running.Go(func() {
		left.Wait()
		unlock()
	})
	return err
}

// find takes an ID apart.
func (p *Provider) find(op, id string) (*host, string, error) {
	hostName, name, err := ids.Parse(id)
	if err != nil {
		return nil, "", p.failure(op, id, "", err)
	}
	h := p.hosts[hostName]
	if h == nil {
		return nil, "", p.failure(op, id, "", &provider.Error{
			Class: provider.ErrPermanent, Code: provider.CodeUnconfigured,
			Err: fmt.Errorf("host %q is not configured, there are %s", hostName, strings.Join(p.hostNames(), ", ")),
		})
	}
	return h, name, nil
}

func (p *Provider) hostNames() []string {
	names := make([]string, 0, len(p.order))
	for _, h := range p.order {
		names = append(names, h.Name)
	}
	return names
}
