package delalloc

import (
	"slices"

	"github.com/shingle-store/shingle/internal/csum"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/slab"
)

// Zero sets the dirty bytes of [off, end) to zero, makes their blocks' sums anew and returns
// how many bytes those were. Blocks whose memory somebody else refers to are copied first, to
// memory that no arena counts; callers use Drop for whole blocks, so that is two at most.
func (x *Index) Zero(off, end int64) (zeroed int64) {
	if off >= end {
		return 0
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	var hit []*entry
	x.eachLocked(off, end, func(e *entry) bool {
		hit = append(hit, e)
		return true
	})
	for _, e := range hit {
		start, stop := max(off, e.Off), min(end, e.End())
		zeroed += stop - start
		from, to := extent.RoundDown(start), extent.RoundUp(stop)
		if e.Buf.Shared(from-e.Off, to-from) {
			e = x.privateLocked(from, to)
		}
		// Parts of one segment share an array of sums, and a part may be in flight.
		e.Sums = slices.Clone(e.Sums)
		data := e.Buf.Bytes()
		clear(data[start-e.Off : stop-e.Off])
		csum.Blocks(e.Sums[(from-e.Off)/extent.BlockSize:][:0], data[from-e.Off:to-e.Off])
	}
	x.tidyLocked()
	return zeroed
}

// privateLocked replaces [from, to), which one segment covers, by a segment with memory and sums of
// its own.
func (x *Index) privateLocked(from, to int64) *entry {
	own := x.cutLocked(from, to)[0]
	buf := slab.Heap(own.Len())
	copy(buf.Bytes(), own.Buf.Bytes())
	own.Buf.Free()
	own.Buf = buf
	x.putLocked(own)
	e, _ := x.segments.Get(from)
	return e
}
