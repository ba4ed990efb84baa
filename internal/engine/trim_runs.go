package engine

import (
	"sort"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/store"
	"github.com/shingle-store/shingle/internal/trim"
	"github.com/shingle-store/shingle/internal/zone"
)

var _ trim.Space = (*trimSpace)(nil)

// manyMarks is how many zones, or discarded runs, wait for a commit before one is asked for: no
// commit is to take long for a trim.
const manyMarks = 4096

// knownRuns are what was trimmed before in the block group that a trim is at, as it is on record.
type knownRuns struct {
	slot   uint32
	loaded bool
	runs   []store.Run
}

// FreeRun asks the allocator, whose bitmap knows blocks that are promised or on their way as well.
func (s *trimSpace) FreeRun(slot uint32, from, to int64) extent.Range {
	off, n, ok := s.e.al.FreeRun(slot, from, to, 0, 0)
	if !ok {
		return extent.Range{}
	}
	return extent.Range{Off: off, End: off + n}
}

// Fresh takes what is remembered out of the run. The record is read once a block group.
func (s *trimSpace) Fresh(slot uint32, run extent.Range) (fresh []extent.Range) {
	if k := &s.known; !k.loaded || k.slot != slot {
		*k = knownRuns{slot: slot, loaded: true}
		err := s.e.st.View(func(tx *store.Tx) (err error) {
			k.runs, err = tx.TrimmedRuns(slot)
			return err
		})
		if err != nil {
			k.runs = nil // what is not known is trimmed again
		}
	}
	runs := s.known.runs
	i := sort.Search(len(runs), func(i int) bool { return runs[i].Off+runs[i].Len > run.Off })
	at := run.Off
	for ; i < len(runs) && runs[i].Off < run.End; i++ {
		if runs[i].Off > at {
			fresh = append(fresh, extent.Range{Off: at, End: runs[i].Off})
		}
		at = runs[i].Off + runs[i].Len
	}
	if at < run.End {
		fresh = append(fresh, extent.Range{Off: at, End: run.End})
	}
	return fresh
}

// Hold keeps free blocks from being granted.
func (s *trimSpace) Hold(slot uint32, in extent.Range) extent.Range {
	off, n, ok := s.e.al.HoldFree(slot, in.Off, in.End, 0, 0)
	if !ok {
		return extent.Range{}
	}
	return extent.Range{Off: off, End: off + n}
}

// Discard is one command to the device.
func (s *trimSpace) Discard(slot uint32, ranges []extent.Range) error {
	if s.device == nil {
		return errdefs.Wrap(errdefs.Device, "", "engine.Trim", "", zone.ErrNoDiscard)
	}
	return s.device.Discard(int(slot), ranges)
}

// Release marks what was discarded and lets the blocks be granted again, in this order.
func (s *trimSpace) Release(slot uint32, ranges []extent.Range, discarded bool) {
	if discarded && s.e.trimmed.markRuns(slot, ranges, true) >= manyMarks {
		s.e.group.Kick()
	}
	for _, r := range ranges {
		s.e.al.Vacate(slot, r.Off, r.Len())
	}
}
