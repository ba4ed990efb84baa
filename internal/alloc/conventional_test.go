package alloc

import (
	"math/bits"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/shingle-store/shingle/internal/errdefs"
)

// blockRun is a run of blocks of a conventional block group.
type blockRun struct {
	slot  uint32
	at, n int64
}

// modelConventional keeps a bool a block and an account in blocks.
type modelConventional struct {
	used               []bool
	live, pending, bad int64
}

func (g *modelConventional) set(t *rapid.T, at, n int64, used bool) {
	for i := at; i < at+n; i++ {
		if g.used[i] == used {
			t.Fatalf("block %d is marked as used: %v, already", i, used)
		}
		g.used[i] = used
	}
}

func (g *modelConventional) longest() (longest int64) {
	for _, r := range bitModel(g.used).runs(0, len(g.used)) {
		longest = max(longest, int64(r[1]))
	}
	return longest
}

// conventionalMachine drives an allocator over conventional block groups only, and a model of it.
type conventionalMachine struct {
	a      *Allocator
	groups []*modelConventional

	reserved                       int64
	grants                         []Grant
	pending, live, dead, late, hld []blockRun // late: vacated, Free to come
	bad                            []blockRun
}

func (x *conventionalMachine) sum(f func(*modelConventional) int64) (n int64) {
	for _, g := range x.groups {
		n += f(g)
	}
	return n
}

func (x *conventionalMachine) free() int64 {
	return x.sum(func(g *modelConventional) int64 { return int64(len(g.used)) - g.live - g.pending - g.bad })
}

// take draws one of the runs and takes it out, or a part of it and leaves the rest.
func take(t *rapid.T, from *[]blockRun) blockRun {
	if len(*from) == 0 {
		t.Skip("there is none")
	}
	i := rapid.IntRange(0, len(*from)-1).Draw(t, "run")
	r := (*from)[i]
	*from = slices.Delete(*from, i, i+1)
	k := rapid.Int64Range(0, r.n-1).Draw(t, "first")
	n := rapid.Int64Range(1, r.n-k).Draw(t, "blocks")
	for _, rest := range []blockRun{{r.slot, r.at, k}, {r.slot, r.at + k + n, r.n - k - n}} {
		if rest.n > 0 {
			*from = append(*from, rest)
		}
	}
	return blockRun{r.slot, r.at + k, n}
}

func (x *conventionalMachine) check(t *rapid.T) {
	checkBooks(t, x.a)
	want := Usage{
		Total:       x.sum(func(g *modelConventional) int64 { return int64(len(g.used)) }) * blk,
		Used:        x.sum(func(g *modelConventional) int64 { return g.live }) * blk,
		Reserved:    (x.reserved + x.sum(func(g *modelConventional) int64 { return g.pending })) * blk,
		Quarantined: x.sum(func(g *modelConventional) int64 { return g.bad }) * blk,
		Free:        max(0, x.free()-x.reserved) * blk,
		MaxActive:   unlimitedActive,
	}
	got := x.a.Usage()
	if got.Deficit > 0 { // writes failed, and what was promised is short of them
		want.Deficit = (x.reserved - x.free()) * blk
		want.Reserved, want.Quarantined, want.Used = got.Reserved, got.Quarantined, got.Used
	}
	want.Pending = min(want.Reserved, x.sum(func(g *modelConventional) int64 { return g.pending })*blk)
	if got != want {
		t.Fatalf("usage\n got %+v\nwant %+v", got, want)
	}
	kind := x.a.ByClass()
	if len(kind) != 1 || !kind[0].Conventional || kind[0].Total != want.Total || kind[0].BlockGroups != int64(len(x.groups)) {
		t.Fatalf("%+v of %+v", kind, want)
	}
	for i, g := range x.groups {
		m := x.a.groups[i].runs
		for b, used := range g.used {
			if got := m.seek(b, b+1, 0) != b; got != used {
				t.Fatalf("block %d of group %d: used %v, want %v", b, i, got, used)
			}
		}
		b := x.a.Snapshot(i, 1)[0]
		if !b.Conventional || b.Live != g.live*blk || b.Pending != g.pending*blk || b.Unusable != 0 || b.AllocOffset != 0 {
			t.Fatalf("group %d: %+v", i, b)
		}
	}
	if s := x.a.Stats(); s.Mismatches != 0 || s.MaxExamined > 4 {
		t.Fatalf("%+v", s)
	}
}

