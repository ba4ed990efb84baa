package engine

import (
	"bytes"
	"context"
	"errors"
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

// TestTrimInALoop trims over and over while 8 writers fill a store to the brim, delete, and verify
// what they read: no bad byte, no lost one, and nobody waits long.
func TestTrimInALoop(t *testing.T) {
	length := 2 * time.Second
	if testing.Short() {
		length = 500 * time.Millisecond
	}
	g := zone.Geometry{Dialect: zone.ZNS, ZoneSize: 1 << 20, ZoneCapacity: 768 << 10, Zones: 64, MaxOpen: 6, MaxActive: 7}
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
	want := map[string][]byte{"a": noise(1, 300_000), "b": noise(2, 1<<20), "c": noise(3, 5000)}
	cuts := 0
	for at := int64(1); ; at++ {
		if testing.Short() && at > 6 {
			break
		}
		b := newFaultBench(t, trimZNS, Options{})
		e := b.open()
		for name, data := range want {
			put(t, e, name, data)
		}
		put(t, e, "dead", noise(4, 2<<20))
		deleteFile(t, e, "dead")
		eventually(t, "the deleted file is gone", func() bool { return e.orphans.Load() == 0 })
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
		e = b.crash(uint64(at))
		b.mem.SetHook(nil)
		for name, data := range want {
			sameFile(t, e, name, data)
		}
		for _, slot := range onRecord(t, e) {
			zs, rerr := e.dev.Report(e.zoneOf(slot), 1)
			if rerr != nil || zs[0].Condition != zone.Empty {
				t.Errorf("cut %d: block group %d is on record as trimmed, its zone is %+v", at, slot, zs)
			}
		}
		first := trimAll(t, e)
		if second := trimAll(t, e); second.Trimmed != 0 || second.AlreadyTrimmed != first.Trimmed+first.AlreadyTrimmed {
			t.Errorf("cut %d: trimmed again after %+v: %+v", at, first, second)
		}
		b.closed()
		b.checkClean()
		if !reached {
			if err != nil || r.State != trim.Complete {
				t.Errorf("with no cut: %+v, %v", r, err)
			}
			break
		}
		cuts++
	}
	t.Logf("%d cuts", cuts)
}
