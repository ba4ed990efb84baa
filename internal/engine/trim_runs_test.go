package engine

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"github.com/shingle-store/shingle/internal/alloc"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/store"
	"github.com/shingle-store/shingle/internal/trim"
	"github.com/shingle-store/shingle/internal/zone"
	"github.com/shingle-store/shingle/internal/zone/faultdev"
	"github.com/shingle-store/shingle/internal/zone/filedev"
)

var trimDisk = zone.Geometry{Dialect: zone.SMR, ZoneSize: 1 << 20, ZoneCapacity: 1 << 20, Zones: 16, Conventional: 16}

// trimmedBlocks returns the blocks of a conventional block group that are on record as trimmed.
func trimmedBlocks(t testing.TB, e *Engine, slot uint32) (n int64) {
	t.Helper()
	err := e.st.View(func(tx *store.Tx) error {
		runs, err := tx.TrimmedRuns(slot)
		for _, r := range runs {
			n += r.Len / extent.BlockSize
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestTrimOfConventionalZones(t *testing.T) {
	b := newFaultBench(t, trimDisk, Options{})
	e := b.open()
	groups, size := uint64(e.slots()), uint64(trimDisk.ZoneSize)
	first := trimAll(t, e)
	if first.State != trim.Complete || first.Trimmed != groups*size || first.Extents != groups || first.Commands != groups || first.ZonesReset != 0 {
		t.Fatalf("the trim of an empty store: %+v", first)
	}
	if r := trimAll(t, e); r.Trimmed != 0 || r.AlreadyTrimmed != groups*size || b.fault.Counts().Discards != int(groups) {
		t.Fatalf("a second trim: %+v", r)
	}

	// A file with a hole of 16 KiB every 32 KiB.
	const blk, length = extent.BlockSize, 2 << 20
	data := noise(1, length)
	put(t, e, "f", data)
	if r := trimAll(t, e); r.Trimmed != 0 || r.InUse != length {
		t.Fatalf("with a file: %+v", r)
	}
	for off := int64(0); off < length; off += 32 << 10 {
		if _, _, err := e.Deallocate(t.Context(), "f", off, 16<<10, Preconditions{}); err != nil {
			t.Fatal(err)
		}
		clear(data[off : off+16<<10])
	}
	before := b.fault.Stats()
	free := e.Usage().Free
	r := trimAll(t, e)
	if r.Trimmed != length/2 || r.InUse != length/2 || r.AlreadyTrimmed != groups*size-length {
		t.Fatalf("with holes: %+v", r)
	}
	if s := b.fault.Stats(); s.DiscardRanges-before.DiscardRanges != r.Extents || r.Extents < 60 || s.Discards-before.Discards != r.Commands || r.Commands > 4 {
		t.Errorf("%d ranges in %d commands: %+v", s.DiscardRanges-before.DiscardRanges, s.Discards-before.Discards, r)
	}
	if e.Usage().Free != free {
		t.Errorf("%d bytes are free after a trim, %d before", e.Usage().Free, free)
	}
	sameFile(t, e, "f", data)
	again := func(what string) {
		t.Helper()
		discards := b.fault.Counts().Discards
		if r := trimAll(t, e); r.Trimmed != 0 || r.InUse != length/2 || b.fault.Counts().Discards != discards {
			t.Fatalf("%s: %+v", what, r)
		}
		sameFile(t, e, "f", data)
	}
	again("again")
	e = b.reopen()
	again("after a restart")
	e = b.crash(1)
	again("after a crash")

	// What is stored there again is trimmed no more.
	put(t, e, "g", noise(2, 100*blk))
	slot, _ := e.split(pieces(t, e, "g")[0].Addr)
	was := trimmedBlocks(t, e, slot)
	deleteFile(t, e, "g")
	if r := trimAll(t, e); r.Trimmed != 100*blk {
		t.Fatalf("what was stored and deleted: %+v", r)
	}
	if trimmedBlocks(t, e, slot) <= was {
		t.Errorf("%d blocks of block group %d are on record as trimmed, %d before", trimmedBlocks(t, e, slot), slot, was)
	}
	b.closed()
	b.checkClean()
}

// The range begins and ends inside of free runs and extents; a short run is passed over.
func TestTrimRangesOfConventionalZones(t *testing.T) {
	b := newBench(t, trimDisk, Options{})
	e := b.open()
	const blk = extent.BlockSize
	put(t, e, "f", noise(1, 100*blk))
	p := pieces(t, e, "f")
	if len(p) != 1 || p[0].Addr != 0 {
		t.Fatalf("%+v", p)
	}
	for _, hole := range [][2]int64{{10, 12}, {20, 25}, {90, 100}} {
		if _, _, err := e.Deallocate(t.Context(), "f", hole[0]*blk, (hole[1]-hole[0])*blk, Preconditions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		start, length, min uint64
		trimmed, inUse     uint64
		short, already     uint64
	}{
		{11*blk - 1, 2*blk + 1, 0, 1, 1, 0, 0}, // begins inside of a block of a free run
		{10 * blk, 2*blk - 1, 0, 1, 0, 0, 0},   // ends inside of one
		{10 * blk, 2 * blk, 0, 0, 0, 0, 2},
		{19 * blk, 4 * blk, 4 * blk, 0, 1, 3, 0}, // of five blocks three lie in the range
		{19 * blk, 6 * blk, 4*blk + 1, 5, 1, 0, 0},
		{80 * blk, 11 * blk, 2 * blk, 0, 10, 1, 0},
		{95 * blk, 20 * blk, 0, 20, 0, 0, 0},
	} {
		r := trimRange(t, e, TrimRequest{Start: c.start, Length: c.length, MinLength: c.min})
		if r.Trimmed != c.trimmed*blk || r.InUse != c.inUse*blk || r.TooShort != c.short*blk || r.AlreadyTrimmed != c.already*blk {
			t.Errorf("%+v: %+v", c, r)
		}
	}
}

// A discard that fails gives everything back, of one range and of many; the others go on.
func TestFailingDiscards(t *testing.T) {
	b := newFaultBench(t, trimDisk, Options{})
	e := b.open()
	size := uint64(trimDisk.ZoneSize)
	groups := uint64(e.slots())
	b.fault.FailCommand(zone.OpDiscard, e.zoneOf(3), true)
	before := e.Usage()
	r := trimAll(t, e)
	if r.State != trim.CompleteWithErrors || r.Failed != size || r.FailedZones != 1 || r.Trimmed != (groups-1)*size {
		t.Fatalf("%+v", r)
	}
	if u := e.Usage(); u.Free != before.Free || e.al.Aside() != 0 {
		t.Errorf("%+v, before %+v, %d aside", u, before, e.al.Aside())
	}
	b.fault.Heal()
	if r := trimAll(t, e); r.Trimmed != size || r.Commands != 1 {
		t.Fatalf("after it: %+v", r)
	}

	// A flush that fails after the discards: they are sent again.
	put(t, e, "f", noise(1, 1<<20))
	deleteFile(t, e, "f")
	e.settleFrees(t.Context())
	b.fault.FailFlush(1, false)
	if r := trimAll(t, e); r.Trimmed != 1<<20 {
		t.Fatalf("%+v", r)
	}
	if r := trimAll(t, e); r.Trimmed < 1<<20 {
		t.Fatalf("after a flush that failed: %+v", r)
	}
	if r := trimAll(t, e); r.Trimmed != 0 {
		t.Fatalf("again: %+v", r)
	}

	// All of the device can be filled: nothing is held any more.
	n, _ := fill(t, e, "fill", 1<<20)
	if uint64(n) < groups-1 {
		t.Errorf("%d files of 1 MiB fit in %d zones", n, groups)
	}
}

// What was written and never published is not taken for trimmed.
func TestWrittenForNothing(t *testing.T) {
	b := newFaultBench(t, trimDisk, Options{})
	e := b.open()
	trimAll(t, e)
	const n = 50 * extent.BlockSize
	if err := e.tryReserve(n); err != nil {
		t.Fatal(err)
	}
	grant, outcome := e.al.Allocate(alloc.ClassData, n)
	if outcome != alloc.Granted || grant.Length != n {
		t.Fatalf("%+v, %v", grant, outcome)
	}
	addr, err := e.append(grant, [][]byte{noise(1, n)})
	if err != nil {
		t.Fatal(err)
	}
	e.reserved.Add(-n)
	e.discard(placedExtent{slot: grant.Slot, NewExtent: store.NewExtent{Addr: addr, Blocks: n / extent.BlockSize}}, false)
	if r := trimAll(t, e); r.Trimmed != n || r.InUse != 0 {
		t.Fatalf("%+v", r)
	}
	if r := trimAll(t, e); r.Trimmed != 0 {
		t.Fatalf("again: %+v", r)
	}
}

// A device without a discard has nothing to be told of a conventional zone, and that is no error.
func TestConventionalZonesWithoutDiscard(t *testing.T) {
	mem, err := zone.NewMem(trimDisk, zone.MemOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for name, dev := range map[string]zone.Device{"none": keep{mem}, "passed on": faultdev.New(keep{mem}, 1)} {
		t.Run(name, func(t *testing.T) {
			if name != "none" {
				if mem, err = zone.NewMem(trimDisk, zone.MemOptions{}); err != nil {
					t.Fatal(err)
				}
				dev = faultdev.New(keep{mem}, 1)
			}
			b := newBenchOn(t, dev, Options{})
			e := b.open()
			r := trimAll(t, e)
			if r.State != trim.Complete || r.Unsupported != r.Total || r.FirstError != nil || e.al.Aside() != 0 {
				t.Fatalf("%+v", r)
			}
		})
	}
}

// TestTrimAgainstBlocks writes, punches, deletes and trims at random on a device that is all
// conventional, and knows of each block of it whether it is in use and whether it was trimmed.
func TestTrimAgainstBlocks(t *testing.T) {
	rounds := 120
	if testing.Short() {
		rounds = 30
	}
	b := newBench(t, trimDisk, Options{})
	e := b.open()
	const blk = extent.BlockSize
	blocks := e.slots() * int(trimDisk.ZoneSize/blk)
	used, trimmed := make([]bool, blocks), make([]bool, blocks)
	rng := rand.New(rand.NewPCG(7, 7))
	want := map[string][]byte{}
	// look finds out what is in use: whatever has come into use, or was before, is trimmed no more.
	look := func() {
		e.settleFrees(t.Context())
		now := make([]bool, blocks)
		for name := range want {
			for _, p := range pieces(t, e, name) {
				for i := range p.Blocks {
					now[int(p.Addr)/blk+int(i)] = true
				}
			}
		}
		for i := range now {
			trimmed[i] = trimmed[i] && !now[i] && !used[i]
		}
		used = now
	}
	for round := range rounds {
		name := fmt.Sprint(rng.IntN(12))
		switch rng.IntN(5) {
		case 0, 1:
			want[name] = noise(uint64(round), 4096+rng.IntN(60)*blk)
			put(t, e, name, want[name])
		case 2:
			if data := want[name]; len(data) > 3*blk {
				off := rng.IntN(len(data)/blk) * blk
				n := min(len(data)-off, (1+rng.IntN(9))*blk)
				if _, _, err := e.Deallocate(t.Context(), name, int64(off), int64(n), Preconditions{}); err != nil {
					t.Fatal(err)
				}
				want[name] = slices.Clone(data)
				clear(want[name][off : off+n])
			}
		case 3:
			if _, ok := want[name]; ok {
				deleteFile(t, e, name)
				delete(want, name)
			}
		case 4:
			if rng.IntN(4) == 0 {
				e = b.reopen()
			}
		}
		look()
		if round%3 != 0 {
			continue
		}
		from := rng.IntN(blocks)
		to := from + 1 + rng.IntN(blocks-from)
		r := trimRange(t, e, TrimRequest{Start: uint64(from) * blk, Length: uint64(to-from) * blk})
		var inUse, already, fresh uint64
		for i := from; i < to; i++ {
			switch {
			case used[i]:
				inUse += blk
			case trimmed[i]:
				already += blk
			default:
				fresh += blk
				trimmed[i] = true
			}
		}
		if r.InUse != inUse || r.AlreadyTrimmed != already || r.Trimmed != fresh {
			t.Fatalf("round %d, blocks [%d, %d): %+v, want in use %d, already trimmed %d, trimmed %d", round, from, to, r, inUse, already, fresh)
		}
		for name, data := range want {
			sameFile(t, e, name, data)
		}
	}
	b.closed()
	b.checkClean()
}

// On an emulated disk the host gets back what files gave up in the middle of zones.
func TestTrimPunchesHolesInTheHost(t *testing.T) {
	path := filepath.Join(t.TempDir(), "device")
	g := zone.Geometry{Dialect: zone.SMR, ZoneSize: 8 << 20, ZoneCapacity: 8 << 20, Zones: 5, Conventional: 5}
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
	put(t, e, "keep", noise(1, 1<<20))
	put(t, e, "large", noise(2, 12<<20))
	full := blocksOnDisk(t, path)
	if full < 13<<20 {
		t.Skip("files take no space here")
	}
	deleteFile(t, e, "large")
	r := trimAll(t, e)
	if now := blocksOnDisk(t, path); now > full-12<<20+1<<20 {
		t.Errorf("the file took %d bytes, and takes %d after %+v", full, now, r)
	}
	sameFile(t, e, "keep", noise(1, 1<<20))
	put(t, e, "large", noise(3, 12<<20))
	sameFile(t, e, "large", noise(3, 12<<20))
	b.closed()
	b.checkClean()
}

// Held blocks are never granted, and who was promised them gets them when they are given back.
func TestHeldBlocksAreNotGranted(t *testing.T) {
	b := newFaultBench(t, trimDisk, Options{})
	e := b.open()
	gate, met := make(chan struct{}), make(chan struct{})
	b.fault.Stall(zone.OpDiscard, faultdev.AnyZone, gate, met)
	done := make(chan TrimResult)
	go func() {
		r, err := e.Trim(t.Context(), TrimRequest{Length: trim.ToEnd}, nil)
		if err != nil {
			t.Error(err)
		}
		done <- r
	}()
	<-met
	if e.al.Aside() == 0 {
		t.Error("nothing is held while a discard is under way")
	}
	// The other zones may be given back at any time; what is stored meanwhile keeps its bytes.
	put(t, e, "f", noise(1, 200_000))
	close(gate)
	r := <-done
	wantSum(t, r)
	sameFile(t, e, "f", noise(1, 200_000))
	if e.al.Aside() != 0 {
		t.Errorf("%d bytes are held", e.al.Aside())
	}
	if _, ok := e.al.BlockGroup(alloc.BlockGroup{}.Slot); !ok {
		t.Error("no block group 0")
	}
}

// With no room in the metadata beside what data was promised, what was trimmed is not remembered, and
// nobody else's commit fails for it.
func TestTrimWithFullMetadata(t *testing.T) {
	b := newFaultBench(t, trimDisk, Options{})
	e := b.open()
	put(t, e, "f", noise(1, 100_000))
	promised := e.st.Stats().MaxBytes / metadataPerBlock * extent.BlockSize
	e.reserved.Add(promised) // as if so much had been received
	r := trimAll(t, e)
	if r.State != trim.Complete || r.Trimmed == 0 || trimmedBlocks(t, e, 0) != 0 {
		t.Fatalf("%+v, %d blocks on record", r, trimmedBlocks(t, e, 0))
	}
	if _, _, err := e.Rename(t.Context(), RenameRequest{Name: "f", NewName: "g"}); err != nil {
		t.Error(err)
	}
	e.reserved.Add(-promised)
	if again := trimAll(t, e); again.Trimmed != r.Trimmed {
		t.Errorf("%+v, before %+v", again, r)
	}
	if again := trimAll(t, e); again.Trimmed != 0 {
		t.Errorf("with room: %+v", again)
	}
	sameFile(t, e, "g", noise(1, 100_000))
}
