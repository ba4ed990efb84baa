package engine

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/shingle-store/shingle/internal/alloc"
	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/store"
	"github.com/shingle-store/shingle/internal/trim"
	"github.com/shingle-store/shingle/internal/zone"
	"github.com/shingle-store/shingle/internal/zone/faultdev"
	"github.com/shingle-store/shingle/internal/zone/filedev"
)

var trimZNS = zone.Geometry{Dialect: zone.ZNS, ZoneSize: 1 << 20, ZoneCapacity: 768 << 10, Zones: 20, MaxOpen: 4, MaxActive: 5}

// trimAll trims everything and holds the summary against itself and the account of space.
func trimAll(t testing.TB, e *Engine) TrimResult {
	t.Helper()
	return trimRange(t, e, TrimRequest{Length: trim.ToEnd})
}

func trimRange(t testing.TB, e *Engine, r TrimRequest) TrimResult {
	t.Helper()
	res, err := e.Trim(context.Background(), r, nil)
	if err != nil {
		t.Fatal(err)
	}
	wantSum(t, res)
	if res.Done != res.Total {
		t.Fatalf("not all was looked at: %+v", res)
	}
	wantNothingHeld(t, e)
	return res
}

func wantSum(t testing.TB, r TrimResult) {
	t.Helper()
	sum := r.Trimmed + r.InUse + r.AlreadyTrimmed + r.TooShort + r.PartialZone + r.Busy + r.Unsupported + r.Gap + r.Quarantined + r.Failed
	if sum != r.Done {
		t.Fatalf("the figures add up to %d: %+v", sum, r)
	}
}

// wantNothingHeld holds that whatever a trim kept from being allocated has been given back.
func wantNothingHeld(t testing.TB, e *Engine) {
	t.Helper()
	checkIdentity(t, e)
	for _, g := range e.BlockGroups(0, -1) {
		if g.State == alloc.Empty && !g.Conventional {
			if !e.al.HoldEmpty(g.BlockGroup) {
				t.Fatalf("block group %d is held", g.Slot)
			}
			e.al.ReleaseEmpty(g.Slot)
		}
	}
}

