package server

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/mem"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	pb "github.com/shingle-store/shingle/api/shingle/v1"
	"github.com/shingle-store/shingle/internal/wire"
)

// logBuffer is a buffer that handlers may write to while the test reads.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// bare is a Server without an engine behind gRPC.
func bare(t *testing.T, log *logBuffer, extra ...grpc.ServerOption) (*Server, *grpc.ClientConn) {
	t.Helper()
	o := Options{Now: time.Now, Logger: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))}
	s := New(nil, o)
	srv := NewGRPC(o, extra...)
	s.Register(srv)
	return s, serve(t, srv)
}

func TestHealth(t *testing.T) {
	s, conn := bare(t, new(logBuffer))
	c := healthpb.NewHealthClient(conn)
	check := func(want healthpb.HealthCheckResponse_ServingStatus) {
		t.Helper()
		for _, name := range []string{"", "shingle.v1.FileService", "shingle.v1.MaintenanceService", "shingle.v1.StoreService"} {
			r, err := c.Check(t.Context(), &healthpb.HealthCheckRequest{Service: name})
			if err != nil || r.Status != want {
				t.Errorf("%q: %v, %v", name, r, err)
			}
		}
	}
	check(healthpb.HealthCheckResponse_NOT_SERVING)
	s.SetServing(true)
	check(healthpb.HealthCheckResponse_SERVING)
	s.Drain()
	check(healthpb.HealthCheckResponse_NOT_SERVING)
}

func TestBeforeAttachEverythingIsUnavailable(t *testing.T) {
	_, conn := bare(t, new(logBuffer))
	files, store := pb.NewFileServiceClient(conn), pb.NewStoreServiceClient(conn)
	ctx := t.Context()
	for name, call := range map[string]func() error{
		"CreateFile": func() error {
			return second(files.CreateFile(ctx, &pb.CreateFileRequest{File: &pb.File{Name: "a"}}))
		},
		"GetFile":      func() error { return second(files.GetFile(ctx, &pb.GetFileRequest{Name: "a"})) },
		"ListFiles":    func() error { return second(files.ListFiles(ctx, &pb.ListFilesRequest{})) },
		"DeleteFile":   func() error { return second(files.DeleteFile(ctx, &pb.DeleteFileRequest{Name: "a"})) },
		"RenameFile":   func() error { return second(files.RenameFile(ctx, &pb.RenameFileRequest{Name: "a", NewName: "b"})) },
		"TruncateFile": func() error { return second(files.TruncateFile(ctx, &pb.TruncateFileRequest{Name: "a"})) },
		"DeallocateFile": func() error {
			return second(files.DeallocateFile(ctx, &pb.DeallocateFileRequest{Name: "a", Length: 1}))
		},
		"CloneFile": func() error { return second(files.CloneFile(ctx, &pb.CloneFileRequest{Name: "a", NewName: "b"})) },
		"MapFile":   func() error { return second(files.MapFile(ctx, &pb.MapFileRequest{Name: "a"})) },
		"Sync":      func() error { return second(files.Sync(ctx, &pb.SyncRequest{})) },
		"Read": func() error {
			s, err := files.Read(ctx, &pb.ReadRequest{Name: "a"})
			if err != nil {
				return err
			}
			return second(s.Recv())
		},
		"Write": func() error {
			s, err := files.Write(ctx)
			if err != nil {
				return err
			}
			return second(s.Recv())
		},
		"GetServerInfo":   func() error { return second(store.GetServerInfo(ctx, &pb.GetServerInfoRequest{})) },
		"GetUsage":        func() error { return second(store.GetUsage(ctx, &pb.GetUsageRequest{})) },
		"ListConditions":  func() error { return second(store.ListConditions(ctx, &pb.ListConditionsRequest{})) },
		"ListZones":       func() error { return second(store.ListZones(ctx, &pb.ListZonesRequest{})) },
		"ListBlockGroups": func() error { return second(store.ListBlockGroups(ctx, &pb.ListBlockGroupsRequest{})) },
		"GetCounters":     func() error { return second(store.GetCounters(ctx, &pb.GetCountersRequest{})) },
	} {
		if err := call(); status.Code(err) != codes.Unavailable {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestReflection(t *testing.T) {
	_, conn := bare(t, new(logBuffer))
	s, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}); err != nil {
		t.Fatal(err)
	}
	r, err := s.Recv()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	for _, v := range r.GetListServicesResponse().GetService() {
		got[v.Name] = true
	}
	for _, want := range []string{
		"shingle.v1.FileService", "shingle.v1.MaintenanceService", "shingle.v1.StoreService", "grpc.health.v1.Health",
		"grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection",
	} {
		if !got[want] {
			t.Errorf("%s is not listed: %v", want, got)
		}
	}
	if err := s.CloseSend(); err != nil {
		t.Fatal(err)
	}
}

// TestWhatIsLogged: finished calls of the API, with their code; no payload, no health check.
func TestWhatIsLogged(t *testing.T) {
	log := new(logBuffer)
	_, conn := bare(t, log)
	_, _ = healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{})
	s, err := pb.NewFileServiceClient(conn).Write(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_ = s.Send(&pb.WriteRequest{Name: "a", Data: []byte("SECRET")})
	_, _ = s.Recv()
	waitFor(t, func() bool { return strings.Contains(log.String(), "finished call") })
	got := log.String()
	if !strings.Contains(got, "grpc.method=Write") || !strings.Contains(got, "grpc.code=Unavailable") {
		t.Errorf("%s", got)
	}
	if strings.Contains(got, "SECRET") || strings.Contains(got, "Health") {
		t.Errorf("%s", got)
	}
}

func TestAPanicInAHandler(t *testing.T) {
	log := new(logBuffer)
	_, conn := bare(t, log,
		grpc.ChainUnaryInterceptor(func(context.Context, any, *grpc.UnaryServerInfo, grpc.UnaryHandler) (any, error) { panic("boom") }))
	_, err := pb.NewStoreServiceClient(conn).GetUsage(t.Context(), &pb.GetUsageRequest{})
	if st := status.Convert(err); st.Code() != codes.Internal || !strings.Contains(st.Message(), "boom") || len(st.Details()) == 0 {
		t.Errorf("%v", err)
	}
	if !strings.Contains(log.String(), "server_test.go") {
		t.Errorf("no stack in %s", log.String())
	}
	// The process lives, and so does the connection.
	if _, err := pb.NewFileServiceClient(conn).Read(t.Context(), &pb.ReadRequest{}); err != nil {
		t.Error(err)
	}
}

func TestAClientMayUseEitherCodec(t *testing.T) {
	c, f := fakeSetup(t, nil)
	s, err := c.Write(t.Context(), grpc.ForceCodecV2(wire.Codec()))
	if err != nil {
		t.Fatal(err)
	}
	m := &wire.WriteRequest{Header: &pb.WriteRequest{Name: "a", Finish: true}}
	m.Data = append(m.Data, mem.SliceBuffer(bytes.Repeat([]byte("x"), 100<<10)))
	if err := s.SendMsg(m); err != nil {
		t.Fatal(err)
	}
	m.Free()
	if last, _, err := rest(s); err != nil || last.ReceivedBytes != 100<<10 {
		t.Errorf("%v, %v", last, err)
	}
	<-f.opened
}
