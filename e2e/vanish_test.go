package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/shingle-store/shingle/api/client"
	pb "github.com/shingle-store/shingle/api/shingle/v1"
)

// frail is a connection that is reset, as by a machine that crashed and came up again, when told or
// when so many bytes have been written to it, which may be in the middle of a message.
type frail struct {
	*net.TCPConn
	left atomic.Int64
}

func (f *frail) Write(p []byte) (int, error) {
	if n := f.left.Add(-int64(len(p))); n < 0 {
		n, _ := f.TCPConn.Write(p[:max(0, int64(len(p))+n)])
		f.reset()
		return n, io.ErrClosedPipe
	}
	return f.TCPConn.Write(p)
}

func (f *frail) reset() {
	_ = f.SetLinger(0)
	_ = f.TCPConn.Close()
}

// frailClient connects to the store so that the connection breaks after so many bytes.
func frailClient(t *testing.T, s *store, bytes int64) (files pb.FileServiceClient, reset func()) {
	t.Helper()
	var mu sync.Mutex
	var conns []*frail
	conn, err := grpc.NewClient(s.addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			var d net.Dialer
			c, err := d.DialContext(ctx, "tcp", addr)
			if err != nil {
				return nil, err
			}
			f := &frail{TCPConn: c.(*net.TCPConn)}
			f.left.Store(bytes)
			mu.Lock()
			defer mu.Unlock()
			conns = append(conns, f)
			return f, nil
		}))
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return pb.NewFileServiceClient(conn), func() {
		mu.Lock()
		for _, f := range conns {
			f.reset()
		}
		mu.Unlock()
		_ = conn.Close()
	}
}

// goroutines asks the engine's admin page how many there are.
func goroutines(t *testing.T, s *store) (n int) {
	t.Helper()
	_, rest, ok := strings.Cut(s.log.String(), "admin pages on ")
	if !ok {
		t.Fatal("the engine does not say where its admin pages are")
	}
	addr, _, _ := strings.Cut(rest, `"`)
	r, err := http.Get("http://" + addr + "/debug/pprof/goroutine?debug=1")
	must(t, err)
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	must(t, err)
	http.DefaultClient.CloseIdleConnections()
	_, err = fmt.Sscanf(string(b), "goroutine profile: total %d", &n)
	must(t, err)
	return n
}

