package slab

import (
	"fmt"
	"sync"

	"github.com/shingle-store/shingle/internal/extent"
)

const (
	// Page is the unit of allocation in bytes, and the alignment of every Buf.
	Page = extent.BlockSize
	// MaxAlloc is the size of a slab in bytes, and so the most that one Alloc can have.
	MaxAlloc = 1 << 20
	// keepFloor is how many bytes of free slabs are kept mapped at least, where the limit
	// allows as much.
	keepFloor = 16 << 20
	// regionSize is how much is mapped at once, in bytes: a huge page of amd64 and, with pages
	// of 4 KiB, of arm64. Touching it for the first time costs one page fault instead of 512; in
	// a virtual machine that is 0.2 ms instead of 5 to 16 ms, more than everything else done
	// to the data that it holds.
	regionSize = 2 << 20

	pages = MaxAlloc / Page
)

// A region is memory mapped in one piece, guarded by its arena's mutex.
type region struct {
	mem   []byte
	slabs [regionSize / MaxAlloc]*slab
	used  int // slabs of it that are not free
}

// A slab is guarded by its arena's mutex.
type slab struct {
	arena *Arena // nil: a Heap buffer of its own, guarded by heapMu
	in    *region
	index int // in the arena's free slabs, while it is one
	mem   []byte
	refs  []int32 // references to each page
	live  int     // pages with references
	next  int64   // where the next small allocation starts
}

// Arena is a bounded source of payload memory. Its methods may be called from any goroutine.
type Arena struct {
	limit int64
	keep  int64 // free slabs above so many bytes go back to the operating system

	mu      sync.Mutex
	current *slab // the slab that small allocations share; has live pages, or is nil
	free    []*slab
	inUse   int64
	peak    int64
	changed chan struct{} // closed and forgotten at the next release of a slab; nil: nobody asked
}

// New returns an arena that hands out at most limit bytes of slabs, rounded up to a whole
// slab and to one at least. Nothing is mapped before it is used. Free slabs above 1/8 of the
// limit or 16 MiB, whichever is more, are given back to the operating system, two neighbours at
// a time. What is mapped never passes the most that was in use by more than one slab.
func New(limit int64) *Arena {
	limit = max(MaxAlloc, (limit+MaxAlloc-1)/MaxAlloc*MaxAlloc)
	return &Arena{limit: limit, keep: max(regionSize, min(limit, max(keepFloor, limit/8)))}
}

// Limit returns the bound on InUse in bytes.
func (a *Arena) Limit() int64 { return a.limit }

// InUse returns the bytes of slabs of which at least one page is referenced. It never passes
// Limit.
func (a *Arena) InUse() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.inUse
}

// Peak returns the most that InUse ever was.
func (a *Arena) Peak() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.peak
}

// Alloc returns a Buf of n bytes, 0 < n <= MaxAlloc, rounded up to whole pages, aligned to the
// page. Its content is whatever was there before. False means that the limit is reached or
// the system has no memory; a caller that wants to wait must ask for Changed before Alloc,
// or a release in between is missed. Alloc panics on an n out of range.
func (a *Arena) Alloc(n int64) (*Buf, bool) {
	if n <= 0 || n > MaxAlloc {
		panic(fmt.Sprintf("slab: Alloc of %d bytes", n))
	}
	n = extent.RoundUp(n)
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.current
	if s == nil || s.next+n > MaxAlloc {
		if s = a.takeLocked(); s == nil {
			return nil, false
		}
		// Keep sharing whichever slab has more room left.
		if a.current == nil || s.next+n < a.current.next {
			a.current = s
		}
	}
	b := &Buf{slab: s, off: s.next, n: n}
	s.next += n
	s.refLocked(b.off, n)
	return b, true
}

// takeLocked returns an empty slab that counts as in use, or nil. The caller must reference
// a page of it before unlocking.
func (a *Arena) takeLocked() *slab {
	if a.inUse+MaxAlloc > a.limit {
		return nil
	}
	if len(a.free) == 0 && !a.mapLocked() {
		return nil
	}
	s := a.free[len(a.free)-1]
	a.unlistLocked(s)
	s.in.used++
	a.inUse += MaxAlloc
	a.peak = max(a.peak, a.inUse)
	return s
}

// mapLocked maps a region and lists its slabs as free.
func (a *Arena) mapLocked() bool {
	mem, ok := mapMemory(regionSize)
	if !ok {
		return false
	}
	r := &region{mem: mem}
	for i := range r.slabs {
		r.slabs[i] = &slab{arena: a, in: r, mem: mem[i*MaxAlloc:][:MaxAlloc:MaxAlloc], refs: make([]int32, pages)}
		a.listLocked(r.slabs[i])
	}
	return true
}

func (a *Arena) listLocked(s *slab) {
	s.index = len(a.free)
	a.free = append(a.free, s)
}

func (a *Arena) unlistLocked(s *slab) {
	last := len(a.free) - 1
	a.free[s.index] = a.free[last]
	a.free[s.index].index = s.index
	a.free[last] = nil
	a.free = a.free[:last]
}

// releaseLocked takes back a slab without references.
func (a *Arena) releaseLocked(s *slab) {
	s.next = 0
	if a.current == s {
		a.current = nil
	}
	a.inUse -= MaxAlloc
	a.listLocked(s)
	s.in.used--
	if int64(len(a.free))*MaxAlloc > a.keep && s.in.used == 0 {
		a.unmapLocked(s.in)
	}
	if a.changed != nil {
		close(a.changed)
		a.changed = nil
	}
}

// unmapLocked gives a region back whose slabs are all free.
func (a *Arena) unmapLocked(r *region) {
	for _, s := range r.slabs {
		a.unlistLocked(s)
		s.mem = nil
	}
	unmapMemory(r.mem)
}

// Changed returns a channel that is closed when InUse next falls.
func (a *Arena) Changed() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.changed == nil {
		a.changed = make(chan struct{})
	}
	return a.changed
}

// Close gives the free slabs back to the operating system. Slabs in use follow when their
// last reference is freed; the arena may go on being used.
func (a *Arena) Close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.keep = 0
	for i := len(a.free) - 1; i >= 0; i = min(i, len(a.free)) - 1 {
		if r := a.free[i].in; r.used == 0 {
			a.unmapLocked(r)
		}
	}
}

func (s *slab) refLocked(off, n int64) {
	for p := off / Page; p < (off+n)/Page; p++ {
		if s.refs[p] == 0 {
			s.live++
		}
		s.refs[p]++
	}
}

// dropLocked takes back one reference to each page.
func (s *slab) dropLocked(off, n int64) {
	for p := off / Page; p < (off+n)/Page; p++ {
		s.refs[p]--
		if s.refs[p] == 0 {
			s.live--
		}
	}
	if s.live == 0 && s.arena != nil {
		s.arena.releaseLocked(s)
	}
}
