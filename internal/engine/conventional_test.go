package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shingle-store/shingle/internal/alloc"
	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/store"
	"github.com/shingle-store/shingle/internal/zone"
	"github.com/shingle-store/shingle/internal/zone/faultdev"
	"github.com/shingle-store/shingle/internal/zone/label"
)

// disk is all conventional, as an ordinary disk is; mixedSMR has three conventional zones.
var (
	disk     = zone.Geometry{Dialect: zone.SMR, ZoneSize: 512 << 10, ZoneCapacity: 512 << 10, Zones: 26, Conventional: 26}
	mixedSMR = zone.Geometry{Dialect: zone.SMR, ZoneSize: 1 << 20, ZoneCapacity: 1 << 20, Zones: 24, Conventional: 3, MaxOpen: 6}
)

// checkDisk says that a device of conventional zones saw nothing but reads, writes and flushes.
func (b *faultBench) checkDisk() {
	b.t.Helper()
	b.checkLimits()
	if c := b.fault.Counts(); c.Appends+c.Opens+c.Closes+c.Finishes+c.Resets != 0 || c.Writes == 0 {
		b.t.Errorf("a disk got sequential commands, or no writes: %+v", c)
	}
}

// whole checks the store that is open, closes it, checks it from outside, data and all, and opens it.
func (b *faultBench) whole() *Engine {
	b.t.Helper()
	syncAll(b.t, b.e)
	checkIdentity(b.t, b.e)
	checkTotals(b.t, b.e)
	checkQuiet(b.t, b.e)
	if n := b.e.al.Stats().Mismatches; n != 0 {
		b.t.Errorf("the allocator was told %d things that contradict its books", n)
	}
	b.shut()
	b.checkClean()
	return b.open()
}

// TestConventionalDevice runs the workload on a device that is all conventional.
func TestConventionalDevice(t *testing.T) {
	alone(t)
	t.Parallel()
	modes(t, func(t *testing.T, o Options) {
		g := disk
		g.Zones, g.Conventional = 60, 60
		b := newFaultBench(t, g, o)
		e := b.open()
		if got, want := e.Usage().Total, int64(58)*disk.ZoneSize; got != want {
			t.Errorf("the total is %d, want %d", got, want)
		}
		data := noise(1, 3<<20)
		for round := range uint64(3) {
			workload(t, e, round*10)
			put(t, e, "f", data)
			writeAt(t, e, "f", 1_000_000, data[:123_456])
			e = b.whole()
			sameFile(t, e, "f", overwrite(bytes.Clone(data), 1_000_000, data[:123_456]))
			if u := e.Usage(); u.Unusable != 0 || u.Reclaimable != 0 || u.Active != 0 {
				t.Errorf("conventional zones have unusable bytes, or hold active slots: %+v", u)
			}
		}
		for _, c := range e.Conditions() {
			t.Errorf("condition %+v", c)
		}
		b.checkDisk()
	})
}

// TestZonesOfBothKinds shows what lists of zones and block groups, and the accounts by kind, say.
func TestZonesOfBothKinds(t *testing.T) {
	for _, c := range []struct {
		g      zone.Geometry
		uses   string
		groups [2]int64
		total  int64
	}{
		{disk, "map[data:24 label:2]", [2]int64{0, 24}, 24 * 512 << 10},
		{mixedSMR, "map[data:22 label:2]", [2]int64{19, 3}, 3<<20 + (19-2)*(1<<20-extent.BlockSize)},
	} {
		e := newFaultBench(t, c.g, Options{}).open()
		zs, err := e.Zones(0, -1)
		if err != nil {
			t.Fatal(err)
		}
		uses := map[string]int{}
		for _, z := range zs {
			uses[z.Use]++
			if (z.Use == "data") != (z.BlockGroup >= 0) {
				t.Errorf("zone %+v", z)
			}
		}
		if fmt.Sprint(uses) != c.uses {
			t.Errorf("the zones are used as %v, want %s", uses, c.uses)
		}
		for _, g := range e.BlockGroups(0, -1) {
			if g.Conventional == e.geo.IsSequential(g.Zone) || g.State != alloc.Empty || g.Conventional && g.Capacity != c.g.ZoneSize {
				t.Errorf("block group %+v", g)
			}
		}
		u := e.Usage()
		if got := [2]int64{ofKind(e, false).BlockGroups, ofKind(e, true).BlockGroups}; got != c.groups || u.Total != c.total {
			t.Errorf("%v block groups, a total of %d: %+v", got, u.Total, u)
		}
		if sum := ofKind(e, false).Total + ofKind(e, true).Total; sum != u.Total+e.relocationReserve() {
			t.Errorf("the kinds add up to %d of %d", sum, u.Total)
		}
	}
}

