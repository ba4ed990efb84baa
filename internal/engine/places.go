package engine

import (
	"fmt"
	"slices"
	"sync"

	"github.com/shingle-store/shingle/internal/alloc"
	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/store"
	"github.com/shingle-store/shingle/internal/zone"
	"github.com/shingle-store/shingle/internal/zone/array"
	"github.com/shingle-store/shingle/internal/zone/label"
)

// members are the devices of the store, and their zones that no block group has.
type members struct {
	sync.Mutex
	byNumber map[uint32]*member
	spare    map[uint32][]int // device -> its spare zones, in ascending order
}

// several reports whether places can change at all: with one device and one copy there is no choice.
func (e *Engine) several() bool {
	e.members.Lock()
	defer e.members.Unlock()
	return e.copies > 1 || len(e.members.byNumber) > 1
}

// sizeUp settles what follows from the geometry.
func (e *Engine) sizeUp() {
	e.maxExtent = extent.MaxExtentSize(e.geo.AppendLimit, e.geo.ZoneCapacity-alloc.HeaderSize)
	e.frameSize = extent.FrameSize(e.maxExtent)
}

// findSpares looks for zones that no block group has. Conventional zones are used only as the store was
// formatted.
func (e *Engine) findSpares(groups []store.BlockGroup) error {
	taken := map[store.Place]bool{}
	for _, g := range groups {
		for _, p := range g.Places {
			p.Stale = false
			taken[p] = true
		}
	}
	e.members.spare = map[uint32][]int{}
	if !e.several() {
		return nil
	}
	for number, m := range e.members.byNumber {
		if m.dev == nil {
			continue
		}
		zones, err := sparesOf(m.dev)
		if err != nil {
			return err
		}
		for _, z := range zones {
			if !taken[store.Place{Device: number, Zone: uint32(z)}] {
				e.members.spare[number] = append(e.members.spare[number], z)
			}
		}
	}
	return nil
}

// haveSpares reports whether a device has two zones or more that no block group has.
func (e *Engine) haveSpares() bool {
	e.members.Lock()
	defer e.members.Unlock()
	for _, zones := range e.members.spare {
		if len(zones) > 1 {
			return true
		}
	}
	return false
}

// sparesOf returns the sequential zones of a device that a block group could lie on.
func sparesOf(dev zone.Device) (out []int, err error) {
	a, b, err := label.Zones(dev.Geometry())
	if err != nil {
		return nil, err
	}
	zones, err := dev.Report(0, -1)
	if err != nil {
		return nil, errdefs.Wrap(errdefs.Device, errdefs.ReasonDeviceIO, "engine.spares", "zone report", err)
	}
	for _, z := range zones {
		if z.Index == a || z.Index == b || z.Condition == zone.NotWP || z.Condition == zone.ReadOnly || z.Condition == zone.Offline || z.Capacity < MinZoneCapacity {
			continue
		}
		out = append(out, z.Index)
	}
	return out, nil
}

// takesPlacesLocked reports whether new data may be put on a device.
func (s *members) takesPlacesLocked(number uint32) bool {
	m := s.byNumber[number]
	return m != nil && m.dev != nil && !m.failed && !m.rec.Leaving
}

// betterLocked works out the places of a slot in which nothing lives: those that can be used, spare
// zones in place of those that cannot, and where there are none, the old ones that may be back one
// day. better: they are not what the slot has, or a reset would make a stale one good. Without any
// the slot is given up. Spare zones are taken, or, with look, only counted: then they are zone -1.
func (e *Engine) betterLocked(slot uint32, look bool) (next []array.Place, better bool) {
	s := &e.members
	var away []array.Place
	for _, p := range e.dev.Places(int(slot)) {
		switch {
		case s.takesPlacesLocked(uint32(p.Device)):
			better = better || p.Stale
			p.Stale = false
			next = append(next, p)
		case s.byNumber[uint32(p.Device)] != nil && s.byNumber[uint32(p.Device)].rec.Leaving:
			better = true
		default:
			away = append(away, p)
		}
	}
	for same := len(s.byNumber) == 1; len(next) < e.copies; {
		device, ok := s.spareOnLocked(next, same)
		if !ok {
			break
		}
		p := array.Place{Device: int(device), Zone: -1}
		if !look {
			p.Zone = s.popSpareLocked(device)
		}
		next, better = append(next, p), true
	}
	for len(next) < e.copies && len(away) > 0 {
		next, away = append(next, away[0]), away[1:]
	}
	return next, better
}

