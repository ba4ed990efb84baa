package delalloc

import "github.com/tidwall/btree"

// runs is a set of bytes kept as disjoint ranges that do not touch each other. All methods are
// O(log n) and linear in the number of runs they merge, cut or visit. The zero value is empty.
type runs struct {
	ends btree.Map[int64, int64] // start -> end
	size int64                   // bytes in all
	// full is the starts of the runs of at least `whole` bytes; unused while whole is 0.
	full  btree.Set[int64]
	whole int64
}

func (r *runs) set(start, end int64) {
	r.ends.Set(start, end)
	r.size += end - start
	if r.whole > 0 && end-start >= r.whole {
		r.full.Insert(start)
	}
}

func (r *runs) unset(start, end int64) {
	r.ends.Delete(start)
	r.size -= end - start
	if r.whole > 0 && end-start >= r.whole {
		r.full.Delete(start)
	}
}

// find returns the run that contains off or, failing that, the first one after it.
func (r *runs) find(off int64) (start, end int64, ok bool) {
	if s, e, ok := r.before(off); ok && e > off {
		return s, e, true
	}
	r.ends.Ascend(off, func(s, e int64) bool {
		start, end, ok = s, e, true
		return false
	})
	return start, end, ok
}

// before returns the last run that starts at or before off.
func (r *runs) before(off int64) (start, end int64, ok bool) {
	r.ends.Descend(off, func(s, e int64) bool {
		start, end, ok = s, e, true
		return false
	})
	return start, end, ok
}

// add puts [start, end), not empty, into the set.
func (r *runs) add(start, end int64) {
	if s, e, ok := r.before(start); ok && e >= start {
		if e >= end {
			return
		}
		r.unset(s, e)
		start = s
	}
	for {
		s, e, ok := r.find(start)
		if !ok || s > end {
			break
		}
		r.unset(s, e)
		end = max(end, e)
	}
	r.set(start, end)
}

// remove takes [start, end) out of the set and returns how many bytes of it were in it.
func (r *runs) remove(start, end int64) (removed int64) {
	for {
		s, e, ok := r.find(start)
		if !ok || s >= end {
			return removed
		}
		r.unset(s, e)
		if s < start {
			r.set(s, start)
		}
		if e > end {
			r.set(end, e)
		}
		removed += min(e, end) - max(s, start)
	}
}

// overlap returns how many bytes of [start, end) are in the set.
func (r *runs) overlap(start, end int64) (n int64) {
	if _, e, ok := r.before(start); ok && e > start {
		n += min(e, end) - start
		start = min(e, end)
	}
	r.ends.Ascend(start, func(s, e int64) bool {
		if s >= end {
			return false
		}
		n += min(e, end) - s
		return true
	})
	return n
}

// findFull returns the first run, from off on, with at least `whole` bytes at or after off. A
// run that off cuts is returned from its start.
func (r *runs) findFull(off int64) (start, end int64, ok bool) {
	if start, end, ok = r.before(off); ok && end-off >= r.whole {
		return start, end, true
	}
	ok = false
	r.full.Ascend(off, func(s int64) bool {
		start, ok = s, true
		return false
	})
	if ok {
		end, _ = r.ends.Get(start)
	}
	return start, end, ok
}
