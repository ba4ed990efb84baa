package slab

import (
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/shingle-store/shingle/internal/extent"
)

// Buf is one reference to a run of whole pages. Each Buf is freed once, by its owner; the
// memory lives until the last Buf that covers it is freed. A Buf's methods may be called from
// any goroutine, but nothing may use it, or a slice got from Bytes, after its Free.
//
// Several Bufs may refer to the same pages. Who may write into them is for the owners to
// settle; Shared helps.
type Buf struct {
	slab  *slab
	off   int64 // in the slab; multiple of Page
	n     int64 // multiple of Page
	freed atomic.Bool
}

// heapMu guards the page counts of all Heap buffers, which are few and short-lived.
var heapMu sync.Mutex

// Heap returns a Buf of n > 0 bytes, rounded up to whole pages, of zeroed memory that no
// arena counts. It is for the few pages that must be had when an arena may be at its limit.
func Heap(n int64) *Buf {
	n = extent.RoundUp(n)
	s := &slab{mem: Aligned(n), refs: make([]int32, n/Page)}
	s.refLocked(0, n)
	return &Buf{slab: s, n: n}
}

// Aligned returns n zeroed bytes of ordinary memory that start on a page border. Its capacity
// is n.
func Aligned(n int64) []byte {
	if n == 0 {
		return []byte{}
	}
	p := make([]byte, n+Page)
	skip := int64(-uintptr(unsafe.Pointer(unsafe.SliceData(p))) & (Page - 1))
	return p[skip : skip+n : skip+n]
}

// IsAligned reports whether p starts on a page border; an empty p does.
func IsAligned(p []byte) bool {
	return len(p) == 0 || uintptr(unsafe.Pointer(unsafe.SliceData(p)))&(Page-1) == 0
}

// Len returns the length in bytes, a multiple of Page.
func (b *Buf) Len() int64 { return b.n }

// Bytes returns the memory itself. Its capacity is its length.
func (b *Buf) Bytes() []byte {
	if b.freed.Load() {
		panic("slab: Bytes of a freed Buf")
	}
	return b.slab.mem[b.off : b.off+b.n : b.off+b.n]
}

// Slice returns a new reference to bytes [off, off+n) of b, whole pages and n > 0, with an
// owner and a Free of its own. It panics on a range that b has not.
func (b *Buf) Slice(off, n int64) *Buf {
	b.check(off, n)
	if b.freed.Load() {
		panic("slab: Slice of a freed Buf")
	}
	mu := b.lock()
	defer mu.Unlock()
	b.slab.refLocked(b.off+off, n)
	return &Buf{slab: b.slab, off: b.off + off, n: n}
}

// Shared reports whether any page of [off, off+n) of b is referenced by another Buf too. A
// false stays false only while b's owner lets nobody slice it.
func (b *Buf) Shared(off, n int64) bool {
	b.check(off, n)
	mu := b.lock()
	defer mu.Unlock()
	for p := (b.off + off) / Page; p < (b.off+off+n)/Page; p++ {
		if b.slab.refs[p] > 1 {
			return true
		}
	}
	return false
}

// Free gives the reference back. It panics if that was done before: going on would hand
// memory out twice.
func (b *Buf) Free() {
	if b.freed.Swap(true) {
		panic("slab: Buf freed twice")
	}
	mu := b.lock()
	defer mu.Unlock()
	b.slab.dropLocked(b.off, b.n)
}

func (b *Buf) check(off, n int64) {
	if off < 0 || n <= 0 || off > b.n-n || off%Page != 0 || n%Page != 0 {
		panic(fmt.Sprintf("slab: range %d+%d of a Buf of %d bytes", off, n, b.n))
	}
}

func (b *Buf) lock() *sync.Mutex {
	mu := &heapMu
	if b.slab.arena != nil {
		mu = &b.slab.arena.mu
	}
	mu.Lock()
	return mu
}

// AppendBytes appends the memory of bufs, in order, to dst and returns it. Bufs that follow
// each other in the list and in one slab become one slice, so that device requests have few
// segments.
func AppendBytes(dst [][]byte, bufs ...*Buf) [][]byte {
	for i := 0; i < len(bufs); {
		first := bufs[i]
		end := first.off + first.n
		for i++; i < len(bufs) && bufs[i].slab == first.slab && bufs[i].off == end; i++ {
			end += bufs[i].n
		}
		dst = append(dst, first.slab.mem[first.off:end:end])
	}
	return dst
}
