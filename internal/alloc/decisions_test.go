package alloc

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/shingle-store/shingle/internal/errdefs"
)

// script runs the little language of testdata: one call a line, sizes in blocks.
type script struct {
	a      *Allocator
	grants []Grant
	wait   <-chan struct{}
}

// TestDecisions runs testdata. Commands:
//
//	new groups=N blocks=CAPACITY [last=CAPACITY] [conventional=N] [reserve=N] [max=N] [spare=N]
//	    input lines: SLOT STATE CLASS OFFSET LIVE, for block groups that are not empty;
//	    SLOT bits BITMAP, # a used block and . a free one, for conventional ones
//	run
//	    input lines: the calls, each echoed with its answer
func TestDecisions(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		s := &script{}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "new":
				return s.build(t, d)
			case "run":
				var b strings.Builder
				for _, line := range strings.Split(d.Input, "\n") {
					answer := s.call(t, strings.Fields(line))
					if answer != "" {
						answer = ": " + answer
					}
					fmt.Fprintf(&b, "%s%s\n", line, answer)
					checkBooks(t, s.a)
				}
				return b.String()
			}
			t.Fatalf("unknown command %q", d.Cmd)
			return ""
		})
	})
}

func (s *script) build(t *testing.T, d *datadriven.TestData) string {
	var n, blocks, last, conventional, reserve, limit, spare int
	d.ScanArgs(t, "groups", &n)
	d.ScanArgs(t, "blocks", &blocks)
	d.MaybeScanArgs(t, "last", &last)
	d.MaybeScanArgs(t, "max", &limit)
	d.MaybeScanArgs(t, "spare", &spare)
	groups := uniform(n, int64(blocks))
	if last > 0 {
		groups[n-1].Capacity = int64(last) * blk
	}
	if d.MaybeScanArgs(t, "conventional", &conventional) {
		for i := range conventional {
			groups[i].Conventional = true
		}
	}
	bitmaps := map[uint32][]uint64{}
	o := Options{Bitmaps: bitmaps, BlockGroups: groups, MaxActive: limit, RelocationActive: spare, Reserve: DefaultReserve(groups)}
	if d.MaybeScanArgs(t, "reserve", &reserve) {
		o.Reserve = int64(reserve) * blk
	}
	for _, line := range strings.Split(d.Input, "\n") {
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		g := &groups[number(t, f[0])]
		if f[1] == "bits" {
			g.Live = int64(strings.Count(f[2], "#")) * blk
			bitmaps[g.Slot] = bitsOf(f[2])
			continue
		}
		g.State, g.Class = stateOf(t, f[1]), classOf(t, f[2])
		g.AllocOffset, g.Live = number(t, f[3])*blk, number(t, f[4])*blk
	}
	s.a, s.grants, s.wait = mustNew(t, o), nil, nil
	checkBooks(t, s.a)
	return s.usage()
}

