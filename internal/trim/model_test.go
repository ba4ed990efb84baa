package trim

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/shingle-store/shingle/internal/zone"
)

// drawSpace makes a store of any shape.
func drawSpace(t *rapid.T) *testSpace {
	size := rapid.Int64Range(1, 24).Draw(t, "size")
	var lines []string
	for range rapid.IntRange(1, 7).Draw(t, "groups") {
		capacity := int(rapid.Int64Range(1, size).Draw(t, "capacity"))
		kind, kinds := "conv ", "..tUUP"
		if rapid.Bool().Draw(t, "sequential") {
			kind = "seq "
			kinds = rapid.SampledFrom([]string{"_", "t", "x", "xU_", "P_", "xx_"}).Draw(t, "what")
		}
		g := kind
		for range capacity {
			g += string(kinds[rapid.IntRange(0, len(kinds)-1).Draw(t, "block")])
		}
		g += rapid.SampledFrom([]string{"", "", "", " busy", " failed"}).Draw(t, "state")
		if kind == "conv " {
			g = strings.TrimSuffix(g, " busy")
		}
		lines = append(lines, g)
	}
	return parseSpace(size, strings.Join(lines, "\n"))
}

// tally is what a trim of [from, to) of a space at rest must count, worked out block by block.
func tally(s *testSpace, sp span) (want Result) {
	for at := sp.from; at < sp.to; at += blk {
		slot, off := uint32(at/s.size), at%s.size
		g := s.groups[slot]
		start := int64(slot) * s.size
		whole := sp.from <= start && sp.to >= start+s.size
		figure := &want.Gap
		switch {
		case off >= g.Capacity:
		case g.Condition == Failed:
			figure = &want.Quarantined
		case g.Kind == Conventional:
			figure = tallyConventional(&want, s, sp, slot, off)
		case g.Condition == Trimmed:
			figure = &want.AlreadyTrimmed
		case g.Condition == Busy:
			figure = &want.Busy
		case g.Condition == InUse && strings.IndexByte("UPH", g.blocks[off/blk]) >= 0 && (whole || g.blocks[off/blk] != 'P'):
			figure = &want.InUse
		case g.Condition == InUse || !whole:
			figure = &want.PartialZone
		case g.Capacity < sp.minLength:
			figure = &want.TooShort
		default:
			figure = &want.Trimmed
			if off == 0 {
				want.Extents++
				if !g.Empty {
					want.ZonesReset++
				}
			}
		}
		*figure += blk
		want.Done += blk
	}
	want.Total, want.MinLength, want.NextStart = want.Done, uint64(sp.minLength), uint64(sp.to)
	want.State = Complete
	return want
}

func tallyConventional(want *Result, s *testSpace, sp span, slot uint32, off int64) *uint64 {
	b := s.groups[slot].blocks
	start := int64(slot) * s.size
	free := func(i int64) bool { return b[i] == '.' || b[i] == 't' }
	low, high := max(sp.from-start, 0)/blk, min(min(sp.to-start, s.size)/blk, int64(len(b)))
	i := off / blk
	if !free(i) {
		return &want.InUse
	}
	from, to := i, i
	for ; from > low && free(from-1); from-- {
	}
	for ; to < high && free(to); to++ {
	}
	switch {
	case (to-from)*blk < sp.minLength:
		return &want.TooShort
	case b[i] == 't':
		return &want.AlreadyTrimmed
	}
	if i == low || b[i-1] != '.' {
		want.Extents++
	}
	return &want.Trimmed
}

func drawRequest(t *rapid.T, s *testSpace) Request {
	slots, size := s.Layout()
	end := uint64(slots) * uint64(size)
	r := Request{Start: rapid.Uint64Range(0, end+blk).Draw(t, "start"), Length: ToEnd, DryRun: rapid.IntRange(0, 4).Draw(t, "dry") == 0}
	if rapid.Bool().Draw(t, "aligned") {
		r.Start -= r.Start % blk
	}
	switch rapid.IntRange(0, 3).Draw(t, "length of") {
	case 0:
		r.Length = rapid.Uint64Range(0, end+2*blk).Draw(t, "length")
	case 1:
		r.Start = r.Start / uint64(size) * uint64(size)
		r.Length = uint64(size) * rapid.Uint64Range(1, 3).Draw(t, "slots")
	case 2:
		r.Length = math.MaxUint64 - rapid.Uint64Range(0, end).Draw(t, "less")
	}
	r.MinLength = rapid.SampledFrom([]uint64{0, 1, blk, blk + 1, 3 * blk, math.MaxUint64}).Draw(t, "min")
	return r
}

// At rest every figure is what looking at block after block says, a dry run says what the run then
// does, and a second run touches nothing.
func TestRunAgainstTally(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSpace(t)
		r := drawRequest(t, s)
		slots, size := s.Layout()
		sp, err := r.check(int64(slots) * size)
		var want Result
		if err == nil {
			want = tally(s, sp)
		}
		got, gotErr := Run(context.Background(), s, r, nil)
		if (err == nil) != (gotErr == nil) {
			t.Fatalf("Run: %v, check: %v", gotErr, err)
		}
		if err != nil {
			return
		}
		if want.Commands, want.Batches = got.Commands, got.Batches; got != want || got.Batches > got.Commands {
			t.Fatalf("%+v of\n%s\ngot  %+v\nwant %+v", r, s, got, want)
		}
		if held := s.leftHeld(); held != nil {
			t.Fatalf("left held: %v", held)
		}
		checkLog(t, s)
		if r.DryRun {
			if len(s.log) > 0 {
				t.Fatalf("a dry run told the device %v", s.log)
			}
			r.DryRun = false
			real, _ := Run(context.Background(), s, r, nil)
			real.Commands, real.Batches = 0, 0
			if real != got {
				t.Fatalf("a dry run says\n%+v, the run\n%+v", got, real)
			}
		}
		s.log = nil
		again, _ := Run(context.Background(), s, r, nil)
		if again.Trimmed != 0 || len(s.log) > 0 || again.AlreadyTrimmed != got.AlreadyTrimmed+got.Trimmed || again.Done != got.Done {
			t.Fatalf("again: %+v, device told %v", again, s.log)
		}
	})
}

