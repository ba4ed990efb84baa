package alloc

import (
	"strconv"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
)

// Reserve promises n bytes (a multiple of the block, 0 allowed): unless zones fail, Allocate
// will grant them. Every reserved byte is given back once: by a grant, or by Unreserve.
//
// Errors: InvalidArgument; NoSpace with reason RECLAIM_PENDING if resetting block groups that
// have nothing live would make room (wait for Changed), else NO_SPACE. Both carry the figures
// free, reserved, zone_unusable, reclaimable, active and max_active. The active-zone limit never
// refuses a reservation.
func (a *Allocator) Reserve(n int64) error {
	const op = "alloc.Reserve"
	if n < 0 || n%extent.BlockSize != 0 {
		return errdefs.Invalid(op, "length", "must be a multiple of the block, and not negative")
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	available := a.availableLocked()
	if n <= available || n == 0 {
		a.reserved += n
		return nil
	}
	reason, msg := errdefs.ReasonNoSpace, "no space left"
	if n <= available+a.sum.reclaimable {
		reason, msg = errdefs.ReasonReclaimPending, "space is being reclaimed"
		a.refused = true
	}
	u := a.usageLocked()
	err := errdefs.New(errdefs.NoSpace, reason, op, "", msg)
	figure := func(n int64) string { return strconv.FormatInt(n, 10) }
	err.Meta = map[string]string{
		"free": figure(u.Free), "reserved": figure(u.Reserved), "zone_unusable": figure(u.Unusable),
		"reclaimable": figure(u.Reclaimable), "active": strconv.Itoa(u.Active),
		"max_active": strconv.Itoa(u.MaxActive),
	}
	return err
}

// Unreserve gives n reserved bytes back.
func (a *Allocator) Unreserve(n int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.reserved -= a.takeLocked(n, a.reserved)
	a.notifyLocked()
}

// availableLocked is what could be reserved; negative by the deficit.
func (a *Allocator) availableLocked() int64 { return a.sum.free - a.reserve - a.reserved }

// Publish says that n pending bytes of the block group are live: their transaction is durable.
// Of a relocation, free the old places before publishing the new ones, so that nothing counts
// twice.
func (a *Allocator) Publish(slot uint32, n int64) {
	a.account(slot, func(g *group) {
		n = a.takeLocked(n, g.pending-g.inflight)
		g.pending -= n
		g.live += n
	})
}

// account changes the books of a block group by f, which holds mu, and wakes who waits for space
// if nothing live or pending is left in it, or it may have become free.
func (a *Allocator) account(slot uint32, f func(g *group)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	g := a.lookupLocked(slot)
	if g == nil {
		return
	}
	a.unsettleLocked(g)
	f(g)
	a.settleLocked(slot, g)
	if g.idle() || g.runs != nil {
		a.notifyLocked()
	}
}

// Discard says that n pending bytes, appended, will never be published: they are unusable.
// rereserve: the caller owes them elsewhere, so they count as reserved again, whether or not
// there is room (Usage.Deficit). Of a conventional block group it takes DiscardRun.
func (a *Allocator) Discard(slot uint32, n int64, rereserve bool) {
	a.account(slot, func(g *group) {
		if g.runs != nil {
			a.stats.Mismatches++
			return
		}
		a.discardLocked(g, n, rereserve)
	})
}

func (a *Allocator) discardLocked(g *group, n int64, rereserve bool) {
	n = a.takeLocked(n, g.pending-g.inflight)
	g.pending -= n
	g.failed += n
	if rereserve {
		a.reserved += n
	}
}

// DiscardRun is Discard for any block group: off is where the bytes are, from the zone's start. In a
// conventional block group they are free at once.
func (a *Allocator) DiscardRun(slot uint32, off, n int64, rereserve bool) {
	a.account(slot, func(g *group) {
		a.discardLocked(g, n, rereserve)
		if g.runs != nil {
			a.vacateLocked(g, off, n) // no read can know of them
		}
	})
}

// Free says that n live bytes are dead: the transaction that dropped the last reference to
// them is durable. They are unusable until the block group is reset; in a conventional one they are
// free, and can be granted again after Vacate.
func (a *Allocator) Free(slot uint32, n int64) {
	a.account(slot, func(g *group) { g.live -= a.takeLocked(n, g.live) })
}

// Usage is the account of space at one moment, in bytes. Always
//
//	Total = Used + Free + Unusable + Reserved + Quarantined
//
// and none is negative.
type Usage struct {
	// Total is the usable bytes of all block groups (capacity less header), less the reserve.
	Total int64
	// Used is what durable metadata refers to.
	Used int64
	// Free is what Reserve would still promise.
	Free int64
	// Unusable is dead bytes and lost tails, which resets bring back.
	Unusable int64
	// Reserved is promised and pending bytes.
	Reserved int64
	// Quarantined is what failed zones have taken away for good.
	Quarantined int64
	// Reclaimable is the part of the unusable bytes that resets alone bring back: in block
	// groups with nothing live, pending or in flight.
	Reclaimable int64
	// Tails and Failed are the parts of Unusable that were never written, because their zone was
	// finished early, and that were granted and never published, because an append or a flush
	// failed or a copy was not wanted any more. The rest was live once. What a recovered block
	// group had of either counts as the rest. Both are at most Unusable.
	Tails, Failed int64
	// Pending is the part of Reserved that is granted: placed, and not durable yet.
	Pending int64
	// Active is how many zones are held active, MaxActive the budget: Options.MaxActive, or 8
	// on a device without a limit.
	Active, MaxActive int
	// Deficit is how many bytes of promises and reserve are not backed by free space, because
	// zones failed, tails were given up or a relocation is under way. It has been taken off
	// Reserved, and what was more than that off Unusable, Quarantined and Used in this order:
	// those bytes stand where the reserve should be.
	Deficit int64
}

// Available returns how many bytes Reserve would still promise; below 0 by the deficit.
func (a *Allocator) Available() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.availableLocked()
}

