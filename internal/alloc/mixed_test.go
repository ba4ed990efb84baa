package alloc

import (
	"testing"

	"pgregory.net/rapid"
)

// settled does all that the owner of the allocator has to do, so that nothing is under way.
func settled(a *Allocator) {
	for _, slot := range a.Closing() {
		a.Retire(slot)
	}
	for {
		b, ok := a.BeginReset()
		if !ok {
			return
		}
		a.FinishReset(b.Slot, true)
	}
}

// TestMixedKeepsPromises: with block groups of both kinds, whatever was promised is granted as long
// as nothing fails, with nothing under way nobody is told to wait, and relocation always has the
// share of the reserve that is kept for it.
func TestMixedKeepsPromises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		groups := uniform(rapid.IntRange(4, 9).Draw(t, "groups"), rapid.Int64Range(2, 9).Draw(t, "capacity"))
		conventional := rapid.IntRange(1, len(groups)-3).Draw(t, "conventional")
		for i := range conventional {
			groups[i].Conventional = true
		}
		a, err := New(Options{BlockGroups: groups, MaxActive: rapid.IntRange(1, 4).Draw(t, "max"), Reserve: DefaultReserve(groups)})
		if err != nil {
			t.Skip("nothing beside the reserve")
		}
		var live []Grant
		get := func(c Class, n int64, small bool) {
			for n > 0 {
				ask := a.Allocate
				if small {
					ask = a.AllocateSmall
				}
				g, out := ask(c, n)
				switch out {
				case Granted:
					a.Complete(g)
					a.Publish(g.Slot, g.Length)
					live = append(live, g)
					n -= g.Length
				case NeedsOpen:
					b, ok := a.BeginOpen(c)
					if !ok {
						t.Fatalf("needs open, and cannot: %+v", a.Usage())
					}
					a.FinishOpen(b.Slot, true)
				default:
					t.Fatalf("%v with nothing under way, %d blocks owed to %v: %+v", out, n/blk, c, a.Usage())
				}
				checkBooks(t, a)
			}
		}
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0, 1:
				n := rapid.Int64Range(0, a.Usage().Free/blk).Draw(t, "blocks") * blk
				if err := a.Reserve(n); err != nil {
					t.Fatal(err)
				}
				get(ClassData, n, rapid.Bool().Draw(t, "small"))
			case 2:
				for range rapid.IntRange(0, len(live)).Draw(t, "deaths") {
					g := live[0]
					live = live[1:]
					a.Free(g.Slot, g.Length)
					if g.Conventional {
						a.Vacate(g.Slot, g.Off, g.Length)
					}
				}
				settled(a)
			case 3:
				kept := min(a.keptLocked(), a.sequentialFreeLocked())
				get(ClassRelocation, rapid.Int64Range(0, max(0, kept/blk)).Draw(t, "moved")*blk, false)
				settled(a)
			}
			checkBooks(t, a)
		}
		if m := a.Stats().Mismatches; m != 0 {
			t.Fatalf("%d mismatches", m)
		}
	})
}
