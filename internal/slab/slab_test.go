package slab

import (
	"bytes"
	"math/rand"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func mustAlloc(t *testing.T, a *Arena, n int64) *Buf {
	t.Helper()
	b, ok := a.Alloc(n)
	if !ok {
		t.Fatalf("no memory for %d bytes with %d of %d in use", n, a.InUse(), a.Limit())
	}
	return b
}

func mustPanic(t *testing.T, what string, f func()) {
	t.Helper()
	defer func() {
		if recover() == nil {
			t.Errorf("%s must panic", what)
		}
	}()
	f()
}

func TestLimit(t *testing.T) {
	for _, c := range []struct{ limit, want int64 }{
		{0, MaxAlloc}, {1, MaxAlloc}, {MaxAlloc, MaxAlloc}, {MaxAlloc + 1, 2 * MaxAlloc}, {64 << 20, 64 << 20},
	} {
		if got := New(c.limit).Limit(); got != c.want {
			t.Errorf("New(%d) bounds to %d, want %d", c.limit, got, c.want)
		}
	}
	a := New(3 * MaxAlloc)
	defer a.Close()
	var held []*Buf
	for range 3 {
		held = append(held, mustAlloc(t, a, MaxAlloc))
	}
	if _, ok := a.Alloc(Page); ok {
		t.Fatal("the limit was passed")
	}
	changed := a.Changed()
	select {
	case <-changed:
		t.Fatal("closed before anything changed")
	default:
	}
	held[1].Free()
	<-changed
	if a.InUse() != 2*MaxAlloc || a.Peak() != 3*MaxAlloc {
		t.Fatalf("in use %d, peak %d", a.InUse(), a.Peak())
	}
	b := mustAlloc(t, a, Page)
	for _, b := range []*Buf{held[0], held[2], b} {
		b.Free()
	}
	if a.InUse() != 0 {
		t.Fatalf("%d bytes leaked", a.InUse())
	}
}

func TestSmallAllocationsShareASlab(t *testing.T) {
	a := New(2 * MaxAlloc)
	defer a.Close()
	var held []*Buf
	for range pages {
		held = append(held, mustAlloc(t, a, 1))
	}
	if a.InUse() != MaxAlloc {
		t.Fatalf("%d pages take %d bytes", pages, a.InUse())
	}
	for i, b := range held {
		if b.Len() != Page || !IsAligned(b.Bytes()) || cap(b.Bytes()) != Page {
			t.Fatalf("page %d: %d bytes, capacity %d", i, b.Len(), cap(b.Bytes()))
		}
	}
	// All but one page free: the slab counts until the last goes.
	for _, b := range held[1:] {
		b.Free()
	}
	if a.InUse() != MaxAlloc {
		t.Fatal("a slab with a page referenced must count")
	}
	held[0].Free()
	if a.InUse() != 0 {
		t.Fatal("a slab without references must not count")
	}
	// A large allocation in between must not waste the slab that small ones share.
	x, y, z := mustAlloc(t, a, Page), mustAlloc(t, a, MaxAlloc), mustAlloc(t, a, Page)
	if a.InUse() != 2*MaxAlloc {
		t.Fatalf("%d bytes in use for two slabs' worth", a.InUse())
	}
	x.Free()
	y.Free()
	z.Free()
}

func TestSlicesKeepOnlyTheirPages(t *testing.T) {
	a := New(MaxAlloc)
	defer a.Close()
	b := mustAlloc(t, a, 4*Page)
	for i := range b.Bytes() {
		b.Bytes()[i] = byte(i / Page)
	}
	if b.Shared(0, 4*Page) {
		t.Error("one reference is not shared")
	}
	s := b.Slice(Page, 2*Page)
	for _, c := range []struct {
		off, n int64
		want   bool
	}{{0, Page, false}, {0, 2 * Page, true}, {Page, Page, true}, {2 * Page, 2 * Page, true}, {3 * Page, Page, false}} {
		if b.Shared(c.off, c.n) != c.want {
			t.Errorf("Shared(%d, %d) = %v", c.off, c.n, !c.want)
		}
	}
	b.Free()
	if s.Shared(0, 2*Page) {
		t.Error("still shared after the other was freed")
	}
	if !bytes.Equal(s.Bytes(), append(bytes.Repeat([]byte{1}, Page), bytes.Repeat([]byte{2}, Page)...)) {
		t.Error("the slice shows other bytes")
	}
	if a.InUse() != MaxAlloc {
		t.Error("memory went while referenced")
	}
	s.Free()
	if a.InUse() != 0 {
		t.Error("leak")
	}
}

func TestMisusePanics(t *testing.T) {
	a := New(MaxAlloc)
	defer a.Close()
	b := mustAlloc(t, a, 2*Page)
	for _, r := range [][2]int64{{0, 0}, {-Page, Page}, {0, 3 * Page}, {2 * Page, Page}, {1, Page}, {0, 5}, {Page, 1 << 62}} {
		mustPanic(t, "a slice out of range", func() { b.Slice(r[0], r[1]) })
	}
	for _, n := range []int64{0, -1, MaxAlloc + 1} {
		mustPanic(t, "an allocation out of range", func() { a.Alloc(n) })
	}
	b.Free()
	mustPanic(t, "a double free", b.Free)
	mustPanic(t, "a slice of a freed buffer", func() { b.Slice(0, Page) })
	mustPanic(t, "bytes of a freed buffer", func() { b.Bytes() })
	if a.InUse() != 0 {
		t.Error("a refused double free changed the count")
	}
}

func TestFreeSlabsGoBackToTheSystem(t *testing.T) {
	a := New(40 * MaxAlloc)
	var held []*Buf
	for range 40 {
		held = append(held, mustAlloc(t, a, MaxAlloc))
	}
	for _, b := range held {
		b.Free()
	}
	if got := int64(len(a.free)) * MaxAlloc; got != keepFloor {
		t.Errorf("%d bytes of free slabs are kept, want %d", got, keepFloor)
	}
	// A large arena keeps an eighth, a small one no more than its limit.
	for _, c := range []struct{ limit, keep int64 }{{1 << 30, 128 << 20}, {8 << 20, 8 << 20}, {100 << 20, keepFloor}} {
		if got := New(c.limit).keep; got != c.keep {
			t.Errorf("limit %d keeps %d, want %d", c.limit, got, c.keep)
		}
	}
	b := mustAlloc(t, a, Page)
	a.Close()
	if len(a.free) != 1 || a.free[0].in != b.slab.in {
		t.Error("free slabs kept after Close beside the neighbour of one in use")
	}
	b.Bytes()[0] = 1
	b.Free()
	if len(a.free) != 0 || a.InUse() != 0 {
		t.Error("a slab freed after Close must go back too")
	}
}

func TestHeapAndAligned(t *testing.T) {
	for _, n := range []int64{0, 1, Page - 1, Page, Page + 1, MaxAlloc + 5} {
		p := Aligned(n)
		if int64(len(p)) != n || cap(p) != len(p) || !IsAligned(p) {
			t.Errorf("Aligned(%d): length %d, capacity %d", n, len(p), cap(p))
		}
	}
	if p := Aligned(2 * Page); IsAligned(p[1:]) {
		t.Error("an odd address is not aligned")
	}
	b := Heap(Page + 1)
	if b.Len() != 2*Page || !bytes.Equal(b.Bytes(), make([]byte, 2*Page)) || !IsAligned(b.Bytes()) {
		t.Error("Heap must give whole zeroed pages")
	}
	s := b.Slice(Page, Page)
	if !b.Shared(Page, Page) || b.Shared(0, Page) {
		t.Error("sharing of heap pages")
	}
	b.Free()
	s.Bytes()[0] = 1
	s.Free()
	mustPanic(t, "a double free", s.Free)
}

func TestAppendBytesJoinsNeighbours(t *testing.T) {
	a := New(4 * MaxAlloc)
	defer a.Close()
	x, y, z := mustAlloc(t, a, Page), mustAlloc(t, a, 2*Page), mustAlloc(t, a, Page)
	big := mustAlloc(t, a, MaxAlloc)
	left, right := big.Slice(0, 3*Page), big.Slice(3*Page, Page)
	h := Heap(Page)
	for _, c := range []struct {
		name string
		bufs []*Buf
		want []int
	}{
		{"nothing", nil, nil},
		{"one", []*Buf{y}, []int{2 * Page}},
		{"in order", []*Buf{x, y, z}, []int{4 * Page}},
		{"a gap", []*Buf{x, z}, []int{Page, Page}},
		{"backwards", []*Buf{y, x}, []int{2 * Page, Page}},
		{"slices of one", []*Buf{left, right}, []int{4 * Page}},
		{"different slabs", []*Buf{z, left, right, h, x}, []int{Page, 4 * Page, Page, Page}},
	} {
		got := AppendBytes(nil, c.bufs...)
		var want []byte
		for _, b := range c.bufs {
			want = append(want, b.Bytes()...)
		}
		if !bytes.Equal(bytes.Join(got, nil), want) {
			t.Errorf("%s: other bytes", c.name)
		}
		if len(got) != len(c.want) {
			t.Errorf("%s: %d pieces, want %d", c.name, len(got), len(c.want))
			continue
		}
		for i, n := range c.want {
			if len(got[i]) != n || cap(got[i]) != n {
				t.Errorf("%s: piece %d has %d bytes", c.name, i, len(got[i]))
			}
		}
	}
	for _, b := range []*Buf{x, y, z, big, left, right, h} {
		b.Free()
	}
	if a.InUse() != 0 {
		t.Error("leak")
	}
}

// TestModel holds the arena against what each reference must show.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := New(rapid.Int64Range(1, 6).Draw(t, "slabs") * MaxAlloc)
		defer a.Close()
		type ref struct {
			buf  *Buf
			want []byte
		}
		var refs []ref
		drop := func(i int) {
			refs[i].buf.Free()
			refs[i] = refs[len(refs)-1]
			refs = refs[:len(refs)-1]
		}
		pick := func(t *rapid.T) int {
			if len(refs) == 0 {
				t.Skip("nothing held")
			}
			return rapid.IntRange(0, len(refs)-1).Draw(t, "which")
		}
		seed := int64(0)
		t.Repeat(map[string]func(*rapid.T){
			"alloc": func(t *rapid.T) {
				n := rapid.OneOf(rapid.Int64Range(1, 4), rapid.Int64Range(1, pages)).Draw(t, "pages") * Page
				free := a.Limit() - a.InUse()
				b, ok := a.Alloc(n)
				if !ok {
					if free >= MaxAlloc {
						t.Fatalf("refused with %d bytes free", free)
					}
					return
				}
				seed++
				rand.New(rand.NewSource(seed)).Read(b.Bytes()[:64])
				b.Bytes()[n-1] = byte(seed)
				refs = append(refs, ref{b, bytes.Clone(b.Bytes())})
			},
			"slice": func(t *rapid.T) {
				r := refs[pick(t)]
				off := rapid.Int64Range(0, r.buf.Len()/Page-1).Draw(t, "off")
				n := rapid.Int64Range(1, r.buf.Len()/Page-off).Draw(t, "n")
				s := r.buf.Slice(off*Page, n*Page)
				if !s.Shared(0, n*Page) {
					t.Fatal("a slice of a held buffer is shared")
				}
				refs = append(refs, ref{s, r.want[off*Page : (off+n)*Page]})
			},
			"free": func(t *rapid.T) { drop(pick(t)) },
			"": func(t *rapid.T) {
				if a.InUse() > a.Limit() || a.Peak() > a.Limit() {
					t.Fatal("limit passed")
				}
				slabs := map[*slab]bool{}
				for _, r := range refs {
					slabs[r.buf.slab] = true
				}
				if int64(len(slabs))*MaxAlloc != a.InUse() {
					t.Fatalf("%d slabs are referenced, %d bytes count", len(slabs), a.InUse())
				}
				if len(refs) > 0 {
					r := refs[rapid.IntRange(0, len(refs)-1).Draw(t, "look at")]
					if !bytes.Equal(r.buf.Bytes(), r.want) {
						t.Fatal("a reference shows other bytes")
					}
				}
			},
		})
		for len(refs) > 0 {
			drop(0)
		}
		if a.InUse() != 0 {
			t.Fatal("leak")
		}
	})
}

