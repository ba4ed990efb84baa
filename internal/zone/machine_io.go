package zone

import (
	"fmt"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
)

// StartWrite admits a write of n bytes at off and, in a sequential zone, moves the write
// pointer over them. The order of the checks is QEMU's: condition, write pointer, boundary,
// then slots. The owner moves the data with its lock released and then calls EndWrite, also
// if the transfer failed: the write pointer stays where it is.
func (m *Machine) StartWrite(zone int, off, n int64) error {
	const op = "zone.Write"
	s, err := m.existing(op, zone)
	if err != nil {
		return err
	}
	if err := m.wellFormed(op, zone, off, n); err != nil {
		return err
	}
	if err := m.writable(op, zone); err != nil {
		return err
	}
	if s.cond != NotWP && off != s.data {
		return m.refuse(op, zone, ErrUnalignedWrite)
	}
	if err := m.advance(op, zone, off, n); err != nil {
		return err
	}
	m.stats.Writes++
	return nil
}

// StartAppend admits an append of n bytes, moves the write pointer over them and returns
// where they go. EndWrite follows as after StartWrite.
func (m *Machine) StartAppend(zone int, n int64) (off int64, err error) {
	const op = "zone.Append"
	s, err := m.sequential(op, zone)
	if err != nil {
		return 0, err
	}
	if err := m.wellFormed(op, zone, 0, n); err != nil {
		return 0, err
	}
	if m.geo.AppendLimit > 0 && n > m.geo.AppendLimit {
		return 0, m.refuse(op, zone, ErrAppendTooLarge)
	}
	if err := m.writable(op, zone); err != nil {
		return 0, err
	}
	off = s.data
	if err := m.advance(op, zone, off, n); err != nil {
		return 0, err
	}
	m.stats.Appends++
	return off, nil
}

// writable refuses conditions that take no writes.
func (m *Machine) writable(op string, zone int) error {
	switch m.zones[zone].cond {
	case Full:
		return m.refuse(op, zone, ErrZoneFull)
	case ReadOnly, Offline:
		return m.illegal(op, zone)
	}
	return nil
}

// advance is what writes and appends have in common once off is known to be right.
func (m *Machine) advance(op string, zone int, off, n int64) error {
	s := &m.zones[zone]
	if n > m.geo.CapacityOf(zone)-off {
		return m.refuse(op, zone, ErrBoundary)
	}
	if s.cond == Empty || s.cond == Closed {
		if err := m.takeSlots(op, zone, ImplicitOpen); err != nil {
			return err
		}
		m.stats.ImplicitOpens++
	}
	m.stats.WrittenBytes += uint64(n)
	if s.cond == NotWP {
		m.changed(zone)
		return nil
	}
	s.data += n
	s.inflight = append(s.inflight, extent.Range{Off: off, End: off + n})
	if s.data == m.geo.CapacityOf(zone) {
		m.set(zone, Full)
	} else {
		m.changed(zone)
	}
	return nil
}

// EndWrite ends the transfer that StartWrite or StartAppend admitted at off. From now on the
// range can be read.
func (m *Machine) EndWrite(zone int, off int64) {
	s := &m.zones[zone]
	for i, r := range s.inflight {
		if r.Off == off {
			last := len(s.inflight) - 1
			s.inflight[i] = s.inflight[last]
			s.inflight = s.inflight[:last]
			return
		}
	}
}

// CheckRead admits a read of n bytes at off and returns how many of them, from the first on,
// were ever written; the rest, which only a finished zone has, reads as zeros. A range that
// a write not yet acknowledged covers cannot be read: nobody can know of it.
func (m *Machine) CheckRead(zone int, off, n int64) (written int64, err error) {
	const op = "zone.ReadAt"
	s, err := m.existing(op, zone)
	if err != nil {
		return 0, err
	}
	if err := m.wellFormed(op, zone, off, n); err != nil {
		return 0, err
	}
	if s.cond == Offline {
		return 0, m.refuse(op, zone, ErrZoneOffline)
	}
	end := s.data
	if s.cond == NotWP || s.finished {
		end = m.geo.CapacityOf(zone)
	}
	if off >= end || n > end-off {
		return 0, m.refuse(op, zone, ErrInvalidRead)
	}
	r := extent.Range{Off: off, End: off + n}
	for _, w := range s.inflight {
		if r.Intersect(w).Len() > 0 {
			return 0, m.refuse(op, zone, ErrInvalidRead)
		}
	}
	m.stats.Reads++
	m.stats.ReadBytes += uint64(n)
	if s.cond == NotWP {
		return n, nil
	}
	return r.Intersect(extent.Range{Off: 0, End: s.data}).Len(), nil
}

