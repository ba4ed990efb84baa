package reclaim

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/shingle-store/shingle/internal/extent"
)

const blk = extent.BlockSize

// modelGroup is what the model knows of a block group.
type modelGroup struct {
	live, dead int64
	movable    bool
	held       bool
}

type indexModel struct {
	x      *Index
	groups map[uint32]*modelGroup
}

func (m *indexModel) candidate(slot uint32) bool {
	g := m.groups[slot]
	return g != nil && g.movable && g.live > 0 && g.dead > 0 && !g.held
}

// order returns the candidates, best first, by looking at all.
func (m *indexModel) order() []uint32 {
	var out []uint32
	for slot := range m.groups {
		if m.candidate(slot) {
			out = append(out, slot)
		}
	}
	slices.SortFunc(out, func(a, b uint32) int {
		ga, gb := m.groups[a], m.groups[b]
		x, y := float64(ga.live)/float64(ga.live+ga.dead), float64(gb.live)/float64(gb.live+gb.dead)
		switch {
		case x < y:
			return -1
		case x > y:
			return 1
		}
		return int(a) - int(b)
	})
	return out
}

func (m *indexModel) set(t *rapid.T) {
	slot := rapid.Uint32Range(0, 20).Draw(t, "slot")
	g := modelGroup{
		live: rapid.Int64Range(0, 8).Draw(t, "live") * blk, dead: rapid.Int64Range(0, 8).Draw(t, "dead") * blk,
		movable: rapid.IntRange(0, 3).Draw(t, "movable") > 0,
	}
	m.x.Set(slot, g.live, g.dead, g.movable)
	old := m.groups[slot]
	g.held = old != nil && old.held && g.movable && g.dead > 0 && g.live == old.live
	m.groups[slot] = &g
}

func (m *indexModel) hold(t *rapid.T) {
	slot := rapid.Uint32Range(0, 20).Draw(t, "slot")
	m.x.Hold(slot)
	if m.candidate(slot) {
		m.groups[slot].held = true
	}
}

func (m *indexModel) release(*rapid.T) {
	m.x.Release()
	for _, g := range m.groups {
		g.held = false
	}
}

func (m *indexModel) check(t *rapid.T) {
	order := m.order()
	best, any := m.x.Best()
	if any != (len(order) > 0) || any && best.Slot != order[0] {
		t.Fatalf("best is %+v (%t), want the first of %v", best, any, order)
	}
	var dead, stuck int64
	for slot, g := range m.groups {
		c, ok := m.x.Lookup(slot)
		if ok != m.candidate(slot) || ok && (c.Live != g.live || c.Dead != g.dead) {
			t.Fatalf("block group %d is %+v (%t), want %+v", slot, c, ok, *g)
		}
		if ok {
			dead += g.dead
		} else if g.held {
			stuck += g.dead
		}
	}
	if d, s := m.x.Dead(); d != dead || s != stuck {
		t.Fatalf("%d dead bytes and %d stuck, want %d and %d", d, s, dead, stuck)
	}
	share := rapid.IntRange(0, 100).Draw(t, "share")
	order = slices.DeleteFunc(order, func(slot uint32) bool {
		g := m.groups[slot]
		return g.dead*100 < int64(share)*(g.live+g.dead)
	})
	above := m.x.Above(share)
	if len(above) != len(order) {
		t.Fatalf("above %d %% are %v, want %v", share, above, order)
	}
	for i := range above {
		if above[i].Slot != order[i] {
			t.Fatalf("above %d %% are %v, want %v", share, above, order)
		}
	}
}

func TestIndexAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &indexModel{x: NewIndex(), groups: map[uint32]*modelGroup{}}
		t.Repeat(map[string]func(*rapid.T){
			"set": m.set, "set2": m.set, "set3": m.set, "hold": m.hold, "release": m.release, "": m.check,
		})
	})
}

// TestLargeZonesDoNotOverflow compares block groups of 8 TiB.
func TestLargeZonesDoNotOverflow(t *testing.T) {
	x := NewIndex()
	const size = 8 << 40
	x.Set(1, size-blk, blk, true)
	x.Set(2, size-2*blk, 2*blk, true)
	if best, _ := x.Best(); best.Slot != 2 {
		t.Errorf("the best is %+v", best)
	}
	if c := (Candidate{Live: blk, Dead: size - blk}); c.Share() != 99 {
		t.Errorf("%d %%", c.Share())
	}
}

// BenchmarkChoice shows that a choice and the changes that lead to it cost about the same with 100
// block groups as with 75,000.
func BenchmarkChoice(b *testing.B) {
	for _, n := range []uint32{100, 75_000} {
		b.Run(map[uint32]string{100: "100", 75_000: "75000"}[n], func(b *testing.B) {
			x := NewIndex()
			const size = 65536
			for slot := range n {
				x.Set(slot, int64(slot%size+1)*blk, int64(size-slot%size)*blk, true)
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				best, _ := x.Best()
				x.Set(best.Slot, size*blk, blk, true)
				slot := uint32(i) * 7919 % n
				c, _ := x.Lookup(slot)
				x.Set(slot, max(c.Live-blk, blk), c.Dead+blk, true)
			}
		})
	}
}
