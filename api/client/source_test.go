package client

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	shinglev1 "github.com/shingle-store/shingle/api/shingle/v1"

	"github.com/shingle-store/shingle/api/client/clienttest"
)

func TestWriteFromWhole(t *testing.T) {
	s := clienttest.New(t)
	c := dial(t, s)
	for _, m := range modes {
		for _, size := range []int{0, 1, 4096, messageSize - 1, messageSize, messageSize + 1, 9*messageSize + 77} {
			for _, sync := range []bool{false, true} {
				data := noise(uint64(size), size)
				mtime, mode := time.Unix(1e9, 5).UTC(), uint32(0o640)
				name := "dir/" + m.name
				f, err := c.WriteFrom(within(t), name, bytes.NewReader(data), int64(size),
					WriteOptions{Mode: m.mode, Sync: sync, Mtime: mtime, ModeBits: &mode})
				must(t, err)
				if f.GetSize() != int64(size) || !f.GetMtime().AsTime().Equal(mtime) || f.GetMode() != mode {
					t.Fatalf("%s %d: %v", m.name, size, f)
				}
				if !sync {
					s.Writeback()
				}
				holds(t, s, name, data)
				_, err = c.Delete(context.Background(), name, DeleteOptions{})
				must(t, err)
			}
		}
	}
}

func TestWriteFromPartInPlace(t *testing.T) {
	s := clienttest.New(t)
	c := dial(t, s)
	s.Put("a", []byte("0123456789"))
	_, err := c.WriteFrom(within(t), "a", bytes.NewReader([]byte("abcdef")), 4, WriteOptions{Offset: 3, Sync: true})
	must(t, err)
	holds(t, s, "a", []byte("012abcd789"))
}

func TestWriteFromRefusals(t *testing.T) {
	s := clienttest.New(t)
	c := dial(t, s)
	src := bytes.NewReader([]byte("abc"))
	six := int64(6)
	for _, c2 := range []struct {
		name string
		size int64
		o    WriteOptions
		want codes.Code
	}{
		{"negative size", -1, WriteOptions{}, codes.InvalidArgument},
		{"negative offset", 3, WriteOptions{Offset: -1}, codes.InvalidArgument},
		{"replacement at an offset", 3, WriteOptions{Mode: Replace, Offset: 1}, codes.InvalidArgument},
		{"missing", 3, WriteOptions{MustExist: true, ExpectedSize: &six}, codes.NotFound},
	} {
		if f, err := c.WriteFrom(within(t), "a", src, c2.size, c2.o); CodeOf(err) != c2.want || f != nil {
			t.Errorf("%s: %v, %v", c2.name, f, err)
		}
	}
	if _, _, ok := s.Data("a"); ok {
		t.Error("something was written")
	}
	s.Stop()
	if _, err := dial(t, s).WriteFrom(within(t), "a", src, 3, WriteOptions{}); !IsUnavailable(err) {
		t.Errorf("nobody there: %v", err)
	}
}

func TestWriteFromContextEndsIt(t *testing.T) {
	s := clienttest.New(t)
	c := dial(t, s)
	ctx, cancel := context.WithCancel(context.Background())
	src := readerAt(func(p []byte, off int64) (int, error) {
		if off == 2*messageSize {
			cancel()
		}
		return len(p), nil
	})
	if _, err := c.WriteFrom(ctx, "a", src, 50*messageSize, WriteOptions{Mode: Replace}); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	if _, _, ok := s.Data("a"); ok {
		t.Fatal("published")
	}
}

type readerAt func(p []byte, off int64) (int, error)

func (f readerAt) ReadAt(p []byte, off int64) (int, error) { return f(p, off) }

// TestWriteFromAsksForNoSync: the stream has none before its end, however small the windows are,
// and a small file is one message.
func TestWriteFromAsksForNoSync(t *testing.T) {
	for _, size := range []int{5, 12 * messageSize} {
		s := clienttest.New(t)
		var early []int64
		messages, sent := 0, int64(0)
		s.Faults.Write = func(r *shinglev1.WriteRequest) error {
			messages++
			if sent += int64(len(r.Data)); r.Sync && !r.Finish {
				early = append(early, sent)
			}
			return nil
		}
		c := dial(t, s, WithWindow(messageSize))
		data := noise(2, size)
		_, err := c.WriteFrom(within(t), "a", bytes.NewReader(data), int64(size), WriteOptions{Mode: Replace, Window: messageSize})
		must(t, err)
		holds(t, s, "a", data)
		if len(early) != 0 {
			t.Errorf("%d bytes: syncs at %d", size, early)
		}
		if size == 5 && messages != 1 {
			t.Errorf("%d messages", messages)
		}
	}
}

