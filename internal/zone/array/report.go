package array

import (
	"fmt"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/zone"
)

// Report implements zone.Device. Of the places of a set that are not Stale, on members that are
// there: WP is the greatest write pointer, and Condition what all agree on; where they differ,
// Offline if none can be read, ReadOnly if one of them is ReadOnly or Offline, else that of the one
// most written (full, open, closed, empty). Resets is the largest. Size and Capacity are the
// smallest of all places whose device is known. A set without a place to ask is Offline.
//
// A member that answers no report is passed over where another place of the set does.
func (a *Array) Report(first, n int) ([]zone.Zone, error) {
	const op = "zone.Report"
	a.mu.RLock()
	if first == len(a.sets) && !a.closed {
		a.mu.RUnlock()
		return nil, nil
	}
	if err := a.admitLocked(op, first); err != nil {
		a.mu.RUnlock()
		return nil, err
	}
	if n < 0 || n > len(a.sets)-first {
		n = len(a.sets) - first
	}
	out := make([]zone.Zone, n)
	views := make([][]target, n)
	for i := range out {
		s := a.sets[first+i]
		out[i].Index = first + i
		out[i].Size, out[i].Capacity = s.sizeLocked(&a.geo)
		views[i] = s.targetsLocked(false)
	}
	a.mu.RUnlock()
	found, err := reports(views)
	if err != nil {
		return nil, err
	}
	for i := range out {
		merge(&out[i], found[i])
	}
	return out, nil
}

// reports returns what the members say of each target, without those that answered nothing; if none
// of a set's answered, their error.
func reports(views [][]target) ([][]zone.Zone, error) {
	wanted := make(map[*member]*span)
	for _, v := range views {
		for _, t := range v {
			w := wanted[t.member]
			if w == nil {
				w = &span{low: t.Zone, high: t.Zone}
				wanted[t.member] = w
			}
			w.low, w.high, w.n = min(w.low, t.Zone), max(w.high, t.Zone), w.n+1
		}
	}
	for m, w := range wanted {
		if all := w.high - w.low + 1; all <= 2*w.n {
			w.zones, w.err = m.dev.Report(w.low, all)
		}
	}
	found := make([][]zone.Zone, len(views))
	for i, v := range views {
		var first error
		found[i] = make([]zone.Zone, 0, len(v))
		for _, t := range v {
			r, err := wanted[t.member].zone(t)
			if err == nil {
				found[i] = append(found[i], r)
			} else if first == nil {
				first = t.name(err)
			}
		}
		if first != nil && len(found[i]) == 0 {
			return nil, first
		}
	}
	return found, nil
}

// span is the zones wanted of a member: asked for at once if they lie close together.
type span struct {
	low, high int
	n         int
	zones     []zone.Zone
	err       error
}

func (w *span) zone(t target) (zone.Zone, error) {
	if w.err != nil {
		return zone.Zone{}, w.err
	}
	if i := t.Zone - w.low; i < len(w.zones) {
		return w.zones[i], nil
	}
	r, err := t.dev.Report(t.Zone, 1)
	if err == nil && len(r) != 1 {
		err = errdefs.New(errdefs.Device, errdefs.ReasonDeviceIO, "zone.Report", object(t.Zone), fmt.Sprintf("%d zones reported for one", len(r)))
	}
	if err != nil {
		return zone.Zone{}, err
	}
	return r[0], nil
}

// written orders conditions by how much was written.
var written = map[zone.Condition]int{
	zone.Empty: 1, zone.Closed: 2, zone.ImplicitOpen: 3, zone.ExplicitOpen: 4, zone.Full: 5, zone.NotWP: 6,
}

// merge makes one zone of the places'.
func merge(out *zone.Zone, places []zone.Zone) {
	out.Condition = zone.Offline
	offline, broken, filled := 0, false, false
	for _, p := range places {
		out.WP = max(out.WP, min(p.WP, out.Size))
		out.Resets = max(out.Resets, p.Resets)
		switch p.Condition {
		case zone.Offline:
			offline++
			continue
		case zone.ReadOnly:
			broken = true
			continue
		}
		// Full by writing and not by command: its write pointer is where its capacity ends.
		filled = filled || p.Condition == zone.Full && p.WP == p.Capacity
		if written[p.Condition] > written[out.Condition] {
			out.Condition = p.Condition
		}
	}
	switch {
	case offline == len(places):
	case broken || offline > 0:
		out.Condition = zone.ReadOnly
	case filled:
		out.WP = out.Capacity
	}
}

// compare says where the next write of a set goes, and whether its places differ in length. Places
// that take no more writes in any case do not count, nor do write pointers of places that are all
// Full.
func compare(places []zone.Zone) (wp int64, torn bool) {
	first, full, n := int64(-1), 0, 0
	for _, p := range places {
		switch p.Condition {
		case zone.NotWP, zone.ReadOnly, zone.Offline:
			continue
		case zone.Full:
			full++
		}
		n++
		if first < 0 {
			first = p.WP
		}
		torn = torn || p.WP != first
		wp = max(wp, p.WP)
	}
	return wp, full != n && (full > 0 || torn)
}

// survey makes a set known from the reports of its places, for a caller that has its turn. It
// answers the member whose report failed.
func (a *Array) survey(s *set, ts []target) (*member, error) {
	a.mu.RLock()
	known := s.known
	a.mu.RUnlock()
	if known {
		return nil, nil
	}
	places := make([]zone.Zone, len(ts))
	for i, t := range ts {
		one, err := (&span{}).zone(t)
		if err != nil {
			return t.member, err
		}
		places[i] = one
	}
	wp, torn := compare(places)
	a.mu.Lock()
	defer a.mu.Unlock()
	s.known, s.wp, s.torn = true, wp, s.torn || torn
	return nil, nil
}

// Torn reports whether the places of a set that can be read may differ in length: a write failed on
// one, or they were found so. The set takes no writes then; Finish or Reset makes it good. A set
// whose members answer no report is not torn. It waits for the set's turn if it has to ask.
func (a *Array) Torn(z int) bool {
	s, only, err := a.set("array.Torn", z)
	if err != nil || only.member != nil {
		return false
	}
	a.mu.RLock()
	known := s.known
	a.mu.RUnlock()
	if !known {
		a.enter(s)
		defer a.leave(s)
		a.mu.RLock()
		ts := s.targetsLocked(false)
		a.mu.RUnlock()
		_, _ = a.survey(s, ts) // what cannot be asked is left as it was
	}
	a.mu.RLock()
	defer a.mu.RUnlock()
	return s.torn && s.copiesLocked() > 1
}
