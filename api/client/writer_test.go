package client

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"slices"
	"testing"
	"testing/iotest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	shinglev1 "github.com/shingle-store/shingle/api/shingle/v1"

	"github.com/shingle-store/shingle/api/client/clienttest"
)

var modes = []struct {
	name string
	mode WriteMode
}{{"in place", InPlace}, {"replace", Replace}}

func TestWriteWhole(t *testing.T) {
	s := clienttest.New(t)
	c := dial(t, s)
	for _, m := range modes {
		for _, size := range []int{0, 1, 511, 512, 4096, messageSize - 1, messageSize, messageSize + 1, 5*messageSize + 77} {
			for _, hint := range []bool{false, true} {
				data := noise(uint64(size), size)
				mtime, mode, want := time.Unix(1e9, 5).UTC(), uint32(0o640), int64(size)
				o := WriteOptions{Mode: m.mode, Sync: true, Mtime: mtime, ModeBits: &mode}
				if hint {
					o.ExpectedSize = &want
				}
				name := "dir/" + m.name
				w, err := c.Write(within(t), name, o)
				must(t, err)
				n, err := w.ReadFrom(bytes.NewReader(data))
				must(t, err)
				must(t, w.Close())
				if n != int64(size) || w.Durable() != n || w.BootID() != s.Boot() {
					t.Fatalf("%s %d: n %d, durable %d, boot %d", m.name, size, n, w.Durable(), w.BootID())
				}
				f := w.File()
				if f.GetSize() != n || !f.GetMtime().AsTime().Equal(mtime) || f.GetMode() != mode {
					t.Fatalf("%s %d: %v", m.name, size, f)
				}
				holds(t, s, name, data)
				_, err = c.Delete(context.Background(), name, DeleteOptions{})
				must(t, err)
			}
		}
	}
}

func TestSmallFileIsOneMessage(t *testing.T) {
	s := clienttest.New(t)
	messages := 0
	s.Faults.Write = func(*shinglev1.WriteRequest) error { messages++; return nil }
	c := dial(t, s)
	w, err := c.Write(within(t), "a", WriteOptions{Mode: Replace})
	must(t, err)
	_, err = io.WriteString(w, "hello")
	must(t, err)
	must(t, w.Close())
	if messages != 1 {
		t.Fatalf("%d messages", messages)
	}
}

func TestWriteAt(t *testing.T) {
	s := clienttest.New(t)
	c := dial(t, s)
	s.Put("a", bytes.Repeat([]byte{'.'}, 10))
	w, err := c.Write(within(t), "a", WriteOptions{Offset: 2, Sync: true})
	must(t, err)
	_, err = w.Write([]byte("ab"))
	must(t, err)
	_, err = w.WriteAt([]byte("xy"), 8)
	must(t, err)
	_, err = w.Write([]byte("z"))
	must(t, err)
	_, err = w.WriteAt([]byte("q"), 0)
	must(t, err)
	if _, err = w.WriteAt(nil, -1); !IsInvalid(err) {
		t.Errorf("negative offset: %v", err)
	}
	must(t, w.Close())
	holds(t, s, "a", []byte("q.ab....xyz"))

	w, err = c.Write(within(t), "a", WriteOptions{Mode: Replace})
	must(t, err)
	if _, err := w.WriteAt([]byte("x"), 1); !IsInvalid(err) {
		t.Errorf("gap in a replacement: %v", err)
	}
	_, err = w.WriteAt([]byte("x"), 0)
	must(t, err)
	must(t, w.Close())
	holds(t, s, "a", []byte("x"))
}

func TestSyncCoversEverythingBefore(t *testing.T) {
	for _, m := range modes {
		s := clienttest.New(t)
		c := dial(t, s)
		w, err := c.Write(within(t), "a", WriteOptions{Mode: m.mode})
		must(t, err)
		must(t, w.Sync(context.Background()))
		var all []byte
		for i := range 5 {
			p := noise(uint64(i), 100_000*i+1)
			all = append(all, p...)
			_, err := w.Write(p)
			must(t, err)
			must(t, w.Sync(context.Background()))
			if w.Durable() != int64(len(all)) {
				t.Fatalf("%s: %d of %d durable", m.name, w.Durable(), len(all))
			}
			if m.mode == InPlace {
				holds(t, s, "a", all)
			}
		}
		must(t, w.Close())
		holds(t, s, "a", all)
	}
}

