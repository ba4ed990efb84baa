package array_test

import (
	"errors"
	"testing"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/zone"
	"github.com/shingle-store/shingle/internal/zone/array"
)

// A stale place is not read, not written, not counted, and reset with the others.
func TestStalePlaces(t *testing.T) {
	everywhere(t, func(t *testing.T, g zone.Geometry) {
		b := newStand(t, g, 2, mirrored(g.Zones))
		b.add(0, 0, 2, 1)
		places := b.Places(0)
		places[0].Stale = true
		b.stale(0, false, false) // Places answered a copy
		b.SetPlaces(0, places)
		places[1].Stale = true
		b.stale(0, true, false)
		before := b.devs[0].Counts()
		b.holds(0, 0, 2, 1, 1)
		b.add(0, 2, 1, 2)
		b.ok(b.Open(0))
		b.ok(b.CloseZone(0))
		b.ok(b.Finish(0))
		if b.devs[0].Counts() != before {
			t.Error("something reached the stale place")
		}
		if err := b.ReadCopy(0, 0, 0, make([]byte, blk)); !errors.Is(err, zone.ErrZoneOffline) {
			t.Errorf("ReadCopy of a stale place: %v", err)
		}
		if b.Copies(0) != 1 || b.Torn(0) {
			t.Errorf("%d copies, torn %v", b.Copies(0), b.Torn(0))
		}
		r, err := b.Report(0, 1)
		if err != nil || r[0].Condition != zone.Full {
			t.Errorf("%+v, %v", r, err)
		}
		b.ok(b.Reset(0))
		b.stale(0, false, false)
		if b.Copies(0) != 2 {
			t.Errorf("%d copies after a reset", b.Copies(0))
		}
		b.add(0, 0, 1, 3)
		b.ok(b.ReadCopy(0, 0, 0, make([]byte, blk)))
		b.ok(b.ReadCopy(0, 1, 0, make([]byte, blk)))
	})
}

func TestResetOfAStalePlaceThatFails(t *testing.T) {
	g := geometries["zns"]
	b := newStand(t, g, 2, mirrored(g.Zones))
	b.add(0, 0, 1, 1)
	b.SetPlaces(0, []array.Place{{Device: 0, Zone: 0, Stale: true}, {Device: 1, Zone: 0}})
	b.ok(b.mems[0].SetCondition(0, zone.ReadOnly))
	b.ok(b.Reset(0))
	b.stale(0, true, false)
	b.add(0, 0, 1, 2)
	b.SetPlaces(1, []array.Place{{Device: 0, Zone: 1, Stale: true}})
	if _, err := b.Append(1, vec(pattern(1, 1))); !errors.Is(err, zone.ErrZoneOffline) || b.Copies(1) != 0 {
		t.Errorf("append to a stale set: %v", err)
	}
	b.ok(b.Reset(1))
	b.add(1, 0, 1, 3)
}

// An empty set takes other places, and what it knew of the old ones is forgotten.
func TestSetPlaces(t *testing.T) {
	g := geometries["smr"]
	b := newStand(t, g, 3, mirrored(4))
	b.devs[1].FailAppend(0, 1, 0)
	if _, err := b.Append(0, vec(pattern(1, 1))); err == nil || !b.Torn(0) {
		t.Fatal("not torn")
	}
	b.SetPlaces(0, []array.Place{{Device: 0, Zone: 5}, {Device: 2, Zone: 5}})
	if b.Torn(0) {
		t.Error("new places are torn")
	}
	b.add(0, 0, 2, 2)
	if st := b.mems[2].Stats(); st.Writes != 1 {
		t.Errorf("%d writes to the new device", st.Writes)
	}
	b.SetPlaces(0, []array.Place{{Device: 2, Zone: 5}})
	b.holds(0, 0, 2, 2, 0)
	b.add(0, 2, 1, 3)
	b.SetPlaces(0, []array.Place{{Device: 2, Zone: 5}, {Device: 0, Zone: 5}}) // lengths differ
	if !b.Torn(0) {
		t.Error("places of two lengths are not torn")
	}
	b.SetPlaces(1, []array.Place{{Device: 9, Zone: 0}})
	b.SetPlaces(2, nil)
	for _, z := range []int{1, 2} {
		if r, err := b.Report(z, 1); err != nil || r[0].Condition != zone.Offline || b.Copies(z) != 0 {
			t.Errorf("zone %d: %+v, %v", z, r, err)
		}
		if err := b.ReadAt(z, 0, make([]byte, blk)); !errors.Is(err, zone.ErrZoneOffline) {
			t.Error(err)
		}
		if err := b.Finish(z); !errors.Is(err, zone.ErrZoneOffline) {
			t.Error(err)
		}
	}
}

