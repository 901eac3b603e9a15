package providermetrics

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/egressfleet/egress/provider"
)

// buckets of the duration in seconds. A Get is done in some milliseconds, a
// Create that has to bring an image takes minutes.
var buckets = []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1200}

// Provider implements [provider.Provider] by another one, and measures it. It
// is as safe for concurrent use as that is.
type Provider struct {
	next     provider.Provider
	name     string
	calls    *prometheus.CounterVec
	duration *prometheus.HistogramVec
	inFlight *prometheus.GaugeVec
}

var _ provider.Provider = (*Provider)(nil)

// New measures p under that name. The metrics are registered with reg, or are
// those that an earlier New registered there. All three are required. When
// something else holds a metric's name the error says so, and nothing stays
// registered.
func New(p provider.Provider, name string, reg prometheus.Registerer) (*Provider, error) {
	if err := validate(p, name, reg); err != nil {
		return nil, fmt.Errorf("providermetrics.New: %w", err)
	}
	m := &Provider{next: p, name: name}
	var undo []prometheus.Collector
	var err error
	if m.calls, err = register(reg, &undo, callsVec()); err == nil {
		m.duration, err = register(reg, &undo, durationVec())
	}
	if err == nil {
		m.inFlight, err = register(reg, &undo, inFlightVec())
	}
	if err != nil {
		for _, c := range undo {
			reg.Unregister(c)
		}
		return nil, fmt.Errorf("providermetrics.New: the metrics of provider %q: %w", name, err)
	}
	return m, nil
}

func validate(p provider.Provider, name string, reg prometheus.Registerer) error {
	var problems []error
	if p == nil {
		problems = append(problems, errors.New("p: is nil: pass the provider to measure"))
	}
	if name == "" {
		problems = append(problems, errors.New(`name: is empty: it becomes the label "provider"`))
	}
	if reg == nil {
		problems = append(problems, errors.New("reg: is nil: pass a prometheus.Registerer, such as prometheus.NewRegistry()"))
	}
	return errors.Join(problems...)
}

// register returns c, or what is registered in its place already. What is new
// is added to undo.
func register[C prometheus.Collector](reg prometheus.Registerer, undo *[]prometheus.Collector, c C) (C, error) {
	err := reg.Register(c)
	var known prometheus.AlreadyRegisteredError
	if errors.As(err, &known) {
		if earlier, ok := known.ExistingCollector.(C); ok {
			return earlier, nil
		}
	}
	if err == nil {
		*undo = append(*undo, c)
	}
	return c, err
}

func callsVec() *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "egress_provider_calls_total",
		Help: "Calls of a provider that ended, by method and class of their error.",
	}, []string{"provider", "op", "class"})
}

func durationVec() *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "egress_provider_call_duration_seconds",
		Help:    "How long the calls of a provider took.",
		Buckets: buckets,
	}, []string{"provider", "op"})
}

func inFlightVec() *prometheus.GaugeVec {
	return prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "egress_provider_calls_in_flight",
		Help: "Calls of a provider that have not ended yet.",
	}, []string{"provider", "op"})
}

// Unwrap returns the provider that is measured, for [provider.As].
func (m *Provider) Unwrap() provider.Provider { return m.next }

// Create implements [provider.Provider].
func (m *Provider) Create(ctx context.Context, req provider.CreateRequest) (id string, err error) {
	defer m.begin("Create", &err)()
	return m.next.Create(ctx, req)
}

// Get implements [provider.Provider].
func (m *Provider) Get(ctx context.Context, id string) (in provider.Instance, err error) {
	defer m.begin("Get", &err)()
	return m.next.Get(ctx, id)
}

// Delete implements [provider.Provider].
func (m *Provider) Delete(ctx context.Context, id string) (err error) {
	defer m.begin("Delete", &err)()
	return m.next.Delete(ctx, id)
}

// ListByTag implements [provider.Provider].
func (m *Provider) ListByTag(ctx context.Context, tag string) (list []provider.Instance, err error) {
	defer m.begin("ListByTag", &err)()
	return m.next.ListByTag(ctx, tag)
}

// errPanicked is counted for a call that did not return.
var errPanicked = errors.New("the provider panicked")

// begin counts a call in and returns what counts it out, with the error that
// the call has set by then.
func (m *Provider) begin(op string, err *error) func() {
	*err = errPanicked
	inFlight := m.inFlight.WithLabelValues(m.name, op)
	inFlight.Inc()
	start := time.Now()
	return func() {
		inFlight.Dec()
		m.duration.WithLabelValues(m.name, op).Observe(time.Since(start).Seconds())
		m.calls.WithLabelValues(m.name, op, provider.Class(*err)).Inc()
	}
}