func (s *script) call(t *testing.T, f []string) string {
	arg := func(i int) string {
		if i >= len(f) {
			t.Fatalf("%v: argument %d is missing", f, i)
		}
		return f[i]
	}
	num := func(i int) int64 { return number(t, arg(i)) }
	slot := func() uint32 { return uint32(num(1)) }
	has := func(word string) bool { return f[len(f)-1] == word }
	switch f[0] {
	case "reserve":
		if err := s.a.Reserve(num(1) * blk); err != nil {
			return fmt.Sprintf("%v (%s)", errdefs.KindOf(err), errdefs.ReasonOf(err))
		}
	case "unreserve":
		s.a.Unreserve(num(1) * blk)
	case "alloc", "small":
		before := s.a.Stats()
		allocate := s.a.Allocate
		if f[0] == "small" {
			allocate = s.a.AllocateSmall
		}
		g, out := allocate(classOf(t, arg(1)), num(2)*blk)
		after := s.a.Stats()
		looked := fmt.Sprintf("examined %d", after.Examined-before.Examined)
		if out != Granted {
			return fmt.Sprintf("%v, %s", out, looked)
		}
		s.grants = append(s.grants, g)
		if after.HintHits > before.HintHits {
			looked += ", hint"
		}
		where := ""
		if g.Conventional {
			where = fmt.Sprintf(" at %d", g.Off/blk)
		}
		return fmt.Sprintf("grant %d: %d blocks in %d%s, %s", len(s.grants)-1, g.Length/blk, g.Slot, where, looked)
	case "open":
		b, ok := s.a.BeginOpen(classOf(t, arg(1)))
		if !ok {
			return "refused"
		}
		return fmt.Sprintf("slot %d generation %d", b.Slot, b.Generation)
	case "opened":
		s.a.FinishOpen(slot(), !has("failed"))
	case "complete":
		s.a.Complete(s.grants[num(1)])
	case "fail":
		s.a.Fail(s.grants[num(1)])
	case "publish":
		s.a.Publish(slot(), num(2)*blk)
	case "discard":
		if len(f) > 3 && f[3] != "rereserve" {
			s.a.DiscardRun(slot(), num(3)*blk, num(2)*blk, has("rereserve"))
			return ""
		}
		s.a.Discard(slot(), num(2)*blk, has("rereserve"))
	case "vacate":
		s.a.Vacate(slot(), num(2)*blk, num(3)*blk)
	case "mended":
		s.a.Mended(slot(), num(2)*blk, num(3)*blk)
	case "run", "hold":
		find := s.a.FreeRun
		if f[0] == "hold" {
			find = s.a.HoldFree
		}
		off, n, ok := find(slot(), num(2)*blk, num(3)*blk, num(4)*blk, num(5)*blk)
		if !ok {
			return "none"
		}
		return fmt.Sprintf("%d blocks at %d", n/blk, off/blk)
	case "bits":
		return bitsIn(s.a, slot())
	case "kinds":
		var parts []string
		for _, c := range s.a.ByClass() {
			kind := "sequential"
			if c.Conventional {
				kind = "conventional"
			}
			parts = append(parts, fmt.Sprintf("%s %v %d: total=%d used=%d free=%d unusable=%d pending=%d quarantined=%d", kind, c.Class, c.BlockGroups,
				c.Total/blk, c.Used/blk, c.Free/blk, c.Unusable/blk, c.Pending/blk, c.Quarantined/blk))
		}
		return strings.Join(parts, "; ")
	case "free":
		s.a.Free(slot(), num(2)*blk)
	case "suspect":
		if has("all") {
			s.a.SuspectAll()
		} else {
			s.a.Suspect(slot())
		}
	case "retire":
		s.a.Retire(slot())
	case "quarantine":
		s.a.Quarantine(slot(), has("readable"))
	case "pin":
		if _, ok := s.a.Pin(slot()); !ok {
			return "refused"
		}
	case "unpin":
		s.a.Unpin(slot())
	case "closedead":
		if slot, ok := s.a.CloseDead(); ok {
			return fmt.Sprintf("slot %d", slot)
		}
		return "none"
	case "closing":
		return fmt.Sprint(s.a.Closing())
	case "reset":
		b, ok := s.a.BeginReset()
		if !ok {
			return "nothing to reset"
		}
		return fmt.Sprintf("slot %d", b.Slot)
	case "wasreset":
		s.a.FinishReset(slot(), !has("failed"))
	case "wait":
		s.wait = s.a.Changed()
	case "woken":
		select {
		case <-s.wait:
			return "yes"
		default:
			return "no"
		}
	case "usage":
		return s.usage()
	case "group":
		b := s.a.Snapshot(int(num(1)), 1)[0]
		return fmt.Sprintf("%v %v offset=%d live=%d pending=%d unusable=%d generation=%d",
			b.State, b.Class, b.AllocOffset/blk, b.Live/blk, b.Pending/blk, b.Unusable/blk, b.Generation)
	case "stats":
		return fmt.Sprintf("%+v", s.a.Stats())
	case "#":
	default:
		t.Fatalf("unknown call %v", f)
	}
	return ""
}

func (s *script) usage() string {
	u := s.a.Usage()
	var b strings.Builder
	fmt.Fprintf(&b, "total=%d = used=%d free=%d unusable=%d reserved=%d quarantined=%d; active=%d/%d",
		u.Total/blk, u.Used/blk, u.Free/blk, u.Unusable/blk, u.Reserved/blk, u.Quarantined/blk, u.Active, u.MaxActive)
	if u.Reclaimable != 0 {
		fmt.Fprintf(&b, " reclaimable=%d", u.Reclaimable/blk)
	}
	if u.Deficit != 0 {
		fmt.Fprintf(&b, " deficit=%d", u.Deficit/blk)
	}
	return b.String()
}

