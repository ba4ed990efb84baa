package alloc

import (
	"fmt"
	"slices"
	"sync"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
)

// unlimitedActive is the budget on a device without an active limit: enough writers to keep
// every drive busy, few enough that the active list stays short.
const unlimitedActive = 8

// Options configures an Allocator.
type Options struct {
	// BlockGroups are the block groups as recovered, slot i at index i. New copies them.
	BlockGroups []BlockGroup
	// MaxActive is how many zones this allocator may hold active at once; 0: the device has
	// no limit, and the allocator keeps to 8.
	MaxActive int
	// RelocationActive is how many zones may be active beyond that for ClassRelocation alone, so
	// that it has an active zone of its own whatever data holds. 0: it shares data's budget, and
	// where data has spent that, data's block groups.
	RelocationActive int
	// Bitmaps are the blocks in use of conventional block groups, by slot: bit i of word i/64 is
	// block i. A block group that is all free or all live needs none. New copies them.
	Bitmaps map[uint32][]uint64
	// Reserve is how many bytes of free space are kept for relocation (see the package
	// comment). The usual figure is DefaultReserve.
	Reserve int64
	// Watch, unless nil, is told of each block group that live data could be moved out of, and
	// again whenever its figures change, in bytes: live ones, and dead ones that a reset would
	// bring back. movable is false when it stops being one. It is called with the allocator's
	// mutex held and must neither wait nor call back.
	Watch func(slot uint32, live, dead int64, movable bool)
}

// DefaultReserve returns the relocation reserve for the block groups in bytes: the usable
// bytes (capacity less header) of the two largest sequential ones (docs/format.md 1.1).
func DefaultReserve(groups []BlockGroup) int64 {
	var first, second int64
	for i := range groups {
		if groups[i].Conventional {
			continue
		}
		u := groups[i].Capacity - HeaderSize
		if u > first {
			first, second = u, first
		} else if u > second {
			second = u
		}
	}
	return first + second
}

// Allocator hands out space in block groups. Its methods may be called from any goroutine;
// each takes one mutex for a short time, never waits for anything else, and costs the same
// however many block groups there are (Snapshot and New apart).
//
// A call whose figures contradict the books (more freed than is live, an unknown slot) changes
// only as much as the books allow and is counted in Stats.Mismatches: it means damaged
// metadata or a bug, and must not take the engine down.
type Allocator struct {
	budget  int // of all classes
	spare   int // the part of budget that only relocation may use
	watch   func(slot uint32, live, dead int64, movable bool)
	reserve int64

	mu        sync.Mutex
	usable    int64 // sum over all block groups, capacity less header
	groups    []group
	sum       figures // of all groups
	parts     [classes][kinds]figures
	reserved  int64 // promised by Reserve, not yet granted
	lent      int64 // granted to relocation out of its half of the reserve, not yet won back
	active    int   // groups that hold an active slot
	moving    int   // of them, those opened for relocation
	opening   [classes]int
	lists     [classes][]uint32 // Active, opened, with room, in the order of opening
	closing   []uint32          // in the order of failure
	empty     slotSet           // those that can be opened
	halves    slotSet           // likewise, when there are no others
	dead      slotSet           // Full and idle
	runs      runIndex
	refused   bool // a Reserve was refused since the last reset
	held      int  // groups kept from being opened: HoldEmpty
	changed   chan struct{}
	stats     Stats
	listed    int // sum of the lengths of lists
	openTotal int // sum of opening
}

