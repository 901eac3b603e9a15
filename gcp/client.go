package gcp

import (
	"context"
	"errors"
	"io/fs"
	"net/http"
	"net/url"
	"strings"
	"time"

	compute "cloud.google.com/go/compute/apiv1"
	"github.com/go-logr/logr"
	gax "github.com/googleapis/gax-go/v2"
	"google.golang.org/api/cloudresourcemanager/v1"
	"google.golang.org/api/googleapi"
	"google.golang.org/api/option"
	"google.golang.org/api/option/internaloption"
	htransport "google.golang.org/api/transport/http"

	"github.com/egressfleet/egress/provider"
)

// clients are those of the API's parts. All of them share one wire.
type clients struct {
	wire         *wire
	instances    *compute.InstancesClient
	operations   *compute.ZoneOperationsClient
	projects     *compute.ProjectsClient
	regions      *compute.RegionsClient
	zones        *compute.ZonesClient
	networks     *compute.NetworksClient
	subnetworks  *compute.SubnetworksClient
	images       *compute.ImagesClient
	machineTypes *compute.MachineTypesClient
	policies     *cloudresourcemanager.Service
}

// defaultEndpoint is what the clients of compute know by themselves.
const defaultEndpoint = "https://compute.googleapis.com"

// newClients looks for credentials, which may take a while and ask the metadata
// server. The transport is made by the user's options, and the wire put around
// it.
func newClients(ctx context.Context, cfg Config) (*clients, error) {
	opts := append([]option.ClientOption{
		internaloption.WithDefaultEndpointTemplate("https://compute.UNIVERSE_DOMAIN"),
		internaloption.WithDefaultMTLSEndpoint("https://compute.mtls.googleapis.com"),
		internaloption.WithDefaultUniverseDomain("googleapis.com"),
		internaloption.WithDefaultScopes(compute.DefaultAuthScopes()...),
		internaloption.EnableNewAuthLibrary(),
	}, cfg.clientOptions()...)
	client, endpoint, err := htransport.NewClient(ctx, opts...)
	if err != nil {
		return nil, credentials(err)
	}
	next := client.Transport
	if next == nil {
		next = http.DefaultTransport
	}
	c := &clients{wire: &wire{next: next, trace: cfg.Trace, logUserData: cfg.LogUserData, most: maxAnswer}}
	wrapped := *client
	wrapped.Transport = c.wire
	if err := c.dial(ctx, &wrapped, endpoint); err != nil {
		return nil, provider.Permanentf(codeCredentialsInvalid, "the client cannot be made: %w", err)
	}
	return c, nil
}

// clientOptions has the user's own options last, which makes them count.
func (c Config) clientOptions() []option.ClientOption {
	if c.Endpoint == "" {
		return c.ClientOptions
	}
	return append([]option.ClientOption{option.WithEndpoint(strings.TrimRight(c.Endpoint, "/"))}, c.ClientOptions...)
}

// credentials is the error of a client that cannot be made. What is missing may
// come.
func credentials(err error) error {
	if errors.Is(err, fs.ErrNotExist) || strings.Contains(err.Error(), "could not find default credentials") {
		return provider.Transientf(codeCredentialsMissing, "there are no credentials: run gcloud auth application-default login, or set GOOGLE_APPLICATION_CREDENTIALS: %w", err)
	}
	return provider.Permanentf(codeCredentialsInvalid, "the credentials cannot be used: %w", err)
}

func (c *clients) dial(ctx context.Context, client *http.Client, endpoint string) (err error) {
	opts := []option.ClientOption{option.WithHTTPClient(client), option.WithEndpoint(endpoint)}
	var problems []error
	keep := func(err error) { problems = append(problems, err) }
	c.instances, err = compute.NewInstancesRESTClient(ctx, opts...)
	keep(err)
	c.operations, err = compute.NewZoneOperationsRESTClient(ctx, opts...)
	keep(err)
	c.projects, err = compute.NewProjectsRESTClient(ctx, opts...)
	keep(err)
	c.regions, err = compute.NewRegionsRESTClient(ctx, opts...)
	keep(err)
	c.zones, err = compute.NewZonesRESTClient(ctx, opts...)
	keep(err)
	c.networks, err = compute.NewNetworksRESTClient(ctx, opts...)
	keep(err)
	c.subnetworks, err = compute.NewSubnetworksRESTClient(ctx, opts...)
	keep(err)
	c.images, err = compute.NewImagesRESTClient(ctx, opts...)
	keep(err)
	c.machineTypes, err = compute.NewMachineTypesRESTClient(ctx, opts...)
	keep(err)
	c.policies, err = cloudresourcemanager.NewService(ctx, option.WithHTTPClient(client), option.WithEndpoint(policyEndpoint(endpoint)))
	keep(err)
	return errors.Join(problems...)
}

