package engine

import (
	"context"
	"fmt"
	"sync"
	"testing"
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