// TestWriteFromReadsLittleAhead: while the engine takes nothing, little is read.
func TestWriteFromReadsLittleAhead(t *testing.T) {
	s := clienttest.New(t)
	hold := make(chan struct{})
	s.Faults.Write = func(*shinglev1.WriteRequest) error { <-hold; return nil }
	c := dial(t, s)
	var most atomic.Int64
	src := readerAt(func(p []byte, off int64) (int, error) {
		most.Store(max(most.Load(), off+int64(len(p))))
		return len(p), nil
	})
	done := make(chan error)
	go func() {
		_, err := c.WriteFrom(within(t), "a", src, 24*messageSize, WriteOptions{Mode: Replace})
		done <- err
	}()
	time.Sleep(100 * time.Millisecond)
	// The message that is read while the window is full, the one being sent, and what gRPC holds.
	if n := most.Load(); n > readAhead+4*messageSize {
		t.Errorf("%d bytes read", n)
	}
	close(hold)
	must(t, <-done)
	if n := most.Load(); n != 24*messageSize {
		t.Errorf("%d bytes read in the end", n)
	}
}

// TestWriteFromSurvivesTrouble: the stream breaks and the engine restarts again and again, with
// more of it durable than was said, or cut inside a message.
func TestWriteFromSurvivesTrouble(t *testing.T) {
	for _, m := range modes {
		for _, c2 := range []struct {
			name    string
			trouble func(s *clienttest.Server) bool // false: there can be none
		}{
			{"drop", func(*clienttest.Server) bool { return true }},
			{"crash", func(s *clienttest.Server) bool { return s.Crash() }},
			{"written back", func(s *clienttest.Server) bool { s.Writeback(); return s.Crash() }},
		} {
			t.Run(m.name+"/"+c2.name, func(t *testing.T) {
				if testing.Short() && c2.name != "crash" {
					t.Skip("not short")
				}
				s := clienttest.New(t)
				c := dial(t, s)
				data := noise(7, 10*messageSize+333)
				var troubles sync.WaitGroup
				var n atomic.Int64 // a stream that was dropped may overlap the next
				var reread, taken atomic.Bool
				s.Faults.Write = func(r *shinglev1.WriteRequest) error {
					if len(r.Data) == 0 {
						return nil
					}
					if k := n.Add(1); k != 6 && k != 15 && k != 18 {
						return nil
					}
					troubles.Go(func() {
						if !c2.trouble(s) {
							taken.Store(true)
						}
					})
					if c2.name == "drop" {
						return errCut
					}
					time.Sleep(10 * time.Millisecond)
					return nil
				}
				var tail atomic.Int64
				src := readerAt(func(p []byte, off int64) (int, error) {
					if off < tail.Load() {
						reread.Store(true)
					}
					tail.Store(off + int64(len(p)))
					return bytes.NewReader(data).ReadAt(p, off)
				})
				_, err := c.WriteFrom(within(t), "a", src, int64(len(data)), WriteOptions{Mode: m.mode, Sync: true})
				troubles.Wait()
				if taken.Load() {
					t.Skip("the port was taken by another process")
				}
				must(t, err)
				holds(t, s, "a", data)
				if !reread.Load() {
					t.Error("nothing was read again")
				}
			})
		}
	}
}

