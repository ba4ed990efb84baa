package alloc

import (
	"slices"

	"pgregory.net/rapid"

	"github.com/shingle-store/shingle/internal/errdefs"
)

// machine drives an allocator and its model through the same calls.
type machine struct {
	a    *Allocator
	m    *model
	seen watched
}

// choose draws a block group that fits, or skips the step.
func (x *machine) choose(t *rapid.T, ok func(*modelGroup) bool) int {
	var fit []int
	for i, g := range x.m.groups {
		if ok(g) {
			fit = append(fit, i)
		}
	}
	if len(fit) == 0 {
		t.Skip("no block group fits")
	}
	return rapid.SampledFrom(fit).Draw(t, "slot")
}

func (x *machine) check(t *rapid.T) {
	checkBooks(t, x.a)
	if got, want := x.a.Usage(), x.m.usage(); got != want {
		t.Fatalf("usage\n got %+v\nwant %+v", got, want)
	}
	for i, b := range x.a.Snapshot(0, -1) {
		g := x.m.groups[i]
		want := BlockGroup{
			Slot: uint32(i), Zone: i + 2, Capacity: int64(len(g.blocks)+1) * blk, AllocOffset: b.AllocOffset,
			Live: g.count(live) * blk, Generation: g.generation, Class: g.class, State: g.state,
			Unusable: g.dead() * blk, Pending: g.count(inFlight, appended) * blk, Pinned: g.pins > 0,
		}
		if g.state == Active && !g.opening {
			want.AllocOffset = want.Capacity - g.count(free)*blk
		}
		if b != want {
			t.Fatalf("block group\n got %+v\nwant %+v", b, want)
		}
		x.checkWatch(t, i, g)
	}
	if s := x.a.Stats(); s.MaxExamined > uint64(x.m.budget)+2 || s.Mismatches != 0 || s.PeakActive > x.m.budget {
		t.Fatalf("%+v", s)
	}
}

func (x *machine) reserve(t *rapid.T) {
	n := rapid.Int64Range(0, 20).Draw(t, "blocks")
	available := x.m.free() - x.m.reserve - x.m.reserved
	err := x.a.Reserve(n * blk)
	switch {
	case n <= available || n == 0:
		if err != nil {
			t.Fatalf("Reserve(%d of %d): %v", n, available, err)
		}
		x.m.reserved += n
	case n <= available+x.m.reclaimable():
		x.m.refused = true
		if errdefs.ReasonOf(err) != errdefs.ReasonReclaimPending {
			t.Fatalf("got %v, want reclaim pending", err)
		}
	default:
		if errdefs.ReasonOf(err) != errdefs.ReasonNoSpace {
			t.Fatalf("got %v, want no space", err)
		}
	}
}

func (x *machine) unreserve(t *rapid.T) {
	n := rapid.Int64Range(0, x.m.reserved).Draw(t, "blocks")
	x.a.Unreserve(n * blk)
	x.m.reserved -= n
}

func (x *machine) allocate(t *rapid.T) {
	c := rapid.SampledFrom([]Class{ClassData, ClassData, ClassData, ClassRelocation, ClassLog}).Draw(t, "class")
	want := rapid.Int64Range(0, 10).Draw(t, "blocks")
	slot, n, outcome := x.m.allocate(c, want)
	g, got := x.a.Allocate(c, want*blk)
	if got != outcome || got == Granted && (int(g.Slot) != slot || g.Length != n*blk) {
		t.Fatalf("Allocate(%v, %d): got %v %+v, want %v %d blocks in %d", c, want, got, g, outcome, n, slot)
	}
	if got != Granted {
		return
	}
	if mg := x.m.groups[slot]; g.Class != c || g.Generation != mg.generation || g.Zone != slot+2 {
		t.Fatalf("grant %+v", g)
	}
	if c != ClassRelocation {
		x.m.reserved -= n
	} else {
		for range n {
			// Block by block: one that is neither promised nor kept, or else a kept one.
			if x.m.free()-x.m.reserved >= x.m.reserve {
				x.m.lent = 0
			}
			if x.m.free()-x.m.reserved <= x.m.reserve/2-x.m.lent {
				x.m.lent++
			}
			x.m.groups[slot].turn(free, inFlight, 1)
		}
		n = 0
	}
	x.m.groups[slot].turn(free, inFlight, n)
	x.m.grants = append(x.m.grants, g)
}

