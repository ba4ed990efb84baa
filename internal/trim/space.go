package trim

import (
	"context"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
)

// Kind is the kind of zone under a block group.
type Kind uint8

// The kinds.
const (
	Sequential Kind = iota
	Conventional
)

// Condition says what can become of a sequential zone.
type Condition uint8

// The conditions.
const (
	Idle    Condition = iota // nothing in it is live, dirty, read or in flight: it can be given back
	Trimmed                  // empty, given back before and not used since
	InUse                    // something in it is live or received
	Busy                     // nothing in it is, but somebody is at work on it
	Failed                   // takes no commands; the only condition that a conventional zone has too
)

// Group is a block group at one moment.
type Group struct {
	Kind     Kind
	Capacity int64 // bytes, at most the size of a slot
	Condition
	Empty bool  // Idle, and nothing was written since the last reset
	Used  int64 // InUse: bytes that are live or received, the zone's header among them
}

// ErrBusy is what GiveBack answers for a zone that somebody turned to meanwhile.
var ErrBusy = errdefs.New(errdefs.Unavailable, "", "trim.GiveBack", "", "the zone is in use")

// Space is what is trimmed: block groups in dense slots of one size. Offsets are bytes from the
// start of a slot, whole blocks. Methods may be called from several goroutines.
type Space interface {
	// Layout returns the number of slots and the size of each in bytes.
	Layout() (slots int, size int64)
	// Group describes a block group as it is now.
	Group(slot uint32) Group
	// LiveIn returns how many bytes of [from, to) of a sequential zone are in use: those of its
	// header and of extents on record.
	LiveIn(slot uint32, from, to int64) (int64, error)
	// GiveBack resets the zone, unless it is empty, and gives up what the device keeps for it.
	// ErrBusy if it is not idle any more, or a reader does not let go. The zone cannot be allocated
	// meanwhile, and can be when it returns, whatever it returns. A device that has no release is no
	// error. What was given back is remembered from the next flush and commit on. reset says
	// whether there was a reset, also beside an error.
	GiveBack(ctx context.Context, slot uint32) (reset bool, err error)
	Runs
}

// Runs are the free runs of the conventional zones of a Space; without such a zone none of it is
// called.
type Runs interface {
	// FreeRun returns the first free run of a conventional zone in [from, to), cut to that, which
	// is empty if there is none.
	FreeRun(slot uint32, from, to int64) extent.Range
	// Fresh returns the parts of a free run that are not remembered as trimmed, ascending.
	Fresh(slot uint32, run extent.Range) []extent.Range
	// Hold finds the first free run in the range, cut to it, and keeps it from being allocated
	// until Release; it is empty if there is none.
	Hold(slot uint32, in extent.Range) extent.Range
	// Discard tells the device that the held ranges of a conventional zone are free, in one
	// command. An error that wraps zone.ErrNoDiscard says that it has no such command.
	Discard(slot uint32, ranges []extent.Range) error
	// Release gives held ranges back. discarded: they are remembered as trimmed, from the next
	// flush and commit on.
	Release(slot uint32, ranges []extent.Range, discarded bool)
}
