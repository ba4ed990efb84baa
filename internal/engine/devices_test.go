package engine

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/store"
	"github.com/shingle-store/shingle/internal/zone"
)

// TestAddAndRemoveDevice makes a store larger and smaller while it is used.
func TestAddAndRemoveDevice(t *testing.T) {
	b := newCopyBench(t, 1, Options{}, copyZNS)
	e := b.open()
	ctx := context.Background()
	before := e.Usage().Total
	data := noise(5, int(before)/10*9)
	put(t, e, "f", data)
	syncAll(t, e)
	b.devices = append(b.devices, newMortal(t, copyZNS))
	b.added["second"] = b.devices[1]
	if _, err := e.AddDevice(ctx, "second", false); err != nil {
		t.Fatal(err)
	}
	if got := e.Usage().Total; got < 2*before {
		t.Errorf("%d bytes in all, %d before", got, before)
	}
	more := noise(6, int(before)/2)
	put(t, e, "g", more)
	syncAll(t, e)
	if err := e.RemoveDevice(ctx, 0); !errdefs.Is(err, errdefs.NoSpace) {
		t.Errorf("removing a device that is needed: %v", err)
	}
	if err := e.RemoveDevice(ctx, 7); !errdefs.Is(err, errdefs.NotFound) {
		t.Errorf("removing a device that there is none: %v", err)
	}
	b.close()
	b.given = []int{0}
	if _, err := b.tryOpen(); errdefs.ReasonOf(err) != errdefs.ReasonDeviceMismatch || !strings.Contains(err.Error(), "only copy") {
		t.Errorf("without the second: %v", err)
	}
	b.given = []int{0, 1}
	b.wantClean()
	e = b.open()
	sameFile(t, e, "f", data)
	sameFile(t, e, "g", more)
	deleteFile(t, e, "f")
	syncAll(t, e)
	eventually(t, "there is room", func() bool { return e.Usage().Used < before*6/10 })
	if err := e.RemoveDevice(ctx, 0); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it has left", func() bool {
		infos, _, err := e.Devices()
		return err == nil && len(infos) == 1 && infos[0].Number == 1
	})
	sameFile(t, e, "g", more)
	if got := e.Usage().Total; got > before*11/10 {
		t.Errorf("%d bytes in all, %d at first", got, before)
	}
	checkQuiet(t, e)
	b.close()
	b.given = []int{1}
	b.wantClean()
	sameFile(t, b.open(), "g", more)
}

