package alloc

// BlockGroup describes the block group at slot as it is; ok is false if there is none.
func (a *Allocator) BlockGroup(slot uint32) (b BlockGroup, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if int64(slot) >= int64(len(a.groups)) {
		return BlockGroup{}, false
	}
	return a.groups[slot].describe(slot), true
}

// BeginResetOf is BeginReset for one block group, which must still be as b, an answer of
// BlockGroup, describes it: Full or Active, with nothing live, pending or in flight, and nothing
// granted since. So who waited for its readers after BlockGroup need not wait again.
func (a *Allocator) BeginResetOf(b BlockGroup) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	g := a.sameLocked(b)
	if g == nil || g.opening || g.state != Full && g.state != Active || !g.idle() || g.pins > 0 {
		return false
	}
	a.unsettleLocked(g)
	a.leaveLocked(b.Slot, g, Resetting)
	a.settleLocked(b.Slot, g)
	return true
}

// HoldEmpty keeps a block group that is still Empty as b describes it from being opened, until
// ReleaseEmpty. Its bytes stay free; who finds no other one to open waits (Busy).
func (a *Allocator) HoldEmpty(b BlockGroup) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	g := a.sameLocked(b)
	if g == nil || g.state != Empty || g.held {
		return false
	}
	a.unsettleLocked(g)
	g.held = true
	a.held++
	a.settleLocked(b.Slot, g)
	return true
}

// ReleaseEmpty ends HoldEmpty.
func (a *Allocator) ReleaseEmpty(slot uint32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	g := a.lookupLocked(slot)
	if g == nil || !g.held {
		return
	}
	a.unsettleLocked(g)
	g.held = false
	a.held--
	a.settleLocked(slot, g)
	a.notifyLocked()
}

// sameLocked returns the block group if nothing was granted in it since b described it, and it was
// not reset; else nil.
func (a *Allocator) sameLocked(b BlockGroup) *group {
	g := a.lookupLocked(b.Slot)
	if g == nil || g.generation != b.Generation || g.granted != b.AllocOffset || g.state != b.State {
		return nil
	}
	return g
}

// Aside returns how many free bytes of conventional block groups cannot be granted now: freed and
// not vacated, or held.
func (a *Allocator) Aside() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.asideLocked()
}
