package alloc

import (
	"testing"

	"pgregory.net/rapid"
)

func describe(t testing.TB, a *Allocator, slot uint32) BlockGroup {
	t.Helper()
	b, ok := a.BlockGroup(slot)
	if !ok || b.Slot != slot {
		t.Fatalf("block group %d: %+v, %v", slot, b, ok)
	}
	return b
}

func TestHeldEmptyGroupsAreNotOpened(t *testing.T) {
	a := mustNew(t, Options{BlockGroups: uniform(4, 5), Reserve: 0})
	before := a.Usage()
	for slot := range uint32(3) {
		if !a.HoldEmpty(describe(t, a, slot)) {
			t.Fatalf("block group %d cannot be held", slot)
		}
		if a.HoldEmpty(describe(t, a, slot)) {
			t.Fatalf("block group %d is held twice", slot)
		}
	}
	if u := a.Usage(); u != before {
		t.Errorf("held block groups change the account: %+v, before %+v", u, before)
	}
	if err := a.Reserve(8 * blk); err != nil {
		t.Fatal(err)
	}
	if g := grant(t, a, ClassData, 4); g.Slot != 3 {
		t.Fatalf("granted in block group %d, which is held", g.Slot)
	}
	if _, out := a.Allocate(ClassData, 4*blk); out != Busy {
		t.Fatalf("only held block groups are left: %v", out)
	}
	if _, ok := a.BeginOpen(ClassData); ok {
		t.Fatal("a held block group is opened")
	}
	changed := a.Changed()
	a.ReleaseEmpty(1)
	select {
	case <-changed:
	default:
		t.Error("nobody is told of the release")
	}
	if g := grant(t, a, ClassData, 4); g.Slot != 1 {
		t.Fatalf("granted in block group %d", g.Slot)
	}
	a.ReleaseEmpty(1) // is not held any more
	a.ReleaseEmpty(0)
	a.ReleaseEmpty(2)
	if a.held != 0 {
		t.Errorf("%d held", a.held)
	}
}

func TestHoldEmptyRefuses(t *testing.T) {
	a := mustNew(t, Options{BlockGroups: uniform(4, 5), Reserve: 0})
	if a.HoldEmpty(BlockGroup{Slot: 9}) {
		t.Error("a block group that does not exist is held")
	}
	old := describe(t, a, 0)
	if err := a.Reserve(4 * blk); err != nil {
		t.Fatal(err)
	}
	b, ok := a.BeginOpen(ClassData)
	if !ok || b.Slot != 0 {
		t.Fatalf("%+v, %v", b, ok)
	}
	if a.HoldEmpty(old) || a.HoldEmpty(describe(t, a, 0)) || a.BeginResetOf(describe(t, a, 0)) {
		t.Error("a block group that is being opened is held or reset")
	}
	a.FinishOpen(0, true)
	if a.HoldEmpty(old) || a.HoldEmpty(describe(t, a, 0)) {
		t.Error("an active block group is held")
	}
	a.Quarantine(2, false)
	if a.HoldEmpty(describe(t, a, 2)) || a.BeginResetOf(describe(t, a, 2)) {
		t.Error("a quarantined block group is held or reset")
	}
	if _, ok := a.BlockGroup(4); ok {
		t.Error("there is no block group 4")
	}
	// A zone that fails while its block group is held.
	if !a.HoldEmpty(describe(t, a, 3)) {
		t.Fatal("not held")
	}
	a.Quarantine(3, true)
	a.ReleaseEmpty(3)
	if b := describe(t, a, 3); b.State != ReadOnly || a.held != 0 {
		t.Errorf("%+v, %d held", b, a.held)
	}
}

