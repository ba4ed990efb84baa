package store

import "github.com/shingle-store/shingle/internal/extent"

// Mapped is a range of a file that lies in one piece (MapFile).
type Mapped struct {
	Off, Len int64       // bytes of the file
	Addr     extent.Addr // of the first block (raw) or frame it uses
	Skip     int64       // decoded bytes in that unit before the range
	Stored   int64       // bytes of all the blocks or frames it uses
	Codec    extent.Codec
	// Shared: another file, or another place of this one, refers to some of them too. Where
	// the budget did not last to find out, true.
	Shared bool
}

// Mapped returns the first range in [off, end) that file maps; ok is false if there is none.
// *budget is how many back-references may be read to tell whether it is shared; what was read is
// taken off. Only extents that once were shared cost any.
func (tx *Tx) Mapped(file uint64, off, end int64, budget *int) (m Mapped, ok bool, err error) {
	var e FileExtent
	err = tx.FileExtents(file, off, end, func(x FileExtent) bool { e, ok = x, true; return false })
	if err != nil || !ok {
		return m, false, err
	}
	u, err := tx.extentAt(e.Addr)
	if err != nil {
		return m, false, err
	}
	s, err := u.place(&e)
	if err != nil {
		return m, false, err
	}
	line := s.from - e.Off
	m.Off, m.Codec = max(e.Off, off), u.Codec
	m.Len = min(e.End(), end) - m.Off
	s = span{m.Off + line, m.Off + m.Len + line}
	part := u.fileExtent(file, m.Off, s)
	m.Addr, m.Skip, m.Stored = part.Addr, part.Skip, u.storedLen(s)
	if u.Shared {
		m.Shared, err = tx.sharedWith(u, s, &e, budget)
	}
	return m, true, err
}

// sharedWith reports whether anything but the mapping that e belongs to refers to the units of s.
func (tx *Tx) sharedWith(u *units, s span, e *FileExtent, budget *int) (shared bool, err error) {
	first, last := u.touched(s)
	own, err := u.place(e)
	if err != nil {
		return false, err
	}
	line := own.from - e.Off
	end := u.Addr + extent.Addr(u.storedAt(last+1))
	err = tx.referrers(u.Addr, end, e.backRefKey(), func(b BackRef) (bool, error) {
		if *budget--; *budget < 0 {
			shared = true
			return false, nil
		}
		r, err := u.referred(b)
		if err != nil {
			return false, err
		}
		if r.from > last || r.to <= first || b.File == e.File && b.Off == e.Off {
			return true, nil
		}
		shared = b.File != e.File
		if !shared {
			// A piece of the same mapping, which was cut inside a unit, is not another place.
			other, err := tx.lineOf(u, b)
			if err != nil {
				return false, err
			}
			shared = other != line
		}
		return !shared, nil
	})
	return shared, err
}

// lineOf returns decoded offset less file offset of the mapping that b belongs to.
func (tx *Tx) lineOf(u *units, b BackRef) (line int64, err error) {
	found := false
	var bad error
	err = tx.FileExtents(b.File, b.Off, b.Off+1, func(e FileExtent) bool {
		if e.Off == b.Off && e.Addr == b.Addr {
			var s span
			s, bad = u.place(&e)
			line, found = s.from-e.Off, true
		}
		return false
	})
	switch {
	case err != nil:
		return 0, err
	case bad != nil:
		return 0, bad
	case !found:
		return 0, corrupt("store.Mapped", bBackRefs.object(key64(uint64(b.Addr), b.File, uint64(b.Off))), "has no file extent")
	}
	return line, nil
}
