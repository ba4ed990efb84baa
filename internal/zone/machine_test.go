package zone

import (
	"errors"
	"fmt"
	"sort"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"pgregory.net/rapid"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
)

const blk = extent.BlockSize

// TestMachine runs testdata/machine. Commands: "device" makes one from its arguments, sizes
// in blocks; "do" runs one command a line and prints what each changed.
func TestMachine(t *testing.T) {
	datadriven.Walk(t, "testdata/machine", func(t *testing.T, path string) {
		var m *Machine
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "device":
				g := Geometry{Dialect: ZNS, ZoneSize: 8 * blk, ZoneCapacity: 6 * blk, Zones: 6}
				for _, a := range d.CmdArgs {
					n, err := strconv.ParseInt(a.FirstVal(t), 10, 64)
					if err != nil {
						d.Fatalf(t, "%s: %v", a.Key, err)
					}
					switch a.Key {
					case "smr":
						g.Dialect, g.ZoneCapacity, g.Conventional = SMR, g.ZoneSize, int(n)
					case "zones":
						g.Zones = int(n)
					case "open":
						g.MaxOpen = int(n)
					case "active":
						g.MaxActive = int(n)
					case "append":
						g.AppendLimit = n * blk
					case "last":
						g.LastZoneSize = n * blk
					default:
						d.Fatalf(t, "unknown argument %s", a.Key)
					}
				}
				var err error
				if m, err = NewMachine(g, nil); err != nil {
					return err.Error()
				}
				return zonesText(m)
			case "do":
				var out strings.Builder
				for _, line := range strings.Split(d.Input, "\n") {
					before := snapshot(m)
					err := run(m, strings.Fields(line))
					fmt.Fprintf(&out, "%s: %s\n", line, changes(before, snapshot(m), err))
				}
				return out.String()
			case "show":
				return zonesText(m)
			}
			d.Fatalf(t, "unknown command %s", d.Cmd)
			return ""
		})
	})
}

func run(m *Machine, f []string) error {
	n := func(i int) int64 {
		v, err := strconv.ParseInt(f[i], 10, 64)
		if err != nil {
			panic(err)
		}
		return v
	}
	z := 0
	if len(f) > 1 {
		z = int(n(1))
	}
	switch f[0] {
	case "append":
		off, err := m.StartAppend(z, n(2)*blk)
		if err == nil {
			m.EndWrite(z, off)
		}
		return err
	case "write":
		err := m.StartWrite(z, n(2)*blk, n(3)*blk)
		if err == nil {
			m.EndWrite(z, n(2)*blk)
		}
		return err
	case "read":
		_, err := m.CheckRead(z, n(2)*blk, n(3)*blk)
		return err
	case "open":
		return m.Open(z)
	case "close":
		return m.Close(z)
	case "finish":
		return m.Finish(z)
	case "reset":
		return m.Reset(z)
	case "release":
		return m.CheckRelease(z)
	case "discard":
		var ranges []extent.Range
		for i := 2; i < len(f); i += 2 {
			ranges = append(ranges, extent.Range{Off: n(i) * blk, End: n(i+1) * blk})
		}
		return m.CheckDiscard(z, ranges)
	case "fail":
		return m.SetCondition(z, map[string]Condition{"read-only": ReadOnly, "offline": Offline, "full": Full}[f[2]])
	case "power-cycle":
		m.PowerCycle()
		return nil
	}
	panic("unknown command " + f[0])
}

func zoneText(z Zone) string { return fmt.Sprintf("%d %v at %d", z.Index, z.Condition, z.WP/blk) }

func snapshot(m *Machine) []string {
	r, err := m.Report(0, -1)
	if err != nil {
		panic(err)
	}
	var s []string
	for _, z := range r {
		s = append(s, zoneText(z))
	}
	return s
}

func zonesText(m *Machine) string {
	st := m.Stats()
	return strings.Join(snapshot(m), "\n") + fmt.Sprintf("\nopen %d active %d evictions %d peak %d/%d refused %d/%d\n",
		m.open, m.active, st.Evictions, st.PeakOpen, st.PeakActive, st.RefusedTooManyOpen, st.RefusedTooManyActive)
}

func changes(before, after []string, err error) string {
	var out []string
	if err != nil {
		cause := err
		for errors.Unwrap(cause) != nil {
			cause = errors.Unwrap(cause)
		}
		out = append(out, "refused, "+cause.Error())
	}
	for i := range after {
		if before[i] != after[i] {
			out = append(out, "zone "+after[i])
		}
	}
	if out == nil {
		return "nothing changed"
	}
	return strings.Join(out, "; ")
}

// reference is the table of reference/device-model 3 written the slow way: it counts by
// looking at every zone.
type reference struct {
	g      Geometry
	cond   []Condition
	wp     []int64
	opened []int // implicitly open zones, oldest first
}

