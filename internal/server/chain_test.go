package server

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	pb "github.com/shingle-store/shingle/api/shingle/v1"
	"github.com/shingle-store/shingle/internal/errdefs"
)

// chained is a server without an engine, whose unary calls answer what answer says, if not nil, and
// whose streams, given maxCalls, last until their client ends them.
func chained(t *testing.T, log *logBuffer, maxCalls int, answer func() error) (*Metrics, *grpc.ClientConn) {
	t.Helper()
	o := Options{
		Now: time.Now, Metrics: NewMetrics(), MaxCalls: maxCalls,
		Logger: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	s := New(nil, o)
	var extra []grpc.ServerOption
	if answer != nil {
		extra = append(extra, grpc.ChainUnaryInterceptor(func(ctx context.Context, _ any, _ *grpc.UnaryServerInfo, _ grpc.UnaryHandler) (any, error) {
			return nil, s.status(ctx, answer())
		}))
	}
	if maxCalls > 0 {
		extra = append(extra, grpc.ChainStreamInterceptor(func(_ any, s grpc.ServerStream, _ *grpc.StreamServerInfo, _ grpc.StreamHandler) error {
			<-s.Context().Done()
			return nil
		}))
	}
	srv := NewGRPC(o, extra...)
	s.Register(srv)
	return o.Metrics, serve(t, srv)
}

// values returns the counted values of a collector, by name and the values of the labels.
func values(t *testing.T, c prometheus.Collector) map[string]float64 {
	t.Helper()
	r := prometheus.NewRegistry()
	r.MustRegister(c)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			out[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return out
}

func TestCallsAreCounted(t *testing.T) {
	m, conn := chained(t, new(logBuffer), 0, nil)
	if got, ok := values(t, m)["grpc_server_handled_total Unavailable GetUsage shingle.v1.StoreService unary"]; !ok || got != 0 {
		t.Errorf("before the first call it is %v, there: %v", got, ok)
	}
	_, _ = pb.NewStoreServiceClient(conn).GetUsage(t.Context(), &pb.GetUsageRequest{})
	_, _ = healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{})
	s, err := pb.NewFileServiceClient(conn).Write(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_ = s.Send(&pb.WriteRequest{Name: "a"})
	_, _ = s.Recv()
	var got map[string]float64
	waitFor(t, func() bool {
		got = values(t, m)
		return got["grpc_server_handled_total Unavailable Write shingle.v1.FileService bidi_stream"] == 1
	})
	for name, want := range map[string]float64{
		"grpc_server_started_total GetUsage shingle.v1.StoreService unary":             1,
		"grpc_server_handled_total Unavailable GetUsage shingle.v1.StoreService unary": 1,
		"grpc_server_handled_total OK GetUsage shingle.v1.StoreService unary":          0,
		"grpc_server_handling_seconds GetUsage shingle.v1.StoreService unary":          1,
		"grpc_server_handled_total OK Check grpc.health.v1.Health unary":               1,
		"shingle_calls_under_way":     0,
		"shingle_calls_refused_total": 0,
		"shingle_panics_total":        0,
	} {
		if v, ok := got[name]; !ok || v != want {
			t.Errorf("%s is %v (there: %v), want %v", name, v, ok, want)
		}
	}
}

func TestAPanicIsCountedAsInternal(t *testing.T) {
	m, conn := chained(t, new(logBuffer), 0, func() error { panic("boom") })
	_, err := pb.NewStoreServiceClient(conn).GetUsage(t.Context(), &pb.GetUsageRequest{})
	if status.Code(err) != codes.Internal {
		t.Errorf("%v", err)
	}
	got := values(t, m)
	if got["shingle_panics_total"] != 1 || got["grpc_server_handled_total Internal GetUsage shingle.v1.StoreService unary"] != 1 || got["shingle_calls_under_way"] != 0 {
		t.Errorf("%v", got)
	}
}

// A call has one name: the client's, if that can be put into a log as it is, and else the server's.
// It is in the lines of the log that are about the call, and in its trailer.
func TestCallsHaveNames(t *testing.T) {
	log := new(logBuffer)
	broken := errdefs.New(errdefs.Internal, "", "test", "", "broken")
	_, conn := chained(t, log, 0, func() error { return broken })
	call := func(given ...string) string {
		t.Helper()
		ctx := t.Context()
		for _, id := range given {
			ctx = metadata.AppendToOutgoingContext(ctx, requestIDKey, id)
		}
		var trailer metadata.MD
		_, err := pb.NewStoreServiceClient(conn).GetUsage(ctx, &pb.GetUsageRequest{}, grpc.Trailer(&trailer))
		if status.Code(err) != codes.Internal || len(trailer.Get(requestIDKey)) != 1 {
			t.Fatalf("%v, %v", trailer, err)
		}
		return trailer.Get(requestIDKey)[0]
	}
	own := call()
	if own == "" || own == call() {
		t.Errorf("calls are named %q", own)
	}
	if got := call("job-7_a.B"); got != "job-7_a.B" {
		t.Errorf("a call that the client named is %q", got)
	}
	for _, bad := range [][]string{{"two words"}, {"a=b"}, {strings.Repeat("x", 65)}, {"a", "b"}, {""}} {
		if got := call(bad...); got == bad[0] || !plain(got) {
			t.Errorf("named %q by the client, it is %q", bad, got)
		}
	}
	about := func(id string) (lines int) {
		for line := range strings.Lines(log.String()) {
			if strings.Contains(line, "request_id="+id+" ") || strings.Contains(line, "request_id="+id+"\n") {
				lines++
			}
		}
		return lines
	}
	for _, id := range []string{own, "job-7_a.B"} { // the internal error, and the end of the call
		waitFor(t, func() bool { return about(id) == 2 })
	}

	ctx := metadata.AppendToOutgoingContext(t.Context(), requestIDKey, "stream-1")
	s, err := pb.NewFileServiceClient(conn).Read(ctx, &pb.ReadRequest{Name: "a"})
	if err == nil {
		_, err = s.Recv()
	}
	if status.Code(err) != codes.Unavailable || len(s.Trailer().Get(requestIDKey)) != 1 || s.Trailer().Get(requestIDKey)[0] != "stream-1" {
		t.Errorf("of a stream: %v, %v", s.Trailer(), err)
	}
	waitFor(t, func() bool { return about("stream-1") == 1 })
}

func TestCallsUnderWayAreBounded(t *testing.T) {
	m, conn := chained(t, new(logBuffer), 2, nil)
	files, store := pb.NewFileServiceClient(conn), pb.NewStoreServiceClient(conn)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range 2 {
		if _, err := files.Write(ctx); err != nil {
			t.Fatal(err)
		}
	}
	waitFor(t, func() bool { return values(t, m)["shingle_calls_under_way"] == 2 })

	_, err := store.GetUsage(t.Context(), &pb.GetUsageRequest{})
	st := status.Convert(err)
	if st.Code() != codes.Unavailable || !strings.Contains(st.Message(), "2 calls are under way, as many as this engine takes at a time (--max-calls)") {
		t.Errorf("a third call: %v", err)
	}
	retry := false
	for _, d := range st.Details() {
		_, is := d.(*errdetails.RetryInfo)
		retry = retry || is
	}
	if !retry {
		t.Errorf("it is not told when to come again: %v", st.Details())
	}
	s, err := files.Write(t.Context())
	if err == nil {
		_, err = s.Recv()
	}
	if status.Code(err) != codes.Unavailable {
		t.Errorf("a third stream: %v", err)
	}
	if _, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
		t.Errorf("a health check of a busy engine: %v", err)
	}
	if got := values(t, m)["shingle_calls_refused_total"]; got != 2 {
		t.Errorf("%v calls refused, want 2", got)
	}

	cancel()
	waitFor(t, func() bool { return values(t, m)["shingle_calls_under_way"] == 0 })
	if _, err := store.GetUsage(t.Context(), &pb.GetUsageRequest{}); !strings.Contains(status.Convert(err).Message(), "being opened") {
		t.Errorf("with room again: %v", err) // the answer of a server without an engine
	}
}

// One connection has so many calls at a time; the next waits in the client until one ends.
func TestStreamsOfAConnectionAreBounded(t *testing.T) {
	m, conn := chained(t, new(logBuffer), 2*maxStreams, nil)
	files := pb.NewFileServiceClient(conn)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range maxStreams {
		if _, err := files.Write(ctx); err != nil {
			t.Fatal(err)
		}
	}
	waitFor(t, func() bool { return values(t, m)["shingle_calls_under_way"] == maxStreams })
	short, stop := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer stop()
	if _, err := files.GetFile(short, &pb.GetFileRequest{Name: "a"}); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("call number %d: %v", maxStreams+1, err)
	}
	cancel()
	if _, err := files.GetFile(t.Context(), &pb.GetFileRequest{Name: "a"}); status.Code(err) != codes.Unavailable {
		t.Errorf("with room again: %v", err)
	}
}

func TestHeadersAreBounded(t *testing.T) {
	_, conn := chained(t, new(logBuffer), 0, nil)
	ctx := metadata.AppendToOutgoingContext(t.Context(), "filler", strings.Repeat("x", maxHeaderBytes))
	_, err := pb.NewStoreServiceClient(conn).GetUsage(ctx, &pb.GetUsageRequest{})
	if err == nil || strings.Contains(err.Error(), "being opened") || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("headers of %d bytes: %v", maxHeaderBytes, err)
	}
	if _, err := pb.NewStoreServiceClient(conn).GetUsage(t.Context(), &pb.GetUsageRequest{}); !strings.Contains(status.Convert(err).Message(), "being opened") {
		t.Errorf("after it: %v", err)
	}
}