// ofKind returns the account of the block groups for data on zones of a kind.
func ofKind(e *Engine, conventional bool) alloc.ClassUsage {
	for _, c := range e.Classes() {
		if c.Conventional == conventional && c.Class == alloc.ClassData {
			return c
		}
	}
	return alloc.ClassUsage{}
}

// relocationReserve returns the relocation reserve on record.
func (e *Engine) relocationReserve() (n int64) {
	_ = e.st.View(func(tx *store.Tx) error {
		n = tx.Superblock().RelocationReserve
		return nil
	})
	return n
}

// kindsOf returns how many bytes of a file lie on sequential and on conventional zones.
func kindsOf(t *testing.T, e *Engine, name string) (sequential, conventional int64) {
	t.Helper()
	for _, p := range pieces(t, e, name) {
		z, _ := e.at(p, 0)
		if e.geo.IsSequential(z) {
			sequential += p.Len
		} else {
			conventional += p.Len
		}
	}
	return sequential, conventional
}

// TestPlacement: where the device has both kinds of zones, little data and data that replaces some
// goes to conventional ones, the rest to sequential ones; whichever is full, the other takes over.
func TestPlacement(t *testing.T) {
	b := newFaultBench(t, mixedSMR, Options{MaxWait: time.Second})
	e := b.open()
	want := func(name string, sequential, conventional int64) {
		t.Helper()
		if s, c := kindsOf(t, e, name); s != sequential || c != conventional {
			t.Errorf("%s: %d bytes on sequential zones, %d on conventional ones; want %d and %d", name, s, c, sequential, conventional)
		}
	}
	const small = 32 << 10
	put(t, e, "small", noise(1, small))
	want("small", 0, small)
	put(t, e, "large", noise(2, 3_000_000))
	want("large", 3_000_000, 0)
	writeAt(t, e, "large", 409_600, noise(3, 204_800))
	syncAll(t, e)
	want("large", 3_000_000-204_800, 204_800)
	writeAt(t, e, "large", 0, noise(4, 2_000_000)) // more than is taken for a rewrite
	syncAll(t, e)
	want("large", 3_000_000, 0)
	writeAt(t, e, "large", 3_000_320, noise(5, 204_480)) // it grows, and only the last block is written anew
	syncAll(t, e)
	if s, c := kindsOf(t, e, "large"); c != 0 || s == 0 {
		t.Errorf("a file that grows: %d and %d", s, c)
	}
	// Small files until the conventional zones are full, and on.
	files := 0
	for ; ofKind(e, true).Free > 0; files++ {
		put(t, e, fmt.Sprint("s", files), noise(uint64(files), small))
	}
	put(t, e, "s-more", noise(9, small))
	want("s-more", small, 0)
	if u := ofKind(e, true); u.Used != 3<<20 {
		t.Errorf("%+v", u)
	}
	// Everything but a part of the reserve is full when the store says so.
	_, err := fill(t, e, "x", 500_000)
	wantFull(t, err)
	if u := e.Usage(); u.Free > 500_000+2*extent.BlockSize {
		t.Errorf("refused with %d free", u.Free)
	}
	// Large data comes to conventional zones when sequential ones are full.
	for i := range files {
		deleteFile(t, e, fmt.Sprint("s", i))
	}
	eventually(t, "the small files are freed", func() bool { return e.Usage().Free > 2<<20 })
	put(t, e, "last", noise(10, 2<<20))
	if s, c := kindsOf(t, e, "last"); c < 1<<20 || s+c != 2<<20 {
		t.Errorf("%d and %d", s, c)
	}
	sameFile(t, e, "last", noise(10, 2<<20))
	e = b.whole()
	sameFile(t, e, "last", noise(10, 2<<20))
	b.checkLimits()
}

