package zonetest

import (
	"github.com/shingle-store/shingle/internal/zone"
)

// conditionSetter is how a device that can fail zones on demand says so.
type conditionSetter interface {
	SetCondition(zone int, c zone.Condition) error
}

// into puts an Empty zone in condition c with two blocks in it, none for Empty. It reports
// false if the device has no way to get there.
func (s *suite) into(z int, c zone.Condition) bool {
	s.Helper()
	if c != zone.Empty {
		s.append(z, 2)
	}
	switch c {
	case zone.ExplicitOpen:
		s.ok(s.dev.Open(z))
	case zone.Closed:
		s.ok(s.dev.CloseZone(z))
	case zone.Full:
		s.ok(s.dev.Finish(z))
	case zone.ReadOnly, zone.Offline:
		f, ok := s.dev.(conditionSetter)
		if !ok {
			return false
		}
		s.ok(f.SetCondition(z, c))
	}
	s.is(z, c, -1)
	return true
}

// transition is one cell of the table in reference/device-model 3.
type transition struct {
	to  zone.Condition
	err error
}

var commands = []struct {
	name string
	run  func(zone.Device, int) error
	want map[zone.Condition]transition
}{
	{"open", zone.Device.Open, map[zone.Condition]transition{
		zone.Empty: {zone.ExplicitOpen, nil}, zone.ImplicitOpen: {zone.ExplicitOpen, nil},
		zone.ExplicitOpen: {zone.ExplicitOpen, nil}, zone.Closed: {zone.ExplicitOpen, nil},
		zone.Full:     {zone.Full, zone.ErrInvalidTransition},
		zone.ReadOnly: {zone.ReadOnly, zone.ErrZoneReadOnly}, zone.Offline: {zone.Offline, zone.ErrZoneOffline},
	}},
	{"close", zone.Device.CloseZone, map[zone.Condition]transition{
		zone.Empty: {zone.Empty, zone.ErrInvalidTransition}, zone.ImplicitOpen: {zone.Closed, nil},
		zone.ExplicitOpen: {zone.Closed, nil}, zone.Closed: {zone.Closed, nil},
		zone.Full:     {zone.Full, zone.ErrInvalidTransition},
		zone.ReadOnly: {zone.ReadOnly, zone.ErrZoneReadOnly}, zone.Offline: {zone.Offline, zone.ErrZoneOffline},
	}},
	{"finish", zone.Device.Finish, map[zone.Condition]transition{
		zone.Empty: {zone.Full, nil}, zone.ImplicitOpen: {zone.Full, nil},
		zone.ExplicitOpen: {zone.Full, nil}, zone.Closed: {zone.Full, nil}, zone.Full: {zone.Full, nil},
		zone.ReadOnly: {zone.ReadOnly, zone.ErrZoneReadOnly}, zone.Offline: {zone.Offline, zone.ErrZoneOffline},
	}},
	{"reset", zone.Device.Reset, map[zone.Condition]transition{
		zone.Empty: {zone.Empty, nil}, zone.ImplicitOpen: {zone.Empty, nil},
		zone.ExplicitOpen: {zone.Empty, nil}, zone.Closed: {zone.Empty, nil}, zone.Full: {zone.Empty, nil},
		zone.ReadOnly: {zone.ReadOnly, zone.ErrZoneReadOnly}, zone.Offline: {zone.Offline, zone.ErrZoneOffline},
	}},
	{"write", writeOne, map[zone.Condition]transition{
		zone.Empty: {zone.ImplicitOpen, nil}, zone.ImplicitOpen: {zone.ImplicitOpen, nil},
		zone.ExplicitOpen: {zone.ExplicitOpen, nil}, zone.Closed: {zone.ImplicitOpen, nil},
		zone.Full:     {zone.Full, zone.ErrZoneFull},
		zone.ReadOnly: {zone.ReadOnly, zone.ErrZoneReadOnly}, zone.Offline: {zone.Offline, zone.ErrZoneOffline},
	}},
	{"append", appendOne, map[zone.Condition]transition{
		zone.Empty: {zone.ImplicitOpen, nil}, zone.ImplicitOpen: {zone.ImplicitOpen, nil},
		zone.ExplicitOpen: {zone.ExplicitOpen, nil}, zone.Closed: {zone.ImplicitOpen, nil},
		zone.Full:     {zone.Full, zone.ErrZoneFull},
		zone.ReadOnly: {zone.ReadOnly, zone.ErrZoneReadOnly}, zone.Offline: {zone.Offline, zone.ErrZoneOffline},
	}},
}

