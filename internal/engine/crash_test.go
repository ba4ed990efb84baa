package engine

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
	randv2 "math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shingle-store/shingle/internal/store"
	"github.com/shingle-store/shingle/internal/store/storetest"
	"github.com/shingle-store/shingle/internal/zone"
)

var errCut = errors.New("the power was cut")

// crasher cuts the power of a store at a chosen device operation or commit.
type crasher struct {
	b   *bench
	mem *zone.Mem
	rng *randv2.Rand
	e   atomic.Pointer[Engine] // once it has opened

	down    atomic.Bool
	ops     atomic.Int64 // device operations until the cut; below 0: none
	afterOp bool
	commits atomic.Int64 // commits until the cut; below 0: none
	mu      sync.Mutex
	before  []byte // the metadata file around the commit that was cut
	after   []byte
	images  [3][]byte // memory for images of the file: before, after, as it is left
	counts  *crashCounts
}

// crashCounts are what a run covered.
type crashCounts struct {
	cuts, atOp, atCommit, kills, recoveries, mixtures, resets atomic.Int64
}

func (c *crasher) cut() {
	if c.down.CompareAndSwap(false, true) {
		c.mem.CutPower()
		if e := c.e.Load(); e != nil {
			e.failWrites(errCut) // its process has no power either, and tries nothing again
		}
	}
}

// hook is the device's: it counts operations down to the cut.
func (c *crasher) hook(op zone.Op) error {
	if op.Kind == zone.OpReset && !op.After {
		c.counts.resets.Add(1)
	}
	if op.After != c.afterOp || c.ops.Add(-1) != 0 {
		return nil
	}
	c.cut()
	return errCut
}

// before wraps the beginning of each commit.
func (c *crasher) wrap(next beforeCommit) beforeCommit {
	return func() (store.Change, func(error), error) {
		apply, done, err := next()
		if c.down.Load() {
			return nil, done, errCut // nothing is committed without power
		}
		if c.commits.Add(-1) != 0 {
			return apply, done, err
		}
		image, ierr := storetest.ImageInto(c.images[0], c.b.meta)
		c.images[0] = image
		if ierr != nil {
			return nil, done, ierr
		}
		publish := func(tx *store.Tx) error {
			err := apply(tx)
			// What runs beside the commit gets time to do what must wait for it.
			time.Sleep(2 * time.Millisecond)
			return err
		}
		return publish, func(err error) {
			// The commit went through, but who asks will not be told: the power went before, in
			// the middle of it or right after it.
			c.cut()
			after, ierr := storetest.ImageInto(c.images[1], c.b.meta)
			c.images[1] = after
			if err == nil && ierr == nil {
				c.mu.Lock()
				c.before, c.after = image, after
				c.mu.Unlock()
			}
			done(err)
		}, err
	}
}

// arm chooses the cut of the next run: some operations or commits away, or none.
func (c *crasher) arm(within int64) {
	c.down.Store(false)
	c.before, c.after = nil, nil
	c.ops.Store(-1)
	c.commits.Store(-1)
	c.afterOp = c.rng.IntN(2) == 0
	switch c.rng.IntN(8) {
	case 0: // killed when idle
	case 1, 2, 3:
		c.commits.Store(1 + c.rng.Int64N(max(1, within/6)))
	default:
		c.ops.Store(1 + c.rng.Int64N(within))
	}
}

func (c *crasher) disarm() {
	c.down.Store(false)
	c.ops.Store(-1)
	c.commits.Store(-1)
}

// vanish ends an engine as a crash does: nothing more is committed, only memory is let go.
func (e *Engine) vanish() {
	e.once.Do(func() {
		e.draining.Store(true)
		e.failWrites(errCut)
		close(e.stop)
		e.wg.Wait()
		close(e.halt)
		e.ranges.Wait()
		e.group.Close()
		e.redone.Wait()
		e.pool.Close()
		e.st.Close()
		e.dropMemory()
		if n := e.arena.InUse(); n != 0 {
			panic(fmt.Sprintf("%d bytes of memory have leaked", n))
		}
		e.arena.Close()
	})
}

// crash ends the run: what of the metadata and of the device survives is drawn, and the device
// comes back.
func (c *crasher) crash(e *Engine) {
	kill := !c.down.Load() && c.rng.IntN(2) == 0
	if !kill {
		c.cut()
	} else {
		c.down.Store(true)
	}
	c.e.Store(nil)
	image := []byte(nil)
	if e != nil {
		e.failWrites(errCut)
		e.group.Close()
		if kill || c.before == nil {
			var err error
			if image, err = storetest.ImageInto(c.images[2], c.b.meta); err != nil {
				c.b.t.Fatal(err)
			}
			c.images[2] = image
		}
		e.vanish()
	}
	c.counts.cuts.Add(1)
	if kill {
		c.counts.kills.Add(1) // the process died, the device kept its power
		c.mem.SetHook(nil)
		if err := storetest.Write(c.b.meta, image); err != nil {
			c.b.t.Fatal(err)
		}
		return
	}
	if c.before != nil {
		c.counts.atCommit.Add(1)
		seed := rand.New(rand.NewSource(c.rng.Int64()))
		switch c.rng.IntN(4) {
		case 0:
			image = c.before
		case 1:
			image = c.after
		case 2:
			image = storetest.Mixtures(c.before, c.after, seed)
			c.counts.mixtures.Add(1)
		case 3:
			image = storetest.TornMeta(c.before, c.after, seed)
			c.counts.mixtures.Add(1)
		}
	} else {
		c.counts.atOp.Add(1)
	}
	if image != nil {
		if err := storetest.Write(c.b.meta, image); err != nil {
			c.b.t.Fatal(err)
		}
	}
	c.mem.PowerOn(c.rng)
	c.mem.SetHook(nil)
}

