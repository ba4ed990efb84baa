package alloc

import (
	"fmt"

	"github.com/shingle-store/shingle/internal/extent"
)

// HeaderSize is the zone header at the start of every block group, in bytes
// (docs/format.md 1.3). It is part of a block group's capacity and of its alloc offset once
// the block group was opened, and no part of its usable bytes.
const HeaderSize = extent.BlockSize

// Class says who writes to a block group. Ids are on media (docs/format.md 1.3).
type Class uint8

// The classes. Each has its own list of active block groups, and so a hint of its own.
const (
	ClassData       Class = 1
	ClassRelocation Class = 2
	ClassLog        Class = 3

	classes = 4 // array size: ids from 0 (no class) to 3
)

// String returns the class's name in lower case.
func (c Class) String() string {
	switch c {
	case 0:
		return "none"
	case ClassData:
		return "data"
	case ClassRelocation:
		return "relocation"
	case ClassLog:
		return "log"
	}
	return fmt.Sprintf("class(%d)", uint8(c))
}

func (c Class) valid() bool { return c >= ClassData && c <= ClassLog }

// reserves reports whether grants of the class are paid for by reservations. Relocation's are
// not: it is what Options.Reserve is kept for.
func (c Class) reserves() bool { return c != ClassRelocation }

// State is the state of a block group. The values are this package's own, not on media.
type State uint8

// The states. Only Active ones are allocated from.
const (
	Empty       State = iota // nothing written since the last reset
	Active                   // being opened, or takes appends, or its last appends are in flight
	Full                     // takes no more: every byte appended, or finished
	Closing                  // out of allocation after a failure; its zone is to be finished
	Resetting                // nothing live; its zone is being reset
	ReadOnly                 // the zone failed: readable, never writable
	Quarantined              // the zone failed: neither
)

var stateNames = [...]string{"empty", "active", "full", "closing", "resetting", "read-only", "quarantined"}

// String returns the state's name in lower case.
func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}

// BlockGroup describes one block group: to New as it was recovered, and from Snapshot,
// BeginOpen and BeginReset as it is. Sizes are bytes, multiples of extent.BlockSize.
type BlockGroup struct {
	Slot uint32
	Zone int
	// Conventional: on a conventional zone, which is written anywhere. It has no header, no
	// alloc offset, no class of its own and no unusable bytes; it is never opened, closed,
	// finished or reset. Its state is Empty, Active or Full by what is in it, or that of a zone
	// that failed.
	Conventional bool
	// Capacity includes the header block, where there is one; at least one block besides. 0: no zone
	// lies under it (Resize); then it is Quarantined, with nothing in it.
	Capacity int64
	// AllocOffset is the header and everything granted since the last reset; 0 if the header
	// has not been written. For New it is where the next append lands (the write pointer).
	AllocOffset int64
	// Live is what durable metadata refers to.
	Live       int64
	Generation uint64 // + 1 a reset
	Class      Class  // of the writer that opened it last; 0 if it never was
	State      State
	// Unusable is dead and lost bytes, which only a reset brings back. New works it out and
	// ignores what it is given.
	Unusable int64
	// Pending is granted, neither published nor discarded. New starts it at 0.
	Pending int64
	// Pinned: somebody moves its live parts. New ignores it.
	Pinned bool
}

// group is a block group's entry in the books. Everything else (free, unusable, quarantined)
// follows from these figures, so it cannot disagree with them.
type group struct {
	zone       int
	capacity   int64
	granted    int64 // header included once opened
	inflight   int64 // granted, append neither completed nor failed; part of pending
	pending    int64
	live       int64
	failed     int64 // granted since the last reset, neither pending nor ever published
	pins       int   // not reset while there are any
	watched    bool  // the watcher knows it as one to move out of
	generation uint64
	class      Class
	state      State
	opening    bool // Active, header not yet written
	holds      bool // counts against the active budget
	held       bool // Empty, and kept from being opened
	half       bool // opened only if no other one is left: SetHalf

	runs  *runMap // of a conventional block group, else nil; its state is Active until it fails
	bad   int64   // bytes of it that failed to be written, and not Mended since
	order int     // in runIndex: 1 + the order of its longest run; 0: it is not there
}

func (g *group) usable() int64 {
	if g.runs != nil {
		return g.capacity
	}
	return max(0, g.capacity-HeaderSize)
}

// room is how many bytes could still be granted here, now or after opening it.
func (g *group) room() int64 {
	if g.runs != nil {
		return 0 // takes no appends
	}
	switch g.state {
	case Empty:
		return g.usable()
	case Active:
		return g.capacity - max(g.granted, HeaderSize)
	default:
		return 0
	}
}

// idle reports that nothing is live or pending, and so nothing in flight.
func (g *group) idle() bool { return g.live == 0 && g.pending == 0 }

// figures is what one block group, or all of them, contribute to the accounts, in bytes.
type figures struct {
	live, pending, free, unusable, quarantined, reclaimable int64
	empty                                                   int64 // the part of free in Empty ones
	tails, failed                                           int64 // parts of unusable
	groups                                                  int64 // how many block groups

	conventional kindFigures // the part in conventional ones
	ready        int64       // what those could be granted at once
}

func (g *group) figures() figures {
	if g.runs != nil {
		return g.conventionalFigures()
	}
	f := figures{live: g.live, pending: g.pending, groups: 1}
	rest := g.usable() - g.live - g.pending
	if g.state == ReadOnly || g.state == Quarantined {
		f.quarantined = rest
		return f
	}
	f.free = g.room()
	f.unusable = rest - f.free
	if g.state != Empty {
		f.tails = min(f.unusable, g.capacity-max(g.granted, HeaderSize)-f.free)
		f.failed = min(f.unusable-f.tails, g.failed)
	}
	if g.state == Empty {
		f.empty = f.free
	} else if g.idle() {
		f.reclaimable = f.unusable
	}
	return f
}

func (f *figures) add(o figures, sign int64) {
	f.live += sign * o.live
	f.pending += sign * o.pending
	f.free += sign * o.free
	f.unusable += sign * o.unusable
	f.quarantined += sign * o.quarantined
	f.reclaimable += sign * o.reclaimable
	f.empty += sign * o.empty
	f.tails += sign * o.tails
	f.failed += sign * o.failed
	f.ready += sign * o.ready
	f.groups += sign * o.groups
	c, oc := &f.conventional, &o.conventional
	c.live += sign * oc.live
	c.pending += sign * oc.pending
	c.free += sign * oc.free
	c.quarantined += sign * oc.quarantined
}

func (g *group) describe(slot uint32) BlockGroup {
	if g.runs != nil {
		return BlockGroup{
			Slot: slot, Zone: g.zone, Conventional: true, Capacity: g.capacity, Live: g.live,
			Generation: g.generation, Class: g.class, State: g.conventionalState(), Pending: g.pending,
		}
	}
	return BlockGroup{
		Slot: slot, Zone: g.zone, Capacity: g.capacity, AllocOffset: g.granted, Live: g.live,
		Generation: g.generation, Class: g.class, State: g.state,
		Unusable: g.figures().unusable, Pending: g.pending, Pinned: g.pins > 0,
	}
}
