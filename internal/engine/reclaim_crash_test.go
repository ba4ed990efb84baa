package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/store"
	"github.com/shingle-store/shingle/internal/zone"
)

// reclaimCrash is a store full of half-dead zones whose power can be cut at a chosen device operation
// or commit of a relocation.
type reclaimCrash struct {
	*faultBench
	want map[string][]byte

	armed   atomic.Bool
	down    atomic.Bool
	ops     atomic.Int64 // device operations until the cut
	commits atomic.Int64 // commits until the cut
	after   bool         // cut after the operation or commit took effect
	last    string       // what was cut
}

var errPowerCut = errors.New("the power was cut")

// newReclaimCrash makes the store: raw, compressed and inline files, overwritten, punched, deleted in
// part, and durable.
func newReclaimCrash(t testing.TB, codec extent.Codec) *reclaimCrash {
	t.Helper()
	g := zone.Geometry{Dialect: zone.ZNS, ZoneSize: 256 << 10, ZoneCapacity: 192 << 10, Zones: 16, MaxOpen: 3, MaxActive: 3, AppendLimit: 60 << 10}
	c := &reclaimCrash{want: map[string][]byte{}}
	o := Options{Compression: &codec, DirtyLimit: minDirtyLimit, WritebackAge: time.Hour, AroundCommit: c.aroundCommit}
	o.Reclaim.Threshold, o.Reclaim.Low = 100, 1 // nothing by itself
	c.faultBench = newFaultBench(t, g, o)
	e := c.open()
	r := rand.New(rand.NewPCG(7, 7))
	for i := range 6 {
		name := fmt.Sprintf("f%d", i%3)
		data := text(uint64(i), 130_000)
		writeAt(t, e, name, int64(i/3)*90_000, data)
		c.want[name] = overlay(c.want[name], i/3*90_000, data)
		syncAll(t, e)
		writeAt(t, e, fmt.Sprintf("garbage%d", i), 0, noise(uint64(i), 60_000))
		syncAll(t, e)
		for range 4 {
			n := 1 + r.IntN(20_000)
			off := r.IntN(len(c.want[name]) - n)
			if r.IntN(3) == 0 {
				if _, _, err := e.Deallocate(context.Background(), name, int64(off), int64(n), Preconditions{}); err != nil {
					t.Fatal(err)
				}
				clear(c.want[name][off : off+n])
				continue
			}
			data := noise(r.Uint64(), n)
			writeAt(t, e, name, int64(off), data)
			c.want[name] = overlay(c.want[name], off, data)
			syncAll(t, e)
		}
	}
	for i := range 6 {
		deleteFile(t, e, fmt.Sprintf("garbage%d", i))
	}
	put(t, e, "inline", []byte("small"))
	c.want["inline"] = []byte("small")
	eventually(t, "the garbage is dead", func() bool { return e.orphans.Load() == 0 })
	syncAll(t, e)
	return c
}

func (c *reclaimCrash) cut(what string) {
	if c.down.CompareAndSwap(false, true) {
		c.last = what
		c.mem.CutPower()
		c.e.failWrites(errPowerCut) // the process is to end without a wait for its device
	}
}

// hook is the device's.
func (c *reclaimCrash) hook(op zone.Op) error {
	if !c.armed.Load() || op.After != c.after || c.ops.Add(-1) != 0 {
		return nil
	}
	c.cut(fmt.Sprintf("%v of zone %d", op.Kind, op.Zone))
	return errPowerCut
}

func (c *reclaimCrash) aroundCommit(commit func() error) error {
	if c.down.Load() {
		return errPowerCut
	}
	if !c.armed.Load() || c.commits.Add(-1) != 0 {
		return commit()
	}
	if c.after {
		if err := commit(); err != nil {
			return err
		}
	}
	c.cut("a commit")
	return errPowerCut
}