// TestWindowIsBounded: a source of unknown length passes through a small window.
func TestWindowIsBounded(t *testing.T) {
	s := clienttest.New(t)
	c := dial(t, s, WithWindow(3*messageSize))
	data := noise(3, 20*messageSize+5)
	w, err := c.Write(within(t), "a", WriteOptions{Mode: Replace})
	must(t, err)
	most := int64(0)
	src := readerFunc(func(p []byte) (int, error) {
		w.mu.Lock()
		most = max(most, w.win.accepted-w.win.base())
		w.mu.Unlock()
		if len(data) == 0 {
			return 0, io.EOF
		}
		n := copy(p, data)
		data = data[n:]
		return n, nil
	})
	_, err = w.ReadFrom(src)
	must(t, err)
	must(t, w.Close())
	holds(t, s, "a", noise(3, 20*messageSize+5))
	if most > 3*messageSize {
		t.Fatalf("held %d bytes", most)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestWriteRefusals(t *testing.T) {
	s := clienttest.New(t)
	c := dial(t, s)
	s.Put("a", []byte("old"))
	one, zero := uint64(12345), int64(0)
	for _, c2 := range []struct {
		name   string
		file   string
		o      WriteOptions
		code   codes.Code
		reason string
	}{
		{"missing", "no", WriteOptions{MustExist: true}, codes.NotFound, "NOT_FOUND"},
		{"other file", "a", WriteOptions{IfMatch: &Preconditions{FileId: &one}}, codes.FailedPrecondition, "PRECONDITION"},
		{"must be new", "a", WriteOptions{Mode: Replace, IfMatch: &Preconditions{Generation: &zero}}, codes.FailedPrecondition, "PRECONDITION"},
		{"parent", "d", WriteOptions{}, codes.FailedPrecondition, "NOT_A_FILE"},
	} {
		if c2.file == "d" {
			s.Put("d/x", nil)
		}
		w, err := c.Write(within(t), c2.file, c2.o)
		must(t, err)
		_, err = w.Write([]byte("new"))
		must(t, err)
		err = w.Close()
		if CodeOf(err) != c2.code || ReasonOf(err) != c2.reason {
			t.Errorf("%s: %v", c2.name, err)
		}
		if again := w.Close(); again != err {
			t.Errorf("%s: the second Close said %v", c2.name, again)
		}
		if _, werr := w.Write([]byte("x")); werr != fs.ErrClosed {
			t.Errorf("%s: Write after Close: %v", c2.name, werr)
		}
		if w.File() != nil {
			t.Errorf("%s: there is a file", c2.name)
		}
	}
	holds(t, s, "a", []byte("old"))
	if _, err := c.Write(context.Background(), "a", WriteOptions{Offset: -1}); !IsInvalid(err) {
		t.Errorf("negative offset: %v", err)
	}
	if _, err := c.Write(context.Background(), "a", WriteOptions{Offset: 1, Mode: Replace}); !IsInvalid(err) {
		t.Errorf("replacement at an offset: %v", err)
	}
}

func TestSourceErrorIsReturnedAsItIs(t *testing.T) {
	s := clienttest.New(t)
	c := dial(t, s)
	w, err := c.Write(within(t), "a", WriteOptions{Mode: Replace})
	must(t, err)
	src := io.MultiReader(bytes.NewReader(noise(1, 2*messageSize)), iotest.ErrReader(io.ErrNoProgress))
	if _, err := w.ReadFrom(src); err != io.ErrNoProgress {
		t.Fatalf("got %v", err)
	}
	w.Abort()
	if err := w.Close(); !errors.Is(err, context.Canceled) {
		t.Fatalf("Close after Abort: %v", err)
	}
	if _, _, ok := s.Data("a"); ok {
		t.Fatal("an aborted replacement was published")
	}
}

func TestAbortUnblocksEverybody(t *testing.T) {
	s := clienttest.New(t)
	hold := make(chan struct{})
	s.Faults.Reply = func(*shinglev1.WriteResponse) error { <-hold; return nil }
	c := dial(t, s, WithWindow(messageSize))
	w, err := c.Write(within(t), "a", WriteOptions{})
	must(t, err)
	done := make(chan error)
	go func() {
		_, err := w.Write(make([]byte, 4*messageSize))
		done <- err
	}()
	for full := false; !full; time.Sleep(time.Millisecond) {
		w.mu.Lock()
		full = w.win.accepted == messageSize
		w.mu.Unlock()
	}
	go w.Abort()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Fatalf("Write: %v", err)
	}
	close(hold)
	w.Abort()
}

// TestStalledRepliesDelayAcknowledgement: without the server's word nothing counts as durable.
func TestStalledRepliesDelayAcknowledgement(t *testing.T) {
	s := clienttest.New(t)
	hold := make(chan struct{})
	s.Faults.Reply = func(*shinglev1.WriteResponse) error { <-hold; return nil }
	c := dial(t, s)
	w, err := c.Write(within(t), "a", WriteOptions{Sync: true})
	must(t, err)
	_, err = w.Write(noise(1, 1000))
	must(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if err := w.Sync(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("Sync without an answer: %v", err)
	}
	close(hold)
	must(t, w.Sync(context.Background()))
	must(t, w.Close())
}

func TestContextEndsTheWrite(t *testing.T) {
	s := clienttest.New(t)
	c := dial(t, s)
	ctx, cancel := context.WithCancel(context.Background())
	w, err := c.Write(ctx, "a", WriteOptions{Mode: Replace})
	must(t, err)
	_, err = w.Write(make([]byte, 3*messageSize))
	must(t, err)
	cancel()
	if err := w.Close(); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
}

func TestNobodyThereFailsAtOnce(t *testing.T) {
	s := clienttest.New(t)
	c := dial(t, s)
	s.Stop()
	start := time.Now()
	w, err := c.Write(context.Background(), "a", WriteOptions{})
	must(t, err)
	if err := w.Close(); !IsUnavailable(err) {
		t.Fatalf("got %v", err)
	}
	if d := time.Since(start); d > 5*time.Second {
		t.Fatalf("took %v", d)
	}
}

// TestErrorCarriesDetails: what the server packs into an error arrives typed.
func TestErrorCarriesDetails(t *testing.T) {
	s := clienttest.New(t)
	s.Faults.Write = func(*shinglev1.WriteRequest) error {
		return clienttest.Errorf(codes.ResourceExhausted, "NO_SPACE", map[string]string{"free": "4096"}, "full",
			&shinglev1.SpaceDetail{Usage: &Usage{FreeBytes: 4096}})
	}
	c := dial(t, s)
	w, err := c.Write(within(t), "a", WriteOptions{})
	must(t, err)
	err = w.Close()
	var e *Error
	if !errors.As(err, &e) || !IsNoSpace(err) || e.Reason != "NO_SPACE" || e.Meta["free"] != "4096" ||
		e.Usage().GetFreeBytes() != 4096 || e.Corruption() != nil {
		t.Fatalf("got %#v", err)
	}
	if want := "resource exhausted: full (NO_SPACE)"; err.Error() != want {
		t.Fatalf("reads %q, want %q", err, want)
	}
	if status.Code(e.Unwrap()) != codes.ResourceExhausted {
		t.Fatalf("the cause is %v", e.Unwrap())
	}
}

func TestMangledMessageIsSentAgain(t *testing.T) {
	for _, m := range modes {
		s := clienttest.New(t)
		c := dial(t, s)
		n := 0
		s.Faults.Write = func(r *shinglev1.WriteRequest) error {
			if n++; len(r.Data) > 0 && slices.Contains([]int{3, 5}, n) {
				r.Data[0] ^= 1
			}
			return nil
		}
		data := noise(9, 6*messageSize)
		w, err := c.Write(within(t), "a", WriteOptions{Mode: m.mode, Sync: true})
		must(t, err)
		_, err = w.Write(data)
		must(t, err)
		must(t, w.Close())
		holds(t, s, "a", data)
	}
}
