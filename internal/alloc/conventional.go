package alloc

import (
	"math/bits"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
)

// MaxConventionalBlocks is the most blocks of a conventional block group: the lengths of its free
// runs fit 32 bits.
const MaxConventionalBlocks = 1 << 31

// runIndex finds a conventional block group by the length of its longest free run: members of
// orders[i] have one of 2^i blocks or more, and less than 2^(i+1). So whatever fits is found in a
// few steps, however many block groups there are (S1).
type runIndex struct {
	orders []slotSet // nil without conventional block groups
	// hint is where the class was granted from last; -1: nowhere. Neighbours in time stay
	// neighbours on the device.
	hint [classes]int64
}

func newRunIndex(groups []group) runIndex {
	var x runIndex
	most := 0
	for i := range groups {
		if r := groups[i].runs; r != nil {
			most = max(most, r.blocks)
		}
	}
	x.orders = make([]slotSet, bits.Len(uint(most)))
	for i := range x.orders {
		x.orders[i] = newSlotSet(len(groups))
	}
	for c := range x.hint {
		x.hint[c] = -1
	}
	return x
}

// place files the group by its longest run.
func (x *runIndex) place(slot uint32, g *group) {
	order := 0
	if g.state == Active {
		order = bits.Len(uint(g.runs.longest()))
	}
	if order == g.order {
		return
	}
	if g.order > 0 {
		x.orders[g.order-1].set(slot, false)
	}
	if order > 0 {
		x.orders[order-1].set(slot, true)
	}
	g.order = order
}

// conventionalLocked returns the conventional block group for n blocks of the class: the hint if
// they fit there, else the lowest one of the shortest runs that are surely long enough, else, and
// then fits is false, one of the longest runs there are. ok is false if nothing is free.
func (a *Allocator) conventionalLocked(c Class, n int64, examined *uint64) (slot uint32, fits, ok bool) {
	x := &a.runs
	if h := x.hint[c]; h >= 0 && a.groups[h].state == Active {
		*examined++
		if int64(a.groups[h].runs.longest()) >= n {
			return uint32(h), true, true
		}
	}
	for i := bits.Len64(uint64(n - 1)); i < len(x.orders); i++ {
		if slot, ok := x.orders[i].lowest(); ok {
			*examined++
			return slot, true, true
		}
	}
	for i := min(bits.Len64(uint64(n)), len(x.orders)) - 1; i >= 0; i-- {
		if slot, ok := x.orders[i].lowest(); ok {
			*examined++
			return slot, int64(a.groups[slot].runs.longest()) >= n, true
		}
	}
	return 0, false, false
}

// grantConventionalLocked grants up to n bytes in a conventional block group, all of them in one
// run: fewer if no run is that long, unless whole.
func (a *Allocator) grantConventionalLocked(c Class, n int64, whole bool, examined *uint64) (Grant, bool) {
	if n <= 0 {
		return Grant{}, false
	}
	slot, fits, ok := a.conventionalLocked(c, n/extent.BlockSize, examined)
	if !ok || whole && !fits {
		return Grant{}, false
	}
	g := &a.groups[slot]
	if a.runs.hint[c] == int64(slot) && fits {
		a.stats.HintHits++
	}
	a.runs.hint[c] = int64(slot)
	n = min(n, int64(g.runs.longest())*extent.BlockSize)
	at, _ := g.runs.find(int(n / extent.BlockSize))
	a.chargeLocked(c, n)
	a.unsettleLocked(g)
	g.runs.set(at, int(n/extent.BlockSize), true)
	g.inflight += n
	g.pending += n
	a.settleLocked(slot, g)
	a.stats.Allocations++
	return Grant{
		Slot: slot, Zone: g.zone, Length: n, Generation: g.generation, Class: c,
		Conventional: true, Off: int64(at) * extent.BlockSize,
	}, true
}

// asideLocked is how many free bytes of conventional block groups cannot be granted now: freed, but
// not vacated, or held.
func (a *Allocator) asideLocked() int64 {
	return max(0, a.sum.conventional.free-a.sum.ready)
}

// Vacate says that n bytes at off of a conventional block group may be written again: they were
// freed, by a transaction that is durable, and nobody reads them any more. What HoldFree held is
// given back by it too. It changes no account but what can be granted: Free, which may come before
// or after, says what is live. Other block groups are left as they are.
func (a *Allocator) Vacate(slot uint32, off, n int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	g := a.lookupLocked(slot)
	if g == nil || g.runs == nil {
		return
	}
	a.unsettleLocked(g)
	a.vacateLocked(g, off, n)
	a.settleLocked(slot, g)
	a.notifyLocked()
}

// Mended says that n bytes at off, of a grant that ended in Fail, can be written after all: they are
// free again.
func (a *Allocator) Mended(slot uint32, off, n int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	g := a.lookupLocked(slot)
	if g == nil || g.runs == nil {
		return
	}
	a.unsettleLocked(g)
	g.bad -= a.takeLocked(n, g.bad)
	a.vacateLocked(g, off, n)
	a.settleLocked(slot, g)
	a.notifyLocked()
}

