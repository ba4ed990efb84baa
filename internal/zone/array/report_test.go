package array_test

import (
	"errors"
	"testing"

	"github.com/shingle-store/shingle/internal/zone"
	"github.com/shingle-store/shingle/internal/zone/array"
)

// What is reported of a set whose places are in two conditions. Each has two blocks unless it is
// empty.
func TestReportOfASet(t *testing.T) {
	const (
		e, i, x, c, f, ro, off = zone.Empty, zone.ImplicitOpen, zone.ExplicitOpen, zone.Closed, zone.Full, zone.ReadOnly, zone.Offline
	)
	for _, row := range []struct {
		one, other, want zone.Condition
		wp               int64
		torn             bool
	}{
		{e, e, e, 0, false}, {i, i, i, 2, false}, {f, f, f, 16, false},
		{e, i, i, 2, true}, {e, c, c, 2, true}, {i, c, i, 2, false}, {x, i, x, 2, false},
		{x, f, f, 16, true}, {c, f, f, 16, true}, {e, f, f, 16, true},
		{ro, ro, ro, 2, false}, {ro, i, ro, 2, false}, {ro, off, ro, 2, false}, {off, i, ro, 2, false},
		{off, f, ro, 16, false}, {off, off, off, 2, false},
	} {
		for turn := range 2 {
			everywhere(t, func(t *testing.T, g zone.Geometry) {
				devs := []*zone.Mem{mem(t, g), mem(t, g)}
				for n, want := range []zone.Condition{row.one, row.other} {
					into(t, devs[(n+turn)%2], want)
				}
				a := newArray(t, []array.Member{{0, devs[0]}, {1, devs[1]}}, mirrored(2))
				r, err := a.Report(0, 1)
				if err != nil || r[0].Condition != row.want || r[0].WP != row.wp*blk || a.Torn(0) != row.torn {
					t.Errorf("%v and %v: %v at block %d, torn %v (%v); want %v at %d, %v", row.one, row.other,
						r[0].Condition, r[0].WP/blk, a.Torn(0), err, row.want, row.wp, row.torn)
				}
			})
		}
	}
}

// into puts zone 0 in a condition.
func into(t *testing.T, d *zone.Mem, c zone.Condition) {
	t.Helper()
	var err error
	if c != zone.Empty {
		_, err = d.Append(0, vec(pattern(1, 2)))
	}
	if err == nil {
		switch c {
		case zone.ExplicitOpen:
			err = d.Open(0)
		case zone.Closed:
			err = d.CloseZone(0)
		case zone.Full:
			err = d.Finish(0)
		case zone.ReadOnly, zone.Offline:
			err = d.SetCondition(0, c)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

// A set is as large as its smallest place, and holds no slot on the larger one when it is full.
func TestUnevenPlaces(t *testing.T) {
	big := geometries["zns"]
	small := big
	small.ZoneCapacity = 9 * blk
	devs := []*zone.Mem{mem(t, big), mem(t, small)}
	b := &stand{T: t, Array: newArray(t, []array.Member{{0, devs[0]}, {1, devs[1]}}, mirrored(3))}
	b.add(0, 0, 8, 1)
	if _, err := b.Append(0, vec(pattern(2, 2))); !errors.Is(err, zone.ErrBoundary) || b.Torn(0) {
		t.Fatalf("over the smaller capacity: %v, torn %v", err, b.Torn(0))
	}
	if err := b.Write(0, 8*blk, vec(pattern(2, 3))); !errors.Is(err, zone.ErrBoundary) {
		t.Fatal(err)
	}
	b.add(0, 8, 1, 3)
	for i, d := range devs {
		if r, _ := d.Report(0, 1); r[0].Condition != zone.Full {
			t.Errorf("the zone of device %d is %v", i, r[0].Condition)
		}
	}
	r, err := b.Report(0, 1)
	if err != nil || r[0].Condition != zone.Full || r[0].WP != 9*blk || r[0].Capacity != 9*blk || b.Torn(0) {
		t.Errorf("%+v, %v, torn %v", r[0], err, b.Torn(0))
	}
	if _, err := b.Append(0, vec(pattern(2, 1))); !errors.Is(err, zone.ErrZoneFull) {
		t.Error(err)
	}
	// On what is left the set is no larger.
	b.Fail(1, zone.ErrMedia)
	b.add(1, 0, 9, 4)
	r, err = b.Report(1, 1)
	if err != nil || r[0].Condition != zone.Full || r[0].Capacity != 9*blk {
		t.Errorf("%+v, %v", r[0], err)
	}
}

// Zones far apart on their devices are reported as those beside each other are.
func TestReportOfScatteredZones(t *testing.T) {
	g := geometries["smr"]
	g.Zones = 40
	g.Conventional = 1
	devs := []*zone.Mem{mem(t, g), mem(t, g)}
	sets := [][]array.Place{
		{{Device: 0, Zone: 0}, {Device: 1, Zone: 0}},
		{{Device: 0, Zone: 39}, {Device: 1, Zone: 1}}, {{Device: 1, Zone: 20}}, {}, {{Device: 0, Zone: 7}, {Device: 1, Zone: 30}},
	}
	b := &stand{T: t, Array: newArray(t, []array.Member{{0, devs[0]}, {1, devs[1]}}, sets)}
	b.add(1, 0, 3, 1)
	b.add(4, 0, 5, 1)
	b.ok(b.Finish(4))
	all, err := b.Report(0, -1)
	b.ok(err)
	for z, want := range []zone.Zone{
		{Condition: zone.NotWP, WP: 16}, {Condition: zone.ImplicitOpen, WP: 3}, {Condition: zone.Empty},
		{Condition: zone.Offline}, {Condition: zone.Full, WP: 16},
	} {
		got := all[z]
		one, err := b.Report(z, 1)
		if err != nil || one[0] != got || got.Index != z || got.Condition != want.Condition || got.WP != want.WP*blk {
			t.Errorf("zone %d is %+v, alone %+v (%v); want %+v", z, got, one, err, want)
		}
	}
	devs[1].CutPower() // found by nobody yet
	one, err := b.Report(1, 1)
	if err != nil || one[0].WP != 3*blk {
		t.Errorf("with one that answers: %+v, %v", one, err)
	}
	if _, err := b.Report(0, -1); !errors.Is(err, zone.ErrPowerLost) {
		t.Errorf("with none that answers for zone 2: %v", err)
	}
	// A report that an append needs takes the dead one out, too, where it can.
	b.SetPlaces(2, []array.Place{{Device: 0, Zone: 9}})
	b.SetPlaces(4, []array.Place{{Device: 0, Zone: 8}, {Device: 1, Zone: 8}})
	b.add(4, 0, 1, 1)
	b.stale(4, false, true)
}
