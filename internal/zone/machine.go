package zone

import (
	"fmt"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
)

// Machine is the zone state machine: which command is legal in which condition, what moves
// the write pointer, which limits hold. The memory device and the file device both run on
// it, so that there is one copy of the rules (reference/device-model 3 and 4). It does no
// I/O and keeps no data.
//
// A Machine is not safe for concurrent use: its owner holds one lock around every call and
// moves data outside it, between StartWrite or StartAppend and EndWrite. Every command is
// O(1); Report and PowerCycle are linear in the zones they look at.
//
// Refusals are errdefs errors of kind Device that wrap a sentinel, or InvalidArgument for a
// malformed call. A refused command changes nothing.
type Machine struct {
	geo       Geometry
	maxOpen   int // 0: no limit
	maxActive int
	changed   func(zone int)

	zones  []zoneState
	open   int
	active int
	oldest int32 // ends of the list of implicitly open zones, noZone if it is empty
	newest int32
	stats  Stats
}

const noZone = -1

type zoneState struct {
	data       int64 // end of what was written, from the zone's start
	resets     uint64
	inflight   []extent.Range // writes started and not ended
	prev, next int32          // neighbours in the list of implicitly open zones
	cond       Condition
	finished   bool // made Full by command: reads as zeros from data to the capacity
}

// NewMachine returns the machine of a new device: every sequential zone is Empty. changed,
// if not nil, is called with the owner's lock held whenever the recorded state of a zone
// (write pointer, condition) changes; the eviction of a zone by a command on another one is
// reported too. The error is that of Geometry.Validate.
func NewMachine(g Geometry, changed func(zone int)) (*Machine, error) {
	if err := g.Validate(); err != nil {
		return nil, err
	}
	if changed == nil {
		changed = func(int) {}
	}
	m := &Machine{
		geo: g, maxOpen: g.OpenLimit(), maxActive: g.ActiveLimit(), changed: changed,
		zones: make([]zoneState, g.Zones), oldest: noZone, newest: noZone,
	}
	for i := range m.zones {
		m.zones[i].prev, m.zones[i].next = noZone, noZone
		if g.IsSequential(i) {
			m.zones[i].cond = Empty
		}
	}
	return m, nil
}

// Geometry returns the geometry the machine was made with.
func (m *Machine) Geometry() Geometry { return m.geo }

// Stats returns the counters. Flushes are counted by CountFlush, for a flush has no rule.
func (m *Machine) Stats() Stats { return m.stats }

// CountFlush counts one successful flush.
func (m *Machine) CountFlush() { m.stats.Flushes++ }

// Zone describes one zone, which must exist.
func (m *Machine) Zone(zone int) Zone {
	s := &m.zones[zone]
	return Zone{
		Index: zone, Size: m.geo.SizeOf(zone), Capacity: m.geo.CapacityOf(zone),
		WP: m.wp(zone), Condition: s.cond, Resets: s.resets,
	}
}

// Report describes zones [first, first+n), fewer at the end of the device; n < 0 means all
// from first on.
func (m *Machine) Report(first, n int) ([]Zone, error) {
	if first < 0 || first > m.geo.Zones {
		return nil, m.noSuchZone("zone.Report", first)
	}
	if n < 0 || n > m.geo.Zones-first {
		n = m.geo.Zones - first
	}
	out := make([]Zone, n)
	for i := range out {
		out[i] = m.Zone(first + i)
	}
	return out, nil
}

// Written returns where the zone's written data ends and whether the zone was made Full by
// command. Together with the condition that is all there is to keep of a zone on media.
func (m *Machine) Written(zone int) (end int64, finished bool) {
	return m.zones[zone].data, m.zones[zone].finished
}

func (m *Machine) wp(zone int) int64 {
	s := &m.zones[zone]
	if s.cond == NotWP || s.finished {
		return m.geo.SizeOf(zone)
	}
	return s.data
}

// Open is the explicit open command. At the open limit it evicts the oldest implicitly open
// zone; an Empty zone needs a free active slot as well.
func (m *Machine) Open(zone int) error {
	const op = "zone.Open"
	s, err := m.sequential(op, zone)
	if err != nil {
		return err
	}
	switch s.cond {
	case ExplicitOpen:
	case ImplicitOpen:
		m.set(zone, ExplicitOpen)
	case Empty, Closed:
		if err := m.takeSlots(op, zone, ExplicitOpen); err != nil {
			return err
		}
	default:
		return m.illegal(op, zone)
	}
	m.stats.Opens++
	return nil
}

// Close is the close command: it gives the open slot back and, but for an SMR zone with
// nothing in it, keeps the active one.
func (m *Machine) Close(zone int) error {
	const op = "zone.CloseZone"
	s, err := m.sequential(op, zone)
	if err != nil {
		return err
	}
	switch s.cond {
	case Closed:
	case ImplicitOpen, ExplicitOpen:
		m.close(zone)
	default:
		return m.illegal(op, zone)
	}
	m.stats.Closes++
	return nil
}

