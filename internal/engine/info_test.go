package engine

import (
	"context"
	"math"
	"testing"

	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/store"
)

// figures leaves of u what Totals adds to Usage.
func figures(u Usage) Usage {
	return Usage{Files: u.Files, Logical: u.Logical, Stored: u.Stored, Inline: u.Inline, Extents: u.Extents}
}

func totals(t testing.TB, e *Engine) Usage {
	t.Helper()
	u, err := e.Totals()
	if err != nil {
		t.Fatal(err)
	}
	return figures(u)
}

// checkTotals counts all records anew and holds the sums that the metadata keeps against them.
func checkTotals(t testing.TB, e *Engine) {
	t.Helper()
	var kept, have store.Totals
	err := e.st.View(func(tx *store.Tx) error {
		kept = tx.Superblock().Totals
		err := tx.Extents(0, func(x store.Extent) bool {
			have.Extents++
			have.Stored += x.Blocks * extent.BlockSize
			return true
		})
		if err != nil {
			return err
		}
		return tx.Nodes(0, func(n store.Node) bool {
			if n.Kind == store.File && n.Parent != 0 {
				have.Files++
				have.Logical += n.Size
				if n.Inline != nil {
					have.Inline += int64(len(n.Inline.Data))
				}
			}
			return true
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	if kept != have {
		t.Fatalf("the totals are %+v, the records have %+v", kept, have)
	}
}

func TestTotalsCountFilesAndExtents(t *testing.T) {
	b := newBench(t, smallZNS, Options{}) // no compression
	e := b.open()
	put(t, e, "inline", noise(1, 1000))
	put(t, e, "dir/two extents", noise(2, 1<<20)) // a zone holds 768 KiB
	writeAt(t, e, "sparse", 1<<20, noise(3, 4096))
	syncAll(t, e)
	want := Usage{Files: 3, Logical: 1000 + 1<<20 + (1<<20 + 4096), Stored: 1<<20 + 4096, Inline: 1000, Extents: 3}
	for range 2 {
		u, err := e.Totals()
		if err != nil {
			t.Fatal(err)
		}
		if got := figures(u); got != want {
			t.Fatalf("totals %+v, want %+v", got, want)
		}
		if u.Used < u.Stored || u.Total == 0 {
			t.Fatalf("used %d of %d with %d stored", u.Used, u.Total, u.Stored)
		}
		checkTotals(t, e)
		e = b.reopen()
	}
}

// TestTotalsCountFilesWithAName: a replace counts when it is finished, and what it replaces
// until then; a deleted file is gone at once, whenever its space is freed.
func TestTotalsCountFilesWithAName(t *testing.T) {
	ctx := context.Background()
	e := newBench(t, smallZNS, Options{}).open()
	put(t, e, "f", noise(1, 1000))
	old := Usage{Files: 1, Logical: 1000, Inline: 1000}
	if got := totals(t, e); got != old {
		t.Fatalf("totals %+v, want %+v", got, old)
	}
	w := openWriter(t, e, WriterOptions{Name: "f", Mode: Replace, WriteID: "w"})
	if err := w.Write(ctx, nil, [][]byte{noise(2, 200_000)}, nil); err != nil {
		t.Fatal(err)
	}
	if err := w.Sync(ctx); err != nil {
		t.Fatal(err)
	}
	got := totals(t, e)
	if got.Stored < 200_000 || got.Extents == 0 {
		t.Fatalf("totals %+v: the extents of an unfinished replace are not there", got)
	}
	if got.Stored, got.Extents = 0, 0; got != old {
		t.Fatalf("totals %+v with an unfinished replace, want %+v", got, old)
	}
	if _, err := w.Finish(ctx, nil); err != nil {
		t.Fatal(err)
	}
	if got := totals(t, e); got.Files != 1 || got.Logical != 200_000 || got.Inline != 0 {
		t.Fatalf("totals %+v after the replace", got)
	}
	if _, err := e.Delete(ctx, DeleteRequest{Name: "f"}); err != nil {
		t.Fatal(err)
	}
	if got := totals(t, e); got.Files != 0 || got.Logical != 0 {
		t.Fatalf("totals %+v after the delete", got)
	}
	checkTotals(t, e)
}

// TestTotalsOfSparseFilesAreBounded: sizes can add up to more than the answer holds.
func TestTotalsOfSparseFilesAreBounded(t *testing.T) {
	e := newBench(t, smallZNS, Options{}).open()
	for _, name := range []string{"1", "2", "3", "4", "5", "6", "7", "8"} {
		put(t, e, name, nil)
		if _, _, err := e.Truncate(context.Background(), name, extent.MaxFileSize, Preconditions{}); err != nil {
			t.Fatal(err)
		}
	}
	if got := totals(t, e); got != (Usage{Files: 8, Logical: math.MaxInt64}) {
		t.Fatalf("totals %+v", got)
	}
	put(t, e, "8", noise(1, 7))
	if got := totals(t, e); got != (Usage{Files: 8, Logical: 7*extent.MaxFileSize + 7, Inline: 7}) {
		t.Fatalf("totals %+v", got)
	}
}