// takeSpareLocked takes a zone from the device with the most, of those that have none of the places;
// same: also of one that has.
func (s *members) takeSpareLocked(with []array.Place, same bool) (array.Place, bool) {
	device, ok := s.spareOnLocked(with, same)
	if !ok {
		return array.Place{}, false
	}
	return array.Place{Device: int(device), Zone: s.popSpareLocked(device)}, true
}

// spareOnLocked returns the device that takeSpareLocked takes from. Zones that with only counts (-1) are not
// there any more.
func (s *members) spareOnLocked(with []array.Place, same bool) (device uint32, ok bool) {
	most := 0
	for number, zones := range s.spare {
		left, on := len(zones), false
		for _, p := range with {
			if uint32(p.Device) == number {
				on = true
				if p.Zone < 0 {
					left--
				}
			}
		}
		if left <= 0 || on && !same || !s.takesPlacesLocked(number) {
			continue
		}
		if left > most || left == most && number < device {
			device, most, ok = number, left, true
		}
	}
	return device, ok
}

// popSpareLocked takes the first spare zone of a device that has one.
func (s *members) popSpareLocked(device uint32) int {
	zones := s.spare[device]
	s.spare[device] = zones[1:]
	return zones[0]
}

// giveBackLocked makes zones spare that the places were taken for.
func (s *members) giveBackLocked(places, but []array.Place) {
	for _, p := range places {
		if slices.ContainsFunc(but, func(o array.Place) bool { return o.Device == p.Device && o.Zone == p.Zone }) {
			continue
		}
		d := uint32(p.Device)
		if m := s.byNumber[d]; m == nil || m.dev == nil || m.failed {
			continue // a later start finds it
		}
		at, _ := slices.BinarySearch(s.spare[d], p.Zone)
		s.spare[d] = slices.Insert(s.spare[d], at, p.Zone)
	}
}

// renewable reports whether a reset of an empty slot would give it better places.
func (e *Engine) renewable(slot uint32) bool {
	if !e.several() {
		return false
	}
	e.members.Lock()
	defer e.members.Unlock()
	old := e.dev.Places(int(slot))
	next, better := e.betterLocked(slot, true)
	return better && (len(old) > 0 || len(next) == e.copies)
}

// renewPlaces gives a slot in which nothing lives, and which is about to be reset, better places if there
// are any, and returns the capacity that it has then. resize, unless nil, is asked whether the capacity
// may change to that; if not, all stays as it is.
func (e *Engine) renewPlaces(slot uint32, capacity int64, resize func(int64) bool) (int64, error) {
	if !e.several() {
		return capacity, nil
	}
	for {
		e.members.Lock()
		old := e.dev.Places(int(slot))
		next, better := e.betterLocked(slot, false)
		e.members.Unlock()
		if !better {
			return capacity, nil
		}
		bad, err := e.emptySpares(next, old)
		if err != nil {
			// That zone stays nobody's.
			e.o.Logger.Warn("a spare zone cannot be reset and is not used", "device", bad.Device, "zone", bad.Zone, "error", err)
			e.members.Lock()
			e.members.giveBackLocked(slices.DeleteFunc(next, func(p array.Place) bool { return p == bad }), old)
			e.members.Unlock()
			continue
		}
		size := e.capacityOf(next)
		if size != capacity && resize != nil && !resize(size) {
			e.members.Lock()
			e.members.giveBackLocked(next, old)
			e.members.Unlock()
			return capacity, errdefs.New(errdefs.NoSpace, errdefs.ReasonNoSpace, "engine.renewPlaces", e.placeName(slot), "what is left would not hold what was promised")
		}
		e.dev.SetPlaces(int(slot), next)
		e.members.Lock()
		e.members.giveBackLocked(old, next)
		e.members.Unlock()
		return size, nil
	}
}