// open opens the store, with a cut in the middle of recovery now and then.
func (c *crasher) open() *Engine {
	for {
		again := c.rng.IntN(6) == 0
		if again {
			c.arm(12)
			c.commits.Store(-1)
			if c.ops.Load() < 0 {
				c.ops.Store(1 + c.rng.Int64N(12))
			}
		} else {
			c.arm(60)
		}
		c.mem.SetHook(c.hook)
		e, err := Open(context.Background(), c.b.options())
		if err == nil {
			c.b.e = e
			c.e.Store(e)
			return e
		}
		if !c.down.Load() {
			c.b.t.Fatalf("the store does not open after a crash: %v", err)
		}
		c.counts.recoveries.Add(1)
		c.crash(nil)
	}
}

func runCrashes(t *testing.T, seed uint64, g zone.Geometry, o Options, cuts int, counts *crashCounts) {
	mem, err := zone.NewMem(g, zone.MemOptions{Garbage: seed%2 == 0})
	if err != nil {
		t.Fatal(err)
	}
	b := newBenchOn(t, mem, o)
	c := &crasher{b: b, mem: mem, rng: randv2.New(randv2.NewPCG(seed, 3)), counts: counts}
	b.opts.before = c.wrap
	b.opts.AroundCommit = func(commit func() error) error {
		if c.down.Load() {
			return errCut // nothing is committed without power, not even what needs no device
		}
		return commit()
	}
	w := newWorld(t, seed)
	w.maxData = 60_000
	w.crashed = c.down.Load
	for range cuts {
		w.e = c.open()
		for range 40 {
			if w.step(); c.down.Load() {
				break
			}
		}
		if !c.down.Load() {
			w.doing = operation{what: "idle"}
		}
		c.crash(w.e)
		c.disarm() // what is checked is checked without another cut
		e, err := Open(context.Background(), c.b.options())
		if err != nil {
			w.fatalf("the store does not open after a crash: %v", err)
		}
		w.e = e
		for _, x := range e.Conditions() {
			if x.Severity >= Warning || strings.Contains(x.Reason, "LOSS") {
				w.fatalf("a legal crash has left a condition: %+v", x)
			}
		}
		checkIdentity(t, e)
		checkTotals(t, e)
		w.adoptCrash()
		e.vanish()
		if w.rng.IntN(8) == 0 {
			checkStore(t, mem, b.meta, seed)
		}
	}
}

// TestCrashWalk cuts the power at device operations and commits of random work, and in the middle
// of recovery, and holds what is left against what was synced: 10,000 cuts (300 with -short,
// 1,000 under the race detector, 100 with both).
func TestCrashWalk(t *testing.T) {
	t.Parallel()
	total := 10_000
	switch {
	case raceEnabled && testing.Short():
		total = 100
	case testing.Short():
		total = 300
	case raceEnabled:
		total = 1_000
	}
	seed := seedOf(t)
	r := randv2.New(randv2.NewPCG(seed, 0))
	const each = 25
	counts := &crashCounts{}
	var failed atomic.Bool
	t.Run("walks", func(t *testing.T) {
		gate := make(chan struct{}, runtime.GOMAXPROCS(0))
		for i := range total / each {
			g, o, s := walkGeometries[i%len(walkGeometries)], walkOptions(r), seed+uint64(i)
			t.Run(fmt.Sprintf("%d-%s-nodelalloc=%t", i, o.Compression, o.NoDelalloc), func(t *testing.T) {
				t.Parallel()
				if failed.Load() {
					t.Skip("a walk has failed")
				}
				defer func() {
					if t.Failed() {
						failed.Store(true)
					}
				}()
				gate <- struct{}{}
				defer func() { <-gate }()
				runCrashes(t, s, g, o, each, counts)
			})
		}
	})
	t.Logf("%d cuts: %d at a device operation, %d at a commit (%d of them in its middle), %d kills; %d recoveries cut again; %d zone resets begun",
		counts.cuts.Load(), counts.atOp.Load(), counts.atCommit.Load(), counts.mixtures.Load(), counts.kills.Load(), counts.recoveries.Load(), counts.resets.Load())
}

func checkStore(t testing.TB, mem *zone.Mem, meta string, seed uint64) {
	t.Helper()
	s, err := store.Open(meta, store.Options{NoSync: true})
	if err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	defer s.Close()
	err = s.Check(context.Background(), func(p store.Problem) {
		t.Errorf("seed %d: after a crash: %+v", seed, p)
	})
	if err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
}
