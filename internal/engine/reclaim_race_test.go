package engine

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shingle-store/shingle/internal/alloc"
	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/reclaim"
	"github.com/shingle-store/shingle/internal/zone"
)

// TestReclaimRaces moves everything that can be moved over and over while writers overwrite, cut, punch
// and delete what is on its way, and read back every byte.
func TestReclaimRaces(t *testing.T) {
	modes(t, func(t *testing.T, o Options) {
		o.DirtyLimit, o.MaxWait, o.WritebackAge = minDirtyLimit, 20*time.Second, 5*time.Millisecond
		b := newFaultBench(t, zns(40, 256<<10), o)
		e := b.open()
		steps := 120
		if testing.Short() {
			steps = 40
		}
		var writers, others sync.WaitGroup
		stop := make(chan struct{})
		others.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := e.Reclaim(context.Background(), ReclaimRequest{Threshold: ptr(0)}, nil); err != nil {
					t.Errorf("reclaim: %v", err)
					return
				}
			}
		})
		models := make([][]byte, 4)
		for i := range models {
			writers.Go(func() { models[i] = raceFile(t, e, fmt.Sprintf("f%d", i), uint64(i), steps) })
		}
		writers.Wait()
		close(stop)
		others.Wait()
		syncAll(t, e)
		checkQuiet(t, e)
		c := e.Counters()
		t.Logf("%d bytes moved, %d died on the way, %d block groups emptied", c["reclaim_bytes_moved"], c["reclaim_bytes_dropped"], c["reclaim_emptied"])
		b.checkLimits()
		e = b.reopen()
		for i, want := range models {
			if want != nil {
				sameFile(t, e, fmt.Sprintf("f%d", i), want)
			}
		}
	})
}

// raceFile works on a file of its own and holds it against a model; it answers what it holds at the
// end, nil: it is deleted.
func raceFile(t *testing.T, e *Engine, name string, seed uint64, steps int) (want []byte) {
	ctx := context.Background()
	r := rand.New(rand.NewPCG(seed, 9))
	for range steps {
		n := 1 + r.IntN(60_000)
		var err error
		switch k := r.IntN(12); {
		case want == nil || k < 6:
			off := r.IntN(200_000)
			data := text(r.Uint64(), n)
			if k%2 == 0 {
				data = noise(r.Uint64(), n)
			}
			err = tryWriteAt(e, name, int64(off), data)
			want = overlay(want, off, data)
		case k == 6:
			size := r.IntN(250_000)
			_, _, err = e.Truncate(ctx, name, int64(size), Preconditions{})
			want = append(want, make([]byte, max(0, size-len(want)))...)[:size]
		case k < 9 && len(want) > 1:
			off := r.IntN(len(want) - 1)
			n = min(n, len(want)-off)
			_, _, err = e.Deallocate(ctx, name, int64(off), int64(n), Preconditions{})
			clear(want[off : off+n])
		case k == 9:
			_, err = e.Delete(ctx, DeleteRequest{Name: name})
			want = nil
		case k == 10:
			_, err = e.Sync(ctx, []string{name}, nil)
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			return want
		}
		if want == nil {
			continue
		}
		if got, err := tryRead(e, name, 0, nil); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s holds something else, %v", name, err)
			return want
		}
	}
	return want
}

// TestReadersKeepWhatMoves holds a reader in the middle of a device read while its data is moved and the
// zone would be reset: it gets what it opened.
func TestReadersKeepWhatMoves(t *testing.T) {
	b := newFaultBench(t, zns(24, 256<<10), quietReclaim(Options{}))
	e := b.open()
	want := holey(t, e, "f", noise(1, 1<<20))
	epoch := e.epochs.enter() // a reader between its look-up and its device read
	old := pieces(t, e, "f")
	done := make(chan ReclaimProgress, 1)
	go func() {
		p, err := e.Reclaim(context.Background(), ReclaimRequest{Threshold: ptr(0)}, nil)
		if err != nil {
			t.Error(err)
		}
		done <- p
	}()
	eventually(t, "all is moved", func() bool { return e.rc.emptied.Load() > 0 && e.rc.working.Load() == 0 })
	for _, x := range old {
		f := &file{id: 1}
		if err := e.readBlocks(f, x, make([]byte, x.Blocks*extent.BlockSize)); err != nil {
			t.Fatalf("what a reader looked up is gone: %v", err)
		}
	}
	e.epochs.exit(epoch)
	p := <-done
	eventually(t, "the zones are reset", func() bool { return e.Usage().Reclaimable == 0 })
	if p.Emptied == 0 {
		t.Errorf("%+v", p)
	}
	sameFile(t, e, "f", want)
}

// TestReclaimWithOnlyItsReserve fills a store to refusal, in whole zones with a single dead block each,
// and reclaims with nothing but the reserve.
func TestReclaimWithOnlyItsReserve(t *testing.T) {
	for name, g := range reclaimGeometries {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			codec := extent.CodecNone
			b := newFaultBench(t, g, quietReclaim(Options{Compression: &codec, DirtyLimit: minDirtyLimit, MaxWait: 10 * time.Second}))
			e := b.open()
			data := noise(1, int(e.Usage().Total))
			writeAt(t, e, "f", 0, data)
			syncAll(t, e)
			err := tryWriteAt(e, "g", 0, noise(2, 8192))
			wantError(t, err, errdefs.NoSpace, errdefs.ReasonNoSpace)
			syncAll(t, e)
			dead := int64(0)
			for off := int64(0); off < int64(len(data)); off += g.ZoneCapacity {
				if _, _, err := e.Deallocate(context.Background(), "f", off, extent.BlockSize, Preconditions{}); err != nil {
					t.Fatal(err)
				}
				clear(data[off:min(off+extent.BlockSize, int64(len(data)))])
				dead += extent.BlockSize
			}
			extra := noise(3, int(dead))
			writeAt(t, e, "g", 0, extra)
			syncAll(t, e)
			sameFile(t, e, "f", data)
			sameFile(t, e, "g", extra)
			err = tryWriteAt(e, "h", 0, noise(4, 8192))
			wantError(t, err, errdefs.NoSpace, errdefs.ReasonNoSpace)
			syncAll(t, e)
			checkQuiet(t, e)
			b.checkLimits()
			t.Logf("%d bytes were dead, %d moved for them", dead, e.Counters()["reclaim_bytes_moved"])
		})
	}
}

