package engine

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/shingle-store/shingle/internal/alloc"
	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/store"
	"github.com/shingle-store/shingle/internal/zone"
)

var wpZNS = zone.Geometry{Dialect: zone.ZNS, ZoneSize: 1 << 20, ZoneCapacity: 512 << 10, Zones: 20, MaxOpen: 4, MaxActive: 4}

// closed closes the engine, so that device and metadata can be changed behind its back.
func (b *bench) closed() {
	b.t.Helper()
	if err := b.e.Close(context.Background()); err != nil {
		b.t.Fatal(err)
	}
}

// editMetadata changes the metadata of a closed store.
func (b *bench) editMetadata(change func(tx *store.Tx) error) {
	b.t.Helper()
	s, err := store.Open(b.meta, store.Options{NoSync: true})
	if err == nil {
		err = s.Update(change)
	}
	if err == nil {
		err = s.Close()
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

// condition returns the condition of the reason for the zone.
func condition(e *Engine, reason string, z int) (Condition, bool) {
	for _, c := range e.Conditions() {
		if c.Reason == reason && c.Object == fmt.Sprintf("devices/0/zones/%d", z) {
			return c, true
		}
	}
	return Condition{}, false
}

func wantCondition(t *testing.T, e *Engine, reason string, s Severity, z int) Condition {
	t.Helper()
	c, ok := condition(e, reason, z)
	if !ok || c.Severity != s {
		t.Fatalf("no %s of severity %d for zone %d in %+v", reason, s, z, e.Conditions())
	}
	return c
}

// reportOf returns the device's view of a zone.
func (b *bench) reportOf(z int) zone.Zone {
	b.t.Helper()
	zs, err := b.dev.Report(z, 1)
	if err != nil {
		b.t.Fatal(err)
	}
	return zs[0]
}

func (b *bench) append(z int, data []byte) {
	b.t.Helper()
	if _, err := b.dev.Append(z, [][]byte{data}); err != nil {
		b.t.Fatal(err)
	}
}

// groupOf returns the block group over a zone.
func groupOf(e *Engine, z int) alloc.BlockGroup {
	for _, g := range e.BlockGroups(0, -1) {
		if g.Zone == z {
			return g.BlockGroup
		}
	}
	return alloc.BlockGroup{}
}

// wpBench is a store with one file, its zone, and the file's content.
func wpBench(t *testing.T) (b *faultBench, z int, data []byte) {
	b = newFaultBench(t, wpZNS, Options{})
	e := b.open()
	data = noise(1, 100_000)
	put(t, e, "dir/f", data)
	z, _ = e.at(pieces(t, e, "dir/f")[0], 0)
	return b, z, data
}

// onceOnly checks that what was mended at one open is not met again at the next.
func onceOnly(t *testing.T, b *faultBench) *Engine {
	t.Helper()
	e := b.reopen()
	if c := e.Conditions(); len(c) != 0 {
		t.Errorf("what was mended is reported again: %+v", c)
	}
	return e
}

func TestPointerAheadOverLiveData(t *testing.T) {
	b, z, data := wpBench(t)
	free := b.e.Usage().Free
	b.closed()
	before := b.reportOf(z).WP
	b.append(z, noise(9, 10*extent.BlockSize))
	e := b.open()
	wantCondition(t, e, "WRITE_POINTER_AHEAD", Info, z)
	if g := groupOf(e, z); g.AllocOffset != before+10*extent.BlockSize || g.Unusable != 10*extent.BlockSize {
		t.Errorf("the block group is %+v", g)
	}
	if got := e.Usage().Free; got != free-10*extent.BlockSize {
		t.Errorf("%d bytes are free, want %d less 10 blocks", got, free)
	}
	checkIdentity(t, e)
	sameFile(t, e, "dir/f", data)
	// What comes next lies above the tail that nobody knows.
	put(t, e, "g", data)
	if at, off := e.at(pieces(t, e, "g")[0], 0); at != z || off != before+10*extent.BlockSize {
		t.Errorf("the next file lies in zone %d at %d", at, off)
	}
	e = onceOnly(t, b)
	sameFile(t, e, "dir/f", data)
	sameFile(t, e, "g", data)
}

func TestPointerAheadOfTheDead(t *testing.T) {
	b, _, data := wpBench(t)
	b.closed()
	z := 10
	if w := b.reportOf(z); w.WP != 0 {
		t.Fatalf("zone %d is in use: %+v", z, w)
	}
	b.append(z, noise(9, 10*extent.BlockSize))
	e := b.open()
	wantCondition(t, e, "WRITE_POINTER_AHEAD", Info, z)
	if w := b.reportOf(z); w.WP != 0 || w.Condition != zone.Empty {
		t.Errorf("the zone is %+v", w)
	}
	if g := groupOf(e, z); g.State != alloc.Empty || g.Generation != 2 || g.Unusable != 0 {
		t.Errorf("the block group is %+v", g)
	}
	checkIdentity(t, e)
	sameFile(t, e, "dir/f", data)
	e = onceOnly(t, b)
	if g := groupOf(e, z); g.Generation != 2 {
		t.Errorf("the generation is %d after another open", g.Generation)
	}
}

func TestPointerBehindNothingLiveAbove(t *testing.T) {
	t.Run("lost tail", func(t *testing.T) {
		b, z, data := wpBench(t)
		b.closed()
		wp := b.reportOf(z).WP
		b.editMetadata(func(tx *store.Tx) error {
			g, err := tx.BlockGroup(groupOf(b.e, z).Slot)
			g.AllocOffset = wp + 20*extent.BlockSize
			if err == nil {
				err = tx.PutBlockGroup(g)
			}
			return err
		})
		e := b.open()
		wantCondition(t, e, "WRITE_POINTER_BEHIND", Info, z)
		if g := groupOf(e, z); g.AllocOffset != wp || g.State != alloc.Active || g.Unusable != 0 {
			t.Errorf("the block group is %+v, the write pointer %d", g, wp)
		}
		checkIdentity(t, e)
		sameFile(t, e, "dir/f", data)
		put(t, e, "g", data)
		e = onceOnly(t, b)
		sameFile(t, e, "g", data)
	})
	t.Run("unrecorded reset", func(t *testing.T) {
		b, _, data := wpBench(t)
		b.closed()
		b.editMetadata(func(tx *store.Tx) error {
			g, err := tx.BlockGroup(7)
			g.AllocOffset, g.Class = 30*extent.BlockSize, 1
			if err == nil {
				err = tx.PutBlockGroup(g)
			}
			return err
		})
		e := b.open()
		if g := e.BlockGroups(7, 1)[0]; g.State != alloc.Empty || g.AllocOffset != 0 || g.Generation != 2 {
			t.Errorf("the block group is %+v", g)
		}
		checkIdentity(t, e)
		sameFile(t, e, "dir/f", data)
		onceOnly(t, b)
	})
}

// TestPointerBehindLiveData takes blocks away from under live data: that is data loss, of what
// lay there and of nothing else.
func TestPointerBehindLiveData(t *testing.T) {
	for _, left := range []int64{0, 1, 5} { // blocks of the file that are left; with 0 not even the header
		t.Run(fmt.Sprintf("left=%d", left), func(t *testing.T) {
			b, z, data := wpBench(t)
			other := noise(2, 700_000)
			put(t, b.e, "other", other)
			for _, x := range pieces(t, b.e, "other") {
				if at, _ := b.e.at(x, 0); at == z {
					other = nil // a part of it lies there too
				}
			}
			b.closed()
			head := make([]byte, (left+1)*extent.BlockSize)
			if err := b.dev.ReadAt(z, 0, head); err != nil {
				t.Fatal(err)
			}
			if err := b.dev.Reset(z); err != nil {
				t.Fatal(err)
			}
			if left > 0 {
				b.append(z, head)
			}
			for range 2 { // it stays
				e := b.open()
				c := wantCondition(t, e, "DATA_LOSS", Error, z)
				if c.Advice == "" || !strings.Contains(c.Message, "lost") {
					t.Errorf("the condition is %+v", c)
				}
				if g := groupOf(e, z); g.State != alloc.ReadOnly {
					t.Errorf("the block group is %v", g.State)
				}
				checkIdentity(t, e)
				got, err := tryRead(e, "dir/f", 0, nil)
				wantError(t, err, errdefs.Corruption, errdefs.ReasonDeviceIO)
				if !strings.Contains(err.Error(), "dir/f") {
					t.Errorf("the error does not name the file: %v", err)
				}
				if !bytes.Equal(got, data[:left*extent.BlockSize]) {
					t.Errorf("%d good bytes came first, want %d", len(got), left*extent.BlockSize)
				}
				put(t, e, "new", data)
				sameFile(t, e, "new", data)
				if other != nil {
					sameFile(t, e, "other", other)
				}
				if inZone(e, pieces(t, e, "new"), z) {
					t.Error("new data went to the zone")
				}
				b.closed()
			}
			e := b.open()
			if _, err := e.Delete(context.Background(), DeleteRequest{Name: "dir/f"}); err != nil {
				t.Fatal(err)
			}
			syncAll(t, e)
			checkIdentity(t, e)
		})
	}
}

func TestFailedZonesAtOpen(t *testing.T) {
	b, z, data := wpBench(t)
	b.closed()
	for _, c := range []struct {
		zone int
		to   zone.Condition
	}{{z, zone.ReadOnly}, {11, zone.ReadOnly}, {12, zone.Offline}, {z, zone.Offline}} {
		before := b.open().Usage()
		b.closed()
		if err := b.mem.SetCondition(c.zone, c.to); err != nil {
			t.Fatal(err)
		}
		e := b.open()
		wantCondition(t, e, "ZONE_FAILED", Error, c.zone)
		checkIdentity(t, e)
		if u := e.Usage(); u.Total != before.Total || c.to == zone.ReadOnly && u.Quarantined <= before.Quarantined {
			t.Errorf("%v: usage was %+v and is %+v", c, before, u)
		}
		put(t, e, "new", data)
		sameFile(t, e, "new", data)
		if inZone(e, pieces(t, e, "new"), c.zone) {
			t.Errorf("new data went to zone %d, which is %v", c.zone, c.to)
		}
		got, err := tryRead(e, "dir/f", 0, nil)
		if c.zone == z && c.to == zone.Offline {
			wantError(t, err, errdefs.Corruption, errdefs.ReasonDeviceIO)
		} else if err != nil || !bytes.Equal(got, data) {
			t.Errorf("%v: reading the file: %v", c, err)
		}
		b.closed()
	}
}

// A label zone that fails is named, and the store opens with the label that can be read, also when
// the latest one is in the other zone.
func TestFailedLabelZone(t *testing.T) {
	for _, c := range []zone.Condition{zone.ReadOnly, zone.Offline} {
		for z := range 2 {
			b, _, data := wpBench(t)
			b.closed()
			if err := b.mem.SetCondition(z, c); err != nil {
				t.Fatal(err)
			}
			for range 3 {
				e := b.open()
				wantCondition(t, e, "LABEL_ZONE_FAILED", Warning, z)
				put(t, e, "new", data)
				sameFile(t, e, "new", data)
				sameFile(t, e, "dir/f", data)
				b.closed()
			}
		}
	}
}
