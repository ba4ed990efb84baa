package engine

import (
	"bytes"
	"context"
	"sync"
	"testing"
	"time"

	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/store"
	"github.com/shingle-store/shingle/internal/zone"
	"github.com/shingle-store/shingle/internal/zone/faultdev"
)

// TestSingleFreeBlocks: what is promised is stored down to the last block when no two free blocks
// are neighbours, compressed or not.
func TestSingleFreeBlocks(t *testing.T) {
	modes(t, func(t *testing.T, o Options) {
		o.MaxWait = 5 * time.Second
		g := disk
		g.Zones, g.Conventional = 6, 6
		b := newFaultBench(t, g, o)
		e := b.open()
		total := e.Usage().Total
		old := noise(1, int(total))
		put(t, e, "old", old)
		for off := int64(0); off < total; off += 2 * extent.BlockSize {
			if _, _, err := e.Deallocate(context.Background(), "old", off, extent.BlockSize, Preconditions{}); err != nil {
				t.Fatal(err)
			}
			clear(old[off : off+extent.BlockSize])
		}
		if u := e.Usage(); u.Free != total/2 || u.Unusable != 0 {
			t.Fatalf("half of it was punched out: %+v", u)
		}
		for round := range uint64(2) {
			// Half of it compresses, in frames longer than any free run.
			data := append(text(round, int(total/4)), noise(round, int(total/4))...)
			put(t, e, "new", data)
			syncAll(t, e)
			sameFile(t, e, "new", data)
			sameFile(t, e, "old", old)
			e = b.whole()
			sameFile(t, e, "new", data)
			deleteFile(t, e, "new")
			eventually(t, "it is free again", func() bool { return e.Usage().Free == total/2 })
		}
		b.checkDisk()
	})
}

// TestFreedBlocksWaitForReads: blocks that a read under way may still look at are free, but nothing
// is written there before it ends.
func TestFreedBlocksWaitForReads(t *testing.T) {
	g := disk
	g.Zones, g.Conventional = 3, 3
	b := newFaultBench(t, g, Options{MaxWait: 10 * time.Second})
	e := b.open()
	half := int(e.Usage().Total / 2)
	old, now, more := noise(1, half), noise(2, half), noise(3, half)
	put(t, e, "f", old)
	gate, met := make(chan struct{}), make(chan struct{})
	b.fault.Stall(zone.OpRead, faultdev.AnyZone, gate, met)
	read := make(chan []byte, 1)
	go func() {
		got, err := tryRead(e, "f", 0, nil)
		if err != nil {
			t.Error(err)
		}
		read <- got
	}()
	<-met
	writeAt(t, e, "f", 0, now)
	syncAll(t, e)
	if u := e.Usage(); u.Free != int64(half) || u.Unusable != 0 {
		t.Errorf("what was overwritten is not free: %+v", u)
	}
	stored := make(chan error, 1)
	go func() {
		_, err := tryPut(e, "more", more)
		stored <- err
	}()
	select {
	case err := <-stored:
		t.Fatalf("the blocks were written while they were read: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	close(gate)
	// What came after the window that was under way was looked up again.
	if got := <-read; !bytes.Equal(got, append(old[:smallWindow:smallWindow], now[smallWindow:]...)) {
		t.Error("the read got something else than was there when it began")
	}
	if err := <-stored; err != nil {
		t.Fatal(err)
	}
	sameFile(t, e, "f", now)
	sameFile(t, e, "more", more)
	b.whole()
	b.checkDisk()
}

// TestFreedBlocksWaitForTheCommit: while a file is deleted others are written, to the lowest free
// blocks there are. None of those may be the file's before the transaction that frees them is durable.
func TestFreedBlocksWaitForTheCommit(t *testing.T) {
	g := disk
	g.Zones, g.Conventional = 3, 3
	b := newFaultBench(t, g, Options{NoDelalloc: true})
	e := b.open()
	half := int(e.Usage().Total / 2)
	put(t, e, "first", noise(1, half)) // in the lowest blocks
	z, _ := e.at(pieces(t, e, "first")[0], 0)
	slot := groupOf(e, z).Slot
	b.mem.SetHook(func(op zone.Op) error {
		if op.Kind != zone.OpWrite || op.After {
			return nil
		}
		// What is on record now is what a crash would leave.
		err := e.st.View(func(tx *store.Tx) error {
			x, ok, err := tx.LastExtent(e.addr(slot, 0), e.addr(slot, op.Off+op.Len))
			if ok && x.End() > e.addr(slot, op.Off) {
				t.Errorf("a write at %d meets an extent on record of %d blocks", op.Off, x.Blocks)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
		return nil
	})
	var wg sync.WaitGroup
	for i := range half/extent.BlockSize - 4 {
		writeAt(t, e, "second", int64(i)*extent.BlockSize, noise(uint64(i), extent.BlockSize))
		if i == 4 { // the writes that follow fall into the time that its transaction takes
			wg.Go(func() { deleteFile(t, e, "first") })
		}
		time.Sleep(10 * time.Millisecond)
	}
	wg.Wait()
	syncAll(t, e)
	b.mem.SetHook(nil)
	b.whole()
	b.checkDisk()
}
