package delalloc

import (
	"bytes"
	"math/rand"
	"slices"
	"sync"
	"testing"

	"github.com/shingle-store/shingle/internal/csum"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/slab"
)

func TestMisusePanics(t *testing.T) {
	x := NewIndex(NewMode(0))
	unaligned, short, negative := bare(0, 1, 1), bare(0, 2, 1), bare(-block, 1, 1)
	unaligned.Off = 5
	short.Sums = short.Sums[:1]
	for what, s := range map[string]Segment{"an unaligned segment": unaligned, "a sum missing": short, "a negative offset": negative} {
		mustPanic(t, what, func() { x.Insert(s) })
	}
	x.Insert(bare(0, 1, 1))
	r, _ := x.Take(Selection{})
	r.Release()
	mustPanic(t, "a range released twice", r.Release)
}

func TestEmptyRangesDoNothing(t *testing.T) {
	x := NewIndex(NewMode(0))
	x.Insert(bare(block, 2, 1))
	if x.Drop(5, 5) != 0 || x.Drop(block+1, 2*block-1) != 0 || x.Drop(9*block, block) != 0 || x.Zero(7, 7) != 0 || x.Zero(2*block, block) != 0 {
		t.Error("an empty range changed something")
	}
	x.Forget(block, block, 9)
	x.Copy(block, nil, func(_, _ int64) { t.Error("an empty copy found something") })
	if x.Dirty(2*block, block) != 0 || x.Bytes() != 2*block {
		t.Error("bytes changed")
	}
	if _, ok := x.Take(Selection{From: extent.MaxFileSize}); ok {
		t.Error("took something past all files")
	}
}

func TestRangeOf(t *testing.T) {
	a := slab.New(4 << 20)
	defer a.Close()
	segs := []Segment{segment(a, block, 2, 'a', 7, second(1)), segment(a, 3*block, 1, 'b', 5, second(2)), segment(a, 4*block, 300-44, 'c', 9, second(3))}
	segs[2].First = 4
	r := RangeOf(segs)
	if r.Off != block || r.End() != 260*block || r.Len() != 259*block || r.MinSeq != 4 || r.MaxSeq != 9 {
		t.Errorf("range [%d, %d) of %d to %d", r.Off, r.End(), r.MinSeq, r.MaxSeq)
	}
	// The first two lie next to each other in memory, the third fills a slab of its own.
	if n := len(r.Bufs()); n != 2 {
		t.Errorf("%d pieces of memory", n)
	}
	want := append(append(bytes.Repeat([]byte{'a'}, 2*block), bytes.Repeat([]byte{'b'}, block)...), bytes.Repeat([]byte{'c'}, 256*block)...)
	for _, c := range []struct{ off, n int64 }{{block, 259 * block}, {block, 0}, {2*block + 1, 5}, {3 * block, block}, {3*block - 1, block + 2}, {260*block - 1, 1}} {
		got := r.Slice(c.off, c.n)
		if !bytes.Equal(bytes.Join(got, nil), want[c.off-block:][:c.n]) {
			t.Errorf("Slice(%d, %d) is wrong", c.off, c.n)
		}
		for _, p := range got {
			if cap(p) != len(p) {
				t.Errorf("Slice(%d, %d) can be appended to", c.off, c.n)
			}
		}
	}
	if !slices.Equal(r.Sums(), csum.Blocks(nil, want)) {
		t.Error("sums")
	}
	r.Release()
	var none Range
	none.Release()
	if none.Len() != 0 || a.InUse() != 0 {
		t.Error("leak")
	}
}

