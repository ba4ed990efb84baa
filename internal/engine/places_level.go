package engine

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/store"
	"github.com/shingle-store/shingle/internal/zone"
)

// levelPlaces finishes the zones of a block group with something live whose write pointers differ after a
// crash, or of which one place is stale although its device is there: it is to be emptied, not added to.
func (e *Engine) levelPlaces(g *store.BlockGroup, z *zone.Zone) error {
	slot := int(g.Slot)
	torn := e.dev.Torn(slot)
	if !torn && (!z.Condition.IsActive() || !e.incomplete(g.Slot)) {
		return nil
	}
	if torn {
		e.report("COPIES_DIFFER", Info, e.placeName(g.Slot), fmt.Sprintf("the zones of block group %d were written to different ends; they are finished", g.Slot))
	}
	if err := e.dev.Finish(slot); err != nil {
		e.o.Logger.Warn("a zone that is not used any more cannot be finished, and may stay active", "place", e.placeName(g.Slot), "error", err)
		z.Condition = zone.Full // nothing is appended, whatever the device says
		return nil
	}
	e.note(g.Slot, bgRecord{finished: true})
	g.Flags |= store.BGFinished
	r, err := e.dev.Report(slot, 1)
	if err != nil {
		return errdefs.Wrap(errdefs.Device, errdefs.ReasonDeviceIO, "engine.Open", "zone report", err)
	}
	*z = r[0]
	return nil
}

// incomplete reports whether a copy of what lies in the slot is missing, out of date or on a device that
// is leaving, while there is, or may be, a device to have it.
func (e *Engine) incomplete(slot uint32) bool {
	e.members.Lock()
	defer e.members.Unlock()
	places := e.dev.Places(int(slot))
	whole := 0
	for _, p := range places {
		if e.members.takesPlacesLocked(uint32(p.Device)) && !p.Stale {
			whole++
		}
	}
	return len(places) > 0 && whole < e.copies
}

// pairZones pairs the zones of devices for two copies: the two devices with the most left give one
// each, until no two have any. With one device zone i goes with the one half the device further on. zones
// are those that may be used, by device. What finds no partner is left out.
func pairZones(zones map[uint32][]int, copies int) (sets [][]store.Place) {
	place := func(d uint32, z int) store.Place { return store.Place{Device: d, Zone: uint32(z)} }
	numbers := make([]uint32, 0, len(zones))
	for d := range zones {
		numbers = append(numbers, d)
	}
	slices.Sort(numbers)
	if copies < 2 {
		for _, d := range numbers {
			for _, z := range zones[d] {
				sets = append(sets, []store.Place{place(d, z)})
			}
		}
		return sets
	}
	if len(numbers) == 0 {
		return nil
	}
	if len(numbers) == 1 {
		d := numbers[0]
		half := len(zones[d]) / 2
		for i := range half {
			sets = append(sets, []store.Place{place(d, zones[d][i]), place(d, zones[d][half+i])})
		}
		return sets
	}
	left := map[uint32][]int{}
	for d, z := range zones {
		left[d] = z
	}
	for {
		slices.SortStableFunc(numbers, func(a, b uint32) int {
			return cmp.Or(cmp.Compare(len(left[b]), len(left[a])), cmp.Compare(a, b))
		})
		a, b := numbers[0], numbers[1]
		if len(left[b]) == 0 {
			return sets
		}
		if b < a {
			a, b = b, a
		}
		sets = append(sets, []store.Place{place(a, left[a][0]), place(b, left[b][0])})
		left[a], left[b] = left[a][1:], left[b][1:]
	}
}
