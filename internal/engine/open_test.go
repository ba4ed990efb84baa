package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/store"
	"github.com/shingle-store/shingle/internal/zone/label"
)

// TestOneMakesTheFile has streams race for a name that must not exist.
func TestOneMakesTheFile(t *testing.T) {
	b := newFaultBench(t, smallZNS, Options{})
	e := b.open()
	for i := range 50 {
		var made atomic.Int32
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				w, err := e.OpenWriter(context.Background(), WriterOptions{Name: fmt.Sprint(i), If: Preconditions{Generation: ptr(int64(0))}})
				if err == nil {
					made.Add(1)
					w.Close()
				} else if !errdefs.Is(err, errdefs.Precondition) {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if n := made.Load(); n != 1 {
			t.Fatalf("round %d: %d streams made the file", i, n)
		}
	}
}

// TestRefusedWriteOfSmallFile refuses a message for a file whose data is inline: neither generation
// nor checksum may change.
func TestRefusedWriteOfSmallFile(t *testing.T) {
	modes(t, func(t *testing.T, o Options) {
		b := newFaultBench(t, smallZNS, o)
		e := b.open()
		want := put(t, e, "f", []byte("small"))
		w := openWriter(t, e, WriterOptions{Name: "f"})
		defer w.Close()
		err := w.Write(context.Background(), nil, [][]byte{[]byte("other")}, ptr(uint32(7)))
		wantError(t, err, errdefs.InvalidArgument, errdefs.ReasonPayloadChecksum)
		for range 2 {
			f, err := e.Get(context.Background(), Ref{Name: "f"})
			if err != nil {
				t.Fatal(err)
			}
			if f.Generation != want.Generation || !f.Updated.Equal(want.Updated) || f.ContentCRC == nil {
				t.Errorf("the refused message made %+v of %+v", f, want)
			}
			sameFile(t, e, "f", []byte("small"))
			syncAll(t, e)
		}
	})
}

// TestIDsAfterFailedChange renews the lease of ids in a transaction that comes to nothing: the next
// one must renew it on record, or a crash would give ids out again.
func TestIDsAfterFailedChange(t *testing.T) {
	b := newFaultBench(t, smallZNS, Options{})
	e := b.open()
	ctx := context.Background()
	e.ids.Lock()
	e.ids.next += idLease - 10
	e.ids.Unlock()
	failed := errors.New("half way")
	err := e.group.Do(ctx, func(tx *store.Tx) error {
		tx.SetSuperblock(func(*store.Superblock) {}) // so that the whole transaction is undone
		return failed
	})
	if !errors.Is(err, failed) {
		t.Fatal(err)
	}
	id := uint64(0)
	for i := range 20 {
		f, err := e.Create(ctx, CreateRequest{Name: fmt.Sprint(i)})
		if err != nil {
			t.Fatal(err)
		}
		id = f.ID
	}
	if err := e.st.View(func(tx *store.Tx) error {
		if limit := tx.Superblock().NodeIDLimit; limit <= id {
			t.Errorf("id %d is given out, the lease on record ends at %d", id, limit)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// TestDamagedLabel ruins the latest label: the store opens with the one before, says so, and the next
// label mends it. With both ruined it is refused.
func TestDamagedLabel(t *testing.T) {
	b := newFaultBench(t, smallZNS, Options{})
	e := b.open()
	put(t, e, "f", []byte("small"))
	e = b.reopen()
	ruin := func(generation uint64) {
		t.Helper()
		for z := range 2 {
			p := make([]byte, 4096)
			if err := b.mem.ReadAt(z, 0, p); err != nil {
				t.Fatal(err)
			}
			if l, err := label.DecodeLabel(p); err == nil && l.Generation == generation {
				if err := b.mem.Corrupt(z, 100, 1); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	starts := e.starts
	if err := e.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	ruin(starts)
	e = b.open()
	if c := e.Conditions(); len(c) != 1 || c[0].Reason != "LABEL_DAMAGED" {
		t.Fatalf("conditions: %+v", c)
	}
	sameFile(t, e, "f", []byte("small"))
	e = b.reopen()
	if c := e.Conditions(); len(c) != 0 {
		t.Fatalf("the damage was not mended: %+v", c)
	}
	if err := e.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	ruin(e.starts)
	ruin(e.starts - 1)
	if _, err := Open(context.Background(), b.options()); !errdefs.Is(err, errdefs.Corruption) {
		t.Fatalf("with both labels ruined: %v", err)
	}
}
