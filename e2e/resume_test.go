package e2e

import (
	"bytes"
	"context"
	"io"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/shingle-store/shingle/api/client"
)

// TestRestartBetweenReceiptAndSync kills the engine after it has received bytes and before they
// are durable. A Sync for the old run is refused; a resuming client ends with the right bytes.
func TestRestartBetweenReceiptAndSync(t *testing.T) {
	s := started(t)
	c := s.dial()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	want, err := io.ReadAll(newMixed(3, 10<<20+77))
	must(t, err)

	w, err := c.Write(ctx, "resumed", client.WriteOptions{})
	must(t, err)
	_, err = w.Write(want[:6<<20])
	must(t, err)
	waitSize(ctx, t, c, "resumed", 6<<20)
	old := w.BootID()
	if old == 0 || w.Durable() == 6<<20 {
		t.Fatalf("run %x, %d bytes durable before any sync", old, w.Durable())
	}

	s.restart()
	_, err = c.Sync(ctx, client.SyncOptions{BootID: old})
	if client.CodeOf(err) != codes.Aborted || !client.IsRestarted(err) {
		t.Fatalf("Sync of what a gone run received answers %v", err)
	}
	must(t, w.Sync(ctx))
	if w.BootID() == old || w.Durable() != 6<<20 {
		t.Fatalf("after the sync: run %x as before %x, %d bytes durable", w.BootID(), old, w.Durable())
	}
	s.restart()
	if got := readAll(t, c, "resumed"); !bytes.Equal(got, want[:6<<20]) {
		t.Fatalf("synced bytes differ after the second restart: %d bytes", len(got))
	}
	_, err = w.Write(want[6<<20:])
	must(t, err)
	must(t, w.Sync(ctx))
	must(t, w.Close())
	s.restart()
	if got := readAll(t, c, "resumed"); !bytes.Equal(got, want) {
		t.Fatalf("the whole file differs: %d bytes", len(got))
	}
}

// waitSize waits until the engine has received so much of a file.
func waitSize(ctx context.Context, t *testing.T, c *client.Client, name string, size int64) {
	t.Helper()
	for {
		f, err := c.Stat(ctx, name)
		switch {
		case err == nil && f.GetSize() >= size:
			return
		case err != nil && !client.IsNotFound(err):
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func readAll(t *testing.T, c *client.Client, name string) []byte {
	t.Helper()
	r, err := c.Read(t.Context(), name, client.ReadOptions{})
	must(t, err)
	defer r.Close()
	b, err := io.ReadAll(r)
	must(t, err)
	return b
}

// TestASecondSignalEndsAtOnce does not let an engine wait for a client that holds it up.
func TestASecondSignalEndsAtOnce(t *testing.T) {
	s := started(t, "--compression", "none", "--drain-timeout", "10m")
	c := s.dial(client.WithRetryTime(0))
	w, err := c.Write(t.Context(), "read slowly", client.WriteOptions{Sync: true})
	must(t, err)
	_, err = io.CopyN(w, &noise{}, 32<<20)
	must(t, err)
	must(t, w.Close())
	r, err := c.Read(t.Context(), "read slowly", client.ReadOptions{})
	must(t, err)
	defer r.Close() // and nothing is taken from it
	must(t, s.cmd.Process.Signal(syscall.SIGTERM))
	select {
	case err := <-s.exit:
		s.cmd = nil
		t.Fatalf("the engine did not wait for the call under way: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	must(t, s.cmd.Process.Signal(syscall.SIGTERM))
	select {
	case err := <-s.exit:
		s.cmd = nil
		if err == nil {
			t.Error("an end in the middle exits with 0")
		}
		if !strings.Contains(s.log.String(), "ended at once by a second signal") {
			t.Error("it does not say why it ended")
		}
	case <-time.After(startTime):
		t.Fatal("the engine does not end")
	}
	s.start()
	if f, err := s.dial().Stat(t.Context(), "read slowly"); err != nil || f.GetSize() != 32<<20 {
		t.Errorf("after the restart: %v, %v", f, err)
	}
}

// TestStopKeepsWhatWasReceived stops the engine in order with data that nobody synced and a
// stream still open: it ends in time and the data is there.
func TestStopKeepsWhatWasReceived(t *testing.T) {
	s := started(t)
	c := s.dial(client.WithRetryTime(0))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	want, err := io.ReadAll(newMixed(4, 3<<20))
	must(t, err)
	w, err := c.Write(ctx, "received", client.WriteOptions{})
	must(t, err)
	defer w.Abort()
	_, err = w.Write(want)
	must(t, err)
	waitSize(ctx, t, c, "received", 3<<20)
	begin := time.Now()
	s.stop()
	if took := time.Since(begin); took > 15*time.Second {
		t.Errorf("stopping took %v with a stream open", took)
	}
	s.start()
	if got := readAll(t, s.dial(), "received"); !bytes.Equal(got, want) {
		t.Fatalf("%d bytes are there, %d were received", len(got), len(want))
	}
}