func (x *conventionalMachine) reserve(t *rapid.T) {
	n := rapid.Int64Range(0, 700).Draw(t, "blocks")
	err := x.a.Reserve(n * blk)
	if fits := n <= x.free()-x.reserved || n == 0; fits != (err == nil) {
		t.Fatalf("Reserve(%d) with %d free and %d reserved: %v", n, x.free(), x.reserved, err)
	} else if err != nil && errdefs.ReasonOf(err) != errdefs.ReasonNoSpace {
		t.Fatal(err)
	}
	if err == nil {
		x.reserved += n
	}
}

func (x *conventionalMachine) unreserve(t *rapid.T) {
	n := rapid.Int64Range(0, x.reserved).Draw(t, "blocks")
	x.a.Unreserve(n * blk)
	x.reserved -= n
}

// allocate asks for n blocks and checks what comes: a run that is free, as long as n where one surely
// is, and else half the longest at least. Nothing comes only if nothing can be granted.
func (x *conventionalMachine) allocate(t *rapid.T) {
	n := rapid.Int64Range(1, 700).Draw(t, "blocks")
	if rapid.Bool().Draw(t, "little") {
		n = min(n, 5)
	}
	small := rapid.Bool().Draw(t, "small")
	ask := x.a.Allocate
	if small {
		ask = x.a.AllocateSmall
	}
	longest := int64(0)
	for _, g := range x.groups {
		longest = max(longest, g.longest())
	}
	g, out := ask(ClassData, n*blk)
	able := min(n, x.reserved, x.free())
	switch {
	case x.reserved == 0:
		if out != NoSpace {
			t.Fatalf("%v with nothing reserved", out)
		}
		return
	case able <= 0 || longest == 0:
		if out == Granted || len(x.dead)+len(x.hld) > 0 && x.free() > 0 && out != Busy && able > 0 {
			t.Fatalf("%v: %d free, longest %d", out, x.free(), longest)
		}
		return
	case out != Granted:
		t.Fatalf("%v with %d reserved, %d free, longest %d", out, x.reserved, x.free(), longest)
	}
	got := g.Length / blk
	if sure := int64(1) << (bits.Len64(uint64(longest)) - 1); got > able || got < min(able, sure) {
		t.Fatalf("%d blocks granted of %d, longest run %d", got, able, longest)
	}
	if !g.Conventional || g.Zone != int(g.Slot)+2 || g.Class != ClassData {
		t.Fatalf("%+v", g)
	}
	m := x.groups[g.Slot]
	m.set(t, g.Off/blk, got, true)
	m.pending += got
	x.reserved -= got
	x.grants = append(x.grants, g)
}

func (x *conventionalMachine) complete(t *rapid.T) {
	if len(x.grants) == 0 {
		t.Skip("nothing in flight")
	}
	i := rapid.IntRange(0, len(x.grants)-1).Draw(t, "grant")
	g := x.grants[i]
	x.grants = slices.Delete(x.grants, i, i+1)
	n := g.Length / blk
	if rapid.IntRange(0, 15).Draw(t, "luck") == 0 {
		x.a.Fail(g)
		m := x.groups[g.Slot]
		m.pending -= n
		m.bad += n
		x.reserved += n
		x.bad = append(x.bad, blockRun{g.Slot, g.Off / blk, n})
		return
	}
	x.a.Complete(g)
	x.pending = append(x.pending, blockRun{g.Slot, g.Off / blk, n})
}

func (x *conventionalMachine) publish(t *rapid.T) {
	r := take(t, &x.pending)
	m := x.groups[r.slot]
	if rapid.IntRange(0, 3).Draw(t, "fate") == 0 {
		again := rapid.Bool().Draw(t, "rereserve")
		x.a.DiscardRun(r.slot, r.at*blk, r.n*blk, again)
		m.set(t, r.at, r.n, false)
		m.pending -= r.n
		if again {
			x.reserved += r.n
		}
		return
	}
	x.a.Publish(r.slot, r.n*blk)
	m.pending -= r.n
	m.live += r.n
	x.live = append(x.live, r)
}

// die frees a run; the account or the bitmap hears of it first.
func (x *conventionalMachine) die(t *rapid.T) {
	r := take(t, &x.live)
	if rapid.Bool().Draw(t, "account first") {
		x.a.Free(r.slot, r.n*blk)
		x.groups[r.slot].live -= r.n
		x.dead = append(x.dead, r)
		return
	}
	x.a.Vacate(r.slot, r.at*blk, r.n*blk)
	x.groups[r.slot].set(t, r.at, r.n, false)
	x.late = append(x.late, r)
}

