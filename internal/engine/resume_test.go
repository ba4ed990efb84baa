package engine

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shingle-store/shingle/internal/csum"
	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
)

func openWriter(t testing.TB, e *Engine, o WriterOptions) *Writer {
	t.Helper()
	w, err := e.OpenWriter(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func mustWrite(t testing.TB, w *Writer, data []byte) {
	t.Helper()
	for len(data) > 0 {
		n := min(len(data), 1<<20)
		if err := w.Write(context.Background(), nil, [][]byte{data[:n]}, nil); err != nil {
			t.Fatal(err)
		}
		data = data[n:]
	}
}

func ptr[T any](v T) *T { return &v }

func missing(t testing.TB, e *Engine, name string) {
	t.Helper()
	if f, err := e.Get(context.Background(), Ref{Name: name}); !errdefs.Is(err, errdefs.NotFound) {
		t.Errorf("%s should not be there: %+v, %v", name, f, err)
	}
}

// TestSyncOfAnotherRun says that an OK of this run would lie about what another one received.
func TestSyncOfAnotherRun(t *testing.T) {
	b := newFaultBench(t, smallZNS, Options{})
	e := b.open()
	ctx := context.Background()
	writeAt(t, e, "f", 0, noise(1, 100_000))
	old := e.Info().BootID
	if r, err := e.Sync(ctx, []string{"f"}, &old); err != nil || r.BootID != old || r.CommitSequence == 0 {
		t.Fatalf("the sync of this run: %+v, %v", r, err)
	}
	for range 2 {
		e = b.reopen()
		if e.Info().BootID == old {
			t.Fatal("the boot id repeats")
		}
		for _, names := range [][]string{nil, {"f"}, {"nothing"}} {
			_, err := e.Sync(ctx, names, &old)
			wantError(t, err, errdefs.Aborted, errdefs.ReasonRestarted)
		}
	}
	now := e.Info().BootID
	if _, err := e.Sync(ctx, nil, &now); err != nil {
		t.Error(err)
	}
	if _, err := e.Sync(ctx, []string{"f", "nothing"}, nil); !errdefs.Is(err, errdefs.NotFound) {
		t.Errorf("the sync of a file that is not there: %v", err)
	}
}

// TestFencing lets a second stream with a write_id take over from the first in the same run.
func TestFencing(t *testing.T) {
	for _, mode := range []WriteMode{InPlace, Replace} {
		for _, closed := range []bool{false, true} {
			t.Run(fmt.Sprintf("mode=%d/closed=%t", mode, closed), func(t *testing.T) {
				b := newFaultBench(t, smallZNS, Options{})
				e := b.open()
				ctx := context.Background()
				data := noise(1, 3<<20)
				o := WriterOptions{Name: "f", Mode: mode, WriteID: "w"}
				first := openWriter(t, e, o)
				mustWrite(t, first, data[:1_500_000])
				if closed {
					first.Close()
				}
				if _, err := e.OpenWriter(ctx, WriterOptions{Name: "g", Mode: mode, WriteID: "w"}); !errdefs.Is(err, errdefs.InvalidArgument) {
					t.Fatalf("the write_id of a write of another file: %v", err)
				}
				second := openWriter(t, e, o)
				if r, _ := second.Position(); r != 1_500_000 {
					t.Fatalf("the second stream goes on at %d", r)
				}
				err := first.Write(ctx, nil, [][]byte{data[:10]}, nil)
				wantError(t, err, errdefs.Aborted, errdefs.ReasonFenced)
				_, err = first.Finish(ctx, nil)
				wantError(t, err, errdefs.Aborted, errdefs.ReasonFenced)
				first.Close() // drops nothing
				mustWrite(t, second, data[1_500_000:])
				f, err := second.Finish(ctx, ptr(csum.Sum(data)))
				if err != nil || f.Size != int64(len(data)) {
					t.Fatal(f, err)
				}
				again, err := second.Finish(ctx, nil)
				if err != nil || again.ID != f.ID || again.Size != f.Size {
					t.Fatalf("finishing twice: %+v, %v", again, err)
				}
				second.Close()
				sameFile(t, e, "f", data)
				syncAll(t, e)
				checkQuiet(t, e)
				if files := e.files.byID; len(files) != 0 {
					t.Errorf("%d files are still open", len(files))
				}
			})
		}
	}
}

// TestOpenAtOnce opens many streams with one write_id at the same time: one of them has the write.
func TestOpenAtOnce(t *testing.T) {
	for _, mode := range []WriteMode{InPlace, Replace} {
		b := newFaultBench(t, smallZNS, Options{})
		e := b.open()
		ctx := context.Background()
		var wg sync.WaitGroup
		var taken atomic.Int64
		ws := make([]*Writer, 16)
		for i := range ws {
			wg.Go(func() {
				w, err := e.OpenWriter(ctx, WriterOptions{Name: "f", Mode: mode, WriteID: "w"})
				if err != nil {
					t.Error(err)
					return
				}
				ws[i] = w
				if err := w.Write(ctx, nil, [][]byte{{byte(i + 1)}}, nil); err == nil {
					taken.Add(1)
				} else if errdefs.ReasonOf(err) != errdefs.ReasonFenced {
					t.Error(err)
				}
				if i%3 == 0 {
					w.Close()
				}
			})
		}
		wg.Wait()
		w := openWriter(t, e, WriterOptions{Name: "f", Mode: mode, WriteID: "w"})
		if r, _ := w.Position(); r != taken.Load() {
			t.Errorf("the position is %d after %d messages of a byte were taken", r, taken.Load())
		}
		f, err := w.Finish(ctx, nil)
		if err != nil || f.Size != taken.Load() {
			t.Errorf("the file is %+v, %v; %d bytes were taken", f, err, taken.Load())
		}
		w.Close()
		for _, w := range ws {
			if w != nil {
				w.Close()
			}
		}
		syncAll(t, e)
		checkQuiet(t, e)
		if n, m := len(e.files.byID), len(e.sessions.byID); n+m != 0 {
			t.Errorf("%d files and %d sessions are left", n, m)
		}
	}
}

// TestResumeAfterCrash goes on with a replace where the old run had made it durable.
func TestResumeAfterCrash(t *testing.T) {
	modes(t, func(t *testing.T, o Options) {
		for _, finish := range []bool{false, true} { // lose the answer of finish, too
			b := newFaultBench(t, smallZNS, o)
			e := b.open()
			ctx := context.Background()
			old, data := noise(1, 50_000), append(text(2, 1_000_001), noise(3, 700_000)...)
			put(t, e, "f", old)
			wo := WriterOptions{Name: "f", Mode: Replace, WriteID: "upload 1"}
			w := openWriter(t, e, wo)
			mustWrite(t, w, data[:900_001])
			if err := w.Sync(ctx); err != nil {
				t.Fatal(err)
			}
			if r, d := w.Position(); r != 900_001 || d != r {
				t.Fatalf("after a sync the positions are %d and %d", r, d)
			}
			mustWrite(t, w, data[900_001:1_300_000])
			boot := e.Info().BootID
			e = b.crash(3)
			if e.Info().BootID == boot {
				t.Fatal("the boot id repeats")
			}
			sameFile(t, e, "f", old)
			w = openWriter(t, e, wo)
			received, durable := w.Position()
			if received != durable || received < 900_001 || received > 1_300_000 {
				t.Fatalf("the stream goes on at %d, %d", received, durable)
			}
			mustWrite(t, w, data[received:])
			_, err := w.Finish(ctx, ptr(csum.Sum(data)+1))
			wantError(t, err, errdefs.InvalidArgument, errdefs.ReasonPayloadChecksum)
			sameFile(t, e, "f", old)
			f, err := w.Finish(ctx, ptr(csum.Sum(data)))
			if err != nil || f.Size != int64(len(data)) || f.ContentCRC == nil || *f.ContentCRC != csum.Sum(data) {
				t.Fatalf("finish: %+v, %v", f, err)
			}
			if finish {
				e = b.crash(4)
			} else {
				w.Close()
			}
			sameFile(t, e, "f", data)
			e = b.reopen()
			sameFile(t, e, "f", data)
			eventually(t, "the old content is freed", func() bool { return e.orphans.Load() == 0 })
			syncAll(t, e)
			checkQuiet(t, e)
		}
	})
}

// TestUnfinishedReplace publishes nothing, and goes without a trace.
func TestUnfinishedReplace(t *testing.T) {
	modes(t, func(t *testing.T, o Options) {
		b := newFaultBench(t, smallZNS, o)
		e := b.open()
		old := noise(1, 50_000)
		put(t, e, "old", old)
		used := e.Usage().Used
		for _, synced := range []bool{false, true} {
			for _, name := range []string{"old", "new"} {
				w := openWriter(t, e, WriterOptions{Name: name, Mode: Replace})
				mustWrite(t, w, noise(2, 2_000_000))
				if synced {
					if err := w.Sync(context.Background()); err != nil {
						t.Fatal(err)
					}
				}
				w.Close()
				w.Close()
				missing(t, e, "new")
				sameFile(t, e, "old", old)
			}
		}
		syncAll(t, e)
		eventually(t, "what was staged is freed", func() bool { return e.Usage().Used == used })
		syncAll(t, e)
		checkQuiet(t, e)
		files, _, err := e.List(context.Background(), ListRequest{Recursive: true})
		if err != nil || len(files) != 1 {
			t.Errorf("listed %+v, %v", files, err)
		}
		if n := len(e.files.byID); n != 0 {
			t.Errorf("%d files are still open", n)
		}
	})
}

// TestStagedExpires drops an unfinished resumable replace when its time is up: in the run that
// received it, and in a later one.
func TestStagedExpires(t *testing.T) {
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprintf("restart=%t", restart), func(t *testing.T) {
			var now atomic.Int64
			now.Store(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).UnixNano())
			clock := func() time.Time { return time.Unix(0, now.Load()) }
			b := newFaultBench(t, smallZNS, Options{Now: clock, StagedTTL: time.Hour, WritebackAge: 24 * time.Hour})
			e := b.open()
			o := WriterOptions{Name: "f", Mode: Replace, WriteID: "w"}
			data := noise(1, 500_000)
			w := openWriter(t, e, o)
			mustWrite(t, w, data)
			if err := w.Sync(context.Background()); err != nil {
				t.Fatal(err)
			}
			w.Close()
			if restart {
				e = b.reopen()
			}
			now.Add(int64(59 * time.Minute))
			e.orphanKick.set()
			w = openWriter(t, e, o)
			if r, d := w.Position(); r != 500_000 || d != r {
				t.Fatalf("before its time is up the positions are %d and %d", r, d)
			}
			w.Close()
			now.Add(int64(2 * time.Hour))
			e.orphanKick.set()
			eventually(t, "it is dropped", func() bool { return e.Usage().Used == 0 && e.orphans.Load() == 0 })
			w = openWriter(t, e, o)
			if r, d := w.Position(); r != 0 || d != 0 {
				t.Errorf("after its time the positions are %d and %d", r, d)
			}
			mustWrite(t, w, data[:1000])
			if _, err := w.Finish(context.Background(), nil); err != nil {
				t.Fatal(err)
			}
			w.Close()
			sameFile(t, e, "f", data[:1000])
			syncAll(t, e)
			checkQuiet(t, e)
		})
	}
}

