package client

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"pgregory.net/rapid"

	shinglev1 "github.com/shingle-store/shingle/api/shingle/v1"

	"github.com/shingle-store/shingle/api/client/clienttest"
)

var errCut = status.Error(codes.Unavailable, "cut")

// TestPipeSurvivesCrashes: a source that can be read once reaches the engine whole although
// the engine is killed again and again and loses what was not durable.
func TestPipeSurvivesCrashes(t *testing.T) {
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			s := clienttest.New(t)
			c := dial(t, s, WithWindow(4*messageSize))
			data := noise(7, 24*messageSize+333)
			src, dst := io.Pipe()
			go func() {
				for i := 0; i < len(data); i += 300_000 {
					_, _ = dst.Write(data[i:min(i+300_000, len(data))])
				}
				dst.Close()
			}()
			ctx := within(t)
			w, err := c.Write(ctx, "a", WriteOptions{Mode: m.mode, Sync: true})
			must(t, err)
			read := func(n int64) {
				_, err := w.ReadFrom(io.LimitReader(src, n))
				must(t, err)
			}
			for i := range 6 {
				read(int64(4*messageSize - i*1000))
				if i%2 == 0 {
					must(t, w.Sync(ctx))
				}
				if !s.Crash() {
					t.Skip("the port was taken by another process")
				}
			}
			read(int64(len(data)))
			must(t, w.Close())
			holds(t, s, "a", data)
			if w.BootID() != s.Boot() {
				t.Fatal("the acknowledgement is from a run that is gone")
			}
		})
	}
}

// TestSyncWaitsForTheRunThatHasTheBytes: a run that received bytes and died cannot answer for
// them, and the next has to be sent them first.
func TestSyncWaitsForTheRunThatHasTheBytes(t *testing.T) {
	for _, m := range modes {
		s := clienttest.New(t)
		var cut atomic.Bool
		s.Faults.Reply = func(r *shinglev1.WriteResponse) error {
			if cut.Load() {
				return errCut
			}
			return nil
		}
		c := dial(t, s)
		ctx := within(t)
		data := noise(4, 3*messageSize)
		w, err := c.Write(ctx, "a", WriteOptions{Mode: m.mode})
		must(t, err)
		_, err = w.Write(data[:messageSize])
		must(t, err)
		must(t, w.Sync(ctx))
		cut.Store(true)
		_, err = w.Write(data[messageSize:])
		must(t, err)
		short, cancel := context.WithTimeout(ctx, 30*time.Millisecond)
		if err := w.Sync(short); err == nil {
			t.Fatalf("%s: acknowledged without an answer", m.name)
		}
		cancel()
		if !s.Crash() {
			t.Skip("the port was taken by another process")
		}
		cut.Store(false)
		must(t, w.Sync(ctx))
		if m.mode == InPlace {
			holds(t, s, "a", data)
		}
		must(t, w.Close())
		holds(t, s, "a", data)
	}
}

// TestLostFinishReply: the answer to finish is lost; whether the file was published or not,
// the writer finds out and does not publish twice.
func TestLostFinishReply(t *testing.T) {
	for _, before := range []bool{false, true} {
		s := clienttest.New(t)
		var once sync.Once
		cut := func() (err error) {
			once.Do(func() { err = errCut })
			return err
		}
		if before {
			s.Faults.Write = func(r *shinglev1.WriteRequest) error {
				if r.Finish {
					return cut()
				}
				return nil
			}
		} else {
			s.Faults.Reply = func(r *shinglev1.WriteResponse) error {
				if r.State == shinglev1.WriteState_WRITE_STATE_FINISHED {
					return cut()
				}
				return nil
			}
		}
		c := dial(t, s)
		_, err := c.Info(context.Background())
		must(t, err)
		data := noise(5, messageSize+10)
		w, err := c.Write(within(t), "a", WriteOptions{Mode: Replace})
		must(t, err)
		_, err = w.Write(data)
		must(t, err)
		must(t, w.Close())
		holds(t, s, "a", data)
		if w.File().GetSize() != int64(len(data)) {
			t.Fatalf("file %v", w.File())
		}
		f, err := c.Stat(context.Background(), "a")
		must(t, err)
		if f.GetFileId() != w.File().GetFileId() {
			t.Fatal("published twice")
		}
	}
}

