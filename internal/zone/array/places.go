package array

import (
	"fmt"
	"slices"
)

// Places returns a copy of the places of a zone, nil for a zone that does not exist.
func (a *Array) Places(z int) []Place {
	a.mu.RLock()
	defer a.mu.RUnlock()
	if z < 0 || z >= len(a.sets) {
		return nil
	}
	return a.sets[z].copyLocked()
}

func (s *set) copyLocked() []Place {
	out := make([]Place, len(s.places))
	for i, p := range s.places {
		out[i] = p.Place
	}
	return out
}

// SetPlaces gives a zone that exists other places, while nothing of it is wanted and no call changes
// it; or the same ones with Stale changed, at any time. It waits for nothing. Places on members that
// are not there are not read or written. Whether the set is torn is found from the new places when
// it is next asked for or written; one that is torn stays so if only Stale changes.
func (a *Array) SetPlaces(z int, places []Place) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.sets[z]
	same := len(places) == len(s.places)
	next := make([]place, len(places))
	for i, p := range places {
		next[i] = place{Place: p, m: a.memberLocked(p.Device)}
		old := s.findLocked(target{Place: p})
		if old != nil {
			next[i].touched = old.touched
		}
		same = same && old != nil
	}
	s.places, s.known = next, false
	if !same {
		s.torn = false
	}
	if n := s.shareLocked(); n > a.share {
		a.share = n
		a.limitsLocked()
	}
}

// Grow appends sets, as New takes them, and returns the number of the first zone they are. The
// Geometry has more zones then. Errors are those of New, and leave the array as it was.
func (a *Array) Grow(sets [][]Place) (first int, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	first = len(a.sets)
	return first, a.growLocked("array.Grow", sets)
}

func (a *Array) growLocked(op string, sets [][]Place) error {
	taken := make(map[Place]int)
	for z, s := range a.sets {
		for _, p := range s.places {
			taken[Place{Device: p.Device, Zone: p.Zone}] = z
		}
	}
	before := len(a.sets)
	for i, places := range sets {
		s := &set{places: make([]place, len(places))}
		for j, p := range places {
			m := a.memberLocked(p.Device)
			key := Place{Device: p.Device, Zone: p.Zone}
			other, twice := taken[key]
			var err error
			switch {
			case m == nil:
				err = mismatch(op, fmt.Sprintf("zone %d has a copy on device %d, which was not named", before+i, p.Device))
			case p.Zone < 0 || m.dev != nil && p.Zone >= m.geo.Zones:
				err = mismatch(op, fmt.Sprintf("zone %d has a copy in zone %d of device %d, which has %d zones", before+i, p.Zone, p.Device, m.geo.Zones))
			case twice:
				err = mismatch(op, fmt.Sprintf("zone %d of device %d holds a copy of zone %d and of zone %d", p.Zone, p.Device, other, before+i))
			}
			if err != nil {
				a.sets = a.sets[:before]
				return err
			}
			taken[key] = before + i
			s.places[j] = place{Place: p, m: m}
		}
		a.sets = append(a.sets, s)
	}
	if err := a.reshapeLocked(op); err != nil {
		a.sets = a.sets[:before]
		return err
	}
	return nil
}

// Copies returns how many places of the zone can be read now: those that are not Stale, on members
// that are there. Whether their zones are Offline is not looked at; Report does. 0 for a zone that
// does not exist.
func (a *Array) Copies(z int) int {
	a.mu.RLock()
	defer a.mu.RUnlock()
	if z < 0 || z >= len(a.sets) {
		return 0
	}
	return a.sets[z].copiesLocked()
}

func (s *set) copiesLocked() (n int) {
	for i := range s.places {
		if s.places[i].usable() {
			n++
		}
	}
	return n
}

// tookLocked records that the set changed on the places of done, and on no others: a place of a
// member that is not there, or left meanwhile, no longer holds what the set holds. It answers whether
// one has become Stale.
func (s *set) tookLocked(done []target) (missed bool) {
	for i := range s.places {
		p := &s.places[i]
		at := slices.IndexFunc(done, func(t target) bool { return t.Device == p.Device && t.Zone == p.Zone })
		if at < 0 || !p.present() {
			missed = missed || !p.Stale
			p.Stale = true
			continue
		}
		p.touched = p.m.flushes
	}
	return missed
}
