package wire

import (
	"bytes"
	"context"
	"io"
	"net"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/test/bufconn"

	shinglev1 "github.com/shingle-store/shingle/api/shingle/v1"
)

func TestBufferIsReleasedOnceWithTheLastReference(t *testing.T) {
	for _, n := range []int{0, 10, 1024, 1025, 1 << 20} {
		released := 0
		data := bytes.Repeat([]byte{7}, n)
		b := Buffer(data, func() { released++ })
		small := released == 1
		if small != (n <= 1024) {
			t.Errorf("%d bytes: released %d times at once", n, released)
		}
		if !bytes.Equal(b.ReadOnlyData(), data) {
			t.Errorf("%d bytes differ", n)
		}
		b.Ref()
		b.Free()
		if !small && released != 0 {
			t.Errorf("%d bytes: released with a reference left", n)
		}
		b.Free()
		if released != 1 {
			t.Errorf("%d bytes: released %d times", n, released)
		}
	}
}

// echo answers each WriteRequest's payload as a ReadResponse, without a copy.
type echo struct {
	shinglev1.UnimplementedFileServiceServer
}

func (echo) Write(s grpc.BidiStreamingServer[shinglev1.WriteRequest, shinglev1.WriteResponse]) error {
	var in WriteRequest
	defer in.Free()
	for {
		if err := s.RecvMsg(&in); err != nil {
			if err == io.EOF {
				return nil
			}
			return err
		}
		out := ReadResponse{Header: &shinglev1.ReadResponse{Offset: in.Header.GetOffset()}}
		out.Data = in.Data
		if err := s.SendMsg(&out); err != nil {
			return err
		}
	}
}

func dialEcho(tb testing.TB) grpc.ClientConnInterface {
	lis := bufconn.Listen(1 << 20)
	srv := grpc.NewServer(grpc.ForceServerCodecV2(Codec()))
	shinglev1.RegisterFileServiceServer(srv, echo{})
	go func() { _ = srv.Serve(lis) }()
	tb.Cleanup(srv.Stop)
	conn, err := grpc.NewClient("passthrough:///echo",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = conn.Close() })
	return conn
}

func TestThroughGRPCAndBack(t *testing.T) {
	desc := &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}
	s, err := dialEcho(t).NewStream(t.Context(), desc, shinglev1.FileService_Write_FullMethodName, grpc.ForceCodecV2(Codec()))
	if err != nil {
		t.Fatal(err)
	}
	released := make(chan struct{}, 16)
	var in ReadResponse
	for i, n := range []int{0, 1, 5000, 256 << 10, 1 << 20} {
		data := bytes.Repeat([]byte{byte(i + 1)}, n)
		offset := int64(i)
		out := WriteRequest{Header: &shinglev1.WriteRequest{Offset: &offset}}
		out.Data = mem.BufferSlice{Buffer(data, func() { released <- struct{}{} })}
		if err := s.SendMsg(&out); err != nil {
			t.Fatal(err)
		}
		out.Free()
		if err := s.RecvMsg(&in); err != nil {
			t.Fatal(err)
		}
		if in.Header.Offset != offset || !bytes.Equal(bytes.Join(in.Pieces(nil), nil), data) {
			t.Fatalf("message %d came back as %v with %d bytes", i, in.Header, in.Len())
		}
		<-released
	}
	in.Free()
	if err := s.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if err := s.RecvMsg(&in); err != io.EOF {
		t.Fatalf("at the end: %v", err)
	}
}

func BenchmarkEcho(b *testing.B) {
	const size = 256 << 10
	data := make([]byte, size)
	desc := &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}
	s, err := dialEcho(b).NewStream(b.Context(), desc, shinglev1.FileService_Write_FullMethodName, grpc.ForceCodecV2(Codec()))
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(size)
	b.ReportAllocs()
	var in ReadResponse
	for b.Loop() {
		out := WriteRequest{Header: &shinglev1.WriteRequest{}}
		out.Data = mem.BufferSlice{Buffer(data, func() {})}
		if err := s.SendMsg(&out); err != nil {
			b.Fatal(err)
		}
		out.Free()
		if err := s.RecvMsg(&in); err != nil {
			b.Fatal(err)
		}
	}
}
