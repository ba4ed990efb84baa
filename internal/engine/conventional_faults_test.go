package engine

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/shingle-store/shingle/internal/alloc"
	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/store"
	"github.com/shingle-store/shingle/internal/zone"
	"github.com/shingle-store/shingle/internal/zone/faultdev"
)

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
