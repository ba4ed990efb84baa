package delalloc

import (
	"fmt"
	"sync/atomic"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
)

// Counters are exact counts over all the indexes of a Mode since it was made.
type Counters struct {
	Ranges       atomic.Uint64 // ranges taken
	RangeBytes   atomic.Uint64 // their bytes
	LargestRange atomic.Int64  // bytes of the largest
	Scans        atomic.Uint64 // look-ups of delayed data that took the lock and searched
}

// disabled is the state of a Mode that is off. Counts of bytes are never negative.
const disabled = -1

// Mode is what the indexes of one store share: whether delayed allocation is on, how much is
// collected into one range, and the counters. Its methods may be called from any goroutine.
type Mode struct {
	Counters  Counters
	rangeSize int64
	// state is the bytes held by all indexes and by ranges taken from them that were neither
	// released nor returned, or disabled. One word, so that nothing can slip in between
	// finding it zero and switching off.
	state atomic.Int64
}

// NewMode returns a Mode that is on and collects up to rangeSize bytes into a range; 0 means
// extent.MaxRangeSize. It is rounded down to the block, and at least one.
func NewMode(rangeSize int64) *Mode {
	if rangeSize <= 0 {
		rangeSize = extent.MaxRangeSize
	}
	return &Mode{rangeSize: max(extent.BlockSize, extent.RoundDown(rangeSize))}
}

// RangeSize returns the most bytes that are collected into a range, a multiple of the block.
func (m *Mode) RangeSize() int64 { return m.rangeSize }

// Enabled reports whether delayed allocation is on.
func (m *Mode) Enabled() bool { return m.state.Load() != disabled }

// Dirty returns the bytes in all indexes and in the ranges taken from them that were neither
// released nor returned.
func (m *Mode) Dirty() int64 { return max(0, m.state.Load()) }

// Disable switches delayed allocation off: look-ups return at once from then on. It fails with
// Precondition while anything delayed exists, in flight included, for the look-ups
// would hide it (S4): flush first. The caller keeps writers away from Insert while it
// switches; Insert panics when it is off. Disabling twice is fine.
func (m *Mode) Disable() error {
	for {
		held := m.state.Load()
		if held > 0 {
			return errdefs.New(errdefs.Precondition, errdefs.ReasonWriteback, "delalloc.Disable", "",
				fmt.Sprintf("%d bytes are still delayed", held))
		}
		if held == disabled || m.state.CompareAndSwap(0, disabled) {
			return nil
		}
	}
}

// Enable switches delayed allocation on.
func (m *Mode) Enable() { m.state.CompareAndSwap(disabled, 0) }

// add counts n bytes more as held; false: the mode is off, nothing was counted.
func (m *Mode) add(n int64) bool {
	for {
		held := m.state.Load()
		if held == disabled {
			return false
		}
		if m.state.CompareAndSwap(held, held+n) {
			return true
		}
	}
}

// sub counts n bytes less as held.
func (m *Mode) sub(n int64) {
	if m.state.Add(-n) < 0 {
		panic("delalloc: more bytes given back than were held")
	}
}

// Chunks returns how many chunks a compressed range of n bytes is cut into: each range starts
// a chunk of its own (S0).
func Chunks(n int64) int64 { return (n + extent.ChunkSize - 1) / extent.ChunkSize }

// Extents returns the most extents that a dirty run of n > 0 bytes needs when none may pass
// limit bytes, with one more because a run may be taken in two parts (design, Write:
// "Received means reserved").
func Extents(n, limit int64) int64 { return (n+limit-1)/limit + 1 }