// TestWriteFromGoesOnInsideAMessage: a run that kept part of a message is sent the rest of it.
func TestWriteFromGoesOnInsideAMessage(t *testing.T) {
	data := noise(3, 2*messageSize+5)
	s := source{r: bytes.NewReader(data), size: int64(len(data))}
	for _, pos := range []int64{0, messageSize, 2 * messageSize} {
		_, _, err := s.read(pos)
		must(t, err)
	}
	for _, c := range []struct{ pos, end int64 }{
		{0, messageSize}, {1, messageSize}, {messageSize - 1, messageSize}, {messageSize + 4096, 2 * messageSize},
		{2*messageSize + 4, 2*messageSize + 5}, {2*messageSize + 5, 2*messageSize + 5},
	} {
		got, crc, err := s.read(c.pos)
		must(t, err)
		if want := data[c.pos:c.end]; !bytes.Equal(got, want) || crc != checksum(want) {
			t.Errorf("at %d: %d bytes", c.pos, len(got))
		}
	}
	data[messageSize+5]++
	if _, _, err := s.read(2*messageSize - 1); !errors.Is(err, ErrSourceChanged) {
		t.Errorf("a byte before what is asked for has changed: %v", err)
	}
	if _, _, err := s.read(1); err != nil {
		t.Errorf("another message: %v", err)
	}
}

// TestChangedSourceIsRefused: whatever happens to the source, a mixture is not published.
func TestChangedSourceIsRefused(t *testing.T) {
	const size = 8 * messageSize
	for _, c2 := range []struct {
		name   string
		says   string
		drop   bool
		change func(f *os.File, st fs.FileInfo) error
	}{
		{"other bytes and then a break", "other bytes in [2097152, 3145728)", true, func(f *os.File, st fs.FileInfo) error {
			if _, err := f.WriteAt([]byte("x"), 2*messageSize+3); err != nil {
				return err
			}
			return os.Chtimes(f.Name(), st.ModTime(), st.ModTime()) // nobody is to see
		}},
		{"modified", "it was modified", false, func(f *os.File, st fs.FileInfo) error {
			later := st.ModTime().Add(time.Second)
			return os.Chtimes(f.Name(), later, later)
		}},
		{"grown", "it had 8388608 bytes and has 8388609", false, func(f *os.File, _ fs.FileInfo) error { return f.Truncate(size + 1) }},
		{"cut", "it ends at", false, func(f *os.File, _ fs.FileInfo) error { return f.Truncate(6 * messageSize) }},
	} {
		t.Run(c2.name, func(t *testing.T) {
			s := clienttest.New(t)
			s.Put("a", []byte("old"))
			path := filepath.Join(t.TempDir(), "src")
			must(t, os.WriteFile(path, noise(1, size), 0o600))
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			must(t, err)
			defer f.Close()
			st, err := f.Stat()
			must(t, err)
			changed := make(chan struct{})
			var once sync.Once
			src := changing{f, func(off int64) {
				if off == 4*messageSize {
					once.Do(func() {
						must(t, c2.change(f, st))
						close(changed)
					})
				}
			}}
			if c2.drop {
				s.Faults.Write = func(r *shinglev1.WriteRequest) error {
					if r.GetOffset() == 2*messageSize {
						<-changed
						return errCut
					}
					return nil
				}
			}
			c := dial(t, s)
			_, err = c.Info(context.Background())
			must(t, err)
			_, err = c.WriteFrom(within(t), "a", src, size, WriteOptions{Mode: Replace})
			if !errors.Is(err, ErrSourceChanged) || !bytes.Contains([]byte(err.Error()), []byte(c2.says)) {
				t.Fatalf("got %v", err)
			}
			if data, _, _ := s.Data("a"); string(data) != "old" {
				t.Fatal("published")
			}
		})
	}
}

// changing is a file to which something happens before a read.
type changing struct {
	*os.File
	before func(off int64)
}

func (c changing) ReadAt(p []byte, off int64) (int, error) {
	c.before(off)
	return c.File.ReadAt(p, off)
}

func TestWriteFromReturnsTheSourcesError(t *testing.T) {
	s := clienttest.New(t)
	c := dial(t, s)
	src := readerAt(func(p []byte, off int64) (int, error) {
		if off >= 2*messageSize {
			return 0, io.ErrNoProgress
		}
		return len(p), nil
	})
	if _, err := c.WriteFrom(within(t), "a", src, 4*messageSize, WriteOptions{Mode: Replace}); err != io.ErrNoProgress {
		t.Fatalf("got %v", err)
	}
	f, err := os.Create(filepath.Join(t.TempDir(), "x"))
	must(t, err)
	must(t, f.Close())
	if _, err := c.WriteFrom(within(t), "a", f, 1, WriteOptions{}); !errors.Is(err, fs.ErrClosed) {
		t.Fatalf("a closed file: %v", err)
	}
	if _, _, ok := s.Data("a"); ok {
		t.Fatal("published")
	}
}