// TestStagedFileIsGone: a replacement that the engine forgot, with bytes the writer let go
// of, cannot be made whole and says so.
func TestStagedFileIsGone(t *testing.T) {
	s := clienttest.New(t)
	c := dial(t, s)
	ctx := within(t)
	w, err := c.Write(ctx, "a", WriteOptions{Mode: Replace})
	must(t, err)
	_, err = w.Write(noise(1, 2*messageSize))
	must(t, err)
	must(t, w.Sync(ctx))
	s.Faults.Reply = func(r *shinglev1.WriteResponse) error {
		r.ReceivedBytes, r.DurableBytes = 0, 0
		return nil
	}
	if !s.Crash() {
		t.Skip("the port was taken by another process")
	}
	if err := w.Close(); !IsRestarted(err) || CodeOf(err) != codes.Aborted {
		t.Fatalf("got %v", err)
	}
	if _, _, ok := s.Data("a"); ok {
		t.Fatal("published")
	}
}

// TestInPlaceKeepsToItsFile: after a break another file under the same name is not touched.
func TestInPlaceKeepsToItsFile(t *testing.T) {
	s := clienttest.New(t)
	c := dial(t, s)
	ctx := within(t)
	w, err := c.Write(ctx, "a", WriteOptions{Sync: true})
	must(t, err)
	_, err = w.Write([]byte("mine"))
	must(t, err)
	must(t, w.Sync(ctx))
	s.Stop()
	s.Lose()
	s.Put("a", []byte("other"))
	if !s.Start() {
		t.Skip("the port was taken by another process")
	}
	_, err = w.Write([]byte("more"))
	must(t, err)
	if err := w.Close(); !IsPrecondition(err) {
		t.Fatalf("got %v", err)
	}
	holds(t, s, "a", []byte("other"))
}

func TestRetryTimeIsOver(t *testing.T) {
	s := clienttest.New(t)
	c := dial(t, s, WithRetryTime(200*time.Millisecond))
	w, err := c.Write(within(t), "a", WriteOptions{})
	must(t, err)
	must(t, w.Sync(context.Background()))
	s.Stop()
	start := time.Now()
	_, err = w.Write([]byte("x"))
	must(t, err)
	if err := w.Close(); !IsUnavailable(err) {
		t.Fatalf("got %v", err)
	}
	if d := time.Since(start); d < 150*time.Millisecond || d > 5*time.Second {
		t.Fatalf("gave up after %v", d)
	}
}