func (r *reference) count(f func(Condition) bool) (n int) {
	for _, c := range r.cond {
		if f(c) {
			n++
		}
	}
	return n
}

// slots takes what zone z needs to be opened, evicting if it must.
func (r *reference) slots(z int) error {
	sequential := r.g.Zones - r.g.Conventional
	if r.g.MaxActive > 0 && r.g.MaxActive < sequential && r.cond[z] == Empty &&
		r.count(Condition.IsActive) >= r.g.MaxActive {
		return ErrTooManyActive
	}
	if r.g.MaxOpen > 0 && r.g.MaxOpen < sequential && r.count(Condition.IsOpen) >= r.g.MaxOpen {
		if len(r.opened) == 0 {
			return ErrTooManyOpen
		}
		r.become(r.opened[0], Closed)
	}
	return nil
}

func (r *reference) become(z int, c Condition) {
	if c == Closed && r.wp[z] == 0 && r.g.Dialect == SMR {
		c = Empty
	}
	for i, o := range r.opened {
		if o == z {
			r.opened = append(r.opened[:i:i], r.opened[i+1:]...)
			break
		}
	}
	if c == ImplicitOpen {
		r.opened = append(r.opened, z)
	}
	r.cond[z] = c
}

func (r *reference) do(cmd string, z int, n int64) error {
	c := r.cond[z]
	switch {
	case c == NotWP:
		return ErrConventional
	case c == ReadOnly && cmd != "offline":
		return ErrZoneReadOnly
	case c == Offline:
		return ErrZoneOffline
	}
	switch cmd {
	case "append":
		if c == Full {
			return ErrZoneFull
		}
		if r.wp[z]+n > r.g.CapacityOf(z) {
			return ErrBoundary
		}
		if !c.IsOpen() {
			if err := r.slots(z); err != nil {
				return err
			}
			r.become(z, ImplicitOpen)
		}
		if r.wp[z] += n; r.wp[z] == r.g.CapacityOf(z) {
			r.become(z, Full)
		}
	case "open":
		if c == Full {
			return ErrInvalidTransition
		}
		if !c.IsOpen() {
			if err := r.slots(z); err != nil {
				return err
			}
		}
		r.become(z, ExplicitOpen)
	case "close":
		if !c.IsActive() {
			return ErrInvalidTransition
		}
		if c.IsOpen() {
			r.become(z, Closed)
		}
	case "finish":
		if c == Full {
			return nil
		}
		if !c.IsOpen() {
			if err := r.slots(z); err != nil {
				return err
			}
		}
		r.become(z, Full)
		r.wp[z] = r.g.SizeOf(z)
	case "reset":
		r.become(z, Empty)
		r.wp[z] = 0
	case "offline":
		r.become(z, Offline)
	}
	return nil
}

func TestMachineAgreesWithTheTable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := Geometry{Dialect: ZNS, ZoneSize: 8 * blk, ZoneCapacity: 5 * blk, Zones: rapid.IntRange(1, 7).Draw(t, "zones")}
		if rapid.Bool().Draw(t, "smr") {
			g.Dialect, g.ZoneCapacity = SMR, g.ZoneSize
			g.Conventional = rapid.IntRange(0, g.Zones).Draw(t, "conventional")
		} else {
			g.MaxActive = rapid.IntRange(0, 4).Draw(t, "active")
		}
		g.MaxOpen = rapid.IntRange(0, 4).Draw(t, "open")
		if g.MaxActive > 0 {
			g.MaxOpen = min(g.MaxOpen, g.MaxActive)
		}
		if rapid.Bool().Draw(t, "short") {
			g.LastZoneSize = 3 * blk
		}
		touched := map[int]bool{}
		m, err := NewMachine(g, func(z int) { touched[z] = true })
		if err != nil {
			t.Fatal(err)
		}
		r := &reference{g: g, cond: make([]Condition, g.Zones), wp: make([]int64, g.Zones)}
		for i := range r.cond {
			r.cond[i], r.wp[i] = Empty, 0
			if i < g.Conventional {
				r.cond[i], r.wp[i] = NotWP, g.SizeOf(i)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) {
				open, active := r.count(Condition.IsOpen), r.count(Condition.IsActive)
				if m.open != open || m.active != active {
					t.Fatalf("machine counts %d open, %d active; there are %d, %d", m.open, m.active, open, active)
				}
				for i := range r.cond {
					z := m.Zone(i)
					if z.Condition != r.cond[i] || z.Condition != Offline && z.Condition != ReadOnly && z.WP != r.wp[i] {
						t.Fatalf("zone %s, want %v at %d", zoneText(z), r.cond[i], r.wp[i]/blk)
					}
				}
			},
			"do": func(t *rapid.T) {
				z := rapid.IntRange(0, g.Zones-1).Draw(t, "zone")
				cmds := []string{"append", "append", "append", "open", "close", "finish", "reset"}
				if rapid.IntRange(0, 30).Draw(t, "rare") == 0 {
					cmds = []string{"offline"}
				}
				cmd := rapid.SampledFrom(cmds).Draw(t, "command")
				n := rapid.Int64Range(1, 6).Draw(t, "blocks")
				before := snapshot(m)
				clear(touched)
				line := []string{cmd, strconv.Itoa(z), strconv.FormatInt(n, 10)}
				if cmd == "offline" {
					line = []string{"fail", strconv.Itoa(z), "offline"}
				}
				err, want := run(m, line), r.do(cmd, z, n*blk)
				if cmd == "offline" && want == ErrZoneOffline {
					want = ErrInvalidTransition
				}
				if !errors.Is(err, want) || (err == nil) != (want == nil) {
					t.Fatalf("%v: %v, want %v", line, err, want)
				}
				for i, s := range snapshot(m) {
					if s != before[i] && !touched[i] {
						t.Fatalf("%v changed zone %d and did not say so", line, i)
					}
				}
			},
		})
	})
}