func writeOne(d zone.Device, z int) error {
	r, err := d.Report(z, 1)
	if err != nil {
		return err
	}
	return d.Write(z, r[0].WP, vec(fill(z, r[0].WP, 1, 0)))
}

func appendOne(d zone.Device, z int) error {
	_, err := d.Append(z, vec(fill(z, 0, 1, 0)))
	return err
}

var commandCases = []testCase{
	{"every command in every condition", nil, func(s *suite) {
		z := s.first
		for _, cmd := range commands {
			for _, c := range []zone.Condition{zone.Empty, zone.ImplicitOpen, zone.ExplicitOpen, zone.Closed, zone.Full} {
				s.ok(s.dev.Reset(z))
				s.into(z, c)
				s.cell(cmd.name, z, c, cmd.run(s.dev, z), cmd.want[c])
			}
		}
	}},
	{"failed zones", nil, func(s *suite) {
		ro, off := s.first, s.first+1
		if !s.into(ro, zone.ReadOnly) {
			s.Skip("the device cannot fail a zone on demand")
		}
		s.into(off, zone.Offline)
		for _, cmd := range commands {
			s.cell(cmd.name, ro, zone.ReadOnly, cmd.run(s.dev, ro), cmd.want[zone.ReadOnly])
			s.cell(cmd.name, off, zone.Offline, cmd.run(s.dev, off), cmd.want[zone.Offline])
		}
		s.holds(ro, 0, 2, 0)
		s.refused(s.read(ro, 1, 2), zone.ErrInvalidRead)
		s.refused(s.read(off, 0, 1), zone.ErrZoneOffline)
		f := s.dev.(conditionSetter)
		s.refused(f.SetCondition(off, zone.ReadOnly), zone.ErrInvalidTransition)
		s.refused(f.SetCondition(ro, zone.Empty), zone.ErrInvalidTransition)
		s.ok(f.SetCondition(ro, zone.Offline))
	}},
	{"a failing zone gives its slots back", func(g zone.Geometry) bool { return g.ActiveLimit() > 0 }, func(s *suite) {
		f, ok := s.dev.(conditionSetter)
		if !ok {
			s.Skip("the device cannot fail a zone on demand")
		}
		s.fillActive()
		next := s.first + s.g.ActiveLimit()
		s.refused(appendOne(s.dev, next), zone.ErrTooManyActive)
		s.ok(f.SetCondition(s.first, zone.ReadOnly))
		s.append(next, 1)
	}},
	{"closing with nothing written", nil, func(s *suite) {
		a := s.first
		s.ok(s.dev.Open(a))
		s.is(a, zone.ExplicitOpen, 0)
		s.ok(s.dev.CloseZone(a))
		want := zone.Closed
		if s.g.Dialect == zone.SMR {
			want = zone.Empty
		}
		s.is(a, want, 0)
		s.refused(s.read(a, 0, 1), zone.ErrInvalidRead)
	}},
	{"a double reset", nil, func(s *suite) {
		a := s.first
		s.append(a, 1)
		s.ok(s.dev.Reset(a))
		s.ok(s.dev.Reset(a))
		s.is(a, zone.Empty, 0)
		if z := s.zone(a); z.Resets != 1 {
			s.Errorf("a reset of an empty zone was counted for it: %d", z.Resets)
		}
		if st := s.dev.Stats(); st.Resets != 2 {
			s.Errorf("%d reset commands counted", st.Resets)
		}
	}},
	{"a flush changes no condition", nil, func(s *suite) {
		a := s.first
		s.ok(s.dev.Open(a))
		s.append(a, 1)
		s.ok(s.dev.Flush())
		s.ok(s.dev.Flush())
		s.is(a, zone.ExplicitOpen, 1)
	}},
}

// cell checks the outcome of one command.
func (s *suite) cell(cmd string, z int, from zone.Condition, err error, want transition) {
	s.Helper()
	if want.err == nil && err != nil {
		s.Fatalf("%s of a zone that is %v: %v", cmd, from, err)
	}
	if want.err != nil {
		s.refused(err, want.err)
	}
	if got := s.zone(z).Condition; got != want.to {
		s.Fatalf("%s of a zone that is %v made it %v, want %v", cmd, from, got, want.to)
	}
}

// fillActive writes a block to as many zones as may be active.
func (s *suite) fillActive() {
	s.Helper()
	for i := range s.g.ActiveLimit() {
		s.append(s.first+i, 1)
	}
}
