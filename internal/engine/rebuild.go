package engine

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/shingle-store/shingle/internal/alloc"
	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/store"
	"github.com/shingle-store/shingle/internal/zone/array"
	"github.com/shingle-store/shingle/internal/zone/label"
)

// Rebuild is how far the work is that gives every block group its copies back, or empties a device
// that is leaving. It runs by itself and goes on after a restart.
type Rebuild struct {
	Running bool
	// BlockGroups and Bytes are what has to be moved, what was moved since the work began included.
	BlockGroups, BlockGroupsDone int
	Bytes, BytesDone             int64
	// Stuck says why it does not get on: "" while it does, or when nothing is to be done.
	Stuck string
}

// rebuilder is what the engine keeps of it.
type rebuilder struct {
	kick kick
	// turn is held by who changes which devices there are: a token, for it is held over device I/O.
	turn chan struct{}

	sync.Mutex
	groups int // done since there was nothing to do
	bytes  int64
	stuck  string
	failed map[uint32]uint64 // slots that could not be emptied whole, at this generation
}

const (
	// rebuildRetry is how long a rebuild that did not get on waits for what it lacks.
	rebuildRetry = 2 * time.Second
	// rebuildSoon is how long it waits for resets that are under way.
	rebuildSoon = 50 * time.Millisecond
)

// rebuildRun is the background: it empties block groups that lack a copy, or lie on a device that is
// leaving, into ones that have all; a reset then gives them better places.
func (e *Engine) rebuildRun() {
	for {
		select {
		case <-e.rebuild.kick:
		case <-e.stop:
			return
		}
		e.markHalves()
		for e.several() && e.writable("engine.Rebuild") == nil {
			left, worked, err := e.rebuildPass()
			e.noteDegraded()
			if left == 0 && err == nil {
				e.useSpares()
				break
			}
			if worked {
				continue
			}
			again := rebuildSoon
			if err != nil {
				again = rebuildRetry
				e.rebuild.Lock()
				e.rebuild.stuck = errdefs.Sentence(err)
				e.rebuild.Unlock()
			}
			select {
			case <-time.After(e.apart(again)):
			case <-e.rebuild.kick:
			case <-e.stop:
				return
			}
		}
	}
}

// rebuildPass goes over all block groups, first over those in which nothing lives: what is moved goes there.
// left are those that were not as they should be and can be; worked: something got better.
func (e *Engine) rebuildPass() (left int, worked bool, stuck error) {
	worked = e.mergeHalves() > 0
	for _, empty := range []bool{true, false} {
		for slot := uint32(0); int(slot) < e.slots(); slot++ {
			if e.stopped() {
				return left, false, nil
			}
			bg, _ := e.al.BlockGroup(slot)
			if (bg.State == alloc.Empty || bg.Capacity == 0) != empty || !e.curable(slot) {
				continue
			}
			left++
			if !empty {
				if err := e.roomForCopies(); err != nil {
					return left, worked, cmp.Or(stuck, e.dismiss(false), err)
				}
			}
			done, err := e.cure(slot)
			worked = worked || done
			if err != nil && stuck == nil {
				stuck = err
			}
		}
	}
	if err := e.dismiss(left == 0); err != nil && stuck == nil {
		stuck = err
	}
	return left, worked, stuck
}

// roomForCopies answers an error if what lives might be moved to where it has fewer copies: those that it has on
// devices which may come back would be lost. It lets the resets that are due end first.
func (e *Engine) roomForCopies() error {
	e.awaitResets()
	e.mergeHalves()
	if n, halves := e.al.Empties(); halves == 0 || n-halves >= roomToMove {
		return nil
	}
	return errdefs.New(errdefs.NoSpace, errdefs.ReasonNoSpace, "engine.Rebuild", "store", fmt.Sprintf("no room is left for %d copies on the devices that are there: give the missing one again, put another in its place, or delete files", e.copies))
}

// roomToMove is how many empty block groups with all their copies there must be for live data to be moved: one for
// what is moved, and one for what is written meanwhile.
const roomToMove = 2

// markHalf tells the allocator whether what is stored in a slot has fewer copies than it should.
func (e *Engine) markHalf(slot uint32) {
	if e.copies > 1 {
		e.al.SetHalf(slot, e.incomplete(slot))
	}
}

// markHalves is markHalf for all slots: when a device comes to be away.
func (e *Engine) markHalves() {
	for slot := range uint32(e.slots()) {
		e.markHalf(slot)
	}
}