// New returns an allocator over the recovered block groups. States other than Resetting are
// taken as given: an Active one counts against the budget from now on (one without room is
// Full); should there be more Active ones than the budget, those with the least room start as
// Closing. A Full one with nothing live is handed out by BeginReset at once.
//
// Errors: InvalidArgument (limits), Corruption (a block group whose figures cannot be),
// Precondition / DEVICE_TOO_SMALL (nothing left beside the reserve).
func New(o Options) (*Allocator, error) {
	const op = "alloc.New"
	if o.MaxActive < 0 || o.RelocationActive < 0 {
		return nil, errdefs.Invalid(op, "max_active", "negative")
	}
	if o.Reserve < 0 || o.Reserve%extent.BlockSize != 0 {
		return nil, errdefs.Invalid(op, "reserve", "must be a multiple of the block, and not negative")
	}
	a := &Allocator{
		budget: o.MaxActive, spare: o.RelocationActive, reserve: o.Reserve, watch: o.Watch,
		groups: make([]group, len(o.BlockGroups)),
		empty:  newSlotSet(len(o.BlockGroups)),
		halves: newSlotSet(len(o.BlockGroups)),
		dead:   newSlotSet(len(o.BlockGroups)),
	}
	if a.budget == 0 {
		a.budget = unlimitedActive
	}
	a.budget += a.spare
	var open []uint32
	for i := range o.BlockGroups {
		b := &o.BlockGroups[i]
		if err := check(i, b); err != nil {
			return nil, err
		}
		a.groups[i] = group{
			zone: b.Zone, capacity: b.Capacity, granted: b.AllocOffset, live: b.Live,
			generation: b.Generation, class: b.Class, state: b.State,
		}
		g := &a.groups[i]
		if b.Conventional {
			if err := g.takeOver(b, o.Bitmaps[b.Slot]); err != nil {
				return nil, err
			}
			a.usable += g.usable()
			continue
		}
		a.usable += g.usable()
		switch {
		case g.state == Empty:
			g.granted = 0
		case g.state == Active && g.room() == 0:
			g.state = Full
		case g.state == Active:
			open = append(open, b.Slot)
		case g.state == Closing:
			a.closing = append(a.closing, b.Slot)
			a.holdLocked(g)
		}
	}
	if a.usable <= a.reserve {
		return nil, errdefs.New(errdefs.Precondition, errdefs.ReasonDeviceTooSmall, op, "",
			fmt.Sprintf("%d usable bytes leave nothing beside a reserve of %d", a.usable, a.reserve))
	}
	a.adoptLocked(open)
	a.runs = newRunIndex(a.groups)
	for i := range a.groups {
		a.settleLocked(uint32(i), &a.groups[i])
	}
	return a, nil
}

// adoptLocked lists the recovered Active block groups, or closes what is over the budget.
func (a *Allocator) adoptLocked(open []uint32) {
	keep := open
	if over := len(open) + a.active - (a.budget - a.spare); over > 0 {
		keep = slices.Clone(open)
		slices.SortStableFunc(keep, func(x, y uint32) int {
			return int(min(1, max(-1, a.groups[y].room()-a.groups[x].room())))
		})
		keep = keep[:max(0, len(keep)-over)]
	}
	for _, slot := range open {
		g := &a.groups[slot]
		a.holdLocked(g)
		if slices.Contains(keep, slot) {
			a.enlistLocked(slot, g)
		} else {
			g.state = Closing
			a.closing = append(a.closing, slot)
		}
	}
}

func badGroup(i int, msg string) error {
	return errdefs.New(errdefs.Corruption, errdefs.ReasonCorruption, "alloc.New", fmt.Sprintf("block group %d", i), msg)
}

func check(i int, b *BlockGroup) error {
	bad := func(msg string) error { return badGroup(i, msg) }
	aligned := b.Capacity%extent.BlockSize == 0 && b.AllocOffset%extent.BlockSize == 0 && b.Live%extent.BlockSize == 0
	switch {
	case int64(b.Slot) != int64(i):
		return bad(fmt.Sprintf("slots are not dense: found %d", b.Slot))
	case b.Capacity == 0 && b.State == Quarantined && b.Live == 0 && b.AllocOffset == 0:
		return nil
	case b.Conventional:
		return nil // takeOver looks at the rest
	case b.Capacity < 2*extent.BlockSize || !aligned:
		return bad("a size is not a whole number of blocks, or there is no room for one")
	case b.Live < 0 || b.Live > b.Capacity-HeaderSize:
		return bad(fmt.Sprintf("%d live bytes of %d usable", b.Live, b.Capacity-HeaderSize))
	case b.AllocOffset < 0 || b.AllocOffset > b.Capacity:
		return bad(fmt.Sprintf("alloc offset %d outside capacity %d", b.AllocOffset, b.Capacity))
	case b.Class != 0 && !b.Class.valid():
		return bad("unknown class")
	case b.State == Resetting || int(b.State) >= len(stateNames):
		return bad(fmt.Sprintf("cannot be recovered as %v", b.State))
	case b.State == Empty && b.Live != 0:
		return bad("empty, with live bytes")
	case b.State == Active && !b.Class.valid():
		return bad("active, without a class")
	case b.State == Active && (b.AllocOffset < HeaderSize || b.Live > b.AllocOffset-HeaderSize):
		return bad(fmt.Sprintf("%d live bytes below alloc offset %d", b.Live, b.AllocOffset))
	}
	return nil
}