// policyEndpoint is the Resource Manager's where compute's is at Google, also by
// Private Service Connect, and the same where it is somewhere else.
func policyEndpoint(endpoint string) string {
	u, err := url.Parse(endpoint)
	if err != nil {
		return endpoint
	}
	if domain, ok := strings.CutPrefix(u.Host, "compute."); ok {
		u.Host = "cloudresourcemanager." + strings.TrimPrefix(domain, "mtls.")
	} else if name, ok := strings.CutPrefix(u.Host, "compute-"); ok && strings.HasSuffix(name, ".p.googleapis.com") {
		u.Host = "cloudresourcemanager-" + name
	}
	return u.String()
}

// maxAttempts is how often a call is tried before its caller is told.
const maxAttempts = 3

// retryer tries again what a front end of the API refused: for inserts too, since
// the name keeps them from happening twice.
type retryer struct {
	left    int
	backoff gax.Backoff
}

func newRetryer() gax.Retryer {
	return &retryer{left: maxAttempts - 1, backoff: gax.Backoff{Initial: 200 * time.Millisecond, Max: 2 * time.Second, Multiplier: 3}}
}

// Retry implements gax.Retryer.
func (r *retryer) Retry(err error) (pause time.Duration, again bool) {
	var e *googleapi.Error
	if !errors.As(err, &e) || r.left == 0 {
		return 0, false
	}
	switch e.Code {
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		r.left--
		return r.backoff.Pause(), true
	}
	return 0, false
}

// retries is the option of every call.
func retries() gax.CallOption { return gax.WithRetry(newRetryer) }

// call runs one call of the API. It returns when ctx ends, whether or not the
// client does: the request is cut, but what it may wait for before, such as
// another one's token, is not.
func call[T any](ctx context.Context, p *Provider, info CallInfo, f func(context.Context, *clients) (T, error)) (T, error) {
	return callWith(ctx, p, info, nil, f)
}

// callWith is call with a user-data that is sent.
func callWith[T any](ctx context.Context, p *Provider, info CallInfo, secret provider.UserData, f func(context.Context, *clients) (T, error)) (T, error) {
	outer := ctx
	ctx, cancel := context.WithTimeout(ctx, time.Duration(p.cfg.CallTimeout))
	defer cancel()
	out, err := await(ctx, p, func() (out T, err error) {
		c, err := p.clients.get(ctx)
		if err != nil {
			return out, err
		}
		inner, leave := c.wire.enlist(&ongoing{ctx: ctx, info: info, log: logr.FromContextOrDiscard(ctx), secret: secret})
		defer leave()
		return f(inner, c)
	})
	return out, p.callError(outer, ctx, withheld(err, secret))
}

// callError tells the end of the caller's context, our own timeout and failures
// of the way apart from what the API said.
func (p *Provider) callError(outer, ctx context.Context, err error) error {
	var api *googleapi.Error
	var known *provider.Error
	switch {
	case err == nil, errors.As(err, &api):
		return err
	case outer.Err() != nil:
		return outer.Err()
	case ctx.Err() != nil:
		return provider.Transientf(codeNoAnswer, "the API has not answered for %s: %w", p.cfg.CallTimeout, err)
	case errors.As(err, &known):
		return err
	}
	return connection(err)
}

type result[T any] struct {
	value T
	err   error
}

// await runs f, and leaves it behind where it outlives ctx. Close waits for it.
func await[T any](ctx context.Context, p *Provider, f func() (T, error)) (T, error) {
	done := make(chan result[T], 1)
	p.running.Go(func() {
		value, err := f()
		done <- result[T]{value, err}
	})
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}

// lazily makes the clients at the first call, one attempt at a time.
type lazily struct {
	cfg  Config
	life context.Context
	turn chan struct{} // holds one token
	made *clients      // by whom holds the token
}

func newLazily(life context.Context, cfg Config) *lazily {
	l := &lazily{cfg: cfg, life: life, turn: make(chan struct{}, 1)}
	l.turn <- struct{}{}
	return l
}

// get returns the clients. Those of a failed attempt are tried again.
func (l *lazily) get(ctx context.Context) (*clients, error) {
	select {
	case <-l.turn:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { l.turn <- struct{}{} }()
	if l.made != nil {
		return l.made, nil
	}
	c, err := newClients(l.life, l.cfg)
	l.made = c
	return c, err
}
