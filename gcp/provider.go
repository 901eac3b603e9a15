package gcp

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/go-logr/logr"

	"github.com/egressfleet/egress/internal/lifetime"
	"github.com/egressfleet/egress/provider"
)

// Provider makes instances in one project of Google Cloud. It implements
// [provider.Provider]. All methods are safe for concurrent use.
type Provider struct {
	cfg       Config
	log       logr.Logger
	clients   *lazily
	regions   zoneCache
	life      *lifetime.Lifetime
	running   sync.WaitGroup // grows only while an operation runs
	deletions deletions
}

var _ provider.Provider = (*Provider)(nil)

// New checks the configuration and returns a provider, without connecting to
// anything: credentials are looked for at the first call.
//
// The caller must Close the provider.
func New(cfg Config) (*Provider, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("gcp: %w", err)
	}
	cfg = cfg.withDefaults()
	p := &Provider{cfg: cfg, log: scoped(cfg.Logger, cfg.Name)}
	p.life = lifetime.New(errClosed)
	p.clients = newLazily(p.life.Context(), cfg)
	if cfg.LogUserData {
		p.log.Info("gcp payloads in the log at V(5) show user-data")
	}
	return p, nil
}

func scoped(log logr.Logger, name string) logr.Logger {
	return log.WithName("gcp").WithValues("provider", name)
}

// Close ends what runs, which fails with context.Canceled, and waits for it. Calls
// after it fail. Connections that nobody uses end by themselves within 90 seconds:
// Google's client has no way to end them, and those of a user's HTTP client are the
// user's. It may be called more than once.
func (p *Provider) Close() error {
	p.life.Close()
	p.running.Wait()
	return nil
}

var errClosed = errors.New("the provider is closed")

// place is the instance that an operation is about; of a list it is empty.
type place struct{ zone, name string }

// id is the provider ID of the place.
func (at place) id() string {
	if at.name == "" {
		return ""
	}
	return ids.Format(at.zone, at.name)
}

// operate runs f as one operation: logged, traced, and with the error of the
// contract.
func (p *Provider) operate(ctx context.Context, op string, at place, f func(context.Context) error) error {
	ctx, leave, err := p.life.Enter(ctx)
	if err != nil {
		return p.failure(op, at.id(), at.zone, err)
	}
	defer leave()
	ctx = p.withLogger(ctx, at)
	ctx, end := p.cfg.Trace.operation(ctx, OperationInfo{Op: op, Provider: p.cfg.Name, ID: at.id()})
	err = p.failure(op, at.id(), at.zone, f(ctx))
	end(err)
	return err
}

// withLogger puts the logger of an operation into its context. The caller's own
// logger there is preferred to the provider's.
func (p *Provider) withLogger(ctx context.Context, at place) context.Context {
	log := p.log
	if own, err := logr.FromContext(ctx); err == nil {
		log = scoped(own, p.cfg.Name)
	}
	if at.name != "" {
		log = log.WithValues("zone", at.zone, "name", at.name)
	}
	return logr.NewContext(ctx, log)
}

// find takes an ID apart.
func (p *Provider) find(op, id string) (place, error) {
	zone, name, err := parseID(id)
	if err == nil && !p.cfg.configured(zone) {
		err = &provider.Error{
			Class: provider.ErrPermanent, Code: provider.CodeUnconfigured,
			Err: fmt.Errorf("zone %q is not configured, there are %q", zone, p.cfg.Zones),
		}
	}
	return place{zone, name}, p.failure(op, id, "", err)
}
