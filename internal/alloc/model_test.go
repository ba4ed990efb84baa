package alloc

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// The model keeps one byte a block and counts them whenever it is asked.
const (
	free     = 'f'
	inFlight = 'p'
	appended = 'c' // completed, pending
	live     = 'l'
	unusable = 'x' // was live
	tail     = 't' // cut off
	failed   = 'd' // granted, and never published
	lost     = 'q' // in a zone that failed
)

type modelGroup struct {
	blocks     []byte // the usable ones: without the header
	state      State
	class      Class
	generation uint64
	opening    bool
	opened     int // order of opening
	pins       int
}

// dead is what only a reset brings back.
func (g *modelGroup) dead() int64 { return g.count(unusable, tail, failed) }

func (g *modelGroup) count(kinds ...byte) (n int64) {
	for _, b := range g.blocks {
		if slices.Contains(kinds, b) {
			n++
		}
	}
	return n
}

// turn changes the first n blocks of kind from to kind to.
func (g *modelGroup) turn(from, to byte, n int64) {
	if (to == unusable || to == tail || to == failed) && (g.state == ReadOnly || g.state == Quarantined) {
		to = lost
	}
	for i := range g.blocks {
		if n > 0 && g.blocks[i] == from {
			g.blocks[i] = to
			n--
		}
	}
	if n > 0 {
		panic("the model was asked for more blocks than there are")
	}
}

func (g *modelGroup) turnAll(from, to byte) { g.turn(from, to, g.count(from)) }

func (g *modelGroup) idle() bool { return g.count(live, inFlight, appended) == 0 }

func (g *modelGroup) takes() bool { return g.state == Active && !g.opening && g.count(free) > 0 }

func (g *modelGroup) holds() bool { return g.state == Active || g.state == Closing }

type model struct {
	groups    []*modelGroup
	resetHeld map[int]bool // being reset while still active
	reserved  int64
	reserve   int64
	lent      int64
	budget    int // of all classes
	spare     int // of them for relocation alone
	clock     int
	grants    []Grant
	refused   bool
}

func (m *model) total(f func(*modelGroup) int64) (n int64) {
	for _, g := range m.groups {
		n += f(g)
	}
	return n
}

func (m *model) free() int64 {
	return m.total(func(g *modelGroup) int64 { return g.count(free) })
}

func (m *model) active() int {
	n := len(m.resetHeld)
	for _, g := range m.groups {
		if g.holds() {
			n++
		}
	}
	return n
}

// budgetOf is how many zones may be active for the class to open another.
func (m *model) budgetOf(c Class) int {
	if c == ClassRelocation {
		return m.budget
	}
	moving := 0
	for i, g := range m.groups {
		if (g.holds() || m.resetHeld[i]) && g.class == ClassRelocation {
			moving++
		}
	}
	return m.budget - max(0, m.spare-moving)
}

func (m *model) reclaimable() int64 {
	return m.total(func(g *modelGroup) int64 {
		if g.state != ReadOnly && g.state != Quarantined && g.idle() {
			return g.dead()
		}
		return 0
	})
}

func (m *model) close(i int) {
	g := m.groups[i]
	g.state, g.opening = Closing, false
	g.turnAll(free, tail)
}

func (m *model) grantable(c Class) int64 {
	kept := m.reserve/2 - m.lent
	if c == ClassRelocation {
		return min(m.free(), max(m.free()-m.reserved, kept))
	}
	return min(m.reserved, m.free()-kept)
}

// best walks all block groups for one to grant n from: the first opened that fits, else the
// one with the least room.
func (m *model) best(n int64, ok func(*modelGroup) bool) int {
	found := -1
	for i, g := range m.groups {
		if g.takes() && ok(g) && g.count(free) >= n && (found < 0 || g.opened < m.groups[found].opened) {
			found = i
		}
	}
	if found >= 0 {
		return found
	}
	for i, g := range m.groups {
		if !g.takes() || !ok(g) {
			continue
		}
		if found < 0 || g.count(free) < m.groups[found].count(free) ||
			g.count(free) == m.groups[found].count(free) && g.opened < m.groups[found].opened {
			found = i
		}
	}
	return found
}

// pick returns the block group to open, and whether that leaves the reserve in empty ones.
func (m *model) pick(c Class) (int, bool) {
	var empty []int
	var sum int64
	for i, g := range m.groups {
		if g.state == Empty {
			empty = append(empty, i)
			sum += int64(len(g.blocks))
		}
	}
	if len(empty) == 0 {
		return -1, false
	}
	for _, i := range []int{empty[0], empty[len(empty)-1]} {
		if c == ClassRelocation || sum-int64(len(m.groups[i].blocks)) >= m.reserve {
			return i, true
		}
	}
	return empty[0], false
}

func (m *model) opening(c Class) bool {
	return slices.ContainsFunc(m.groups, func(g *modelGroup) bool { return g.opening && (c == 0 || g.class == c) })
}

func (m *model) short() Outcome {
	if m.opening(0) || m.reclaimable() > 0 {
		m.refused = true
		return Busy
	}
	return NoSpace
}

