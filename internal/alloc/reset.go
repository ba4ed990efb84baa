package alloc

// BeginReset hands out a block group whose zone can be reset: Full with nothing live, pending
// or in flight, lowest slot first; while space is short also an Active one like that with
// dead bytes in it. Until FinishReset it is out of allocation, and its bytes stay unusable. The
// caller keeps readers out of the zone and calls it only for frees whose transaction is durable.
func (a *Allocator) BeginReset() (BlockGroup, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	slot, ok := a.dead.lowest()
	if !ok {
		slot, ok = a.idleActiveLocked()
	}
	if !ok {
		return BlockGroup{}, false
	}
	g := &a.groups[slot]
	a.unsettleLocked(g)
	a.leaveLocked(slot, g, Resetting)
	a.settleLocked(slot, g)
	return g.describe(slot), true
}

// idleActiveLocked finds an Active block group that is worth a reset, if space is short: less
// than it holds could be reserved, or somebody was refused since the last reset.
func (a *Allocator) idleActiveLocked() (uint32, bool) {
	for _, list := range a.lists {
		for _, slot := range list {
			g := &a.groups[slot]
			if g.idle() && g.pins == 0 && g.figures().unusable > 0 && (a.refused || a.availableLocked() < g.usable()) {
				return slot, true
			}
		}
	}
	return 0, false
}

// FinishReset ends what BeginReset began. ok: the block group is Empty with its generation one
// higher; the caller persists that before or when it opens it. Otherwise it is Quarantined.
func (a *Allocator) FinishReset(slot uint32, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	g := a.lookupLocked(slot)
	if g == nil || g.state != Resetting {
		return // quarantined meanwhile
	}
	a.unsettleLocked(g)
	if ok {
		to := Empty
		if g.capacity == 0 {
			to = Quarantined // Resize has left it without a zone
		}
		a.leaveLocked(slot, g, to)
		g.granted, g.failed = 0, 0
		g.generation++
		a.stats.Reset++
		a.refused = false
		a.lent = max(0, a.lent-g.usable())
	} else {
		a.leaveLocked(slot, g, Quarantined)
	}
	a.settleLocked(slot, g)
	a.notifyLocked()
}
