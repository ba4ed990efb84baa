package engine

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shingle-store/shingle/internal/alloc"
	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/store"
	"github.com/shingle-store/shingle/internal/zone"
)

// quietReclaim keeps the background from moving anything.
func quietReclaim(o Options) Options {
	o.Reclaim.Threshold, o.Reclaim.Low = 100, 1
	return o
}

func reclaimAll(t testing.TB, e *Engine) ReclaimProgress {
	t.Helper()
	all := 0
	p, err := e.Reclaim(context.Background(), ReclaimRequest{Threshold: &all}, nil)
	if err != nil {
		t.Fatalf("%v: %+v", err, p)
	}
	return p
}

// holey writes a file and punches every other 16 KiB out of it; it answers its content.
func holey(t testing.TB, e *Engine, name string, data []byte) []byte {
	t.Helper()
	writeAt(t, e, name, 0, data)
	syncAll(t, e)
	data = bytes.Clone(data)
	for off := 0; off+16<<10 <= len(data); off += 32 << 10 {
		if _, _, err := e.Deallocate(context.Background(), name, int64(off), 16<<10, Preconditions{}); err != nil {
			t.Fatal(err)
		}
		clear(data[off : off+16<<10])
	}
	return data
}

// TestReclaimKeepsBadBlocks moves everything but a block that is rotten or cannot be read, with its
// frame: that stays where it is, is reported, and is never given a new checksum; its zone is not reset
// until the block is rewritten.
func TestReclaimKeepsBadBlocks(t *testing.T) {
	for _, rot := range []bool{false, true} {
		t.Run(fmt.Sprintf("rot=%t", rot), func(t *testing.T) {
			modes(t, func(t *testing.T, o Options) { reclaimBad(t, quietReclaim(o), rot) })
		})
	}
}

func reclaimBad(t *testing.T, o Options, rot bool) {
	b := newFaultBench(t, zns(24, 256<<10), o)
	e := b.open()
	want := holey(t, e, "dir/f", noise(1, 1<<20))
	ps := pieces(t, e, "dir/f")
	x := ps[len(ps)/3]
	z, off := e.at(x, 1)
	reason := errdefs.ReasonCorruption
	if rot {
		if err := b.mem.Corrupt(z, off+5, 1); err != nil {
			t.Fatal(err)
		}
	} else {
		b.fault.FailRead(z, off, extent.BlockSize, true)
		reason = errdefs.ReasonDeviceIO
	}
	var sum uint32
	sumOf := func() (s uint32) {
		err := e.st.View(func(tx *store.Tx) error {
			sums, err := tx.Checksums(x.Addr+extent.BlockSize, 1)
			if err == nil {
				s = sums[0]
			}
			return err
		})
		if err != nil {
			t.Fatalf("the bad block is not where it was: %v", err)
		}
		return s
	}
	sum = sumOf()
	for round := range 2 {
		p := reclaimAll(t, e)
		if round == 1 && !rot {
			if p.Total != 0 {
				t.Fatalf("a failing zone is tried again: %+v", p)
			}
			break
		}
		if p.BadBlocks != 1 || p.Failed != 1 || p.Done != p.Total || round == 0 && p.Emptied == 0 || !strings.Contains(p.FirstError, fmt.Sprintf("zone %d", z)) {
			t.Fatalf("round %d: %+v", round, p)
		}
		if sumOf() != sum {
			t.Error("the bad block was given a new checksum")
		}
	}
	if g := groupOf(e, z); g.Live == 0 || g.Live > 40*extent.BlockSize {
		t.Errorf("the zone holds %d live bytes beside the bad block: %+v", g.Live, g)
	}
	wantCondition(t, e, "ZONE_NOT_RECLAIMABLE", Warning, z)
	named := false
	for _, c := range e.Conditions() {
		named = named || c.Reason == "CORRUPTION" && c.Object == "files/dir/f"
	}
	if !named {
		t.Errorf("the file is not named: %+v", e.Conditions())
	}
	if u := e.Usage(); rot && u.Stuck == 0 || !rot && u.Quarantined == 0 {
		t.Errorf("nothing counts as stuck: %+v", u)
	}
	_, err := tryRead(e, "dir/f", 0, nil)
	wantError(t, err, errdefs.Corruption, reason)
	e = b.reopen()
	reclaimAll(t, e)
	got, err := tryRead(e, "dir/f", 0, nil)
	wantError(t, err, errdefs.Corruption, reason)
	if !bytes.Equal(got, want[:len(got)]) {
		t.Error("what comes before the bad block is not what it was")
	}
	// Rewritten, it ends.
	data := noise(9, len(want))
	writeAt(t, e, "dir/f", 0, data)
	syncAll(t, e)
	sameFile(t, e, "dir/f", data)
	if p := reclaimAll(t, e); p.Failed != 0 {
		t.Errorf("afterwards %+v", p)
	}
	eventually(t, "nothing is live in the zone", func() bool { return groupOf(e, z).Live == 0 || groupOf(e, z).Generation > 1 })
	if !rot { // nothing is ever stored again where the medium fails
		e = b.reopen()
		if g := groupOf(e, z); g.State != alloc.ReadOnly {
			t.Errorf("a zone that cannot be read is %v", g.State)
		}
		wantCondition(t, e, "ZONE_FAILED", Warning, z)
	}
	sameFile(t, e, "dir/f", data)
	checkQuiet(t, e)
}

