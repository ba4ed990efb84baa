package store

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
)

// Move says that stored blocks have been copied: those at [From, From+Blocks*4096) lie at To too,
// appended and flushed. They are part of one extent as it was recorded when they were read, and both
// ends are borders of its blocks (raw) or frames.
type Move struct {
	From, To extent.Addr
	Blocks   int64
}

func (m *Move) end() extent.Addr { return m.From + extent.Addr(m.Blocks*extent.BlockSize) }

// at returns where the copy of what lies at a is.
func (m *Move) at(a extent.Addr) extent.Addr { return m.To + (a - m.From) }

// MoveExtents points everything that still refers to the old place of moves to the new one: file
// extents, split where a move ends inside them, back-references, extents (birth and Shared as they
// were, placement of this commit), the checksums on record, live bytes. What died since it was
// copied is passed over: its copy stays without a record. What was not copied stays where it is.
// A place that was written anew since the copy must not be among moves: the caller keeps that from
// happening.
//
// About limit references move in a call (0: all), more only where a file uses parts of the same frames
// many times over. rest is what is left to do then: MoveExtents
// with it in a later transaction goes on. Between the two, an extent may have a copy in both places,
// each with the references that point to it; both are whole. Of d, Freed is what died in the old
// place and Added what came to life in the new one, in stored bytes.
//
// Corruption if the records do not agree with each other or with the borders of a move; whatever
// was changed by then must not be committed.
func (tx *Tx) MoveExtents(moves []Move, limit int) (d Delta, rest []Move, err error) {
	mv := mover{tx: tx, limited: limit > 0, left: limit}
	for i, m := range moves {
		done, err := mv.move(m)
		if err != nil {
			return mv.d, moves[i:], err
		}
		if !done {
			return mv.d, moves[i:], nil
		}
	}
	return mv.d, nil, nil
}

// mover moves the extents of one call.
type mover struct {
	tx      *Tx
	d       Delta
	limited bool
	left    int // with a limit: references that may still move
}

// move moves what is live of m, and reports whether that is all.
func (mv *mover) move(m Move) (done bool, err error) {
	if m.Blocks <= 0 || m.From%extent.BlockSize != 0 || m.To%extent.BlockSize != 0 {
		return false, errdefs.Invalid("store.MoveExtents", "moves", "a move is not of whole blocks")
	}
	from, err := mv.tx.overlapping(m.From, m.end())
	if err != nil {
		return false, err
	}
	for _, x := range from {
		if done, err = mv.moveExtent(newUnits(x), m); !done || err != nil {
			return done, err
		}
	}
	return true, nil
}

// overlapping returns the extents that overlap [from, to).
func (tx *Tx) overlapping(from, to extent.Addr) (xs []Extent, err error) {
	err = tx.ExtentsIn(from, to, func(x Extent) bool { xs = append(xs, x); return true })
	return xs, err
}

// moveExtent moves the part of u that lies in m.
func (mv *mover) moveExtent(u *units, m Move) (done bool, err error) {
	if mv.limited && mv.left <= 0 {
		return false, nil
	}
	r, err := u.within(m.From, m.end())
	if err != nil {
		return false, err
	}
	refs, all, err := mv.refs(u, r)
	if err != nil {
		return false, err
	}
	twice, err := mv.countedTwice(m, u, r, refs)
	if err != nil {
		return false, err
	}
	// The new record is that of the whole part until its borders are known: addresses in it are
	// the same whichever of its units are recorded.
	part := u.part(r, m.at(u.address(r.from)))
	var moved []unitRange
	var near []byte // the key of one of them
	for _, ref := range refs {
		s, err := mv.moveRef(u, r, part, ref)
		if err != nil {
			return false, err
		}
		moved = append(moved, s)
		near = key64(uint64(ref.Addr), ref.File, uint64(ref.Off))
	}
	mv.left -= len(refs)
	if err := mv.countOnce(twice); err != nil {
		return false, err
	}
	return all, mv.settle(m, u, r, part, moved, near)
}