// wellFormed refuses offsets and lengths that no device could take.
func (m *Machine) wellFormed(op string, zone int, off, n int64) error {
	field, msg := "", ""
	switch {
	case off < 0 || off%extent.BlockSize != 0:
		field, msg = "off", fmt.Sprintf("offset %d is no multiple of %d", off, extent.BlockSize)
	case n <= 0 || n%extent.BlockSize != 0:
		field, msg = "len", fmt.Sprintf("length %d is no positive multiple of %d", n, extent.BlockSize)
	default:
		return nil
	}
	err := errdefs.Invalid(op, field, msg)
	err.Object = object(zone)
	return err
}

// SetCondition turns a sequential zone ReadOnly or Offline, as a failing drive does by
// itself. What was written stays where it is; slots are given back. Other conditions, and
// the way back from Offline, are refused: neither returns to service.
func (m *Machine) SetCondition(zone int, to Condition) error {
	const op = "zone.SetCondition"
	s, err := m.sequential(op, zone)
	if err != nil {
		return err
	}
	if to != ReadOnly && to != Offline || s.cond == Offline {
		return m.refuse(op, zone, ErrInvalidTransition)
	}
	m.set(zone, to)
	return nil
}

// PowerCycle does to every zone what a loss of power does: nothing stays open. An open zone
// is Closed, still active, or Empty if nothing was written to it.
func (m *Machine) PowerCycle() {
	for i := range m.zones {
		s := &m.zones[i]
		s.inflight = nil
		if s.cond.IsActive() {
			m.set(i, afterPowerLoss(s.cond, s.data))
		}
	}
}

func afterPowerLoss(c Condition, data int64) Condition {
	switch {
	case !c.IsActive():
		return c
	case data == 0:
		return Empty
	}
	return Closed
}

// Restore puts a zone in a recorded state: data written up to end, finished or not, in the
// given condition, which is corrected to what it can be after a restart (PowerCycle) and to
// what end says (Empty at 0, Full at the capacity). It is for devices that are being opened;
// limits are not checked. A state that no history leads to is a Corruption error.
func (m *Machine) Restore(zone int, end int64, finished bool, c Condition) error {
	const op = "zone.Restore"
	s, err := m.existing(op, zone)
	if err != nil {
		return err
	}
	corrupt := func(msg string) error {
		return errdefs.New(errdefs.Corruption, errdefs.ReasonCorruption, op, object(zone), msg)
	}
	capacity := m.geo.CapacityOf(zone)
	switch {
	case (s.cond == NotWP) != (c == NotWP) || c > Offline:
		return corrupt(fmt.Sprintf("recorded condition %v does not fit the zone", c))
	case c == NotWP:
		return nil
	case end < 0 || end > capacity || end%extent.BlockSize != 0:
		return corrupt(fmt.Sprintf("recorded end of data %d is outside 0..%d or no whole block", end, capacity))
	case c == Full && !finished && end != capacity:
		return corrupt(fmt.Sprintf("recorded full with %d of %d bytes and not finished", end, capacity))
	case finished && c != Full && c != ReadOnly && c != Offline:
		return corrupt(fmt.Sprintf("recorded finished and %v", c))
	}
	switch {
	case c == ReadOnly || c == Offline:
	case finished || end == capacity:
		c = Full
	case end == 0:
		c = Empty
	default:
		c = Closed
	}
	s.data, s.finished, s.inflight = end, finished, nil
	m.set(zone, c)
	return nil
}
