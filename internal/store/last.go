package store

import "github.com/shingle-store/shingle/internal/extent"

// LastExtent returns the extent with the highest address in [from, to); ok is false if there is
// none. One look-up: the write pointer check at open needs the end of a block group's data.
func (tx *Tx) LastExtent(from, to extent.Addr) (x Extent, ok bool, err error) {
	if from >= to {
		return x, false, nil
	}
	k, p, err := tx.cursor(bExtents).floor(key64(uint64(to - 1)))
	if k == nil || err != nil {
		return x, false, err
	}
	if x, err = decodeExtent(k, p); err != nil {
		return x, false, badRecord(bExtents, k, err)
	}
	return x, x.Addr >= from, nil
}

// CommitSequence returns the sequence of the last commit of this run, 0 if there was none.
func (s *Store) CommitSequence() uint64 { return s.sequence.Load() }