// onRecord returns the slots whose records say that they were trimmed.
func onRecord(t testing.TB, e *Engine) (out []uint32) {
	t.Helper()
	err := e.st.View(func(tx *store.Tx) error {
		return tx.BlockGroups(func(g store.BlockGroup) error {
			if g.Trimmed() {
				out = append(out, g.Slot)
			}
			return nil
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestTrimGivesZonesBack(t *testing.T) {
	modes(t, func(t *testing.T, o Options) {
		b := newFaultBench(t, trimZNS, o)
		e := b.open()
		groups := uint64(e.slots())
		capacity := uint64(trimZNS.ZoneCapacity)
		gap := groups * uint64(trimZNS.ZoneSize-trimZNS.ZoneCapacity)

		first := trimAll(t, e)
		if first.State != trim.Complete || first.Trimmed != groups*capacity || first.Extents != groups || first.ZonesReset != 0 || first.Gap != gap {
			t.Fatalf("the trim of an empty store: %+v", first)
		}
		releases := b.fault.Counts().Releases
		again := trimAll(t, e)
		if again.Trimmed != 0 || again.AlreadyTrimmed != groups*capacity || b.fault.Counts().Releases != releases {
			t.Fatalf("a second trim: %+v", again)
		}
		if n := len(onRecord(t, e)); n != int(groups) {
			t.Fatalf("%d block groups are on record as trimmed", n)
		}

		want := map[string][]byte{}
		for i := range 4 {
			name := fmt.Sprintf("f%d", i)
			want[name] = noise(uint64(i), 1<<20)
			put(t, e, name, want[name])
		}
		free := e.Usage().Free
		deleteFile(t, e, "f1")
		deleteFile(t, e, "f2")
		delete(want, "f1")
		delete(want, "f2")
		written := groups - uint64(len(e.trimmed.zones))
		res := trimAll(t, e)
		// Of files of 1 MiB in zones of 768 KiB some zones are dead as a whole, and others in part.
		if res.State != trim.Complete || res.Trimmed%capacity != 0 || res.Extents != res.Trimmed/capacity ||
			res.PartialZone == 0 || res.InUse < 2<<20 && o.Compression != nil && *o.Compression == extent.CodecNone {
			t.Fatalf("%d zones were written to: %+v", written, res)
		}
		if res.Trimmed == 0 || res.AlreadyTrimmed != (groups-written)*capacity {
			t.Fatalf("%d of %d zones were written to: %+v", written, groups, res)
		}
		if u := e.Usage(); u.Free <= free {
			t.Errorf("%d bytes are free after a trim, %d before the deletes", u.Free, free)
		}
		for name, data := range want {
			sameFile(t, e, name, data)
		}

		again = trimAll(t, e)
		if again.Trimmed != 0 || again.AlreadyTrimmed != res.AlreadyTrimmed+res.Trimmed {
			t.Fatalf("a second trim: %+v, the first %+v", again, res)
		}
		releases = b.fault.Counts().Releases
		e = b.reopen()
		if r := trimAll(t, e); r.Trimmed != 0 || r.AlreadyTrimmed != again.AlreadyTrimmed || b.fault.Counts().Releases != releases {
			t.Fatalf("after a restart: %+v", r)
		}
		e = b.crash(1)
		// What was being written to is reset at open if nothing lives in it; nothing was here.
		if r := trimAll(t, e); r.Trimmed != 0 || r.AlreadyTrimmed != again.AlreadyTrimmed {
			t.Fatalf("after a crash: %+v", r)
		}
		for name, data := range want {
			sameFile(t, e, name, data)
		}
		b.closed()
		b.checkClean()
		b.checkLimits()
	})
}

// What is stored again is trimmed no more, on record and in memory, and a zone that is opened and
// left without an extent neither.
func TestTrimmedUntilStored(t *testing.T) {
	b := newFaultBench(t, trimZNS, Options{})
	e := b.open()
	trimAll(t, e)
	put(t, e, "a", noise(1, 300_000))
	slot, _ := e.split(pieces(t, e, "a")[0].Addr)
	for _, s := range onRecord(t, e) {
		if s == slot {
			t.Errorf("block group %d holds a file and is on record as trimmed", slot)
		}
	}
	if e.trimmed.has(slot) {
		t.Errorf("block group %d holds a file and counts as trimmed", slot)
	}
	deleteFile(t, e, "a")
	if r := trimAll(t, e); r.Trimmed != uint64(trimZNS.ZoneCapacity) || r.ZonesReset != 1 {
		t.Fatalf("%+v", r)
	}

	// Opened, and the data never came.
	b.fault.FailAppend(faultdev.AnyZone, 2, faultdev.MovedNone)
	put(t, e, "b", noise(2, 100_000))
	deleteFile(t, e, "b")
	e = b.crash(3)
	r := trimAll(t, e)
	if r.Trimmed == 0 || r.PartialZone+r.InUse+r.Busy != 0 {
		t.Fatalf("after a crash: %+v", r)
	}
	if r = trimAll(t, e); r.Trimmed != 0 {
		t.Fatalf("again: %+v", r)
	}
}

// The ends of the range inside a block, an extent and a zone, and at the end of the addresses.
func TestTrimRanges(t *testing.T) {
	b := newBench(t, trimZNS, Options{})
	e := b.open()
	put(t, e, "a", noise(1, 200_000)) // 49 blocks after the header of a zone of 192
	put(t, e, "b", noise(2, 100_000))
	const blk = extent.BlockSize
	p := pieces(t, e, "a")
	slot, off := e.split(p[0].Addr)
	if off != blk || len(p) != 1 {
		t.Fatalf("%+v", p)
	}
	deleteFile(t, e, "b")
	size, capacity := uint64(trimZNS.ZoneSize), uint64(trimZNS.ZoneCapacity)
	at := uint64(slot) * size
	end := uint64(e.slots()) * size
	for _, c := range []struct {
		name       string
		r          TrimRequest
		total      uint64
		inUse      uint64
		partial    uint64
		gap        uint64
		trimmed    uint64
		everything bool
	}{
		{name: "inside a block", r: TrimRequest{Start: at + 10, Length: blk}},
		{name: "the header, with ends inside of blocks", r: TrimRequest{Start: at, Length: 2*blk - 1}, total: blk, inUse: blk},
		{name: "inside the extent", r: TrimRequest{Start: at + 5*blk - 1, Length: 10 * blk}, total: 9 * blk, inUse: 9 * blk},
		{name: "out of the extent", r: TrimRequest{Start: at + 45*blk, Length: 10 * blk}, total: 10 * blk, inUse: 5 * blk, partial: 5 * blk},
		{name: "behind the extent", r: TrimRequest{Start: at + 50*blk, Length: 10 * blk}, total: 10 * blk, partial: 10 * blk},
		{name: "over the capacity", r: TrimRequest{Start: at + capacity - blk, Length: 3 * blk}, total: 3 * blk, partial: blk, gap: 2 * blk},
		{name: "the whole zone", r: TrimRequest{Start: at, Length: size}, total: size, inUse: 50 * blk, partial: capacity - 50*blk, gap: size - capacity},
		{name: "an empty zone in part", r: TrimRequest{Start: end - size, Length: size - 1}, total: size - blk, partial: capacity, gap: size - capacity - blk},
		{name: "the last byte", r: TrimRequest{Start: end - 1, Length: blk}},
		{name: "the last byte, to the end", r: TrimRequest{Start: end - 1, Length: trim.ToEnd}},
		{name: "an empty zone", r: TrimRequest{Start: end - size, Length: math.MaxUint64 - end}, total: size, trimmed: capacity, gap: size - capacity},
	} {
		for _, dry := range []bool{true, false} {
			c.r.DryRun = dry
			res := trimRange(t, e, c.r)
			if res.Total != c.total || res.InUse != c.inUse || res.PartialZone != c.partial || res.Gap != c.gap || res.Trimmed != c.trimmed {
				t.Errorf("%s (dry %t): %+v", c.name, dry, res)
			}
		}
	}
	for _, r := range []TrimRequest{{Start: end, Length: trim.ToEnd}, {Length: blk - 1}, {Start: blk, Length: math.MaxUint64 - 1}} {
		if _, err := e.Trim(context.Background(), r, nil); !errdefs.Is(err, errdefs.InvalidArgument) {
			t.Errorf("%+v: %v", r, err)
		}
	}
	if r := trimRange(t, e, TrimRequest{Length: trim.ToEnd, MinLength: capacity + 1}); r.Trimmed != 0 || r.TooShort == 0 || r.MinLength != capacity+blk {
		t.Errorf("%+v", r)
	}
	sameFile(t, e, "a", noise(1, 200_000))
}

// A reader that may still look at a dead zone keeps it from being reset, for as long as it reads.
func TestTrimWaitsForReaders(t *testing.T) {
	t.Parallel()
	b := newBench(t, trimZNS, Options{})
	e := b.open()
	trimAll(t, e)
	put(t, e, "a", noise(1, 300_000))
	epoch := e.epochs.enter()
	deleteFile(t, e, "a")
	r := trimAll(t, e)
	if r.Busy != uint64(trimZNS.ZoneCapacity) || r.Trimmed != 0 || r.State != trim.Complete {
		t.Fatalf("with a reader: %+v", r)
	}
	e.epochs.exit(epoch)
	if r := trimAll(t, e); r.Busy != 0 || r.Trimmed != uint64(trimZNS.ZoneCapacity) {
		t.Fatalf("without: %+v", r)
	}
}

func TestCancelTrim(t *testing.T) {
	b := newFaultBench(t, trimZNS, Options{})
	e := b.open()
	ctx := context.Background()
	if _, err := e.CancelTrim(ctx); !errdefs.Is(err, errdefs.NotFound) {
		t.Fatalf("nothing runs: %v", err)
	}
	for _, how := range []string{"CancelTrim", "context"} {
		gate, met := make(chan struct{}), make(chan struct{})
		b.fault.Stall(zone.OpRelease, e.zoneOf(5), gate, met)
		tctx, cancel := context.WithCancel(ctx)
		var res TrimResult
		var g errgroup.Group
		var last TrimResult
		g.Go(func() (err error) {
			res, err = e.Trim(tctx, TrimRequest{Length: trim.ToEnd}, func(r TrimResult) { last = r })
			return err
		})
		<-met
		// A second one waits, and lets go when its caller does.
		sctx, scancel := context.WithTimeout(ctx, 20*time.Millisecond)
		if _, err := e.Trim(sctx, TrimRequest{Length: trim.ToEnd}, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("a second trim: %v", err)
		}
		scancel()
		var cancelled TrimResult
		if how == "context" {
			cancel()
		} else {
			impatient, icancel := context.WithTimeout(ctx, 10*time.Millisecond)
			if _, err := e.CancelTrim(impatient); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("the trim is stalled: %v", err)
			}
			icancel()
			waiting := make(chan struct{})
			g.Go(func() (err error) {
				close(waiting)
				if cancelled, err = e.CancelTrim(ctx); errdefs.Is(err, errdefs.NotFound) {
					err = nil // it came too late
				}
				return err
			})
			<-waiting
			time.Sleep(10 * time.Millisecond)
		}
		close(gate)
		if err := g.Wait(); err != nil {
			t.Fatal(err)
		}
		cancel()
		wantSum(t, res)
		wantNothingHeld(t, e)
		if res.State != trim.Cancelled || res.Done >= res.Total || res.NextStart == 0 || res.Trimmed == 0 && res.AlreadyTrimmed == 0 {
			t.Fatalf("%s: %+v", how, res)
		}
		if cancelled != (TrimResult{}) && cancelled != res {
			t.Errorf("CancelTrim answers %+v, the trim %+v", cancelled, res)
		}
		if last.Done > res.Done {
			t.Errorf("progress %+v, in the end %+v", last, res)
		}
		// It goes on where it stopped.
		rest := trimRange(t, e, TrimRequest{Start: res.NextStart, Length: trim.ToEnd})
		if rest.Trimmed+rest.AlreadyTrimmed == 0 || trimAll(t, e).Trimmed != 0 {
			t.Fatalf("the rest: %+v", rest)
		}
		for slot := range e.slots() {
			e.trimmed.opened(uint32(slot)) // for the next round: to be given back again
		}
	}
}

// A dry run touches nothing, and works on a store that takes no changes.
func TestTrimDryRun(t *testing.T) {
	b := newFaultBench(t, trimZNS, Options{})
	e := b.open()
	put(t, e, "a", noise(1, 300_000))
	put(t, e, "b", noise(2, 2<<20))
	before := b.fault.Counts()
	dry := trimRange(t, e, TrimRequest{Length: trim.ToEnd, DryRun: true})
	if c := b.fault.Counts(); c != before || len(onRecord(t, e)) != 0 {
		t.Errorf("a dry run: %+v, before %+v", c, before)
	}
	if r := trimAll(t, e); r != dry {
		t.Errorf("a dry run says %+v, the trim %+v", dry, r)
	}
	e.failWrites(errors.New("test"))
	if _, err := e.Trim(context.Background(), TrimRequest{Length: trim.ToEnd}, nil); !errdefs.Is(err, errdefs.ReadOnly) {
		t.Errorf("a trim of a store that takes no changes: %v", err)
	}
	if r := trimRange(t, e, TrimRequest{Length: trim.ToEnd, DryRun: true}); r.Trimmed != 0 || r.AlreadyTrimmed != dry.Trimmed {
		t.Errorf("%+v", r)
	}
}

// On an emulated device the disk of the host gets its space back, and takes it again.
func TestTrimGivesTheHostItsSpaceBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "device")
	g := zone.Geometry{Dialect: zone.ZNS, ZoneSize: 4 << 20, ZoneCapacity: 4 << 20, Zones: 12, MaxOpen: 4, MaxActive: 5}
	if err := filedev.Create(path, g, filedev.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	dev, err := filedev.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	b := newBenchOn(t, dev, Options{})
	e := b.open()
	empty := blocksOnDisk(t, path)
	put(t, e, "keep", noise(1, 1<<20))
	put(t, e, "large", noise(2, 16<<20))
	full := blocksOnDisk(t, path)
	if full < empty+16<<20 {
		t.Skip("files take no space here")
	}
	deleteFile(t, e, "large")
	r := trimAll(t, e)
	if now := blocksOnDisk(t, path); now > full-12<<20 {
		t.Errorf("the file took %d bytes, and takes %d after %+v", full, now, r)
	}
	put(t, e, "large", noise(3, 16<<20))
	sameFile(t, e, "keep", noise(1, 1<<20))
	sameFile(t, e, "large", noise(3, 16<<20))
	b.closed()
	b.checkClean()
}

// With reclaim, live data moves out of mostly dead zones in the range first, and those are given back too.
func TestTrimWithReclaim(t *testing.T) {
	b := newFaultBench(t, trimZNS, Options{})
	e := b.open()
	trimAll(t, e)
	want := map[string][]byte{}
	for i := range 30 {
		name := fmt.Sprintf("f%d", i)
		want[name] = noise(uint64(i), 150_000)
		put(t, e, name, want[name])
	}
	for i := range 30 {
		if i%6 != 0 {
			deleteFile(t, e, fmt.Sprintf("f%d", i))
			delete(want, fmt.Sprintf("f%d", i))
		}
	}
	if r := trimRange(t, e, TrimRequest{Length: trim.ToEnd, Reclaim: true, DryRun: true}); r.Relocated != 0 {
		t.Fatalf("a dry run: %+v", r)
	}
	var seen uint64
	r, err := e.Trim(context.Background(), TrimRequest{Length: trim.ToEnd, Reclaim: true}, func(r TrimResult) { seen = max(seen, r.Relocated) })
	if err != nil || r.State != trim.Complete || seen != r.Relocated || r.Trimmed == 0 {
		t.Fatalf("%+v, %v, seen %d", r, err, seen)
	}
	wantSum(t, r)
	if due := e.rc.index.Above(e.rc.o.Threshold); len(due) > 0 {
		t.Errorf("worth emptying, and in the range: %+v", due)
	}
	// The background may have moved a part of it before.
	if moved := e.Counters()["reclaim_bytes_moved"]; moved == 0 || moved < r.Relocated {
		t.Errorf("%d bytes were moved in all, %+v", moved, r)
	}
	// Five files of 150,000 bytes are left, which a zone or two hold beside the one being written to.
	if left := trimAll(t, e); left.InUse+left.PartialZone > 3*uint64(trimZNS.ZoneCapacity) {
		t.Errorf("%+v", left)
	}
	for name, data := range want {
		sameFile(t, e, name, data)
	}
	// A range that holds no block group as a whole moves nothing.
	if r := trimRange(t, e, TrimRequest{Start: 4096, Length: uint64(trimZNS.ZoneSize), Reclaim: true}); r.Relocated != 0 {
		t.Errorf("%+v", r)
	}
	b.closed()
	b.checkClean()
}
