package engine

import (
	"sync"

	"github.com/shingle-store/shingle/internal/delalloc"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/store"
)

// orderedState is how far a range has come. Guarded by its file's mutex.
type orderedState uint8

const (
	placing orderedState = iota // being compressed, allocated, appended
	placed                      // everything appended, or to be stored inline; waits for a commit
)

// ordered is a range of a file between leaving the dirty index and its commit. Ranges of a
// file commit in the order in which they were taken, so a newer one never lies under an older.
type ordered struct {
	f        *file
	rng      delalloc.Range
	end      int64 // end of the range in file bytes; rng.End() is rounded up to the block
	codec    extent.Codec
	direct   bool  // placed inside Write
	small    bool  // goes to conventional zones first
	reserved int64 // bytes of reservation that the range holds, stored ones included
	state    orderedState
	redone   int      // failed flushes survived
	sums     []uint32 // crc32c of each block of the range

	// Written while placing, read by the committer once placed.
	out struct {
		sync.Mutex
		extents []placedExtent
		stored  int64
	}
	inline *store.Inline

	// After the range was given up: the error, and what has not been rewritten or cut since.
	err  error
	left []extent.Range
}

// placedExtent is an extent whose append completed.
type placedExtent struct {
	off  int64 // in the file
	slot uint32
	store.NewExtent
}

// emit notes an appended extent.
func (o *ordered) emit(x placedExtent) {
	x.Length = min(x.Length, o.end-x.off)
	o.out.Lock()
	o.out.extents = append(o.out.extents, x)
	o.out.stored += x.Blocks * extent.BlockSize
	o.out.Unlock()
}

// blockSums returns the checksums of n bytes of the range from at, relative to its start.
func (o *ordered) blockSums(at, n int64) []uint32 {
	i, j := at/extent.BlockSize, (at+n)/extent.BlockSize
	return o.sums[i:j:j]
}
