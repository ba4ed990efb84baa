package zonetest

import (
	"errors"
	"testing"

	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/zone"
)

// blocks returns the byte ranges of blocks [pairs[0], pairs[1]), [pairs[2], pairs[3]), ...
func blocks(pairs ...int64) (out []extent.Range) {
	for i := 0; i < len(pairs); i += 2 {
		out = append(out, extent.Range{Off: pairs[i] * blk, End: pairs[i+1] * blk})
	}
	return out
}

// discarder skips the case on a device that has no such command.
func (s *suite) discarder() zone.Discarder {
	s.Helper()
	d, ok := s.dev.(zone.Discarder)
	if !ok {
		s.Skip("the device is no zone.Discarder")
	}
	return d
}

var discardCases = []testCase{
	{"discards", func(g zone.Geometry) bool { return g.Conventional > 0 }, func(s *suite) {
		d, c := s.discarder(), 0
		n := s.g.CapacityOf(c) / blk
		s.ok(d.Write(c, 0, vec(fill(c, 0, int(n), 0))))
		s.ok(d.Flush())
		s.ok(d.Discard(c, blocks(1, 3, 5, 6, 6, 8, n-1, n)))
		for _, keep := range blocks(0, 1, 3, 5, 8, n-1) {
			s.holds(c, int(keep.Off/blk), int(keep.End/blk), 0)
		}
		s.ok(s.read(c, 0, int(n))) // it means nothing, and is legal
		s.is(c, zone.NotWP, -1)
		s.ok(d.Write(c, 2*blk, vec(fill(c, 2*blk, 4, 9))))
		s.holds(c, 2, 6, 9)
		s.holds(c, 0, 1, 0)
		s.ok(d.Flush())
		s.holds(c, 2, 6, 9)
		s.ok(d.Discard(c, blocks(0, n)))
		st := d.Stats()
		if st.Discards != 2 || st.DiscardRanges != 5 || st.DiscardedBytes != uint64(6+n)*blk {
			s.Errorf("%d commands of %d ranges and %d bytes counted", st.Discards, st.DiscardRanges, st.DiscardedBytes)
		}
	}},
	{"refused discards", nil, func(s *suite) {
		d := s.discarder()
		s.append(s.first, 2)
		s.refused(d.Discard(s.first, blocks(0, 1)), zone.ErrInvalidTransition)
		s.holds(s.first, 0, 2, 0)
		s.malformed(d.Discard(-1, blocks(0, 1)))
		s.malformed(d.Discard(s.g.Zones, blocks(0, 1)))
		if s.first > 0 {
			n := s.g.CapacityOf(0) / blk
			s.ok(d.Write(0, 0, vec(fill(0, 0, int(n), 0))))
			s.malformed(d.Discard(0, nil))
			s.malformed(d.Discard(0, blocks(2, 2)))
			s.malformed(d.Discard(0, blocks(2, 1)))
			s.malformed(d.Discard(0, blocks(-1, 1)))
			s.malformed(d.Discard(0, []extent.Range{{Off: 0, End: 100}}))
			s.malformed(d.Discard(0, blocks(2, 4, 1, 2)))
			s.malformed(d.Discard(0, blocks(2, 4, 3, 5)))
			s.refused(d.Discard(0, blocks(0, 1, n, n+1)), zone.ErrBoundary)
			s.holds(0, 0, int(n), 0)
		}
		if st := d.Stats(); st.Discards != 0 || st.DiscardRanges != 0 || st.DiscardedBytes != 0 {
			s.Errorf("refused discards are counted: %+v", st)
		}
	}},
	{"releases", nil, func(s *suite) {
		d, a := s.discarder(), s.first
		s.ok(d.Release(a)) // never written
		s.append(a, 2)
		s.refused(d.Release(a), zone.ErrInvalidTransition)
		s.holds(a, 0, 2, 0)
		s.ok(d.Finish(a))
		s.refused(d.Release(a), zone.ErrInvalidTransition)
		s.ok(d.Reset(a))
		s.ok(d.Release(a))
		s.ok(d.Release(a))
		s.is(a, zone.Empty, 0)
		s.refused(s.read(a, 0, 1), zone.ErrInvalidRead)
		s.append(a, 2)
		s.append(a, 1)
		s.ok(d.Flush())
		s.holds(a, 0, 2, 0)
		s.holds(a, 2, 3, 0)
		s.ok(d.Reset(a))
		s.ok(d.Open(a))
		s.refused(d.Release(a), zone.ErrInvalidTransition)
		s.append(a, 1)
		s.malformed(d.Release(-1))
		s.malformed(d.Release(s.g.Zones))
		if s.first > 0 {
			s.refused(d.Release(0), zone.ErrConventional)
		}
		if st := d.Stats(); st.Releases != 3 {
			s.Errorf("%d releases counted", st.Releases)
		}
	}},
	{"failed zones are not released", nil, func(s *suite) {
		d := s.discarder()
		ro, off := s.first, s.first+1
		if !s.into(ro, zone.ReadOnly) {
			s.Skip("the device cannot fail a zone on demand")
		}
		s.into(off, zone.Offline)
		s.refused(d.Release(ro), zone.ErrZoneReadOnly)
		s.refused(d.Release(off), zone.ErrZoneOffline)
		s.holds(ro, 0, 2, 0)
	}},
}

// closesDiscarder checks that a closed device discards nothing.
func closesDiscarder(t *testing.T, dev zone.Device, g zone.Geometry) {
	d, ok := dev.(zone.Discarder)
	if !ok {
		return
	}
	for what, err := range map[string]error{"Discard": d.Discard(0, blocks(0, 1)), "Release": d.Release(g.Zones - 1)} {
		if !errors.Is(err, zone.ErrClosed) {
			t.Errorf("%s after Close: %v, want %v", what, err, zone.ErrClosed)
		}
	}
}