// TestFinishRefuses holds what a replace promised against what it got.
func TestFinishRefuses(t *testing.T) {
	b := newFaultBench(t, smallZNS, Options{})
	e := b.open()
	ctx := context.Background()
	data := noise(1, 300_000)
	w := openWriter(t, e, WriterOptions{Name: "f", Mode: Replace, ExpectedSize: ptr(int64(300_001))})
	mustWrite(t, w, data)
	_, err := w.Finish(ctx, nil)
	wantError(t, err, errdefs.Precondition, errdefs.ReasonSizeMismatch)
	missing(t, e, "f")
	mustWrite(t, w, []byte("x"))
	if f, err := w.Finish(ctx, nil); err != nil || f.Size != 300_001 {
		t.Fatalf("after the rest has come: %+v, %v", f, err)
	}
	w.Close()

	w = openWriter(t, e, WriterOptions{Name: "g", ExpectedSize: ptr(int64(10))})
	mustWrite(t, w, data)
	_, err = w.Finish(ctx, nil)
	wantError(t, err, errdefs.Precondition, errdefs.ReasonSizeMismatch)
	w.Close()

	if _, err := e.OpenWriter(ctx, WriterOptions{Name: "h", Mode: Replace, ExpectedSize: ptr(int64(1 << 40))}); !errdefs.Is(err, errdefs.NoSpace) {
		t.Errorf("more than the store can ever hold: %v", err)
	}

	// A checksum of a message, and of content that did not come in order.
	w = openWriter(t, e, WriterOptions{Name: "h", Mode: Replace})
	bad := csum.Sum(data[:1000]) ^ 1
	err = w.Write(ctx, nil, [][]byte{data[:1000]}, &bad)
	wantError(t, err, errdefs.InvalidArgument, errdefs.ReasonPayloadChecksum)
	if r, _ := w.Position(); r != 0 {
		t.Errorf("the refused message counts as %d bytes", r)
	}
	half := int64(150_000)
	for _, off := range []int64{half, 0} {
		if err := w.Write(ctx, &off, [][]byte{data[off : off+half]}, ptr(csum.Sum(data[off:off+half]))); err != nil {
			t.Fatal(err)
		}
	}
	_, err = w.Finish(ctx, &bad)
	wantError(t, err, errdefs.InvalidArgument, errdefs.ReasonPayloadChecksum)
	f, err := w.Finish(ctx, ptr(csum.Sum(data)))
	if err != nil || *f.ContentCRC != csum.Sum(data) {
		t.Fatalf("%+v, %v", f, err)
	}
	w.Close()
	sameFile(t, e, "h", data)
	writeAt(t, e, "h", 5, []byte("x"))
	if f, err := e.Get(ctx, Ref{Name: "h"}); err != nil || f.ContentCRC != nil {
		t.Errorf("the checksum of content that has changed: %+v, %v", f, err)
	}
	syncAll(t, e)
	checkQuiet(t, e)
}