func (x *machine) open(t *rapid.T) {
	c := rapid.SampledFrom([]Class{ClassData, ClassData, ClassRelocation, ClassLog}).Draw(t, "class")
	slot, _ := x.m.pick(c)
	want := slot >= 0 && !x.m.opening(c) && x.m.active() < x.m.budgetOf(c) && x.m.grantable(c) > 0
	b, ok := x.a.BeginOpen(c)
	if ok != want || ok && int(b.Slot) != slot {
		t.Fatalf("BeginOpen(%v): got %v %+v, want %v %d", c, ok, b, want, slot)
	}
	if ok {
		g := x.m.groups[slot]
		g.state, g.class, g.opening = Active, c, true
	}
}

func (x *machine) opened(t *rapid.T) {
	i := x.choose(t, func(g *modelGroup) bool { return g.opening })
	ok := rapid.IntRange(0, 5).Draw(t, "luck") > 0
	x.a.FinishOpen(uint32(i), ok)
	if !ok {
		x.m.close(i)
		return
	}
	g := x.m.groups[i]
	g.opening = false
	x.m.clock++
	g.opened = x.m.clock
}

func (x *machine) takeGrant(t *rapid.T) Grant {
	if len(x.m.grants) == 0 {
		t.Skip("nothing in flight")
	}
	i := rapid.IntRange(0, len(x.m.grants)-1).Draw(t, "grant")
	g := x.m.grants[i]
	x.m.grants = slices.Delete(x.m.grants, i, i+1)
	return g
}

func (x *machine) complete(t *rapid.T) {
	gr := x.takeGrant(t)
	x.a.Complete(gr)
	g := x.m.groups[gr.Slot]
	g.turn(inFlight, appended, gr.Length/blk)
	if g.state == Active && !g.opening && g.count(free, inFlight) == 0 {
		g.state = Full
	}
}

func (x *machine) fail(t *rapid.T) {
	gr := x.takeGrant(t)
	x.a.Fail(gr)
	g := x.m.groups[gr.Slot]
	g.turn(inFlight, failed, gr.Length/blk)
	if gr.Class != ClassRelocation {
		x.m.reserved += gr.Length / blk
	}
	if g.state == Active {
		x.m.close(int(gr.Slot))
	}
}

func (x *machine) part(t *rapid.T, kind byte) (int, int64) {
	i := x.choose(t, func(g *modelGroup) bool { return g.count(kind) > 0 })
	return i, rapid.Int64Range(1, x.m.groups[i].count(kind)).Draw(t, "blocks")
}

func (x *machine) publish(t *rapid.T) {
	i, n := x.part(t, appended)
	x.a.Publish(uint32(i), n*blk)
	x.m.groups[i].turn(appended, live, n)
}

func (x *machine) discard(t *rapid.T) {
	i, n := x.part(t, appended)
	again := rapid.Bool().Draw(t, "rereserve")
	x.a.Discard(uint32(i), n*blk, again)
	x.m.groups[i].turn(appended, failed, n)
	if again {
		x.m.reserved += n
	}
}

func (x *machine) free(t *rapid.T) {
	i, n := x.part(t, live)
	x.a.Free(uint32(i), n*blk)
	x.m.groups[i].turn(live, unusable, n)
}

func (x *machine) suspect(t *rapid.T) {
	which := rapid.IntRange(-1, len(x.m.groups)-1).Draw(t, "slot")
	if which < 0 {
		x.a.SuspectAll()
	} else {
		x.a.Suspect(uint32(which))
	}
	for i, g := range x.m.groups {
		if (which < 0 || which == i) && g.state == Active {
			x.m.close(i)
		}
	}
}

func (x *machine) retire(t *rapid.T) {
	due := x.a.Closing()
	any := slices.ContainsFunc(x.m.groups, func(g *modelGroup) bool { return g.state == Closing })
	if x.a.AnyClosing() != any {
		t.Fatalf("AnyClosing() = %t", !any)
	}
	for i, g := range x.m.groups {
		if want := g.state == Closing && g.count(inFlight) == 0; want != slices.Contains(due, uint32(i)) {
			t.Fatalf("Closing() = %v, but for %d that is wrong", due, i)
		}
	}
	if len(due) == 0 {
		t.Skip("nothing to finish")
	}
	slot := rapid.SampledFrom(due).Draw(t, "slot")
	x.a.Retire(slot)
	x.m.groups[slot].state = Full
}

