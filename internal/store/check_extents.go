package store

import (
	"github.com/shingle-store/shingle/internal/extent"
)

// extents walks extents, checksums, back-references and bitmaps in step, all in address order.
func (c *checker) extents() error {
	xs, err := c.stream(bExtents)
	if err != nil {
		return err
	}
	sums, err := c.stream(bChecksums)
	if err != nil {
		return err
	}
	refs, err := c.stream(bBackRefs)
	if err != nil {
		return err
	}
	marks, err := c.bitmaps()
	if err != nil {
		return err
	}
	var end extent.Addr
	for ; err == nil && xs.k != nil; err = xs.next() {
		x, derr := decodeExtent(xs.k, xs.p)
		if derr != nil {
			c.problem(bExtents, xs.k, "%v", derr)
			continue
		}
		c.found.replace(Totals{}, x.totals())
		if x.Addr < end {
			c.problem(bExtents, xs.k, "overlaps the extent before it, which ends at %#x", uint64(end))
		}
		end = max(end, x.End())
		c.extent(xs.k, &x)
		if err := marks.extent(&x); err != nil {
			return err
		}
		if err := c.sums(sums, xs.k, &x); err != nil {
			return err
		}
		if err := c.refs(refs, xs.k, newUnits(x)); err != nil {
			return err
		}
	}
	if err != nil {
		return err
	}
	if err := c.sums(sums, nil, nil); err != nil {
		return err
	}
	if err := c.refs(refs, nil, nil); err != nil {
		return err
	}
	if err := marks.end(); err != nil {
		return err
	}
	for slot, g := range c.groups {
		if g.live != g.LiveBytes {
			c.problem(bBlockGroups, key32(slot), "counts %d live bytes and has %d", g.LiveBytes, g.live)
		}
		if g.end > g.AllocOffset && g.Kind != KindConventional {
			c.problem(bBlockGroups, key32(slot), "alloc_offset %d is below the end of its last extent, %d", g.AllocOffset, g.end)
		}
	}
	return nil
}

// extent checks an extent by itself and adds it to its block group.
func (c *checker) extent(k []byte, x *Extent) {
	if seq := c.tx.super.CommitSequence; x.Birth > seq || x.Placement > seq {
		c.problem(bExtents, k, "born at %d and placed at %d, after the last commit %d", x.Birth, x.Placement, seq)
	}
	slot, off := c.tx.slotOf(x.Addr)
	g := c.groups[uint32(slot)]
	if g == nil || slot > max32 {
		c.problem(bExtents, k, "lies in block group %d, which does not exist", slot)
		return
	}
	stored := x.Blocks * extent.BlockSize
	if off+stored > g.Capacity {
		c.problem(bExtents, k, "passes the end of block group %d", slot)
	}
	g.live += stored
	g.end = max(g.end, off+stored)
}

// sums checks that the checksum records up to the end of x tile x and lie nowhere else; with
// x nil that none are left.
func (c *checker) sums(s *stream, xk []byte, x *Extent) error {
	var at extent.Addr
	if x != nil {
		at = x.Addr
	}
	for ; s.k != nil; s.next() {
		if err := c.ctx.Err(); err != nil {
			return err
		}
		r, err := decodeSums(s.k, s.p)
		switch {
		case err != nil:
			c.problem(bChecksums, s.k, "%v", err)
			continue
		case x == nil || r.addr < at:
			c.problem(bChecksums, s.k, "belongs to no extent, or is there twice")
			continue
		case r.addr >= x.End():
			if at < x.End() {
				c.problem(bExtents, xk, "has no checksums from %#x on", uint64(at))
			}
			return nil
		case r.addr > at:
			c.problem(bExtents, xk, "has no checksums from %#x to %#x", uint64(at), uint64(r.addr))
		}
		if at = r.end(); at > x.End() {
			c.problem(bChecksums, s.k, "crosses the end of its extent")
		}
	}
	if x != nil && at < x.End() {
		c.problem(bExtents, xk, "has no checksums from %#x on", uint64(at))
	}
	return nil
}

// refs checks the back-references up to the end of u: each matches its file extent, together
// they cover all of u, and unless u is shared they belong to one mapping.
func (c *checker) refs(s *stream, xk []byte, u *units) error {
	covered := 0 // units below are referred to
	var line int64
	var file uint64
	for n := 0; s.k != nil; s.next() {
		if err := c.ctx.Err(); err != nil {
			return err
		}
		r, err := decodeBackRef(s.k, s.p)
		if err != nil {
			c.problem(bBackRefs, s.k, "%v", err)
			continue
		}
		if u == nil || r.Addr < u.Addr {
			c.problem(bBackRefs, s.k, "belongs to no extent")
			continue
		}
		if r.Addr >= u.End() {
			break
		}
		from, ok := u.beginning(int64(r.Addr - u.Addr))
		to, fits := u.ending(int64(r.Addr-u.Addr) + r.Stored)
		if !ok || !fits {
			c.problem(bBackRefs, s.k, "does not lie on the units of its extent")
			continue
		}
		if from > covered {
			c.problem(bExtents, xk, "nothing refers to units %d to %d", covered, from)
		}
		covered = max(covered, to)
		l, ok := c.ref(s.k, u, r)
		if !ok {
			continue
		}
		if n == 0 {
			line, file = l, r.File
		} else if !u.Shared && (l != line || r.File != file) {
			c.problem(bExtents, xk, "is not marked as shared, and is: by file %d and file %d", file, r.File)
		}
		n++
	}
	if u != nil && covered < u.count() {
		c.problem(bExtents, xk, "nothing refers to its units from %d on", covered)
	}
	return nil
}

// ref holds a back-reference against its file extent and returns that one's line.
func (c *checker) ref(k []byte, u *units, r BackRef) (line int64, ok bool) {
	fk := key64(r.File, uint64(r.Off))
	p, ok, err := c.tx.get(bFileExtents, fk)
	if err != nil {
		return 0, false // reported by nodes
	}
	if !ok {
		c.problem(bBackRefs, k, "file %d has no extent at %d", r.File, r.Off)
		return 0, false
	}
	e, err := decodeFileExtent(fk, p)
	if err != nil {
		return 0, false
	}
	if e.Addr != r.Addr {
		c.problem(bBackRefs, k, "file %d maps address %#x at %d", r.File, uint64(e.Addr), r.Off)
		return 0, false
	}
	s, err := u.place(&e)
	if err != nil {
		return 0, false
	}
	if got := u.storedLen(s); got != r.Stored {
		c.problem(bBackRefs, k, "says %d stored bytes, its file extent uses %d", r.Stored, got)
	}
	return s.from - e.Off, true
}
