package store

import (
	"github.com/shingle-store/shingle/internal/extent"
)

// CloneRange makes file dst share what file src maps in [off, end), at the same offsets: file
// extents and back-references for dst, and the extents marked as shared. Nothing comes to life or
// dies. dst may map nothing in the range: Internal else, before any change. The node of dst is
// the caller's to put (Node.Add). Holes stay holes; inline data is not looked at.
//
// At most limit file extents are cloned a call (0: all). done is false if some are left; next is
// then where to go on: CloneRange(src, dst, next, end, limit). The cost is O(log n) for each,
// whatever else refers to the extents.
func (tx *Tx) CloneRange(src, dst uint64, off, end int64, limit int) (d Delta, done bool, next int64, err error) {
	off, end = max(off, 0), min(end, extent.MaxFileSize)
	var from []FileExtent
	done, next = true, end
	err = tx.FileExtents(src, off, end, func(e FileExtent) bool {
		if limit > 0 && len(from) == limit {
			done, next = false, e.Off
			return false
		}
		from = append(from, e)
		return true
	})
	if err != nil {
		return d, false, off, err
	}
	var taken *FileExtent
	if err := tx.FileExtents(dst, off, next, func(e FileExtent) bool { taken = &e; return false }); err != nil {
		return d, false, off, err
	}
	if taken != nil {
		return d, false, off, internal("store.CloneRange", taken.object(), "is still mapped where a clone is to go")
	}
	var u *units
	for _, e := range from {
		if u == nil || e.Addr < u.Addr || e.Addr >= u.End() {
			if u, err = tx.share(e.Addr); err != nil {
				return d, false, off, err
			}
		}
		if err := tx.cloneMapping(u, e, dst, max(e.Off, off), min(e.End(), end), &d); err != nil {
			return d, false, off, err
		}
	}
	d.Cuts = len(from)
	return d, done, next, nil
}

// share marks the extent that holds address a as shared and returns it.
func (tx *Tx) share(a extent.Addr) (*units, error) {
	u, err := tx.extentAt(a)
	if err != nil || u.Shared {
		return u, err
	}
	u.Shared = true
	return u, tx.putExtent(&u.Extent)
}

// cloneMapping makes dst map what e, which lies in u, maps in the file bytes [from, to).
func (tx *Tx) cloneMapping(u *units, e FileExtent, dst uint64, from, to int64, d *Delta) error {
	s, err := u.place(&e)
	if err != nil {
		return err
	}
	line := s.from - e.Off
	s = span{from + line, to + line}
	// A unit that dst maps on this line already counts only once for it.
	first, last := u.touched(s)
	d.Stored += u.storedLen(s)
	for _, i := range []int{first, last} {
		mapped, err := tx.mapsUnit(dst, u, i, line)
		if err != nil {
			return err
		}
		if mapped {
			d.Stored -= u.storedAt(i+1) - u.storedAt(i)
		}
		if first == last {
			break
		}
	}
	d.Allocated += to - from
	return tx.putMapping(u, u.fileExtent(dst, from, s), s)
}

// mapsUnit reports whether file maps part of unit i of u on the line: where decoded offset =
// file offset + line.
func (tx *Tx) mapsUnit(file uint64, u *units, i int, line int64) (mapped bool, err error) {
	var bad error
	from := max(0, u.decodedAt(i)-line)
	err = tx.FileExtents(file, from, u.decodedAt(i+1)-line, func(e FileExtent) bool {
		if e.Addr >= u.Addr && e.Addr < u.End() {
			var s span
			s, bad = u.place(&e)
			mapped = s.from-e.Off == line
		}
		return !mapped && bad == nil
	})
	if bad != nil {
		return false, bad
	}
	return mapped, err
}