// TestWriteRefuses says that a refused message changes nothing.
func TestWriteRefuses(t *testing.T) {
	b := newFaultBench(t, smallZNS, Options{})
	e := b.open()
	ctx := context.Background()
	w := openWriter(t, e, WriterOptions{Name: "f"})
	defer w.Close()
	mustWrite(t, w, []byte("content"))
	for _, c := range []struct {
		off  int64
		data []byte
	}{
		{-1, []byte("x")}, {extent.MaxFileSize, []byte("x")}, {1<<63 - 1, []byte("xy")}, {0, make([]byte, maxMessage+1)}, {-5, nil},
	} {
		if err := w.Write(ctx, &c.off, [][]byte{c.data}, nil); !errdefs.Is(err, errdefs.InvalidArgument) {
			t.Errorf("%d bytes at %d: %v", len(c.data), c.off, err)
		}
	}
	// Nothing at all is a message, and never extends.
	if err := w.Write(ctx, ptr(int64(1<<30)), nil, nil); err != nil {
		t.Errorf("an empty message: %v", err)
	}
	sameFile(t, e, "f", []byte("content"))
	for name, o := range map[string]WriterOptions{
		"a name that is none":  {Name: "a//b"},
		"a file that is there": {Name: "f", If: Preconditions{Generation: ptr(int64(0))}},
		"another generation":   {Name: "f", If: Preconditions{Generation: ptr(int64(7))}},
		"another id":           {Name: "f", If: Preconditions{FileID: ptr(uint64(1 << 40))}},
		"another size":         {Name: "f", If: Preconditions{Size: ptr(int64(8))}},
		"a size of nothing":    {Name: "none", If: Preconditions{Size: ptr(int64(8))}},
		"none, and must exist": {Name: "none", MustExist: true},
	} {
		for _, mode := range []WriteMode{InPlace, Replace} {
			if mode == Replace && o.MustExist {
				continue
			}
			o.Mode = mode
			if w, err := e.OpenWriter(ctx, o); err == nil {
				w.Close()
				t.Errorf("%s: opened in mode %d", name, mode)
			}
		}
	}
	missing(t, e, "none")
	syncAll(t, e)
	checkQuiet(t, e)
}

