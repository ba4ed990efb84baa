package engine

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/trim"
	"github.com/shingle-store/shingle/internal/zone"
)

var trimLoop = flag.Duration("trim.loop", 0, "how long TestTrimInALoop goes on for each device; then it also fails if a call took more than a second")

// TestTrimInALoop trims over and over while 8 writers fill a store to the brim, delete, and verify
// what they read: no bad byte, no lost one, and nobody waits long.
func TestTrimInALoop(t *testing.T) {
	length := 1500 * time.Millisecond
	if testing.Short() {
		length = 400 * time.Millisecond
	}
	if *trimLoop > 0 {
		length = *trimLoop
	}
	for name, g := range map[string]zone.Geometry{
		"zns":   {Dialect: zone.ZNS, ZoneSize: 1 << 20, ZoneCapacity: 768 << 10, Zones: 48, MaxOpen: 6, MaxActive: 7},
		"disk":  {Dialect: zone.SMR, ZoneSize: 1 << 20, ZoneCapacity: 1 << 20, Zones: 32, Conventional: 32},
		"mixed": {Dialect: zone.SMR, ZoneSize: 1 << 20, ZoneCapacity: 1 << 20, Zones: 40, Conventional: 8, MaxOpen: 6},
	} {
		t.Run(name, func(t *testing.T) { trimInALoop(t, g, length) })
	}
}

func trimInALoop(t *testing.T, g zone.Geometry, length time.Duration) {
	b := newFaultBench(t, g, Options{MaxWait: 5 * time.Second})
	e := b.open()
	ctx, cancel := context.WithTimeout(context.Background(), length)
	defer cancel()
	var trims, trimmed, files atomic.Int64
	var slowest atomic.Int64
	timed := func(f func() error) error {
		start := time.Now()
		err := f()
		for d := int64(time.Since(start)); ; {
			was := slowest.Load()
			if d <= was || slowest.CompareAndSwap(was, d) {
				return err
			}
		}
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			tctx, tcancel := context.WithTimeout(ctx, time.Duration(1+trims.Load()%5)*20*time.Millisecond)
			r, err := e.Trim(tctx, TrimRequest{Length: trim.ToEnd}, nil)
			tcancel()
			if err != nil && tctx.Err() == nil || r.Failed > 0 {
				t.Errorf("trim: %+v, %v", r, err)
			}
			trims.Add(1)
			trimmed.Add(int64(r.Trimmed))
		}
	})
	for w := range 8 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(w), 1))
			have := map[string]uint64{}
			verify := func(name string) {
				got, err := tryRead(e, name, 0, nil)
				if err != nil {
					t.Errorf("read %s: %v", name, err)
				} else if seed := have[name]; !bytes.Equal(got, noise(seed, len(got))) || len(got) != size(seed) {
					t.Errorf("%s of %d bytes is not what was written", name, len(got))
				}
			}
			for i := uint64(0); ctx.Err() == nil; i++ {
				name := fmt.Sprintf("%d/%d", w, rng.IntN(6))
				seed := uint64(w)<<32 | i
				switch _, there := have[name]; {
				case there && rng.IntN(2) == 0:
					verify(name)
				case there && rng.IntN(2) == 0:
					if err := timed(func() error {
						_, err := e.Delete(context.Background(), DeleteRequest{Name: name})
						return err
					}); err != nil {
						t.Errorf("delete %s: %v", name, err)
					}
					delete(have, name)
				default:
					err := timed(func() error { _, err := tryPut(e, name, noise(seed, size(seed))); return err })
					if err == nil {
						have[name] = seed
						files.Add(1)
					} else if !errdefs.Is(err, errdefs.NoSpace) {
						t.Errorf("put %s: %v", name, err)
					}
				}
			}
			for name := range have {
				verify(name)
			}
		})
	}
	wg.Wait()
	wantNothingHeld(t, e)
	t.Logf("%d trims gave %d MiB back, %d files written, the slowest call took %v", trims.Load(), trimmed.Load()>>20, files.Load(), time.Duration(slowest.Load()))
	if *trimLoop > 0 && slowest.Load() > int64(time.Second) {
		t.Errorf("a call took %v", time.Duration(slowest.Load()))
	}
	// Everything that is free, and nothing else, is what a last trim finds.
	e.settleFrees(context.Background())
	if r := trimAll(t, e); r.Busy+r.Failed+r.Unsupported != 0 || g.NumSequential() == 0 && r.InUse != uint64(e.Usage().Used) {
		t.Errorf("%+v, used %+v", r, e.Usage())
	}
	if trims.Load() == 0 || trimmed.Load() == 0 {
		t.Error("nothing was trimmed")
	}
	if n := e.al.Stats().Mismatches; n != 0 {
		t.Errorf("%d calls contradicted the books of space", n)
	}
	b.closed()
	b.checkClean()
	b.checkLimits()
}

