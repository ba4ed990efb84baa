package array

import (
	"errors"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/zone"
)

// Fail takes the member out because of err, whatever that leaves: from now on it is as if missing.
// Calls under way on it may still end well, but none that is alone on it. If a set has no other
// place that can be read, the next Flush answers an error, because what was written there is not
// durable. A number that is not there, or is out already, is nothing.
func (a *Array) Fail(number int, err error) {
	defer a.tell()
	a.mu.RLock()
	m := a.memberLocked(number)
	a.mu.RUnlock()
	if m != nil {
		a.takeOut(m, err, true)
	}
}

// takeOut takes the member out if it is the last for no set, or anyway if forced. Places on it that it has not made durable since they were written or reset are
// Stale then, where there is another.
func (a *Array) takeOut(m *member, err error, forced bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	spare := a.spareLocked(m)
	if m.dev == nil || m.out.Load() || a.closed || !spare && !forced {
		return
	}
	if !spare {
		a.lost = m.name(err)
	}
	m.out.Store(true)
	m.err = err
	for z, s := range a.sets {
		for i := range s.places {
			if p := &s.places[i]; p.m == m && !p.Stale && p.touched >= m.durable && s.copiesLocked() > 0 {
				p.Stale = true
				a.missedLocked(z)
			}
		}
	}
	a.news = append(a.news, news{zone: -1, number: m.number, err: err})
}

// spareLocked reports whether every set that can be read on the member can be read on another. It is
// linear in the sets, and asked only after failures.
func (a *Array) spareLocked(m *member) bool {
	for _, s := range a.sets {
		on, other := false, false
		for i := range s.places {
			p := &s.places[i]
			on = on || p.m == m && p.usable()
			other = other || p.m != m && p.usable()
		}
		if on && !other {
			return false
		}
	}
	return true
}

// suspect finds out whether a member that failed a call is dead: then a Flush fails as well, and it
// is taken out, so that it does not spoil one zone after another. One that could not be taken out is
// not asked.
func (a *Array) suspect(m *member, err error) {
	if refusal(err) || errors.Is(err, zone.ErrClosed) {
		return
	}
	a.mu.RLock()
	spare := !m.out.Load() && !a.closed && a.spareLocked(m)
	a.mu.RUnlock()
	if spare && a.flushMember(m) != nil {
		a.takeOut(m, err, false)
	}
}

// settle looks at how a call went at its targets: it takes out members that are dead, and answers
// which targets took the call, the first error of a member that is still there, and whether a write
// pointer may have moved where it failed. Nil without any that took it cannot be: then the error is
// ErrZoneOffline.
func (a *Array) settle(op string, z int, ts []target, errs []error) (took []target, moved bool, failed error) {
	for i, t := range ts {
		if errs[i] != nil {
			a.suspect(t.member, errs[i])
		}
	}
	for i, t := range ts {
		switch {
		case t.out.Load():
		case errs[i] == nil:
			took = append(took, t)
		default:
			moved = moved || !refusal(errs[i])
			if failed == nil {
				failed = t.name(errs[i])
			}
		}
	}
	if len(took) == 0 && failed == nil {
		failed = refuse(op, z, zone.ErrZoneOffline)
	}
	return took, moved, failed
}

// refusals are the errors by which a device refuses a call without having done any of it, which
// says nothing about its health.
var refusals = []error{
	zone.ErrNoDiscard, zone.ErrUnalignedWrite, zone.ErrBoundary, zone.ErrZoneFull, zone.ErrTooManyActive,
	zone.ErrTooManyOpen, zone.ErrInvalidTransition, zone.ErrInvalidRead, zone.ErrConventional, zone.ErrAppendTooLarge,
}

func refusal(err error) bool {
	if errdefs.Is(err, errdefs.InvalidArgument) {
		return true
	}
	for _, r := range refusals {
		if errors.Is(err, r) {
			return true
		}
	}
	return false
}