func (x *conventionalMachine) dieWhole(t *rapid.T) {
	if len(x.late) > 0 && (len(x.dead) == 0 || rapid.Bool().Draw(t, "account")) {
		r := take(t, &x.late)
		x.a.Free(r.slot, r.n*blk)
		x.groups[r.slot].live -= r.n
		return
	}
	r := take(t, &x.dead)
	x.a.Vacate(r.slot, r.at*blk, r.n*blk)
	x.groups[r.slot].set(t, r.at, r.n, false)
}

func (x *conventionalMachine) hold(t *rapid.T) {
	slot := rapid.IntRange(0, len(x.groups)-1).Draw(t, "slot")
	g := x.groups[slot]
	from := rapid.IntRange(0, len(g.used)).Draw(t, "from")
	to := rapid.IntRange(from, len(g.used)).Draw(t, "to")
	least, most := rapid.Int64Range(1, 3).Draw(t, "least"), rapid.Int64Range(0, 9).Draw(t, "most")
	var want blockRun
	for _, r := range bitModel(g.used).runs(from, to) {
		if int64(r[1]) >= least {
			want = blockRun{uint32(slot), int64(r[0]), int64(r[1])}
			break
		}
	}
	if most > 0 {
		want.n = min(want.n, most)
	}
	look := x.a.FreeRun
	held := rapid.Bool().Draw(t, "hold")
	if held {
		look = x.a.HoldFree
	}
	off, n, ok := look(uint32(slot), int64(from)*blk, int64(to)*blk, least*blk, most*blk)
	if ok != (want.n > 0) || ok && (off != want.at*blk || n != want.n*blk) {
		t.Fatalf("%d +%d %v, want %+v", off/blk, n/blk, ok, want)
	}
	if ok && held {
		g.set(t, want.at, want.n, true)
		x.hld = append(x.hld, want)
	}
}

func (x *conventionalMachine) letGo(t *rapid.T) {
	r := take(t, &x.hld)
	x.a.Vacate(r.slot, r.at*blk, r.n*blk)
	x.groups[r.slot].set(t, r.at, r.n, false)
}

func (x *conventionalMachine) mend(t *rapid.T) {
	r := take(t, &x.bad)
	x.a.Mended(r.slot, r.at*blk, r.n*blk)
	x.groups[r.slot].set(t, r.at, r.n, false)
	x.groups[r.slot].bad -= r.n
}

// keepPromises brings everything under way to an end: then all that is promised is granted, down to
// the last block, however short the free runs are.
func (x *conventionalMachine) keepPromises(t *rapid.T) {
	for _, r := range x.late {
		x.a.Free(r.slot, r.n*blk)
	}
	for _, r := range append(x.dead, x.hld...) {
		x.a.Vacate(r.slot, r.at*blk, r.n*blk)
	}
	owed := min(x.a.reserved, x.a.sum.free)
	for owed > 0 {
		g, out := x.a.Allocate(ClassData, owed)
		if out != Granted || g.Length <= 0 || g.Length > owed {
			t.Fatalf("%v %+v with %d owed", out, g, owed)
		}
		owed -= g.Length
	}
	checkBooks(t, x.a)
}

func TestConventionalAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		groups := uniform(rapid.IntRange(1, 5).Draw(t, "groups"), 0)
		x := &conventionalMachine{}
		bitmaps := map[uint32][]uint64{}
		for i := range groups {
			n := rapid.SampledFrom([]int64{1, 7, 64, 65, 600}).Draw(t, "blocks")
			m := &modelConventional{used: make([]bool, n)}
			if rapid.Bool().Draw(t, "has data") {
				at := rapid.Int64Range(0, n-1).Draw(t, "at")
				r := blockRun{uint32(i), at, rapid.Int64Range(1, n-at).Draw(t, "live")}
				m.set(t, r.at, r.n, true)
				m.live = r.n
				x.live = append(x.live, r)
				bitmaps[uint32(i)] = bitModel(m.used).words()
			}
			groups[i].Conventional, groups[i].Capacity, groups[i].Live = true, n*blk, m.live*blk
			x.groups = append(x.groups, m)
		}
		var err error
		if x.a, err = New(Options{BlockGroups: groups, Bitmaps: bitmaps, Reserve: DefaultReserve(groups)}); err != nil {
			t.Fatal(err)
		}
		t.Repeat(map[string]func(*rapid.T){
			"":          x.check,
			"reserve":   x.reserve,
			"unreserve": x.unreserve,
			"allocate":  x.allocate,
			"allocate2": x.allocate,
			"complete":  x.complete,
			"complete2": x.complete,
			"publish":   x.publish,
			"publish2":  x.publish,
			"die":       x.die,
			"die whole": x.dieWhole,
			"hold":      x.hold,
			"let go":    x.letGo,
			"mend":      x.mend,
		})
		x.keepPromises(t)
	})
}

