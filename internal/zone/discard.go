package zone

import (
	"fmt"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
)

// Discarder is a Device that can be told what nobody wants any more, so that the space under it
// can be put to use: a drive's own reclaim, or the disk of the host below an emulated device.
// Neither command is durable before a Flush; a discard that was not flushed may turn out not to
// have happened, block by block.
//
// A Device that passes calls on and has no Discarder below it answers ErrNoDiscard.
type Discarder interface {
	Device
	// Discard says that the ranges of a conventional zone hold nothing that is wanted; what they
	// read as afterwards, until they are written, means nothing. It is one command however many
	// ranges it carries. They are in ascending order, do not overlap, and are whole blocks within
	// the capacity; the slice is the caller's again on return. The caller keeps writes of the
	// same blocks away. After an error any part may have been discarded.
	//
	// A sequential zone is ErrInvalidTransition: its space comes back by Reset.
	Discard(zone int, ranges []extent.Range) error
	// Release says that an Empty sequential zone will not be used soon: what the emulation keeps
	// for it goes back to the host, and is taken again when the zone is next opened. Nothing can
	// be seen of that through Device. Any other condition is ErrInvalidTransition, a conventional
	// zone ErrConventional.
	Release(zone int) error
}

// CheckDiscard admits a discard and counts it. The owner keeps commands of the zone away until
// it is done.
func (m *Machine) CheckDiscard(zone int, ranges []extent.Range) error {
	const op = "zone.Discard"
	s, err := m.existing(op, zone)
	if err != nil {
		return err
	}
	if s.cond != NotWP {
		return m.refuse(op, zone, ErrInvalidTransition)
	}
	end, total := int64(0), int64(0)
	for _, r := range ranges {
		if err := m.wellFormed(op, zone, r.Off, r.End-r.Off); err != nil {
			return err
		}
		if r.Off < end {
			err := errdefs.Invalid(op, "ranges", fmt.Sprintf("range at %d begins before %d, where the one before it ends", r.Off, end))
			err.Object = object(zone)
			return err
		}
		if end = r.End; end > m.geo.CapacityOf(zone) {
			return m.refuse(op, zone, ErrBoundary)
		}
		total += r.Len()
	}
	if len(ranges) == 0 {
		err := errdefs.Invalid(op, "ranges", "no range to discard")
		err.Object = object(zone)
		return err
	}
	m.stats.Discards++
	m.stats.DiscardRanges += uint64(len(ranges))
	m.stats.DiscardedBytes += uint64(total)
	return nil
}

// CheckRelease admits a release and counts it. The owner keeps reads, writes and commands of the
// zone away until it is done.
func (m *Machine) CheckRelease(zone int) error {
	const op = "zone.Release"
	s, err := m.sequential(op, zone)
	if err != nil {
		return err
	}
	if s.cond != Empty {
		return m.illegal(op, zone)
	}
	m.stats.Releases++
	return nil
}