// TestDeadlineBetweenAttempts: a deadline that ends the last of several attempts does not hide what the
// others were told.
func TestDeadlineBetweenAttempts(t *testing.T) {
	s := clienttest.New(t)
	c := dial(t, s)
	calls := 0
	s.Faults.Call = func(string) error {
		if calls++; calls > 2 {
			time.Sleep(2 * time.Second)
		}
		return clienttest.Errorf(codes.Unavailable, "DRAINING", nil, "going down")
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if _, err := c.Usage(ctx); !IsUnavailable(err) || ReasonOf(err) != "DRAINING" {
		t.Errorf("got %v", err)
	}
	// The call that was given up may still be on its way there, so the next has a server of its own.
	s = clienttest.New(t)
	c = dial(t, s)
	s.Faults.Call = func(string) error { time.Sleep(100 * time.Millisecond); return nil }
	short, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if _, err := c.Usage(short); CodeOf(err) != codes.DeadlineExceeded {
		t.Errorf("of the first attempt: %v", err)
	}
}

// TestFruitlessStreamsEnd: an engine that always takes the stream and never the bytes.
func TestFruitlessStreamsEnd(t *testing.T) {
	s := clienttest.New(t)
	n := 0
	s.Faults.Write = func(r *shinglev1.WriteRequest) error {
		if len(r.Data) > 0 {
			n++
			return errCut
		}
		return nil
	}
	c := dial(t, s)
	_, err := c.Info(context.Background())
	must(t, err)
	w, err := c.Write(within(t), "a", WriteOptions{})
	must(t, err)
	_, err = w.Write([]byte("x"))
	must(t, err)
	if err := w.Close(); !IsUnavailable(err) {
		t.Fatalf("got %v", err)
	}
	if n > fruitlessStreams+2 {
		t.Fatalf("%d tries", n)
	}
}

// TestLiesAreNotBelieved: replies that cannot be true end the write.
func TestLiesAreNotBelieved(t *testing.T) {
	for _, c := range []struct {
		name string
		mode WriteMode
		lie  func(*shinglev1.WriteResponse)
	}{
		{"received more than sent", InPlace, func(r *shinglev1.WriteResponse) { r.ReceivedBytes += 1000 }},
		{"durable more than received", InPlace, func(r *shinglev1.WriteResponse) { r.DurableBytes = r.ReceivedBytes + 1 }},
		{"published but not durable", Replace, func(r *shinglev1.WriteResponse) { r.DurableBytes = 0 }},
	} {
		s := clienttest.New(t)
		s.Faults.Reply = func(r *shinglev1.WriteResponse) error { c.lie(r); return nil }
		w, err := dial(t, s).Write(within(t), "a", WriteOptions{Mode: c.mode, Sync: true})
		must(t, err)
		_, err = w.Write([]byte("abc"))
		must(t, err)
		if err := w.Close(); CodeOf(err) != codes.Internal {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// TestFencedByAnother: somebody else with the same write id ends this write.
func TestFencedByAnother(t *testing.T) {
	s := clienttest.New(t)
	c := dial(t, s)
	ctx := within(t)
	w, err := c.Write(ctx, "a", WriteOptions{})
	must(t, err)
	must(t, w.Sync(ctx))
	other, err := c.files.Write(ctx)
	must(t, err)
	must(t, other.Send(&shinglev1.WriteRequest{Name: "a", Report: true, Options: &shinglev1.WriteOptions{WriteId: w.writeID}}))
	_, err = other.Recv()
	must(t, err)
	_, err = w.Write([]byte("x"))
	must(t, err)
	if err := w.Close(); ReasonOf(err) != "FENCED" {
		t.Fatalf("got %v", err)
	}
	must(t, other.CloseSend())
	for err == nil {
		_, err = other.Recv()
	}
}

// TestRandomTrouble writes under random cuts before and after messages take effect, lost
// replies, silent writeback and crashes; what is durable in the end is what was written, and
// what Sync acknowledged was durable then.
func TestRandomTrouble(t *testing.T) {
	s := clienttest.New(t)
	s.AckInterval = 50_000
	var rngMu sync.Mutex
	var rng *rand.Rand
	odds := 0.0
	chance := func(scale float64) bool {
		rngMu.Lock()
		defer rngMu.Unlock()
		return rng.Float64() < odds*scale
	}
	s.Faults.Write = func(*shinglev1.WriteRequest) error {
		if chance(0.5) {
			s.Writeback()
		}
		if chance(1) {
			return errCut
		}
		return nil
	}
	s.Faults.Reply = func(*shinglev1.WriteResponse) error {
		if chance(1) {
			return errCut
		}
		return nil
	}
	c := dial(t, s)
	_, err := c.Info(context.Background())
	must(t, err)
	round, most := 0, 25 // restarts cost tens of milliseconds each
	if testing.Short() {
		most = 5
	}
	rapid.Check(t, func(t *rapid.T) {
		round++
		if round > most {
			return
		}
		rngMu.Lock()
		rng = rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		odds = 0.15
		rngMu.Unlock()
		mode := rapid.SampledFrom([]WriteMode{InPlace, Replace}).Draw(t, "mode")
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		// A name of its own: a stream of an earlier round may still be on its way to the engine.
		name := fmt.Sprintf("f%d", round)
		w, err := c.Write(ctx, name, WriteOptions{Mode: mode, Sync: true})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Abort()
		var all []byte
		for range rapid.IntRange(1, 8).Draw(t, "steps") {
			switch rapid.IntRange(0, 9).Draw(t, "step") {
			case 0:
				if !s.Crash() {
					t.Skip("the port was taken by another process")
				}
			case 1, 2, 3:
				if err := w.Sync(ctx); err != nil {
					t.Fatal(err)
				}
				if w.Durable() != int64(len(all)) {
					t.Fatalf("Sync with %d of %d durable", w.Durable(), len(all))
				}
				if _, durable, _ := s.Data(name); mode == InPlace && !bytes.Equal(durable, all) {
					t.Fatal("Sync lied")
				}
			default:
				p := noise(rapid.Uint64().Draw(t, "noise"), rapid.IntRange(0, 3<<19).Draw(t, "size"))
				all = append(all, p...)
				if _, err := w.Write(p); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if _, durable, ok := s.Data(name); !ok || !bytes.Equal(durable, all) {
			t.Fatalf("%d durable bytes are not the %d written", len(durable), len(all))
		}
	})
}