// countedTwice answers, by file, the stored bytes of the units r of u that refs use and that the same
// file uses on the same line in the new place already: it has taken parts of one unit from files of
// which one had moved. They are two units to it until refs have moved too.
func (mv *mover) countedTwice(m Move, u *units, r unitRange, refs []BackRef) (map[uint64]int64, error) {
	there, err := mv.tx.overlapping(m.To, m.To+extent.Addr(m.Blocks*extent.BlockSize))
	if err != nil || len(there) == 0 {
		return nil, err
	}
	type use struct {
		file uint64
		i    int
		line int64
	}
	seen, twice := map[use]bool{}, map[uint64]int64{}
	for _, ref := range refs {
		e, s, err := mv.tx.mappingOf(u, ref)
		if err != nil {
			return nil, err
		}
		// Only what e uses a part of can be used by another mapping on its line.
		first, last := u.touched(s)
		for _, i := range []int{first, last} {
			at := use{ref.File, i, s.from - e.Off}
			if i < r.from || i >= r.to || seen[at] {
				continue
			}
			seen[at] = true
			mapped, err := mv.tx.mapsCopy(ref.File, there, m.at(u.address(i)), u.decodedAt(i)-at.line)
			if err != nil {
				return nil, err
			}
			if mapped {
				twice[ref.File] += u.storedAt(i+1) - u.storedAt(i)
			}
		}
	}
	return twice, nil
}

// mapsCopy reports whether file maps part of the unit at a, of one of xs, so that the unit begins at
// the file offset off.
func (tx *Tx) mapsCopy(file uint64, xs []Extent, a extent.Addr, off int64) (bool, error) {
	for _, x := range xs {
		if a < x.Addr || a >= x.End() {
			continue
		}
		u := newUnits(x)
		i, ok := u.beginning(int64(a - x.Addr))
		if !ok {
			return false, corrupt("store.MoveExtents", fmt.Sprintf("extent at %#x", uint64(x.Addr)), "its frames are not those of the extent that it was copied from")
		}
		return tx.mapsUnit(file, u, i, u.decodedAt(i)-off)
	}
	return false, nil
}

func (mv *mover) countOnce(twice map[uint64]int64) error {
	for file, stored := range twice {
		n, err := mv.tx.Node(file)
		if err != nil {
			return err
		}
		n.Add(Delta{Stored: -stored})
		if err := mv.tx.PutNode(n); err != nil {
			return err
		}
	}
	return nil
}

// within returns the units of u in [from, to), whose borders must be borders of units.
func (u *units) within(from, to extent.Addr) (r unitRange, err error) {
	r = unitRange{0, u.count()}
	ok := true
	if from > u.Addr {
		r.from, ok = u.beginning(int64(from - u.Addr))
	}
	if to < u.End() && ok {
		r.to, ok = u.beginning(int64(to - u.Addr))
	}
	if !ok {
		return r, corrupt("store.MoveExtents", fmt.Sprintf("extent at %#x", uint64(u.Addr)), "a move ends inside one of its frames")
	}
	return r, nil
}

// address returns where unit i begins.
func (u *units) address(i int) extent.Addr { return u.Addr + extent.Addr(u.storedAt(i)) }

// part returns the units r of u as an extent at a.
func (u *units) part(r unitRange, a extent.Addr) *units {
	x := u.Extent
	x.Addr = a
	x.Blocks = (u.storedAt(r.to) - u.storedAt(r.from)) / extent.BlockSize
	if !u.raw() {
		x.Frames = u.Frames[r.from:r.to]
	}
	return newUnits(x)
}