func TestNewRefusesConventional(t *testing.T) {
	bitmap := map[uint32][]uint64{1: {0b1011}}
	ok := func() (Options, *BlockGroup) {
		o := Options{BlockGroups: uniform(6, 8), Bitmaps: bitmap}
		b := &o.BlockGroups[1]
		b.Conventional, b.Live = true, 3*blk
		return o, b
	}
	o, _ := ok()
	if _, err := New(o); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		edit func(*Options, *BlockGroup)
		want errdefs.Kind
	}{
		{"a bitmap that does not add up", func(_ *Options, b *BlockGroup) { b.Live = 4 * blk }, errdefs.Corruption},
		{"no bitmap", func(o *Options, b *BlockGroup) { o.Bitmaps = nil }, errdefs.Corruption},
		{"no room", func(_ *Options, b *BlockGroup) { b.Capacity = 0 }, errdefs.Corruption},
		{"more live than it holds", func(_ *Options, b *BlockGroup) { b.Live = 9 * blk }, errdefs.Corruption},
		{"half a block", func(_ *Options, b *BlockGroup) { b.Live = 100 }, errdefs.Corruption},
		{"resetting", func(_ *Options, b *BlockGroup) { b.State = Resetting }, errdefs.Corruption},
		{"closing", func(_ *Options, b *BlockGroup) { b.State = Closing }, errdefs.Corruption},
		{"too large", func(o *Options, b *BlockGroup) { b.Capacity = (MaxConventionalBlocks + 1) * blk }, errdefs.Precondition},
	} {
		o, b := ok()
		c.edit(&o, b)
		if _, err := New(o); !errdefs.Is(err, c.want) {
			t.Errorf("%s: %v, want kind %v", c.name, err, c.want)
		}
	}
}

// Whatever is handed in that contradicts the books is counted, and changes no more than they allow.
func TestConventionalMismatches(t *testing.T) {
	groups := uniform(4, 8)
	groups[0].Conventional = true
	a := mustNew(t, Options{BlockGroups: groups})
	for _, r := range []blockRun{{0, 0, 1}, {0, -1, 1}, {0, 7, 2}, {0, 0, -1}, {9, 0, 1}} {
		a.Vacate(r.slot, r.at*blk, r.n*blk)
		checkBooks(t, a)
	}
	a.Vacate(0, 5, blk)
	if s := a.Stats(); s.Mismatches != 6 {
		t.Errorf("%d mismatches, want 6", s.Mismatches)
	}
	a.Vacate(2, 0, blk) // sequential: nothing to do
	a.Suspect(0)
	a.Retire(0)
	if b := a.Snapshot(0, 1)[0]; b.State != Empty {
		t.Errorf("%+v", b)
	}
}

// TestConventionalExamined: with 75,000 conventional block groups, nearly all full, an allocation
// looks at no more of them than with a few.
func TestConventionalExamined(t *testing.T) {
	groups := uniform(75_000, 64)
	bitmaps := map[uint32][]uint64{}
	for i := range groups {
		g := &groups[i]
		g.Conventional, g.Live = true, g.Capacity
		switch {
		case i%100 == 99:
			g.Live -= 8 * blk
			bitmaps[g.Slot] = []uint64{^uint64(0x0101010101010101)} // eight single blocks
		case i > 74_990:
			g.Live = 0
		}
	}
	a := mustNew(t, Options{BlockGroups: groups, Bitmaps: bitmaps})
	if err := a.Reserve(a.Usage().Free); err != nil {
		t.Fatal(err)
	}
	for i := range 5000 {
		g, out := a.Allocate(ClassData, int64(1+i%40)*blk)
		if out == NoSpace {
			break
		}
		if out != Granted {
			t.Fatal(out)
		}
		a.Complete(g)
		if i%3 == 0 {
			a.DiscardRun(g.Slot, g.Off, g.Length, true)
		}
	}
	if s := a.Stats(); s.MaxExamined > 3 || s.Allocations < 1000 {
		t.Errorf("%+v", s)
	}
}