func (c *reclaimCrash) check(e *Engine) {
	c.t.Helper()
	for name, want := range c.want {
		got, err := tryRead(e, name, 0, nil)
		if err != nil || !bytes.Equal(got, want) {
			c.t.Fatalf("cut at %s: %s holds something else, %v", c.last, name, err)
		}
	}
	checkIdentity(c.t, e)
	if n := e.al.Stats().Mismatches; n != 0 {
		c.t.Fatalf("cut at %s: the books were contradicted %d times", c.last, n)
	}
	for _, x := range e.Conditions() {
		if x.Severity >= Warning {
			c.t.Fatalf("cut at %s: %+v", c.last, x)
		}
	}
}

// sound holds the closed store's metadata against itself.
func (c *reclaimCrash) sound() {
	c.t.Helper()
	s, err := store.Open(c.meta, store.Options{NoSync: true})
	if err != nil {
		c.t.Fatal(err)
	}
	defer s.Close()
	if err := s.Check(context.Background(), func(p store.Problem) { c.t.Errorf("cut at %s: %v", c.last, p) }); err != nil {
		c.t.Fatal(err)
	}
}

// run cuts the power once while everything that can be moved is moved, and answers whether the cut
// came before the end.
func (c *reclaimCrash) run(seed uint64) bool {
	t := c.t
	t.Helper()
	c.mem.SetHook(c.hook)
	c.armed.Store(true)
	all := 0
	p, err := c.e.Reclaim(context.Background(), ReclaimRequest{Threshold: &all}, nil)
	c.armed.Store(false)
	c.mem.SetHook(nil)
	cut := c.down.Load()
	if !cut && (err != nil || p.Emptied == 0 || p.Done != p.Total || p.Failed != 0) {
		t.Fatalf("without a cut: %+v, %v", p, err)
	}
	_ = c.e.Close(context.Background())
	c.mem.PowerOn(rand.New(rand.NewPCG(seed, 0)))
	c.sound()
	c.down.Store(false)
	e := c.open()
	c.check(e)
	// What was begun goes on.
	if p, err := e.Reclaim(context.Background(), ReclaimRequest{Threshold: &all}, nil); err != nil || p.Failed != 0 {
		t.Fatalf("cut at %s: afterwards %+v, %v", c.last, p, err)
	}
	c.check(e)
	if err := e.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	c.sound()
	// The auditor knows nothing of the lost power, so the device's own counts have to do.
	s := c.mem.Stats()
	if g := c.mem.Geometry(); s.PeakActive > g.MaxActive || s.PeakOpen > g.MaxOpen || s.RefusedTooManyActive+s.RefusedTooManyOpen > 0 {
		t.Errorf("cut at %s: the limits were met: %+v", c.last, s)
	}
	return cut
}

// TestRelocationSurvivesEveryCut cuts the power before and after every device operation and every
// commit of a relocation of all that can be moved: every file is there, byte for byte, the metadata
// agrees with itself, and the work goes on.
func TestRelocationSurvivesEveryCut(t *testing.T) {
	for _, codec := range []extent.Codec{extent.CodecNone, extent.CodecZstd} {
		for _, at := range []string{"operation", "commit"} {
			for _, after := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%s/after=%t", codec, at, after), func(t *testing.T) {
					t.Parallel()
					// Every commit, and every operation or, in short tests, some of them.
					cuts, step := 0, int64(1)
					if at == "operation" && (testing.Short() || raceEnabled) {
						step = 7
					}
					for n := int64(1); ; n += step {
						c := newReclaimCrash(t, codec)
						c.after = after
						c.ops.Store(-1)
						c.commits.Store(-1)
						if at == "commit" {
							c.commits.Store(n)
						} else {
							c.ops.Store(n)
						}
						if !c.run(uint64(n)) {
							break
						}
						cuts++
					}
					t.Logf("%d cuts", cuts)
					if cuts < 3 {
						t.Errorf("only %d cuts were met", cuts)
					}
				})
			}
		}
	}
}
