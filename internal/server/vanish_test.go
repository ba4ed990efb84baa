package server

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	pb "github.com/shingle-store/shingle/api/shingle/v1"
)

// connect returns a client with a TCP connection of its own to the store, and that connection.
func (s *stored) connect() (pb.FileServiceClient, *grpc.ClientConn, func() net.Conn) {
	s.t.Helper()
	o := Options{Now: time.Now}
	srv := NewGRPC(o)
	s.s.Register(srv)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(lis) }()
	var raw net.Conn
	conn, err := grpc.NewClient(lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (_ net.Conn, err error) {
			var d net.Dialer
			raw, err = d.DialContext(ctx, "tcp", addr)
			return raw, err
		}))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		_ = conn.Close()
		srv.Stop()
		<-done
	})
	return pb.NewFileServiceClient(conn), conn, func() net.Conn { return raw }
}

// counted waits until the counter has the value.
func (s *stored) counted(name string, want uint64) {
	s.t.Helper()
	for end := time.Now().Add(10 * time.Second); s.e.Counters()[name] != want; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatalf("%s stays at %d, want %d", name, s.e.Counters()[name], want)
		}
	}
}

// A reader that takes a part of a file and goes, whatever way, leaves nothing behind; one that was
// slow gets the rest, although the handler has long sent it.
func TestReadersThatVanish(t *testing.T) {
	s := newStore(t, small)
	data := bytes.Repeat([]byte("a file that is read by those who go away. "), 150_000)
	if _, err := s.write(&pb.WriteRequest{Name: "a"}, data, 1<<20); err != nil {
		t.Fatal(err)
	}
	for messages := range 4 {
		for how, leave := range map[string]func(cancel func(), conn *grpc.ClientConn, raw net.Conn){
			"cancel":     func(cancel func(), _ *grpc.ClientConn, _ net.Conn) { cancel() },
			"close":      func(_ func(), conn *grpc.ClientConn, _ net.Conn) { _ = conn.Close() },
			"reset":      func(_ func(), _ *grpc.ClientConn, raw net.Conn) { _ = raw.(*net.TCPConn).SetLinger(0); _ = raw.Close() },
			"shut write": func(_ func(), _ *grpc.ClientConn, raw net.Conn) { _ = raw.(*net.TCPConn).CloseWrite() },
			"go on":      nil,
		} {
			t.Run(fmt.Sprintf("%s after %d", how, messages), func(t *testing.T) {
				files, conn, raw := s.connect()
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				defer cancel()
				stream, err := files.Read(ctx, &pb.ReadRequest{Name: "a"})
				if err != nil {
					t.Fatal(err)
				}
				var got []byte
				for range messages {
					m, err := stream.Recv()
					if err != nil {
						t.Fatal(err)
					}
					got = append(got, m.Data...)
				}
				s.counted("reads_open", 1)
				if leave == nil {
					for err == nil {
						var m *pb.ReadResponse
						m, err = stream.Recv()
						got = append(got, m.GetData()...)
					}
					if err != io.EOF || !bytes.Equal(got, data) {
						t.Errorf("%d bytes of %d, %v", len(got), len(data), err)
					}
				} else {
					leave(cancel, conn, raw())
				}
				s.counted("reads_open", 0)
				s.counted("read_memory_bytes", 0)
			})
		}
	}
}

// A deadline ends a read that nobody takes.
func TestDeadlineOfAStalledRead(t *testing.T) {
	s := newStore(t, small)
	if _, err := s.write(&pb.WriteRequest{Name: "a"}, make([]byte, 300_000), 1<<20); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	stream, err := s.files.Read(ctx, &pb.ReadRequest{Name: "a"})
	if err != nil {
		t.Fatal(err)
	}
	s.counted("reads_open", 1)
	s.counted("reads_open", 0)
	s.counted("read_memory_bytes", 0)
	for err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("the client hears %v", err)
	}
}