// TestAddDeviceRefused names why a device cannot be part of the store.
func TestAddDeviceRefused(t *testing.T) {
	b := newCopyBench(t, 2, Options{}, copyZNS, copyZNS)
	e := b.open()
	other := func(edit func(*zone.Geometry)) *mortal {
		g := copyZNS
		edit(&g)
		return newMortal(t, g)
	}
	b.added["sizes"] = other(func(g *zone.Geometry) { g.ZoneSize *= 2 })
	b.added["dialect"] = other(func(g *zone.Geometry) { g.Dialect, g.ZoneCapacity, g.MaxActive = zone.SMR, g.ZoneSize, 0 })
	b.added["limits"] = other(func(g *zone.Geometry) { g.MaxActive, g.MaxOpen = 2, 2 })
	b.added["small"] = other(func(g *zone.Geometry) { g.Zones = 4 })
	b.added["own"] = b.devices[0]
	foreign := newCopyBench(t, 1, Options{}, copyZNS)
	b.added["foreign"] = foreign.devices[0]
	for path, words := range map[string]string{
		"sizes": "have the same", "dialect": "have the same", "limits": "lower limits", "small": "sequential zones", "own": "already",
		"foreign": "holds a part of store", "none": "there is no none",
	} {
		if _, err := e.AddDevice(context.Background(), path, false); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if err := e.RemoveDevice(context.Background(), 0); err == nil || !strings.Contains(err.Error(), "replace it instead") {
		t.Errorf("one of two, with two copies: %v", err)
	}
	if infos, _, _ := e.Devices(); len(infos) != 2 {
		t.Errorf("%+v", infos)
	}
}

// TestPairs says what is made of devices of unequal size.
func TestPairs(t *testing.T) {
	zones := func(n int) []int {
		out := make([]int, n)
		for i := range out {
			out[i] = i + 2
		}
		return out
	}
	for _, c := range []struct {
		devices []int
		copies  int
		want    int
	}{
		{[]int{10}, 1, 10}, {[]int{10, 5}, 1, 15}, {[]int{10}, 2, 5}, {[]int{11}, 2, 5}, {[]int{10, 10}, 2, 10}, {[]int{10, 4}, 2, 4},
		{[]int{10, 10, 10}, 2, 15}, {[]int{9, 4, 3}, 2, 7}, {[]int{20, 4, 3}, 2, 7}, {[]int{5, 5, 5}, 2, 7}, {[]int{1, 1, 1, 1}, 2, 2},
	} {
		in := map[uint32][]int{}
		for d, n := range c.devices {
			in[uint32(d)] = zones(n)
		}
		sets := pairZones(in, c.copies)
		seen := map[store.Place]bool{}
		for _, s := range sets {
			if len(s) != c.copies || c.copies == 2 && len(c.devices) > 1 && s[0].Device == s[1].Device {
				t.Errorf("%v: %v", c, s)
			}
			for _, p := range s {
				if seen[p] {
					t.Errorf("%v: %v twice", c, p)
				}
				seen[p] = true
			}
		}
		if len(sets) != c.want {
			t.Errorf("%v: %d block groups", c, len(sets))
		}
	}
}

// TestAddedDeviceSurvivesACrash: what was added is there after a crash that follows, and so is what a
// crash in the middle left spare.
func TestAddedDeviceSurvivesACrash(t *testing.T) {
	b := newCopyBench(t, 1, Options{}, copyZNS)
	e := b.open()
	before := e.Usage().Total
	b.devices = append(b.devices, newMortal(t, copyZNS))
	b.added["second"] = b.devices[1]
	if _, err := e.AddDevice(context.Background(), "second", false); err != nil {
		t.Fatal(err)
	}
	total := e.Usage().Total
	e.failWrites(errors.New("killed"))
	_ = e.Close(context.Background())
	b.given = []int{0, 1}
	if got := b.open().Usage().Total; got != total || got < 2*before {
		t.Errorf("%d bytes in all, %d before the crash, %d at first", got, total, before)
	}
	b.close()
	b.wantClean()
}

// TestBlankDevice: a device that holds no label is left out while all others are there, and refused
// when one is missing, whose place it may be meant to take.
func TestBlankDevice(t *testing.T) {
	b := newCopyBench(t, 2, Options{}, copyZNS, copyZNS)
	b.devices = append(b.devices, newMortal(t, copyZNS))
	b.given = []int{0, 1, 2}
	if infos, _, err := b.open().Devices(); err != nil || len(infos) != 2 {
		t.Errorf("%+v, %v", infos, err)
	}
	b.close()
	b.given = []int{0, 2}
	if _, err := b.tryOpen(); errdefs.ReasonOf(err) != errdefs.ReasonDeviceMismatch || !strings.Contains(err.Error(), "no Shingle label") {
		t.Errorf("%v", err)
	}
}

// TestThirdDevice: one more device under two copies makes room for half of what it holds, also in a store that
// was full, as that becomes empty.
func TestThirdDevice(t *testing.T) {
	b := newCopyBench(t, 2, Options{}, copyZNS, copyZNS)
	e := b.open()
	before := e.Usage().Total
	data := noise(5, int(before)/10*9)
	put(t, e, "f", data)
	syncAll(t, e)
	b.devices = append(b.devices, newMortal(t, copyZNS))
	b.added["third"] = b.devices[2]
	if _, err := e.AddDevice(context.Background(), "third", false); err != nil {
		t.Fatal(err)
	}
	for i := range 3 { // what is overwritten makes the rest of the room
		data = noise(uint64(10+i), len(data))
		writeAt(t, e, "f", 0, data)
		syncAll(t, e)
	}
	want := before + 10*(copyZNS.ZoneCapacity-4096)
	eventually(t, "half as much again can be stored", func() bool { return e.Usage().Total >= want })
	more := noise(6, int(want-before)*8/10)
	put(t, e, "g", more)
	syncAll(t, e)
	checkQuiet(t, e)
	for _, g := range e.BlockGroups(0, -1) {
		if len(g.Places) != 2 || g.Places[0].Device == g.Places[1].Device {
			t.Errorf("block group %d lies on %v", g.Slot, g.Places)
		}
	}
	b.close()
	b.given = []int{0, 1, 2}
	b.wantClean()
	for _, lost := range []int{0, 1, 2} {
		b.given = nil
		for i := range 3 {
			if i != lost {
				b.given = append(b.given, i)
			}
		}
		e := b.open()
		sameFile(t, e, "f", data)
		sameFile(t, e, "g", more)
		b.close()
		b.given = []int{0, 1, 2}
		b.open()
		b.whole()
		b.close()
		b.wantClean()
	}
}

// TestConventionalZonesAndSeveralDevices: with two copies they are left unused, and a device of which some are
// used cannot be moved away from.
func TestConventionalZonesAndSeveralDevices(t *testing.T) {
	smr := zone.Geometry{Dialect: zone.SMR, ZoneSize: 1 << 20, ZoneCapacity: 1 << 20, Zones: 24, Conventional: 4, MaxOpen: 8}
	b := newCopyBench(t, 2, Options{}, smr, smr)
	e := b.open()
	if c, s := ofKind(e, true).BlockGroups, ofKind(e, false).BlockGroups; c != 0 || s != 18 {
		t.Errorf("%d conventional block groups and %d sequential ones", c, s)
	}
	data := noise(1, 3<<20)
	put(t, e, "f", data)
	syncAll(t, e)
	sameFile(t, e, "f", data)
	b.close()
	b.wantClean()

	b = newCopyBench(t, 1, Options{}, smr, smr)
	e = b.open()
	put(t, e, "f", data)
	syncAll(t, e)
	if err := e.RemoveDevice(context.Background(), 1); err == nil || !strings.Contains(err.Error(), "conventional zones") {
		t.Errorf("removed: %v", err)
	}
	sameFile(t, e, "f", data)
	b.close()
	b.wantClean()

	disk := smr
	disk.Conventional = disk.Zones
	err := Format(FormatOptions{
		Devices: []Device{{Device: newMortal(t, disk)}, {Device: newMortal(t, disk)}}, Copies: 2, MetadataPath: filepath.Join(t.TempDir(), "m"), UUID: [16]byte{9}, Now: time.Now, MetadataNoSync: true,
	})
	if err == nil || !strings.Contains(err.Error(), "sequential zones") {
		t.Errorf("two disks, two copies: %v", err)
	}
}
