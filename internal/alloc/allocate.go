package alloc

import "github.com/shingle-store/shingle/internal/extent"

// Grant is the right to append Length bytes to a block group, in one append or several, or, if it
// is Conventional, to write them at Off. Each grant ends with one Complete or Fail.
type Grant struct {
	Slot       uint32
	Zone       int
	Length     int64 // bytes, a multiple of the block, > 0
	Generation uint64
	Class      Class // of the writer, which pays for it; may differ from the block group's
	// Conventional: the bytes [Off, Off+Length) of a conventional zone, which take writes and
	// no append.
	Conventional bool
	Off          int64
}

// Outcome is what came of an Allocate.
type Outcome uint8

// The outcomes.
const (
	// Granted: the grant is valid.
	Granted Outcome = iota
	// NeedsOpen: call BeginOpen, write the zone header, call FinishOpen, and allocate again.
	NeedsOpen
	// Busy: wait for Changed. An active slot or a block group becomes available when appends
	// in flight complete, or the owner ends an opening, a closing or a reset that is due.
	Busy
	// NoSpace: nothing is left, and no reset is due that would change it; or nothing was
	// reserved.
	NoSpace
)

var outcomeNames = [...]string{"granted", "needs open", "busy", "no space"}

// String returns the outcome's name in lower case.
func (o Outcome) String() string {
	if int(o) < len(outcomeNames) {
		return outcomeNames[o]
	}
	return "unknown outcome"
}

// Allocate turns up to want reserved bytes into a grant in one block group: want rounded down
// to the block, less if the block group's tail or what is reserved is less. Grants of
// ClassRelocation need no reservation.
//
// The hint (S1) is the first active block group of the class with room for want. If none
// has, the smallest tail is used up, so that no tail is looked at twice. If the class has no
// room at all, an empty block group is to be opened. Where nothing is empty, or opening for data
// would break into the empty block groups kept as the reserve, it is conventional block groups'
// turn, for all classes but relocation. Where those are full, or the budget is spent on block groups
// of other classes that have room, those are shared: to keep a promise counts for more than to keep
// classes apart.
func (a *Allocator) Allocate(c Class, want int64) (Grant, Outcome) { return a.allocate(c, want, false) }

// AllocateSmall is Allocate for little data, and for data that is often written anew: a
// conventional block group with a free run for all of want comes first. What dies there is free
// again at once, where in a sequential block group it would wait for a reset.
func (a *Allocator) AllocateSmall(c Class, want int64) (Grant, Outcome) {
	return a.allocate(c, want, true)
}

func (a *Allocator) allocate(c Class, want int64, small bool) (Grant, Outcome) {
	a.mu.Lock()
	defer a.mu.Unlock()
	examined := uint64(0)
	defer func() {
		a.stats.Examined += examined
		a.stats.MaxExamined = max(a.stats.MaxExamined, examined)
	}()
	n := extent.RoundDown(want)
	if !c.valid() || n <= 0 {
		return Grant{}, NoSpace
	}
	if c.reserves() && a.reserved <= 0 {
		return Grant{}, NoSpace
	}
	anywhere := int64(0) // what conventional block groups may give
	if c.reserves() {
		anywhere = min(n, a.reserved, a.sum.conventional.free)
	}
	if small && anywhere == min(n, a.reserved) {
		if gr, ok := a.grantConventionalLocked(c, anywhere, true, &examined); ok {
			return gr, Granted
		}
	}
	if n = min(n, a.grantableLocked(c)); n > 0 {
		gr, out := a.appendLocked(c, n, &examined)
		if out != NoSpace {
			return gr, out
		}
	}
	if gr, ok := a.grantConventionalLocked(c, anywhere, false, &examined); ok {
		return gr, Granted
	}
	if n > 0 {
		if gr, out := a.shareLocked(c, n, &examined); out != NoSpace {
			return gr, out
		}
	}
	return Grant{}, a.shortLocked()
}

// appendLocked is allocate for the sequential block groups of the class: those that are active, and
// one to be opened if that leaves the reserve in empty ones. NoSpace: look elsewhere.
func (a *Allocator) appendLocked(c Class, n int64, examined *uint64) (Grant, Outcome) {
	slot, hit := a.hintLocked(a.lists[c], n, examined)
	if slot >= 0 {
		if hit {
			a.stats.HintHits++
		}
		return a.grantLocked(uint32(slot), c, n), Granted
	}
	if a.opening[c] > 0 {
		return Grant{}, Busy
	}
	_, whole, empty := a.pickLocked(c, examined)
	switch {
	case !empty:
	case a.active < a.budgetLocked(c) && whole:
		// Own room is used up: what is listed belongs to other classes.
		return Grant{}, NeedsOpen
	case a.active >= a.budgetLocked(c) && a.active > a.listed:
		return Grant{}, Busy
	}
	return Grant{}, NoSpace
}

// shareLocked is allocate where nothing else is left: an empty block group that the reserve lies in,
// or those of other classes.
func (a *Allocator) shareLocked(c Class, n int64, examined *uint64) (Grant, Outcome) {
	if a.empty.count+a.halves.count > 0 && a.active < a.budgetLocked(c) && a.listed == 0 {
		return Grant{}, NeedsOpen
	}
	for other := ClassData; other <= ClassLog; other++ {
		if other == c {
			continue
		}
		if slot, _ := a.hintLocked(a.lists[other], n, examined); slot >= 0 {
			return a.grantLocked(uint32(slot), c, n), Granted
		}
	}
	return Grant{}, NoSpace
}

