package alloc

import (
	"testing"

	"pgregory.net/rapid"
)

// TestNewTakesOver takes random block groups over, as after a crash, and does the owner's duties.
func TestNewTakesOver(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		capacity := rapid.Int64Range(2, 9).Draw(t, "capacity")
		groups := uniform(rapid.IntRange(3, 70).Draw(t, "groups"), capacity)
		var used int64
		for i := range groups {
			g := &groups[i]
			g.State = rapid.SampledFrom([]State{Empty, Active, Full, Closing, ReadOnly, Quarantined}).Draw(t, "state")
			if g.State == Empty {
				continue
			}
			g.Class = rapid.SampledFrom([]Class{ClassData, ClassRelocation}).Draw(t, "class")
			offset := rapid.Int64Range(1, capacity).Draw(t, "offset")
			g.AllocOffset, g.Live = offset*blk, rapid.Int64Range(0, offset-1).Draw(t, "live")*blk
			g.Generation = 3
			used += g.Live
		}
		limit := rapid.IntRange(0, 5).Draw(t, "max")
		a, err := New(Options{BlockGroups: groups, MaxActive: limit, Reserve: 2 * blk})
		if err != nil {
			t.Fatal(err)
		}
		checkBooks(t, a)
		if u := a.Usage(); u.Used+u.Deficit < used || u.Used > used {
			t.Fatalf("%+v, want %d used", u, used)
		}
		for i, b := range a.Snapshot(0, -1) {
			g := groups[i]
			legal := b.State == g.State ||
				g.State == Active && (b.State == Closing || b.State == Full && g.AllocOffset == g.Capacity)
			if !legal || b.Live != g.Live || b.Generation != g.Generation || b.AllocOffset != g.AllocOffset || b.Pending != 0 {
				t.Fatalf("took %+v for %+v", b, g)
			}
		}
		// The owner's duties bring it within the budget and reset all that is dead.
		for _, slot := range a.Closing() {
			a.Retire(slot)
		}
		for {
			b, ok := a.BeginReset()
			if !ok {
				break
			}
			a.FinishReset(b.Slot, true)
		}
		checkBooks(t, a)
		for i, b := range a.Snapshot(0, -1) {
			if b.State == Full && b.Live == 0 || b.State == Empty && b.Generation != groups[i].Generation+uint64(min(1, groups[i].State)) {
				t.Fatalf("%+v was %+v", b, groups[i])
			}
		}
	})
}

func TestSnapshotPages(t *testing.T) {
	a := mustNew(t, Options{BlockGroups: uniform(10, 4), Reserve: 6 * blk})
	for _, c := range []struct{ first, n, want int }{
		{0, -1, 10}, {0, 3, 3}, {8, 3, 2}, {9, 1, 1}, {10, 1, 0}, {-1, 5, 0}, {3, 0, 0}, {3, 1 << 62, 7},
	} {
		got := a.Snapshot(c.first, c.n)
		if len(got) != c.want || len(got) > 0 && int(got[0].Slot) != c.first {
			t.Errorf("Snapshot(%d, %d): %d from %v", c.first, c.n, len(got), got)
		}
	}
}

func TestNames(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{ClassData.String(), "data"}, {ClassRelocation.String(), "relocation"}, {ClassLog.String(), "log"},
		{Class(0).String(), "none"}, {Class(9).String(), "class(9)"},
		{Empty.String(), "empty"}, {Quarantined.String(), "quarantined"}, {State(9).String(), "state(9)"},
		{Granted.String(), "granted"}, {NoSpace.String(), "no space"}, {Outcome(9).String(), "unknown outcome"},
	} {
		if c.got != c.want {
			t.Errorf("%q, want %q", c.got, c.want)
		}
	}
}

func TestDefaultReserve(t *testing.T) {
	groups := uniform(5, 8)
	groups[1].Capacity, groups[3].Capacity, groups[4].Capacity = 11*blk, 12*blk, 4*blk
	if got := DefaultReserve(groups); got != 21*blk {
		t.Errorf("%d blocks", got/blk)
	}
	if DefaultReserve(nil) != 0 {
		t.Error("nothing needs no reserve")
	}
}

// TestStaleGrants: a grant that is ended twice, of a generation gone by, or larger than what is
// in flight changes nothing.
func TestStaleGrants(t *testing.T) {
	a := mustNew(t, Options{BlockGroups: uniform(6, 4), Reserve: 6 * blk})
	if err := a.Reserve(4 * blk); err != nil {
		t.Fatal(err)
	}
	g := grant(t, a, ClassData, 2)
	a.Complete(g)
	before := a.Usage()
	a.Complete(g)
	a.Fail(g)
	for _, edit := range []func(*Grant){
		func(g *Grant) { g.Generation++ },
		func(g *Grant) { g.Slot = 99 },
		func(g *Grant) { g.Length = 2 * blk },
		func(g *Grant) { g.Length = -blk },
	} {
		h := grant(t, a, ClassData, 1)
		bad := h
		edit(&bad)
		a.Complete(bad)
		a.Fail(bad)
		a.Complete(h)
		a.Discard(h.Slot, h.Length, true)
		checkBooks(t, a)
	}
	if s := a.Stats(); s.Mismatches != 10 {
		t.Errorf("%d mismatches, want 10", s.Mismatches)
	}
	if after := a.Usage(); after.Used != before.Used || after.Reserved != before.Reserved {
		t.Errorf("before %+v\nafter %+v", before, after)
	}
}
