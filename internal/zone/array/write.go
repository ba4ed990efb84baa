package array

import (
	"errors"
	"fmt"

	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/zone"
)

// Append implements zone.Device. To a set of several places it is a write at the write pointer of each, one
// after the other append of the set. After an error with several places nothing is appended there any more
// until Finish or Reset.
func (a *Array) Append(z int, bufs [][]byte) (off int64, err error) {
	return a.append("zone.Append", z, zone.TotalLen(bufs), func(target) [][]byte { return bufs })
}

// AppendEach is Append of what bufs says for each place, of one length for all: zone headers differ by
// copy. bufs is called once for each place that is there, maybe at the same time.
func (a *Array) AppendEach(z int, bufs func(copy int, p Place) [][]byte) (off int64, err error) {
	return a.append("zone.Append", z, -1, func(t target) [][]byte { return bufs(t.copy, t.Place) })
}

func (a *Array) append(op string, z int, n int64, bufs func(target) [][]byte) (off int64, err error) {
	s, only, err := a.set(op, z)
	if err != nil {
		return 0, err
	}
	if only.member != nil {
		return only.dev.Append(only.Zone, bufs(only))
	}
	a.enter(s)
	defer a.leave(s)
	ts, err := a.writable(op, z, s)
	if err != nil {
		return 0, err
	}
	data := make([][][]byte, len(ts))
	for i, t := range ts {
		data[i] = bufs(t)
		if n < 0 {
			n = zone.TotalLen(data[i])
		}
	}
	off = s.wp
	limit, capacity := a.bounds(s)
	switch {
	case !ts[0].geo.IsSequential(ts[0].Zone):
		return 0, refuse(op, z, zone.ErrConventional)
	case n > 0 && n%extent.BlockSize == 0 && limit > 0 && n > limit:
		return 0, refuse(op, z, zone.ErrAppendTooLarge)
	case n > 0 && off+n > capacity:
		// One place of more capacity than another takes no more than that one.
		found, rerr := reports([][]target{ts})
		if rerr == nil && found[0][0].Condition == zone.Full {
			return 0, refuse(op, z, zone.ErrZoneFull)
		}
		return 0, refuse(op, z, zone.ErrBoundary)
	}
	errs := each(ts, func(i int, t target) error { return t.dev.Write(t.Zone, off, data[i]) })
	if err := a.settle(s, z, ts, errs, off+n); err != nil {
		return 0, err
	}
	return off, nil
}

// bounds are the append limit and the capacity that hold for a set.
func (a *Array) bounds(s *set) (limit, capacity int64) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	_, capacity = s.sizeLocked(&a.geo)
	return a.geo.AppendLimit, capacity
}

// writable returns the places that take what is written to a set of which the caller has the turn.
func (a *Array) writable(op string, z int, s *set) ([]target, error) {
	if err := a.survey(s); err != nil {
		return nil, err
	}
	a.mu.RLock()
	defer a.mu.RUnlock()
	ts := s.targetsLocked(false)
	switch {
	case len(ts) == 0:
		return nil, refuse(op, z, zone.ErrZoneOffline)
	case s.torn && len(ts) > 1:
		return nil, refuse(op, z, fmt.Errorf("its copies may differ in length, so it must be finished or reset: %w", zone.ErrMedia))
	}
	return ts, nil
}

// Write implements zone.Device: to every place.
func (a *Array) Write(z int, off int64, bufs [][]byte) error {
	const op = "zone.Write"
	s, only, err := a.set(op, z)
	if err != nil {
		return err
	}
	if only.member != nil {
		return only.dev.Write(only.Zone, off, bufs)
	}
	a.mu.RLock()
	ts := s.targetsLocked(false)
	a.mu.RUnlock()
	if len(ts) > 0 && !ts[0].geo.IsSequential(ts[0].Zone) {
		errs := each(ts, func(_ int, t target) error { return t.dev.Write(t.Zone, off, bufs) })
		return a.settle(s, z, ts, errs, -1)
	}
	a.enter(s)
	defer a.leave(s)
	if ts, err = a.writable(op, z, s); err != nil {
		return err
	}
	errs := each(ts, func(_ int, t target) error { return t.dev.Write(t.Zone, off, bufs) })
	return a.settle(s, z, ts, errs, off+zone.TotalLen(bufs))
}

// settle draws the conclusions from a write to all places of a set. It succeeds if every place took it, or
// those that did not are of members that have been taken out; the places that are left out then are
// Stale before it returns. wp is where the set's write pointer is then, and the caller has the turn; -1: it
// has none.
func (a *Array) settle(s *set, z int, ts []target, errs []error, wp int64) error {
	pointer := wp >= 0
	var done []target
	var failed error
	refused := 0
	for i, t := range ts {
		if errs[i] == nil {
			done = append(done, t)
			continue
		}
		if isRefusal(errs[i]) {
			refused++
		}
		if !a.dead(t.member, errs[i]) && failed == nil {
			failed = t.name(errs[i])
		}
	}
	if len(done) == 0 && failed == nil {
		for i, t := range ts { // the others were taken out while this one failed
			failed = t.name(errs[i])
		}
	}
	a.mu.Lock()
	if failed != nil {
		s.known = !pointer
		s.torn = s.torn || pointer && len(ts) > 1 && refused < len(ts)
		a.mu.Unlock()
		return failed
	}
	if pointer {
		s.wp = wp
	}
	changed := s.tookLocked(done)
	places := s.copyLocked()
	tell := a.onStale
	a.mu.Unlock()
	if changed && tell != nil {
		tell(z, places)
	}
	return nil
}

