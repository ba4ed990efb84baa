package array

import (
	"errors"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/zone"
)

// Flush implements zone.Device: of every member that is there. One that fails is the error; one that fails
// twice in a row is taken out, if every set has another place, and then the others' results count. A flush
// that failed in a probe (see Fail) since the last call is an error too, once.
func (a *Array) Flush() error {
	const op = "zone.Flush"
	a.mu.Lock()
	if a.closed {
		a.mu.Unlock()
		return errdefs.Wrap(errdefs.Device, errdefs.ReasonDeviceIO, op, "", zone.ErrClosed)
	}
	ms, lost := a.presentLocked(), a.lost
	a.lost = nil
	alone := len(a.members) == 1
	a.mu.Unlock()
	if len(ms) == 0 {
		return errdefs.Wrap(errdefs.Device, errdefs.ReasonDeviceIO, op, "", errors.Join(lost, zone.ErrZoneOffline))
	}
	if alone {
		return errors.Join(ms[0].dev.Flush(), lost)
	}
	ts := make([]target, len(ms))
	for i, m := range ms {
		ts[i].member = m
	}
	errs := each(ts, func(_ int, t target) error { return a.flush(t.member) })
	failed := lost
	for i, m := range ms {
		a.mu.Lock()
		untold, again := m.failures > m.told, errs[i] != nil && m.inARow > 1
		err := m.flushErr
		m.told = m.failures
		a.mu.Unlock()
		if again && a.takeOut(m, err) {
			continue
		}
		if untold && !m.out.Load() && failed == nil {
			failed = m.name(err)
		}
	}
	return failed
}

// flush flushes one member and notes what came of it.
func (a *Array) flush(m *member) error {
	m.flushing <- struct{}{}
	defer func() { <-m.flushing }()
	a.mu.Lock()
	m.flushes++
	n := m.flushes
	a.mu.Unlock()
	err := m.dev.Flush()
	a.mu.Lock()
	defer a.mu.Unlock()
	if err == nil {
		m.durable, m.inARow = n, 0
		return nil
	}
	m.failures++
	m.inARow++
	m.flushErr = err
	return err
}

// dead is asked about a member whose device failed a command. One that fails a flush too is taken out, if it
// can be done without. It reports whether the member is out.
func (a *Array) dead(m *member, cause error) bool {
	if m.out.Load() {
		return true
	}
	a.mu.RLock()
	alone := len(a.members) == 1
	a.mu.RUnlock()
	if alone || isRefusal(cause) || errdefs.Is(cause, errdefs.InvalidArgument) {
		return false
	}
	return a.flush(m) != nil && a.takeOut(m, cause)
}

// takeOut takes a member out if every set has another place than those on it.
func (a *Array) takeOut(m *member, cause error) bool {
	a.mu.Lock()
	if m.out.Load() {
		a.mu.Unlock()
		return true
	}
	for _, s := range a.sets {
		on, elsewhere := false, false
		for i := range s.places {
			if p := &s.places[i]; p.usable() {
				on, elsewhere = on || p.m == m, elsewhere || p.m != m
			}
		}
		if on && !elsewhere {
			a.mu.Unlock()
			return false
		}
	}
	a.outLocked(m, cause)
	return true
}

// Fail takes a member out, as if it were missing from now on. A place whose last writes it has not made
// durable is Stale; where no other is left, the next Flush is an error.
//
// The array does the same by itself with a member that fails a command and then a flush, a probe, or two
// flushes in a row, as long as each set has a place on another member: with one copy there is nothing to go
// on with.
func (a *Array) Fail(number int, cause error) {
	a.mu.Lock()
	m := a.memberLocked(number)
	if m == nil || m.dev == nil || m.out.Load() {
		a.mu.Unlock()
		return
	}
	a.outLocked(m, cause)
}

// outLocked takes a member out and tells. It is called with mu held, and unlocks it.
func (a *Array) outLocked(m *member, cause error) {
	m.err = cause
	m.out.Store(true)
	type change struct {
		zone   int
		places []Place
	}
	var changes []change
	for z, s := range a.sets {
		for i := range s.places {
			p := &s.places[i]
			if p.m != m || p.Stale || p.touched < m.durable {
				continue
			}
			if s.copiesLocked() == 0 {
				a.lost = m.name(cause)
				continue
			}
			p.Stale = true
			changes = append(changes, change{z, s.copyLocked()})
		}
		s.known = false
	}
	fail, stale := a.onFail, a.onStale
	a.mu.Unlock()
	if stale != nil {
		for _, c := range changes {
			stale(c.zone, c.places)
		}
	}
	if fail != nil {
		fail(m.number, cause)
	}
}

// OnFail has f called, without locks held, when a member has been taken out. It is set before the array
// is used.
func (a *Array) OnFail(f func(number int, err error)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.onFail = f
}

// OnStale has f called, without locks held, when a place has become Stale, before the call that it has
// missed returns. It is set before the array is used.
func (a *Array) OnStale(f func(zone int, places []Place)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.onStale = f
}
