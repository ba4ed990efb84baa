package array

import (
	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/zone"
)

// ReadAt implements zone.Device: from the place with the fewest reads under way, the first of those that
// have as few; where that fails, from the others in turn.
func (a *Array) ReadAt(z int, off int64, p []byte) error {
	const op = "zone.ReadAt"
	_, only, err := a.set(op, z)
	if err != nil {
		return err
	}
	if only.member != nil {
		return only.dev.ReadAt(only.Zone, off, p)
	}
	a.mu.RLock()
	left := a.sets[z].targetsLocked(false)
	a.mu.RUnlock()
	if len(left) == 0 {
		return refuse(op, z, zone.ErrZoneOffline)
	}
	var first error
	for len(left) > 0 {
		at := 0
		for i := range left {
			if left[i].reads.Load() < left[at].reads.Load() {
				at = i
			}
		}
		t := left[at]
		if err := t.read(off, p); err == nil {
			return nil
		} else if first == nil {
			first = t.name(err)
		}
		left = append(left[:at:at], left[at+1:]...)
	}
	return first
}

func (t *target) read(off int64, p []byte) error {
	t.reads.Add(1)
	defer t.reads.Add(-1)
	return t.dev.ReadAt(t.Zone, off, p)
}

// ReadCopy is ReadAt from one of the zone's Places, by its position among them. One that is Stale, or of a
// member that is not there, is ErrZoneOffline.
func (a *Array) ReadCopy(z, copy int, off int64, p []byte) error {
	t, err := a.copyOf("zone.ReadCopy", z, copy)
	if err != nil {
		return err
	}
	return t.read(off, p)
}

// WriteCopy writes to one copy of a conventional zone only, by its position among Places: bytes that the
// others hold there already. Whether the place is Stale does not change.
func (a *Array) WriteCopy(z, copy int, off int64, bufs [][]byte) error {
	t, err := a.copyOf("zone.WriteCopy", z, copy)
	if err != nil {
		return err
	}
	if t.geo.IsSequential(t.Zone) {
		return refuse("zone.WriteCopy", z, zone.ErrUnalignedWrite)
	}
	return t.dev.Write(t.Zone, off, bufs)
}

func (a *Array) copyOf(op string, z, copy int) (t target, err error) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	if err := a.admitLocked(op, z); err != nil {
		return t, err
	}
	s := a.sets[z]
	if copy < 0 || copy >= len(s.places) || !s.places[copy].usable() {
		return t, refuse(op, z, zone.ErrZoneOffline)
	}
	return s.targetLocked(copy), nil
}

// Report implements zone.Device. Of a zone with several places WP is the greatest, and the condition the one
// that all have; where they differ: Offline only if no place can be read, ReadOnly if one takes no writes any
// more, else the one of which most is written.
func (a *Array) Report(first, n int) ([]zone.Zone, error) {
	const op = "zone.Report"
	a.mu.RLock()
	if a.closed {
		a.mu.RUnlock()
		return nil, errdefs.Wrap(errdefs.Device, errdefs.ReasonDeviceIO, op, "", zone.ErrClosed)
	}
	if first < 0 || first > len(a.sets) {
		a.mu.RUnlock()
		return nil, noSuchZone(op, first, len(a.sets))
	}
	last := len(a.sets)
	if n >= 0 {
		last = min(last, first+min(n, last))
	}
	views := make([][]target, last-first)
	out := make([]zone.Zone, last-first)
	for i := range views {
		s := a.sets[first+i]
		views[i] = s.targetsLocked(false)
		out[i] = zone.Zone{Index: first + i, Condition: zone.Offline}
		out[i].Size, out[i].Capacity = s.sizeLocked(&a.geo)
	}
	a.mu.RUnlock()
	found, err := reports(views)
	if err != nil {
		return nil, err
	}
	for i := range out {
		combine(&out[i], found[i])
	}
	return out, nil
}

// reports returns the reports of the targets, with one report of all its zones from a member of which many
// are asked for.
func reports(views [][]target) ([][]zone.Zone, error) {
	const many = 8
	wanted := map[*member]int{}
	for _, v := range views {
		for _, t := range v {
			wanted[t.member]++
		}
	}
	all := map[*member][]zone.Zone{}
	for m, n := range wanted {
		if n <= many {
			continue
		}
		zs, err := m.dev.Report(0, -1)
		if err != nil {
			return nil, m.name(err)
		}
		all[m] = zs
	}
	out := make([][]zone.Zone, len(views))
	for i, v := range views {
		for _, t := range v {
			if zs := all[t.member]; zs != nil {
				out[i] = append(out[i], zs[t.Zone])
				continue
			}
			zs, err := t.dev.Report(t.Zone, 1)
			if err != nil {
				return nil, t.name(err)
			}
			out[i] = append(out[i], zs[0])
		}
	}
	return out, nil
}

// written orders conditions by how much of the zone is written.
var written = [...]int{zone.NotWP: 0, zone.Empty: 1, zone.Closed: 2, zone.ImplicitOpen: 3, zone.ExplicitOpen: 4, zone.Full: 5}

func combine(z *zone.Zone, found []zone.Zone) {
	readable, failed := false, false
	for _, f := range found {
		z.Resets = max(z.Resets, f.Resets)
		if f.Condition == zone.Offline || f.Condition == zone.ReadOnly {
			failed = true
			readable = readable || f.Condition == zone.ReadOnly
			if f.Condition == zone.ReadOnly {
				z.WP = max(z.WP, f.WP)
			}
			continue
		}
		if !readable || z.Condition == zone.Offline || z.Condition == zone.ReadOnly || written[f.Condition] > written[z.Condition] {
			z.Condition = f.Condition
		}
		readable = true
		z.WP = max(z.WP, f.WP)
	}
	switch {
	case !readable:
		z.Condition = zone.Offline
		for _, f := range found {
			z.WP = max(z.WP, f.WP)
		}
	case failed:
		z.Condition = zone.ReadOnly
	}
}

// compare tells from the reports of a set's places where the next append goes, and whether they differ
// in length.
func compare(found []zone.Zone) (wp int64, torn bool) {
	const full = int64(1) << 62
	for i, f := range found {
		at := f.WP
		if f.Condition == zone.Full {
			at = full
		}
		if i > 0 && at != wp {
			torn = true
		}
		wp = max(wp, at)
	}
	if wp == full {
		wp = 0
		for _, f := range found {
			wp = max(wp, f.WP)
		}
	}
	return wp, torn
}

// Torn reports whether two places of the zone that can be read may hold less one than the other: after a
// crash, or an append that one of them refused. Nothing is appended there until Finish or Reset.
func (a *Array) Torn(z int) bool {
	a.mu.RLock()
	if z < 0 || z >= len(a.sets) || a.sets[z].copiesLocked() < 2 {
		a.mu.RUnlock()
		return false
	}
	s := a.sets[z]
	known, torn := s.known, s.torn
	a.mu.RUnlock()
	if known || torn {
		return torn
	}
	a.enter(s)
	defer a.leave(s)
	_ = a.survey(s) // what cannot be reported cannot be written either
	a.mu.RLock()
	defer a.mu.RUnlock()
	return s.torn
}

// survey makes a set known, of which the caller has the turn.
func (a *Array) survey(s *set) error {
	a.mu.RLock()
	known, ts := s.known, s.targetsLocked(false)
	a.mu.RUnlock()
	if known {
		return nil
	}
	found, err := reports([][]target{ts})
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	var differ bool
	s.wp, differ = compare(found[0])
	s.known, s.torn = true, s.torn || differ
	return nil
}