// refusals are errors that say nothing about whether the device works.
var refusals = []error{
	zone.ErrUnalignedWrite, zone.ErrBoundary, zone.ErrZoneFull, zone.ErrZoneReadOnly, zone.ErrZoneOffline, zone.ErrTooManyActive,
	zone.ErrTooManyOpen, zone.ErrInvalidTransition, zone.ErrInvalidRead, zone.ErrConventional, zone.ErrAppendTooLarge, zone.ErrNoDiscard,
}

func isRefusal(err error) bool {
	for _, r := range refusals {
		if errors.Is(err, r) {
			return true
		}
	}
	return false
}

// Open implements zone.Device.
func (a *Array) Open(z int) error {
	return a.command("zone.Open", z, zone.Device.Open, zone.ExplicitOpen)
}

// CloseZone implements zone.Device.
func (a *Array) CloseZone(z int) error {
	return a.command("zone.CloseZone", z, zone.Device.CloseZone, zone.Closed)
}

// Finish implements zone.Device. Of several places those that are full already are left alone; afterwards the
// set is not Torn.
func (a *Array) Finish(z int) error {
	return a.command("zone.Finish", z, zone.Device.Finish, zone.Full)
}

// command gives a command to every place that is not in the condition that it leads to; to all if all are.
func (a *Array) command(op string, z int, do func(zone.Device, int) error, leadsTo zone.Condition) error {
	s, only, err := a.set(op, z)
	if err != nil {
		return err
	}
	if only.member != nil {
		return do(only.dev, only.Zone)
	}
	a.enter(s)
	defer a.leave(s)
	a.mu.RLock()
	ts := s.targetsLocked(false)
	a.mu.RUnlock()
	if len(ts) == 0 {
		return refuse(op, z, zone.ErrZoneOffline)
	}
	due, err := without(ts, leadsTo)
	if err != nil {
		return err
	}
	errs := each(due, func(_ int, t target) error { return do(t.dev, t.Zone) })
	var failed error
	for i, t := range due {
		if errs[i] != nil && !a.dead(t.member, errs[i]) && failed == nil {
			failed = t.name(errs[i])
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	s.known = false
	if failed == nil && leadsTo == zone.Full {
		s.torn = false
	}
	return failed
}

// without leaves out the targets whose zones are in a condition, unless all are.
func without(ts []target, c zone.Condition) ([]target, error) {
	found, err := reports([][]target{ts})
	if err != nil {
		return nil, err
	}
	var due []target
	for i, t := range ts {
		if found[0][i].Condition != c {
			due = append(due, t)
		}
	}
	if len(due) == 0 {
		return ts, nil
	}
	return due, nil
}

// Reset implements zone.Device: of every place on a member that is there. None of those is Stale afterwards,
// and the others are; the set is not Torn.
func (a *Array) Reset(z int) error {
	const op = "zone.Reset"
	s, only, err := a.set(op, z)
	if err != nil {
		return err
	}
	if only.member != nil {
		return only.dev.Reset(only.Zone)
	}
	a.enter(s)
	defer a.leave(s)
	a.mu.RLock()
	ts := s.targetsLocked(true)
	a.mu.RUnlock()
	if len(ts) == 0 {
		return refuse(op, z, zone.ErrZoneOffline)
	}
	due, err := without(ts, zone.Empty)
	if err != nil {
		return err
	}
	errs := each(due, func(_ int, t target) error { return t.dev.Reset(t.Zone) })
	var failed error
	for i, t := range due {
		if errs[i] != nil && !a.dead(t.member, errs[i]) && failed == nil {
			failed = t.name(errs[i])
		}
	}
	a.mu.Lock()
	s.known = false
	if failed != nil {
		s.torn = true
		a.mu.Unlock()
		return failed
	}
	var done []target
	for _, t := range ts {
		if !t.out.Load() {
			done = append(done, t)
		}
	}
	before := s.copyLocked()
	for i := range s.places {
		if s.places[i].present() {
			s.places[i].Stale = false
		}
	}
	s.tookLocked(done)
	s.torn = false
	places := s.copyLocked()
	tell := a.onStale
	a.mu.Unlock()
	if len(done) == 0 {
		return refuse(op, z, zone.ErrZoneOffline)
	}
	for i := range places {
		if tell != nil && places[i].Stale && !before[i].Stale {
			tell(z, places)
			break
		}
	}
	return nil
}

// CanDiscard reports whether a member that is there can be told of what is not wanted any more.
func (a *Array) CanDiscard() bool {
	a.mu.RLock()
	defer a.mu.RUnlock()
	for _, m := range a.presentLocked() {
		if _, ok := m.dev.(zone.Discarder); ok {
			return true
		}
	}
	return false
}

// Discard implements zone.Discarder: on every place.
func (a *Array) Discard(z int, ranges []extent.Range) error {
	return a.discarding("zone.Discard", z, func(d zone.Discarder, z int) error { return d.Discard(z, ranges) })
}

// Release implements zone.Discarder: on every place.
func (a *Array) Release(z int) error {
	return a.discarding("zone.Release", z, zone.Discarder.Release)
}

func (a *Array) discarding(op string, z int, do func(zone.Discarder, int) error) error {
	s, only, err := a.set(op, z)
	if err != nil {
		return err
	}
	a.mu.RLock()
	ts := s.targetsLocked(false)
	a.mu.RUnlock()
	if only.member != nil {
		ts = []target{only}
	}
	if len(ts) == 0 {
		return refuse(op, z, zone.ErrZoneOffline)
	}
	var failed error
	for i, err := range each(ts, func(_ int, t target) error {
		d, ok := t.dev.(zone.Discarder)
		if !ok {
			return refuse(op, z, zone.ErrNoDiscard)
		}
		return do(d, t.Zone)
	}) {
		if err != nil && failed == nil {
			failed = ts[i].name(err)
		}
	}
	return failed
}