// TestFillDeleteRefillConventional: a disk takes as much after deletes as before, in any pieces,
// with no restart, and nothing there is ever unusable.
func TestFillDeleteRefillConventional(t *testing.T) {
	alone(t)
	t.Parallel()
	modes(t, func(t *testing.T, o Options) {
		o.MaxWait = 5 * time.Second
		b := newFaultBench(t, disk, o)
		e := b.open()
		const n = 250_000
		first := int64(0)
		for round := range 3 {
			prefix := fmt.Sprintf("%d/", round)
			files, err := fill(t, e, prefix, n)
			wantFull(t, err)
			syncAll(t, e)
			u := e.Usage()
			if u.Used < u.Total-n-2*extent.BlockSize || first > 0 && u.Used < first || u.Unusable != 0 {
				t.Fatalf("round %d: full at %d bytes, %d the first time: %+v", round, u.Used, first, u)
			}
			first = u.Used
			// Every second file goes: what is free is in pieces, and one file takes it all.
			for i := 0; i < files; i += 2 {
				deleteFile(t, e, fmt.Sprint(prefix, i))
			}
			gap := int64(files+1) / 2 * extent.RoundUp(n)
			eventually(t, "half of it is free", func() bool { return e.Usage().Free >= gap })
			big := noise(uint64(round), int(gap))
			put(t, e, "big", big)
			sameFile(t, e, "big", big)
			sameFile(t, e, prefix+"1", noise(1, n))
			deleteFile(t, e, "big")
			for i := 1; i < files; i += 2 {
				deleteFile(t, e, fmt.Sprint(prefix, i))
			}
			eventually(t, "all is free", func() bool { return e.Usage().Used == 0 })
		}
		e = b.whole()
		if u := e.Usage(); u.Free != u.Total {
			t.Errorf("%+v", u)
		}
		b.checkDisk()
	})
}

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

// TestConventionalWritesFail: nobody hears of a write that fails; its blocks are set aside, and count
// as quarantined, until they can be written.
func TestConventionalWritesFail(t *testing.T) {
	modes(t, func(t *testing.T, o Options) {
		for _, moved := range []faultdev.Moved{faultdev.MovedNone, faultdev.MovedPart, faultdev.MovedAll} {
			b := newFaultBench(t, disk, o)
			e := b.open()
			for i := range 3 {
				b.fault.FailAppend(faultdev.AnyZone, i*2, moved)
			}
			data := noise(1, 2<<20)
			put(t, e, "f", data)
			sameFile(t, e, "f", data)
			u := e.Usage()
			if n := b.fault.Counts().FailedAppends; n != 3 {
				t.Errorf("%d writes failed: %+v", n, u)
			}
			found := false
			for _, c := range e.Conditions() {
				found = found || c.Reason == "WRITE_FAILED" && c.Severity == Warning
			}
			if !found {
				t.Errorf("no condition says so: %+v", e.Conditions())
			}
			e = b.whole()
			if u := e.Usage(); u.Quarantined != 0 {
				t.Errorf("after a restart: %+v", u)
			}
			sameFile(t, e, "f", data)
			b.checkDisk()
		}
	})
}

