package delalloc

import (
	"time"

	"github.com/shingle-store/shingle/internal/extent"
)

// Selection says what Take may take. The zero value takes the first run, whatever it is.
type Selection struct {
	From int64 // only data at or after this offset, rounded up to the block
	// Max is the most bytes to take, rounded down to the block; 0 or more than the mode's
	// range size means that.
	Max int64
	// MaxSeq, unless 0: only ranges with a segment whose First is not above it.
	MaxSeq uint64
	// Before, unless zero: only ranges with a segment whose Since is before it.
	Before time.Time
	// CompleteOnly: only ranges of the mode's full range size; Max is not looked at.
	CompleteOnly bool
}

// Take removes the first range that sel allows from the index and returns it; false means that
// there is none. A range is contiguous. A run longer than Max is taken in
// pieces of Max from its start (or From), and with MaxSeq or Before the first piece that
// qualifies.
//
// Newer data over a range in flight may be taken too. The owner must publish ranges over the
// same blocks in the order in which they were taken.
//
// O(log n) and linear in the segments taken; with MaxSeq or Before also in the segments passed
// over, so a caller that takes all of a file should let From follow the last range's End.
func (x *Index) Take(sel Selection) (Range, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	off, end, ok := x.selectLocked(sel)
	if !ok {
		return Range{}, false
	}
	r := rangeOf(x.cutLocked(off, end))
	r.index = x
	x.tidyLocked()
	c := &x.mode.Counters
	c.Ranges.Add(1)
	c.RangeBytes.Add(uint64(end - off))
	for {
		largest := c.LargestRange.Load()
		if end-off <= largest || c.LargestRange.CompareAndSwap(largest, end-off) {
			return r, true
		}
	}
}

// selectLocked returns the range that Take takes.
func (x *Index) selectLocked(sel Selection) (off, end int64, ok bool) {
	if first, some := x.minFirst(); !some || sel.MaxSeq > 0 && first > sel.MaxSeq {
		return 0, 0, false
	}
	if since, _ := x.minSince(); !sel.Before.IsZero() && !since.Before(sel.Before) {
		return 0, 0, false
	}
	limit, find := x.mode.rangeSize, x.dirty.find
	if sel.CompleteOnly {
		find = x.dirty.findFull
	} else if m := extent.RoundDown(sel.Max); m > 0 {
		limit = min(limit, m)
	}
	for pos := extent.RoundUp(max(0, sel.From)); ; {
		off, end, ok = find(pos)
		if !ok {
			return 0, 0, false
		}
		off = max(off, pos)
		pos = end
		if sel.CompleteOnly {
			if end -= (end - off) % limit; off == end {
				continue
			}
		}
		if wanted, some := x.wantedLocked(off, end, sel); some {
			off += (wanted - off) / limit * limit
			return off, min(end, off+limit), true
		}
	}
}

// wantedLocked returns where in [off, end), all of it dirty, the first segment begins that
// MaxSeq and Before allow.
func (x *Index) wantedLocked(off, end int64, sel Selection) (at int64, ok bool) {
	if sel.MaxSeq == 0 && sel.Before.IsZero() {
		return off, true
	}
	x.eachLocked(off, end, func(e *entry) bool {
		if (sel.MaxSeq == 0 || e.First <= sel.MaxSeq) && (sel.Before.IsZero() || e.Since.Before(sel.Before)) {
			at, ok = max(off, e.Off), true
		}
		return !ok
	})
	return at, ok
}
