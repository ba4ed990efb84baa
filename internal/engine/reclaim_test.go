package engine

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/zone"
)

// greedyAmplification is the write amplification of greedy victim choice under writes spread evenly
// over live bytes in capacity bytes, for zones of many blocks: with a = capacity/live, a / (a + W(-a
// e^-a)), W being Lambert's function (P. Desnoyers, "Analytic Models of SSD Write Performance", ACM
// Trans. Storage 10(2), 2014, section 4; the same as Bux and Iliadis, Performance Evaluation 67(11),
// 2010, in that limit).
func greedyAmplification(live, capacity int64) float64 {
	a := float64(capacity) / float64(live)
	// w e^w = -a e^-a with w in (-1, 0).
	target, lo, hi := -a*math.Exp(-a), -1.0, 0.0
	for range 200 {
		if w := (lo + hi) / 2; w*math.Exp(w) < target {
			lo = w
		} else {
			hi = w
		}
	}
	return a / (a + lo)
}

func zns(zones int, size int64) zone.Geometry {
	return zone.Geometry{Dialect: zone.ZNS, ZoneSize: size, ZoneCapacity: size, Zones: zones, MaxOpen: 6, MaxActive: 8}
}

// TestRandomOverwritesAtEighty overwrites 4 KiB at random places of a store of which 80 % of the raw
// bytes are live, and is never refused; what that writes to the device is near what greedy choice
// needs. The device has 32 MiB, and 256 MiB with -reclaim.full.
func TestRandomOverwritesAtEighty(t *testing.T) {
	alone(t)
	t.Parallel()
	rounds, size := 2.0, int64(32<<20)
	switch {
	case *reclaimFull:
		rounds, size = 20, 256<<20
	case testing.Short():
		rounds = 1
	}
	for _, g := range []zone.Geometry{zns(256, size/256), zns(64, size/64)} {
		t.Run(fmt.Sprintf("%d zones", g.Zones), func(t *testing.T) {
			codec := extent.CodecNone
			b := newBench(t, g, Options{Compression: &codec, DirtyLimit: minDirtyLimit, MaxWait: 10 * time.Second})
			e := b.open()
			raw := int64(g.Zones) * g.ZoneCapacity
			size := extent.RoundDown(raw * 80 / 100)
			var before map[string]uint64
			overwriteAtRandom(t, e, "f", size, rounds, func(done float64) {
				if before == nil && done >= rounds/2 { // not while the pattern of the fill is still there
					before = e.Counters()
				}
			})
			checkIdentity(t, e)
			u, c := e.Usage(), e.Counters()
			amplification := float64(c["device_bytes_written"]-before["device_bytes_written"]) / float64(c["client_bytes_written"]-before["client_bytes_written"])
			formula := greedyAmplification(size, u.Total)
			t.Logf("live %d of %d usable (%d raw), %.1f times over: write amplification %.2f, greedy formula %.2f (of raw %.2f), ratio %.2f; %v",
				size, u.Total, raw, rounds, amplification, formula, greedyAmplification(size, raw), amplification/formula, c)
			if amplification > 1.3*formula {
				t.Errorf("write amplification %.2f is more than 1.3 times %.2f", amplification, formula)
			}
			if c["allocator_mismatches"] != 0 {
				t.Errorf("the books were contradicted %d times", c["allocator_mismatches"])
			}
		})
	}
}

// overwriteAtRandom fills a file of the size and then writes blocks of it at random, so many times its size,
// with a Sync every MiB.
func overwriteAtRandom(t testing.TB, e *Engine, name string, size int64, times float64, synced func(done float64)) {
	t.Helper()
	ctx := context.Background()
	w, err := e.OpenWriter(ctx, WriterOptions{Name: name})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	data := noise(1, 1<<20)
	for off := int64(0); off < size; off += int64(len(data)) {
		if err := w.Write(ctx, &off, [][]byte{data[:min(int64(len(data)), size-off)]}, nil); err != nil {
			t.Fatalf("fill at %d: %v", off, err)
		}
		if off%(4<<20) == 0 {
			syncAll(t, e)
		}
	}
	syncAll(t, e)
	r := rand.New(rand.NewPCG(1, 2))
	blocks := size / extent.BlockSize
	for i := range int64(float64(blocks) * times) {
		off := r.Int64N(blocks) * extent.BlockSize
		at := r.Int64N(200) * extent.BlockSize
		if err := w.Write(ctx, &off, [][]byte{data[at : at+extent.BlockSize]}, nil); err != nil {
			t.Fatalf("overwrite %d: %v", i, err)
		}
		if i%256 == 255 {
			syncAll(t, e)
			synced(float64(i) / float64(blocks))
		}
	}
	syncAll(t, e)
}
