package engine

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/shingle-store/shingle/internal/alloc"
	"github.com/shingle-store/shingle/internal/reclaim"
)

// reclaimer is what the engine keeps to get space back.
type reclaimer struct {
	o     reclaim.Options // with their defaults
	index *reclaim.Index
	kick  kick // there may be something to decide
	urged kick // somebody began to wait for space: no more rest
	// turn is held by who empties a block group, call by who answers a call by hand: tokens, for they
	// are held over device I/O and waits.
	turn, call chan struct{}
	buf        []byte // of who holds turn: what is being moved

	copies   atomic.Int64  // bytes appended, or being appended, that are not published yet
	waiting  atomic.Int64  // who waits for space now
	working  atomic.Int64  // block groups being emptied
	appended atomic.Uint64 // steps whose copies have been appended
	flushed  uint64        // of them, those that a flush has covered; of the group commit's goroutine
	// barren: emptying the best candidates gave back nothing, and nothing has died since. recent is
	// how it is going, of the background.
	barren atomic.Bool
	recent struct {
		victims int
		gained  int64 // bytes
	}

	victims, emptied, failed  atomic.Uint64 // block groups
	moved, dropped, discarded atomic.Uint64 // bytes
	badBlocks                 atomic.Uint64
	spaceWaits                atomic.Uint64
}

func (e *Engine) newReclaimer() {
	r := &e.rc
	r.index = reclaim.NewIndex()
	r.kick, r.urged = newKick(), newKick()
	r.turn, r.call = make(chan struct{}, 1), make(chan struct{}, 1)
}

// watchGroup keeps the index up to date. It is called with the allocator's mutex held.
func (e *Engine) watchGroup(slot uint32, live, dead int64, movable bool) {
	e.rc.index.Set(slot, live, dead, movable)
	e.rc.kick.set()
}

// free tells the allocator that live bytes have died, durably.
func (e *Engine) free(slot uint32, n int64) {
	e.al.Free(slot, n)
	e.rc.barren.Store(false)
}

// reclaimIfLow wakes the reclaimer when little can be promised any more.
func (e *Engine) reclaimIfLow() {
	if e.al.Available() < e.rc.o.Low {
		e.rc.kick.set()
	}
}

// reclaimHelps reports whether moving live data may give space back.
func (e *Engine) reclaimHelps() bool {
	if e.rc.barren.Load() || e.failed() != nil || e.stopped() {
		return false
	}
	movable, _ := e.rc.index.Dead()
	return movable > 0 || e.rc.working.Load() > 0 || e.al.ActiveDead() > 0
}

// reclaimRun is the background: it empties one block group after the other, as the policy says.
func (e *Engine) reclaimRun() {
	policy := reclaim.NewPolicy(e.rc.o)
	for {
		select {
		case <-e.rc.kick:
		case <-e.stop:
			return
		}
		for e.reclaimStep(policy) {
		}
	}
}

// reclaimStep empties the best block group if that is worth it now, and reports whether to look again
// at once.
func (e *Engine) reclaimStep(policy *reclaim.Policy) bool {
	if e.failed() != nil || e.stopped() || e.rc.barren.Load() {
		return false
	}
	e.awaitResets()
	state := e.reclaimState()
	best, any := e.rc.index.Best()
	need := policy.Decide(state, best, any)
	if need == reclaim.None {
		return state.Waiting && !any && e.closeForReclaim()
	}
	r := mover{e: e, rest: func(worked time.Duration, others bool) bool {
		return e.rest(policy.Pause(need, e.reclaimState(), worked, others))
	}}
	before := e.rc.discarded.Load()
	out, err := r.empty(context.Background(), best.Slot)
	switch {
	case err != nil:
		// Not this block group's fault (those are held): the store is closing, full, or failing.
		e.rc.barren.Store(true)
		e.o.Logger.Debug("emptying a block group ended early", "block_group", best.Slot, "error", err)
		return false
	case out.emptied:
		e.rc.recent.victims++
		e.rc.recent.gained += best.Live + best.Dead - out.moved - int64(e.rc.discarded.Load()-before)
	}
	// Frames do not fill zones to the last block, so one block group may give back less than nothing.
	if e.rc.recent.victims == barrenAfter {
		e.rc.barren.Store(e.rc.recent.gained <= 0)
		e.rc.recent.victims, e.rc.recent.gained = 0, 0
	}
	return true
}

// barrenAfter is how many block groups in a row have to give back nothing together for reclaim to be
// given up until more has died.
const barrenAfter = 8

// reclaimState is what the policy goes by. What resets under way will bring counts as there already.
func (e *Engine) reclaimState() reclaim.State {
	u := e.al.Usage()
	return reclaim.State{Available: u.Free - u.Deficit + u.Reclaimable, Waiting: e.rc.waiting.Load() > 0}
}

// awaitResets lets the resets that are due end first: with them there may be enough.
func (e *Engine) awaitResets() {
	for {
		changed := e.al.Changed()
		if e.al.Usage().Reclaimable == 0 && e.resetting.Load() == 0 {
			return
		}
		e.resetKick.set()
		select {
		case <-changed:
		case <-time.After(e.apart(5 * time.Millisecond)):
			return
		case <-e.stop:
			return
		}
	}
}

// closeForReclaim finishes the zone of an active block group with dead bytes, so that it can be
// emptied. It reports whether there was one.
func (e *Engine) closeForReclaim() bool {
	slot, ok := e.al.CloseDead()
	if !ok {
		e.rc.barren.Store(e.al.ActiveDead() == 0 || e.al.Available() < 0)
		return false
	}
	e.o.Logger.Debug("an active block group is closed to get its dead bytes back", "block_group", slot)
	e.retireClosing()
	return true
}

// rest waits for so long, less if somebody begins to wait for space, and reports whether to go on.
func (e *Engine) rest(d time.Duration) bool {
	if d <= 0 {
		return !e.stopped()
	}
	if e.rc.waiting.Load() > 0 {
		return true
	}
	t := time.NewTimer(e.apart(min(d, time.Second)))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-e.rc.urged:
		return true
	case <-e.stop:
		return false
	}
}

func (e *Engine) stopped() bool {
	select {
	case <-e.stop:
		return true
	default:
		return false
	}
}

// foreground is a figure that grows whenever a client's bytes are received or read.
func (e *Engine) foreground() uint64 {
	return e.count.clientBytes.Load() + e.count.readBytes.Load() + e.count.syncs.Load()
}

// reclaimDefaults fills in the options that depend on the store's size.
func (e *Engine) reclaimDefaults(groups []alloc.BlockGroup) {
	largest := int64(0)
	for i := range groups {
		largest = max(largest, groups[i].Capacity-alloc.HeaderSize)
	}
	e.rc.o = e.o.Reclaim
	e.rc.o.SetDefaults(e.al.Usage().Total, largest)
}