// lookupLocked returns the block group at slot, or nil, counted, if there is none.
func (a *Allocator) lookupLocked(slot uint32) *group {
	if int64(slot) >= int64(len(a.groups)) {
		a.stats.Mismatches++
		return nil
	}
	return &a.groups[slot]
}

// takeLocked returns as much of n as the account holds, and counts it if that is not all.
func (a *Allocator) takeLocked(n, account int64) int64 {
	if n < 0 || n > account {
		a.stats.Mismatches++
	}
	return max(0, min(n, account))
}

// unsettleLocked takes g out of the sums; every change of a group lies between it and
// settleLocked.
func (a *Allocator) unsettleLocked(g *group) { a.countLocked(g, -1) }

// settleLocked puts g, changed, back into the sums and the sets.
func (a *Allocator) settleLocked(slot uint32, g *group) {
	a.countLocked(g, 1)
	a.empty.set(slot, g.state == Empty && !g.held && !g.half)
	a.halves.set(slot, g.state == Empty && !g.held && g.half)
	a.dead.set(slot, g.state == Full && g.idle() && g.pins == 0)
	if g.runs != nil {
		a.runs.place(slot, g)
	}
	a.watchLocked(slot, g)
}

// budgetLocked returns how many zones may be active for a zone to be opened for the class.
func (a *Allocator) budgetLocked(c Class) int {
	if c == ClassRelocation {
		return a.budget
	}
	// What relocation holds of its part is not data's to use.
	return a.budget - max(0, a.spare-a.moving)
}

func (a *Allocator) holdLocked(g *group) {
	if !g.holds {
		g.holds = true
		a.active++
		if g.class == ClassRelocation {
			a.moving++
		}
		a.stats.PeakActive = max(a.stats.PeakActive, a.active)
	}
}

func (a *Allocator) releaseLocked(g *group) {
	if g.holds {
		g.holds = false
		a.active--
		if g.class == ClassRelocation {
			a.moving--
		}
	}
}

func (a *Allocator) enlistLocked(slot uint32, g *group) {
	a.lists[g.class] = append(a.lists[g.class], slot)
	a.listed++
}

func (a *Allocator) delistLocked(slot uint32, g *group) {
	l := a.lists[g.class]
	if i := slices.Index(l, slot); i >= 0 {
		a.lists[g.class] = slices.Delete(l, i, i+1)
		a.listed--
	}
}

// leaveLocked takes g out of allocation, whatever its state, on its way to state `to`.
func (a *Allocator) leaveLocked(slot uint32, g *group, to State) {
	switch g.state {
	case Active:
		if g.opening {
			g.opening = false
			a.opening[g.class]--
			a.openTotal--
		} else {
			a.delistLocked(slot, g)
		}
	case Closing:
		if i := slices.Index(a.closing, slot); i >= 0 {
			a.closing = slices.Delete(a.closing, i, i+1)
		}
	}
	g.state = to
	switch to {
	case Closing:
		a.closing = append(a.closing, slot)
	case Resetting:
		// An active zone stays active on the device until its reset is done.
	default:
		a.releaseLocked(g)
	}
}

// notifyLocked wakes everybody who waits on Changed.
func (a *Allocator) notifyLocked() {
	if a.changed != nil {
		close(a.changed)
		a.changed = nil
	}
}

// Changed returns a channel that is closed at the next change after which a waiter should look
// again: one that may turn Busy, NoSpace or a refused Reserve into success, or that gives the
// owner something to finish or reset. Take the channel before the attempt whose failure is to
// be waited out; each closing needs a fresh one.
func (a *Allocator) Changed() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.changed == nil {
		a.changed = make(chan struct{})
	}
	return a.changed
}
