package trim

import (
	"context"
	"fmt"
	"sort"
	"strings"
	"sync"

	"github.com/shingle-store/shingle/internal/extent"
)

const blk = extent.BlockSize

// testGroup is a block group a byte a block: '.' free, 't' free and trimmed, 'U' live, 'P' received
// and on its way; of a sequential zone also 'H' its header, 'x' dead, '_' never written.
type testGroup struct {
	Group
	blocks []byte
	held   []bool
}

// testSpace is a store that is nothing but its maps.
type testSpace struct {
	size int64

	mu     sync.Mutex
	groups []*testGroup
	log    []string // what the device was told
	faults map[string]error
	// before, unless nil, runs at the beginning of each command, without the lock: "discard 3".
	before func(command string)
	// holds and releases, to hold against each other.
	holds, releases int
	underWay, peak  int
}

// parseSpace reads a line a block group: "conv MAP" or "seq MAP [busy] [failed]". Blocks past the
// map, up to size, are the gap. A sequential zone is what its map says: nothing but '_' is empty,
// nothing but 't' is trimmed.
func parseSpace(size int64, text string) *testSpace {
	s := &testSpace{size: size * blk, faults: map[string]error{}}
	for _, line := range strings.Split(strings.TrimSpace(text), "\n") {
		f := strings.Fields(line)
		g := &testGroup{blocks: []byte(f[1]), held: make([]bool, len(f[1]))}
		g.Capacity = int64(len(f[1])) * blk
		if f[0] == "conv" {
			g.Kind = Conventional
		}
		g.settle()
		for _, w := range f[2:] {
			switch w {
			case "busy":
				g.Condition = Busy
			case "failed":
				g.Condition = Failed
			}
		}
		s.groups = append(s.groups, g)
	}
	return s
}

func (g *testGroup) count(kinds string) (n int64) {
	for _, b := range g.blocks {
		if strings.IndexByte(kinds, b) >= 0 {
			n++
		}
	}
	return n
}

// settle works out what a sequential zone's map says.
func (g *testGroup) settle() {
	if g.Kind == Conventional {
		return
	}
	g.Condition, g.Empty, g.Used = Idle, false, 0
	switch n := int64(len(g.blocks)); {
	case g.count("UP") > 0:
		g.Condition, g.Used = InUse, g.count("UPH")*blk
	case g.count("t") == n:
		g.Condition = Trimmed
	case g.count("_") == n:
		g.Empty = true
	}
}

func (s *testSpace) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out strings.Builder
	for _, g := range s.groups {
		kind := "seq"
		if g.Kind == Conventional {
			kind = "conv"
		}
		fmt.Fprintf(&out, "%s %s\n", kind, g.blocks)
	}
	return out.String()
}

func (s *testSpace) Layout() (int, int64) { return len(s.groups), s.size }

func (s *testSpace) Group(slot uint32) Group {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.groups[slot].Group
}

func (s *testSpace) LiveIn(slot uint32, from, to int64) (n int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.faults[fmt.Sprintf("live %d", slot)]; err != nil {
		return 0, err
	}
	for _, b := range s.groups[slot].blocks[from/blk : to/blk] {
		if b == 'U' || b == 'H' {
			n += blk
		}
	}
	return n, nil
}

// begin is what commands have in common; end follows it.
func (s *testSpace) begin(format string, a ...any) error {
	what := fmt.Sprintf(format, a...)
	key := strings.Join(strings.Fields(what)[:2], " ")
	if s.before != nil {
		s.before(key)
	}
	s.mu.Lock()
	s.log = append(s.log, what)
	s.underWay++
	s.peak = max(s.peak, s.underWay)
	return s.faults[key]
}

func (s *testSpace) end() {
	s.underWay--
	s.mu.Unlock()
}

func (s *testSpace) GiveBack(ctx context.Context, slot uint32) (bool, error) {
	err := s.begin("zone %d", slot)
	defer s.end()
	g := s.groups[slot]
	switch {
	case err != nil:
		return false, err
	case ctx.Err() != nil:
		return false, ctx.Err()
	case g.Condition != Idle:
		return false, ErrBusy
	}
	empty := g.Empty
	for i := range g.blocks {
		g.blocks[i] = 't'
	}
	g.settle()
	return !empty, nil
}

func (s *testSpace) FreeRun(slot uint32, from, to int64) extent.Range {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.freeLocked(slot, from, to)
}

func (s *testSpace) freeLocked(slot uint32, from, to int64) extent.Range {
	g := s.groups[slot]
	free := func(i int64) bool { return (g.blocks[i] == '.' || g.blocks[i] == 't') && !g.held[i] }
	i := from / blk
	for ; i < to/blk && !free(i); i++ {
	}
	j := i
	for ; j < to/blk && free(j); j++ {
	}
	return extent.Range{Off: i * blk, End: j * blk}
}

func (s *testSpace) Fresh(slot uint32, run extent.Range) (out []extent.Range) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := run.Off; i < run.End; i += blk {
		if s.groups[slot].blocks[i/blk] == 't' {
			continue
		}
		if n := len(out); n > 0 && out[n-1].End == i {
			out[n-1].End += blk
		} else {
			out = append(out, extent.Range{Off: i, End: i + blk})
		}
	}
	return out
}

func (s *testSpace) Hold(slot uint32, in extent.Range) extent.Range {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.freeLocked(slot, in.Off, in.End)
	for i := r.Off; i < r.End; i += blk {
		s.groups[slot].held[i/blk] = true
		s.holds++
	}
	return r
}

func (s *testSpace) Discard(slot uint32, ranges []extent.Range) error {
	var text strings.Builder
	for _, r := range ranges {
		fmt.Fprintf(&text, " %d-%d", r.Off/blk, r.End/blk)
	}
	err := s.begin("discard %d%s", slot, text.String())
	defer s.end()
	for _, r := range ranges {
		for i := r.Off; i < r.End; i += blk {
			if g := s.groups[slot]; !g.held[i/blk] || g.blocks[i/blk] == 'U' {
				s.log = append(s.log, fmt.Sprintf("BUG: block %d of %d is discarded and not held", i/blk, slot))
			}
		}
	}
	return err
}

func (s *testSpace) Release(slot uint32, ranges []extent.Range, discarded bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range ranges {
		for i := r.Off / blk; i < r.End/blk; i++ {
			g := s.groups[slot]
			if !g.held[i] {
				s.log = append(s.log, fmt.Sprintf("BUG: block %d of %d is released and not held", i, slot))
			}
			g.held[i] = false
			s.releases++
			if discarded {
				g.blocks[i] = 't'
			}
		}
	}
}

// told returns what the device was told since the last call, in order of slots.
func (s *testSpace) told() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.log
	s.log = nil
	sort.SliceStable(out, func(i, j int) bool { return slotOf(out[i]) < slotOf(out[j]) })
	if len(out) == 0 {
		return "device: nothing\n"
	}
	return "device: " + strings.Join(out, "; ") + "\n"
}

func slotOf(command string) (n int) {
	_, _ = fmt.Sscanf(strings.Fields(command)[1], "%d", &n)
	return n
}

// leftHeld returns what is still held, which must be nothing.
func (s *testSpace) leftHeld() (out []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for slot, g := range s.groups {
		for i, h := range g.held {
			if h {
				out = append(out, fmt.Sprintf("%d/%d", slot, i))
			}
		}
	}
	if s.holds != s.releases {
		out = append(out, fmt.Sprintf("%d holds and %d releases", s.holds, s.releases))
	}
	return out
}
