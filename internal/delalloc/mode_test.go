package delalloc

import (
	"sync"
	"testing"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
)

func TestModeIsOnlySwitchedOffWhenNothingIsDelayed(t *testing.T) {
	m := NewMode(0)
	x, other := NewIndex(m), NewIndex(m)
	refused := func(why string) {
		t.Helper()
		err := m.Disable()
		if !errdefs.Is(err, errdefs.Precondition) || errdefs.ReasonOf(err) != errdefs.ReasonWriteback || !m.Enabled() {
			t.Errorf("%s: Disable says %v, enabled %v", why, err, m.Enabled())
		}
	}
	x.Insert(bare(0, 2, 1))
	refused("dirty data")
	r, _ := x.Take(Selection{})
	refused("a range in flight")
	other.Insert(bare(0, 1, 1))
	r.Release()
	refused("dirty data of another file")
	if m.Dirty() != block {
		t.Errorf("%d bytes counted", m.Dirty())
	}
	other.Drop(0, block)

	for range 2 {
		if err := m.Disable(); err != nil {
			t.Fatal(err)
		}
	}
	if m.Enabled() || m.Dirty() != 0 {
		t.Error("not off")
	}
	mustPanic(t, "an Insert while off", func() { x.Insert(bare(0, 1, 3)) })
	m.Enable()
	m.Enable()
	x.Insert(bare(0, 1, 4))
	if m.Dirty() != block || x.Bytes() != block {
		t.Error("counts are wrong after switching on again")
	}
}

// The look-ups must not even take the lock when the mode is off: here it is held.
func TestNoLookUpWhenOff(t *testing.T) {
	m := NewMode(0)
	x := NewIndex(m)
	lookUps := func() {
		p := make([]byte, block)
		x.Copy(0, p, func(_, _ int64) { t.Error("found something") })
		if x.CopyBlock(0, p) {
			t.Error("found a block")
		}
		if _, _, ok := x.Next(0); ok {
			t.Error("found a range")
		}
		if x.Dirty(0, 1<<30) != 0 {
			t.Error("found bytes")
		}
	}
	lookUps()
	if n := m.Counters.Scans.Load(); n != 4 {
		t.Errorf("%d scans for 4 look-ups", n)
	}
	if err := m.Disable(); err != nil {
		t.Fatal(err)
	}
	x.mu.Lock()
	lookUps()
	x.mu.Unlock()
	if n := m.Counters.Scans.Load(); n != 4 {
		t.Errorf("%d scans when off", n-4)
	}
}

// Disable must lose the race against an Insert or win it: data never lies in an index that is
// off. Who loses panics, and the engine keeps them apart; here the panic is what is counted.
func TestDisableRacesInsert(t *testing.T) {
	for range 300 {
		m := NewMode(0)
		x := NewIndex(m)
		var wg sync.WaitGroup
		refused := false
		wg.Go(func() {
			defer func() { refused = recover() != nil }()
			x.Insert(bare(0, 1, 1))
		})
		off := m.Disable() == nil
		wg.Wait()
		if off != refused || off == m.Enabled() || !off && x.Bytes() != block {
			t.Fatalf("off %v, insert refused %v, %d bytes", off, refused, x.Bytes())
		}
	}
}

func TestCounters(t *testing.T) {
	m := NewMode(8 * block)
	x := NewIndex(m)
	x.Insert(bare(0, 20, 1))
	for range 3 {
		r, ok := x.Take(Selection{})
		if !ok {
			t.Fatal("nothing to take")
		}
		r.Release()
	}
	c := &m.Counters
	if c.Ranges.Load() != 3 || c.RangeBytes.Load() != 20*block || c.LargestRange.Load() != 8*block {
		t.Errorf("%d ranges, %d bytes, largest %d", c.Ranges.Load(), c.RangeBytes.Load(), c.LargestRange.Load())
	}
}

func TestRangeSize(t *testing.T) {
	for _, c := range []struct{ ask, want int64 }{
		{0, extent.MaxRangeSize}, {-1, extent.MaxRangeSize}, {1, block}, {block + 1, block}, {672 << 10, 672 << 10},
	} {
		if got := NewMode(c.ask).RangeSize(); got != c.want {
			t.Errorf("NewMode(%d) collects %d, want %d", c.ask, got, c.want)
		}
	}
}

// The published figures of S0: 16 GiB in ranges of 672 KiB and of 128 MiB.
func TestChunksOfThePublishedRun(t *testing.T) {
	for _, c := range []struct {
		rangeSize, perRange, total int64
	}{
		// The report has 49,934: it counts two chunks for the last range too, of 64 KiB.
		{672 << 10, 2, 49933},
		{extent.MaxRangeSize, 256, 32768},
	} {
		if got := Chunks(c.rangeSize); got != c.perRange {
			t.Errorf("%d chunks in a range of %d, want %d", got, c.rangeSize, c.perRange)
		}
		total := int64(0)
		for left := int64(16 << 30); left > 0; left -= c.rangeSize {
			total += Chunks(min(left, c.rangeSize))
		}
		if total != c.total {
			t.Errorf("%d chunks in 16 GiB by ranges of %d, want %d", total, c.rangeSize, c.total)
		}
	}
	for _, c := range []struct{ n, limit, want int64 }{
		{block, 128 << 10, 2}, {128 << 10, 128 << 10, 2}, {128<<10 + block, 128 << 10, 3},
		{128 << 20, 672 << 10, 197}, {128 << 20, 128 << 20, 2},
	} {
		if got := Extents(c.n, c.limit); got != c.want {
			t.Errorf("Extents(%d, %d) = %d, want %d", c.n, c.limit, got, c.want)
		}
	}
}
