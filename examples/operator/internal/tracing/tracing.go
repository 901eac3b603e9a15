// Package tracing turns the hooks of the controller and of the providers into
// OpenTelemetry spans.
package tracing

import (
	"context"
	"os"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"k8s.io/apimachinery/pkg/types"

	"github.com/egressfleet/egress/examples/operator/internal/controller"
	"github.com/egressfleet/egress/gcp"
	"github.com/egressfleet/egress/kvm"
)

// Open returns a tracer that exports by OTLP over HTTP, as the standard variables
// say: OTEL_EXPORTER_OTLP_ENDPOINT and those beside it. Without an endpoint there are
// no spans. close sends what is left.
func Open(ctx context.Context, version string) (tracer trace.Tracer, close func(context.Context) error, err error) {
	if os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") == "" && os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") == "" {
		return noop.NewTracerProvider().Tracer(""), func(context.Context) error { return nil }, nil
	}
	exporter, err := otlptracehttp.New(ctx)
	if err != nil {
		return nil, nil, err
	}
	attributes := resource.WithAttributes(attribute.String("service.name", "egress-operator"), attribute.String("service.version", version))
	about, err := resource.New(ctx, attributes, resource.WithFromEnv())
	if err != nil {
		return nil, nil, err
	}
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(about))
	return provider.Tracer("github.com/egressfleet/egress/examples/operator"), provider.Shutdown, nil
}

// Controller has a span for every pass.
func Controller(tracer trace.Tracer) *controller.Trace {
	return &controller.Trace{Reconcile: func(ctx context.Context, name types.NamespacedName) (context.Context, func(error)) {
		return start(ctx, tracer, "Reconcile", attribute.String("k8s.namespace.name", name.Namespace), attribute.String("egress.proxy", name.Name))
	}}
}

// KVM has a span for every operation, step and call of libvirt.
func KVM(tracer trace.Tracer) *kvm.Trace {
	return &kvm.Trace{
		Operation: func(ctx context.Context, i kvm.OperationInfo) (context.Context, func(error)) {
			return start(ctx, tracer, "kvm "+i.Op, attribute.String("egress.provider", i.Provider), attribute.String("egress.id", i.ID))
		},
		Step: func(ctx context.Context, i kvm.StepInfo) (context.Context, func(error)) {
			return start(ctx, tracer, i.Step)
		},
		Call: func(ctx context.Context, i kvm.CallInfo) func(error) {
			_, end := start(ctx, tracer, i.RPC, attribute.String("egress.host", i.Host))
			return end
		},
		Dial: func(ctx context.Context, i kvm.DialInfo) func(error) {
			_, end := start(ctx, tracer, "dial", attribute.String("egress.host", i.Host), attribute.String("egress.purpose", i.Purpose))
			return end
		},
	}
}

// GCP has a span for every operation and call of the API.
func GCP(tracer trace.Tracer) *gcp.Trace {
	return &gcp.Trace{
		Operation: func(ctx context.Context, i gcp.OperationInfo) (context.Context, func(error)) {
			return start(ctx, tracer, "gcp "+i.Op, attribute.String("egress.provider", i.Provider), attribute.String("egress.id", i.ID))
		},
		Call: func(ctx context.Context, i gcp.CallInfo) func(error) {
			_, end := start(ctx, tracer, i.Method, attribute.String("egress.zone", i.Scope), attribute.Int("egress.attempt", i.Attempt))
			return end
		},
	}
}

func start(ctx context.Context, tracer trace.Tracer, name string, attributes ...attribute.KeyValue) (context.Context, func(error)) {
	ctx, span := tracer.Start(ctx, name, trace.WithAttributes(attributes...))
	return ctx, func(err error) {
		if err != nil {
			span.RecordError(err)
			span.SetStatus(codes.Error, err.Error())
		}
		span.End()
	}
}
