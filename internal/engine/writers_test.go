package engine

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/zone"
	"github.com/shingle-store/shingle/internal/zone/faultdev"
)

// faultBench is a store on a memory device under a device that fails on demand.
type faultBench struct {
	*bench
	mem   *zone.Mem
	fault *faultdev.Device
}

func newFaultBench(t testing.TB, g zone.Geometry, o Options) *faultBench {
	t.Helper()
	mem, err := zone.NewMem(g, zone.MemOptions{})
	if err != nil {
		t.Fatal(err)
	}
	fault := faultdev.New(mem, 1)
	return &faultBench{newBenchOn(t, fault, o), mem, fault}
}

// checkLimits holds what the device counted, and what the auditor worked out by itself, against
// the limits of open and active zones.
func (b *faultBench) checkLimits() {
	b.t.Helper()
	g, s := b.fault.Geometry(), b.fault.Stats()
	if g.MaxActive > 0 && s.PeakActive > g.MaxActive {
		b.t.Errorf("%d zones were active, the limit is %d", s.PeakActive, g.MaxActive)
	}
	if g.MaxOpen > 0 && s.PeakOpen > g.MaxOpen {
		b.t.Errorf("%d zones were open, the limit is %d", s.PeakOpen, g.MaxOpen)
	}
	if n := s.RefusedTooManyActive + s.RefusedTooManyOpen; n != 0 {
		b.t.Errorf("the device refused %d commands for its limits", n)
	}
	if s.Evictions != 0 {
		b.t.Errorf("the device closed %d zones to open others", s.Evictions)
	}
	if err := b.fault.Audit(); err != nil {
		b.t.Error(err)
	}
	if n := b.fault.Counts().Misplaced; n != 0 {
		b.t.Errorf("%d commands were sent to conventional zones that know none of them", n)
	}
}

// checkQuiet says that nothing is owed: no reservation, no memory, no append under way, and the
// account of space is whole. Everything must have been synced.
func checkQuiet(t testing.TB, e *Engine) {
	t.Helper()
	u := e.Usage()
	if u.Reserved != 0 || u.Dirty != 0 {
		t.Errorf("after everything was synced %d bytes are reserved and %d dirty", u.Reserved, u.Dirty)
	}
	if n := e.reserved.Load(); n != 0 {
		t.Errorf("the engine counts %d reserved bytes", n)
	}
	if n := e.stuck.Load(); n != 0 {
		t.Errorf("%d bytes count as stuck", n)
	}
	if n := e.arena.InUse(); n != 0 {
		t.Errorf("%d bytes of dirty memory are in use", n)
	}
	eventually(t, "no range is in flight", func() bool { return e.count.rangesInFlight.Load() == 0 })
	if n := e.reads.inUse.Load() + e.reads.lent.Load() + int64(len(e.reads.readers)); n != 0 {
		t.Errorf("%d bytes of memory for reads are in use, %d lent, by %d readers", e.reads.inUse.Load(), e.reads.lent.Load(), len(e.reads.readers))
	}
	if s := e.al.Stats(); s.Mismatches != 0 {
		t.Errorf("%d calls contradicted the books of the allocator", s.Mismatches)
	}
	checkIdentity(t, e)
}

// TestManyWriters lets many more writers than there are zones write at once.
func TestManyWriters(t *testing.T) {
	t.Parallel()
	type limits struct{ open, active, writers, n int }
	cases := []limits{{3, 4, 64, 500_000}, {1, 1, 16, 300_000}, {2, 2, 16, 300_000}}
	if testing.Short() {
		cases = []limits{{3, 4, 64, 60_000}, {1, 1, 8, 100_000}}
	}
	for _, c := range cases {
		t.Run(fmt.Sprintf("open=%d/active=%d", c.open, c.active), func(t *testing.T) {
			content := make([][]byte, c.writers)
			for i := range content {
				if content[i] = noise(uint64(i), c.n+i); i%2 == 0 {
					content[i] = text(uint64(i), c.n+i)
				}
			}
			modes(t, func(t *testing.T, o Options) { manyWriters(t, o, c.open, c.active, content) })
		})
	}
}