// refs returns the back-references that use units r of u: all of them, or about as many as may still
// move.
func (mv *mover) refs(u *units, r unitRange) (refs []BackRef, all bool, err error) {
	from, to := u.address(r.from), u.address(r.to)
	all = true
	err = mv.tx.BackRefs(u.Addr, to, func(b BackRef) bool {
		if b.Addr+extent.Addr(b.Stored) <= from {
			return true
		}
		if mv.limited && len(refs) == mv.left {
			all = false
			return false
		}
		refs = append(refs, b)
		return true
	})
	if err != nil || all {
		return refs, all, err
	}
	refs, err = mv.withSiblings(u, r, refs)
	return refs, false, err
}

// withSiblings adds to refs what else of the same mappings of the same files uses units r of u. They
// go together: a file that uses two parts of a frame has its stored bytes counted once, so it must
// not refer to one of them in the old place and to the other in the new one.
func (mv *mover) withSiblings(u *units, r unitRange, refs []BackRef) ([]BackRef, error) {
	type mapping struct {
		file uint64
		off  int64
	}
	taken := make(map[mapping]bool, len(refs))
	for _, ref := range refs {
		taken[mapping{ref.File, ref.Off}] = true
	}
	for _, ref := range slices.Clone(refs) {
		e, s, err := mv.tx.mappingOf(u, ref)
		if err != nil {
			return nil, err
		}
		line := s.from - e.Off
		var bad error
		err = mv.tx.FileExtents(ref.File, max(0, u.decodedAt(r.from)-line), u.decodedAt(r.to)-line, func(o FileExtent) bool {
			if o.Addr < u.Addr || o.Addr >= u.End() || taken[mapping{o.File, o.Off}] {
				return true
			}
			if s, bad = u.place(&o); bad == nil && s.from-o.Off == line {
				taken[mapping{o.File, o.Off}] = true
				refs = append(refs, BackRef{Addr: o.Addr, File: o.File, Off: o.Off})
			}
			return bad == nil
		})
		if err == nil {
			err = bad
		}
		if err != nil {
			return nil, err
		}
	}
	return refs, nil
}

// mappingOf returns the file extent of a back-reference to u, and where it lies there.
func (tx *Tx) mappingOf(u *units, ref BackRef) (e FileExtent, s span, err error) {
	e, ok, err := tx.fileExtentAt(ref.File, ref.Off)
	if err == nil && (!ok || e.Addr != ref.Addr) {
		err = corrupt("store.MoveExtents", bBackRefs.object(key64(uint64(ref.Addr), ref.File, uint64(ref.Off))), "no file extent refers there")
	}
	if err == nil {
		s, err = u.place(&e)
	}
	return e, s, err
}

// moveRef points the part of a file extent that uses units r of u to part, and answers which units
// of part that is. What it uses outside r keeps its place.
func (mv *mover) moveRef(u *units, r unitRange, part *units, ref BackRef) (unitRange, error) {
	tx := mv.tx
	e, s, err := tx.mappingOf(u, ref)
	if err != nil {
		return unitRange{}, err
	}
	if err := tx.delMapping(e); err != nil {
		return unitRange{}, err
	}
	line := s.from - e.Off // decoded offset = file offset + line
	base, end := u.decodedAt(r.from), u.decodedAt(r.to)
	for _, keep := range []span{{s.from, min(s.to, base)}, {max(s.from, end), s.to}} {
		if keep.from < keep.to {
			if err := tx.putMapping(u, u.fileExtent(ref.File, keep.from-line, keep), keep); err != nil {
				return unitRange{}, err
			}
		}
	}
	in := span{max(s.from, base), min(s.to, end)}
	if in.from >= in.to {
		return unitRange{}, corrupt("store.MoveExtents", e.object(), "its back-reference reaches further than it does")
	}
	out := span{in.from - base, in.to - base}
	if err := tx.putMapping(part, part.fileExtent(ref.File, in.from-line, out), out); err != nil {
		return unitRange{}, err
	}
	first, last := part.touched(out)
	return unitRange{first, last + 1}, nil
}

// fileExtentAt returns the file extent of file that begins at off.
func (tx *Tx) fileExtentAt(file uint64, off int64) (e FileExtent, ok bool, err error) {
	key := key64(file, uint64(off))
	p, ok, err := tx.get(bFileExtents, key)
	if err != nil || !ok {
		return e, false, err
	}
	e, err = decodeFileExtent(key, p)
	return e, true, badRecord(bFileExtents, key, err)
}

