package main

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"

	pb "github.com/shingle-store/shingle/api/shingle/v1"
)

// collector keeps the spans that it is sent.
type collector struct {
	collectorpb.UnimplementedTraceServiceServer
	mu    sync.Mutex
	spans []*tracepb.Span
}

func (c *collector) Export(_ context.Context, r *collectorpb.ExportTraceServiceRequest) (*collectorpb.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, resource := range r.GetResourceSpans() {
		for _, scope := range resource.GetScopeSpans() {
			c.spans = append(c.spans, scope.GetSpans()...)
		}
	}
	return &collectorpb.ExportTraceServiceResponse{}, nil
}

func TestTracing(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	c, srv := &collector{}, grpc.NewServer()
	collectorpb.RegisterTraceServiceServer(srv, c)
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(lis) }()
	defer func() { srv.Stop(); <-done }()

	data, device := layout(t)
	s := startServing(t, "--data", data, "--device", "file:"+device+smallQuery, "--otlp-endpoint", "http://"+lis.Addr().String())
	const id = "0af7651916cd43dd8448eb211c80319c"
	ctx := metadata.AppendToOutgoingContext(t.Context(), "traceparent", "00-"+id+"-b7ad6b7169203331-01")
	_, err = pb.NewStoreServiceClient(s.conn).GetUsage(ctx, &pb.GetUsageRequest{})
	must(t, err)
	_, err = healthpb.NewHealthClient(s.conn).Check(t.Context(), &healthpb.HealthCheckRequest{})
	must(t, err)
	s.signal()
	s.ended(exitOK) // the last spans are sent before the end
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.spans) != 1 || c.spans[0].GetName() != "shingle.v1.StoreService/GetUsage" {
		t.Fatalf("%d spans: %v", len(c.spans), c.spans)
	}
	if got := c.spans[0].GetTraceId(); len(got) != 16 || got[0] != 0x0a || got[15] != 0x9c {
		t.Errorf("the span is of trace %x, the client's is %s", got, id)
	}
}

// A collector that is not there costs a line in the log.
func TestTracingWithoutACollector(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	addr := lis.Addr().String()
	must(t, lis.Close())
	data, device := layout(t)
	s := startServing(t, "--data", data, "--device", "file:"+device+smallQuery, "--otlp-endpoint", "http://"+addr)
	_, err = pb.NewStoreServiceClient(s.conn).GetUsage(t.Context(), &pb.GetUsageRequest{})
	must(t, err)
	begin := time.Now()
	s.signal()
	s.ended(exitOK)
	if took := time.Since(begin); took > traceEnd+10*time.Second {
		t.Errorf("the end took %v", took)
	}
	if !strings.Contains(s.said(), "traces are lost") {
		t.Errorf("it says nothing of that: %s", s.said())
	}
}
