package alloc

import "slices"

// Resize gives an Empty or Resetting sequential block group, or one without a zone, the capacity of the
// zones that lie under it from now on; 0: none does, and the block group is Quarantined until there are
// some again. It answers false, and changes nothing, for a block group in any other state, and where
// less space would be left than was promised.
func (a *Allocator) Resize(slot uint32, capacity int64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	g := a.lookupLocked(slot)
	if g == nil || g.runs != nil {
		return false
	}
	absent := g.state == Quarantined && g.capacity == 0
	if !absent && g.state != Empty && (g.state != Resetting || !g.idle()) {
		return false
	}
	if loss := g.usable() - max(0, capacity-HeaderSize); loss > 0 && (a.availableLocked() < loss || a.usable-loss <= a.reserve) {
		return false
	}
	a.unsettleLocked(g)
	a.usable -= g.usable()
	g.capacity = capacity
	a.usable += g.usable()
	switch {
	case capacity == 0 && g.state == Empty:
		g.state = Quarantined
	case capacity > 0 && absent:
		g.state, g.granted, g.failed = Empty, 0, 0
	}
	a.settleLocked(slot, g)
	a.notifyLocked()
	return true
}

// Grow appends a sequential block group, Empty and held until ReleaseEmpty, and returns its slot: the
// next one. Its generation is 1.
func (a *Allocator) Grow(zone int, capacity int64) uint32 {
	a.mu.Lock()
	defer a.mu.Unlock()
	slot := uint32(len(a.groups))
	a.groups = append(slices.Clip(a.groups), group{zone: zone, capacity: capacity, generation: 1, class: ClassData, held: true})
	a.held++
	a.empty.grow(len(a.groups))
	a.halves.grow(len(a.groups))
	a.dead.grow(len(a.groups))
	g := &a.groups[slot]
	a.usable += g.usable()
	a.settleLocked(slot, g)
	a.notifyLocked()
	return slot
}

// SetHalf says whether the zones under a block group keep fewer copies than they should. It is opened only when
// there is no other empty one.
func (a *Allocator) SetHalf(slot uint32, half bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	g := a.lookupLocked(slot)
	if g == nil || g.half == half {
		return
	}
	a.unsettleLocked(g)
	g.half = half
	a.settleLocked(slot, g)
}

// Empties returns how many empty block groups can be opened, and how many of them are halves (SetHalf).
func (a *Allocator) Empties() (n, halves int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.empty.count + a.halves.count, a.halves.count
}
