package alloc

import (
	"fmt"
	"testing"
	"time"
)

// walkAllocate is Allocate as it was before S1, here to measure against only: it looks at
// every block group from the first on until one of the class has room, and when none has, takes
// the smallest tail it saw. Lock and accounts are the same; only the search differs.
func walkAllocate(a *Allocator, c Class, n int64, examined *int) (Grant, Outcome) {
	a.mu.Lock()
	defer a.mu.Unlock()
	n = min(n, a.grantableLocked(c))
	tail := -1
	for i := range a.groups {
		*examined++
		g := &a.groups[i]
		if g.state != Active || g.class != c || g.room() == 0 {
			continue
		}
		if g.room() >= n {
			return a.grantLocked(uint32(i), c, n), Granted
		}
		if tail < 0 || g.room() < a.groups[tail].room() {
			tail = i
		}
	}
	if tail < 0 {
		return Grant{}, NeedsOpen
	}
	return a.grantLocked(uint32(tail), c, n), Granted
}

// nearlyFull returns full block groups, then three active ones and one that is empty.
func nearlyFull(full int) []BlockGroup {
	const capacity = 256 << 20
	groups := make([]BlockGroup, full+6)
	for i := range groups {
		g := &groups[i]
		*g = BlockGroup{Slot: uint32(i), Zone: i + 2, Capacity: capacity, Class: ClassData}
		switch {
		case i < full:
			g.State, g.AllocOffset, g.Live = Full, capacity, capacity-HeaderSize
		case i < full+3:
			g.State, g.AllocOffset = Active, HeaderSize
		}
	}
	return groups
}

// BenchmarkS1ActiveHint runs the same allocations through the allocator and through the walk,
// over more and more full block groups. hit: the hint fits. miss: no active block group fits,
// which the walk learns from the last one; both use a tail up. x-walk is how many times longer
// the walk takes.
func BenchmarkS1ActiveHint(b *testing.B) {
	for _, full := range []int{10, 1000, 75000} {
		for _, path := range []struct {
			name string
			want int64
		}{{"hit", 1 << 20}, {"miss", 512 << 20}} { // no block group holds 512 MiB
			b.Run(fmt.Sprintf("full=%d/%s", full, path.name), func(b *testing.B) {
				a, w := promised(b, full), promised(b, full)
				examined := 0
				rounds := min(b.N, 2000) // over 75,000 block groups b.N times take too long
				start := time.Now()
				for range rounds {
					g, outcome := walkAllocate(w, ClassData, path.want, &examined)
					if outcome != Granted {
						b.Fatal(outcome)
					}
					undo(w, g)
				}
				walked := float64(time.Since(start).Nanoseconds()) / float64(rounds)

				b.ResetTimer()
				for range b.N {
					g, outcome := a.Allocate(ClassData, path.want)
					if outcome != Granted {
						b.Fatal(outcome)
					}
					undo(a, g)
				}
				b.StopTimer()
				s := a.Stats()
				b.ReportMetric(walked/(float64(b.Elapsed().Nanoseconds())/float64(b.N)), "x-walk")
				b.ReportMetric(float64(s.Examined)/float64(b.N), "examined/op")
				b.ReportMetric(float64(examined)/float64(rounds), "walk-examined/op")
				if s.MaxExamined > 5 {
					b.Fatalf("looked at %d block groups", s.MaxExamined)
				}
			})
		}
	}
}

// promised returns an allocator over full block groups with all of its free space reserved.
func promised(t testing.TB, full int) *Allocator {
	a := mustNew(t, Options{BlockGroups: nearlyFull(full), Reserve: 2 * (256<<20 - HeaderSize)})
	if err := a.Reserve(a.Usage().Free); err != nil {
		t.Fatal(err)
	}
	return a
}

// undo takes a grant back as if it had never been, so that every turn does the same work.
func undo(a *Allocator, gr Grant) {
	a.mu.Lock()
	defer a.mu.Unlock()
	g := &a.groups[gr.Slot]
	a.unsettleLocked(g)
	used := g.room() == 0
	g.granted -= gr.Length
	g.inflight -= gr.Length
	g.pending -= gr.Length
	a.settleLocked(gr.Slot, g)
	if used {
		a.enlistLocked(gr.Slot, g)
	}
	a.reserved += gr.Length
}

// BenchmarkNew is opening a 20 TB drive: 75,000 zones of 256 MiB.
func BenchmarkNew(b *testing.B) {
	groups := nearlyFull(75000)
	for b.Loop() {
		if _, err := New(Options{BlockGroups: groups, Reserve: DefaultReserve(groups)}); err != nil {
			b.Fatal(err)
		}
	}
}

// TestCostDoesNotGrow is the benchmark's claim without a clock: the same allocations look at
// as many block groups whether 10 or 75,000 are full.
func TestCostDoesNotGrow(t *testing.T) {
	var first Stats
	for _, full := range []int{10, 1000, 75000} {
		a := promised(t, full)
		for left := a.Usage().Reserved; left > 0; {
			g := grant(t, a, ClassData, (100<<20)/blk)
			a.Complete(g)
			left -= g.Length
		}
		s := a.Stats()
		if full == 10 {
			first = s
		}
		if s != first || s.MaxExamined > 5 {
			t.Errorf("%d full: %+v, with 10 full %+v", full, s, first)
		}
	}
}
