package zonetest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/zone"
)

const blk = extent.BlockSize

// Geometries returns the devices that Run tries, by name: capacity below and equal to the
// size, SMR with and without conventional zones, a short last zone, limits of none, one and
// several, and append limits that are and are no multiple of the block.
func Geometries() map[string]zone.Geometry {
	zns := func(f func(*zone.Geometry)) zone.Geometry {
		g := zone.Geometry{Dialect: zone.ZNS, ZoneSize: 16 * blk, ZoneCapacity: 12 * blk, Zones: 8}
		f(&g)
		return g
	}
	smr := func(f func(*zone.Geometry)) zone.Geometry {
		g := zone.Geometry{Dialect: zone.SMR, ZoneSize: 16 * blk, ZoneCapacity: 16 * blk, Zones: 8}
		f(&g)
		return g
	}
	return map[string]zone.Geometry{
		"zns":           zns(func(*zone.Geometry) {}),
		"zns full size": zns(func(g *zone.Geometry) { g.ZoneCapacity = g.ZoneSize }),
		"zns wide": zns(func(g *zone.Geometry) {
			g.ZoneSize, g.ZoneCapacity, g.Zones = 100*blk, 96*blk, 4
		}),
		"zns one active": zns(func(g *zone.Geometry) { g.MaxOpen, g.MaxActive = 1, 1 }),
		"zns limits": zns(func(g *zone.Geometry) {
			g.MaxOpen, g.MaxActive, g.AppendLimit = 3, 4, 4*blk+1
		}),
		"zns open is active": zns(func(g *zone.Geometry) { g.MaxOpen, g.MaxActive = 3, 3 }),
		"zns active only":    zns(func(g *zone.Geometry) { g.MaxActive = 4 }),
		"zns limits unmet":   zns(func(g *zone.Geometry) { g.MaxOpen, g.MaxActive = 8, 9 }),
		"zns short last zone": zns(func(g *zone.Geometry) {
			g.LastZoneSize, g.ZoneSize, g.ZoneCapacity = 5*blk, 7*blk, 6*blk
		}),
		"smr": smr(func(*zone.Geometry) {}),
		"smr conventional": smr(func(g *zone.Geometry) {
			g.Conventional, g.MaxOpen, g.AppendLimit = 2, 3, 4*blk
		}),
		"smr one open":        smr(func(g *zone.Geometry) { g.MaxOpen = 1 }),
		"smr short last zone": smr(func(g *zone.Geometry) { g.Conventional, g.LastZoneSize = 1, 3*blk }),
	}
}

// Run checks every rule on devices that open makes: new ones, of the geometry asked for, on
// which nothing was done. The suite closes them.
func Run(t *testing.T, open func(t *testing.T, g zone.Geometry) zone.Device) {
	for name, g := range Geometries() {
		t.Run(name, func(t *testing.T) {
			for _, c := range cases {
				if c.needs != nil && !c.needs(g) {
					continue
				}
				t.Run(c.name, func(t *testing.T) {
					dev := open(t, g)
					c.run(&suite{T: t, dev: dev, g: g, first: g.Conventional})
					closes(t, dev, g)
				})
			}
		})
	}
}

// closes checks that a closed device does nothing any more.
func closes(t *testing.T, dev zone.Device, g zone.Geometry) {
	if err := dev.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	last := g.Zones - 1
	_, appendErr := dev.Append(last, vec(make([]byte, blk)))
	_, reportErr := dev.Report(0, -1)
	for what, err := range map[string]error{
		"ReadAt": dev.ReadAt(last, 0, make([]byte, blk)), "Append": appendErr, "Report": reportErr,
		"Write": dev.Write(last, 0, vec(make([]byte, blk))), "Flush": dev.Flush(),
		"Open": dev.Open(last), "Finish": dev.Finish(last), "Reset": dev.Reset(last),
		"CloseZone": dev.CloseZone(last), "a second Close": dev.Close(),
	} {
		if !errors.Is(err, zone.ErrClosed) {
			t.Errorf("%s after Close: %v, want %v", what, err, zone.ErrClosed)
		}
	}
	closesDiscarder(t, dev, g)
}

