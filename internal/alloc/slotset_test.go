package alloc

import (
	"testing"

	"pgregory.net/rapid"
)

func TestSlotSetSizes(t *testing.T) {
	for _, n := range []int{0, 1, 63, 64, 65, 4096, 4097, 75000, 1<<18 + 1, 1 << 19} {
		s := newSlotSet(n)
		if _, ok := s.lowest(); ok {
			t.Fatalf("%d: the empty set has a lowest", n)
		}
		if _, ok := s.highest(); ok {
			t.Fatalf("%d: the empty set has a highest", n)
		}
		for _, slot := range []int{n - 1, n / 2, 0} {
			if slot < 0 || slot >= n {
				continue
			}
			s.set(uint32(slot), true)
			s.set(uint32(slot), true)
			if low, ok := s.lowest(); !ok || int(low) != slot {
				t.Fatalf("%d: lowest %d %v, want %d", n, low, ok, slot)
			}
			if high, ok := s.highest(); !ok || int(high) != n-1 {
				t.Fatalf("%d: highest %d %v", n, high, ok)
			}
		}
	}
}

func TestSlotSetAgainstMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.SampledFrom([]int{1, 64, 130, 5000, 300000}).Draw(t, "size")
		s := newSlotSet(n)
		want := map[uint32]bool{}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			// Few distinct slots, so that members leave again.
			slot := uint32(rapid.IntRange(0, min(n-1, 7)).Draw(t, "slot")) * uint32(max(1, (n-1)/7))
			in := rapid.Bool().Draw(t, "in")
			s.set(slot, in)
			delete(want, slot)
			if in {
				want[slot] = true
			}
			low, high := uint32(n), uint32(0)
			for m := range want {
				low, high = min(low, m), max(high, m)
			}
			gotLow, ok := s.lowest()
			gotHigh, ok2 := s.highest()
			if s.count != len(want) || ok != (len(want) > 0) || ok2 != ok || ok && (gotLow != low || gotHigh != high) {
				t.Fatalf("count %d lowest %d highest %d, want %v", s.count, gotLow, gotHigh, want)
			}
			if s.has(slot) != in {
				t.Fatalf("has(%d) is %v", slot, !in)
			}
		}
	})
}
