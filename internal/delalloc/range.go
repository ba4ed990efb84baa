package delalloc

import (
	"sort"

	"github.com/shingle-store/shingle/internal/slab"
)

// Range is a contiguous run of dirty data on its way to a device. Its segments follow each
// other without gaps. It has one owner, who ends it with Release; nothing may use it after
// that. It is not safe for changes from several goroutines, reading it is.
type Range struct {
	Off            int64
	Segments       []Segment
	MinSeq, MaxSeq uint64 // lowest First and highest Seq of the segments

	index *Index // nil: from RangeOf, not from Take
}

// RangeOf returns segs, not empty and without gaps, as a range that was never in an index, for
// writes that do not wait. The range owns the segments' memory.
func RangeOf(segs []Segment) Range {
	for i := range segs {
		if segs[i].First == 0 {
			segs[i].First = segs[i].Seq
		}
	}
	return rangeOf(segs)
}

func rangeOf(segs []Segment) Range {
	r := Range{Off: segs[0].Off, Segments: segs, MinSeq: segs[0].First}
	for i := range segs {
		r.MinSeq, r.MaxSeq = min(r.MinSeq, segs[i].First), max(r.MaxSeq, segs[i].Seq)
	}
	return r
}

// End returns the offset of the first byte after the range.
func (r *Range) End() int64 {
	if len(r.Segments) == 0 {
		return r.Off
	}
	return r.Segments[len(r.Segments)-1].End()
}

// Len returns the length in bytes.
func (r *Range) Len() int64 { return r.End() - r.Off }

// Bufs returns the data as few slices of memory, aligned to the block; pieces that lie next to
// each other in memory are one. The memory belongs to the range.
func (r *Range) Bufs() [][]byte { return r.Slice(r.Off, r.Len()) }

// Slice returns bytes [off, off+n) of the file, which must lie within the range, as Bufs does.
// O(log n) and linear in the pieces.
func (r *Range) Slice(off, n int64) [][]byte {
	if n == 0 {
		return nil
	}
	first := sort.Search(len(r.Segments), func(i int) bool { return r.Segments[i].End() > off })
	var bufs []*slab.Buf
	last := first
	for ; ; last++ {
		bufs = append(bufs, r.Segments[last].Buf)
		if r.Segments[last].End() >= off+n {
			break
		}
	}
	out := slab.AppendBytes(nil, bufs...)
	excess := r.Segments[last].End() - (off + n)
	tail := len(out) - 1
	stop := int64(len(out[tail])) - excess
	out[tail] = out[tail][:stop:stop]
	out[0] = out[0][off-r.Segments[first].Off:]
	return out
}

// Sums returns the crc32c of each block of the range, in order, in memory of its own.
func (r *Range) Sums() []uint32 {
	n := 0
	for i := range r.Segments {
		n += len(r.Segments[i].Sums)
	}
	sums := make([]uint32, 0, n)
	for i := range r.Segments {
		sums = append(sums, r.Segments[i].Sums...)
	}
	return sums
}

// Release ends the range after its data is durable and published, and frees its memory.
func (r *Range) Release() {
	for i := range r.Segments {
		r.Segments[i].Buf.Free()
	}
	if r.index != nil {
		r.index.mode.sub(r.Len())
	}
}