// bitsOf reads a bitmap as testdata has it.
func bitsOf(s string) []uint64 {
	w := make([]uint64, (len(s)+63)/64)
	for i, c := range s {
		if c == '#' {
			w[i/64] |= 1 << (i % 64)
		}
	}
	return w
}

// bitsIn writes the bitmap of a conventional block group as testdata has it.
func bitsIn(a *Allocator, slot uint32) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	m := a.groups[slot].runs
	b := make([]byte, m.blocks)
	for i := range b {
		b[i] = '#'
		if at, n := m.next(i, i+1, 1); n == 1 && at == i {
			b[i] = '.'
		}
	}
	return string(b)
}

func number(t *testing.T, s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func classOf(t *testing.T, s string) Class {
	for c := Class(0); c < classes; c++ {
		if c.String() == s {
			return c
		}
	}
	t.Fatalf("no class %q", s)
	return 0
}

func stateOf(t *testing.T, s string) State {
	for i, name := range stateNames {
		if name == s {
			return State(i)
		}
	}
	t.Fatalf("no state %q", s)
	return 0
}

// checkFiled holds the place of a conventional block group in the index against its bitmap.
func checkFiled(t interface{ Fatalf(string, ...any) }, a *Allocator, slot uint32, g *group) {
	longest := g.runs.longest()
	for i := range a.runs.orders {
		in := g.state == Active && longest >= 1<<i && longest < 2<<i
		if a.runs.orders[i].has(slot) != in {
			t.Fatalf("block group %d with a run of %d is filed wrongly under order %d", slot, longest, i)
		}
	}
}

// checkBooks holds the sums against the block groups they were made of, and the identity.
func checkBooks(t interface{ Fatalf(string, ...any) }, a *Allocator) {
	u := a.Usage()
	if u.Total != u.Used+u.Free+u.Unusable+u.Reserved+u.Quarantined {
		t.Fatalf("identity broken: %+v", u)
	}
	if min(u.Used, u.Free, u.Unusable, u.Reserved, u.Quarantined, u.Reclaimable, u.Deficit) < 0 {
		t.Fatalf("negative account: %+v", u)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	// Only what was recovered may be over the budget, and all of that is on its way out.
	if u.Active-len(a.closing) > u.MaxActive {
		t.Fatalf("over the budget: %+v", u)
	}
	var sum figures
	var parts [classes][kinds]figures
	active, listed, empty, dead := 0, 0, 0, 0
	for i := range a.groups {
		g := &a.groups[i]
		f := g.figures()
		if g.runs != nil {
			checkFiled(t, a, uint32(i), g)
			f.free = max(0, f.free) // may be below zero until Free has caught up with Vacate
		}
		if min(f.live, f.pending, f.free, f.unusable, f.quarantined, g.inflight, g.pending-g.inflight) < 0 {
			t.Fatalf("block group %d: negative figure: %+v of %+v", i, f, *g)
		}
		f = g.figures()
		if f.live+f.pending+f.free+f.unusable+f.quarantined != g.usable() {
			t.Fatalf("block group %d: %+v does not add up to %d", i, f, g.usable())
		}
		sum.add(f, 1)
		c, kind := g.part()
		parts[c][kind].add(f, 1)
		if g.holds {
			active++
		}
		if g.state == Active && !g.opening && g.room() > 0 {
			listed++
		}
		if g.state == Empty {
			empty++
		}
		if g.state == Full && g.idle() && g.pins == 0 {
			dead++
		}
	}
	inLists := 0
	for c, l := range a.lists {
		inLists += len(l)
		for _, s := range l {
			if g := &a.groups[s]; g.state != Active || g.room() == 0 || g.class != Class(c) {
				t.Fatalf("block group %d is wrongly listed: %+v", s, *g)
			}
		}
	}
	if parts != a.parts {
		t.Fatalf("by class and kind %+v, kept %+v", parts, a.parts)
	}
	if sum != a.sum || active != a.active || listed != a.listed || inLists != listed ||
		empty != a.empty.count || dead != a.dead.count {
		t.Fatalf("sums %+v active=%d listed=%d (%d) empty=%d dead=%d, kept %+v active=%d listed=%d empty=%d dead=%d",
			sum, active, listed, inLists, empty, dead, a.sum, a.active, a.listed, a.empty.count, a.dead.count)
	}
}
