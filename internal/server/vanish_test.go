package server

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	pb "github.com/shingle-store/shingle/api/shingle/v1"
)

// connect returns a client with a TCP connection of its own to the store, and that connection.
func (s *stored) connect(opts ...grpc.ServerOption) (pb.FileServiceClient, *grpc.ClientConn, func() net.Conn) {
	s.t.Helper()
	o := Options{Now: time.Now}
	srv := NewGRPC(o, opts...)
	s.s.Register(srv)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(lis) }()
	var raw net.Conn
	conn, err := grpc.NewClient(lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			var d net.Dialer
			c, err := d.DialContext(ctx, "tcp", addr)
			if err == nil {
				raw = &mute{Conn: c, dead: make(chan struct{}), closed: make(chan struct{})}
			}
			return raw, err
		}))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		if raw != nil {
			_ = raw.Close()
		}
		_ = conn.Close()
		srv.Stop()
		<-done
	})
	return pb.NewFileServiceClient(conn), conn, func() net.Conn { return raw }
}

// mute is a connection whose machine loses power when dead is closed: from then on nothing that it
// sent arrives and nothing that was sent to it is read, and nobody is told.
type mute struct {
	net.Conn
	dead, closed chan struct{}
	once         sync.Once
}

func (m *mute) Read(p []byte) (int, error) {
	n, err := m.Conn.Read(p)
	select {
	case <-m.dead:
		<-m.closed
		return 0, net.ErrClosed
	default:
	}
	return n, err
}

func (m *mute) Write(p []byte) (int, error) {
	select {
	case <-m.dead:
		<-m.closed
		return 0, net.ErrClosed
	default:
	}
	return m.Conn.Write(p)
}

func (m *mute) Close() error {
	m.once.Do(func() { close(m.closed) })
	return m.Conn.Close()
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
			"cancel": func(cancel func(), _ *grpc.ClientConn, _ net.Conn) { cancel() },
			"close":  func(_ func(), conn *grpc.ClientConn, _ net.Conn) { _ = conn.Close() },
			"reset": func(_ func(), _ *grpc.ClientConn, raw net.Conn) {
				_ = raw.(*mute).Conn.(*net.TCPConn).SetLinger(0)
				_ = raw.Close()
			},
			"shut write": func(_ func(), _ *grpc.ClientConn, raw net.Conn) { _ = raw.(*mute).Conn.(*net.TCPConn).CloseWrite() },
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

// A client whose machine loses power says nothing. It is asked, and what it held comes back.
func TestClientsThatFallSilent(t *testing.T) {
	s := newStore(t, small)
	data := bytes.Repeat([]byte("a file that is read by those who fall silent. "), 150_000)
	if _, err := s.write(&pb.WriteRequest{Name: "a"}, data, 1<<20); err != nil {
		t.Fatal(err)
	}
	if _, err := s.files.Sync(t.Context(), &pb.SyncRequest{}); err != nil {
		t.Fatal(err)
	}
	// The defaults would take longer than a test; their numbers are all that differs.
	soon := grpc.KeepaliveParams(keepalive.ServerParameters{Time: time.Second, Timeout: time.Second})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	reader, _, readerConn := s.connect(soon)
	reading, err := reader.Read(ctx, &pb.ReadRequest{Name: "a"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := reading.Recv(); err != nil {
		t.Fatal(err)
	}
	writer, _, writerConn := s.connect(soon)
	writing, err := writer.Write(ctx)
	if err != nil {
		t.Fatal(err)
	}
	send(t, writing, &pb.WriteRequest{Name: "a", Options: &pb.WriteOptions{Mode: pb.WriteMode_WRITE_MODE_REPLACE}, Data: data[:1<<20], Report: true})
	for r := recv(t, writing); r.ReceivedBytes != 1<<20; r = recv(t, writing) {
	}
	if s.e.Usage().Dirty == 0 || s.e.Counters()["reads_open"] != 1 {
		t.Fatal("they hold nothing")
	}
	close(readerConn().(*mute).dead)
	close(writerConn().(*mute).dead)
	s.counted("reads_open", 0)
	s.counted("read_memory_bytes", 0)
	s.counted("dirty_memory_bytes", 0)
	if u := s.e.Usage(); u.Dirty != 0 || u.Reserved != 0 {
		t.Errorf("%d bytes are dirty and %d reserved", u.Dirty, u.Reserved)
	}
	if _, got, err := s.read(&pb.ReadRequest{Name: "a"}); err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}
