package delalloc

import (
	"time"

	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/slab"
)

// Segment is a dirty run of blocks of a file, written together.
type Segment struct {
	Off  int64     // in the file, bytes, a multiple of the block
	Buf  *slab.Buf // the data, whole blocks; the Segment owns the reference
	Sums []uint32  // crc32c of each block
	Seq  uint64    // sequence of the write that last touched it; newer writes have greater ones
	// First is the lowest sequence of any write whose bytes were in this range and never
	// became durable, Seq included: a Sync that covers an overlaid write must wait for what
	// lies over it, or a crash would bring back what was there before both. 0 in Insert
	// means Seq.
	First uint64
	// Since is when the oldest such write came. It is inherited like First, so that a block
	// rewritten every second is still written back by age.
	Since time.Time
}

// Len returns the length in bytes.
func (s *Segment) Len() int64 { return s.Buf.Len() }

// End returns the offset of the first byte after it.
func (s *Segment) End() int64 { return s.Off + s.Buf.Len() }

// part returns blocks [off, end) of s as a segment with a reference of its own.
func (s *Segment) part(off, end int64) Segment {
	p := *s
	p.Off = off
	p.Buf = s.Buf.Slice(off-s.Off, end-off)
	i, j := (off-s.Off)/extent.BlockSize, (end-s.Off)/extent.BlockSize
	p.Sums = s.Sums[i:j:j]
	return p
}

// inherit takes over the age of o, which lies below s and is not durable.
func (s *Segment) inherit(o *Segment) {
	s.First = min(s.First, o.First)
	if o.Since.Before(s.Since) {
		s.Since = o.Since
	}
}

// entry is a segment in an index.
type entry struct {
	Segment
	gone bool // no longer in the index, or no longer in this form; heaps drop it when they meet it
}
