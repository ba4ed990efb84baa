package zonetest

import (
	"errors"
	"sync"
	"sync/atomic"

	"github.com/shingle-store/shingle/internal/zone"
)

var parallelCases = []testCase{
	{"parallel appends land side by side", nil, func(s *suite) {
		a := s.first
		n := min(64, int(s.g.CapacityOf(a)/blk))
		got := make([]atomic.Int32, n)
		var wg sync.WaitGroup
		for w := range n {
			wg.Go(func() {
				b := fill(a, 0, 1, uint64(w))
				off, err := s.dev.Append(a, vec(b))
				if err != nil || off < 0 || off >= int64(n)*blk || off%blk != 0 {
					s.Errorf("append %d: %d, %v", w, off, err)
					return
				}
				if got[off/blk].Add(1) != 1 {
					s.Errorf("two appends landed at %d", off)
				}
				p := make([]byte, blk)
				if err := s.dev.ReadAt(a, off, p); err != nil || differ(p, b) >= 0 {
					s.Errorf("append %d does not read back from %d at once: %v", w, off, err)
				}
			})
		}
		wg.Wait()
		if z := s.zone(a); z.WP != int64(n)*blk {
			s.Errorf("the write pointer is at block %d after %d appends", z.WP/blk, n)
		}
	}},
	{"parallel work on several zones", nil, func(s *suite) {
		zones := s.g.NumSequential() - 1
		if limit := s.g.ActiveLimit(); limit > 0 {
			zones = min(zones, limit)
		}
		var wg sync.WaitGroup
		for i := range zones {
			z := s.first + i
			wg.Go(func() {
				for round := range 2 {
					for off := int64(0); off < min(4*blk, s.g.CapacityOf(z)); off += blk {
						got, err := s.dev.Append(z, vec(fill(z, off, 1, uint64(round))))
						if err != nil || got != off {
							s.Errorf("zone %d: %d, %v", z, got, err)
							return
						}
						p := make([]byte, blk)
						if err := s.dev.ReadAt(z, off, p); err != nil || differ(p, fill(z, off, 1, uint64(round))) >= 0 {
							s.Errorf("zone %d at %d: %v", z, off, err)
						}
					}
					if err := s.dev.Flush(); err != nil {
						s.Errorf("flush: %v", err)
					}
					if err := s.dev.Reset(z); err != nil {
						s.Errorf("reset: %v", err)
					}
				}
			})
		}
		wg.Wait()
	}},
	{"a reset during reads", nil, func(s *suite) {
		a := s.first
		const n = 2
		s.append(a, n)
		want := [2][]byte{fill(a, 0, n, 0), fill(a, 0, n, 1)}
		var stop atomic.Bool
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				p := make([]byte, n*blk)
				for !stop.Load() {
					err := s.dev.ReadAt(a, 0, p)
					if errors.Is(err, zone.ErrInvalidRead) {
						continue
					}
					if err != nil || differ(p, want[0]) >= 0 && differ(p, want[1]) >= 0 {
						s.Errorf("a read met a reset: %v", err)
						return
					}
				}
			})
		}
		for i := range 12 {
			s.ok(s.dev.Reset(a))
			_, err := s.dev.Append(a, vec(want[i%2]))
			s.ok(err)
		}
		stop.Store(true)
		wg.Wait()
	}},
}