// curable reports whether emptying and resetting the slot would give it better places.
func (e *Engine) curable(slot uint32) bool {
	if !e.renewable(slot) {
		return false
	}
	bg, ok := e.al.BlockGroup(slot)
	if !ok || bg.Conventional {
		return false
	}
	e.rebuild.Lock()
	defer e.rebuild.Unlock()
	generation, failed := e.rebuild.failed[slot]
	return !failed || generation != bg.Generation
}

// cure empties a block group, if something lives in it, and sees to it that it is reset.
func (e *Engine) cure(slot uint32) (done bool, err error) {
	bg, _ := e.al.BlockGroup(slot)
	switch bg.State {
	case alloc.Empty:
		return e.renewEmpty(bg)
	case alloc.Quarantined, alloc.ReadOnly:
		if bg.Capacity == 0 {
			return e.renewAbsent(slot)
		}
		if bg.Live == 0 {
			e.giveUpCure(bg) // it is never reset; dismiss sees to it
			return false, nil
		}
	case alloc.Active:
		e.al.Suspect(slot)
		e.retireClosing()
	}
	if bg.Live == 0 {
		e.resetKick.set()
		return false, nil
	}
	m := mover{e: e, rest: e.restUnless}
	out, err := m.empty(context.Background(), slot)
	if err != nil {
		return false, err
	}
	if now, _ := e.al.BlockGroup(slot); out.skipped && now.State == alloc.ReadOnly || now.State == alloc.Quarantined {
		e.giveUpCure(bg) // its zone has failed: scrub moves what one copy of it does not hold any more
		return false, nil
	}
	if out.skipped { // something in it is not published yet
		return false, errdefs.New(errdefs.Unavailable, "", "engine.Rebuild", e.placeName(slot), "a block group is still being written to")
	}
	if !out.emptied {
		e.giveUpCure(bg)
		return false, nil
	}
	e.rebuild.Lock()
	defer e.rebuild.Unlock()
	e.rebuild.groups++
	e.rebuild.bytes += out.moved
	e.rebuild.stuck = ""
	return true, nil
}

// giveUpCure leaves a block group as it is until it has been reset.
func (e *Engine) giveUpCure(bg alloc.BlockGroup) {
	e.rebuild.Lock()
	defer e.rebuild.Unlock()
	if e.rebuild.failed == nil {
		e.rebuild.failed = map[uint32]uint64{}
	}
	e.rebuild.failed[bg.Slot] = bg.Generation
}

// restUnless rests for as long as the last step took, unless no client uses the store.
func (e *Engine) restUnless(worked time.Duration, others bool) bool {
	if others {
		return e.rest(worked)
	}
	return !e.stopped()
}

// renewEmpty gives an empty block group better places.
func (e *Engine) renewEmpty(bg alloc.BlockGroup) (bool, error) {
	if !e.al.HoldEmpty(bg) {
		return false, nil
	}
	defer e.al.ReleaseEmpty(bg.Slot)
	capacity, err := e.renewPlaces(bg.Slot, bg.Capacity, func(n int64) bool { return e.al.Resize(bg.Slot, n) })
	if err != nil {
		return false, err
	}
	if capacity > 0 {
		if err := e.dev.Reset(int(bg.Slot)); err != nil {
			return false, err
		}
	}
	e.note(bg.Slot, bgRecord{places: e.recordedPlaces(bg.Slot), capacity: recordedCapacity(capacity)})
	e.markHalf(bg.Slot)
	return true, nil
}

// forsake lets go of the places on a device of block groups whose zone has failed, and in which nothing lives:
// they are never reset again.
func (e *Engine) forsake(number uint32) {
	on := func(p array.Place) bool { return uint32(p.Device) == number }
	for slot := range e.slots() {
		bg, _ := e.al.BlockGroup(uint32(slot))
		failed := bg.State == alloc.ReadOnly || bg.State == alloc.Quarantined
		places := e.dev.Places(slot)
		if !failed || bg.Live > 0 || bg.Pending > 0 || !slices.ContainsFunc(places, on) {
			continue
		}
		e.dev.SetPlaces(slot, slices.DeleteFunc(places, on))
		r := bgRecord{places: e.placesOf(uint32(slot))}
		if len(r.places) == 0 {
			r.capacity = recordedCapacity(0)
		}
		e.note(uint32(slot), r)
	}
}