func checkLog(t *rapid.T, s *testSpace) {
	for _, l := range s.log {
		if strings.HasPrefix(l, "BUG") {
			t.Fatal(l)
		}
	}
}

// With everything against it (others who allocate, write and free, zones that fail, a cancel at
// any moment) a run gives back what it held, counts each byte once, leaves alone what is in use
// and what lies outside of its range, and what it says it trimmed it did.
func TestRunAmongOthers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSpace(t)
		r := drawRequest(t, s)
		r.DryRun = false
		slots, size := s.Layout()
		sp, err := r.check(int64(slots) * size)
		if err != nil {
			return
		}
		for slot := range slots {
			switch rapid.IntRange(0, 5).Draw(t, "fault") {
			case 0:
				s.faults[fmt.Sprintf("discard %d", slot)] = fmt.Errorf("broken")
			case 1:
				s.faults[fmt.Sprintf("zone %d", slot)] = fmt.Errorf("broken")
			case 2:
				s.faults[fmt.Sprintf("discard %d", slot)] = zone.ErrNoDiscard
			}
		}
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		stop := rapid.IntRange(-1, 12).Draw(t, "cancel at command")
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		commands := 0
		var inUse map[[2]int]byte
		s.before = func(string) {
			s.mu.Lock()
			defer s.mu.Unlock()
			if commands == stop {
				cancel()
			}
			commands++
			s.disturb(rng)
		}
		inUse = s.live()
		run := newRun(s, false, func(r Result) { checkFigures(t, r) })
		run.maxRanges, run.maxDepth = rapid.IntRange(1, 4).Draw(t, "ranges"), rapid.IntRange(1, 3).Draw(t, "depth")
		got, err := run.trim(ctx, r)
		if err != nil {
			t.Fatal(err)
		}
		checkFigures(t, got)
		checkLog(t, s)
		if held := s.leftHeld(); held != nil {
			t.Fatalf("left held: %v", held)
		}
		if got.State != Cancelled && (got.Done != got.Total || got.NextStart != uint64(sp.to)) {
			t.Fatalf("not cancelled, and not done: %+v", got)
		}
		if s.peak > max(run.maxDepth, 1) {
			t.Fatalf("%d commands under way", s.peak)
		}
		for at, b := range s.live() {
			if was, ok := inUse[at]; ok && was == 'U' && b != 'U' {
				t.Fatalf("block %v was live and is %c", at, b)
			}
		}
	})
}

func checkFigures(t *rapid.T, r Result) {
	sum := r.Trimmed + r.InUse + r.AlreadyTrimmed + r.TooShort + r.PartialZone + r.Busy + r.Unsupported + r.Gap + r.Quarantined + r.Failed
	if sum != r.Done || r.Done > r.Total || (r.Failed > 0) != (r.FirstError != nil) || (r.FailedZones > 0) != (r.Failed > 0) {
		t.Fatalf("figures add up to %d: %+v", sum, r)
	}
}

// live returns the blocks that are in use.
func (s *testSpace) live() map[[2]int]byte {
	out := map[[2]int]byte{}
	for slot, g := range s.groups {
		for i, b := range g.blocks {
			if b == 'U' {
				out[[2]int{slot, i}] = b
			}
		}
	}
	return out
}

// disturb does what others do at the same time: it allocates blocks that are free and not held,
// and turns to zones.
func (s *testSpace) disturb(rng *rand.Rand) {
	for range 3 {
		g := s.groups[rng.IntN(len(s.groups))]
		i := rng.IntN(len(g.blocks))
		switch {
		case g.Kind == Sequential && g.Condition == Idle && rng.IntN(4) == 0:
			for j := range g.blocks {
				g.blocks[j] = '_'
			}
			g.blocks[0] = 'P'
			g.settle()
		case g.Kind == Conventional && !g.held[i] && g.blocks[i] != 'U':
			g.blocks[i] = "UP."[rng.IntN(3)]
		}
	}
}

// A trim of a store that many others work on gives back everything, under the race detector too.
func TestRunInParallel(t *testing.T) {
	s := parseSpace(256, strings.Repeat("conv "+strings.Repeat(".U", 128)+"\nseq "+strings.Repeat("x", 200)+"\n", 8))
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		rng := rand.New(rand.NewPCG(1, 2))
		for {
			select {
			case <-stop:
				return
			default:
			}
			s.mu.Lock()
			s.disturb(rng)
			s.mu.Unlock()
		}
	}()
	for i := range 20 {
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(i)*200*time.Microsecond)
		if i%2 == 0 {
			ctx = context.Background()
		}
		run := newRun(s, false, nil)
		run.maxRanges = 1 + i
		if _, err := run.trim(ctx, Request{Length: ToEnd}); err != nil {
			t.Error(err)
		}
		cancel()
		if held := s.leftHeld(); held != nil {
			t.Fatalf("left held: %v", held)
		}
	}
	close(stop)
	<-done
	for _, l := range s.log {
		if strings.HasPrefix(l, "BUG") {
			t.Fatal(l)
		}
	}
}
