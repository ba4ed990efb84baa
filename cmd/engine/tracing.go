package main

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"
)

// traceEnd is how long the engine waits, at its end, for the collector to take the last spans.
const traceEnd = 2 * time.Second

// tracing sends a span of each call of the API to a collector. A span goes on with the trace that the
// client names (W3C traceparent), and is kept if that is. What the collector does not take is dropped:
// calls never wait for it.
type tracing struct {
	exporter *otlptrace.Exporter
	provider *trace.TracerProvider
	log      *slog.Logger
}

// newTracing returns the tracing of a program of that version to the collector at endpoint, a URL. It
// connects by and by, so a collector that is down is no error.
func newTracing(endpoint, version string, log *slog.Logger) (*tracing, error) {
	ctx := context.Background()
	exporter, err := otlptracegrpc.New(ctx, otlptracegrpc.WithEndpointURL(endpoint))
	if err != nil {
		return nil, err
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Warn("traces are lost", "error", err) }))
	about := resource.NewSchemaless(attribute.String("service.name", "shingle"), attribute.String("service.version", version))
	return &tracing{exporter, trace.NewTracerProvider(trace.WithBatcher(exporter), trace.WithResource(about)), log}, nil
}

// option has a server send its spans. Metrics are package server's, health checks nobody's.
func (t *tracing) option() grpc.ServerOption {
	return grpc.StatsHandler(otelgrpc.NewServerHandler(
		otelgrpc.WithTracerProvider(t.provider),
		otelgrpc.WithMeterProvider(noop.NewMeterProvider()),
		otelgrpc.WithPropagators(propagation.TraceContext{}),
		otelgrpc.WithFilter(func(c *stats.RPCTagInfo) bool { return strings.HasPrefix(c.FullMethodName, "/shingle.") }),
	))
}

// close sends what there is, for as long as traceEnd.
func (t *tracing) close() {
	ctx, cancel := context.WithTimeout(context.Background(), traceEnd)
	defer cancel()
	err := t.provider.ForceFlush(ctx)
	// The exporter first: it ends what is still being sent, for which the provider would wait.
	if serr := t.exporter.Shutdown(ctx); err == nil {
		err = serr
	}
	_ = t.provider.Shutdown(context.Background()) // asks the exporter once more, which has ended
	if err != nil {
		t.log.Warn("traces are lost", "error", err)
	}
}
