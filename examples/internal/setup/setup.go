// Package setup is what the example programs share: the provider types that
// they know, and the Squid machine that they make on any of them.
package setup

import (
	"cmp"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/egressfleet/egress/cloudinit"
	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/fleet"
	"github.com/egressfleet/egress/gcp"
	"github.com/egressfleet/egress/kvm"
	"github.com/egressfleet/egress/provider"
	"github.com/egressfleet/egress/provider/local"
	"github.com/egressfleet/egress/provider/registry"
)

// Hooks set what no file can hold, such as a logger. Each may be nil.
type Hooks struct {
	KVM func(*kvm.Config)
	GCP func(*gcp.Config)
}

// Types are the provider types of the examples.
func Types(hooks Hooks) registry.Types {
	return registry.Types{
		"local": registry.For(func(name string, cfg local.Config) (*local.Provider, error) {
			cfg.Name = name
			return local.New(cfg)
		}),
		"kvm": registry.For(func(name string, cfg kvm.Config) (*kvm.Provider, error) {
			cfg.Name = name
			if hooks.KVM != nil {
				hooks.KVM(&cfg)
			}
			return kvm.New(cfg)
		}),
		"gcp": registry.For(func(name string, cfg gcp.Config) (*gcp.Provider, error) {
			cfg.Name = name
			if hooks.GCP != nil {
				hooks.GCP(&cfg)
			}
			return gcp.New(cfg)
		}),
	}
}

// Username is that of every proxy that the examples make.
const Username = "crawler"

// Machine describes a virtual machine with Squid on it.
type Machine struct {
	// Key is what proxy passwords are derived from.
	Key []byte
	// Squid is the proxy; its users and salt are set for each UID.
	Squid cloudinit.Squid
	// UserData replaces the one that Squid makes, if set. It must start a proxy
	// on Squid.Port that needs no password.
	UserData []byte
	// Placement is where it goes.
	Placement provider.Placement
}

// Request is a hook of a fleet. What is wrong with the machine is ErrPermanent.
func (m Machine) Request(uid string) (provider.CreateRequest, error) {
	req, err := m.request(uid)
	if err != nil {
		err = &provider.Error{Class: provider.ErrPermanent, Code: provider.CodeInvalidRequest, Err: err}
	}
	return req, err
}

func (m Machine) request(uid string) (provider.CreateRequest, error) {
	req := provider.CreateRequest{UID: uid, Placement: m.Placement, UserData: m.UserData}
	if m.UserData != nil {
		return req, nil
	}
	password, err := fleet.DerivePassword(m.Key, uid)
	if err != nil {
		return req, err
	}
	squid := m.Squid
	squid.SaltSeed = uid
	squid.Users = []cloudinit.SquidUser{{Name: Username, Password: cloudinit.Secret(password)}}
	req.UserData, err = squid.UserData()
	return req, err
}

// Endpoint is a hook of a fleet: Squid on the instance's address.
func (m Machine) Endpoint(uid string, in provider.Instance) (endpoint.Endpoint, error) {
	if !in.Address().IsValid() {
		return endpoint.Endpoint{}, fmt.Errorf("instance %s has no address", in.ID)
	}
	username, password := "", ""
	if m.UserData == nil {
		var err error
		username = Username
		if password, err = fleet.DerivePassword(m.Key, uid); err != nil {
			return endpoint.Endpoint{}, err
		}
	}
	hostport := net.JoinHostPort(in.Address().String(), strconv.Itoa(cmp.Or(m.Squid.Port, 3128)))
	url, err := endpoint.NewURL("http", hostport, username, password)
	return endpoint.Endpoint{ID: in.Name, URL: url}, err
}

// EndpointOf returns the hook that tells the endpoint of an instance: the
// provider's own where it has one, as local has, else the machine's.
func EndpointOf(p provider.Provider, m Machine) func(string, provider.Instance) (endpoint.Endpoint, error) {
	own, ok := p.(interface {
		Endpoint(string, provider.Instance) (endpoint.Endpoint, error)
	})
	if ok {
		return own.Endpoint
	}
	return m.Endpoint
}

// Open loads the providers file and returns the named provider, or the only one
// where name is empty.
func Open(path, name string, types registry.Types) (*registry.Registry, provider.Provider, error) {
	providers, err := registry.Load(path, types)
	if err != nil {
		return nil, nil, err
	}
	if names := providers.Names(); name == "" && len(names) == 1 {
		name = names[0]
	}
	if name == "" {
		err = fmt.Errorf("the file has %q: choose one by -provider", providers.Names())
	}
	var p provider.Provider
	if err == nil {
		p, err = providers.Get(name)
	}
	if err != nil {
		return nil, nil, errors.Join(err, providers.Close())
	}
	return providers, p, nil
}

// Key reads the key that proxy passwords are derived from, or draws one and
// writes it, readable by its owner alone, if the file does not exist.
func Key(path string) ([]byte, error) {
	key, err := os.ReadFile(path)
	switch {
	case err == nil && len(key) < 16:
		return nil, fmt.Errorf("%s holds less than 16 bytes: remove it, and another key is drawn", path)
	case err == nil || !errors.Is(err, fs.ErrNotExist):
		return key, err
	}
	key = []byte(rand.Text() + rand.Text())
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return Key(path) // another process was faster
	}
	if err != nil {
		return nil, err
	}
	_, err = f.Write(key)
	return key, errors.Join(err, f.Close())
}

// RandomKey returns a key for proxies that do not outlive the program.
func RandomKey() []byte { return []byte(rand.Text()) }

// Prefixes reads a list of networks, separated by commas, for flags. A bare
// address is a network of one.
type Prefixes []netip.Prefix

// String implements flag.Value and pflag's.
func (p *Prefixes) String() string {
	texts := make([]string, 0, len(*p))
	for _, prefix := range *p {
		texts = append(texts, prefix.String())
	}
	return strings.Join(texts, ",")
}

// Type implements pflag's Value.
func (p *Prefixes) Type() string { return "network,..." }

// Set implements flag.Value and pflag's.
func (p *Prefixes) Set(text string) error {
	for part := range strings.SplitSeq(text, ",") {
		part = strings.TrimSpace(part)
		prefix, err := netip.ParsePrefix(part)
		if addr, addrErr := netip.ParseAddr(part); err != nil && addrErr == nil {
			prefix, err = netip.PrefixFrom(addr, addr.BitLen()), nil
		}
		if err != nil {
			return fmt.Errorf("%q is no network: write it like 192.0.2.0/24", part)
		}
		*p = append(*p, prefix.Masked())
	}
	return nil
}

// Roots reads certificates that targets are verified by. Without a file it
// returns nil, which means the system's.
func Roots(path string) (*x509.CertPool, error) {
	if path == "" {
		return nil, nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s holds no certificate in PEM", path)
	}
	return roots, nil
}

// Token reads a bearer token. Without a file it is empty.
func Token(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	text, err := os.ReadFile(path)
	return strings.TrimSpace(string(text)), err
}
