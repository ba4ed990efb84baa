package array_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/zone"
	"github.com/shingle-store/shingle/internal/zone/array"
)

func mem(t *testing.T, g zone.Geometry, change ...func(*zone.Geometry)) *zone.Mem {
	t.Helper()
	for _, f := range change {
		f(&g)
	}
	d, err := zone.NewMem(g, zone.MemOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestNewRefuses(t *testing.T) {
	zns, smr := geometries["zns"], geometries["smr"]
	conventional := func(g *zone.Geometry) { g.Conventional = 2 }
	oneOpen := func(g *zone.Geometry) { g.MaxOpen = 1 }
	oneActive := func(g *zone.Geometry) { g.MaxOpen, g.MaxActive = 1, 1 }
	larger := func(g *zone.Geometry) { g.ZoneSize *= 2 }
	one := [][]array.Place{{{Device: 1, Zone: 0}}}
	for name, c := range map[string]struct {
		members []array.Member
		sets    [][]array.Place
		says    string
	}{
		"no member":      {nil, nil, "none of the devices"},
		"none present":   {[]array.Member{{Number: 1}}, one, "none of the devices"},
		"a number twice": {[]array.Member{{1, mem(t, zns)}, {1, mem(t, zns)}}, one, "device 1 is given twice"},
		"zone sizes":     {[]array.Member{{1, mem(t, zns)}, {4, mem(t, zns, larger)}}, one, "device 4 has zones of 131072 bytes and device 1 of 65536"},
		"dialects":       {[]array.Member{{1, mem(t, zns)}, {2, mem(t, smr)}}, one, "device 2 is SMR and device 1 is ZNS"},
		"mixed kinds": {[]array.Member{{1, mem(t, smr, conventional)}, {2, mem(t, smr)}},
			[][]array.Place{{{Device: 1, Zone: 0}, {Device: 2, Zone: 0}}}, "conventional and in a sequential"},
		"open limit":   {[]array.Member{{1, mem(t, smr, oneOpen)}}, [][]array.Place{{{Device: 1, Zone: 0}, {Device: 1, Zone: 1}}}, "device 1 can have 1 zones active"},
		"active limit": {[]array.Member{{1, mem(t, zns, oneActive)}}, [][]array.Place{{{Device: 1, Zone: 0}, {Device: 1, Zone: 1}}}, "2 copies there"},
		"unnamed":      {[]array.Member{{1, mem(t, zns)}}, [][]array.Place{{{Device: 2, Zone: 0}}}, "device 2, which was not named"},
		"beyond":       {[]array.Member{{1, mem(t, zns)}}, [][]array.Place{{{Device: 1, Zone: 6}}}, "which has 6 zones"},
		"below":        {[]array.Member{{1, mem(t, zns)}}, [][]array.Place{{{Device: 1, Zone: -1}}}, "zone -1"},
		"shared":       {[]array.Member{{1, mem(t, zns)}}, [][]array.Place{{{Device: 1, Zone: 3}}, {{Device: 1, Zone: 3}}}, "copy of zone 0 and of zone 1"},
	} {
		a, err := array.New(c.members, c.sets)
		if a != nil || !errdefs.Is(err, errdefs.Precondition) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := array.New([]array.Member{{Number: -1}}, nil); !errdefs.Is(err, errdefs.InvalidArgument) {
		t.Error(err)
	}
	dead := mem(t, zns)
	dead.CutPower()
	if _, err := array.New([]array.Member{{1, dead}, {2, mem(t, zns)}}, one); !errors.Is(err, zone.ErrPowerLost) {
		t.Errorf("a member without a report: %v", err)
	}
}

func TestGeometryOfAnArray(t *testing.T) {
	zns, smr := geometries["zns"], geometries["smr"]
	limits := func(open, active int, most int64) func(*zone.Geometry) {
		return func(g *zone.Geometry) { g.MaxOpen, g.MaxActive, g.AppendLimit = open, active, most }
	}
	short := func(g *zone.Geometry) { g.LastZoneSize = 5 * blk }
	conventional := func(g *zone.Geometry) { g.Conventional = 2 }
	for name, c := range map[string]struct {
		members []array.Member
		sets    [][]array.Place
		want    zone.Geometry
	}{
		"the least of limits": {
			[]array.Member{{1, mem(t, zns, limits(3, 5, 0))}, {2, mem(t, zns, limits(0, 4, 8*blk))}, {3, nil}}, single(1, 6),
			zone.Geometry{Dialect: zone.ZNS, ZoneSize: 16 * blk, ZoneCapacity: 12 * blk, Zones: 6, MaxOpen: 3, MaxActive: 4, AppendLimit: 8 * blk},
		},
		"shared limits": {
			[]array.Member{{0, mem(t, zns, limits(3, 5, 0))}}, [][]array.Place{{{Zone: 0}, {Zone: 1}}, {{Zone: 2}, {Zone: 3}}},
			zone.Geometry{Dialect: zone.ZNS, ZoneSize: 16 * blk, ZoneCapacity: 12 * blk, Zones: 2, MaxOpen: 1, MaxActive: 2},
		},
		"the largest capacity": {
			[]array.Member{{0, mem(t, zns)}, {1, mem(t, zns, func(g *zone.Geometry) { g.ZoneCapacity = 9 * blk })}}, mirrored(2),
			zone.Geometry{Dialect: zone.ZNS, ZoneSize: 16 * blk, ZoneCapacity: 12 * blk, Zones: 2},
		},
		"the last short": {
			[]array.Member{{0, mem(t, smr, short)}, {1, mem(t, smr)}}, mirrored(6),
			zone.Geometry{Dialect: zone.SMR, ZoneSize: 16 * blk, ZoneCapacity: 16 * blk, Zones: 6, LastZoneSize: 5 * blk},
		},
		"one of the middle short": {
			[]array.Member{{0, mem(t, smr, short)}, {1, mem(t, smr)}}, append(single(0, 6), single(1, 6)...),
			zone.Geometry{Dialect: zone.SMR, ZoneSize: 16 * blk, ZoneCapacity: 16 * blk, Zones: 12},
		},
		"leading conventional": {
			[]array.Member{{0, mem(t, smr, conventional)}, {1, mem(t, smr, conventional)}}, append(single(0, 6), single(1, 6)...),
			zone.Geometry{Dialect: zone.SMR, ZoneSize: 16 * blk, ZoneCapacity: 16 * blk, Zones: 12, Conventional: 2},
		},
		"unknown ones before conventional": {
			[]array.Member{{0, mem(t, smr, conventional)}, {1, nil}}, append([][]array.Place{{{Device: 1, Zone: 0}}}, single(0, 3)...),
			zone.Geometry{Dialect: zone.SMR, ZoneSize: 16 * blk, ZoneCapacity: 16 * blk, Zones: 4, Conventional: 3},
		},
		"unknown ones before sequential": {
			[]array.Member{{0, mem(t, smr)}, {1, nil}}, append([][]array.Place{{{Device: 1, Zone: 0}}}, single(0, 3)...),
			zone.Geometry{Dialect: zone.SMR, ZoneSize: 16 * blk, ZoneCapacity: 16 * blk, Zones: 4},
		},
	} {
		if got := newArray(t, c.members, c.sets).Geometry(); got != c.want {
			t.Errorf("%s:\ngot  %+v\nwant %+v", name, got, c.want)
		}
	}
}

// A missing member is neither read nor written; when it comes, what it holds counts again, unless it
// is stale.
func TestMissingMemberComes(t *testing.T) {
	everywhere(t, func(t *testing.T, g zone.Geometry) {
		devs := []*zone.Mem{mem(t, g), mem(t, g)}
		a := newArray(t, []array.Member{{0, devs[0]}, {1, devs[1]}}, mirrored(3))
		b := &stand{T: t, Array: a}
		for z := range 3 {
			b.add(z, 0, 2, z)
		}
		b.Array = newArray(t, []array.Member{{0, devs[0]}, {1, nil}}, mirrored(3))
		if m := b.Members()[1]; m.Present || m.Failed || b.Member(1) != nil {
			t.Errorf("%+v", m)
		}
		b.holds(0, 0, 2, 0, 0)
		b.add(1, 2, 1, 7)
		b.ok(b.Finish(2))
		b.stale(1, false, true)
		b.ok(b.AddMember(array.Member{Number: 1, Device: devs[1]}))
		if b.Copies(0) != 2 || b.Copies(1) != 1 || b.Copies(2) != 2 {
			t.Errorf("copies %d %d %d", b.Copies(0), b.Copies(1), b.Copies(2))
		}
		if b.Torn(0) || b.Torn(1) || !b.Torn(2) { // one of zone 2 is finished
			t.Error("torn", b.Torn(0), b.Torn(1), b.Torn(2))
		}
		b.ok(b.Finish(2))
		b.add(0, 2, 1, 8)
		b.ok(b.ReadCopy(0, 1, 2*blk, make([]byte, blk)))
	})
}

func TestAddAndRemoveMembers(t *testing.T) {
	g := geometries["zns"]
	b := newStand(t, g, 2, mirrored(2))
	b.add(0, 0, 1, 1)
	if err := b.AddMember(array.Member{Number: 1, Device: mem(t, g)}); !errdefs.Is(err, errdefs.Precondition) {
		t.Errorf("a number that is there: %v", err)
	}
	if err := b.AddMember(array.Member{Number: 5, Device: mem(t, geometries["smr"])}); !errdefs.Is(err, errdefs.Precondition) || len(b.Members()) != 2 {
		t.Errorf("another dialect: %v, %d members", err, len(b.Members()))
	}
	b.ok(b.AddMember(array.Member{Number: 2, Device: mem(t, g, func(g *zone.Geometry) { g.MaxOpen = 2 })}))
	if b.Geometry().MaxOpen != 2 {
		t.Error("the limits of the new one do not count")
	}
	b.Fail(1, zone.ErrMedia)
	if err := b.AddMember(array.Member{Number: 1, Device: mem(t, g)}); !errdefs.Is(err, errdefs.Precondition) {
		t.Errorf("the number of a failed one: %v", err)
	}
	if _, err := b.RemoveMember(1); !errdefs.Is(err, errdefs.Precondition) || !strings.Contains(err.Error(), "2 zones") {
		t.Errorf("one in use: %v", err)
	}
	if _, err := b.RemoveMember(8); !errdefs.Is(err, errdefs.NotFound) {
		t.Errorf("none: %v", err)
	}
	b.SetPlaces(1, []array.Place{{Device: 0, Zone: 1}, {Device: 2, Zone: 0}})
	b.SetPlaces(0, []array.Place{{Device: 0, Zone: 0}})
	before := b.Stats()
	d, err := b.RemoveMember(1)
	if err != nil || d != zone.Device(b.devs[1]) {
		t.Fatalf("%v, %v", d, err)
	}
	b.ok(d.Close())
	if b.Stats() != before || len(b.Members()) != 2 {
		t.Errorf("counters %+v, were %+v", b.Stats(), before)
	}
	b.add(1, 0, 1, 2)
	b.ok(b.AddMember(array.Member{Number: 3}))
	if d, err := b.RemoveMember(3); d != nil || err != nil {
		t.Errorf("%v, %v", d, err)
	}
	b.ok(b.Close())
	if err := b.AddMember(array.Member{Number: 3}); !errors.Is(err, zone.ErrClosed) {
		t.Error(err)
	}
	if err := b.mems[0].Close(); !errors.Is(err, zone.ErrClosed) {
		t.Error("Close left a member open")
	}
}

// Errors say which device they are of, where there are several.
func TestErrorsNameTheDevice(t *testing.T) {
	g := geometries["zns"]
	for members, want := range map[int]string{1: "zone.ReadAt zone 2: ", 2: "device 0: zone.ReadAt zone 2: "} {
		b := newStand(t, g, members, single(0, 3))
		if err := b.ReadAt(2, 0, make([]byte, blk)); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%d members: %v", members, err)
		}
	}
}
