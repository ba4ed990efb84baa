package sim

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shingle-store/shingle/internal/extent"
)

// TestSameHistory does one history under many configurations, each with an order of its own, and wants
// the same to be read: compression, delayed allocation, geometry and dialect, workers, writeback
// triggers. Each run is held against the model besides.
func TestSameHistory(t *testing.T) {
	t.Parallel()
	histories, each := 2, 120
	if testing.Short() {
		histories, each = 1, 40
	}
	base := *simSeed
	if base == 0 {
		base = uint64(time.Now().UnixNano())
	}
	cov := NewCoverage()
	runs := 0
	for h := range uint64(histories) {
		requests := base + h*1000
		var want uint32
		first := ""
		for i, g := range geometries {
			g.Zones *= 6 // nothing is to be refused
			for _, codec := range []extent.Codec{extent.CodecNone, extent.CodecZstd} {
				for _, direct := range []bool{false, true} {
					seed := requests + uint64(runs)
					cfg := ConfigFor(seed)
					cfg.Geometry, cfg.Compression, cfg.NoDelalloc = g, codec, direct
					cfg.Clients, cfg.MetadataLimit = 3, 64<<20
					if g.NumSequential() == 0 || g.MaxOpen == 1 { // it takes no second copy, or not on one device
						cfg.Devices, cfg.Copies = 0, 0
					}
					name := fmt.Sprintf("geometry %d, %v, nodelalloc %t, %d workers, age %v", i, codec, direct, cfg.Workers, cfg.WritebackAge)
					var res Result
					dir := t.TempDir()
					synctest.Test(t, func(*testing.T) { res = Same(cfg, requests, each, Fresh(seed), dir, cov) })
					runs++
					if res.Err != nil {
						for _, line := range res.History[max(0, len(res.History)-40):] {
							t.Log(line)
						}
						t.Fatalf("history %d, %s, order %d: %v", requests, name, seed, res.Err)
					}
					if first == "" {
						first, want = name, res.Read
					}
					if res.Read != want {
						t.Fatalf("history %d reads otherwise with %s than with %s (order %d)", requests, name, first, seed)
					}
				}
			}
		}
	}
	if cov.Count("operations read") == 0 || cov.Count("lives closed in order") == 0 {
		t.Fatalf("nothing was read, or never restarted: %s", cov)
	}
	t.Logf("%d histories from %d, %d runs: %d operations, %d restarts", histories, base, runs, cov.Sum("operations "), cov.Count("lives closed in order"))
}
