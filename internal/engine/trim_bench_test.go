package engine

import (
	"testing"
	"time"

	"github.com/shingle-store/shingle/internal/trim"
	"github.com/shingle-store/shingle/internal/zone"
)

// BenchmarkTrimManyZones trims a device of 75,000 zones, the number that a drive of 20 TB has: all of
// it the first time, and nothing the second. The device costs nothing.
func BenchmarkTrimManyZones(b *testing.B) {
	for name, g := range map[string]zone.Geometry{
		"zns":  {Dialect: zone.ZNS, ZoneSize: 128 << 10, ZoneCapacity: 128 << 10, Zones: 75_000, MaxOpen: 14, MaxActive: 14},
		"disk": {Dialect: zone.SMR, ZoneSize: 128 << 10, ZoneCapacity: 128 << 10, Zones: 75_000, Conventional: 75_000},
	} {
		b.Run(name, func(b *testing.B) {
			var first, second time.Duration
			for range b.N {
				e := newBench(b, g, Options{}).open()
				for i, total := range []*time.Duration{&first, &second} {
					start := time.Now()
					r, err := e.Trim(b.Context(), TrimRequest{Length: trim.ToEnd}, nil)
					*total += time.Since(start)
					if err != nil || r.State != trim.Complete || r.Done != r.Total || (r.Trimmed > 0) != (i == 0) {
						b.Fatalf("%+v, %v", r, err)
					}
				}
			}
			b.ReportMetric(first.Seconds()/float64(b.N), "first-s")
			b.ReportMetric(second.Seconds()/float64(b.N), "second-s")
		})
	}
}