// close makes an open zone Closed. ZBC makes it Empty when its write pointer is at the
// start; ZNS keeps it active.
func (m *Machine) close(zone int) {
	if m.geo.Dialect == SMR && m.zones[zone].data == 0 {
		m.set(zone, Empty)
		return
	}
	m.set(zone, Closed)
}

// Finish makes the zone Full. An Empty zone needs a free active and open slot for it and a
// Closed one a free open slot: the stricter of what drives do (null_blk).
func (m *Machine) Finish(zone int) error {
	const op = "zone.Finish"
	s, err := m.sequential(op, zone)
	if err != nil {
		return err
	}
	switch s.cond {
	case Full:
	case Empty, Closed:
		if err := m.takeSlots(op, zone, ImplicitOpen); err != nil {
			return err
		}
		fallthrough
	case ImplicitOpen, ExplicitOpen:
		s.finished = true
		m.set(zone, Full)
	default:
		return m.illegal(op, zone)
	}
	m.stats.Finishes++
	return nil
}

// Reset makes the zone Empty. The owner has let every read and write of the zone end first.
func (m *Machine) Reset(zone int) error {
	const op = "zone.Reset"
	s, err := m.sequential(op, zone)
	if err != nil {
		return err
	}
	switch s.cond {
	case Empty:
	case ImplicitOpen, ExplicitOpen, Closed, Full:
		s.data, s.finished, s.inflight = 0, false, s.inflight[:0]
		s.resets++
		m.set(zone, Empty)
	default:
		return m.illegal(op, zone)
	}
	m.stats.Resets++
	return nil
}

// takeSlots gives an Empty or Closed zone the slots that condition to needs and puts it in
// that condition. The active limit is looked at first, and an eviction frees no active slot.
func (m *Machine) takeSlots(op string, zone int, to Condition) error {
	if m.zones[zone].cond == Empty && m.maxActive > 0 && m.active >= m.maxActive {
		m.stats.RefusedTooManyActive++
		return m.refuse(op, zone, ErrTooManyActive)
	}
	if m.maxOpen > 0 && m.open >= m.maxOpen {
		if m.oldest == noZone {
			m.stats.RefusedTooManyOpen++
			return m.refuse(op, zone, ErrTooManyOpen)
		}
		m.stats.Evictions++
		m.close(int(m.oldest))
	}
	m.set(zone, to)
	m.stats.PeakOpen = max(m.stats.PeakOpen, m.open)
	m.stats.PeakActive = max(m.stats.PeakActive, m.active)
	return nil
}

// set changes the condition, and with it the counts and the list of eviction candidates.
func (m *Machine) set(zone int, to Condition) {
	s := &m.zones[zone]
	from := s.cond
	if from == ImplicitOpen {
		m.unlink(zone)
	}
	m.open += b2i(to.IsOpen()) - b2i(from.IsOpen())
	m.active += b2i(to.IsActive()) - b2i(from.IsActive())
	s.cond = to
	if to == ImplicitOpen {
		m.link(zone)
	}
	m.changed(zone)
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (m *Machine) link(zone int) {
	s := &m.zones[zone]
	s.prev, s.next = m.newest, noZone
	if m.newest != noZone {
		m.zones[m.newest].next = int32(zone)
	} else {
		m.oldest = int32(zone)
	}
	m.newest = int32(zone)
}

func (m *Machine) unlink(zone int) {
	s := &m.zones[zone]
	if s.prev != noZone {
		m.zones[s.prev].next = s.next
	} else {
		m.oldest = s.next
	}
	if s.next != noZone {
		m.zones[s.next].prev = s.prev
	} else {
		m.newest = s.prev
	}
	s.prev, s.next = noZone, noZone
}

// existing returns the state of a zone that exists.
func (m *Machine) existing(op string, zone int) (*zoneState, error) {
	if zone < 0 || zone >= len(m.zones) {
		return nil, m.noSuchZone(op, zone)
	}
	return &m.zones[zone], nil
}

// sequential returns the state of a zone that exists and has a write pointer.
func (m *Machine) sequential(op string, zone int) (*zoneState, error) {
	s, err := m.existing(op, zone)
	if err == nil && s.cond == NotWP {
		return nil, m.refuse(op, zone, ErrConventional)
	}
	return s, err
}

func (m *Machine) noSuchZone(op string, zone int) error {
	err := errdefs.Invalid(op, "zone", fmt.Sprintf("the device has zones 0..%d", m.geo.Zones-1))
	err.Object = object(zone)
	return err
}

// illegal refuses a command that the zone's condition forbids.
func (m *Machine) illegal(op string, zone int) error {
	switch m.zones[zone].cond {
	case ReadOnly:
		return m.refuse(op, zone, ErrZoneReadOnly)
	case Offline:
		return m.refuse(op, zone, ErrZoneOffline)
	}
	return m.refuse(op, zone, ErrInvalidTransition)
}

func (m *Machine) refuse(op string, zone int, cause error) error {
	reason := errdefs.ReasonDeviceIO
	if cause == ErrTooManyActive || cause == ErrTooManyOpen {
		reason = errdefs.ReasonActiveZones
	}
	return errdefs.Wrap(errdefs.Device, reason, op, object(zone), cause)
}

func object(zone int) string { return fmt.Sprintf("zone %d", zone) }
