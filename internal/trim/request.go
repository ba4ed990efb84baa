package trim

import (
	"fmt"
	"math"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
)

// ToEnd as Request.Length is to the end of the address space.
const ToEnd = math.MaxUint64

// Request says what to trim, in bytes of logical addresses.
type Request struct {
	Start  uint64
	Length uint64 // at least a block; ToEnd: all from Start on
	// MinLength passes over free ranges that are shorter, measured inside the range. It is rounded
	// up to the block, so 0 is one block.
	MinLength uint64
	DryRun    bool // counts what would be trimmed, and touches nothing
}

// span is a checked request: whole blocks [from, to) of an address space.
type span struct {
	from, to  int64
	minLength int64
}

// check holds the request against an address space of end bytes, a multiple of the block. What
// ends past it is cut off there, both ends are rounded inward. Errors: InvalidArgument for a range
// that begins at the end or later, is shorter than a block, or passes 2^64 other than by ToEnd.
func (r Request) check(end int64) (span, error) {
	const op = "trim.Run"
	switch {
	case r.Start >= uint64(end):
		return span{}, errdefs.Invalid(op, "start", fmt.Sprintf("start: %d is not below the end of the address space, %d", r.Start, end))
	case r.Length < extent.BlockSize:
		return span{}, errdefs.Invalid(op, "length", fmt.Sprintf("length: %d is less than a block of %d", r.Length, extent.BlockSize))
	case r.Length != ToEnd && r.Length > math.MaxUint64-r.Start:
		return span{}, errdefs.Invalid(op, "length", fmt.Sprintf("length: %d from %d on is more than addresses can say", r.Length, r.Start))
	}
	s := span{from: end, to: end, minLength: extent.BlockSize}
	if r.Length < uint64(end)-r.Start {
		s.to = extent.RoundDown(int64(r.Start + r.Length))
	}
	if r.Start <= uint64(end-extent.BlockSize) {
		s.from = extent.RoundUp(int64(r.Start))
	}
	s.from = min(s.from, s.to) // nothing whole lies in it
	if r.MinLength > math.MaxInt64-extent.BlockSize {
		s.minLength = extent.RoundDown(math.MaxInt64)
	} else if r.MinLength > 0 {
		s.minLength = extent.RoundUp(int64(r.MinLength))
	}
	return s, nil
}
