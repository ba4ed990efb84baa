package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/shingle-store/shingle/api/client"
	pb "github.com/shingle-store/shingle/api/shingle/v1"
)

const (
	drainWriters = 8
	drainMessage = 256 << 10
)

// TestDrainUnderLoad stops an engine that is busy with SIGTERM.
func TestDrainUnderLoad(t *testing.T) {
	s := started(t, "--drain-timeout", "10s")
	drainUnderLoad(t, s, func() { must(t, s.cmd.Process.Signal(syscall.SIGTERM)) }, s.start)
	s.stop()
	s.check()
}

// drainUnderLoad has streams write, none of which ever asks for a sync, while stop tells the engine to
// end. It ends with 0; each stream hears UNAVAILABLE and how much of it was received; and all of
// that is there when again has started it, to the byte. A write of the library goes on over it.
func drainUnderLoad(t *testing.T, s *store, stop, again func()) {
	t.Helper()
	conn, err := grpc.NewClient(s.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	defer conn.Close()
	files := pb.NewFileServiceClient(conn)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()

	var wg sync.WaitGroup
	received := make([]int64, drainWriters)
	busy := make(chan int, drainWriters)
	for i := range received {
		wg.Go(func() {
			n, err := writeUntilDrained(ctx, files, i, busy)
			if err != nil {
				t.Errorf("stream %d: %v", i, err)
			}
			received[i] = n
		})
	}
	// Larger than its window and than what is written before the stop: it is under way then.
	const putSize = 192 << 20
	put := s.dial(client.WithWindow(8 << 20))
	stopped := make(chan struct{})
	wg.Go(func() {
		w, err := put.Write(ctx, "put", client.WriteOptions{})
		if err == nil {
			_, err = io.Copy(w, io.LimitReader(&noise{}, putSize/2))
		}
		if err == nil {
			<-stopped
			_, err = io.Copy(w, io.LimitReader(&noise{x: 1}, putSize/2))
		}
		if err == nil {
			err = w.Close()
		}
		if err != nil {
			t.Errorf("the write of the library: %v", err)
		}
	})
	for range drainWriters {
		select {
		case <-busy:
		case <-ctx.Done():
			t.Fatal("the streams do not get going")
		}
	}
	begin := time.Now()
	stop()
	if err := s.exited(); err != nil {
		t.Errorf("an engine that is told to stop: %v", err)
	}
	took := time.Since(begin)
	again()
	close(stopped)
	wg.Wait()

	var all int64
	c := s.dial()
	for i, n := range received {
		all += n
		got := readAll(t, c, drainName(i))
		if int64(len(got)) != n {
			t.Errorf("stream %d: %d bytes were received, %d are there", i, n, len(got))
		} else if want := drainContent(i, n); !bytes.Equal(got, want) {
			t.Errorf("stream %d reads other bytes than were sent", i)
		}
	}
	r, err := c.Read(ctx, "put", client.ReadOptions{})
	must(t, err)
	defer r.Close()
	sameBytes(t, r, io.MultiReader(io.LimitReader(&noise{}, putSize/2), io.LimitReader(&noise{x: 1}, putSize/2)))
	figure(t, "stopped while %d streams wrote: %d MiB received, all there, in %.1f s", drainWriters, all>>20, took.Seconds())
}

func drainName(i int) string { return fmt.Sprintf("drain/%d", i) }

// drainContent is what stream i sends first.
func drainContent(i int, n int64) []byte {
	b := make([]byte, n)
	_, _ = (&noise{x: uint64(i + 1)}).Read(b)
	return b
}

// writeUntilDrained writes until the engine ends the stream, and returns how much it says that it has
// received. It sends to busy once the engine has taken a few MiB.
func writeUntilDrained(ctx context.Context, files pb.FileServiceClient, i int, busy chan<- int) (int64, error) {
	stream, err := files.Write(ctx)
	if err != nil {
		return 0, err
	}
	go func() {
		from := &noise{x: uint64(i + 1)}
		for sent := 0; ; sent++ {
			b := make([]byte, drainMessage)
			_, _ = from.Read(b)
			if stream.Send(&pb.WriteRequest{Name: drainName(i), Data: b}) != nil {
				return // what there is to say, Recv hears
			}
		}
	}()
	said := false
	for {
		r, err := stream.Recv()
		if err == nil {
			if r.GetReceivedBytes() >= 4*drainMessage && !said {
				said = true
				busy <- i
			}
			continue
		}
		st := status.Convert(err)
		for _, d := range st.Details() {
			if detail, ok := d.(*pb.WriteDetail); ok && st.Code() == codes.Unavailable {
				return detail.GetLast().GetReceivedBytes(), nil
			}
		}
		return 0, fmt.Errorf("it ends without its position: %w", err)
	}
}

// sameBytes expects two readers to have the same bytes.
func sameBytes(t *testing.T, got, want io.Reader) {
	t.Helper()
	a, b := make([]byte, 1<<20), make([]byte, 1<<20)
	for off := int64(0); ; off += int64(len(a)) {
		n, errA := io.ReadFull(got, a)
		m, errB := io.ReadFull(want, b)
		if n != m || !bytes.Equal(a[:n], b[:m]) {
			t.Fatalf("from %d on the bytes differ: %d and %d of them, %v", off, n, m, errA)
		}
		if errB != nil {
			return
		}
	}
}