// TestEveryConventionalWriteFails: data that cannot be stored anywhere keeps its error, and what was
// there stays readable. When the device is well again all of its space comes back with no restart.
func TestEveryConventionalWriteFails(t *testing.T) {
	t.Parallel()
	modes(t, func(t *testing.T, o Options) {
		b := newFaultBench(t, disk, o)
		e := b.open()
		old := noise(9, 200_000)
		put(t, e, "old", old)
		before := e.Usage()
		fail := b.failing(zone.OpWrite)
		if _, err := tryPut(e, "f", noise(1, 3<<20)); !errdefs.Is(err, errdefs.Device) {
			t.Fatalf("%v", err)
		}
		if u := e.Usage(); u.Quarantined == 0 {
			t.Errorf("nothing is set aside: %+v", u)
		}
		sameFile(t, e, "old", old)
		fail.on.Store(false)
		eventually(t, "what was set aside is free again", func() bool { return e.Usage().Quarantined == 0 })
		data := noise(2, int(before.Free-(4<<20))) // what failed may be kept for its writer to try again
		put(t, e, "g", data)
		sameFile(t, e, "g", data)
		checkIdentity(t, e)
		if n := e.al.Stats().Mismatches; n != 0 {
			t.Errorf("%d mismatches", n)
		}
		b.checkDisk()
	})
}

// TestOneBadBlock: of a long write that fails for one block, all the others come back.
func TestOneBadBlock(t *testing.T) {
	alone(t)
	t.Parallel()
	b := newFaultBench(t, disk, Options{})
	e := b.open()
	const bad = 37 * extent.BlockSize
	b.mem.SetHook(func(op zone.Op) error {
		if op.Kind == zone.OpWrite && op.Zone == 2 && op.Off <= bad && bad < op.Off+op.Len {
			return errdefs.Wrap(errdefs.Device, errdefs.ReasonDeviceIO, "test", "", zone.ErrMedia)
		}
		return nil
	})
	data := noise(1, 600_000)
	put(t, e, "f", data)
	eventually(t, "all but one block is back", func() bool { return e.Usage().Quarantined == extent.BlockSize })
	put(t, e, "g", noise(2, int(e.Usage().Free)))
	sameFile(t, e, "f", data)
	b.whole()
	b.checkDisk()
}

// TestConventionalFlushFails: what was written since the last good flush is written again.
func TestConventionalFlushFails(t *testing.T) {
	modes(t, func(t *testing.T, o Options) {
		b := newFaultBench(t, disk, o)
		e := b.open()
		put(t, e, "old", noise(7, 300_000))
		for _, reached := range []bool{false, true} {
			b.fault.FailFlush(0, reached)
			data := noise(1, 1<<20)
			put(t, e, "f", data)
			sameFile(t, e, "f", data)
			e = b.crash(3)
			sameFile(t, e, "f", data)
			sameFile(t, e, "old", noise(7, 300_000))
		}
		if e.Counters()["flush_errors"] != 0 || b.fault.Counts().FailedFlushes != 2 {
			t.Errorf("%+v", b.fault.Counts())
		}
		b.whole()
		b.checkDisk()
	})
}

// TestEveryConventionalFlushFails: the error sticks to the data, and then there is peace: nothing
// flushes again and again for what was written for nothing.
func TestEveryConventionalFlushFails(t *testing.T) {
	t.Parallel()
	modes(t, func(t *testing.T, o Options) {
		b := newFaultBench(t, disk, o)
		e := b.open()
		old := noise(7, 300_000)
		put(t, e, "old", old)
		fail := b.failing(zone.OpFlush)
		writeAt(t, e, "f", 0, noise(1, 500_000))
		_, err := e.Sync(context.Background(), nil, nil)
		wantError(t, err, errdefs.Device, errdefs.ReasonSyncFailed)
		time.Sleep(50 * time.Millisecond) // what is under way ends
		before := fail.hits.Load()
		time.Sleep(100 * time.Millisecond)
		if n := fail.hits.Load() - before; n > 10 {
			t.Errorf("%d flushes in a tenth of a second with nothing to do", n)
		}
		fail.on.Store(false)
		sameFile(t, e, "old", old)
		writeAt(t, e, "f", 0, noise(2, 500_000))
		syncAll(t, e)
		sameFile(t, e, "f", noise(2, 500_000))
		b.whole()
		b.checkDisk()
	})
}

