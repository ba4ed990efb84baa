package zonetest

import (
	"math/rand/v2"

	"github.com/shingle-store/shingle/internal/zone"
)

var ioCases = []testCase{
	{"writes land at the write pointer", nil, func(s *suite) {
		a := s.first
		s.ok(s.dev.Write(a, 0, vec(fill(a, 0, 2, 0))))
		s.is(a, zone.ImplicitOpen, 2)
		s.ok(s.dev.Write(a, 2*blk, vec(fill(a, 2*blk, 1, 0))))
		if capacity := s.g.CapacityOf(a); capacity == 3*blk {
			s.is(a, zone.Full, 3)
		} else {
			s.is(a, zone.ImplicitOpen, 3)
		}
		s.holds(a, 0, 3, 0)
		s.holds(a, 1, 2, 0)
	}},
	{"a write off the write pointer changes nothing", nil, func(s *suite) {
		a := s.first
		s.refused(s.dev.Write(a, blk, vec(fill(a, 0, 1, 9))), zone.ErrUnalignedWrite)
		s.is(a, zone.Empty, 0)
		s.append(a, 4)
		for _, at := range []int64{0, 2, 3, 5} { // below, below and crossing, above
			s.refused(s.dev.Write(a, at*blk, vec(fill(a, 0, 2, 9))), zone.ErrUnalignedWrite)
		}
		s.is(a, zone.ImplicitOpen, 4)
		s.holds(a, 0, 4, 0)
	}},
	{"the write pointer is looked at before the boundary", nil, func(s *suite) {
		a := s.first
		huge := make([]byte, s.g.ZoneSize+blk)
		s.refused(s.dev.Write(a, blk, vec(huge)), zone.ErrUnalignedWrite)
		s.refused(s.dev.Write(a, 0, vec(huge)), zone.ErrBoundary)
		s.is(a, zone.Empty, 0)
	}},
	{"nothing crosses the capacity", nil, func(s *suite) {
		a := s.first
		capacity := int(s.g.CapacityOf(a) / blk)
		for s.zone(a).WP < int64(capacity-1)*blk {
			s.append(a, 1)
		}
		last := int64(capacity-1) * blk
		s.refused(s.dev.Write(a, last, vec(fill(a, last, 2, 9))), zone.ErrBoundary)
		_, err := s.dev.Append(a, vec(fill(a, last, 2, 9)))
		s.refused(err, zone.ErrBoundary)
		s.is(a, zone.ImplicitOpen, int64(capacity-1))
		s.append(a, 1)
		s.is(a, zone.Full, int64(capacity))
		s.holds(a, 0, capacity, 0)
	}},
	{"a full zone takes nothing", nil, func(s *suite) {
		a := s.first
		s.appendAll(a)
		end := s.g.CapacityOf(a)
		s.is(a, zone.Full, end/blk)
		s.refused(s.dev.Write(a, end, vec(fill(a, end, 1, 9))), zone.ErrZoneFull)
		s.refused(s.dev.Write(a, 0, vec(fill(a, 0, 1, 9))), zone.ErrZoneFull)
		_, err := s.dev.Append(a, vec(fill(a, end, 1, 9)))
		s.refused(err, zone.ErrZoneFull)
		s.holds(a, 0, int(end/blk), 0)
	}},
	{"the short last zone ends early", func(g zone.Geometry) bool { return g.LastZoneSize != 0 }, func(s *suite) {
		last := s.g.Zones - 1
		z := s.zone(last)
		if z.Size != s.g.LastZoneSize || z.Capacity != min(s.g.LastZoneSize, s.g.ZoneCapacity) {
			s.Fatalf("last zone is %+v", z)
		}
		s.appendAll(last)
		s.is(last, zone.Full, z.Capacity/blk)
		s.refused(s.read(last, int(z.Capacity/blk), 1), zone.ErrInvalidRead)
		s.refused(s.read(last, 0, int(z.Capacity/blk)+1), zone.ErrInvalidRead)
	}},
	{"malformed calls", nil, func(s *suite) {
		a := s.first
		one := vec(make([]byte, blk))
		for _, b := range [][][]byte{nil, {}, vec(nil), vec(make([]byte, 1)), vec(make([]byte, blk+512))} {
			s.malformed(s.dev.Write(a, 0, b))
			_, err := s.dev.Append(a, b)
			s.malformed(err)
		}
		for _, off := range []int64{-blk, -1, 1, 512, blk + 1} {
			s.malformed(s.dev.Write(a, off, one))
			s.malformed(s.dev.ReadAt(a, off, one[0]))
		}
		s.malformed(s.dev.ReadAt(a, 0, nil))
		s.malformed(s.dev.ReadAt(a, 0, make([]byte, 100)))
		for _, z := range []int{-1, s.g.Zones, 1 << 40} {
			_, err := s.dev.Append(z, one)
			s.malformed(err)
			_, err = s.dev.Report(z, 1)
			if z != s.g.Zones { // an empty report from the end on is well formed
				s.malformed(err)
			}
			for _, err := range []error{
				s.dev.Write(z, 0, one), s.dev.ReadAt(z, 0, one[0]),
				s.dev.Open(z), s.dev.CloseZone(z), s.dev.Finish(z), s.dev.Reset(z),
			} {
				s.malformed(err)
			}
		}
		s.is(a, zone.Empty, 0)
		if st := s.dev.Stats(); st != (zone.Stats{}) {
			s.Errorf("refused calls were counted: %+v", st)
		}
	}},
	{"the append limit", func(g zone.Geometry) bool { return g.AppendLimit > 0 }, func(s *suite) {
		a := s.first
		most := int(s.g.AppendLimit / blk)
		_, err := s.dev.Append(a, vec(fill(a, 0, most+1, 9)))
		s.refused(err, zone.ErrAppendTooLarge)
		s.is(a, zone.Empty, 0)
		s.append(a, most)
		s.ok(s.dev.Write(a, int64(most)*blk, vec(fill(a, int64(most)*blk, most+1, 0))))
		s.holds(a, 0, 2*most+1, 0)
	}},
	{"buffers of any shape", nil, func(s *suite) {
		a := s.first
		want := fill(a, 0, 3, 0)
		backing := append([]byte{0}, want...)[1:] // not on a block border
		for _, size := range []int{1, 8, 100, 4095, 4096, 5000} {
			s.ok(s.dev.Reset(a))
			bufs := [][]byte{nil}
			for rest := backing; len(rest) > 0; {
				n := min(size, len(rest))
				bufs, rest = append(bufs, rest[:n:n], nil), rest[n:]
			}
			before := len(bufs)
			_, err := s.dev.Append(a, bufs)
			s.ok(err)
			if len(bufs) != before || zone.TotalLen(bufs) != 3*blk {
				s.Fatal("the caller's vector was changed")
			}
			s.holds(a, 0, 3, 0)
			p := make([]byte, 2*blk+1)[1:]
			s.ok(s.dev.ReadAt(a, blk, p))
			if differ(p, want[blk:]) >= 0 {
				s.Fatal("a read to an odd address differs")
			}
		}
	}},
	{"buffers are the caller's again", nil, func(s *suite) {
		a := s.first
		b := fill(a, 0, 2, 0)
		_, err := s.dev.Append(a, vec(b))
		s.ok(err)
		clear(b)
		s.holds(a, 0, 2, 0)
	}},
	{"reads end at the write pointer", nil, func(s *suite) {
		a := s.first
		s.refused(s.read(a, 0, 1), zone.ErrInvalidRead)
		s.append(a, 2)
		s.ok(s.read(a, 0, 2))
		s.refused(s.read(a, 2, 1), zone.ErrInvalidRead)
		s.refused(s.read(a, 1, 2), zone.ErrInvalidRead)
		s.refused(s.read(a, int(s.g.ZoneSize/blk)+1, 1), zone.ErrInvalidRead)
		s.ok(s.dev.CloseZone(a))
		s.holds(a, 0, 2, 0)
		s.refused(s.read(a, 2, 1), zone.ErrInvalidRead)
		s.appendAll(a)
		capacity := int(s.g.CapacityOf(a) / blk)
		s.holds(a, 0, capacity, 0)
		s.refused(s.read(a, capacity, 1), zone.ErrInvalidRead)
		s.refused(s.read(a, 0, int(s.g.ZoneSize/blk)+1), zone.ErrInvalidRead) // into the next zone
	}},
	{"a finished zone reads as zeros where nothing was written", nil, func(s *suite) {
		a, b := s.first, s.first+1
		s.appendAll(a) // leave bytes behind that must not show
		s.ok(s.dev.Reset(a))
		s.append(a, 2)
		s.ok(s.dev.Finish(a))
		s.ok(s.dev.Finish(b))
		s.is(a, zone.Full, s.g.SizeOf(a)/blk)
		for _, z := range []int{a, b} {
			n := int(s.g.CapacityOf(z) / blk)
			p := fill(z, 0, n, 5)
			s.ok(s.dev.ReadAt(z, 0, p))
			want := make([]byte, n*blk)
			if z == a {
				copy(want, fill(a, 0, 2, 0))
			}
			if i := differ(p, want); i >= 0 {
				s.Fatalf("zone %d block %d is wrong", z, i)
			}
			s.ok(s.read(z, n-1, 1))
			s.refused(s.read(z, n, 1), zone.ErrInvalidRead)
		}
	}},
	{"a zone is written again after a reset", nil, func(s *suite) {
		a := s.first
		s.appendAll(a)
		s.ok(s.dev.Reset(a))
		s.refused(s.read(a, 0, 1), zone.ErrInvalidRead)
		s.ok(s.dev.Write(a, 0, vec(fill(a, 0, 2, 77))))
		s.holds(a, 0, 2, 77)
		s.refused(s.read(a, 2, 1), zone.ErrInvalidRead)
		if z := s.zone(a); z.Resets != 1 {
			s.Errorf("zone counts %d resets", z.Resets)
		}
	}},
	{"conventional zones", func(g zone.Geometry) bool { return g.Conventional > 0 }, func(s *suite) {
		const c = 0
		n := int(s.g.SizeOf(c) / blk)
		s.is(c, zone.NotWP, int64(n))
		p := fill(c, 0, n, 3)
		s.ok(s.dev.ReadAt(c, 0, p))
		if differ(p, make([]byte, n*blk)) >= 0 {
			s.Fatal("an unwritten conventional zone must read as zeros")
		}
		r := rand.New(rand.NewPCG(1, 1))
		model := make([]byte, n*blk)
		for i := range 60 {
			off := r.IntN(n)
			b := fill(c, int64(off)*blk, 1+r.IntN(n-off), uint64(i))
			s.ok(s.dev.Write(c, int64(off)*blk, vec(b)))
			copy(model[off*blk:], b)
		}
		s.ok(s.dev.ReadAt(c, 0, p))
		if i := differ(p, model); i >= 0 {
			s.Fatalf("block %d is wrong", i)
		}
		_, err := s.dev.Append(c, vec(p[:blk]))
		s.refused(err, zone.ErrConventional)
		for _, err := range []error{s.dev.Open(c), s.dev.CloseZone(c), s.dev.Finish(c), s.dev.Reset(c)} {
			s.refused(err, zone.ErrConventional)
		}
		end := int64(n-1) * blk
		border := s.first - 1
		s.refused(s.dev.Write(border, end, vec(p[:2*blk])), zone.ErrBoundary)
		s.refused(s.read(border, n-1, 2), zone.ErrInvalidRead)
		s.is(c, zone.NotWP, int64(n))
	}},
	{"reports", nil, func(s *suite) {
		all, err := s.dev.Report(0, -1)
		s.ok(err)
		if len(all) != s.g.Zones {
			s.Fatalf("report has %d zones", len(all))
		}
		usable := int64(0)
		for i, z := range all {
			want := zone.Zone{Index: i, Size: s.g.SizeOf(i), Capacity: s.g.CapacityOf(i), Condition: zone.Empty}
			if i < s.first {
				want.Condition, want.WP = zone.NotWP, z.Size
			}
			if z != want {
				s.Errorf("zone %d is %+v, want %+v", i, z, want)
			}
			usable += z.Capacity
		}
		if usable != s.g.UsableBytes() {
			s.Errorf("capacities add up to %d, UsableBytes is %d", usable, s.g.UsableBytes())
		}
		for _, c := range []struct{ first, n, want int }{{1, 2, 2}, {s.g.Zones - 1, 5, 1}, {s.g.Zones, 1, 0}, {2, 0, 0}} {
			r, err := s.dev.Report(c.first, c.n)
			s.ok(err)
			if len(r) != c.want || len(r) > 0 && r[0].Index != c.first {
				s.Errorf("Report(%d, %d) has %d zones", c.first, c.n, len(r))
			}
		}
		if s.dev.Geometry() != s.g {
			s.Errorf("geometry %+v", s.dev.Geometry())
		}
	}},
	{"counters", nil, func(s *suite) {
		a := s.first
		s.append(a, 2)
		s.ok(s.dev.Write(a, 2*blk, vec(fill(a, 2*blk, 1, 0))))
		s.ok(s.read(a, 0, 3))
		s.ok(s.dev.Open(a))
		s.ok(s.dev.CloseZone(a))
		s.ok(s.dev.Finish(a))
		s.ok(s.dev.Reset(a))
		s.ok(s.dev.Flush())
		want := zone.Stats{
			Reads: 1, ReadBytes: 3 * blk, Writes: 1, Appends: 1, WrittenBytes: 3 * blk, Flushes: 1, Opens: 1,
			Closes: 1, Finishes: 1, Resets: 1, ImplicitOpens: 1, PeakOpen: 1, PeakActive: 1,
		}
		if got := s.dev.Stats(); got != want {
			s.Errorf("got  %+v\nwant %+v", got, want)
		}
	}},
}