// TestReclaimOverFailures moves data while appends and flushes fail now and then, and while a zone that
// is written to goes offline: nothing is lost, and the work is done in the end.
func TestReclaimOverFailures(t *testing.T) {
	t.Parallel()
	for _, kind := range []zone.OpKind{zone.OpAppend, zone.OpFlush, zone.OpRead, zone.OpReset} {
		t.Run(fmt.Sprint(kind), func(t *testing.T) {
			modes(t, func(t *testing.T, o Options) {
				b := newFaultBench(t, zns(32, 256<<10), quietReclaim(o))
				e := b.open()
				want := holey(t, e, "f", noise(1, 2<<20))
				var skip, left atomic.Int64
				b.mem.SetHook(func(op zone.Op) error {
					if op.Kind != kind || op.After || left.Load() <= 0 || skip.Add(-1) >= 0 {
						return nil
					}
					left.Add(-1)
					return errdefs.Wrap(errdefs.Device, errdefs.ReasonDeviceIO, "test", op.Kind.String(), zone.ErrMedia)
				})
				for i := range 6 {
					skip.Store(int64(i))
					left.Store(int64(i%2 + 1))
					_, _ = e.Reclaim(context.Background(), ReclaimRequest{Threshold: ptr(0)}, nil)
					left.Store(0)
					sameFile(t, e, "f", want)
					checkIdentity(t, e)
				}
				reclaimAll(t, e)
				sameFile(t, e, "f", want)
				syncAll(t, e)
				checkQuiet(t, e)
				e = b.reopen()
				sameFile(t, e, "f", want)
			})
		})
	}
}

// TestReclaimCancelled stops in the middle: what was done stays done, and nothing leaks.
func TestReclaimCancelled(t *testing.T) {
	b := newFaultBench(t, zns(32, 256<<10), quietReclaim(Options{}))
	e := b.open()
	want := holey(t, e, "f", noise(1, 3<<20))
	ctx, cancel := context.WithCancel(context.Background())
	p, err := e.Reclaim(ctx, ReclaimRequest{Threshold: ptr(0)}, func(p ReclaimProgress) {
		if p.Moved > 0 {
			cancel()
		}
	})
	if err != nil || !p.Cancelled || p.Done == p.Total || p.Moved == 0 {
		t.Errorf("%+v, %v", p, err)
	}
	sameFile(t, e, "f", want)
	checkQuiet(t, e)
	if p := reclaimAll(t, e); p.Done != p.Total {
		t.Errorf("%+v", p)
	}
	sameFile(t, e, "f", want)
	if p := reclaimAll(t, e); p.Total != 0 {
		t.Errorf("there is something left to do: %+v", p)
	}
	start := time.Now()
	if p, err := e.Reclaim(context.Background(), ReclaimRequest{DryRun: true, Threshold: ptr(0)}, nil); err != nil || p.Total != 0 || time.Since(start) > time.Second {
		t.Errorf("%+v, %v", p, err)
	}
}