func TestBeginResetOf(t *testing.T) {
	a := mustNew(t, Options{BlockGroups: uniform(4, 5), Reserve: 0})
	if err := a.Reserve(8 * blk); err != nil {
		t.Fatal(err)
	}
	if a.BeginResetOf(describe(t, a, 0)) {
		t.Error("an empty block group is reset")
	}
	g := grant(t, a, ClassData, 4)
	full := describe(t, a, g.Slot)
	if a.BeginResetOf(full) {
		t.Error("reset with an append in flight")
	}
	a.Complete(g)
	if a.BeginResetOf(describe(t, a, g.Slot)) {
		t.Error("reset with bytes that may be published")
	}
	a.Publish(g.Slot, 4*blk)
	if a.BeginResetOf(describe(t, a, g.Slot)) {
		t.Error("reset with live bytes")
	}
	a.Free(g.Slot, 4*blk)
	dead := describe(t, a, g.Slot)
	stale := dead
	stale.AllocOffset -= blk
	if a.BeginResetOf(stale) {
		t.Error("reset, though something was granted since")
	}
	if !a.BeginResetOf(dead) {
		t.Fatal("a dead block group is not reset")
	}
	if a.BeginResetOf(dead) || a.HoldEmpty(dead) {
		t.Error("taken twice")
	}
	if _, ok := a.BeginReset(); ok {
		t.Error("BeginReset hands out what is being reset")
	}
	a.FinishReset(g.Slot, true)
	if b := describe(t, a, g.Slot); b.State != Empty || b.Generation != dead.Generation+1 {
		t.Errorf("%+v", b)
	}
	if a.BeginResetOf(dead) {
		t.Error("reset again by a description from before the reset")
	}

	// An active one with nothing in it but its header, whether or not space is short.
	g = grant(t, a, ClassData, 2)
	a.Complete(g)
	a.Discard(g.Slot, 2*blk, false)
	idle := describe(t, a, g.Slot)
	if idle.State != Active || !a.BeginResetOf(idle) {
		t.Fatalf("an idle active block group is not reset: %+v", idle)
	}
	if u := a.Usage(); u.Active != 1 {
		t.Errorf("the zone is active until it is reset: %+v", u)
	}
	a.FinishReset(g.Slot, true)
	if u := a.Usage(); u.Active != 0 || u.Free+u.Reserved != u.Total {
		t.Errorf("%+v", u)
	}
}

// Holds and resets by hand between everything else never change what is promised, never let a
// held block group be opened, and leave an allocator that works when they end.
func TestTrimAmongOthers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := mustNewRapid(t, Options{BlockGroups: uniform(6, 4), Reserve: 3 * blk, MaxActive: rapid.IntRange(0, 2).Draw(t, "active")})
		held := map[uint32]bool{}
		resetting := map[uint32]bool{}
		live := map[uint32]int64{}
		pick := func() uint32 { return uint32(rapid.IntRange(0, 5).Draw(t, "slot")) }
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) {
				u := a.Usage()
				if u.Total != u.Used+u.Free+u.Unusable+u.Reserved+u.Quarantined || a.Stats().Mismatches > 0 {
					t.Fatalf("%+v, %+v", u, a.Stats())
				}
			},
			"write": func(t *rapid.T) {
				if a.Reserve(2*blk) != nil {
					return
				}
				g, out := a.Allocate(ClassData, 2*blk)
				if out == NeedsOpen {
					b, ok := a.BeginOpen(ClassData)
					if !ok || held[b.Slot] {
						t.Fatalf("BeginOpen: %+v, %v, held %v", b, ok, held)
					}
					a.FinishOpen(b.Slot, true)
					g, out = a.Allocate(ClassData, 2*blk)
				}
				if out != Granted {
					if out == NoSpace {
						t.Fatal("a promise is not kept, nor said to come later")
					}
					a.Unreserve(2 * blk)
					return
				}
				a.Complete(g)
				a.Publish(g.Slot, g.Length)
				a.Unreserve(2*blk - g.Length)
				live[g.Slot] += g.Length
			},
			"free": func(t *rapid.T) {
				slot := pick()
				a.Free(slot, live[slot])
				live[slot] = 0
			},
			"hold": func(t *rapid.T) {
				slot := pick()
				b, _ := a.BlockGroup(slot)
				if ok := a.HoldEmpty(b); ok != (b.State == Empty && !held[slot]) {
					t.Fatalf("HoldEmpty(%+v) is %v", b, ok)
				} else if ok {
					held[slot] = true
				}
			},
			"release": func(t *rapid.T) {
				slot := pick()
				a.ReleaseEmpty(slot)
				delete(held, slot)
			},
			"reset": func(t *rapid.T) {
				slot := pick()
				b, _ := a.BlockGroup(slot)
				if ok := a.BeginResetOf(b); ok != ((b.State == Full || b.State == Active) && live[slot] == 0) {
					t.Fatalf("BeginResetOf(%+v) is %v", b, ok)
				} else if ok {
					resetting[slot] = true
				}
			},
			"finish reset": func(t *rapid.T) {
				slot := pick()
				a.FinishReset(slot, true)
				delete(resetting, slot)
			},
		})
		for slot := range held {
			a.ReleaseEmpty(slot)
		}
		for slot := range resetting {
			a.FinishReset(slot, true)
		}
		for slot, n := range live {
			a.Free(slot, n)
		}
		for {
			b, ok := a.BeginReset()
			if !ok {
				break
			}
			a.FinishReset(b.Slot, true)
		}
		if u := a.Usage(); u.Used != 0 || u.Reserved != 0 || u.Free+u.Unusable != u.Total || a.held != 0 {
			t.Fatalf("in the end: %+v, %d held", u, a.held)
		}
	})
}

func mustNewRapid(t *rapid.T, o Options) *Allocator {
	a, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return a
}
