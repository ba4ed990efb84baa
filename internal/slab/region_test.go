package slab

import (
	"math/rand/v2"
	"testing"
)

// regions returns what the arena and the buffers have mapped, with the count of slabs in use.
func regions(a *Arena, held []*Buf) map[*region]int {
	used := map[*region]int{}
	for _, s := range a.free {
		used[s.in] += 0
	}
	seen := map[*slab]bool{}
	for _, b := range held {
		if !seen[b.slab] {
			seen[b.slab] = true
			used[b.slab.in]++
		}
	}
	return used
}

// Whatever is taken and given back in whatever order, the books of regions are right, nothing is
// mapped beyond the most ever in use and one slab, and in the end no more than is to be kept.
func TestRegions(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	a := New(64 * MaxAlloc)
	var held []*Buf
	check := func() {
		t.Helper()
		mapped := regions(a, held)
		for r, used := range mapped {
			if r.used != used {
				t.Fatalf("a region counts %d slabs in use and has %d", r.used, used)
			}
		}
		if n := int64(len(mapped)) * regionSize; n > a.Peak()+MaxAlloc {
			t.Fatalf("%d bytes are mapped, at most %d were in use", n, a.Peak())
		}
		for i, s := range a.free {
			if s.index != i {
				t.Fatalf("free slab %d thinks that it is at %d", i, s.index)
			}
		}
	}
	for range 2000 {
		if b, ok := a.Alloc(MaxAlloc); ok && rng.IntN(2) == 0 {
			b.Bytes()[rng.IntN(MaxAlloc)] = 1 // is there memory?
			held = append(held, b)
		} else if ok {
			b.Free()
		}
		if n := len(held); n > 0 && rng.IntN(2) == 0 {
			i := rng.IntN(n)
			held[i].Free()
			held[i], held = held[n-1], held[:n-1]
		}
		check()
	}
	for _, b := range held {
		b.Free()
	}
	held = nil
	check()
	if got := int64(len(a.free)) * MaxAlloc; got > a.keep {
		t.Errorf("%d bytes are kept, want at most %d", got, a.keep)
	}
	a.Close()
	if len(a.free) != 0 {
		t.Error("something is left after Close")
	}
}

// An arena of one slab must not map memory anew for every buffer.
func TestTheSmallestArenaKeepsItsRegion(t *testing.T) {
	a := New(1)
	defer a.Close()
	b := mustAlloc(t, a, Page)
	in := b.slab.in
	b.Free()
	b = mustAlloc(t, a, Page)
	defer b.Free()
	if b.slab.in != in {
		t.Error("mapped anew")
	}
}
