package zonetest

import (
	"github.com/shingle-store/shingle/internal/zone"
)

func hasActiveLimit(g zone.Geometry) bool { return g.ActiveLimit() > 0 }

func hasOpenLimit(g zone.Geometry) bool { return g.OpenLimit() > 0 }

// canEvict: the open limit can be met with an active slot to spare.
func canEvict(g zone.Geometry) bool {
	return g.OpenLimit() > 0 && (g.ActiveLimit() == 0 || g.ActiveLimit() > g.OpenLimit())
}

var limitCases = []testCase{
	{"limits that every zone fits in are not enforced", func(g zone.Geometry) bool {
		return g.OpenLimit() == 0 && g.ActiveLimit() == 0
	}, func(s *suite) {
		for z := s.first; z < s.g.Zones; z++ {
			s.ok(s.dev.Open(z))
			s.is(z, zone.ExplicitOpen, 0)
		}
	}},
	{"explicitly open zones are not evicted", canEvict, func(s *suite) {
		limit := s.g.OpenLimit()
		for i := range limit {
			s.ok(s.dev.Open(s.first + i))
		}
		next := s.first + limit
		s.refused(s.dev.Open(next), zone.ErrTooManyOpen)
		s.refused(appendOne(s.dev, next), zone.ErrTooManyOpen)
		s.refused(writeOne(s.dev, next), zone.ErrTooManyOpen)
		s.refused(s.dev.Finish(next), zone.ErrTooManyOpen)
		s.is(next, zone.Empty, 0)
		st := s.dev.Stats()
		if st.RefusedTooManyOpen != 4 || st.Evictions != 0 || st.PeakOpen != limit {
			s.Errorf("counters %+v", st)
		}
		s.append(s.first, 1)
		s.ok(s.dev.CloseZone(s.first))
		s.append(next, 1)
		s.ok(s.dev.Open(s.first)) // evicts next
		s.is(next, zone.Closed, 1)
	}},
	{"the oldest implicitly open zone is evicted", canEvict, func(s *suite) {
		limit := s.g.OpenLimit()
		for i := range limit {
			s.append(s.first+i, 1)
		}
		if limit > 1 {
			s.append(s.first, 1) // written again, but no younger for it
		}
		next := s.first + limit
		s.append(next, 1)
		s.is(s.first, zone.Closed, -1)
		for i := 1; i <= limit; i++ {
			s.is(s.first+i, zone.ImplicitOpen, 1)
		}
		s.append(s.first, 1) // reopened by a write, at the cost of the next oldest
		s.is(s.first, zone.ImplicitOpen, -1)
		s.is(s.first+1, zone.Closed, 1)
		if st := s.dev.Stats(); st.Evictions != 2 || st.PeakOpen != limit || st.PeakActive != limit+1 {
			s.Errorf("counters %+v", st)
		}
	}},
	{"an explicit open evicts too and is not evicted", func(g zone.Geometry) bool {
		return canEvict(g) && g.OpenLimit() > 1
	}, func(s *suite) {
		limit := s.g.OpenLimit()
		for i := range limit {
			s.append(s.first+i, 1)
		}
		s.ok(s.dev.Open(s.first)) // takes no new slot
		s.is(s.first, zone.ExplicitOpen, 1)
		next := s.first + limit
		s.ok(s.dev.Open(next))
		s.is(s.first, zone.ExplicitOpen, 1)
		s.is(s.first+1, zone.Closed, 1)
		s.is(next, zone.ExplicitOpen, 0)
	}},
	{"eviction frees no active slot", hasActiveLimit, func(s *suite) {
		s.fillActive()
		limit := s.g.ActiveLimit()
		before := s.dev.Stats()
		next := s.first + limit
		s.refused(appendOne(s.dev, next), zone.ErrTooManyActive)
		s.refused(writeOne(s.dev, next), zone.ErrTooManyActive)
		s.refused(s.dev.Open(next), zone.ErrTooManyActive)
		s.refused(s.dev.Finish(next), zone.ErrTooManyActive)
		s.is(next, zone.Empty, 0)
		after := s.dev.Stats()
		if after.Evictions != before.Evictions || after.RefusedTooManyActive != 4 || after.PeakActive != limit {
			s.Errorf("counters %+v", after)
		}
		s.ok(s.dev.CloseZone(s.first + limit - 1)) // closing does not free one either
		s.refused(appendOne(s.dev, next), zone.ErrTooManyActive)
		s.append(s.first+limit-1, 1) // a closed zone reopens at the limit
	}},
	{"what frees an active slot", hasActiveLimit, func(s *suite) {
		s.fillActive()
		limit := s.g.ActiveLimit()
		next := s.first + limit
		for _, free := range []func(z int){
			func(z int) { s.ok(s.dev.Finish(z)) },
			func(z int) { s.ok(s.dev.Reset(z)) },
			s.appendAll,
			func(z int) { s.ok(s.dev.CloseZone(z)); s.ok(s.dev.Finish(z)) },
		} {
			s.refused(appendOne(s.dev, next), zone.ErrTooManyActive)
			free(s.first)
			s.append(next, 1)
			s.ok(s.dev.Reset(next))
			s.ok(s.dev.Reset(s.first))
			s.append(s.first, 1)
		}
	}},
	{"finishing a closed zone needs an open slot", canEvict, func(s *suite) {
		limit := s.g.OpenLimit()
		z := s.first + limit
		s.append(z, 1)
		s.ok(s.dev.CloseZone(z))
		for i := range limit {
			s.ok(s.dev.Open(s.first + i))
		}
		s.refused(s.dev.Finish(z), zone.ErrTooManyOpen)
		s.is(z, zone.Closed, 1)
		s.ok(s.dev.Finish(s.first)) // an open one does not
		s.ok(s.dev.Finish(z))
	}},
	{"a zone that fills up at once needs slots", hasOpenLimit, func(s *suite) {
		for i := range s.g.OpenLimit() {
			s.ok(s.dev.Open(s.first + i))
		}
		z := s.first + s.g.OpenLimit()
		whole := fill(z, 0, int(s.g.CapacityOf(z)/blk), 0)
		if err := s.dev.Write(z, 0, vec(whole)); err == nil {
			s.Fatal("a write that fills the zone got past the limit")
		}
		s.is(z, zone.Empty, 0)
		s.ok(s.dev.Reset(s.first))
		s.ok(s.dev.Write(z, 0, vec(whole)))
		s.is(z, zone.Full, int64(len(whole)/blk))
		s.ok(s.dev.Open(s.first)) // the slot came back by itself
	}},
}