// TestEveryCutOfAConventionalWrite cuts the power before and after each operation of a run that
// overwrites, deletes and writes where that was, and holds what is left against what was synced.
func TestEveryCutOfAConventionalWrite(t *testing.T) {
	g := disk
	g.Zones, g.Conventional = 4, 4
	a, a2, c, d := noise(1, 300_000), noise(2, 200_000), noise(3, 400_000), noise(4, 500_000)
	run := func(e *Engine) (step int) {
		ctx := context.Background()
		for _, do := range []func() error{
			func() error { _, err := tryPut(e, "a", a); return err },
			func() error { return tryWriteAt(e, "a", 50_000, a2) },
			func() error { _, err := e.Sync(ctx, nil, nil); return err },
			func() error { _, err := tryPut(e, "c", c); return err },
			func() error { _, err := e.Delete(ctx, DeleteRequest{Name: "c"}); return err },
			func() error { _, err := tryPut(e, "d", d); return err }, // there is no other room for it
		} {
			if do() != nil {
				return step
			}
			step++
		}
		return step
	}
	cuts := 0
	for _, after := range []bool{false, true} {
		for at := int64(1); ; at++ {
			mem, err := zone.NewMem(g, zone.MemOptions{Garbage: at%2 == 0})
			if err != nil {
				t.Fatal(err)
			}
			b := newBenchOn(t, mem, Options{MaxWait: 2 * time.Second})
			e := b.open()
			left := at
			mem.SetHook(func(op zone.Op) error {
				if op.Kind != zone.OpRead && op.After == after {
					if left--; left == 0 {
						mem.CutPower()
						return errCut
					}
				}
				return nil
			})
			done := run(e)
			e.vanish()
			mem.SetHook(nil)
			mem.PowerOn(rand.New(rand.NewPCG(uint64(at), 9)))
			b.checkClean()
			e = b.open()
			both := overwrite(bytes.Clone(a), 50_000, a2)
			for _, f := range []struct {
				name        string
				from, until int // steps done that put it there, and that may take it away
				is          [][]byte
			}{
				{"a", 1, 9, [][]byte{a, both}}, {"c", 4, 4, [][]byte{c}}, {"d", 6, 9, [][]byte{d}},
			} {
				got, err := tryRead(e, f.name, 0, nil)
				switch {
				case errdefs.Is(err, errdefs.NotFound):
					if done >= f.from && done < f.until {
						t.Fatalf("cut %d (after %v): %s is gone, %d steps were done", at, after, f.name, done)
					}
				case err != nil:
					t.Fatalf("cut %d (after %v): %s: %v", at, after, f.name, err)
				default:
					whole := false
					for _, want := range f.is {
						whole = whole || bytes.Equal(got, want)
					}
					if !whole && f.name == "a" && done < 3 { // its overwrite was not synced: block by block
						whole = len(got) == len(a)
					}
					if !whole {
						t.Fatalf("cut %d (after %v): %s is neither old nor new, %d steps were done", at, after, f.name, done)
					}
				}
			}
			e.vanish()
			cuts++
			if done == 6 {
				break
			}
		}
	}
	if cuts < 15 {
		t.Errorf("only %d cuts", cuts)
	}
}