// allocate says what the allocator should do: the slot and length, or the outcome.
func (m *model) allocate(c Class, want int64) (int, int64, Outcome) {
	if want == 0 || c != ClassRelocation && m.reserved == 0 {
		return 0, 0, NoSpace
	}
	n := min(want, m.grantable(c))
	if n <= 0 {
		return 0, 0, m.short()
	}
	if i := m.best(n, func(g *modelGroup) bool { return g.class == c }); i >= 0 {
		return i, min(n, m.groups[i].count(free)), Granted
	}
	if m.opening(c) {
		return 0, 0, Busy
	}
	others := 0
	for _, g := range m.groups {
		if g.takes() {
			others++
		}
	}
	if i, whole := m.pick(c); i >= 0 {
		if m.active() < m.budgetOf(c) && (whole || others == 0) {
			return 0, 0, NeedsOpen
		}
		if m.active() >= m.budgetOf(c) && m.active() > others {
			return 0, 0, Busy
		}
	}
	for _, o := range []Class{ClassData, ClassRelocation, ClassLog} {
		if i := m.best(n, func(g *modelGroup) bool { return g.class == o }); i >= 0 {
			return i, min(n, m.groups[i].count(free)), Granted
		}
	}
	return 0, 0, m.short()
}

func (m *model) usage() Usage {
	available := m.free() - m.reserve - m.reserved
	u := Usage{
		Total:       m.total(func(g *modelGroup) int64 { return int64(len(g.blocks)) }) - m.reserve,
		Used:        m.total(func(g *modelGroup) int64 { return g.count(live) }),
		Free:        max(0, available),
		Unusable:    m.total((*modelGroup).dead),
		Reserved:    m.reserved + m.total(func(g *modelGroup) int64 { return g.count(inFlight, appended) }),
		Quarantined: m.total(func(g *modelGroup) int64 { return g.count(lost) }),
		Reclaimable: m.reclaimable(), Active: m.active(), MaxActive: m.budget, Deficit: max(0, -available),
	}
	off := u.Deficit
	for off > 0 {
		off--
		switch {
		case u.Reserved > 0:
			u.Reserved--
		case u.Unusable > 0:
			u.Unusable--
		case u.Quarantined > 0:
			u.Quarantined--
		default:
			u.Used--
		}
	}
	u.Tails = min(u.Unusable, m.total(func(g *modelGroup) int64 { return g.count(tail) }))
	u.Failed = min(u.Unusable-u.Tails, m.total(func(g *modelGroup) int64 { return g.count(failed) }))
	u.Pending = min(u.Reserved, m.total(func(g *modelGroup) int64 { return g.count(inFlight, appended) }))
	for _, f := range []*int64{&u.Total, &u.Used, &u.Free, &u.Unusable, &u.Reserved, &u.Quarantined, &u.Reclaimable, &u.Deficit, &u.Tails, &u.Failed, &u.Pending} {
		*f *= blk
	}
	return u
}

func TestAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		groups := uniform(rapid.IntRange(4, 9).Draw(t, "groups"), rapid.Int64Range(2, 9).Draw(t, "capacity"))
		if rapid.Bool().Draw(t, "short last") {
			last := &groups[len(groups)-1]
			last.Capacity = rapid.Int64Range(2, last.Capacity/blk).Draw(t, "last") * blk
		}
		limit := rapid.IntRange(0, 4).Draw(t, "max active")
		reserve := DefaultReserve(groups)
		spare := rapid.IntRange(0, 1).Draw(t, "relocation active")
		seen := watched{}
		a, err := New(Options{BlockGroups: groups, MaxActive: limit, RelocationActive: spare, Reserve: reserve, Watch: seen.note})
		if err != nil {
			t.Fatal(err)
		}
		m := &model{reserve: reserve / blk, budget: limit, spare: spare, resetHeld: map[int]bool{}}
		if limit == 0 {
			m.budget = 8
		}
		m.budget += spare
		for _, g := range groups {
			m.groups = append(m.groups, &modelGroup{blocks: slices.Repeat([]byte{free}, int(g.Capacity/blk-1))})
		}
		x := &machine{a: a, m: m, seen: seen}
		t.Repeat(map[string]func(*rapid.T){
			"":           x.check,
			"reserve":    x.reserve,
			"unreserve":  x.unreserve,
			"allocate":   x.allocate,
			"allocate2":  x.allocate, // drawn more often
			"open":       x.open,
			"opened":     x.opened,
			"complete":   x.complete,
			"complete2":  x.complete,
			"fail":       x.fail,
			"publish":    x.publish,
			"discard":    x.discard,
			"free":       x.free,
			"free2":      x.free,
			"suspect":    x.suspect,
			"retire":     x.retire,
			"quarantine": x.quarantine,
			"pin":        x.pin,
			"unpin":      x.unpin,
			"close dead": x.closeDead,
			"reset":      x.reset,
			"reset done": x.resetDone,
		})
		x.keepPromises(t)
	})
}
