package engine

import (
	"github.com/shingle-store/shingle/internal/csum"
	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/slab"
	"github.com/shingle-store/shingle/internal/zone"
)

// badCopy is a copy of a block that is not what it should be.
type badCopy struct {
	copy int    // position among the places of the block group
	got  uint32 // its checksum; 0 if it could not be read
	err  error  // of reading it
}

// readCopies reads a block from each place in turn and holds it against its checksum. good: one of them
// is as it should be, and p holds it. bad are those that are not; of a passing error there are none. A place
// that cannot be asked is not bad, unless there is no other.
func (e *Engine) readCopies(at extent.Addr, want uint32, p []byte) (good bool, bad []badCopy) {
	slot, off := e.split(at)
	places := e.dev.Places(int(slot))
	var absent []badCopy
	for i, place := range places {
		into := p
		if good {
			into = scratchBlock()
		}
		err := e.dev.ReadCopy(int(slot), i, off, into)
		switch {
		case err != nil && (place.Stale || e.dev.Member(place.Device) == nil):
			absent = append(absent, badCopy{copy: i, err: err})
		case err != nil:
			bad = append(bad, badCopy{copy: i, err: err})
		case csum.Sum(into) != want:
			bad = append(bad, badCopy{copy: i, got: csum.Sum(into)})
		default:
			good = true
		}
	}
	if !good && len(bad) == 0 {
		bad = absent
	}
	if !good && len(bad) == 0 {
		bad = []badCopy{{err: errdefs.Wrap(errdefs.Device, errdefs.ReasonDeviceIO, "engine.Read", e.placeName(slot), zone.ErrZoneOffline)}}
	}
	return good, bad
}

// scratchBlock is memory for one block, as devices want it.
func scratchBlock() []byte { return slab.Aligned(extent.BlockSize) }