func (x *machine) quarantine(t *rapid.T) {
	if rapid.IntRange(0, 9).Draw(t, "luck") > 0 {
		t.Skip("zones seldom fail")
	}
	i := rapid.IntRange(0, len(x.m.groups)-1).Draw(t, "slot")
	readable := rapid.Bool().Draw(t, "readable")
	x.a.Quarantine(uint32(i), readable)
	x.m.spoil(i, readable)
}

func (m *model) spoil(i int, readable bool) {
	g := m.groups[i]
	if g.state == Quarantined {
		return
	}
	g.state, g.opening = Quarantined, false
	if readable {
		g.state = ReadOnly
	}
	g.turnAll(free, lost)
	g.turnAll(unusable, lost)
	g.turnAll(tail, lost)
	g.turnAll(failed, lost)
	delete(m.resetHeld, i)
}

func (x *machine) reset(t *rapid.T) {
	want := slices.IndexFunc(x.m.groups, func(g *modelGroup) bool { return g.state == Full && g.idle() && g.pins == 0 })
	available := x.m.free() - x.m.reserve - x.m.reserved
	b, ok := x.a.BeginReset()
	if !ok {
		for i, g := range x.m.groups {
			if i == want || g.takes() && g.idle() && g.dead() > 0 &&
				(x.m.refused || available < int64(len(g.blocks))) {
				t.Fatalf("nothing to reset, but block group %d is: %+v", i, *g)
			}
		}
		return
	}
	g := x.m.groups[b.Slot]
	if want >= 0 && int(b.Slot) != want || !g.idle() || g.dead() == 0 {
		t.Fatalf("BeginReset: %+v, first dead is %d", b, want)
	}
	if g.state == Active {
		if want >= 0 || !x.m.refused && available >= int64(len(g.blocks)) {
			t.Fatalf("BeginReset: %+v is active, and no reset of it is due", b)
		}
		x.m.resetHeld[int(b.Slot)] = true
	}
	g.state = Resetting
	g.turnAll(free, tail)
}

func (x *machine) resetDone(t *rapid.T) {
	i := x.choose(t, func(g *modelGroup) bool { return g.state == Resetting })
	ok := rapid.IntRange(0, 9).Draw(t, "luck") > 0
	x.a.FinishReset(uint32(i), ok)
	if !ok {
		x.m.spoil(i, false)
		return
	}
	g := x.m.groups[i]
	g.state = Empty
	g.generation++
	g.turnAll(unusable, free)
	g.turnAll(tail, free)
	g.turnAll(failed, free)
	delete(x.m.resetHeld, i)
	x.m.refused = false
	x.m.lent = max(0, x.m.lent-int64(len(g.blocks)))
}

// keepPromises lets everything under way end well and then asks for all that is promised:
// data for every reserved byte, if that leaves what is kept for relocation; relocation for what
// is kept for it, and for the whole reserve if nothing was lost.
func (x *machine) keepPromises(t *rapid.T) {
	for _, g := range x.m.grants {
		x.a.Complete(g)
	}
	for i := range x.m.groups {
		x.a.FinishOpen(uint32(i), true)
		x.a.FinishReset(uint32(i), true)
	}
	for _, slot := range x.a.Closing() {
		x.a.Retire(slot)
	}
	c, owed := ClassData, x.a.reserved
	if x.a.sum.free-x.a.keptLocked() < owed {
		c = ClassRelocation
	}
	if rapid.Bool().Draw(t, "relocation first") {
		c = ClassRelocation
	}
	if c == ClassRelocation {
		owed = min(x.a.sum.free, x.a.keptLocked())
		if x.a.availableLocked() >= 0 {
			owed = x.a.reserve
		}
	}
	x.collect(t, c, owed)
	if x.a.sum.free-x.a.keptLocked() >= x.a.reserved {
		x.collect(t, ClassData, x.a.reserved)
	}
}

func (x *machine) collect(t *rapid.T, c Class, owed int64) {
	for owed > 0 {
		g, outcome := x.a.Allocate(c, owed)
		switch outcome {
		case Granted:
			owed -= g.Length
			x.a.Complete(g)
		case NeedsOpen:
			b, ok := x.a.BeginOpen(c)
			if !ok {
				t.Fatal("NeedsOpen, but nothing can be opened")
			}
			x.a.FinishOpen(b.Slot, true)
		default:
			t.Fatalf("%v with %d bytes owed to %v: %+v", outcome, owed, c, x.a.Usage())
		}
		checkBooks(t, x.a)
	}
}