// formatOld formats a device as was done before there were conventional block groups.
func formatOld(t *testing.T, dev zone.Device, path string) {
	t.Helper()
	g, id := dev.Geometry(), [16]byte{1, 2, 3}
	if err := label.Write(dev, label.Label{Store: id, Devices: 1, Generation: 1, ZoneSize: g.ZoneSize, Zones: g.Zones, Dialect: g.Dialect}); err != nil {
		t.Fatal(err)
	}
	var groups []store.BlockGroup
	for z := g.Conventional + 2; z < g.Zones; z++ {
		groups = append(groups, store.BlockGroup{
			Slot: uint32(len(groups)), Kind: store.KindSequential, Class: 1, Generation: 1, Capacity: g.ZoneCapacity,
			Places: []store.Place{{Zone: uint32(z)}},
		})
	}
	err := store.Create(path, store.Init{
		Superblock: store.Superblock{
			StoreUUID: id, ZoneSize: g.ZoneSize, StartCounter: 1, Clean: true, RelocationReserve: 2 * (g.ZoneCapacity - alloc.HeaderSize),
		},
		Devices:     []store.Device{{UUID: id, ZoneSize: g.ZoneSize, Zones: uint32(g.Zones), Dialect: uint8(g.Dialect), Conventional: uint32(g.Conventional)}},
		BlockGroups: groups,
	}, store.Options{NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
}

// TestOldStoreLeavesConventionalZonesAlone: a store from before goes on as it was.
func TestOldStoreLeavesConventionalZonesAlone(t *testing.T) {
	mem := newMem(t, mixedSMR)
	fault := faultdev.New(mem, 1)
	b := &faultBench{&bench{t: t, dev: fault, meta: filepath.Join(t.TempDir(), "old.db")}, mem, fault}
	formatOld(t, fault, b.meta)
	e := b.open()
	if got, want := e.Usage().Total, int64(24-3-2-2)*(1<<20-extent.BlockSize); got != want {
		t.Errorf("the total is %d, want %d", got, want)
	}
	data := noise(1, 5<<20)
	put(t, e, "f", data)
	put(t, e, "small", data[:10_000])
	e = b.whole()
	sameFile(t, e, "f", data)
	zs, err := e.Zones(0, -1)
	if err != nil {
		t.Fatal(err)
	}
	for _, z := range zs {
		if (z.Use == "conventional") != (z.Condition == zone.NotWP) || z.Use == "conventional" && z.BlockGroup >= 0 {
			t.Errorf("zone %+v", z)
		}
	}
	if n := b.fault.Counts().Writes; n != 0 {
		t.Errorf("%d writes went past append", n)
	}
	b.checkLimits()
}

// TestDamagedBitmaps: a bitmap that cannot be believed is worked out anew at open and written again;
// nothing that lives is written over.
func TestDamagedBitmaps(t *testing.T) {
	for _, c := range []struct {
		name   string
		damage func(words []uint64) []uint64
	}{
		{"all free", func(words []uint64) []uint64 { return make([]uint64, len(words)) }},
		{"a block too few", func(words []uint64) []uint64 { words[0] &^= 1; return words }},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newFaultBench(t, disk, Options{})
			e := b.open()
			data, more := noise(1, 700_000), noise(2, 900_000)
			put(t, e, "f", data)
			z, _ := e.at(pieces(t, e, "f")[0], 0)
			slot := groupOf(e, z).Slot
			b.shut()
			b.editMetadata(func(tx *store.Tx) error {
				g, err := tx.BlockGroup(slot)
				if err != nil {
					return err
				}
				g.LiveBytes -= extent.BlockSize // not full, so that the bitmap counts
				if _, err := tx.DeriveBitmap(g); err == nil {
					return errors.New("a bitmap that does not add up is derived")
				}
				g.LiveBytes += extent.BlockSize
				words, err := tx.DeriveBitmap(g)
				if err != nil {
					return err
				}
				return tx.PutBitmap(slot, c.damage(words))
			})
			if found := b.check(false); len(found) != 1 || !strings.Contains(found[0], "that extents hold are marked free") {
				t.Errorf("check finds %q", found)
			}
			e = b.open()
			if full := groupOf(e, z).State == alloc.Full; !full {
				wantCondition(t, e, "BITMAP_MENDED", Warning, z)
			}
			put(t, e, "more", more)
			sameFile(t, e, "f", data)
			deleteFile(t, e, "f")
			eventually(t, "it is free", func() bool { return e.Usage().Used == extent.RoundUp(900_000) })
			e = b.whole()
			sameFile(t, e, "more", more)
			if len(e.Conditions()) != 0 {
				t.Errorf("it was not written again: %+v", e.Conditions())
			}
		})
	}
}

