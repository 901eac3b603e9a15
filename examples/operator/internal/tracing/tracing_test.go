package tracing_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"k8s.io/apimachinery/pkg/types"

	"github.com/egressfleet/egress/examples/operator/internal/tracing"
	"github.com/egressfleet/egress/gcp"
	"github.com/egressfleet/egress/kvm"
)

// A pass is a span, and what a provider does in it lies inside.
func TestSpansAreNested(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder)).Tracer("test")
	k, g := tracing.KVM(tracer), tracing.GCP(tracer)

	ctx, endPass := tracing.Controller(tracer).Reconcile(t.Context(), types.NamespacedName{Namespace: "crawl", Name: "one"})
	op, endOp := k.Operation(ctx, kvm.OperationInfo{Op: "Create", Provider: "rack"})
	step, endStep := k.Step(op, kvm.StepInfo{Step: "define"})
	k.Call(step, kvm.CallInfo{RPC: "virDomainDefineXMLFlags", Host: "kvm1"})(errors.New("no space"))
	k.Dial(step, kvm.DialInfo{Host: "kvm1", Purpose: "control"})(nil)
	endStep(nil)
	endOp(nil)
	op, endOp = g.Operation(ctx, gcp.OperationInfo{Op: "Get", Provider: "cloud"})
	g.Call(op, gcp.CallInfo{Method: "instances.get", Scope: "zone-a", Attempt: 1})(nil)
	endOp(nil)
	endPass(nil)

	parents := map[string]string{}
	spans := map[string]sdktrace.ReadOnlySpan{}
	for _, s := range recorder.Ended() {
		spans[s.SpanContext().SpanID().String()] = s
	}
	for _, s := range spans {
		if parent, ok := spans[s.Parent().SpanID().String()]; ok {
			parents[s.Name()] = parent.Name()
		}
		if s.Name() == "virDomainDefineXMLFlags" {
			assert.Equal(t, codes.Error, s.Status().Code)
		}
	}
	assert.Equal(t, map[string]string{
		"kvm Create": "Reconcile", "define": "kvm Create", "virDomainDefineXMLFlags": "define", "dial": "define",
		"gcp Get": "Reconcile", "instances.get": "gcp Get",
	}, parents)
}

func TestWithoutAnEndpointThereAreNoSpans(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "")
	t.Setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "")
	tracer, shut, err := tracing.Open(context.Background(), "v1")
	require.NoError(t, err)
	_, span := tracer.Start(t.Context(), "x")
	assert.False(t, span.IsRecording())
	assert.NoError(t, shut(t.Context()))
}