// KeptBack returns the reserve, in bytes.
func (a *Allocator) KeptBack() int64 { return a.reserve }

// Usage returns the account of space.
func (a *Allocator) Usage() Usage {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.usageLocked()
}

func (a *Allocator) usageLocked() Usage {
	available := a.availableLocked()
	u := Usage{
		Total: a.usable - a.reserve, Used: a.sum.live, Free: max(0, available),
		Unusable: a.sum.unusable, Reserved: a.reserved + a.sum.pending, Quarantined: a.sum.quarantined,
		Reclaimable: a.sum.reclaimable, Active: a.active, MaxActive: a.budget, Deficit: max(0, -available),
	}
	missing := u.Deficit
	for _, account := range []*int64{&u.Reserved, &u.Unusable, &u.Quarantined, &u.Used} {
		take := min(missing, *account)
		*account -= take
		missing -= take
	}
	u.Tails = min(a.sum.tails, u.Unusable)
	u.Failed = min(a.sum.failed, u.Unusable-u.Tails)
	u.Pending = min(a.sum.pending, u.Reserved)
	return u
}

// Stats are exact counts since New.
type Stats struct {
	Allocations uint64 // grants
	Examined    uint64 // block groups looked at by all Allocate calls
	MaxExamined uint64 // by the call that looked at most
	HintHits    uint64 // grants whose hint had room for all that was wanted
	Opened      uint64 // block groups opened
	Retired     uint64 // zones finished before they were full
	Reset       uint64
	PeakActive  int
	// Mismatches counts calls whose figures contradicted the books; not 0 means damaged
	// metadata or a bug.
	Mismatches uint64
}

// Stats returns the counters.
func (a *Allocator) Stats() Stats {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.stats
}

// Snapshot returns up to n block groups from slot first on; n < 0: all of them. The slice is
// the caller's. The mutex is held for the copy: page through large stores.
func (a *Allocator) Snapshot(first, n int) []BlockGroup {
	a.mu.Lock()
	defer a.mu.Unlock()
	if first < 0 || first >= len(a.groups) {
		return nil
	}
	end := len(a.groups)
	if n >= 0 {
		end = min(end, first+min(n, end))
	}
	out := make([]BlockGroup, 0, end-first)
	for i := first; i < end; i++ {
		out = append(out, a.groups[i].describe(uint32(i)))
	}
	return out
}