// TestWaiters has more goroutines than memory; each must get its turn.
func TestWaiters(t *testing.T) {
	a := New(2 * MaxAlloc)
	defer a.Close()
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 40 {
				var b *Buf
				for {
					changed := a.Changed()
					var ok bool
					if b, ok = a.Alloc(int64(1+(g*i)%pages) * Page); ok {
						break
					}
					select {
					case <-changed:
					case <-time.After(20 * time.Second):
						t.Error("waited too long")
						return
					}
				}
				mark := byte(g*40 + i)
				b.Bytes()[0], b.Bytes()[b.Len()-1] = mark, mark
				s := b.Slice(0, Page)
				b.Free()
				if s.Bytes()[0] != mark {
					t.Error("the memory went to somebody else")
				}
				s.Free()
			}
		})
	}
	wg.Wait()
	if a.InUse() != 0 {
		t.Error("leak")
	}
}

func BenchmarkAllocFree(b *testing.B) {
	for _, c := range []struct {
		name string
		n    int64
	}{{"4KiB", Page}, {"1MiB", MaxAlloc}} {
		b.Run(c.name, func(b *testing.B) {
			a := New(64 << 20)
			defer a.Close()
			b.ReportAllocs()
			for b.Loop() {
				buf, _ := a.Alloc(c.n)
				buf.Free()
			}
		})
	}
}
