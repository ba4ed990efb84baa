package delalloc

import (
	"fmt"
	"sync"
	"time"

	"github.com/tidwall/btree"

	"github.com/shingle-store/shingle/internal/extent"
)

// Index is the dirty data of one file. Its methods may be called from any goroutine and never
// block for longer than the work they do; Insert, Take, Drop, Forget and Zero exclude
// all others, the rest only those. Offsets are bytes in the file.
type Index struct {
	mode *Mode

	mu       sync.RWMutex
	segments btree.Map[int64, *entry] // by offset; they do not overlap
	dirty    runs                     // where they are
	bySeq    oldest
	byAge    oldest
}

// NewIndex returns an empty index that is counted in m.
func NewIndex(m *Mode) *Index {
	x := &Index{mode: m, bySeq: oldest{less: bySequence}, byAge: oldest{less: byAge}}
	x.dirty.whole = m.rangeSize
	return x
}

// Insert lays s over what is dirty already and takes the reference s.Buf over. Older data
// below is trimmed and its memory released; s inherits its age (see Segment.First).
// It returns how many bytes were dirty already: each had a reservation of its own, so that many
// are surplus now. It panics on a segment that is not whole blocks with one sum each, and while
// delayed allocation is off: the data would be hidden from every look-up (see Mode.Disable).
func (x *Index) Insert(s Segment) (overlaid int64) {
	if s.Off < 0 || s.Off%extent.BlockSize != 0 || int64(len(s.Sums))*extent.BlockSize != s.Len() {
		panic(fmt.Sprintf("delalloc: segment at %d of %d bytes with %d sums", s.Off, s.Len(), len(s.Sums)))
	}
	if !x.mode.add(s.Len()) {
		panic("delalloc: Insert while delayed allocation is off")
	}
	if s.First == 0 {
		s.First = s.Seq
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if overlaid = x.dirty.overlap(s.Off, s.End()); overlaid > 0 {
		x.eachLocked(s.Off, s.End(), func(e *entry) bool {
			s.inherit(&e.Segment)
			return true
		})
		x.dropLocked(s.Off, s.End())
		x.mode.sub(overlaid)
	}
	x.putLocked(s)
	x.tidyLocked()
	return overlaid
}

// Drop forgets the dirty data in the whole blocks of [off, end) and returns how many bytes that
// were. Bytes of blocks that lie only partly in it stay: Zero is for
// those. Ranges in flight are not touched: the caller must see to it that they do not bring the
// data back.
func (x *Index) Drop(off, end int64) (dropped int64) {
	off, end = extent.RoundUp(off), extent.RoundDown(end)
	if off >= end {
		return 0
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if dropped = x.dirty.overlap(off, end); dropped > 0 {
		x.dropLocked(off, end)
		x.mode.sub(dropped)
		x.tidyLocked()
	}
	return dropped
}

// Forget drops the data in the whole blocks of [off, end) that was last written by maxSeq or an
// older write; newer data over it stays. For an index that mirrors what is in flight.
func (x *Index) Forget(off, end int64, maxSeq uint64) {
	off, end = extent.RoundUp(off), extent.RoundDown(end)
	if off >= end {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	var old []extent.Range
	x.eachLocked(off, end, func(e *entry) bool {
		if e.Seq <= maxSeq {
			old = append(old, extent.Range{Off: max(off, e.Off), End: min(end, e.End())})
		}
		return true
	})
	for _, r := range old {
		x.dropLocked(r.Off, r.End)
		x.mode.sub(r.Len())
	}
	x.tidyLocked()
}

// Bytes returns the dirty bytes in the index; those in flight are not.
func (x *Index) Bytes() int64 {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.dirty.size
}

// MinSeq returns the lowest sequence that Take could still bring, in O(1): the lowest First of
// the segments that are not in flight.
func (x *Index) MinSeq() (uint64, bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.minFirst()
}

// Oldest returns since when the oldest segment that is not in flight waits, in O(1).
func (x *Index) Oldest() (time.Time, bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.minSince()
}

// Complete reports, in O(1), whether there is a run of the mode's range size.
func (x *Index) Complete() bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.dirty.full.Len() > 0
}

// eachLocked calls f for the segments that overlap [off, end), in order, while it returns
// true. f must not change the index.
func (x *Index) eachLocked(off, end int64, f func(*entry) bool) {
	more := true
	x.segments.Descend(off, func(start int64, e *entry) bool {
		if start < off && e.End() > off && off < end {
			more = f(e)
		}
		return start == off
	})
	if !more {
		return
	}
	x.segments.Ascend(off, func(start int64, e *entry) bool { return start < end && f(e) })
}

// putLocked puts s, which overlaps nothing, into the index.
func (x *Index) putLocked(s Segment) {
	e := &entry{Segment: s}
	x.segments.Set(s.Off, e)
	x.dirty.add(s.Off, s.End())
	x.bySeq.insert(e)
	x.byAge.insert(e)
}

// forgetLocked removes e from all but the runs; the reference to its memory stays with the
// caller.
func (x *Index) forgetLocked(e *entry) {
	x.segments.Delete(e.Off)
	e.gone = true
	x.bySeq.forget()
	x.byAge.forget()
}

// dropLocked takes [off, end) out of the index and releases its memory.
func (x *Index) dropLocked(off, end int64) {
	for _, s := range x.cutLocked(off, end) {
		s.Buf.Free()
	}
}

// cutLocked takes [off, end) out of the index and returns the pieces in order. Their memory is
// the caller's.
func (x *Index) cutLocked(off, end int64) []Segment {
	var hit []*entry
	x.eachLocked(off, end, func(e *entry) bool {
		hit = append(hit, e)
		return true
	})
	x.dirty.remove(off, end)
	pieces := make([]Segment, len(hit))
	for i, e := range hit {
		x.forgetLocked(e)
		start, stop := max(off, e.Off), min(end, e.End())
		if e.Off < start {
			x.putLocked(e.part(e.Off, start))
		}
		if stop < e.End() {
			x.putLocked(e.part(stop, e.End()))
		}
		if start == e.Off && stop == e.End() {
			pieces[i] = e.Segment
		} else {
			pieces[i] = e.part(start, stop)
			e.Buf.Free()
		}
	}
	return pieces
}

func (x *Index) tidyLocked() {
	x.bySeq.tidy()
	x.byAge.tidy()
}
