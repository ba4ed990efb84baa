package alloc

import "slices"

// pickLocked chooses the empty block group to open for the class: the lowest slot; for data the
// highest instead (the last zone of a device may be shorter) if only that leaves the reserve in
// empty block groups. whole: the choice leaves it there, or the class need not.
func (a *Allocator) pickLocked(c Class, examined *uint64) (slot uint32, whole, ok bool) {
	set := &a.empty
	if set.count == 0 {
		set = &a.halves
	}
	slot, ok = set.lowest()
	if !ok || !c.reserves() {
		return slot, true, ok
	}
	leavesReserve := func(slot uint32) bool {
		*examined++
		return a.sum.empty-a.groups[slot].usable() >= a.reserve
	}
	if leavesReserve(slot) {
		return slot, true, true
	}
	if last, _ := set.highest(); leavesReserve(last) {
		return last, true, true
	}
	return slot, false, true
}

// BeginOpen picks an empty block group for the class and counts it active from now on. The
// caller writes the zone header with the returned generation and class, and ends with
// FinishOpen (or Quarantine). It answers false if another one is being opened for the class,
// the budget is spent, nothing is empty, or the class may be granted nothing; after NeedsOpen
// that means that somebody else was quicker: allocate again.
//
// The lowest slot is taken; for data the highest instead (the last zone of a device may be
// shorter) if only that leaves the reserve in empty block groups.
func (a *Allocator) BeginOpen(c Class) (BlockGroup, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !c.valid() || a.opening[c] > 0 || a.active >= a.budgetLocked(c) || a.grantableLocked(c) <= 0 {
		return BlockGroup{}, false
	}
	var examined uint64 // counts for Allocate only
	slot, _, ok := a.pickLocked(c, &examined)
	if !ok {
		return BlockGroup{}, false
	}
	g := &a.groups[slot]
	a.unsettleLocked(g)
	g.state, g.class, g.opening = Active, c, true
	a.opening[c]++
	a.openTotal++
	a.holdLocked(g)
	a.settleLocked(slot, g)
	return g.describe(slot), true
}

// FinishOpen ends what BeginOpen began. ok: the header is written and the block group takes
// allocations. Otherwise it is Closing: its zone may or may not be active, so it is finished
// and reset before it is used again.
func (a *Allocator) FinishOpen(slot uint32, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	g := a.lookupLocked(slot)
	if g == nil || !g.opening {
		return // quarantined or suspected meanwhile
	}
	a.unsettleLocked(g)
	if ok {
		g.opening = false
		a.opening[g.class]--
		a.openTotal--
		g.granted = HeaderSize
		a.enlistLocked(slot, g)
		a.stats.Opened++
	} else {
		a.leaveLocked(slot, g, Closing)
	}
	a.settleLocked(slot, g)
	a.notifyLocked()
}

// Closing returns the slots whose zones wait to be finished and have no append in flight, in
// the order they failed. The owner finishes each zone and calls Retire (or Quarantine). The
// slice is the caller's.
func (a *Allocator) Closing() []uint32 {
	a.mu.Lock()
	defer a.mu.Unlock()
	due := slices.Clone(a.closing)
	return slices.DeleteFunc(due, func(s uint32) bool { return a.groups[s].inflight > 0 })
}

// AnyClosing reports whether a zone waits to be finished, also one with an append in flight.
func (a *Allocator) AnyClosing() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.closing) > 0
}

// Retire says that the zone is finished on the device: the tail is unusable until a reset, the
// active slot is free, the block group is Full. An Active block group may be retired too;
// grants of it still in flight then end in Fail or Complete as ever.
func (a *Allocator) Retire(slot uint32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	g := a.lookupLocked(slot)
	if g == nil || g.runs != nil || g.state != Closing && g.state != Active {
		return
	}
	a.unsettleLocked(g)
	a.leaveLocked(slot, g, Full)
	a.settleLocked(slot, g)
	a.stats.Retired++
	a.notifyLocked()
}

// Suspect takes an Active block group out of allocation: something appended to it may be lost.
// It waits in Closing to be finished. Other states are left as they are: they take no appends. So
// are conventional ones: what was written there can be written again elsewhere, or there.
func (a *Allocator) Suspect(slot uint32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if g := a.lookupLocked(slot); g != nil {
		a.suspectLocked(slot, g)
	}
}

// SuspectAll is Suspect for every Active block group at one moment, those that are being opened
// or whose last appends are in flight included: after a failed device flush nobody knows which
// of them lost what. It walks all block groups; a failed flush is not a data path.
func (a *Allocator) SuspectAll() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range a.groups {
		a.suspectLocked(uint32(i), &a.groups[i])
	}
}

func (a *Allocator) suspectLocked(slot uint32, g *group) {
	if g.state != Active || g.runs != nil {
		return
	}
	a.unsettleLocked(g)
	a.leaveLocked(slot, g, Closing)
	a.settleLocked(slot, g)
	a.notifyLocked()
}

// Quarantine says that the zone went read-only (readable) or offline. What is not live or
// pending in it is lost to the store for good; live bytes stay in the books until they are
// freed, pending ones until they are published or discarded. It never comes back.
func (a *Allocator) Quarantine(slot uint32, readable bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	g := a.lookupLocked(slot)
	if g == nil || g.state == Quarantined || readable && g.state == ReadOnly {
		return
	}
	a.unsettleLocked(g)
	to := Quarantined
	if readable {
		to = ReadOnly
	}
	a.leaveLocked(slot, g, to)
	a.settleLocked(slot, g)
	a.notifyLocked()
}
