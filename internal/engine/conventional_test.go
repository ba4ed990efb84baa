package engine

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strings"
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
			if g.Conventional == c.g.IsSequential(g.Zone) || g.State != alloc.Empty || g.Conventional && g.Capacity != c.g.ZoneSize {
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
