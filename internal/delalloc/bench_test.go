package delalloc

import (
	"math/rand"
	"testing"
	"time"

	"github.com/shingle-store/shingle/internal/csum"
	"github.com/shingle-store/shingle/internal/slab"
)

// BenchmarkS4NoDelalloc writes 4 KiB at a time into clusters of 1 MiB, as the published system
// did in its nodelalloc mode (S4): copy, checksum, map the block. Cured, the look-up of
// delayed data returns at once. The baseline asks for each of the 256 blocks of the cluster
// whether it is delayed, in an index that is on and, as in that mode, empty. Both run on the
// same work in one run; "ratio" is the baseline's time over the cured one's, "scans/write" are
// the look-ups that searched.
func BenchmarkS4NoDelalloc(b *testing.B) {
	const cluster, perCluster = 1 << 20, 256
	off, on := NewMode(0), NewMode(0)
	if err := off.Disable(); err != nil {
		b.Fatal(err)
	}
	cured, uncured := NewIndex(off), NewIndex(on)
	payload := make([]byte, block)
	rand.New(rand.NewSource(1)).Read(payload)
	disk := make([]byte, cluster)
	mapped := make([]uint32, perCluster)
	run := func(x *Index, lookUp func(x *Index, start int64) bool, writes int) time.Duration {
		begin := time.Now()
		for i := range writes {
			at := int64(i) * block
			if lookUp(x, at/cluster*cluster) {
				b.Fatal("found delayed data")
			}
			copy(disk[at%cluster:], payload)
			mapped[i%perCluster] = csum.Sum(payload)
		}
		return time.Since(begin)
	}
	once := func(x *Index, start int64) bool {
		s, _, ok := x.Next(start)
		return ok && s < start+cluster
	}
	scan := func(x *Index, start int64) bool {
		for i := range int64(perCluster) {
			if s, _, ok := x.Next(start + i*block); ok && s < start+(i+1)*block {
				return true
			}
		}
		return false
	}
	var fast, slow time.Duration
	writes := 0
	for b.Loop() {
		const batch = 4 * perCluster
		fast += run(cured, once, batch)
		slow += run(uncured, scan, batch)
		writes += batch
	}
	if n := off.Counters.Scans.Load(); n != 0 {
		b.Fatalf("%d scans in nodelalloc", n)
	}
	b.ReportMetric(float64(slow)/float64(fast), "ratio")
	b.ReportMetric(float64(off.Counters.Scans.Load())/float64(writes), "scans/write")
	b.ReportMetric(float64(on.Counters.Scans.Load())/float64(writes), "baseline-scans/write")
	b.ReportMetric(float64(writes)/fast.Seconds(), "writes/s")
	b.ReportMetric(float64(writes)/slow.Seconds(), "baseline-writes/s")
}

// BenchmarkInsert is the cost of a 4 KiB write into an index that already holds many.
func BenchmarkInsert(b *testing.B) {
	const held = 1 << 14
	for _, c := range []struct {
		name string
		off  func(i int64) int64
	}{
		{"append", func(i int64) int64 { return i * block }},
		{"scattered", func(i int64) int64 { return i * 0x9e37 % (1 << 20) * 2 * block }},
		{"overwrite", func(i int64) int64 { return i % 64 * block }},
	} {
		b.Run(c.name, func(b *testing.B) {
			a := slab.New(2 * held * block)
			defer a.Close()
			x := NewIndex(NewMode(0))
			sums := make([]uint32, 1)
			i := int64(0)
			insert := func() {
				buf, _ := a.Alloc(block)
				x.Insert(Segment{Off: c.off(i), Buf: buf, Sums: sums, Seq: uint64(i + 1)})
				i++
			}
			for range held {
				insert()
			}
			b.ReportAllocs()
			for b.Loop() {
				insert()
				if i%held == 0 {
					b.StopTimer()
					x.Drop(0, 1<<60)
					b.StartTimer()
				}
			}
		})
	}
}

// BenchmarkTake is the cost of taking a full range of 1 MiB and of 4 KiB segments.
func BenchmarkTake(b *testing.B) {
	for _, c := range []struct {
		name   string
		blocks int64
	}{{"1MiB", 256}, {"4KiB", 1}} {
		b.Run(c.name, func(b *testing.B) {
			mode := NewMode(0)
			x := NewIndex(mode)
			for off := int64(0); off < mode.RangeSize(); off += c.blocks * block {
				x.Insert(bare(off, c.blocks, 1))
			}
			b.ResetTimer()
			for b.Loop() {
				r, _ := x.Take(Selection{CompleteOnly: true})
				b.StopTimer()
				for _, s := range r.Segments {
					s.Buf = s.Buf.Slice(0, s.Len())
					x.Insert(s)
				}
				r.Release()
				b.StartTimer()
			}
		})
	}
}
