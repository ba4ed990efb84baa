package array

import (
	"cmp"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/zone"
)

// Member is a device of the array. A nil Device is missing: nothing on it is read or written.
type Member struct {
	Number int // the device number in the store; not negative
	Device zone.Device
}

// MemberState says how a member is.
type MemberState struct {
	Number  int
	Present bool  // a device was given and not taken out
	Failed  bool  // it was taken out
	Err     error // why; nil unless Failed
	// Geometry is the device's own, and Stats its counters; both zero if it was missing from the
	// start. Those of a failed one are what it still answers.
	Geometry zone.Geometry
	Stats    zone.Stats
}

// member is a device of the array. number and geo never change; dev is set once (AddMember); the
// rest is guarded by Array.mu.
type member struct {
	number int
	dev    zone.Device // nil: missing
	geo    zone.Geometry

	named    atomic.Bool   // there are others: errors say which
	reads    atomic.Int64  // under way
	out      atomic.Bool   // taken out; set with Array.mu held, never cleared
	flushing chan struct{} // holds a token while the device flushes

	err      error  // why it is out
	flushes  uint64 // flushes begun, plus 1
	durable  uint64 // the last of them that ended well: a place touched before it is durable
	failures uint64 // flushes that failed
	told     uint64 // so many of them were answered by a Flush of the array
	inARow   int    // flushes that failed since one ended well
	flushErr error  // of the last that failed
}

func (a *Array) memberLocked(number int) *member {
	for _, m := range a.members {
		if m.number == number {
			return m
		}
	}
	return nil
}

// presentLocked are the members that are there.
func (a *Array) presentLocked() []*member {
	ms := make([]*member, 0, len(a.members))
	for _, m := range a.members {
		if m.dev != nil && !m.out.Load() {
			ms = append(ms, m)
		}
	}
	return ms
}

// addLocked admits a member with a number that is not there yet, or replaces one that is missing.
func (a *Array) addLocked(op string, n Member) error {
	if n.Number < 0 {
		return errdefs.Invalid(op, "Number", fmt.Sprintf("device number %d is negative", n.Number))
	}
	m := &member{number: n.Number, dev: n.Device, flushing: make(chan struct{}, 1), flushes: 1, durable: 1}
	if n.Device != nil {
		m.geo = n.Device.Geometry()
	}
	for _, o := range a.members {
		switch {
		case o.dev == nil || m.dev == nil:
		case o.geo.ZoneSize != m.geo.ZoneSize:
			return mismatch(op, fmt.Sprintf("device %d has zones of %d bytes and device %d of %d: the devices of a store need zones of one size",
				m.number, m.geo.ZoneSize, o.number, o.geo.ZoneSize))
		case o.geo.Dialect != m.geo.Dialect:
			return mismatch(op, fmt.Sprintf("device %d is %v and device %d is %v: the devices of a store are of one kind",
				m.number, m.geo.Dialect, o.number, o.geo.Dialect))
		}
	}
	a.members = append(a.members, m)
	slices.SortFunc(a.members, func(x, y *member) int { return cmp.Compare(x.number, y.number) })
	for _, o := range a.members {
		o.named.Store(len(a.members) > 1)
	}
	return nil
}

// AddMember takes a device in: a new number, on which no set has a place yet, or that of a member
// that was missing, whose places that are not Stale are then read again; torn sets are found when
// they are next asked for or written. Geometry is worked out anew. A number that is there, or has
// failed, and what New refuses, are Precondition errors.
func (a *Array) AddMember(n Member) error {
	const op = "array.AddMember"
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return errdefs.Wrap(errdefs.Device, errdefs.ReasonDeviceIO, op, "", zone.ErrClosed)
	}
	before := slices.Clone(a.members)
	switch old := a.memberLocked(n.Number); {
	case old == nil:
	case old.out.Load():
		return mismatch(op, fmt.Sprintf("device %d failed in this run: it can come back when the store is opened again", n.Number))
	case old.dev != nil || n.Device == nil:
		return mismatch(op, fmt.Sprintf("there is a device %d already", n.Number))
	default:
		a.members = slices.DeleteFunc(a.members, func(m *member) bool { return m == old })
	}
	err := a.addLocked(op, n)
	if err == nil {
		a.resolveLocked(n.Number)
		err = a.reshapeLocked(op)
	}
	if err != nil {
		a.members = before
		a.resolveLocked(n.Number)
	}
	return err
}

// resolveLocked points places on the member of that number to it, and makes their sets unknown.
func (a *Array) resolveLocked(number int) {
	m := a.memberLocked(number)
	for _, s := range a.sets {
		for i := range s.places {
			if p := &s.places[i]; p.Device == number {
				p.m, s.known = m, false
			}
		}
	}
}