func TestReadsOfWritesUnderWay(t *testing.T) {
	m, err := NewMachine(Geometry{Dialect: ZNS, ZoneSize: 16 * blk, ZoneCapacity: 16 * blk, Zones: 1}, nil)
	if err != nil {
		t.Fatal(err)
	}
	read := func(from, n int64) error { _, err := m.CheckRead(0, from*blk, n*blk); return err }
	first, _ := m.StartAppend(0, 4*blk)
	second, _ := m.StartAppend(0, 4*blk)
	m.EndWrite(0, second)
	for _, c := range []struct {
		from, n int64
		ok      bool
	}{{4, 4, true}, {5, 1, true}, {3, 1, false}, {3, 2, false}, {0, 8, false}, {7, 2, false}} {
		if err := read(c.from, c.n); (err == nil) != c.ok {
			t.Errorf("read of blocks %d+%d with the first append under way: %v", c.from, c.n, err)
		}
	}
	m.EndWrite(0, first)
	m.EndWrite(0, first) // of nothing that is under way: no harm
	if err := read(0, 8); err != nil {
		t.Error(err)
	}
}

func TestRestore(t *testing.T) {
	g := Geometry{Dialect: SMR, ZoneSize: 8 * blk, ZoneCapacity: 8 * blk, Zones: 3, Conventional: 1}
	for _, c := range []struct {
		zone     int
		end      int64
		finished bool
		cond     Condition
		want     string // empty: corruption
	}{
		{0, 0, false, NotWP, "0 not-wp at 8"},
		{0, 0, false, Empty, ""},
		{1, 0, false, NotWP, ""},
		{1, 0, false, Empty, "1 empty at 0"},
		{1, 0, false, ExplicitOpen, "1 empty at 0"},
		{1, 3 * blk, false, ImplicitOpen, "1 closed at 3"},
		{1, 3 * blk, false, Empty, "1 closed at 3"},
		{1, 8 * blk, false, ImplicitOpen, "1 full at 8"},
		{1, 8 * blk, false, Full, "1 full at 8"},
		{1, 3 * blk, false, Full, ""},
		{1, 3 * blk, true, Full, "1 full at 8"},
		{1, 0, true, Full, "1 full at 8"},
		{1, 3 * blk, true, Closed, ""},
		{1, 3 * blk, false, ReadOnly, "1 read-only at 3"},
		{1, 3 * blk, true, ReadOnly, "1 read-only at 8"},
		{1, 9 * blk, false, Closed, ""},
		{1, -blk, false, Closed, ""},
		{1, 100, false, Closed, ""},
		{1, 0, false, Offline + 1, ""},
	} {
		m, err := NewMachine(g, nil)
		if err != nil {
			t.Fatal(err)
		}
		err = m.Restore(c.zone, c.end, c.finished, c.cond)
		if c.want == "" {
			if !errdefs.Is(err, errdefs.Corruption) {
				t.Errorf("%+v: %v, want corruption", c, err)
			}
			continue
		}
		if got := zoneText(m.Zone(c.zone)); err != nil || got != c.want {
			t.Errorf("%+v: zone %s, %v", c, got, err)
		}
	}
	m, _ := NewMachine(g, nil)
	if err := m.Restore(3, 0, false, Empty); !errdefs.Is(err, errdefs.InvalidArgument) {
		t.Errorf("no such zone: %v", err)
	}
}

func TestNames(t *testing.T) {
	var all []string
	for c := NotWP; c <= Offline+1; c++ {
		all = append(all, c.String())
	}
	for k := OpRead; k <= OpReset; k++ {
		all = append(all, k.String())
	}
	all = append(all, ZNS.String(), SMR.String(), Dialect(9).String())
	sort.Strings(all)
	for i, s := range all {
		if s == "" || i > 0 && all[i-1] == s {
			t.Errorf("name %q is empty or given twice", s)
		}
	}
}