// Where neither bitmap nor extents add up, what is free is not known: reading goes on, and nothing
// is written there.
func TestLostBitmap(t *testing.T) {
	b := newFaultBench(t, disk, Options{})
	e := b.open()
	data := noise(1, 200_000)
	put(t, e, "f", data)
	z, _ := e.at(pieces(t, e, "f")[0], 0)
	slot := groupOf(e, z).Slot
	b.shut()
	b.editMetadata(func(tx *store.Tx) error {
		g, err := tx.BlockGroup(slot)
		g.LiveBytes += extent.BlockSize
		return errors.Join(err, tx.PutBlockGroup(g))
	})
	e = b.open()
	wantCondition(t, e, "BITMAP_LOST", Error, z)
	sameFile(t, e, "f", data)
	put(t, e, "g", noise(2, 300_000))
	for _, p := range pieces(t, e, "g") {
		if at, _ := e.at(p, 0); at == z {
			t.Errorf("something was put in zone %d", z)
		}
	}
	b.checkDisk()
}

// TestConventionalLabels: a disk is told from another, from an old copy of itself, and from one that
// holds nothing, as any device is.
func TestConventionalLabels(t *testing.T) {
	mem := newMem(t, disk)
	if err := format(mem, t.TempDir(), false); err != nil {
		t.Fatal(err)
	}
	err := format(mem, t.TempDir(), false)
	wantError(t, err, errdefs.Precondition, errdefs.ReasonInUse)
	if err := format(mem, t.TempDir(), true); err != nil {
		t.Fatal(err)
	}
	b := newFaultBench(t, disk, Options{})
	put(t, b.open(), "f", noise(1, 10_000))
	e := b.reopen()
	b.shut()
	_ = e
	relabel(b.bench, func(l *label.Label) { l.Generation -= 2 })
	b.refused(errdefs.ReasonDeviceMismatch, "stale")
	relabel(b.bench, func(l *label.Label) { l.Generation += 2; l.Store[3] ^= 1 })
	b.refused(errdefs.ReasonDeviceMismatch, "belongs to store")
	if err := label.Erase(b.dev); err != nil {
		t.Fatal(err)
	}
	b.refused(errdefs.ReasonDeviceMismatch, "no Shingle label")
	b.checkDisk()
}

// TestSmallestDisk stores what fits on the smallest all conventional device that format accepts.
func TestSmallestDisk(t *testing.T) {
	b := newFaultBench(t, zone.Geometry{Dialect: zone.SMR, ZoneSize: 32 << 10, ZoneCapacity: 32 << 10, Zones: 3, Conventional: 3}, Options{MaxWait: time.Second})
	e := b.open()
	total := e.Usage().Total
	if total != 8*extent.BlockSize {
		t.Fatalf("the total is %d", total)
	}
	data := noise(1, int(total))
	for range 3 {
		put(t, e, "f", data)
		sameFile(t, e, "f", data)
		if _, err := tryPut(e, "g", noise(2, 10_000)); !errdefs.Is(err, errdefs.NoSpace) {
			t.Fatalf("more than there is: %v", err)
		}
		deleteFile(t, e, "f")
		e = b.reopen()
	}
	b.checkDisk()
}

// Check reads data on conventional zones too.
func TestCheckReadsConventionalData(t *testing.T) {
	b := newFaultBench(t, disk, Options{})
	e := b.open()
	put(t, e, "f", noise(1, 100_000))
	p := pieces(t, e, "f")[0]
	z, off := e.at(p, 3)
	b.shut()
	b.checkClean()
	if err := b.mem.Corrupt(z, off+17, 1); err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("zone %d offset %d: block does not match its checksum", z, off)
	if found := b.check(true); len(found) != 1 || !strings.Contains(found[0], want) || !strings.Contains(found[0], `file "f" bytes [12288, 16384)`) {
		t.Errorf("found %q", found)
	}
	if found := b.check(false); len(found) != 0 {
		t.Errorf("found %q without reading", found)
	}
}
