package array

import (
	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/zone"
)

// command is one that moves no data.
type command struct {
	op  string
	run func(zone.Device, int) error
	// done says that a place in this condition needs the command no more. It gets it only if no
	// place of the set needs it.
	done func(zone.Condition) bool
	// reset reaches Stale places too, and is recorded as writes are.
	reset bool
	// even leaves places of one length.
	even bool
}

var (
	openZone = command{op: "zone.Open", run: zone.Device.Open,
		done: func(c zone.Condition) bool { return c == zone.ExplicitOpen }}
	closeZone = command{op: "zone.CloseZone", run: zone.Device.CloseZone,
		done: func(c zone.Condition) bool { return !c.IsOpen() }}
	finishZone = command{op: "zone.Finish", run: zone.Device.Finish,
		done: func(c zone.Condition) bool { return c == zone.Full }, even: true}
	resetZone = command{op: "zone.Reset", run: zone.Device.Reset,
		done: func(c zone.Condition) bool { return c == zone.Empty }, reset: true, even: true}
)

// Open implements zone.Device, at every place that is not Stale.
func (a *Array) Open(z int) error { return a.command(z, openZone) }

// CloseZone implements zone.Device, at every place that is not Stale.
func (a *Array) CloseZone(z int) error { return a.command(z, closeZone) }

// Finish implements zone.Device, at every place that is not Stale and not Full: the set is no longer
// torn.
func (a *Array) Finish(z int) error { return a.command(z, finishZone) }

// Reset implements zone.Device, at every place of a member that is there: the set is no longer torn,
// and places that were Stale are no longer. Places of members that are not there are Stale from now
// on. A Stale place whose zone cannot be reset stays as it is, if there is another.
func (a *Array) Reset(z int) error { return a.command(z, resetZone) }

// command runs a command at all places, and answers the first error after all were tried.
func (a *Array) command(z int, c command) error {
	s, only, err := a.set(c.op, z)
	if err != nil {
		return err
	}
	if only.member != nil {
		return only.alone(c.op, z, c.run(only.dev, only.Zone))
	}
	defer a.tell()
	a.enter(s)
	defer a.leave(s)
	a.mu.RLock()
	ts := s.targetsLocked(c.reset)
	a.mu.RUnlock()
	if len(ts) == 0 {
		return refuse(c.op, z, zone.ErrZoneOffline)
	}
	needed := c.needed(ts)
	errs := each(ts, func(i int, t target) error {
		if !needed[i] {
			return nil
		}
		return c.run(t.dev, t.Zone)
	})
	took, _, failed := a.settle(c.op, z, ts, errs)
	if failed != nil && c.reset && freshTook(ts, took, errs) {
		failed = nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case failed == nil && c.reset:
		if s.resetLocked(took) {
			a.missedLocked(z)
		}
	case failed == nil && c.even:
		s.torn, s.known = false, false
	case c.even:
		s.known = false
	}
	return failed
}

// needed says at which places the command is to run.
func (c command) needed(ts []target) []bool {
	needed, any := make([]bool, len(ts)), false
	for i, t := range ts {
		r, err := t.dev.Report(t.Zone, 1)
		needed[i] = err != nil || len(r) != 1 || !c.done(r[0].Condition)
		any = any || needed[i]
	}
	for i := range needed {
		needed[i] = needed[i] || !any
	}
	return needed
}

// freshTook reports whether places that were not Stale took the command, and all errors are of ones
// that were.
func freshTook(ts, took []target, errs []error) bool {
	for i, t := range ts {
		if errs[i] != nil && !t.Stale && !t.out.Load() {
			return false
		}
	}
	for _, t := range took {
		if !t.Stale {
			return true
		}
	}
	return false
}

// resetLocked records that the places of done are empty, and no others. It answers whether one has
// become Stale.
func (s *set) resetLocked(done []target) (missed bool) {
	for _, t := range done {
		if p := s.findLocked(t); p != nil {
			p.Stale = false
		}
	}
	s.known, s.torn, s.wp = true, false, 0
	return s.tookLocked(done)
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

// Discard implements zone.Discarder, at every place that is not Stale; ErrNoDiscard if the member
// does not. The first error wins after all were tried.
func (a *Array) Discard(z int, ranges []extent.Range) error {
	return a.discard("zone.Discard", z, func(d zone.Discarder, at int) error { return d.Discard(at, ranges) })
}

// Release implements zone.Discarder as Discard does.
func (a *Array) Release(z int) error {
	return a.discard("zone.Release", z, zone.Discarder.Release)
}

func (a *Array) discard(op string, z int, run func(zone.Discarder, int) error) error {
	s, only, err := a.set(op, z)
	if err != nil {
		return err
	}
	at := func(t target) error {
		d, ok := t.dev.(zone.Discarder)
		if !ok {
			return errdefs.Wrap(errdefs.Device, errdefs.ReasonDeviceIO, op, object(t.Zone), zone.ErrNoDiscard)
		}
		return run(d, t.Zone)
	}
	if only.member != nil {
		return only.alone(op, z, at(only))
	}
	if a.ordered(s) {
		a.enter(s)
		defer a.leave(s)
	}
	a.mu.RLock()
	ts := s.targetsLocked(false)
	a.mu.RUnlock()
	if len(ts) == 0 {
		return refuse(op, z, zone.ErrZoneOffline)
	}
	for i, err := range each(ts, func(_ int, t target) error { return at(t) }) {
		if err != nil {
			return ts[i].name(err)
		}
	}
	return nil
}