// TestVictimIsNotReused lets everything in a block group die while it is being moved, and the store be
// written full: no address of it means other data before the move has ended.
func TestVictimIsNotReused(t *testing.T) {
	b := newFaultBench(t, zns(16, 256<<10), quietReclaim(Options{DirtyLimit: minDirtyLimit, MaxWait: 200 * time.Millisecond}))
	e := b.open()
	holey(t, e, "f", noise(1, 1<<20))
	victim, _ := e.rc.index.Best()
	z := e.zoneOf(victim.Slot)
	gate := make(chan struct{})
	reached := make(chan struct{})
	var once sync.Once
	b.mem.SetHook(func(op zone.Op) error {
		if op.Kind == zone.OpRead && op.Zone == z && !op.After {
			once.Do(func() { close(reached); <-gate })
		}
		return nil
	})
	done := make(chan error, 1)
	go func() {
		_, err := e.Reclaim(context.Background(), ReclaimRequest{Threshold: ptr(0), BlockGroups: []uint32{victim.Slot}}, nil)
		done <- err
	}()
	<-reached
	deleteFile(t, e, "f")
	eventually(t, "the file is freed", func() bool { return e.orphans.Load() == 0 })
	files, _ := fillWith(t, e, 100_000)
	if g := groupOf(e, z); g.Generation != 1 || g.Live != 0 {
		t.Errorf("the block group that is being moved is %+v", g)
	}
	close(gate)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	eventually(t, "its zone comes back", func() bool { return groupOf(e, z).Generation == 2 })
	for i := range files - 1 {
		if got, err := tryRead(e, fmt.Sprintf("d/%d", i), 0, nil); err != nil || len(got) != 100_000 {
			t.Fatalf("file %d: %d bytes, %v", i, len(got), err)
		}
	}
	syncAll(t, e)
	checkQuiet(t, e)
}

// TestMovedCopiesInDoubt loses power after a flush that covered copies has failed and a later one has
// succeeded: the copies may be gone, so nothing refers to them.
func TestMovedCopiesInDoubt(t *testing.T) {
	b := newFaultBench(t, zns(24, 256<<10), quietReclaim(Options{}))
	e := b.open()
	want := holey(t, e, "f", noise(1, 1<<20))
	epoch := e.doubt.epoch.Load()
	var left atomic.Int64
	left.Store(1)
	b.mem.SetHook(func(op zone.Op) error {
		if op.Kind == zone.OpFlush && !op.After && left.Add(-1) >= 0 {
			return errdefs.Wrap(errdefs.Device, errdefs.ReasonDeviceIO, "test", op.Kind.String(), zone.ErrMedia)
		}
		return nil
	})
	p := reclaimAll(t, e)
	if e.doubt.epoch.Load() != epoch+1 {
		t.Fatalf("%d flushes failed", e.doubt.epoch.Load()-epoch)
	}
	c := e.Counters()
	if p.Emptied == 0 || c["reclaim_bytes_discarded"] == 0 {
		t.Errorf("nothing that was in doubt was given up: %+v, %v", p, c)
	}
	sameFile(t, e, "f", want)
	syncAll(t, e)
	checkQuiet(t, e)
}

// TestReclaimBesideCommit has a delete written and not yet told to the allocator, in whose books the
// block group still holds something: there is nothing to move in it, and emptying it again and again
// would be of no use.
func TestReclaimBesideCommit(t *testing.T) {
	b := newFaultBench(t, zns(24, 256<<10), quietReclaim(Options{}))
	gate, met := make(chan struct{}), make(chan struct{})
	var armed atomic.Bool
	var e *Engine
	b.opts.AroundCommit = func(commit func() error) error {
		err := commit()
		if armed.Load() {
			if parts, _, _ := e.gather(e.addr(0, 0), e.addr(1, 0)); len(parts) == 0 {
				armed.Store(false)
				close(met)
				<-gate
			}
		}
		return err
	}
	e = b.open()
	put(t, e, "a", noise(1, 64<<10))
	put(t, e, "b", noise(2, 512<<10))
	remove := func(name string) error {
		_, err := e.Delete(context.Background(), DeleteRequest{Name: name})
		return err
	}
	if err := remove("b"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a block group worth emptying", func() bool { _, any := e.rc.index.Best(); return any })
	armed.Store(true)
	gone := make(chan error, 1)
	go func() { gone <- remove("a") }()
	<-met
	policy := reclaim.NewPolicy(reclaim.Options{Threshold: 1, LowThreshold: 1, Low: 1, High: 1, Busy: 100})
	steps := 0
	for e.reclaimStep(policy) && steps < 100 {
		steps++
	}
	if steps > 2 {
		t.Errorf("%d steps emptied what a commit had emptied", steps)
	}
	close(gate)
	if err := <-gone; err != nil {
		t.Fatal(err)
	}
	eventually(t, "its zone to be reset", func() bool { return e.al.Snapshot(0, 1)[0].State == alloc.Empty })
	checkQuiet(t, e)
}
