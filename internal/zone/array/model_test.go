package array_test

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/shingle-store/shingle/internal/zone"
	"github.com/shingle-store/shingle/internal/zone/array"
	"github.com/shingle-store/shingle/internal/zone/faultdev"
)

// model is what an array of three members with pairs of places must hold.
type model struct {
	t    *rapid.T
	a    *array.Array
	g    zone.Geometry
	mems []*zone.Mem
	devs []*faultdev.Device
	sets []modelSet
	dead map[int]bool // members whose power is gone
	seed int

	faults int // reads made to fail once
}

type modelSet struct {
	places  []array.Place
	content []byte
	flushed int  // bytes of it that a Flush covered
	closed  bool // finished, or its last append failed
}

func newModel(t *rapid.T) *model {
	m := &model{t: t, dead: map[int]bool{}}
	m.g = geometries[rapid.SampledFrom([]string{"zns", "smr"}).Draw(t, "dialect")]
	var members []array.Member
	for i := range 3 {
		d, err := zone.NewMem(m.g, zone.MemOptions{})
		if err != nil {
			t.Fatal(err)
		}
		m.mems, m.devs = append(m.mems, d), append(m.devs, faultdev.New(d, uint64(i)))
		members = append(members, array.Member{Number: i, Device: m.devs[i]})
	}
	for z := range 2 {
		for i := range 3 {
			m.sets = append(m.sets, modelSet{places: []array.Place{{Device: i, Zone: 2 * z}, {Device: (i + 1) % 3, Zone: 2*z + 1}}})
		}
	}
	var err error
	if m.a, err = array.New(members, m.places()); err != nil {
		t.Fatal(err)
	}
	return m
}

func (m *model) places() (sets [][]array.Place) {
	for _, s := range m.sets {
		sets = append(sets, s.places)
	}
	return sets
}

func (m *model) draw() (int, *modelSet) {
	z := rapid.IntRange(0, len(m.sets)-1).Draw(m.t, "zone")
	return z, &m.sets[z]
}

func (m *model) member() int { return rapid.IntRange(0, 2).Draw(m.t, "member") }

func (m *model) appendTo() {
	z, s := m.draw()
	m.seed++
	b := pattern(m.seed, 1+m.seed%3)
	if len(s.content)+len(b) > int(m.g.ZoneCapacity) {
		return
	}
	off, err := m.a.Append(z, vec(b))
	switch {
	case err != nil:
		s.closed = true
	case off < int64(len(s.content)) || !s.closed && off != int64(len(s.content)):
		m.t.Fatalf("append to zone %d of %d blocks landed at %d", z, len(s.content)/blk, off)
	case off > int64(len(s.content)):
		// One place is left of a set whose last append failed: bytes of it may lie between.
		s.content = append(s.content, make([]byte, off-int64(len(s.content)))...)
		if err := m.read(z, s.content); err != nil {
			m.t.Fatal(err)
		}
		fallthrough
	default:
		s.content = append(s.content, b...)
	}
}

func (m *model) reset() {
	z, s := m.draw()
	if err := m.a.Reset(z); err != nil {
		s.content, s.flushed, s.closed = nil, 0, true // some of it is gone
		return
	}
	s.content, s.flushed, s.closed = nil, 0, false
}

func (m *model) finish() {
	z, s := m.draw()
	_ = m.a.Finish(z) // whatever comes of it, nothing may be lost
	s.closed = true
}

func (m *model) flush() {
	if m.a.Flush() != nil {
		return
	}
	for i := range m.sets {
		m.sets[i].flushed = len(m.sets[i].content)
	}
}

// check reads what can be read: all that was acknowledged of every set, as long as a member with a
// place of it has power and is not out.
func (m *model) check() {
	for z := range m.sets {
		s := &m.sets[z]
		left := false
		for _, p := range m.a.Places(z) {
			in := m.a.Member(p.Device) != nil
			if p.Stale && in {
				m.t.Fatalf("zone %d is stale on device %d, which never left", z, p.Device)
			}
			left = left || in && !m.dead[p.Device]
		}
		if !left || len(s.content) == 0 {
			continue
		}
		p := make([]byte, len(s.content))
		if err := m.read(z, p); err != nil || !bytes.Equal(p, s.content) {
			m.t.Fatalf("zone %d does not hold what it took: %v", z, err)
		}
	}
}

// read tries again where reads that fail once meet the only copy.
func (m *model) read(z int, p []byte) (err error) {
	for range 1 + m.faults {
		if err = m.a.ReadAt(z, 0, p); err == nil {
			break
		}
	}
	return err
}

// restart lets every member lose power and come back, with what is known of stale places: each
// place that is not holds all that was flushed.
func (m *model) restart(rng *rand.Rand) {
	for _, d := range m.mems {
		d.CutPower()
	}
	var members []array.Member
	for i, d := range m.mems {
		d.PowerOn(rng)
		members = append(members, array.Member{Number: i, Device: d})
	}
	for z := range m.sets {
		m.sets[z].places = m.a.Places(z)
	}
	a, err := array.New(members, m.places())
	if err != nil {
		m.t.Fatal(err)
	}
	for z, s := range m.sets {
		if a.Copies(z) == 0 {
			m.t.Fatalf("zone %d is stale on all its devices", z)
		}
		for i, pl := range s.places {
			p := make([]byte, s.flushed)
			if pl.Stale || len(p) == 0 {
				continue
			}
			if err := a.ReadCopy(z, i, 0, p); err != nil || !bytes.Equal(p, s.content[:s.flushed]) {
				m.t.Fatalf("copy %d of zone %d, on device %d, lost what was flushed: %v", i, z, pl.Device, err)
			}
		}
	}
}

// Members fail at random; nothing that was acknowledged and flushed is unreadable while a place of
// it is left, and no place that lacks some of it passes for a good one.
func TestArrayAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newModel(t)
		t.Repeat(map[string]func(*rapid.T){
			"":        func(*rapid.T) { m.check() },
			"append":  func(*rapid.T) { m.appendTo() },
			"append2": func(*rapid.T) { m.appendTo() },
			"append3": func(*rapid.T) { m.appendTo() },
			"flush":   func(*rapid.T) { m.flush() },
			"reset":   func(*rapid.T) { m.reset() },
			"finish":  func(*rapid.T) { m.finish() },
			"open":    func(*rapid.T) { z, _ := m.draw(); _ = m.a.Open(z) },
			"fail append": func(t *rapid.T) {
				m.devs[m.member()].FailAppend(faultdev.AnyZone, 1, faultdev.Moved(rapid.IntRange(0, 2).Draw(t, "moved")))
			},
			"fail flush": func(t *rapid.T) { m.devs[m.member()].FailFlush(1, rapid.Bool().Draw(t, "reached")) },
			"fail reset": func(*rapid.T) { m.devs[m.member()].FailCommand(zone.OpReset, faultdev.AnyZone, false) },
			"fail read": func(*rapid.T) {
				m.faults++
				m.devs[m.member()].FailRead(2, 0, blk, false)
			},
			"power": func(*rapid.T) {
				if len(m.dead) < 2 {
					i := m.member()
					m.dead[i] = true
					m.mems[i].CutPower()
				}
			},
		})
		m.restart(rand.New(rand.NewPCG(uint64(m.seed), 1)))
	})
}
