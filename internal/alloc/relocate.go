package alloc

// watchLocked tells the watcher about g, changed, if live data can be moved out of it: a Full block
// group with live bytes, some that a reset would bring back, and none that a commit may still
// publish.
func (a *Allocator) watchLocked(slot uint32, g *group) {
	if a.watch == nil {
		return
	}
	movable := g.state == Full && g.pending == 0 && g.live > 0
	if movable || g.watched {
		g.watched = movable
		a.watch(slot, g.live, g.figures().unusable, movable)
	}
}

// Pin keeps a block group from being reset until Unpin: while somebody moves its live parts, no
// address in it may come to mean other data. It answers false for one that live data cannot be
// moved out of: it takes appends, some are not published, its zone failed, or nothing is live.
func (a *Allocator) Pin(slot uint32) (BlockGroup, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	g := a.lookupLocked(slot)
	if g == nil || g.state != Full || g.pending > 0 || g.live == 0 {
		return BlockGroup{}, false
	}
	g.pins++
	return g.describe(slot), true
}

// Keep is Pin for a block group in any state that can be read, also one that takes appends: while
// single blocks are moved out of it. It answers false if nothing is live in it, and for conventional
// ones, which are not reset.
func (a *Allocator) Keep(slot uint32) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	g := a.lookupLocked(slot)
	if g == nil || g.runs != nil || g.live == 0 || g.state == Resetting {
		return false
	}
	a.unsettleLocked(g)
	g.pins++
	a.settleLocked(slot, g)
	return true
}

// Unpin ends one Pin or Keep. With the last one a block group with nothing live can be reset.
func (a *Allocator) Unpin(slot uint32) {
	a.account(slot, func(g *group) {
		if g.pins == 0 {
			a.stats.Mismatches++
			return
		}
		g.pins--
	})
}

// ActiveDead returns the dead bytes of Active block groups that hold live ones too: what CloseDead
// may make movable, now or when nothing in them is pending any more.
func (a *Allocator) ActiveDead() (n int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, list := range a.lists {
		for _, s := range list {
			if g := &a.groups[s]; g.live > 0 {
				n += g.figures().unusable
			}
		}
	}
	return n
}

// CloseDead takes the Active block group with the most dead bytes out of allocation, so that live
// data can be moved out of it: for when no Full one is left to give space back. It waits in Closing
// to be finished. Its room is lost until its reset, so it answers false where a promise or the
// reserve would be short of that, and where there is none with dead bytes and none pending. It looks
// at the active ones only.
func (a *Allocator) CloseDead() (slot uint32, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.availableLocked() < 0 {
		return 0, false
	}
	most := int64(0)
	for _, list := range a.lists {
		for _, s := range list {
			g := &a.groups[s]
			if dead := g.figures().unusable; g.pending == 0 && g.live > 0 && dead > most {
				slot, most, ok = s, dead, true
			}
		}
	}
	if ok {
		a.suspectLocked(slot, &a.groups[slot])
	}
	return slot, ok
}
