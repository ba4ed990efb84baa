package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/shingle-store/shingle/internal/store"
)

// TestTakeOverBesideClose takes a write over just as its stream ends: what has been received is
// the new stream's, and must not be dropped with the old one.
func TestTakeOverBesideClose(t *testing.T) {
	b := newFaultBench(t, smallZNS, Options{})
	e := b.open()
	data := noise(1, 20_000)
	for i := range 500 {
		o := WriterOptions{Name: "f", Mode: Replace, WriteID: fmt.Sprint(i)}
		w := openWriter(t, e, o)
		mustWrite(t, w, data)
		var wg sync.WaitGroup
		wg.Go(w.Close)
		next := openWriter(t, e, o)
		wg.Wait()
		if r, _ := next.Position(); r != int64(len(data)) {
			t.Fatalf("round %d: the new stream is at %d", i, r)
		}
		if _, err := next.Finish(context.Background(), nil); err != nil {
			t.Fatal(err)
		}
		next.Close()
		if got := readAll(t, e, "f"); len(got) != len(data) {
			t.Fatalf("round %d: the file has %d bytes", i, len(got))
		}
	}
	syncAll(t, e)
	checkQuiet(t, e)
}

// TestDeletedFileIsNotKept deletes files that resumable writes were left behind in, before or
// after they were: their space comes back without anybody resuming them.
func TestDeletedFileIsNotKept(t *testing.T) {
	for _, left := range []bool{false, true} {
		t.Run(fmt.Sprintf("left=%t", left), func(t *testing.T) {
			b := newFaultBench(t, smallZNS, Options{})
			e := b.open()
			o := WriterOptions{Name: "f", WriteID: "w"}
			w := openWriter(t, e, o)
			mustWrite(t, w, noise(1, 1_000_000))
			if err := w.Sync(context.Background()); err != nil {
				t.Fatal(err)
			}
			if left {
				w.Close()
			}
			deleteFile(t, e, "f")
			if !left {
				if err := w.Write(context.Background(), nil, [][]byte{noise(2, 100_000)}, nil); err != nil {
					t.Fatal(err)
				}
				w.Close()
				syncAll(t, e)
			}
			eventually(t, "its space is free", func() bool { return e.Usage().Used == 0 && e.orphans.Load() == 0 })
			w = openWriter(t, e, o)
			if r, _ := w.Position(); r != 0 {
				t.Errorf("a write of a new file begins at %d", r)
			}
			w.Close()
			checkQuiet(t, e)
		})
	}
}

// TestTakeOverInFinish takes a write over while its finish is under way, as a client does whose
// connection broke before the answer: the new stream learns how it ended, and nothing happens
// twice.
func TestTakeOverInFinish(t *testing.T) {
	for _, closed := range []bool{false, true} {
		t.Run(fmt.Sprintf("closed=%t", closed), func(t *testing.T) {
			b := newFaultBench(t, smallZNS, Options{})
			held, release := make(chan struct{}), make(chan struct{})
			hold := false
			b.opts.before = func(before beforeCommit) beforeCommit {
				return func() (apply store.Change, done func(error), err error) {
					if hold {
						hold = false
						close(held)
						<-release
					}
					return before()
				}
			}
			e := b.open()
			ctx := context.Background()
			data := noise(1, 300_000)
			o := WriterOptions{Name: "f", Mode: Replace, WriteID: "w", If: Preconditions{Generation: ptr(int64(0))}}
			w := openWriter(t, e, o)
			mustWrite(t, w, data)
			if err := w.Sync(ctx); err != nil {
				t.Fatal(err)
			}
			e.group.Do(ctx, func(*store.Tx) error { hold = true; return nil })
			finished := make(chan File, 1)
			go func() {
				f, err := w.Finish(ctx, nil)
				if err != nil {
					t.Error(err)
				}
				if closed {
					w.Close()
				}
				finished <- f
			}()
			<-held
			brief, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
			if _, err := e.OpenWriter(brief, o); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a stream took over from a finish under way: %v", err)
			}
			cancel()
			time.AfterFunc(10*time.Millisecond, func() { close(release) })
			next := openWriter(t, e, o)
			first := <-finished
			if r, d := next.Position(); r != int64(len(data)) || d != r {
				t.Errorf("the new stream is at %d and %d", r, d)
			}
			again, err := next.Finish(ctx, nil)
			if err != nil || again.ID != first.ID || again.Generation != first.Generation {
				t.Errorf("finished again: %+v, %v, before %+v", again, err, first)
			}
			w.Close()
			next.Close()
			sameFile(t, e, "f", data)
			if n := e.orphans.Load(); n != 0 {
				t.Errorf("%d files count as deleted", n)
			}
			deleteFile(t, e, "f")
			eventually(t, "all is free", func() bool { return e.Usage().Used == 0 && e.orphans.Load() == 0 })
		})
	}
}
