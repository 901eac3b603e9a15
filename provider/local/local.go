package local

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/internal/check"
	"github.com/egressfleet/egress/internal/connectproxy"
	"github.com/egressfleet/egress/provider"
)

// Config says how a [Provider] works. The zero value is useful: open proxies on
// a host of its own.
type Config struct {
	// Name is the provider's in errors; "local" if empty. A registry sets it.
	Name string `json:"-"`
	// Host is where the instances live. If nil, the provider has one of its own,
	// made by the fields below, which then must be left out otherwise.
	Host *Host `json:"-"`
	// Credentials, if set, gives each instance's user name and password by its
	// UID, instead of Username and Password.
	Credentials func(uid string) (username, password string) `json:"-"`

	// Username and Password are demanded by every proxy; none if both are empty.
	Username string `json:"username,omitempty"`
	Password string `json:"password,omitempty"`

	// BootDelay, Capacity and Resolve are those of [HostConfig].
	BootDelay provider.Duration `json:"bootDelay,omitempty"`
	Capacity  int               `json:"capacity,omitempty"`
	Resolve   map[string]string `json:"resolve,omitempty"`
}

// Validate reports all that is wrong, joined.
func (c Config) Validate() error {
	var problems check.Problems
	if c.Host != nil && (c.BootDelay != 0 || c.Capacity != 0 || c.Resolve != nil) {
		problems.Missing("host", "leave out bootDelay, capacity and resolve: the given host has its own")
	}
	if c.Host == nil {
		_, err := c.hostConfig().withDefaults()
		problems.Within("", err)
	}
	_, err := endpoint.NewURL("http", "127.0.0.1:1", c.Username, c.Password)
	problems.Within("username", err)
	return problems.Err()
}

// hostConfig is that of the provider's own host.
func (c Config) hostConfig() HostConfig {
	return HostConfig{BootDelay: c.BootDelay.Or(0), Capacity: c.Capacity, Resolve: c.Resolve}
}

// Provider implements [provider.Provider]. Placement.Zone may name the host;
// the other parts of a placement, and user-data, mean nothing here.
type Provider struct {
	cfg  Config
	host *Host
	own  bool
}

var _ provider.Provider = (*Provider)(nil)

// New returns a provider. The error lists all that is wrong with cfg.
func New(cfg Config) (*Provider, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("local.Config: %w", err)
	}
	cfg.Name = cmp.Or(cfg.Name, "local")
	if cfg.Host != nil {
		return &Provider{cfg: cfg, host: cfg.Host}, nil
	}
	host, err := NewHost(cfg.hostConfig())
	if err != nil {
		return nil, err
	}
	return &Provider{cfg: cfg, host: host, own: true}, nil
}

// Close ends the instances if the host is the provider's own. A given host goes
// on, as a hypervisor does without its clients.
func (p *Provider) Close() error {
	if p.own {
		p.host.Close()
	}
	return nil
}

// Create implements [provider.Provider].
func (p *Provider) Create(ctx context.Context, req provider.CreateRequest) (string, error) {
	if err := req.Validate(); err != nil {
		return "", p.wrap("Create", &provider.Error{
			Class: provider.ErrPermanent, Code: provider.CodeInvalidRequest, Err: err,
		})
	}
	if zone := req.Placement.Zone; zone != "" && zone != p.host.cfg.Name {
		return "", p.wrap("Create", &provider.Error{
			Class: provider.ErrPermanent, Code: provider.CodeInvalidRequest, Scope: zone,
			Err: fmt.Errorf("placement.zone: %q: must be %q or empty", zone, p.host.cfg.Name),
		})
	}
	id := ids.Format(p.host.cfg.Name, provider.Name(req.UID))
	if err := p.host.called(ctx, "Create"); err != nil {
		return id, p.wrap("Create", err)
	}
	var cfg connectproxy.Config
	cfg.Username, cfg.Password = p.credentials(req.UID)
	return id, p.wrap("Create", p.host.create(req, id, cfg))
}

// Get implements [provider.Provider].
func (p *Provider) Get(ctx context.Context, id string) (provider.Instance, error) {
	if err := p.host.called(ctx, "Get"); err != nil {
		return provider.Instance{}, p.wrap("Get", err)
	}
	p.host.mu.Lock()
	defer p.host.mu.Unlock()
	in, err := p.host.findLocked(id)
	if err != nil {
		return provider.Instance{}, p.wrap("Get", err)
	}
	return in.snapshotLocked(), nil
}

// Delete implements [provider.Provider].
func (p *Provider) Delete(ctx context.Context, id string) error {
	if err := p.host.called(ctx, "Delete"); err != nil {
		return p.wrap("Delete", err)
	}
	name, err := p.host.parse(id)
	if err != nil {
		return p.wrap("Delete", err)
	}
	p.host.remove(name)
	return nil
}

// ListByTag implements [provider.Provider].
func (p *Provider) ListByTag(ctx context.Context, tag string) ([]provider.Instance, error) {
	if err := p.host.called(ctx, "ListByTag"); err != nil {
		return nil, p.wrap("ListByTag", err)
	}
	if err := provider.ValidTag(tag); err != nil {
		return nil, p.wrap("ListByTag", &provider.Error{
			Class: provider.ErrPermanent, Code: provider.CodeInvalidRequest, Err: err,
		})
	}
	p.host.mu.Lock()
	defer p.host.mu.Unlock()
	var all []provider.Instance
	for _, in := range p.host.instances {
		if in.Tag == tag {
			all = append(all, in.snapshotLocked())
		}
	}
	slices.SortFunc(all, func(a, b provider.Instance) int { return cmp.Compare(a.Name, b.Name) })
	return all, nil
}

// errNoPort says that the proxy of an instance does not run (any more).
var errNoPort = errors.New("the instance has no proxy running")

// Endpoint returns the endpoint of a running instance, with its port and
// credentials. It has the form of a fleet's hook.
func (p *Provider) Endpoint(uid string, in provider.Instance) (endpoint.Endpoint, error) {
	port, err := p.host.port(in.ID)
	if err == nil && port == 0 {
		err = errNoPort
	}
	if err != nil && !p.host.cfg.WithoutProxies {
		return endpoint.Endpoint{}, p.wrap("Endpoint", err)
	}
	hostport := netip.AddrPortFrom(in.Address(), max(port, 1)).String()
	username, password := p.credentials(uid)
	url, err := endpoint.NewURL("http", hostport, username, password)
	if err != nil {
		return endpoint.Endpoint{}, p.wrap("Endpoint", err)
	}
	return endpoint.Endpoint{
		ID: in.Name, URL: url,
		Attributes: map[string]string{"provider": p.cfg.Name},
	}, nil
}

func (p *Provider) credentials(uid string) (username, password string) {
	if p.cfg.Credentials != nil {
		return p.cfg.Credentials(uid)
	}
	return p.cfg.Username, p.cfg.Password
}

// wrap gives an error its operation and provider, and a class where it has none.
func (p *Provider) wrap(op string, err error) error {
	var known *provider.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &known):
		named := *known
		named.Op, named.Provider = op, p.cfg.Name
		return &named
	}
	return &provider.Error{Class: provider.ErrTransient, Op: op, Provider: p.cfg.Name, Err: err}
}