// TestClientsThatVanish has clients go in the middle of writes and reads: killed, their connection
// reset between messages and within one. Whatever they held comes back, what they had not finished is
// not there, and what others have is untouched.
func TestClientsThatVanish(t *testing.T) {
	s := started(t, "--admin-listen", "127.0.0.1:0", "--device", "file:"+t.TempDir()+"/device?size=1GiB&zone-size=8MiB")
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	c := s.dial()
	content := func(seed uint64, n int) []byte {
		b := make([]byte, n)
		_, _ = (&noise{x: seed}).Read(b)
		return b
	}
	big, old, other := content(1, 16<<20), content(2, 1<<20), content(3, 2<<20)
	empty, err := c.Usage(ctx)
	must(t, err)
	must(t, write(ctx, c, "big", big))
	must(t, write(ctx, c, "kept", old))
	must(t, write(ctx, c, "overwritten", old))
	quiet(ctx, t, c)
	before := goroutines(t, s)

	vanish := map[string]func(t *testing.T){
		"a replace between messages": func(t *testing.T) {
			files, reset := frailClient(t, s, 1<<40)
			sendParts(ctx, t, files, &pb.WriteRequest{Name: "kept", Options: &pb.WriteOptions{Mode: pb.WriteMode_WRITE_MODE_REPLACE}}, other, true)
			reset()
		},
		"a replace within a message": func(t *testing.T) {
			files, _ := frailClient(t, s, 1_300_000)
			sendParts(ctx, t, files, &pb.WriteRequest{Name: "kept", Options: &pb.WriteOptions{Mode: pb.WriteMode_WRITE_MODE_REPLACE}}, other, false)
		},
		"an overwrite within a message": func(t *testing.T) {
			files, _ := frailClient(t, s, 700_000)
			sendParts(ctx, t, files, &pb.WriteRequest{Name: "overwritten"}, other[:len(old)], false)
		},
		"a new file": func(t *testing.T) {
			files, reset := frailClient(t, s, 1<<40)
			sendParts(ctx, t, files, &pb.WriteRequest{Name: "new"}, other, true)
			reset()
		},
		"a read": func(t *testing.T) {
			files, reset := frailClient(t, s, 1<<40)
			stream, err := files.Read(ctx, &pb.ReadRequest{Name: "big"})
			must(t, err)
			_, err = stream.Recv()
			must(t, err)
			reset()
		},
		"a killed cat": func(t *testing.T) {
			cmd := s.clientCommand("cat", "big")
			out, err := cmd.StdoutPipe()
			must(t, err)
			must(t, cmd.Start())
			_, err = io.ReadFull(out, make([]byte, 100_000))
			must(t, err)
			must(t, cmd.Process.Kill())
			_ = cmd.Wait()
		},
	}
	for range 3 {
		t.Run("all at once", func(t *testing.T) {
			for what, do := range vanish {
				t.Run(what, func(t *testing.T) {
					t.Parallel()
					do(t)
				})
			}
		})
	}
	quiet(ctx, t, c)
	must(t, readsAs(ctx, c, "big", big))
	must(t, readsAs(ctx, c, "kept", old))
	got := readAll(t, c, "overwritten")
	if len(got) != len(old) {
		t.Errorf("the overwritten file has %d bytes", len(got))
	}
	for at := 0; at < len(got); at += blockSize {
		if b := got[at : at+blockSize]; !bytes.Equal(b, old[at:at+blockSize]) && !bytes.Equal(b, other[at:at+blockSize]) {
			t.Fatalf("the block at %d is neither old nor new", at)
		}
	}
	if got := readAll(t, c, "new"); !bytes.Equal(got, other[:len(got)]) || len(got) == 0 {
		t.Errorf("the new file has %d bytes, and not a beginning of what was sent", len(got))
	}
	for _, name := range []string{"big", "kept", "overwritten", "new"} {
		_, err := c.Delete(ctx, name, client.DeleteOptions{})
		must(t, err)
	}
	waitFor(t, "all space is free again", func() (string, bool) {
		u, err := c.Usage(ctx)
		must(t, err)
		return fmt.Sprintf("%d bytes are in use, %d before", u.GetUsedBytes(), empty.GetUsedBytes()), u.GetUsedBytes() == empty.GetUsedBytes()
	})
	waitFor(t, "their goroutines are gone", func() (string, bool) {
		n := goroutines(t, s)
		return fmt.Sprintf("%d goroutines, %d before", n, before), n <= before+2
	})

	// A put of the client can be gone on with for a day, so what it sent stays; but nothing of it is in memory.
	must(t, write(ctx, c, "kept", old))
	in, feed, err := os.Pipe()
	must(t, err)
	defer feed.Close()
	put := s.clientCommand("put", "-q", "-", "kept")
	put.Stdin = in
	must(t, put.Start())
	_ = in.Close()
	_, err = feed.Write(other)
	must(t, err)
	must(t, put.Process.Kill())
	_ = put.Wait()
	quiet(ctx, t, c)
	must(t, readsAs(ctx, c, "kept", old))
	must(t, write(ctx, c, "kept", other))
	s.restart()
	must(t, readsAs(ctx, s.dial(), "kept", other))
	s.stop()
	s.check()
}

// sendParts sends the content in messages without an end; with received it waits until the engine has
// all of it. Errors are those of a connection that breaks, and ignored.
func sendParts(ctx context.Context, t *testing.T, files pb.FileServiceClient, first *pb.WriteRequest, data []byte, received bool) {
	t.Helper()
	stream, err := files.Write(ctx)
	if err != nil {
		return
	}
	m, size := first, int64(len(data))
	for len(data) > 0 {
		n := min(len(data), 1<<20)
		m.Data, data = data[:n], data[n:]
		m.Report = len(data) == 0
		if stream.Send(m) != nil {
			break
		}
		m = &pb.WriteRequest{}
	}
	for {
		r, err := stream.Recv()
		if err != nil {
			if received {
				t.Errorf("the stream ends: %v", err)
			}
			return
		}
		if received && r.GetReceivedBytes() == size {
			return
		}
	}
}

// waitFor waits until look is content; what it says is printed if that never comes.
func waitFor(t *testing.T, what string, look func() (string, bool)) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		says, ok := look()
		if ok {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("it never comes to this: %s: %s", what, says)
		}
	}
}
