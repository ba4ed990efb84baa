package store

import (
	"cmp"
	"slices"

	"github.com/shingle-store/shingle/internal/extent"
)

// DropRange cuts the mapping of file to the bytes outside [off, end): byte-exactly, without
// touching data. Blocks (raw) and frames that nothing refers to any more die: their extent
// record is split around them, their checksums go, and their block group's live bytes fall.
// The node is the caller's to put (Node.Add).
//
// At most limit file extents are cut a call (0: all). done is false if some are left; next
// is then where to go on: DropRange(file, next, end, limit). The cost is O(log n) for each
// file extent; for shared extents also the back-references of the extent that are read until all
// that was let go is found to be referred to (referrers), and all of them when it dies.
func (tx *Tx) DropRange(file uint64, off, end int64, limit int) (d Delta, done bool, next int64, err error) {
	off, end = max(off, 0), min(end, extent.MaxFileSize)
	dr := dropper{tx: tx, file: file}
	done, next = true, end
	var cut []FileExtent
	err = tx.FileExtents(file, off, end, func(e FileExtent) bool {
		if limit > 0 && len(cut) == limit {
			done, next = false, e.Off
			return false
		}
		cut = append(cut, e)
		return true
	})
	if err != nil {
		return d, false, off, err
	}
	for _, e := range cut {
		if err := dr.drop(e, max(e.Off, off), min(e.End(), end)); err != nil {
			return dr.d, false, off, err
		}
	}
	if err := dr.flush(); err != nil {
		return dr.d, false, off, err
	}
	dr.d.Cuts = len(cut)
	return dr.d, done, next, nil
}

// dropper drops the file extents of one call. The dead units of an extent are gathered while
// file extents of the same extent follow each other, so that deleting a file rewrites each
// extent record once, however fragmented the mapping is.
type dropper struct {
	tx   *Tx
	file uint64
	d    Delta
	u    *units // the extent that dead belongs to; its record is as it was before
	dead []unitRange
}

func (dr *dropper) within(a extent.Addr) bool {
	return dr.u != nil && a >= dr.u.Addr && a < dr.u.End()
}

func (dr *dropper) drop(e FileExtent, from, to int64) error {
	if !dr.within(e.Addr) {
		if err := dr.flush(); err != nil {
			return err
		}
		u, err := dr.tx.extentAt(e.Addr)
		if err != nil {
			return err
		}
		dr.u = u
	}
	u := dr.u
	s, err := u.place(&e)
	if err != nil {
		return err
	}
	line := s.from - e.Off // decoded offset = file offset + line
	if err := dr.tx.delMapping(e); err != nil {
		return err
	}
	for _, keep := range []extent.Range{{Off: e.Off, End: from}, {Off: to, End: e.End()}} {
		if keep.Len() == 0 {
			continue
		}
		s := span{keep.Off + line, keep.End + line}
		if err := dr.tx.putMapping(u, u.fileExtent(dr.file, keep.Off, s), s); err != nil {
			return err
		}
	}
	dr.d.Allocated -= to - from

	// Only the first and the last unit can be used by another part of the same mapping: the
	// file bytes of those between are all in the part that went.
	first, last := u.touched(span{from + line, to + line})
	gone := unitRange{first, last + 1}
	used, err := dr.tx.mapsUnit(dr.file, u, first, line)
	if err != nil {
		return err
	}
	if used {
		gone.from++
	}
	if last > first {
		if used, err = dr.tx.mapsUnit(dr.file, u, last, line); err != nil {
			return err
		}
		if used {
			gone.to--
		}
	}
	if gone.from >= gone.to {
		return nil
	}
	dr.d.Stored -= u.storedAt(gone.to) - u.storedAt(gone.from)
	if !u.Shared {
		dr.dead = append(dr.dead, gone)
		return nil
	}
	dead, err := dr.tx.unreferenced(u, gone, e.backRefKey())
	dr.dead = append(dr.dead, dead...)
	return err
}

// flush splits the extent around its dead units.
func (dr *dropper) flush() error {
	u, dead := dr.u, dr.dead
	dr.u, dr.dead = nil, nil
	if len(dead) == 0 {
		return nil
	}
	slices.SortFunc(dead, func(a, b unitRange) int { return cmp.Compare(a.from, b.from) })
	if err := dr.tx.removeExtent(&u.Extent); err != nil {
		return err
	}
	at := func(unit int) extent.Addr { return u.Addr + extent.Addr(u.storedAt(unit)) }
	var freed int64
	live := 0 // units below are dealt with
	for i := 0; i < len(dead); {
		r := dead[i]
		for i++; i < len(dead) && dead[i].from <= r.to; i++ {
			r.to = max(r.to, dead[i].to)
		}
		if err := dr.tx.putPart(u, unitRange{live, r.from}); err != nil {
			return err
		}
		if err := dr.tx.dropSums(at(r.from), at(r.to)); err != nil {
			return err
		}
		freed += int64(at(r.to) - at(r.from))
		live = r.to
	}
	if err := dr.tx.putPart(u, unitRange{live, u.count()}); err != nil {
		return err
	}
	slot, _ := dr.tx.slotOf(u.Addr)
	dr.d.freed(uint32(slot), freed)
	return dr.tx.addLive(uint32(slot), -freed, 0)
}

// putPart writes an extent record for units r of u, unless r is empty.
func (tx *Tx) putPart(u *units, r unitRange) error {
	if r.from >= r.to {
		return nil
	}
	x := u.Extent
	x.Addr = u.Addr + extent.Addr(u.storedAt(r.from))
	x.Blocks = (u.storedAt(r.to) - u.storedAt(r.from)) / extent.BlockSize
	if !u.raw() {
		x.Frames = u.Frames[r.from:r.to]
	}
	return tx.addExtent(&x)
}
