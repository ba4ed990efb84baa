package store

import (
	"bytes"
	"encoding/binary"
	"math/bits"

	"github.com/shingle-store/shingle/internal/extent"
)

// referrers calls fn for the back-references with addresses in [from, to), each once, until it
// returns false or fails. It reads them from three sides in turn: on from the key near in both
// directions, and on from the start. Clones lie beside each other, so a mapping that still refers
// to what the one at near refers to is mostly a neighbour of it; and one that begins early may
// cover all. The turns bound what an overwrite of one block in each of n clones reads, in
// whatever order: each costs the way to the nearer neighbour that was not overwritten yet, which
// adds up to n log n at most, and the last one reads all.
//
// near is a key with an address in [from, to); no record need have it. fn must not change the
// bucket.
func (tx *Tx) referrers(from, to extent.Addr, near []byte, fn func(BackRef) (more bool, err error)) error {
	read := func(k, p []byte) (bool, error) {
		r, err := decodeBackRef(k, p)
		if err != nil {
			return false, badRecord(bBackRefs, k, err)
		}
		tx.refsRead++
		return fn(r)
	}
	// Below near, what is left to read lies between low and high.
	start := key64(uint64(from))
	low, high := start, near
	front, up, down := tx.cursor(bBackRefs), tx.cursor(bBackRefs), tx.cursor(bBackRefs)
	for first, upDone, met := true, false, false; !upDone || !met; first = false {
		if !upDone {
			k, p, err := up.advance(first, near)
			if err != nil {
				return err
			}
			if k == nil || extent.Addr(binary.BigEndian.Uint64(k)) >= to {
				upDone = true
			} else if more, err := read(k, p); err != nil || !more {
				return err
			}
		}
		if !met {
			k, p, err := front.advance(first, start)
			if err != nil {
				return err
			}
			if k == nil || bytes.Compare(k, high) >= 0 {
				met = true
			} else if more, err := read(k, p); err != nil || !more {
				return err
			} else {
				low = bytes.Clone(k)
			}
		}
		if !met {
			k, p, err := down.below(first, high)
			if err != nil {
				return err
			}
			if k == nil || bytes.Compare(k, low) <= 0 {
				met = true
			} else if more, err := read(k, p); err != nil || !more {
				return err
			} else {
				high = bytes.Clone(k)
			}
		}
	}
	return nil
}

// unreferenced returns the parts of units r of u that no back-reference covers, in order. It
// stops reading when nothing is left. near is the key of a reference, gone or not, of what is
// let go.
func (tx *Tx) unreferenced(u *units, r unitRange, near []byte) ([]unitRange, error) {
	left := newUnitSet(r)
	err := tx.referrers(u.Addr, u.Addr+extent.Addr(u.storedAt(r.to)), near, func(b BackRef) (bool, error) {
		used, err := u.referred(b)
		if err != nil {
			return false, err
		}
		left.remove(used)
		return left.n > 0, nil
	})
	if err != nil {
		return nil, err
	}
	return left.runs(), nil
}

// referred returns the units of u that b refers to.
func (u *units) referred(b BackRef) (unitRange, error) {
	from, ok := u.beginning(int64(b.Addr - u.Addr))
	to, fits := u.ending(int64(b.Addr-u.Addr) + b.Stored)
	if !ok || !fits {
		return unitRange{}, corrupt("store.referred", bBackRefs.object(key64(uint64(b.Addr), b.File, uint64(b.Off))),
			"does not lie on the units of its extent")
	}
	return unitRange{from, to}, nil
}

// ending returns the unit that begins where stored offset s ends, which may be count().
func (u *units) ending(s int64) (int, bool) {
	if s == u.storedAt(u.count()) {
		return u.count(), true
	}
	return u.beginning(s)
}

// unitRange is units [from, to) of an extent.
type unitRange struct{ from, to int }

// unitSet is a set of units of one extent, a bit each: an extent that is shared and much cut has
// tens of thousands of references, so each must cost little to take out.
type unitSet struct {
	in   unitRange
	bits []uint64 // of unit in.from + i
	n    int      // units in the set
}

// newUnitSet returns the set of all units of r.
func newUnitSet(r unitRange) *unitSet {
	n := r.to - r.from
	s := &unitSet{in: r, bits: make([]uint64, (n+63)/64), n: n}
	for i := range s.bits {
		s.bits[i] = ^uint64(0)
	}
	if n%64 != 0 {
		s.bits[n/64] = 1<<(n%64) - 1
	}
	return s
}

// remove takes the units of r out of the set; they need not be in it.
func (s *unitSet) remove(r unitRange) {
	from, to := max(r.from, s.in.from)-s.in.from, min(r.to, s.in.to)-s.in.from
	for from < to {
		w, next := from/64, min(to, (from/64+1)*64)
		mask := (^uint64(0) << (from % 64)) & (^uint64(0) >> (63 - (next-1)%64))
		s.n -= bits.OnesCount64(s.bits[w] & mask)
		s.bits[w] &^= mask
		from = next
	}
}

// runs returns the set as ranges that do not touch, in order.
func (s *unitSet) runs() (out []unitRange) {
	for i := s.next(0, 0); i < s.in.to-s.in.from; {
		end := s.next(i, ^uint64(0))
		out = append(out, unitRange{s.in.from + i, s.in.from + end})
		i = s.next(end, 0)
	}
	return out
}

// next returns the first unit from i on that is in the set, or with invert all ones that is not;
// the length of the set if there is none.
func (s *unitSet) next(i int, invert uint64) int {
	for n := s.in.to - s.in.from; i < n; i = (i/64 + 1) * 64 {
		if w := (s.bits[i/64] ^ invert) >> (i % 64); w != 0 {
			return min(n, i+bits.TrailingZeros64(w))
		}
	}
	return s.in.to - s.in.from
}
