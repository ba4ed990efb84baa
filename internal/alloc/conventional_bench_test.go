package alloc

import (
	"fmt"
	"testing"
)

// BenchmarkConventionalAllocate allocates 32 KiB and gives it back on disks whose zones of 256 MiB are
// all but one full: the cost must not grow with their number, nor with how the last one is cut up.
func BenchmarkConventionalAllocate(b *testing.B) {
	const blocks = 65536
	for _, zones := range []int{100, 75_000} {
		for _, cut := range []bool{false, true} {
			b.Run(fmt.Sprintf("zones=%d/cut=%t", zones, cut), func(b *testing.B) {
				groups := uniform(zones, blocks)
				bitmap := make([]uint64, blocks/64)
				for i := range groups {
					groups[i].Conventional, groups[i].Live = true, groups[i].Capacity
				}
				last := &groups[zones/2]
				last.Live = 0
				if cut { // into single blocks, but for its end
					for i := range bitmap[:len(bitmap)-8] {
						bitmap[i] = 0x5555555555555555
					}
					last.Live = int64(len(bitmap)-8) * 32 * blk
				}
				a := mustNew(b, Options{BlockGroups: groups, Bitmaps: map[uint32][]uint64{last.Slot: bitmap}})
				if err := a.Reserve(8 * blk); err != nil {
					b.Fatal(err)
				}
				b.ReportAllocs()
				for b.Loop() {
					g, out := a.Allocate(ClassData, 8*blk)
					if out != Granted || g.Length != 8*blk {
						b.Fatal(out, g.Length/blk)
					}
					a.Complete(g)
					a.DiscardRun(g.Slot, g.Off, g.Length, true)
				}
				s := a.Stats()
				b.ReportMetric(float64(s.Examined)/float64(s.Allocations), "groups/alloc")
			})
		}
	}
}
