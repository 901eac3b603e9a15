// Package providers opens the operator's providers file, with every provider type
// that the operator knows.
package providers

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/egressfleet/egress/examples/operator/kubernetes"
	"github.com/egressfleet/egress/fleet"
	"github.com/egressfleet/egress/gcp"
	"github.com/egressfleet/egress/kvm"
	"github.com/egressfleet/egress/provider"
	"github.com/egressfleet/egress/provider/local"
	"github.com/egressfleet/egress/provider/providermetrics"
	"github.com/egressfleet/egress/provider/registry"
)

// Config says what providers are given beside their file.
type Config struct {
	// Path is the file's.
	Path string
	// Key is what passwords of proxies are derived from.
	Key []byte
	// Client is for the provider type kubernetes, uncached; Namespace is where its
	// pods go unless the file says otherwise.
	Client    client.Client
	Namespace string
	// Metrics gets the counts of calls; none if nil.
	Metrics prometheus.Registerer
	// KVMTrace and GCPTrace are hooks for the providers of those types.
	KVMTrace *kvm.Trace
	GCPTrace *gcp.Trace
	Logger   logr.Logger
}

// user is the name that proxies ask for where a provider sets them up itself.
const user = "crawler"

func (c Config) types() registry.Types {
	credentials := func(uid string) (string, string) {
		password, err := fleet.DerivePassword(c.Key, uid)
		if err != nil {
			panic(err) // Open has looked at the key
		}
		return user, password
	}
	return registry.Types{
		"local": registry.For(func(name string, cfg local.Config) (*local.Provider, error) {
			cfg.Name = name
			if cfg.Username == "" {
				cfg.Credentials = credentials
			}
			return local.New(cfg)
		}),
		"kvm": registry.For(func(name string, cfg kvm.Config) (*kvm.Provider, error) {
			cfg.Name, cfg.Trace, cfg.Logger = name, c.KVMTrace, c.Logger.WithName("kvm")
			if cfg.ImageFetch == "" {
				cfg.ImageFetch = "background" // a worker is not held up by a download
			}
			return kvm.New(cfg)
		}),
		"gcp": registry.For(func(name string, cfg gcp.Config) (*gcp.Provider, error) {
			cfg.Name, cfg.Trace, cfg.Logger = name, c.GCPTrace, c.Logger.WithName("gcp")
			return gcp.New(cfg)
		}),
		"kubernetes": registry.For(func(name string, cfg kubernetes.Config) (*kubernetes.Provider, error) {
			cfg.Name, cfg.Client, cfg.Credentials, cfg.Logger = name, c.Client, credentials, c.Logger.WithName("kubernetes")
			if cfg.Namespace == "" {
				cfg.Namespace = c.Namespace
			}
			return kubernetes.New(cfg)
		}),
	}
}

// Providers are those of one file. It is safe for concurrent use.
type Providers struct {
	cfg  Config
	hash string
	reg  *registry.Registry

	mu        sync.Mutex
	decorated map[string]provider.Provider
}

// Open reads the file. One of the wrong shape is an error; a provider that cannot be
// made is one of its Get alone, and is logged.
func Open(cfg Config) (*Providers, error) {
	if _, err := fleet.DerivePassword(cfg.Key, "uid"); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(cfg.Path)
	if err != nil {
		return nil, fmt.Errorf("the providers file: %w", err)
	}
	reg, err := registry.Parse(text, cfg.types())
	if err != nil {
		return nil, fmt.Errorf("the providers file %s: %w", cfg.Path, err)
	}
	if err := reg.Err(); err != nil {
		cfg.Logger.Error(err, "some providers do not work, and the others do", "file", cfg.Path)
	}
	return &Providers{cfg: cfg, hash: hashOf(text), reg: reg, decorated: map[string]provider.Provider{}}, nil
}

func hashOf(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

// Close closes them.
func (p *Providers) Close() error { return p.reg.Close() }

// Names are those of the file's entries, in its order.
func (p *Providers) Names() []string { return p.reg.Names() }

// Hash changes with the file's content, and with that of the folder kvm beside it,
// where a mounted Secret has the keys for hypervisors.
func (p *Providers) Hash() string {
	sum := sha256.New()
	keys, _ := filepath.Glob(filepath.Join(filepath.Dir(p.cfg.Path), "kvm", "*"))
	for _, key := range keys {
		text, _ := os.ReadFile(key)
		fmt.Fprintf(sum, "%s %d\n%s", key, len(text), text)
	}
	return p.hash + hex.EncodeToString(sum.Sum(nil)[:8])
}

// Get returns the named provider, counted.
func (p *Providers) Get(name string) (provider.Provider, error) {
	prov, err := p.reg.Get(name)
	if err != nil || p.cfg.Metrics == nil {
		return prov, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if known, ok := p.decorated[name]; ok {
		return known, nil
	}
	counted, err := providermetrics.New(prov, name, p.cfg.Metrics)
	if err != nil {
		return nil, err
	}
	p.decorated[name] = counted
	return counted, nil
}

// ErrChanged says that there is another providers file.
var ErrChanged = errors.New("the providers file has changed")

// Watch looks at the file every so often and returns ErrChanged when it is another
// one that can be read, or nil when ctx ends. A file with mistakes in it is logged,
// and the former one stays in force.
func (p *Providers) Watch(ctx context.Context, every time.Duration) error {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	bad := ""
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		text, err := os.ReadFile(p.cfg.Path)
		if err == nil && hashOf(text) == p.hash {
			bad = ""
			continue
		}
		if err == nil {
			err = check(text, p.cfg)
		}
		if err == nil {
			return ErrChanged
		}
		if err.Error() != bad {
			bad = err.Error()
			p.cfg.Logger.Error(err, "the new providers file is not taken, the former one stays in force", "file", p.cfg.Path)
		}
	}
}

// check reads a file without keeping anything of it.
func check(text []byte, cfg Config) error {
	reg, err := registry.Parse(text, cfg.types())
	if err != nil {
		return err
	}
	return errors.Join(reg.Err(), reg.Close())
}
