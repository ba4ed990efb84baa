package delalloc

import "github.com/shingle-store/shingle/internal/extent"

// The look-ups of delayed data. Each first asks the mode and returns at once when delayed
// allocation is off: nothing can be found then, and a scan to learn so is what made the
// published system slow (S4). Every look-up must begin like this.

// Copy copies the dirty bytes of [off, off+len(p)) to their places in p and leaves the other
// bytes of p alone. It calls covered, unless nil, for each range [start, end) it copied, in
// order, with the index locked: covered must not use the index. O(log n) and linear in the
// segments copied from.
func (x *Index) Copy(off int64, p []byte, covered func(start, end int64)) {
	if !x.mode.Enabled() {
		return
	}
	x.mode.Counters.Scans.Add(1)
	x.mu.RLock()
	defer x.mu.RUnlock()
	end := off + int64(len(p))
	x.eachLocked(off, end, func(e *entry) bool {
		start, stop := max(off, e.Off), min(end, e.End())
		copy(p[start-off:stop-off], e.Buf.Bytes()[start-e.Off:])
		if covered != nil {
			covered(start, stop)
		}
		return true
	})
}

// CopyBlock copies the block at off, a multiple of the block, to dst, which must have room
// for it, if it is dirty, and reports whether it is. For a write that covers a block in part.
func (x *Index) CopyBlock(off int64, dst []byte) bool {
	found := false
	x.Copy(off, dst[:extent.BlockSize], func(_, _ int64) { found = true })
	return found
}

// Next returns the first delayed range at or after off: from off itself if that is dirty, to
// the next byte that is not. Ok is false if there is none. O(log n).
func (x *Index) Next(off int64) (start, end int64, ok bool) {
	if !x.mode.Enabled() {
		return 0, 0, false
	}
	x.mode.Counters.Scans.Add(1)
	x.mu.RLock()
	defer x.mu.RUnlock()
	if start, end, ok = x.dirty.find(off); !ok {
		return 0, 0, false
	}
	return max(start, off), end, true
}

// Dirty returns how many bytes of [off, end) are dirty. O(log n), and linear in the runs in the
// range.
func (x *Index) Dirty(off, end int64) int64 {
	if !x.mode.Enabled() || off >= end {
		return 0
	}
	x.mode.Counters.Scans.Add(1)
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.dirty.overlap(off, end)
}