func manyWriters(t *testing.T, o Options, open, active int, content [][]byte) {
	b := newFaultBench(t, zone.Geometry{
		Dialect: zone.ZNS, ZoneSize: 1 << 20, ZoneCapacity: 900 << 10, Zones: 100,
		MaxOpen: open, MaxActive: active, AppendLimit: 128 << 10,
	}, o)
	e := b.open()
	var wg sync.WaitGroup
	for i, data := range content {
		wg.Go(func() {
			name := fmt.Sprintf("dir%d/file%d", i%5, i)
			if i%4 < 2 {
				if _, err := tryPut(e, name, data); err != nil {
					t.Errorf("put %s: %v", name, err)
				}
				return
			}
			if err := writeInSteps(e, name, data, 70_001); err != nil {
				t.Errorf("write %s: %v", name, err)
			}
		})
	}
	wg.Wait()
	syncAll(t, e)
	checkQuiet(t, e)
	for range 2 {
		for i, data := range content {
			if name := fmt.Sprintf("dir%d/file%d", i%5, i); !bytes.Equal(readAll(t, e, name), data) {
				t.Errorf("%s differs", name)
			}
		}
		e = b.reopen()
	}
	b.checkLimits()
	if c := e.Conditions(); len(c) != 0 {
		t.Errorf("a healthy device leads to conditions: %+v", c)
	}
}

// writeInSteps writes in place, step bytes a message, with a sync in the middle and at the end.
func writeInSteps(e *Engine, name string, data []byte, step int) error {
	ctx := context.Background()
	w, err := e.OpenWriter(ctx, WriterOptions{Name: name})
	if err != nil {
		return err
	}
	defer w.Close()
	for at := 0; at < len(data); at += step {
		if err := w.Write(ctx, nil, [][]byte{data[at:min(len(data), at+step)]}, nil); err != nil {
			return err
		}
		if at/step == len(data)/step/2 {
			if err := w.Sync(ctx); err != nil {
				return err
			}
		}
	}
	if err := w.Sync(ctx); err != nil {
		return err
	}
	if received, durable := w.Position(); received != int64(len(data)) || durable != received {
		return fmt.Errorf("after a sync the positions are %d and %d of %d", received, durable, len(data))
	}
	return nil
}

// TestWritersOfOneFile lets writers overlap in one file: every block is wholly one writer's.
func TestWritersOfOneFile(t *testing.T) {
	modes(t, func(t *testing.T, o Options) {
		b := newFaultBench(t, smallZNS, o)
		e := b.open()
		const blocks, writers, rounds = 64, 16, 8
		put(t, e, "f", make([]byte, blocks*extent.BlockSize))
		var wg sync.WaitGroup
		for i := range writers {
			wg.Go(func() {
				for r := range rounds {
					from := (i*7 + r*13) % (blocks - 8)
					data := bytes.Repeat([]byte{byte(i + 1)}, 8*extent.BlockSize)
					if err := tryWriteAt(e, "f", int64(from*extent.BlockSize), data); err != nil {
						t.Errorf("writer %d: %v", i, err)
					}
					if r%4 == i%4 {
						if _, err := e.Sync(context.Background(), []string{"f"}, nil); err != nil {
							t.Errorf("sync of writer %d: %v", i, err)
						}
					}
					got, err := tryRead(e, "f", 0, nil)
					if err != nil {
						t.Errorf("reader %d: %v", i, err)
					}
					if at := mixedBlock(got); at >= 0 {
						t.Errorf("block %d is of several writers", at)
					}
				}
			})
		}
		wg.Wait()
		syncAll(t, e)
		checkQuiet(t, e)
		want := readAll(t, e, "f")
		e = b.reopen()
		if got := readAll(t, e, "f"); !bytes.Equal(got, want) || mixedBlock(got) >= 0 {
			t.Error("the file differs after a restart")
		}
		b.checkLimits()
	})
}

// mixedBlock returns the first block whose bytes are not all the same, or -1.
func mixedBlock(p []byte) int {
	for i := 0; i < len(p); i += extent.BlockSize {
		block := p[i:min(len(p), i+extent.BlockSize)]
		if bytes.Count(block, block[:1]) != len(block) {
			return i / extent.BlockSize
		}
	}
	return -1
}