// Zero must not change what somebody else holds of the same memory, nor use the arena.
func TestZeroLeavesSharedMemoryAlone(t *testing.T) {
	a := slab.New(1 << 20)
	defer a.Close()
	x := NewIndex(NewMode(0))
	s := segment(a, 0, 256, 'x', 1, second(1))
	reader := s.Buf.Slice(2*block, block)
	x.Insert(s)
	if n := x.Zero(2*block+10, 2*block+20); n != 10 {
		t.Fatalf("zeroed %d", n)
	}
	if n := x.Zero(9*block+1, 9*block+2); n != 1 {
		t.Fatalf("zeroed %d", n)
	}
	if !bytes.Equal(reader.Bytes(), bytes.Repeat([]byte{'x'}, block)) {
		t.Error("the reader's bytes changed")
	}
	want := bytes.Repeat([]byte{'x'}, 256*block)
	clear(want[2*block+10 : 2*block+20])
	want[9*block+1] = 0
	r, _ := x.Take(Selection{})
	if !bytes.Equal(bytes.Join(r.Bufs(), nil), want) || !slices.Equal(r.Sums(), csum.Blocks(nil, want)) {
		t.Error("wrong bytes or sums")
	}
	r.Release()
	reader.Free()
	if a.InUse() != 0 {
		t.Error("leak")
	}
}

// A run is complete however it came about, and no longer when cut, without anybody scanning it.
func TestComplete(t *testing.T) {
	x := NewIndex(NewMode(0))
	const blocks = extent.MaxRangeSize / block
	for _, i := range rand.New(rand.NewSource(1)).Perm(blocks / 256) {
		if x.Complete() {
			t.Fatal("complete too early")
		}
		x.Insert(bare(int64(i)*256*block, 256, 1))
	}
	if !x.Complete() {
		t.Fatal("not complete with 128 MiB in a row")
	}
	if _, ok := x.Take(Selection{CompleteOnly: true, From: block}); ok {
		t.Fatal("took a run that is not complete from there")
	}
	r, ok := x.Take(Selection{CompleteOnly: true})
	if !ok || r.Len() != extent.MaxRangeSize {
		t.Fatalf("took %d", r.Len())
	}
	for _, s := range r.Segments {
		s.Buf = s.Buf.Slice(0, s.Len())
		x.Insert(s)
	}
	r.Release()
	x.Drop(500*block, 501*block)
	if x.Complete() {
		t.Fatal("complete with a hole")
	}
	x.Drop(0, 1<<60)
}

// Many goroutines use one index. Each owns a stripe of blocks, whose content it knows.
func TestConcurrentUse(t *testing.T) {
	a := slab.New(64 << 20)
	defer a.Close()
	mode := NewMode(64 * block)
	x := NewIndex(mode)
	const stripe = 32
	rounds := 150
	if testing.Short() {
		rounds = 40
	}
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for g := range int64(4) {
		wg.Go(func() {
			rng := rand.New(rand.NewSource(g))
			base := g * stripe * block
			for i := range rounds {
				off, n := rng.Int63n(stripe-8), 1+rng.Int63n(8)
				x.Insert(segment(a, base+off*block, n, byte(g+1), uint64(i+1), second(i)))
				p := make([]byte, stripe*block)
				x.Copy(base, p, func(start, end int64) {
					for _, b := range p[start-base : end-base] {
						if b != byte(g+1) && b != 0 {
							t.Errorf("byte %d of goroutine %d", b, g)
							return
						}
					}
				})
				switch rng.Intn(4) {
				case 0:
					x.Drop(base+off*block, base+(off+n)*block)
				case 1:
					x.Zero(base+off*block, base+off*block+7)
				}
			}
		})
	}
	var taker sync.WaitGroup
	taker.Go(func() {
		rng := rand.New(rand.NewSource(9))
		for {
			select {
			case <-stop:
				return
			default:
			}
			r, ok := x.Take(Selection{Max: 1 + rng.Int63n(40*block)})
			if !ok {
				continue
			}
			for i, sum := range r.Sums() {
				if sum != csum.Sum(bytes.Join(r.Slice(r.Off+int64(i)*block, block), nil)) {
					t.Error("a taken block does not match its sum")
				}
			}
			r.Release()
			x.MinSeq()
			x.Oldest()
			x.Next(0)
			x.Dirty(0, 1<<30)
		}
	})
	wg.Wait()
	close(stop)
	taker.Wait()
	x.Drop(0, 1<<60)
	if a.InUse() != 0 || mode.Dirty() != 0 {
		t.Errorf("%d bytes of memory, %d counted leaked", a.InUse(), mode.Dirty())
	}
}