// settle records units moved of part, which is units r of u, where they are now, and what of r
// nobody refers to any more in the old place as dead. near is the key of a reference that moved.
func (mv *mover) settle(m Move, u *units, r unitRange, part *units, moved []unitRange, near []byte) error {
	tx := mv.tx
	if len(moved) == 0 {
		return nil
	}
	sums, err := tx.Checksums(u.address(r.from), part.Blocks)
	if err != nil {
		return err
	}
	if err := mv.record(m, part, moved, sums); err != nil {
		return err
	}
	dead, err := tx.unreferenced(u, r, near)
	if err != nil {
		return err
	}
	dr := dropper{tx: tx, u: u, dead: dead}
	if err := dr.flush(); err != nil {
		return err
	}
	mv.d.Merge(dr.d)
	return nil
}

// record adds units of part, which is in the new place of m, to what is recorded there. Records
// that touch become one, as mappings may lie across them.
func (mv *mover) record(m Move, part *units, moved []unitRange, sums []uint32) error {
	tx := mv.tx
	xs, err := tx.overlapping(m.To, m.To+extent.Addr(m.Blocks*extent.BlockSize))
	if err != nil {
		return err
	}
	fresh := moved
	for i := range xs {
		from, to := max(xs[i].Addr, part.Addr), min(xs[i].End(), part.End())
		if from < to {
			known, err := part.within(from, to)
			if err != nil {
				return err
			}
			fresh = subtract(fresh, known)
		}
		if err := tx.removeExtent(&xs[i]); err != nil {
			return err
		}
	}
	var added int64
	for _, r := range union(fresh) {
		from, to := part.storedAt(r.from), part.storedAt(r.to)
		if err := tx.putSums(part.address(r.from), sums[from/extent.BlockSize:to/extent.BlockSize]); err != nil {
			return err
		}
		added += to - from
		xs = append(xs, part.part(r, part.address(r.from)).Extent)
	}
	for _, x := range joined(xs) {
		x.Placement = tx.CommitSequence()
		x.Shared = x.Shared || part.Shared
		if err := tx.addExtent(&x); err != nil {
			return err
		}
	}
	slot, off := tx.slotOf(part.Addr)
	mv.d.added(uint32(slot), added)
	return tx.addLive(uint32(slot), added, off+part.Blocks*extent.BlockSize)
}

// joined makes one of extents that touch; they are parts of what was one extent.
func joined(xs []Extent) (out []Extent) {
	slices.SortFunc(xs, func(a, b Extent) int { return cmp.Compare(a.Addr, b.Addr) })
	for _, x := range xs {
		if n := len(out); n > 0 && out[n-1].End() == x.Addr {
			last := &out[n-1]
			last.Blocks += x.Blocks
			last.Frames = slices.Concat(last.Frames, x.Frames)
			last.Shared = last.Shared || x.Shared
		} else {
			out = append(out, x)
		}
	}
	return out
}

// subtract returns what of the ranges is not in r.
func subtract(from []unitRange, r unitRange) (out []unitRange) {
	for _, f := range from {
		for _, rest := range []unitRange{{f.from, min(f.to, r.from)}, {max(f.from, r.to), f.to}} {
			if rest.from < rest.to {
				out = append(out, rest)
			}
		}
	}
	return out
}

// union returns the units that are in any of rs, as few ranges in order. rs is sorted.
func union(rs []unitRange) (out []unitRange) {
	slices.SortFunc(rs, func(a, b unitRange) int { return cmp.Compare(a.from, b.from) })
	for _, r := range rs {
		if n := len(out); n > 0 && r.from <= out[n-1].to {
			out[n-1].to = max(out[n-1].to, r.to)
		} else if r.from < r.to {
			out = append(out, r)
		}
	}
	return out
}
