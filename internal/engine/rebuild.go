package engine

import (
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
			if !empty && e.halved() {
				return left, worked, stuck
			}
			done, err := e.cure(slot)
			worked = worked || done
			if err != nil && stuck == nil {
				stuck = err
			}
		}
		if empty && e.lacking() {
			return 0, worked, stuck // see halved
		}
	}
	if err := e.dismiss(); err != nil && stuck == nil {
		stuck = err
	}
	return left, worked, stuck
}

// halved lets the resets that are due end, and reports whether there is an empty block group with fewer places
// in use than there are to be copies. What lives has a copy at least; moved to where there is one only, it
// would lose those on devices that may come back.
func (e *Engine) halved() bool {
	e.awaitResets()
	e.mergeHalves()
	return e.lacking()
}

// lacking reports whether an empty block group has fewer places in use than there are to be copies.
func (e *Engine) lacking() bool {
	for slot := range uint32(e.slots()) {
		if bg, _ := e.al.BlockGroup(slot); bg.State == alloc.Empty && !bg.Conventional && e.incomplete(slot) {
			return true
		}
	}
	return false
}

// mergeHalves makes one whole block group of two empty ones that have one place in use each, on different
// devices: when one of three devices is missing, what is left is as much as can be placed twice. It returns
// how many.
func (e *Engine) mergeHalves() (n int) {
	if e.copies < 2 {
		return 0
	}
	half := map[int]uint32{} // device -> a slot with its place in use there, held
	defer func() {
		for _, slot := range half {
			e.al.ReleaseEmpty(slot)
		}
	}()
	for slot := range uint32(e.slots()) {
		bg, _ := e.al.BlockGroup(slot)
		if bg.State != alloc.Empty || bg.Conventional || !e.incomplete(slot) || e.renewable(slot) {
			continue
		}
		own, ok := e.onlyPlace(slot)
		if !ok || !e.al.HoldEmpty(bg) {
			continue
		}
		other, found := uint32(0), false
		for device, s := range half {
			if device != own.Device {
				other, found = s, true
				delete(half, device)
				break
			}
		}
		if !found {
			if was, twice := half[own.Device]; twice {
				e.al.ReleaseEmpty(was)
			}
			half[own.Device] = slot
			continue
		}
		if e.merge(other, slot, own) {
			n++
		}
		e.al.ReleaseEmpty(slot)
		e.al.ReleaseEmpty(other)
	}
	return n
}

// onlyPlace returns the one place of a slot that is in use.
func (e *Engine) onlyPlace(slot uint32) (place array.Place, ok bool) {
	e.members.Lock()
	defer e.members.Unlock()
	for _, p := range e.dev.Places(int(slot)) {
		if e.members.takesPlacesLocked(uint32(p.Device)) && !p.Stale {
			place, ok = p, !ok
		}
	}
	return place, ok
}

// merge gives the first slot the place that the second has, which then has none. Both are empty and held.
func (e *Engine) merge(slot, from uint32, place array.Place) bool {
	own, ok := e.onlyPlace(slot)
	if !ok || !e.al.Resize(from, 0) {
		return false // what was promised needs the room of both
	}
	e.dev.SetPlaces(int(from), nil)
	e.note(from, bgRecord{places: e.placesOf(from), capacity: recordedCapacity(0)})
	set := []array.Place{own, place}
	e.al.Resize(slot, e.capacityOf(set))
	e.dev.SetPlaces(int(slot), set)
	e.note(slot, bgRecord{places: e.placesOf(slot), capacity: e.capacityOf(set)})
	if err := e.dev.Reset(int(slot)); err != nil {
		e.o.Logger.Warn("two block groups that were made one cannot be reset", "place", e.placeName(slot), "error", err)
	}
	return true
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
	case alloc.Quarantined:
		if bg.Capacity == 0 {
			return e.renewAbsent(slot)
		}
		return false, nil
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
	if out.skipped { // something in it is not published yet
		return false, errdefs.New(errdefs.Unavailable, "", "engine.Rebuild", e.placeName(slot), "a block group is still being written to")
	}
	e.rebuild.Lock()
	defer e.rebuild.Unlock()
	if !out.emptied {
		if e.rebuild.failed == nil {
			e.rebuild.failed = map[uint32]uint64{}
		}
		e.rebuild.failed[slot] = bg.Generation
		return false, nil
	}
	e.rebuild.groups++
	e.rebuild.bytes += out.moved
	e.rebuild.stuck = ""
	return true, nil
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
	return true, nil
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
	return e.al.Resize(slot, capacity), nil
}

