package engine

import (
	"context"
	"testing"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/zone"
)

// BenchmarkS0CollectLarge streams compressible data and syncs it, on a device that takes 672 KiB
// an append (seeds S0). Cured, a range is collected up to 128 MiB and capped where its extents are
// allocated. The baseline collects up to the append limit, as the published system did, and places
// one such range after the other: each makes two chunks, the second of 160 KiB, so no more than
// two compression workers ever have something to do, and both wait for the larger chunk.
//
// Both do the same work in turn in one run; "ratio" is the baseline's time over the cured one's.
// It grows with the number of processors; counts do not depend on the machine. The device is
// memory and the metadata is not synced, so what more commits cost on a disk is not in the ratio.
func BenchmarkS0CollectLarge(b *testing.B) {
	const size, limit = 256 << 20, 672 << 10
	payload := text(1, 1<<20)
	codec := extent.CodecZstd
	run := func(collect int64) (took time.Duration, counters map[string]uint64) {
		g := zone.Geometry{Dialect: zone.ZNS, ZoneSize: 64 << 20, ZoneCapacity: 64 << 20, Zones: 12, MaxOpen: 8, MaxActive: 8, AppendLimit: limit}
		s := newBench(b, g, Options{Compression: &codec, DirtyLimit: 512 << 20, collect: collect})
		e := s.open()
		defer e.Close(context.Background())
		if collect > 0 {
			e.placeSem = semaphore.NewWeighted(collect)
		}
		w, err := e.OpenWriter(b.Context(), WriterOptions{Name: "stream"})
		if err != nil {
			b.Fatal(err)
		}
		defer w.Close()
		begin := time.Now()
		for range size / len(payload) {
			if err := w.Write(b.Context(), nil, [][]byte{payload}, nil); err != nil {
				b.Fatal(err)
			}
		}
		if err := w.Sync(b.Context()); err != nil {
			b.Fatal(err)
		}
		return time.Since(begin), e.Counters()
	}
	var cured, uncured time.Duration
	var now, before map[string]uint64
	n := 0
	for b.Loop() {
		var took time.Duration
		took, before = run(extent.RoundDown(limit))
		uncured += took
		took, now = run(0)
		cured += took
		n++
	}
	for name, unit := range map[string]string{"delalloc_ranges": "ranges", "chunks": "chunks", "extents": "extents", "commits": "commits"} {
		b.ReportMetric(float64(now[name]*(1<<30)/size), unit+"/GiB")
		b.ReportMetric(float64(before[name]*(1<<30)/size), "baseline-"+unit+"/GiB")
	}
	b.ReportMetric(float64(n*size)/1e6/cured.Seconds(), "MB/s")
	b.ReportMetric(float64(n*size)/1e6/uncured.Seconds(), "baseline-MB/s")
	b.ReportMetric(uncured.Seconds()/cured.Seconds(), "ratio")
	b.ReportMetric(0, "ns/op")
}