// renewAbsent gives a slot without a place one again.
func (e *Engine) renewAbsent(slot uint32) (bool, error) {
	capacity, err := e.renewPlaces(slot, 0, nil)
	if err != nil || capacity == 0 {
		return false, err
	}
	if err := e.dev.Reset(int(slot)); err != nil {
		return false, err
	}
	e.note(slot, bgRecord{places: e.recordedPlaces(slot), capacity: recordedCapacity(capacity)})
	e.markHalf(slot)
	return e.al.Resize(slot, capacity), nil
}

// dismiss lets go of devices that are leaving and that no block group has a place on. last: nothing more can be
// moved off them.
func (e *Engine) dismiss(last bool) error {
	e.members.Lock()
	var leaving []*member
	for _, m := range e.members.byNumber {
		if m.rec.Leaving {
			leaving = append(leaving, m)
		}
	}
	e.members.Unlock()
	for _, m := range leaving {
		e.forsake(m.rec.Number)
		if n := e.onDevice(m.rec.Number); n > 0 {
			if last {
				return errdefs.New(errdefs.Precondition, "", "engine.dismiss", deviceName(m.rec.Number), fmt.Sprintf("%d block groups on it cannot be moved: they hold blocks that are good in no copy; rewrite or delete the files that `client status` names", n))
			}
			continue
		}
		if err := e.letGo(m); err != nil {
			return err
		}
	}
	return nil
}

// onDevice returns how many block groups have a place on the device.
func (e *Engine) onDevice(number uint32) (n int) {
	for slot := range e.slots() {
		for _, p := range e.dev.Places(slot) {
			if uint32(p.Device) == number {
				n++
				break
			}
		}
	}
	return n
}

// letGo deletes a device from the store, durably, and then its label.
func (e *Engine) letGo(m *member) error {
	e.rebuild.turn <- struct{}{}
	defer func() { <-e.rebuild.turn }()
	number := m.rec.Number
	ctx := context.Background()
	// Its places must be gone from the records first: each commit takes along what was noted before.
	if err := e.group.DoFreeing(ctx, func(*store.Tx) error { return nil }); err != nil {
		return err
	}
	err := e.group.DoFreeing(ctx, func(tx *store.Tx) error {
		err := tx.BlockGroups(func(g store.BlockGroup) error {
			if slices.ContainsFunc(g.Places, func(p store.Place) bool { return p.Device == number }) {
				return errdefs.New(errdefs.Unavailable, "", "engine.letGo", deviceName(number), "a block group that lay on it has no record of where it lies now yet")
			}
			return nil
		})
		if err != nil {
			return err
		}
		return tx.DeleteDevice(number)
	})
	if err != nil {
		return err
	}
	e.members.Lock()
	delete(e.members.byNumber, number)
	delete(e.members.spare, number)
	e.members.Unlock()
	dev, err := e.dev.RemoveMember(int(number))
	if err != nil {
		return err
	}
	for _, reason := range []string{"DEVICE_MISSING", "DEVICE_FAILED"} {
		e.cond.clear(reason, deviceName(number))
	}
	e.o.Logger.Info("a device is no part of the store any more", "device", number)
	if dev == nil {
		return nil
	}
	if err := label.Erase(dev); err != nil {
		e.o.Logger.Warn("the label of a device that was removed could not be erased", "device", number, "error", err)
	}
	return dev.Close()
}

// noteDegraded keeps the condition that says how many block groups lack a copy.
func (e *Engine) noteDegraded() {
	groups, bytes := e.degraded()
	if groups == 0 {
		e.cond.clear("DEGRADED", "store")
		e.rebuild.Lock()
		e.rebuild.groups, e.rebuild.bytes, e.rebuild.stuck = 0, 0, ""
		e.rebuild.Unlock()
		return
	}
	e.cond.set(Condition{
		Reason: "DEGRADED", Severity: Warning, Object: "store", Since: e.o.Now(),
		Message: fmt.Sprintf("%d block groups with %d bytes have fewer than %d copies in use, or lie on a device that is leaving", groups, bytes, e.copies),
		Advice:  "`client device ls` shows how far the rebuild is, and what it lacks",
	})
}

// degraded counts the block groups with something live that are not as they should be.
func (e *Engine) degraded() (groups int, bytes int64) {
	for slot := range e.slots() {
		if e.incomplete(uint32(slot)) {
			if bg, _ := e.al.BlockGroup(uint32(slot)); bg.Live > 0 {
				groups++
				bytes += bg.Live
			}
		}
	}
	return groups, bytes
}