// size is that of the content with the seed, in bytes.
func size(seed uint64) int { return int(seed*7919%11) * 90_001 }

// TestTrimCrashes cuts the power at every device operation of a trim and right after it. What was
// durable is whole, and no record says that a zone was trimmed that is not empty.
func TestTrimCrashes(t *testing.T) {
	alone(t)
	t.Parallel()
	for name, g := range map[string]zone.Geometry{
		"zns":   trimZNS,
		"disk":  {Dialect: zone.SMR, ZoneSize: 1 << 20, ZoneCapacity: 1 << 20, Zones: 12, Conventional: 12},
		"mixed": {Dialect: zone.SMR, ZoneSize: 1 << 20, ZoneCapacity: 1 << 20, Zones: 16, Conventional: 4, MaxOpen: 4},
	} {
		t.Run(name, func(t *testing.T) {
			cuts := 0
			for at := int64(1); trimCrash(t, g, at) && (!testing.Short() || at < 6); at++ {
				cuts++
			}
			t.Logf("%d cuts", cuts)
		})
	}
}

// trimCrash cuts the power at a device operation of a trim, and reports whether it came to that.
func trimCrash(t *testing.T, g zone.Geometry, at int64) bool {
	want := map[string][]byte{"a": noise(1, 300_000), "b": noise(2, 1<<20), "c": noise(3, 5000)}
	b := newFaultBench(t, g, Options{})
	e := b.open()
	put(t, e, "dead", noise(4, 1<<20))
	for name, data := range want {
		put(t, e, name, data)
	}
	put(t, e, "more", noise(5, 700_000))
	deleteFile(t, e, "dead")
	deleteFile(t, e, "more")
	e.settleFrees(context.Background())
	var ops atomic.Int64
	ops.Store(at)
	b.mem.SetHook(func(op zone.Op) error {
		if op.After == (at%2 == 0) && ops.Add(-1) == 0 {
			b.mem.CutPower()
			return errors.New("the power was cut")
		}
		return nil
	})
	r, err := e.Trim(context.Background(), TrimRequest{Length: trim.ToEnd}, nil)
	wantSum(t, r)
	reached := ops.Load() <= 0
	b.mem.SetHook(nil)
	e = b.crash(uint64(at))
	for name, data := range want {
		sameFile(t, e, name, data)
	}
	for _, slot := range onRecord(t, e) {
		zs, rerr := e.dev.Report(int(slot), 1)
		if rerr != nil || zs[0].Condition != zone.Empty {
			t.Errorf("cut %d: block group %d is on record as trimmed, its zone is %+v", at, slot, zs)
		}
	}
	first := trimAll(t, e)
	if second := trimAll(t, e); second.Trimmed != 0 || second.AlreadyTrimmed != first.Trimmed+first.AlreadyTrimmed {
		t.Errorf("cut %d: trimmed again after %+v: %+v", at, first, second)
	}
	put(t, e, "again", noise(6, 1<<20))
	sameFile(t, e, "again", noise(6, 1<<20))
	b.closed()
	b.checkClean()
	if !reached && (err != nil || r.State != trim.Complete) {
		t.Errorf("with no cut: %+v, %v", r, err)
	}
	return reached
}
