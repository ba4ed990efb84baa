package alloc

import (
	"testing"

	"pgregory.net/rapid"
)

// watched is what a watcher knows.
type watched map[uint32][2]int64

func (w watched) note(slot uint32, live, dead int64, movable bool) {
	if !movable {
		delete(w, slot)
		return
	}
	w[slot] = [2]int64{live, dead}
}

// checkWatch holds what the watcher was told against what could be moved.
func (x *machine) checkWatch(t *rapid.T, i int, g *modelGroup) {
	got, known := x.seen[uint32(i)]
	movable := g.state == Full && g.count(inFlight, appended) == 0 && g.count(live) > 0
	if want := [2]int64{g.count(live) * blk, g.dead() * blk}; known != movable || known && got != want {
		t.Fatalf("the watcher knows %v (%t) of block group %d, it should be %v (%t)", got, known, i, want, movable)
	}
}

func (x *machine) pin(t *rapid.T) {
	i := rapid.IntRange(0, len(x.m.groups)-1).Draw(t, "slot")
	g := x.m.groups[i]
	b, ok := x.a.Pin(uint32(i))
	if want := g.state == Full && g.count(inFlight, appended) == 0 && g.count(live) > 0; ok != want {
		t.Fatalf("Pin(%d) is %t: %+v", i, ok, *g)
	}
	if !ok {
		return
	}
	if b.Slot != uint32(i) || b.Live != g.count(live)*blk || b.Generation != g.generation {
		t.Fatalf("Pin(%d) answers %+v", i, b)
	}
	g.pins++
}

func (x *machine) unpin(t *rapid.T) {
	i := x.choose(t, func(g *modelGroup) bool { return g.pins > 0 })
	x.a.Unpin(uint32(i))
	x.m.groups[i].pins--
}

func (x *machine) closeDead(t *rapid.T) {
	most := int64(0)
	for _, g := range x.m.groups {
		if g.takes() && g.count(inFlight, appended) == 0 && g.count(live) > 0 {
			most = max(most, g.dead())
		}
	}
	want := most > 0 && x.m.free()-x.m.reserve-x.m.reserved >= 0
	slot, ok := x.a.CloseDead()
	if ok != want {
		t.Fatalf("CloseDead() is %t, the most dead bytes are %d blocks", ok, most)
	}
	if !ok {
		return
	}
	if g := x.m.groups[slot]; !g.takes() || g.dead() != most {
		t.Fatalf("CloseDead() took %d with %d dead blocks of at most %d: %+v", slot, g.dead(), most, *g)
	}
	x.m.close(int(slot))
}

func TestUnpinUnpinned(t *testing.T) {
	a := mustNew(t, Options{BlockGroups: uniform(4, 5), Reserve: 0})
	a.Unpin(1)
	if s := a.Stats(); s.Mismatches != 1 {
		t.Errorf("%+v", s)
	}
}