// RemoveMember lets a member go, and returns its device, nil if it was missing, which is the
// caller's to close. Its counters stay in Stats. A member on which a set has a place is a
// Precondition error. No call on the device may be under way: that is so once the sets have other
// places and the calls made before that have returned.
func (a *Array) RemoveMember(number int) (zone.Device, error) {
	const op = "array.RemoveMember"
	a.mu.Lock()
	m := a.memberLocked(number)
	if m == nil {
		a.mu.Unlock()
		return nil, errdefs.New(errdefs.NotFound, "", op, fmt.Sprintf("device %d", number), "there is no such device")
	}
	used := 0
	for _, s := range a.sets {
		if slices.ContainsFunc(s.places, func(p place) bool { return p.Device == number }) {
			used++
		}
	}
	if used > 0 {
		a.mu.Unlock()
		return nil, errdefs.New(errdefs.Precondition, errdefs.ReasonPrecondition, op, fmt.Sprintf("device %d", number),
			fmt.Sprintf("%d zones of the store have a copy there: move them away first", used))
	}
	a.members = slices.DeleteFunc(a.members, func(o *member) bool { return o == m })
	a.mu.Unlock()
	if m.dev == nil {
		return nil, nil
	}
	st := m.dev.Stats()
	a.mu.Lock()
	addStats(&a.removed, st)
	a.mu.Unlock()
	return m.dev, nil
}

// Members says how each member is, in ascending order of number.
func (a *Array) Members() []MemberState {
	a.mu.RLock()
	ms := slices.Clone(a.members)
	out := make([]MemberState, len(ms))
	for i, m := range ms {
		failed := m.out.Load()
		out[i] = MemberState{
			Number: m.number, Present: m.dev != nil && !failed, Failed: failed, Err: m.err, Geometry: m.geo,
		}
	}
	a.mu.RUnlock()
	for i, m := range ms {
		if m.dev != nil {
			out[i].Stats = m.dev.Stats()
		}
	}
	return out
}

// Member returns the device of that number, nil if it is missing or failed. It is for what lies
// outside the sets, labels and reports of unused zones: whoever writes to a zone of a set through
// it leaves the array wrong about it.
func (a *Array) Member(number int) zone.Device {
	a.mu.RLock()
	defer a.mu.RUnlock()
	if m := a.memberLocked(number); m != nil && m.dev != nil && !m.out.Load() {
		return m.dev
	}
	return nil
}

// Stats implements zone.Device: the sums of what the members counted, by commands to them, those
// that were removed included; of the peaks the largest.
func (a *Array) Stats() zone.Stats {
	a.mu.RLock()
	ms, sum := slices.Clone(a.members), a.removed
	a.mu.RUnlock()
	for _, m := range ms {
		if m.dev != nil {
			addStats(&sum, m.dev.Stats())
		}
	}
	return sum
}

func addStats(sum *zone.Stats, st zone.Stats) {
	sum.Reads += st.Reads
	sum.ReadBytes += st.ReadBytes
	sum.Writes += st.Writes
	sum.Appends += st.Appends
	sum.WrittenBytes += st.WrittenBytes
	sum.Flushes += st.Flushes
	sum.Opens += st.Opens
	sum.Closes += st.Closes
	sum.Finishes += st.Finishes
	sum.Resets += st.Resets
	sum.Evictions += st.Evictions
	sum.ImplicitOpens += st.ImplicitOpens
	sum.Discards += st.Discards
	sum.DiscardRanges += st.DiscardRanges
	sum.DiscardedBytes += st.DiscardedBytes
	sum.Releases += st.Releases
	sum.PeakOpen = max(sum.PeakOpen, st.PeakOpen)
	sum.PeakActive = max(sum.PeakActive, st.PeakActive)
	sum.RefusedTooManyOpen += st.RefusedTooManyOpen
	sum.RefusedTooManyActive += st.RefusedTooManyActive
}

// Close implements zone.Device: it closes the devices of all members, failed ones too, and answers
// the first error.
func (a *Array) Close() error {
	const op = "zone.Close"
	a.mu.Lock()
	closed, ms := a.closed, slices.Clone(a.members)
	a.closed = true
	a.mu.Unlock()
	if closed {
		return errdefs.Wrap(errdefs.Device, errdefs.ReasonDeviceIO, op, "", zone.ErrClosed)
	}
	var first error
	for _, m := range ms {
		if m.dev == nil {
			continue
		}
		if err := m.dev.Close(); err != nil && first == nil {
			first = m.name(err)
		}
	}
	return first
}

// name says which device an error is of, if there are several; its kind and cause stay.
func (m *member) name(err error) error {
	if !m.named.Load() {
		return err
	}
	return fmt.Errorf("device %d: %w", m.number, err)
}