// keptLocked is the part of the free space that only relocation is granted: half of the
// reserve, less what relocation has used of it and no reset has brought back. It lies in sequential
// block groups.
func (a *Allocator) keptLocked() int64 { return extent.RoundDown(a.reserve/2) - a.lent }

// sequentialFreeLocked is what could be appended.
func (a *Allocator) sequentialFreeLocked() int64 { return a.sum.free - a.sum.conventional.free }

// owedLocked is how much of what is promised only sequential block groups can give.
func (a *Allocator) owedLocked() int64 { return max(0, a.reserved-max(0, a.sum.conventional.free)) }

// grantableLocked is how many bytes the class may be granted in sequential block groups in all. Data:
// what is promised. Relocation: what is not, and what is kept for it whatever is promised.
func (a *Allocator) grantableLocked(c Class) int64 {
	kept, free := a.keptLocked(), a.sequentialFreeLocked()
	if c.reserves() {
		return min(a.reserved, free-kept)
	}
	return min(free, max(free-a.owedLocked(), kept))
}

// chargeLocked pays for a grant of n bytes about to be made to the class.
func (a *Allocator) chargeLocked(c Class, n int64) {
	if c.reserves() {
		a.reserved -= n
		return
	}
	if a.sequentialFreeLocked()-a.owedLocked() >= a.reserve {
		a.lent = 0 // the reserve is whole again
	}
	a.lent += max(0, n-max(0, a.sequentialFreeLocked()-a.owedLocked()-a.keptLocked()))
}

// shortLocked tells a lack that passes by itself from one that does not.
func (a *Allocator) shortLocked() Outcome {
	if a.openTotal > 0 || a.held > 0 || a.sum.reclaimable > 0 || a.asideLocked() > 0 {
		a.refused = true
		return Busy
	}
	return NoSpace
}

// hintLocked returns the first block group of the list with room for n (hit), else the one
// with the smallest room, else -1. Every listed block group has room.
func (a *Allocator) hintLocked(list []uint32, n int64, examined *uint64) (slot int64, hit bool) {
	slot = -1
	var least int64
	for _, s := range list {
		*examined++
		room := a.groups[s].room()
		if room >= n {
			return int64(s), true
		}
		if slot < 0 || room < least {
			slot, least = int64(s), room
		}
	}
	return slot, false
}

func (a *Allocator) grantLocked(slot uint32, c Class, n int64) Grant {
	g := &a.groups[slot]
	n = min(n, g.room())
	a.chargeLocked(c, n)
	a.unsettleLocked(g)
	g.granted += n
	g.inflight += n
	g.pending += n
	if g.room() == 0 {
		a.delistLocked(slot, g)
	}
	a.settleLocked(slot, g)
	a.stats.Allocations++
	return Grant{Slot: slot, Zone: g.zone, Length: n, Generation: g.generation, Class: c}
}

// Complete says that the grant's bytes are on the device (not that they are durable). They
// stay pending. A block group whose whole capacity is appended becomes Full and gives its
// active slot back, as its zone did; a conventional one has none.
func (a *Allocator) Complete(gr Grant) {
	a.mu.Lock()
	defer a.mu.Unlock()
	g := a.landLocked(gr)
	if g == nil {
		return
	}
	switch {
	case g.runs != nil:
	case g.state == Active && !g.opening && g.granted == g.capacity && g.inflight == 0:
		a.leaveLocked(gr.Slot, g, Full)
		a.notifyLocked()
	case g.inflight == 0 && (g.state == Closing || g.idle()):
		a.notifyLocked()
	}
	a.settleLocked(gr.Slot, g)
}

// Fail says that the grant's append failed. Its bytes are reserved again, since the caller
// still owes them elsewhere (those of ClassRelocation are not), and lost in this block group,
// which takes no more and waits in Closing to be finished. A conventional block group goes on; its
// bytes that failed are not granted again before Mended, and count as quarantined.
func (a *Allocator) Fail(gr Grant) {
	a.mu.Lock()
	defer a.mu.Unlock()
	g := a.landLocked(gr)
	if g == nil {
		return
	}
	n := a.takeLocked(gr.Length, g.pending)
	g.pending -= n
	g.failed += n
	if gr.Class.reserves() {
		a.reserved += n
	}
	switch {
	case g.runs != nil:
		g.bad += n
	case g.state == Active:
		a.leaveLocked(gr.Slot, g, Closing)
	}
	a.settleLocked(gr.Slot, g)
	a.notifyLocked()
}

// landLocked ends the flight of a grant and leaves its group unsettled; nil if the grant does
// not belong to the group as it is now.
func (a *Allocator) landLocked(gr Grant) *group {
	g := a.lookupLocked(gr.Slot)
	if g == nil {
		return nil
	}
	if g.generation != gr.Generation || gr.Length <= 0 || gr.Length > g.inflight {
		a.stats.Mismatches++
		return nil
	}
	a.unsettleLocked(g)
	g.inflight -= gr.Length
	return g
}
