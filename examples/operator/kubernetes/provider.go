package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/egressfleet/egress/endpoint"
	"github.com/egressfleet/egress/provider"
)

// Provider makes proxies as pods of one namespace. It keeps nothing in memory and
// is safe for concurrent use.
type Provider struct {
	cfg Config
}

var (
	_ provider.Provider = (*Provider)(nil)
	_ provider.Doctor   = (*Provider)(nil)
)

// ids is the form of the IDs: namespaces/NAMESPACE/pods/NAME.
var ids = provider.IDFormat{Scopes: "namespaces", Kinds: "pods"}

// New returns a provider. It calls nothing: an API server that is down is an error
// of the first call. The error lists all that is wrong with cfg.
func New(cfg Config) (*Provider, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("kubernetes.Config: %w", err)
	}
	return &Provider{cfg: cfg.withDefaults()}, nil
}

// Endpoint returns the endpoint of a running instance, with its port and
// credentials. It has the form of a fleet's hook.
func (p *Provider) Endpoint(uid string, in provider.Instance) (endpoint.Endpoint, error) {
	if !in.Address().IsValid() {
		return endpoint.Endpoint{}, p.failure("Endpoint", in.ID, errors.New("the instance has no address yet"))
	}
	username, password := p.cfg.credentials(uid)
	url, err := endpoint.NewURL("http", net.JoinHostPort(in.Address().String(), p.cfg.port()), username, password)
	if err != nil {
		return endpoint.Endpoint{}, p.failure("Endpoint", in.ID, err)
	}
	return endpoint.Endpoint{
		ID: in.Name, URL: url,
		Attributes: map[string]string{"provider": p.cfg.Name},
	}, nil
}

// parse takes an ID apart, and refuses one of another namespace.
func (p *Provider) parse(id string) (name string, err error) {
	namespace, name, err := ids.Parse(id)
	if err == nil && namespace != p.cfg.Namespace {
		err = provider.Permanentf(provider.CodeUnconfigured, "this provider has only the namespace %q", p.cfg.Namespace)
	}
	return name, err
}

// key names an object of the namespace.
func (p *Provider) key(name string) client.ObjectKey {
	return client.ObjectKey{Namespace: p.cfg.Namespace, Name: name}
}

// pod reads one.
func (p *Provider) pod(ctx context.Context, name string) (*corev1.Pod, error) {
	return ask(ctx, p, "get pod", name, func(ctx context.Context) (*corev1.Pod, error) {
		pod := &corev1.Pod{}
		return pod, p.cfg.Client.Get(ctx, p.key(name), pod)
	})
}

// secret reads one.
func (p *Provider) secret(ctx context.Context, name string) (*corev1.Secret, error) {
	return ask(ctx, p, "get secret", name, func(ctx context.Context) (*corev1.Secret, error) {
		secret := &corev1.Secret{}
		return secret, p.cfg.Client.Get(ctx, p.key(name), secret)
	})
}

// create makes an object and returns it as the API server has it.
func create[T client.Object](ctx context.Context, p *Provider, what string, want T, opts ...client.CreateOption) (T, error) {
	return ask(ctx, p, what, want.GetName(), func(ctx context.Context) (T, error) {
		made := want.DeepCopyObject().(T)
		return made, p.cfg.Client.Create(ctx, made, opts...)
	})
}

// remove deletes this very object, and none that took its name since.
func (p *Provider) remove(ctx context.Context, what string, o client.Object) error {
	uid := o.GetUID()
	_, err := ask(ctx, p, what, o.GetName(), func(ctx context.Context) (struct{}, error) {
		return struct{}{}, p.cfg.Client.Delete(ctx, o, client.Preconditions(metav1.Preconditions{UID: &uid}))
	})
	return err
}

// grace is how long a call may take to return after its context's end before it
// is left behind. The contract gives a second.
const grace = 500 * time.Millisecond

// answer is what a call returned.
type answer[T any] struct {
	value T
	err   error
}

// ask makes one call of the API, with its own time. A client can outlive a
// context, as when it asks the API server for its types first: such a call is left
// behind, so f must share nothing with its caller.
func ask[T any](ctx context.Context, p *Provider, what, name string, f func(context.Context) (T, error)) (T, error) {
	var none T
	if err := ctx.Err(); err != nil {
		return none, err
	}
	start := time.Now()
	limited, cancel := context.WithTimeout(ctx, p.cfg.CallTimeout.Or(0))
	done := make(chan answer[T], 1)
	go func() {
		defer cancel()
		value, err := f(limited)
		done <- answer[T]{value, err}
	}()
	a := await(limited, done)
	a.err = ended(ctx, a.err)
	p.logger(ctx).V(1).Info("kubernetes call", "call", what, "name", name, "took", time.Since(start), "result", outcome(a.err))
	if a.err != nil {
		return none, a.err
	}
	return a.value, nil
}

// await returns what comes before the grace is over.
func await[T any](ctx context.Context, done <-chan answer[T]) answer[T] {
	select {
	case a := <-done:
		return a
	case <-ctx.Done():
	}
	late := time.NewTimer(grace)
	defer late.Stop()
	select {
	case a := <-done:
		return a
	case <-late.C:
		return answer[T]{err: ctx.Err()}
	}
}

// ended tells apart the caller's own end, whose error stays reachable, our
// timeout, which must not be taken for it, and a lost connection.
func ended(ctx context.Context, err error) error {
	_, told := statusOf(err)
	switch {
	case err == nil || told:
		return err
	case ctx.Err() != nil && !errors.Is(err, ctx.Err()):
		return fmt.Errorf("%w: %w", ctx.Err(), err)
	case ctx.Err() != nil:
		return err
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return provider.Transientf(codeNoAnswer, "the API server has not answered in time: %s", err) // not wrapped
	case runtime.IsNotRegisteredError(err):
		return provider.Permanentf(codeBadClient, "the client does not know the core types: %w", err)
	}
	return provider.Transientf(codeConnectionLost, "the API server cannot be reached: %w", err)
}

// outcome is a word for the log.
func outcome(err error) string {
	if s, ok := statusOf(err); ok {
		return string(s.Reason)
	}
	return provider.Class(err)
}

// logger is the context's, or the configured one.
func (p *Provider) logger(ctx context.Context) logr.Logger {
	if l, err := logr.FromContext(ctx); err == nil {
		return l.WithValues("provider", p.cfg.Name)
	}
	return p.cfg.Logger.WithValues("provider", p.cfg.Name)
}
