package engine

import (
	"context"

	"github.com/shingle-store/shingle/internal/alloc"
	"github.com/shingle-store/shingle/internal/store"
	"github.com/shingle-store/shingle/internal/zone/array"
)

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
			e.withdraw(slot)
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
				e.withdraw(was)
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

// withdraw gives up an empty slot, held, that no device which may come back makes whole, and which finds no partner:
// its zone is spare. What was promised may need the room; then it stays.
func (e *Engine) withdraw(slot uint32) {
	own, ok := e.onlyPlace(slot)
	if !ok || len(e.dev.Places(int(slot))) > 1 || !e.al.Resize(slot, 0) {
		return
	}
	e.dev.SetPlaces(int(slot), nil)
	e.note(slot, bgRecord{places: e.placesOf(slot), capacity: recordedCapacity(0)})
	e.members.Lock()
	e.members.giveBackLocked([]array.Place{own}, nil)
	e.members.Unlock()
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
	e.markHalf(slot)
	if err := e.dev.Reset(int(slot)); err != nil {
		e.o.Logger.Warn("two block groups that were made one cannot be reset", "place", e.placeName(slot), "error", err)
	}
	return true
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