// vacateLocked clears the bits of a range, which must all be set.
func (a *Allocator) vacateLocked(g *group, off, n int64) {
	if off < 0 || n < 0 || off > g.capacity-n || off%extent.BlockSize != 0 || n%extent.BlockSize != 0 {
		a.stats.Mismatches++
		return
	}
	if int64(g.runs.set(int(off/extent.BlockSize), int(n/extent.BlockSize), false)) != n/extent.BlockSize {
		a.stats.Mismatches++
	}
}

// FreeRun returns the first run of free bytes that can be granted and lies in [from, to) of a
// conventional block group, cut to that range and to most bytes (0: no bound), of at least least
// bytes. from, to and most are multiples of the block. ok is false if there is none, or the block
// group is of another kind or has failed. The walk over the bitmap holds the mutex.
func (a *Allocator) FreeRun(slot uint32, from, to, least, most int64) (off, n int64, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, off, n, ok = a.freeRunLocked(slot, from, to, least, most)
	return off, n, ok
}

func (a *Allocator) freeRunLocked(slot uint32, from, to, least, most int64) (g *group, off, n int64, ok bool) {
	g = a.lookupLocked(slot)
	if g == nil || g.runs == nil || g.state != Active {
		return nil, 0, 0, false
	}
	at, k := g.runs.next(int(extent.BlocksFor(from)), int(to/extent.BlockSize), int(extent.BlocksFor(least)))
	off, n = int64(at)*extent.BlockSize, int64(k)*extent.BlockSize
	if most > 0 {
		n = min(n, most)
	}
	return g, off, n, k > 0
}

// HoldFree is FreeRun that also keeps what it answers from being granted, until Vacate of the same
// range gives it back. Held bytes count as free: who was promised them waits (Busy), and the holder
// must always give them back.
func (a *Allocator) HoldFree(slot uint32, from, to, least, most int64) (off, n int64, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	g, off, n, ok := a.freeRunLocked(slot, from, to, least, most)
	if ok {
		a.unsettleLocked(g)
		g.runs.set(int(off/extent.BlockSize), int(n/extent.BlockSize), true)
		a.settleLocked(slot, g)
	}
	return off, n, ok
}

// kindFigures are the figures of conventional block groups, which are part of the sums too.
type kindFigures struct{ live, pending, free, quarantined int64 }

// conventionalFigures is figures for a conventional block group. What is neither live nor pending
// is free at once, although it may take a moment until it can be granted (ready). Until Free has
// caught up with Vacate a block may count twice: free is then below zero here, never in the sum.
func (g *group) conventionalFigures() figures {
	f := figures{live: g.live, pending: g.pending, quarantined: g.bad, groups: 1}
	rest := g.capacity - g.live - g.pending - g.bad
	if g.state == Active {
		f.free = rest
		f.ready = int64(g.runs.free()) * extent.BlockSize
	} else {
		f.quarantined += rest
	}
	f.conventional = kindFigures{f.live, f.pending, f.free, f.quarantined}
	return f
}

// conventionalState is the state to show: a conventional block group has no life of its own.
func (g *group) conventionalState() State {
	switch {
	case g.state != Active:
		return g.state
	case g.live+g.pending+g.bad >= g.capacity:
		return Full
	case g.live == 0 && g.pending == 0:
		return Empty
	}
	return Active
}

// takeOver makes the map of a recovered conventional block group. words has its bitmap; without
// one it must be all free or all live. Mirrors check, for the other kind.
func (g *group) takeOver(b *BlockGroup, words []uint64) error {
	blocks := b.Capacity / extent.BlockSize
	bad := func(msg string) error { return badGroup(int(b.Slot), msg) }
	switch {
	case b.Capacity < extent.BlockSize || b.Capacity%extent.BlockSize != 0 || b.Live%extent.BlockSize != 0:
		return bad("a size is not a whole number of blocks, or there is no room for one")
	case blocks > MaxConventionalBlocks:
		return errdefs.New(errdefs.Precondition, "", "alloc.New", "", "a conventional zone has more blocks than can be kept track of")
	case b.Live < 0 || b.Live > b.Capacity:
		return bad("more is live than it holds")
	case b.State != Empty && b.State != Active && b.State != Full && b.State != ReadOnly && b.State != Quarantined:
		return bad("cannot be recovered as " + b.State.String())
	}
	if b.State != ReadOnly && b.State != Quarantined {
		g.state = Active
	}
	if words == nil && (b.Live == 0 || b.Live == b.Capacity) {
		g.runs = newRunMap(int(blocks), b.Live > 0)
		return nil
	}
	g.runs = loadRunMap(int(blocks), words)
	if int64(g.runs.used)*extent.BlockSize != b.Live && g.state == Active {
		return bad("its bitmap has another number of blocks in use than it has live bytes")
	}
	return nil
}
