package array

import (
	"errors"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/zone"
)

// departure is a member that was taken out and has not been told of.
type departure struct {
	number int
	err    error
}

// news is what a call found out and has not told of.
type news struct {
	gone  []departure
	stale []int // zones with a place that has become Stale
}

// OnStale makes f be called for each zone of which a place has become Stale, after that, without locks and
// before the call that the place has missed returns: f may call any method. It is called before OnFail's.
// f replaces the one before; nil is none.
func (a *Array) OnStale(f func(zone int)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.onStale = f
}

// OnFail makes f be called once for each member that is taken out, after that, without locks and
// before the call that found out returns: f may call any method. Sets that the member had a place
// in may have it Stale by then (Places). f replaces the one before; nil is none.
func (a *Array) OnFail(f func(number int, err error)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.onFail = f
}

func (a *Array) tell(n *news) {
	if len(n.gone) == 0 && len(n.stale) == 0 {
		return
	}
	a.mu.RLock()
	fail, stale := a.onFail, a.onStale
	a.mu.RUnlock()
	for _, z := range n.stale {
		if stale != nil {
			stale(z)
		}
	}
	for _, d := range n.gone {
		if fail != nil {
			fail(d.number, d.err)
		}
	}
}

// Fail takes the member out because of err, whatever that leaves: from now on it is as if missing.
// Calls under way on it may still end well, but none that is alone on it. If a set has no other
// place that can be read, the next Flush answers an error, because what was written there is not
// durable. A number that is not there, or is out already, is nothing.
func (a *Array) Fail(number int, err error) {
	var gone news
	a.mu.RLock()
	m := a.memberLocked(number)
	a.mu.RUnlock()
	if m != nil {
		a.takeOut(m, err, true, &gone)
	}
	a.tell(&gone)
}

// takeOut takes the member out if every set that it is a place of has another that can be read, or
// anyway if forced. Places on it that it has not made durable since they were written or reset are
// Stale then, where there is another.
func (a *Array) takeOut(m *member, err error, forced bool, gone *news) {
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
		if s.copiesLocked() == 0 {
			continue
		}
		for i := range s.places {
			if p := &s.places[i]; p.m == m && !p.Stale && p.touched >= m.durable {
				p.Stale = true
				gone.stale = append(gone.stale, z)
			}
		}
	}
	gone.gone = append(gone.gone, departure{m.number, err})
}

// spareLocked reports whether every set with a place on the member has another that can be read.
// It is linear in the sets, and asked only after failures.
func (a *Array) spareLocked(m *member) bool {
	for _, s := range a.sets {
		on, other := false, false
		for i := range s.places {
			p := &s.places[i]
			on = on || p.m == m
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
func (a *Array) suspect(m *member, err error, gone *news) {
	if refusal(err) || errors.Is(err, zone.ErrClosed) {
		return
	}
	a.mu.RLock()
	spare := !m.out.Load() && !a.closed && a.spareLocked(m)
	a.mu.RUnlock()
	if spare && a.flushMember(m) != nil {
		a.takeOut(m, err, false, gone)
	}
}

// settle looks at how a call went at its targets: it takes out members that are dead, and answers
// which targets took the call, the first error of a member that is still there, and whether a write
// pointer may have moved where it failed. Nil without any that took it cannot be: then the error is
// ErrZoneOffline.
func (a *Array) settle(op string, z int, ts []target, errs []error, gone *news) (took []target, moved bool, failed error) {
	for i, t := range ts {
		if errs[i] != nil {
			a.suspect(t.member, errs[i], gone)
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