type testCase struct {
	name  string
	needs func(zone.Geometry) bool
	run   func(*suite)
}

var cases = concat(ioCases, commandCases, limitCases, parallelCases, discardCases)

func concat(lists ...[]testCase) (all []testCase) {
	for _, l := range lists {
		all = append(all, l...)
	}
	return all
}

// suite is one case on one device.
type suite struct {
	*testing.T
	dev   zone.Device
	g     zone.Geometry
	first int // the first sequential zone
}

// fill returns n blocks whose bytes tell zone, place and seed apart.
func fill(z int, off int64, blocks int, seed uint64) []byte {
	b := make([]byte, blocks*blk)
	for i := 0; i < len(b); i += 8 {
		x := (uint64(z)<<40 + uint64(off) + uint64(i) + 1) * 0x9e3779b97f4a7c15
		binary.LittleEndian.PutUint64(b[i:], x^seed)
	}
	return b
}

func vec(b []byte) [][]byte { return [][]byte{b} }

func (s *suite) ok(err error) {
	s.Helper()
	if err != nil {
		s.Fatalf("unexpected error: %v", err)
	}
}

// refused checks the sentinel and the kind.
func (s *suite) refused(err, want error) {
	s.Helper()
	if !errors.Is(err, want) {
		s.Fatalf("got error %v, want %v", err, want)
	}
	if !errdefs.Is(err, errdefs.Device) {
		s.Fatalf("error %v is of kind %v, want device", err, errdefs.KindOf(err))
	}
}

func (s *suite) malformed(err error) {
	s.Helper()
	if !errdefs.Is(err, errdefs.InvalidArgument) {
		s.Fatalf("got error %v, want one of kind invalid argument", err)
	}
}

// append puts blocks filled with seed 0 and checks that they land at the write pointer.
func (s *suite) append(z, blocks int) {
	s.Helper()
	wp := s.zone(z).WP
	off, err := s.dev.Append(z, vec(fill(z, wp, blocks, 0)))
	s.ok(err)
	if off != wp {
		s.Fatalf("append landed at %d, the write pointer was %d", off, wp)
	}
}

// appendAll fills the zone in steps that the append limit allows.
func (s *suite) appendAll(z int) {
	s.Helper()
	for s.zone(z).Condition != zone.Full {
		step := s.g.CapacityOf(z) - s.zone(z).WP
		if s.g.AppendLimit > 0 {
			step = min(step, s.g.AppendLimit)
		}
		s.append(z, int(step/blk))
	}
}

func (s *suite) zone(z int) zone.Zone {
	s.Helper()
	r, err := s.dev.Report(z, 1)
	s.ok(err)
	if len(r) != 1 || r[0].Index != z {
		s.Fatalf("Report(%d, 1) = %+v", z, r)
	}
	return r[0]
}

// is checks a zone's condition and, unless it is negative, its write pointer in blocks.
func (s *suite) is(z int, c zone.Condition, wp int64) {
	s.Helper()
	got := s.zone(z)
	if got.Condition != c || wp >= 0 && got.WP != wp*blk {
		s.Fatalf("zone %d is %v at block %d, want %v at %d", z, got.Condition, got.WP/blk, c, wp)
	}
}

// holds checks that blocks [from, to) of the zone read as fill with the seed made them.
func (s *suite) holds(z int, from, to int, seed uint64) {
	s.Helper()
	p := make([]byte, (to-from)*blk)
	s.ok(s.dev.ReadAt(z, int64(from)*blk, p))
	if i := differ(p, fill(z, int64(from)*blk, to-from, seed)); i >= 0 {
		s.Fatalf("zone %d block %d does not hold what was written", z, from+i)
	}
}

// differ returns the first block in which a and b differ, -1 if there is none.
func differ(a, b []byte) int {
	for i := 0; i < len(a); i += blk {
		if !bytes.Equal(a[i:i+blk], b[i:i+blk]) {
			return i / blk
		}
	}
	return -1
}

func (s *suite) read(z int, block, blocks int) error {
	return s.dev.ReadAt(z, int64(block)*blk, make([]byte, blocks*blk))
}