// dismiss lets go of devices that are leaving and that no block group has a place on.
func (e *Engine) dismiss() error {
	e.members.Lock()
	var leaving []*member
	for _, m := range e.members.byNumber {
		if m.rec.Leaving {
			leaving = append(leaving, m)
		}
	}
	e.members.Unlock()
	for _, m := range leaving {
		if e.onDevice(m.rec.Number) > 0 {
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

// useSpares makes block groups of spare zones while no device is missing or leaving, whose places they may be
// wanted for, and records them.
func (e *Engine) useSpares() {
	e.rebuild.turn <- struct{}{}
	defer func() { <-e.rebuild.turn }()
	e.members.Lock()
	for number := range e.members.byNumber {
		if !e.members.takesPlacesLocked(number) {
			e.members.Unlock()
			return
		}
	}
	e.members.Unlock()
	if e.growSpares()+e.splitPairs() > 0 {
		if err := e.group.Do(context.Background(), func(*store.Tx) error { return nil }); err != nil {
			e.o.Logger.Warn("new block groups are not on record yet", "error", err)
		}
	}
}

// growSpares makes block groups of spare zones, as many as can be, and returns how many.
func (e *Engine) growSpares() int {
	var sets [][]array.Place
	for {
		set, ok := e.takeSet()
		if !ok {
			break
		}
		if set != nil {
			sets = append(sets, set)
		}
	}
	if len(sets) == 0 {
		return 0
	}
	e.growBy(sets)
	return len(sets)
}

// growBy makes a block group of each set, of zones that are empty.
func (e *Engine) growBy(sets [][]array.Place) {
	if _, err := e.dev.Grow(sets); err != nil {
		e.o.Logger.Error("spare zones cannot be used", "error", err)
		return
	}
	for _, set := range sets {
		capacity := e.capacityOf(set)
		slot := e.al.Grow(set[0].Zone, capacity)
		e.note(slot, bgRecord{places: e.placesOf(slot), capacity: capacity})
		e.al.ReleaseEmpty(slot)
	}
}

// splitPairs makes two block groups of an empty one and of two spare zones on a device that it has no place
// on, as often as that can be: so with two copies one device more is of use. It returns how many came of it.
func (e *Engine) splitPairs() (n int) {
	for slot := uint32(0); e.copies == 2 && int(slot) < e.slots(); slot++ {
		bg, _ := e.al.BlockGroup(slot)
		old := e.dev.Places(int(slot))
		if bg.State != alloc.Empty || bg.Conventional || len(old) != 2 || old[0].Device == old[1].Device || !e.al.HoldEmpty(bg) {
			continue
		}
		s := &e.members
		s.Lock()
		x, ok := s.takeSpareLocked(old, false)
		var y array.Place
		if ok {
			// The other one of the same device: the two old places are on different ones.
			if left := s.spare[uint32(x.Device)]; len(left) > 0 {
				y = array.Place{Device: x.Device, Zone: left[0]}
				s.spare[uint32(x.Device)] = left[1:]
			} else {
				s.giveBackLocked([]array.Place{x}, nil)
				ok = false
			}
		}
		s.Unlock()
		if !ok {
			e.al.ReleaseEmpty(slot)
			return n
		}
		if bad, err := e.emptySpares([]array.Place{x, y}, nil); err != nil {
			e.o.Logger.Warn("a spare zone cannot be reset and is not used", "device", bad.Device, "zone", bad.Zone, "error", err)
			s.Lock()
			s.giveBackLocked([]array.Place{x, y}, []array.Place{bad})
			s.Unlock()
			e.al.ReleaseEmpty(slot)
			continue
		}
		first, second := []array.Place{old[0], x}, []array.Place{old[1], y}
		if size := e.capacityOf(first); size != bg.Capacity {
			e.al.Resize(slot, size)
		}
		e.dev.SetPlaces(int(slot), first)
		e.note(slot, bgRecord{places: e.placesOf(slot), capacity: e.capacityOf(first)})
		e.growBy([][]array.Place{second})
		e.al.ReleaseEmpty(slot)
		n++
	}
	return n
}

// takeSet takes empty spare zones for one block group. ok is false if there are not enough any more; a
// set that has a zone which cannot be reset is nil.
func (e *Engine) takeSet() (set []array.Place, ok bool) {
	s := &e.members
	s.Lock()
	for len(set) < e.copies {
		p, ok := s.takeSpareLocked(set, len(s.byNumber) == 1)
		if !ok {
			s.giveBackLocked(set, nil)
			s.Unlock()
			return nil, false
		}
		set = append(set, p)
	}
	s.Unlock()
	bad, err := e.emptySpares(set, nil)
	if err == nil {
		return set, true
	}
	e.o.Logger.Warn("a spare zone cannot be reset and is not used", "device", bad.Device, "zone", bad.Zone, "error", err)
	s.Lock()
	s.giveBackLocked(set, []array.Place{bad})
	s.Unlock()
	return nil, true
}