// emptySpares resets the zones among next that are not in old and not empty.
func (e *Engine) emptySpares(next, old []array.Place) (bad array.Place, err error) {
	for _, p := range next {
		if slices.ContainsFunc(old, func(o array.Place) bool { return o.Device == p.Device && o.Zone == p.Zone }) {
			continue
		}
		dev := e.dev.Member(p.Device)
		if dev == nil {
			return p, zone.ErrZoneOffline
		}
		r, err := dev.Report(p.Zone, 1)
		if err == nil && r[0].Condition != zone.Empty {
			err = dev.Reset(p.Zone)
		}
		if err != nil {
			return p, err
		}
	}
	return array.Place{}, nil
}

// capacityOf is what a block group on these places can hold, in bytes.
func (e *Engine) capacityOf(places []array.Place) int64 {
	size := int64(0)
	for i, p := range places {
		c := e.geo.ZoneCapacity
		if dev := e.dev.Member(p.Device); dev != nil {
			c = min(c, extent.RoundDown(dev.Geometry().CapacityOf(p.Zone)))
		}
		if i == 0 || c < size {
			size = c
		}
	}
	return size
}

// recordedPlaces is placesOf where places can change, else nil: what is on record stays.
func (e *Engine) recordedPlaces(slot uint32) []store.Place {
	if !e.several() {
		return nil
	}
	return e.placesOf(slot)
}

// placesChanged notes what the array has found to be stale. It is called before the append, or the flush,
// that the place has missed is answered, so the record is in the transaction that stores what was
// appended, or in an earlier one.
func (e *Engine) placesChanged(slot int) {
	e.note(uint32(slot), bgRecord{places: e.placesOf(uint32(slot))})
	e.rebuild.kick.set()
}

// deviceFailed notes that the array has taken a device out of use.
func (e *Engine) deviceFailed(number int, cause error) {
	e.members.Lock()
	if m := e.members.byNumber[uint32(number)]; m != nil {
		m.failed, m.cause = true, cause
	}
	e.members.Unlock()
	e.o.Logger.Error("a device has failed and is not used any more: the store is degraded", "device", number, "error", cause)
	e.cond.set(Condition{
		Reason: "DEVICE_FAILED", Severity: Error, Object: deviceName(uint32(number)), Since: e.o.Now(),
		Message: fmt.Sprintf("device %d has failed and is not used any more; what it holds is read from the other copies: %v", number, cause),
		Advice:  "put another in its place: `client device replace`; if only a cable was loose, start the engine again",
	})
	e.rebuild.kick.set()
}

// finishUnused finishes the active zones that nothing uses as they are: stale places, and spare zones. They would keep a device's active zones from what is written.
func (e *Engine) finishUnused(members []*member, groups []store.BlockGroup) error {
	if !e.several() || e.st.ReadOnly() || e.geo.MaxActive == 0 && e.geo.MaxOpen == 0 {
		return nil
	}
	used := map[store.Place]bool{}
	for i := range groups {
		for _, p := range e.placesOf(groups[i].Slot) {
			if !p.Stale {
				used[p] = true
			}
		}
	}
	for _, m := range members {
		if m.dev == nil {
			continue
		}
		a, b, err := label.Zones(m.dev.Geometry())
		if err != nil {
			return err
		}
		zones, err := m.dev.Report(0, -1)
		if err != nil {
			return errdefs.Wrap(errdefs.Device, errdefs.ReasonDeviceIO, "engine.Open", "zone report", err)
		}
		for _, z := range zones {
			if z.Index == a || z.Index == b || !z.Condition.IsActive() || used[store.Place{Device: m.rec.Number, Zone: uint32(z.Index)}] {
				continue
			}
			if err := m.dev.Finish(z.Index); err != nil {
				e.o.Logger.Warn("a zone that is not used cannot be finished, and may stay active", "device", m.rec.Number, "zone", z.Index, "error", err)
			}
		}
	}
	return nil
}
