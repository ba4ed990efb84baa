package store

import (
	"encoding/binary"

	"github.com/shingle-store/shingle/internal/extent"
)

// LookFile is LookLive for the blocks that a file refers to from offset off on: Next is an offset, and
// the end of what is looked at that of the file. A block or frame that several places of one mapping use
// is in the answer of the look that comes to the first of them. At least one frame is taken, also where
// it has more than room blocks.
func (tx *Tx) LookFile(file uint64, off, room int64, placement uint64) (look LiveLook, err error) {
	look.Next = extent.MaxFileSize
	w := &sumWalk{tx: tx, look: &look, sums: make([]uint32, 0, max(room, extent.MaxFrameSize/extent.BlockSize))}
	c := tx.cursor(bFileExtents)
	k, p, err := c.floor(key64(file, uint64(off)))
	if err == nil && (k == nil || binary.BigEndian.Uint64(k) != file) {
		k, p, err = c.seek(key64(file, uint64(off)))
	}
	var u *units
	for read := 0; k != nil || err != nil; k, p, err = c.next() {
		e, bad := fileExtentOf(c, k, p, err)
		if bad != nil {
			if bad.at == nil {
				return look, bad.err
			}
			if id := bad.at; len(id) == 16 && binary.BigEndian.Uint64(id) == file && int64(binary.BigEndian.Uint64(id[8:])) >= off {
				look.Damaged = append(look.Damaged, DamagedRecord{Bucket: bFileExtents.String(), Key: id})
			}
			continue
		}
		if e.File != file {
			break
		}
		if e.End() <= off {
			continue
		}
		if read++; read > mostLooked {
			look.Next = e.Off
			break
		}
		if u == nil || e.Addr < u.Addr || e.Addr >= u.End() {
			look.ExtentLookups++
			if u, err = tx.extentAt(e.Addr); err != nil {
				u = nil
				look.damagedFrom(&badRead{bExtents, key64(uint64(e.Addr)), err}, 0)
				continue
			}
			look.Extents++
		}
		if u.Placement > placement {
			continue
		}
		taken, next, err := tx.takeFile(w, u, &e, max(e.Off, off), room)
		if err != nil {
			return look, err
		}
		if room -= taken; next < e.End() {
			look.Next = next
			break
		}
	}
	return look, nil
}

func fileExtentOf(c *cursor, k, p []byte, err error) (e FileExtent, bad *badRead) {
	if err != nil {
		return e, &badRead{bFileExtents, c.at, err}
	}
	if e, err = decodeFileExtent(k, p); err != nil {
		return e, &badRead{bFileExtents, append([]byte(nil), k...), err}
	}
	return e, nil
}

// takeFile takes the units that e uses from the offset from on, all but the first one where a place
// before from uses that too, in at most room blocks. next is where it stopped.
func (tx *Tx) takeFile(w *sumWalk, u *units, e *FileExtent, from, room int64) (taken, next int64, err error) {
	s, err := u.place(e)
	if err != nil {
		w.look.damagedFrom(&badRead{bFileExtents, e.key(), err}, 0)
		return 0, e.End(), nil
	}
	line := s.from - e.Off
	first, last := u.touched(span{from + line, s.to})
	if begins := u.decodedAt(first) - line; begins < from {
		used, err := tx.usesUnit(e.File, max(0, begins), from, u, first)
		if err != nil {
			return 0, 0, err
		}
		if used {
			first++
		}
	}
	if first > last {
		return 0, e.End(), nil
	}
	end := last + 1
	if u.raw() {
		end = min(end, first+int(room))
	} else {
		for end = first; end <= last; end++ {
			if n := (u.storedAt(end+1) - u.storedAt(first)) / extent.BlockSize; n > room && (end > first || w.look.Blocks > 0) {
				break
			}
		}
	}
	taken = (u.storedAt(end) - u.storedAt(first)) / extent.BlockSize
	if taken > 0 {
		err = w.take(u.Addr+extent.Addr(u.storedAt(first)), taken)
	}
	if end > last {
		return taken, e.End(), err
	}
	return taken, max(from, u.decodedAt(end)-line), err
}

// usesUnit reports whether the file refers to unit i of u between the offsets from and to.
func (tx *Tx) usesUnit(file uint64, from, to int64, u *units, i int) (used bool, err error) {
	lo, hi := u.Addr+extent.Addr(u.storedAt(i)), u.Addr+extent.Addr(u.storedAt(i+1))
	err = tx.FileExtents(file, from, to, func(e FileExtent) bool {
		if e.Addr < u.Addr || e.Addr >= u.End() {
			return true
		}
		if s, perr := u.place(&e); perr == nil {
			a, b := u.touched(s)
			used = u.Addr+extent.Addr(u.storedAt(a)) < hi && u.Addr+extent.Addr(u.storedAt(b+1)) > lo
		}
		return !used
	})
	return used, err
}
