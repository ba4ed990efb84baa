package engine

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/zone"
)

var walkSeed = flag.Uint64("walk.seed", 0, "seed of the walks; 0: a new one, printed")

func seedOf(t testing.TB) uint64 {
	seed := *walkSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d (repeat with -walk.seed=%d)", seed, seed)
	return seed
}

// walkGeometries are small, so that zones fill, run out and are reset all the time.
var walkGeometries = []zone.Geometry{
	{Dialect: zone.ZNS, ZoneSize: 512 << 10, ZoneCapacity: 384 << 10, Zones: 24, MaxOpen: 3, MaxActive: 4},
	{Dialect: zone.SMR, ZoneSize: 256 << 10, ZoneCapacity: 256 << 10, Zones: 40, MaxOpen: 4, Conventional: 3},
	{Dialect: zone.ZNS, ZoneSize: 1 << 20, ZoneCapacity: 1<<20 - 4096*3, Zones: 14, AppendLimit: 124 << 10, LastZoneSize: 300 << 10},
	{Dialect: zone.ZNS, ZoneSize: 128 << 10, ZoneCapacity: 100 << 10, Zones: 80, MaxOpen: 1, MaxActive: 1, AppendLimit: 20 << 10},
	{Dialect: zone.SMR, ZoneSize: 256 << 10, ZoneCapacity: 256 << 10, Zones: 34, Conventional: 34},
	{Dialect: zone.SMR, ZoneSize: 128 << 10, ZoneCapacity: 128 << 10, Zones: 64, MaxOpen: 2, Conventional: 40, LastZoneSize: 40 << 10},
}

func walkOptions(r *rand.Rand) Options {
	codec := extent.CodecNone
	if r.IntN(2) == 0 {
		codec = extent.CodecZstd
	}
	return Options{
		Compression: &codec, NoDelalloc: r.IntN(2) == 0, DirtyLimit: minDirtyLimit, MaxWait: 3 * time.Second,
		WritebackAge: time.Duration(1+r.IntN(50)) * time.Millisecond, Workers: 1 + r.IntN(2),
	}
}

// TestRandomWalk does 100,000 operations over compression x delalloc mode x dialect x geometry
// and agrees with the model after each (a twentieth with -short).
func TestRandomWalk(t *testing.T) {
	alone(t)
	t.Parallel()
	total := 100_000
	if testing.Short() {
		total = 4_000
	}
	seed := seedOf(t)
	r := rand.New(rand.NewPCG(seed, 0))
	const each = 1000
	for i := range total / each {
		g := walkGeometries[i%len(walkGeometries)]
		o := walkOptions(r)
		s := seed + uint64(i)
		t.Run(fmt.Sprintf("%d-%s-nodelalloc=%t", i, o.Compression, o.NoDelalloc), func(t *testing.T) {
			b := newBench(t, g, o)
			w := newWorld(t, s)
			w.e = b.open()
			for range each {
				w.step()
				if w.rng.IntN(150) == 0 {
					w.compareAll()
					checkTotals(t, w.e)
					w.e = b.reopen()
					for _, f := range w.files {
						f.durable()
					}
					w.compareAll()
				}
			}
			syncAll(t, w.e)
			w.compareAll()
			checkTotals(t, w.e)
			var want Usage
			for _, f := range w.files {
				want.Files++
				want.Logical += int64(len(f.cur))
			}
			if got := totals(t, w.e); got.Files != want.Files || got.Logical != want.Logical {
				t.Fatalf("seed %d: %d files with %d bytes, the model has %d with %d", s, got.Files, got.Logical, want.Files, want.Logical)
			}
			if u := w.e.Usage(); u.Reserved != 0 {
				t.Fatalf("seed %d: %d bytes stay reserved after a Sync", s, u.Reserved)
			}
			if w.e.arena.InUse() != 0 {
				t.Fatalf("seed %d: %d bytes of memory stay in use after a Sync", s, w.e.arena.InUse())
			}
			if err := w.e.Close(context.Background()); err != nil {
				t.Fatal(err)
			}
		})
	}
}