// Headers differ by copy.
func TestAppendEach(t *testing.T) {
	everywhere(t, func(t *testing.T, g zone.Geometry) {
		b := newStand(t, g, 2, append(mirrored(2), single(1, 3)[2:]...))
		for z, want := range []int{2, 2, 1} {
			calls := 0
			off, err := b.AppendEach(z, func(copy int, p array.Place) [][]byte {
				if p != b.Places(z)[copy] || copy != calls {
					t.Errorf("asked for copy %d, %+v", copy, p)
				}
				calls++
				return vec(pattern(100+p.Device, 1))
			})
			if err != nil || off != 0 || calls != want {
				t.Fatalf("%d, %v, %d calls", off, err, calls)
			}
			p := make([]byte, blk)
			for i, pl := range b.Places(z) {
				b.ok(b.ReadCopy(z, i, 0, p))
				if p[0] != pattern(100+pl.Device, 1)[0] {
					t.Errorf("copy %d of zone %d is another's", i, z)
				}
			}
		}
		if _, err := b.AppendEach(0, func(copy int, _ array.Place) [][]byte {
			return vec(pattern(0, 1+copy))
		}); !errdefs.Is(err, errdefs.InvalidArgument) {
			t.Errorf("copies of two lengths: %v", err)
		}
		b.add(0, 1, 1, 1)
	})
}

// plain is a device that cannot discard.
type plain struct{ zone.Device }

func TestCanDiscard(t *testing.T) {
	g := geometries["smr"]
	a := newArray(t, []array.Member{{Number: 0, Device: plain{mem(t, g)}}, {Number: 1, Device: mem(t, g)}}, mirrored(2))
	if !a.CanDiscard() {
		t.Error("one of two can")
	}
	if err := a.Release(0); !errors.Is(err, zone.ErrNoDiscard) {
		t.Errorf("and one cannot: %v", err)
	}
	a.Fail(1, zone.ErrMedia)
	if a.CanDiscard() {
		t.Error("none is left that can")
	}
}

func TestNoSuchZoneOrCopy(t *testing.T) {
	g := geometries["zns"]
	b := newStand(t, g, 2, mirrored(3))
	for _, z := range []int{-1, 3} {
		if b.Places(z) != nil || b.Copies(z) != 0 || b.Torn(z) {
			t.Errorf("there is a zone %d", z)
		}
		if err := b.ReadCopy(z, 0, 0, make([]byte, blk)); !errdefs.Is(err, errdefs.InvalidArgument) {
			t.Error(err)
		}
	}
	for _, c := range []int{-1, 2} {
		if err := b.ReadCopy(0, c, 0, make([]byte, blk)); !errdefs.Is(err, errdefs.InvalidArgument) {
			t.Error(err)
		}
	}
	if err := b.Write(0, -blk, vec(pattern(1, 1))); !errdefs.Is(err, errdefs.InvalidArgument) {
		t.Error(err)
	}
}

func TestGrow(t *testing.T) {
	g := geometries["smr"]
	b := newStand(t, g, 2, mirrored(2))
	b.ok(b.mems[0].Write(4, 0, vec(pattern(1, 1)))) // left over from another life
	for name, sets := range map[string][][]array.Place{
		"a zone of another set": {{{Device: 0, Zone: 2}}, {{Device: 1, Zone: 1}}},
		"a zone twice":          {{{Device: 0, Zone: 3}, {Device: 0, Zone: 3}}},
		"no such device":        {{{Device: 2, Zone: 3}}},
		"no such zone":          {{{Device: 1, Zone: 6}}},
	} {
		if _, err := b.Grow(sets); !errdefs.Is(err, errdefs.Precondition) || b.Geometry().Zones != 2 {
			t.Errorf("%s: %v, %d zones", name, err, b.Geometry().Zones)
		}
	}
	first, err := b.Grow([][]array.Place{{{Device: 0, Zone: 2}, {Device: 1, Zone: 3}}, {{Device: 0, Zone: 4}, {Device: 1, Zone: 4}}})
	if err != nil || first != 2 || b.Geometry().Zones != 4 {
		t.Fatalf("%d, %v", first, err)
	}
	b.add(2, 0, 1, 2)
	b.holds(2, 0, 1, 2, 0)
	if !b.Torn(3) || b.Torn(2) {
		t.Error("what lies in a new zone is not seen")
	}
	b.ok(b.Reset(3))
	b.add(3, 0, 1, 3)
}
