package zonetest

import (
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/shingle-store/shingle/internal/zone"
)

// Crasher is a device that can crash.
type Crasher struct {
	Dev zone.Device
	// Crash loses what a crash loses and returns the device as it comes back, which may be
	// another object. Choices are rng's.
	Crash func(t *testing.T, rng *rand.Rand) zone.Device
	// Garbage says that the last surviving block of an unflushed write may hold anything.
	Garbage bool
	// TornReset says that a zone whose unflushed reset was lost may hold newer data under
	// its old write pointer.
	TornReset bool
}

// RunCrash runs random commands with crashes among them and checks after each crash that
// flushed data is whole, that a zone holds a prefix of what was written, that a reset or
// finish that was not flushed happened or did not, that a conventional block holds the
// flushed or a later content, that nothing is open and that the active limit holds. rounds
// is the number of crashes in each geometry.
func RunCrash(t *testing.T, rounds int, open func(t *testing.T, g zone.Geometry) Crasher) {
	for name, g := range Geometries() {
		t.Run(name, func(t *testing.T) {
			c := open(t, g)
			rng := rand.New(rand.NewPCG(uint64(len(name)), 7))
			m := newCrashModel(t, c, g)
			for range rounds {
				for range 1 + rng.IntN(24) {
					m.step(rng)
				}
				m.crash(rng)
			}
			if err := m.dev.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// life is a zone's content between two resets.
type life struct {
	data     []byte // acknowledged
	flushed  int    // bytes of data that were flushed
	finished bool
	kept     bool // finished was flushed
}

// zoneModel is what may be found in a zone. Its lives are the one that was flushed and
// those begun since by a reset; at least one.
type zoneModel struct {
	lives []life
	// versions of the blocks of a conventional zone: the flushed one and those since; nil
	// stands for a discard, after which a block may hold anything.
	versions map[int][][]byte
}

type crashModel struct {
	*testing.T
	Crasher
	dev   zone.Device
	g     zone.Geometry
	zones []zoneModel
	seed  uint64 // makes the content of every write its own
}

func newCrashModel(t *testing.T, c Crasher, g zone.Geometry) *crashModel {
	m := &crashModel{T: t, Crasher: c, dev: c.Dev, g: g, zones: make([]zoneModel, g.Zones)}
	for i := range m.zones {
		m.zones[i] = zoneModel{lives: []life{{}}, versions: map[int][][]byte{}}
	}
	return m
}

// step does one random command; the device may refuse it, which must change nothing.
func (m *crashModel) step(rng *rand.Rand) {
	m.Helper()
	z := rng.IntN(m.g.Zones)
	zm := &m.zones[z]
	now := &zm.lives[len(zm.lives)-1]
	m.seed++
	switch r := rng.IntN(20); {
	case !m.g.IsSequential(z) && r < 5:
		m.discard(z, rng)
	case !m.g.IsSequential(z):
		m.overwrite(z, rng)
	case r < 11:
		b := fill(z, int64(len(now.data)), 1+rng.IntN(4), m.seed)
		if _, err := m.dev.Append(z, vec(b)); err == nil {
			now.data = append(now.data, b...)
		}
	case r < 13:
		if m.dev.Finish(z) == nil && len(now.data) < int(m.g.CapacityOf(z)) {
			now.finished = true
		}
	case r < 15:
		if err := m.dev.Reset(z); err != nil {
			m.Fatalf("reset of zone %d: %v", z, err)
		}
		if len(now.data) > 0 || now.finished {
			zm.lives = append(zm.lives, life{})
		}
	case r == 15:
		_ = m.dev.Open(z)
	case r == 16:
		_ = m.dev.CloseZone(z)
	case r == 18:
		m.release(z)
	case r == 17:
		if err := m.dev.Flush(); err != nil {
			m.Fatalf("flush: %v", err)
		}
		m.flushed()
	default:
		m.check(z, now)
	}
}

func (m *crashModel) overwrite(z int, rng *rand.Rand) {
	n := int(m.g.SizeOf(z) / blk)
	at := rng.IntN(n)
	b := fill(z, int64(at)*blk, 1+rng.IntN(n-at), m.seed)
	if err := m.dev.Write(z, int64(at)*blk, vec(b)); err != nil {
		m.Fatalf("write to conventional zone %d: %v", z, err)
	}
	for i := 0; i < len(b); i += blk {
		v := m.zones[z].versions
		if v[at+i/blk] == nil {
			v[at+i/blk] = [][]byte{make([]byte, blk)}
		}
		v[at+i/blk] = append(v[at+i/blk], b[i:i+blk])
	}
}

// discard gives up a random part of a conventional zone.
func (m *crashModel) discard(z int, rng *rand.Rand) {
	d, ok := m.dev.(zone.Discarder)
	if !ok {
		return
	}
	n := m.g.SizeOf(z) / blk
	at := rng.Int64N(n)
	end := at + 1 + rng.Int64N(n-at)
	if err := d.Discard(z, blocks(at, end)); err != nil {
		m.Fatalf("discard in conventional zone %d: %v", z, err)
	}
	for b := at; b < end; b++ {
		v := m.zones[z].versions
		if v[int(b)] == nil {
			v[int(b)] = [][]byte{make([]byte, blk)}
		}
		v[int(b)] = append(v[int(b)], nil)
	}
}

// release gives up the space of a zone; one that is not empty must refuse.
func (m *crashModel) release(z int) {
	d, ok := m.dev.(zone.Discarder)
	if !ok {
		return
	}
	r, err := m.dev.Report(z, 1)
	if err != nil {
		m.Fatal(err)
	}
	if err := d.Release(z); (err == nil) != (r[0].Condition == zone.Empty) {
		m.Fatalf("release of zone %d, which is %v: %v", z, r[0].Condition, err)
	}
}

// flushed forgets what can no longer come back.
func (m *crashModel) flushed() {
	for i := range m.zones {
		zm := &m.zones[i]
		now := zm.lives[len(zm.lives)-1]
		now.flushed, now.kept = len(now.data), now.finished
		zm.lives = []life{now}
		for b, v := range zm.versions {
			zm.versions[b] = v[len(v)-1:]
		}
	}
}

// check reads what is there while the device runs.
func (m *crashModel) check(z int, now *life) {
	if len(now.data) == 0 {
		return
	}
	p := make([]byte, len(now.data))
	if err := m.dev.ReadAt(z, 0, p); err != nil || differ(p, now.data) >= 0 {
		m.Fatalf("zone %d does not hold what was written to it: %v", z, err)
	}
}

// crash crashes the device and holds what is left against what may be left; from then on
// what was found is what was flushed.
func (m *crashModel) crash(rng *rand.Rand) {
	m.Helper()
	m.dev = m.Crash(m.T, rng)
	report, err := m.dev.Report(0, -1)
	if err != nil {
		m.Fatal(err)
	}
	active := 0
	for z, r := range report {
		switch {
		case r.Condition == zone.NotWP:
			m.checkConventional(z)
			continue
		case r.Condition.IsOpen():
			m.Fatalf("zone %d is %v after a crash", z, r.Condition)
		case r.Condition.IsActive():
			active++
		}
		m.checkSurvivor(z, r)
	}
	if limit := m.g.ActiveLimit(); limit > 0 && active > limit {
		m.Fatalf("%d zones are active after a crash; the limit is %d", active, limit)
	}
}

func (m *crashModel) checkSurvivor(z int, r zone.Zone) {
	m.Helper()
	n := min(r.WP, r.Capacity)
	found := make([]byte, n)
	if n > 0 {
		if err := m.dev.ReadAt(z, 0, found); err != nil {
			m.Fatalf("zone %d after a crash: %v", z, err)
		}
	}
	zm := &m.zones[z]
	full := r.Condition == zone.Full
	for i := range zm.lives {
		l := &zm.lives[i]
		torn := m.TornReset && len(zm.lives) > 1 && len(found) >= zm.lives[0].flushed
		// With capacity == size a report does not tell full by writing from finished. Where
		// the data of a finished zone ends cannot be asked, and does not matter: the rest
		// are zeros, and durable.
		finished := full && m.possible(l, found, true)
		if finished || torn || (!full || r.WP == r.Capacity) && m.possible(l, found, false) {
			zm.lives = []life{{data: found, flushed: len(found), finished: full, kept: full}}
			return
		}
	}
	m.Fatalf("zone %d is %v at block %d after a crash, with contents that no history explains: %s",
		z, r.Condition, r.WP/blk, describe(zm))
}

// possible reports whether found is what a crash can leave of l.
func (m *crashModel) possible(l *life, found []byte, finished bool) bool {
	if finished {
		if !l.finished {
			return false
		}
		return m.prefixThenZeros(l, found)
	}
	if l.kept || len(found) < l.flushed || len(found) > len(l.data) {
		return false
	}
	return m.same(l, found)
}

// same compares found with the beginning of l.
func (m *crashModel) same(l *life, found []byte) bool {
	i := differ(found, l.data[:len(found)])
	if i < 0 {
		return true
	}
	return m.Garbage && len(found) > l.flushed && i == len(found)/blk-1
}

// prefixThenZeros reports whether found is some prefix of l, no shorter than what was
// flushed, with nothing but zeros after it.
func (m *crashModel) prefixThenZeros(l *life, found []byte) bool {
	for n := l.flushed; n <= len(l.data); n += blk {
		if m.same(l, found[:n]) && differ(found[n:], make([]byte, len(found)-n)) < 0 {
			return true
		}
	}
	return false
}

func (m *crashModel) checkConventional(z int) {
	m.Helper()
	p := make([]byte, blk)
	for b, versions := range m.zones[z].versions {
		if err := m.dev.ReadAt(z, int64(b)*blk, p); err != nil {
			m.Fatal(err)
		}
		found := false
		for _, v := range versions {
			if v == nil || differ(p, v) < 0 {
				found = true
				m.zones[z].versions[b] = [][]byte{v}
			}
		}
		if !found {
			m.Fatalf("conventional zone %d block %d holds something never written there", z, b)
		}
	}
}

func describe(zm *zoneModel) (s string) {
	for _, l := range zm.lives {
		s += " [" + strconv.Itoa(l.flushed/blk) + " flushed of " + strconv.Itoa(len(l.data)/blk)
		if l.finished {
			s += ", finished"
		}
		s += "]"
	}
	return s
}