// TestFinishPreconditions says that a replace holds its preconditions against what the name
// stands for when it takes it.
func TestFinishPreconditions(t *testing.T) {
	b := newFaultBench(t, smallZNS, Options{})
	e := b.open()
	ctx := context.Background()
	fresh := Preconditions{Generation: ptr(int64(0))}
	a := openWriter(t, e, WriterOptions{Name: "f", Mode: Replace, If: fresh})
	c := openWriter(t, e, WriterOptions{Name: "f", Mode: Replace, If: fresh})
	mustWrite(t, a, []byte("a"))
	mustWrite(t, c, []byte("c"))
	f, err := a.Finish(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Finish(ctx, nil)
	wantError(t, err, errdefs.Precondition, errdefs.ReasonPrecondition)
	if !strings.Contains(err.Error(), "generation") {
		t.Errorf("the refusal says %v", err)
	}
	a.Close()
	c.Close()
	same := Preconditions{Generation: &f.Generation}
	w := openWriter(t, e, WriterOptions{Name: "f", Mode: Replace, If: same})
	mustWrite(t, w, bytes.Repeat([]byte("w"), 5000))
	writeAt(t, e, "f", 0, []byte("x"))
	_, err = w.Finish(ctx, nil)
	wantError(t, err, errdefs.Precondition, errdefs.ReasonPrecondition)
	w.Close()
	sameFile(t, e, "f", []byte("x"))
	now, err := e.Get(ctx, Ref{Name: "f"})
	if err != nil || now.Generation <= f.Generation || now.ID != f.ID {
		t.Errorf("the file was %+v and is %+v, %v", f, now, err)
	}
	syncAll(t, e)
	checkQuiet(t, e)
}
