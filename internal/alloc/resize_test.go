package alloc

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/shingle-store/shingle/internal/extent"
)

const resizeZone = 16 * extent.BlockSize

// newResizable is an allocator over so many empty block groups, with a reserve of one of them.
func newResizable(t testing.TB, n int) *Allocator {
	t.Helper()
	groups := make([]BlockGroup, n)
	for i := range groups {
		groups[i] = BlockGroup{Slot: uint32(i), Zone: i + 2, Capacity: resizeZone, Generation: 1, Class: ClassData}
	}
	a, err := New(Options{BlockGroups: groups, Reserve: resizeZone - HeaderSize})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// whole holds the space identity.
func whole(t interface{ Fatalf(string, ...any) }, a *Allocator) Usage {
	u := a.Usage()
	if u.Used+u.Free+u.Unusable+u.Reserved+u.Quarantined != u.Total {
		t.Fatalf("the account does not add up: %+v", u)
	}
	return u
}

// fill opens a block group and makes all of it live.
func fill(t testing.TB, a *Allocator) uint32 {
	t.Helper()
	const n = resizeZone - HeaderSize
	if err := a.Reserve(n); err != nil {
		t.Fatal(err)
	}
	bg, ok := a.BeginOpen(ClassData)
	if !ok {
		t.Fatal("nothing to open")
	}
	a.FinishOpen(bg.Slot, true)
	for left := int64(n); left > 0; {
		g, outcome := a.Allocate(ClassData, left)
		if outcome != Granted {
			t.Fatalf("%v", outcome)
		}
		a.Complete(g)
		a.Publish(g.Slot, g.Length)
		left -= g.Length
	}
	return bg.Slot
}

func TestResizeEmpty(t *testing.T) {
	a := newResizable(t, 4)
	total := whole(t, a).Total
	if !a.Resize(2, 0) {
		t.Fatal("an empty one cannot be given up")
	}
	u := whole(t, a)
	if u.Total != total-(resizeZone-HeaderSize) || u.Quarantined != 0 {
		t.Errorf("%+v", u)
	}
	if g, _ := a.BlockGroup(2); g.State != Quarantined || g.Capacity != 0 {
		t.Errorf("%+v", g)
	}
	for range 2 { // it is not handed out
		if slot := fill(t, a); slot == 2 {
			t.Error("a slot without a zone was opened")
		}
	}
	if !a.Resize(2, resizeZone/2) {
		t.Fatal("it cannot come back")
	}
	if u := whole(t, a); u.Total != total-resizeZone/2 {
		t.Errorf("%+v", u)
	}
	if g, _ := a.BlockGroup(2); g.State != Empty || g.Capacity != resizeZone/2 || g.AllocOffset != 0 {
		t.Errorf("%+v", g)
	}
}

// TestResizeKeepsPromises: what was promised, and the reserve, stay.
func TestResizeKeepsPromises(t *testing.T) {
	a := newResizable(t, 3)
	if err := a.Reserve(2 * (resizeZone - HeaderSize)); err != nil {
		t.Fatal(err)
	}
	if a.Resize(0, 0) {
		t.Error("given up, although it was promised")
	}
	a.Unreserve(resizeZone - HeaderSize)
	if !a.Resize(0, 0) {
		t.Error("not given up, although it can be done without")
	}
	if a.Resize(1, 0) {
		t.Error("given up, and the rest is less than promise and reserve")
	}
	a.Unreserve(resizeZone - HeaderSize)
	if a.Resize(1, 0) {
		t.Error("nothing is left but the reserve")
	}
	whole(t, a)
}

// TestResizeInUse: only what is empty, or being reset, can change.
func TestResizeInUse(t *testing.T) {
	a := newResizable(t, 4)
	slot := fill(t, a)
	if a.Resize(slot, 0) || a.Resize(slot, resizeZone/2) || a.Resize(99, 0) {
		t.Error("one with live data changed, or one that there is not")
	}
	if !a.Keep(slot) {
		t.Error("it cannot be kept")
	}
	a.Free(slot, resizeZone-HeaderSize)
	if _, ok := a.BeginReset(); ok {
		t.Error("reset while it is kept")
	}
	a.Unpin(slot)
	bg, ok := a.BeginReset()
	if !ok || bg.Slot != slot {
		t.Fatalf("%+v, %v", bg, ok)
	}
	if !a.Resize(slot, 0) {
		t.Error("one that is being reset cannot be given up")
	}
	a.FinishReset(slot, true)
	if g, _ := a.BlockGroup(slot); g.State != Quarantined || g.Capacity != 0 || g.Generation != 2 {
		t.Errorf("%+v", g)
	}
	if a.Keep(slot) {
		t.Error("kept, although nothing lives there")
	}
	whole(t, a)
}

func TestGrow(t *testing.T) {
	a := newResizable(t, 3)
	total := whole(t, a).Total
	for i := range 200 { // beyond a word of the sets
		slot := a.Grow(100+i, resizeZone)
		if slot != uint32(3+i) {
			t.Fatalf("slot %d", slot)
		}
		if g, ok := a.BlockGroup(slot); !ok || g.State != Empty || g.Generation != 1 || g.Capacity != resizeZone {
			t.Errorf("%+v", g)
		}
		if i%2 == 0 {
			a.ReleaseEmpty(slot)
		}
	}
	if u := whole(t, a); u.Total != total+200*(resizeZone-HeaderSize) {
		t.Errorf("%+v", u)
	}
	seen := map[uint32]bool{}
	for range 3 + 100 - 1 {
		seen[fill(t, a)] = true
	}
	for slot := range seen {
		if slot >= 3 && (slot-3)%2 == 1 {
			t.Errorf("slot %d is held, and was opened", slot)
		}
	}
	whole(t, a)
}

// TestResizeAgainstModel changes block groups in any order, and adds up what there must be.
func TestResizeAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		groups := []BlockGroup{{Zone: 2, Capacity: resizeZone, Generation: 1, Class: ClassData}, {Slot: 1, Zone: 3, Capacity: resizeZone, Generation: 1, Class: ClassData}}
		a, err := New(Options{BlockGroups: groups, Reserve: resizeZone - HeaderSize})
		if err != nil {
			t.Fatal(err)
		}
		sizes := []int64{resizeZone, resizeZone}
		usable := func() (sum int64) {
			for _, n := range sizes {
				sum += max(0, n-HeaderSize)
			}
			return sum
		}
		promised := int64(0)
		t.Repeat(map[string]func(*rapid.T){
			"grow": func(t *rapid.T) {
				n := rapid.Int64Range(2, 16).Draw(t, "blocks") * extent.BlockSize
				a.ReleaseEmpty(a.Grow(9, n))
				sizes = append(sizes, n)
			},
			"resize": func(t *rapid.T) {
				i := rapid.IntRange(0, len(sizes)-1).Draw(t, "slot")
				n := rapid.SampledFrom([]int64{0, 2, 5, 16}).Draw(t, "blocks") * extent.BlockSize
				loss := max(0, sizes[i]-HeaderSize) - max(0, n-HeaderSize)
				can := loss <= 0 || usable()-loss >= resizeZone-HeaderSize+promised && usable()-loss > resizeZone-HeaderSize
				if got := a.Resize(uint32(i), n); got != can {
					t.Fatalf("resize of slot %d from %d to %d: %v", i, sizes[i], n, got)
				}
				if can {
					sizes[i] = n
				}
			},
			"reserve": func(t *rapid.T) {
				n := rapid.Int64Range(0, 20).Draw(t, "blocks") * extent.BlockSize
				if a.Reserve(n) == nil {
					promised += n
				}
			},
			"": func(t *rapid.T) {
				u := whole(t, a)
				if u.Total != usable()-(resizeZone-HeaderSize) || u.Reserved != promised {
					t.Fatalf("%+v, want %d of %v", u, promised, sizes)
				}
			},
		})
	})
}
