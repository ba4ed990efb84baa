package engine

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shingle-store/shingle/internal/csum"
	"github.com/shingle-store/shingle/internal/store"
	"github.com/shingle-store/shingle/internal/zone"
)

// TestDeleteBesideOpen deletes a file between a reader's reading its record and having it open:
// the bytes stay until the reader has gone.
func TestDeleteBesideOpen(t *testing.T) {
	b := newFaultBench(t, smallZNS, Options{})
	e := b.open()
	data := noise(1, 300_000)
	id := put(t, e, "f", data).ID
	// As openFile, in slow motion.
	e.files.load.Lock()
	f := e.newFile(id, e.codec)
	f.mu.size, f.mu.durable, f.mu.persisted = int64(len(data)), int64(len(data)), true
	deleteFile(t, e, "f")
	time.Sleep(50 * time.Millisecond)
	e.files.add(f)
	e.files.load.Unlock()
	if got, err := e.contentCRC(context.Background(), f); err != nil || got != csum.Sum(data) {
		t.Errorf("the reader's bytes are gone: %08x, %v", got, err)
	}
	e.release(f)
	eventually(t, "all is free", func() bool { return e.Usage().Used == 0 && e.orphans.Load() == 0 })
}

// TestDeleteInLongTruncate deletes a file between the transactions of a truncate that frees more
// than one takes: it stays on the list of files to be freed.
func TestDeleteInLongTruncate(t *testing.T) {
	g := zone.Geometry{Dialect: zone.ZNS, ZoneSize: 4 << 20, ZoneCapacity: 4 << 20, Zones: 24, MaxOpen: 4, MaxActive: 5}
	b := newFaultBench(t, g, Options{})
	var e *Engine
	var wg sync.WaitGroup
	ctx := context.Background()
	var cuts atomic.Int64 // the group goes on counting while this test looks
	b.opts.before = func(before beforeCommit) beforeCommit {
		return func() (store.Change, func(error), error) {
			_ = e.st.View(func(tx *store.Tx) error {
				return tx.Orphans(0, func(_ uint64, k store.OrphanKind, _ time.Time) bool {
					if cuts.Add(1) == 1 && k == store.OrphanCut {
						wg.Go(func() { deleteFile(t, e, "f") })
						time.Sleep(50 * time.Millisecond) // it is in the next batch, before the last cut
					}
					return true
				})
			})
			return before()
		}
	}
	e = b.open()
	w := openWriter(t, e, WriterOptions{Name: "f"})
	for i := range int64(2*cutBatch + 100) {
		if err := w.Write(ctx, ptr(2*i*4096), [][]byte{{1}}, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Sync(ctx); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if _, _, err := e.Truncate(ctx, "f", 0, Preconditions{}); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if cuts.Load() == 0 {
		t.Fatal("the truncate took one transaction")
	}
	eventually(t, "all is free", func() bool { return e.Usage().Used == 0 && e.orphans.Load() == 0 })
	nodes := 0
	if err := e.st.View(func(tx *store.Tx) error {
		return tx.Nodes(0, func(store.Node) bool { nodes++; return true })
	}); err != nil || nodes != 1 {
		t.Errorf("%d nodes are left, %v", nodes, err)
	}
}
