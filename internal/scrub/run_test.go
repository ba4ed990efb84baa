package scrub

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/shingle-store/shingle/internal/extent"
)

// fill makes a space of n blocks of which about one in gaps is not live.
func fill(seed uint64, n, zone, gaps int) *testSpace {
	r := rand.New(rand.NewPCG(seed, 1))
	s := &testSpace{zone: int64(zone), blocks: make([]block, n), known: map[int64]bool{}, badRecs: map[int]bool{}}
	for i := range s.blocks {
		s.blocks[i].live = r.IntN(gaps) > 0
	}
	return s
}

func run(t testing.TB, s *testSpace, at Progress, plan Plan) Batch {
	t.Helper()
	last, drained, err := Run(t.Context(), s, plan, at, s.options(0))
	<-drained
	if err != nil {
		t.Fatal(err)
	}
	if s.pins != 0 {
		t.Fatalf("%d looks were not let go of", s.pins)
	}
	return last
}

// all returns what was recorded and what Run answered last, as one.
func (s *testSpace) all(last Batch) (found []Finding) {
	for _, b := range s.saved {
		found = append(found, b.Findings...)
	}
	return append(found, last.Findings...)
}

// TestEachErrorOnce is seeds S3's trap: bad blocks in one read, at its border, at a step's border, at a
// zone's end, and what passes, and what only others met.
func TestEachErrorOnce(t *testing.T) {
	s := fill(1, 2000, 500, 1000000)
	s.records, s.badRecs[3] = 30, true
	s.labels = []Finding{{Super: true, Object: "devices/0/label", Outcome: Uncorrectable}}
	bad := []int{7, 8, 255, 256, 499, 511, 512, 1999}
	for _, i := range bad {
		s.blocks[i].bad = true
	}
	for _, i := range []int{31, 32, 1000} {
		s.blocks[i].flaky = 1
	}
	s.blocks[100].unreadable, s.blocks[1500].unreadable = true, true
	s.blocks[700].bad, s.known[700*extent.BlockSize] = true, true
	s.met = []Finding{{File: "f", Address: 700 * extent.BlockSize, Outcome: Uncorrectable}}
	plan := s.plan()
	last := run(t, s, Progress{}, plan)
	c := last.Progress.Counters
	want := Counters{
		DataExtentsScrubbed: 0, TreeExtentsScrubbed: 30, DataBytesScrubbed: 2000 * extent.BlockSize, TreeBytesScrubbed: 300,
		ReadErrors: 2, CsumErrors: uint64(len(bad)) + 1, VerifyErrors: 1, SuperErrors: 1, UnverifiedErrors: c.UnverifiedErrors,
		UncorrectableErrors: uint64(len(bad)) + 5, LastPhysical: 2000 * extent.BlockSize,
		ExtentLookups: c.ExtentLookups, CsumLookups: c.CsumLookups, ReadOperations: c.ReadOperations, BytesRead: c.BytesRead,
	}
	if c != want {
		t.Errorf("counters\n%+v, want\n%+v", c, want)
	}
	// Beside the blocks that fail once, those that share a read with one that cannot be read.
	if c.UnverifiedErrors < 3 || int(c.ReadOperations) != s.reads+2 || int64(c.BytesRead) != s.bytes+2*extent.BlockSize {
		t.Errorf("%d unverified, %d of %d reads", c.UnverifiedErrors, c.ReadOperations, s.reads)
	}
	if last.Progress.Phase != Over || last.Progress.Done != plan.Total() || last.Progress.Skipped != 0 {
		t.Errorf("%+v", last.Progress)
	}
	var at []int
	for _, f := range s.all(last) {
		if f.File != "" {
			at = append(at, int(f.Address/extent.BlockSize))
		}
	}
	slices.Sort(at)
	if !slices.Equal(at, []int{7, 8, 100, 255, 256, 499, 511, 512, 700, 1500, 1999}) {
		t.Errorf("found %v", at)
	}
}

// TestHeaders holds the header of each zone against what it must be, in the read of what follows it.
func TestHeaders(t *testing.T) {
	s := fill(1, 400, 100, 1000000)
	s.headers = true
	for i := range 4 {
		s.blocks[i*100].live = false
	}
	s.blocks[100].bad, s.blocks[200].flaky, s.blocks[300].unreadable = true, 1, true
	plan := s.plan()
	last := run(t, s, Progress{}, plan)
	c := last.Progress.Counters
	if c.SuperErrors != 2 || c.Errors() != 2 || c.UncorrectableErrors != 2 || c.DataBytesScrubbed != 396*extent.BlockSize || last.Progress.Done != plan.Total() {
		t.Errorf("%+v", last.Progress)
	}
	for i, f := range s.all(last) {
		if f.Address != uint64(100+200*i)*extent.BlockSize || f.Unreadable != (i == 1) {
			t.Errorf("finding %+v", f)
		}
	}
}

// TestUnreadableIsOneError: the rest of a read that fails is read alone, and is no error at all.
func TestUnreadableIsOneError(t *testing.T) {
	s := fill(1, 300, 300, 1000000)
	s.blocks[10].unreadable = true
	last := run(t, s, Progress{}, s.plan())
	if c := last.Progress.Counters; c.ReadErrors != 1 || c.Errors() != 1 || c.UncorrectableErrors != 1 {
		t.Errorf("%+v", c)
	}
}

// TestScrubResumes stops scrubs anywhere, in any number of ways, while blocks die, are written again and
// go bad before the scrub is there, and goes on from what was recorded: every bad block that stays is
// found once, no other is, at most one group is read again, and progress is what Plan says.
func TestScrubResumes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 3000).Draw(t, "blocks")
		s := fill(rapid.Uint64().Draw(t, "seed"), n, rapid.IntRange(1, 700).Draw(t, "zone"), rapid.SampledFrom([]int{2, 5, 100000}).Draw(t, "gaps"))
		s.records = rapid.IntRange(0, 60).Draw(t, "records")
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "more"), 2))
		doomed := map[int]bool{} // may be found bad or not
		for i := range s.blocks {
			b := &s.blocks[i]
			switch r.IntN(60) {
			case 0:
				b.bad = true
			case 1:
				b.unreadable = true
			case 2:
				b.flaky = 1
			case 3:
				b.bad, b.later = true, true
			}
		}
		plan := s.plan()
		at, found, lastDone := Progress{}, map[uint64]int{}, int64(0)
		for at.Phase != Over {
			ctx, cancel := context.WithCancel(context.Background())
			left := rapid.IntRange(1, 40).Draw(t, "reads")
			s.mu.Lock()
			s.onRead = func() {
				s.mu.Lock()
				defer s.mu.Unlock()
				if left--; left == 0 {
					cancel()
				}
				if i := r.IntN(n); r.IntN(4) == 0 {
					// Only what a scrub must not care about.
					if b := &s.blocks[i]; r.IntN(2) == 0 {
						b.live = false
					} else {
						b.later = true
					}
					doomed[i] = true
				}
			}
			s.saved, s.touched = nil, map[int64]bool{}
			s.mu.Unlock()
			last, drained, err := Run(ctx, s, plan, at, s.options(0))
			cancel()
			<-drained
			if s.pins != 0 {
				t.Fatalf("%d looks were not let go of", s.pins)
			}
			if err != nil && !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
			batches := s.saved
			if !rapid.Bool().Draw(t, "killed") || err == nil {
				batches = append(batches, last) // else what was not recorded is lost
			}
			for _, b := range batches {
				for _, f := range b.Findings {
					found[f.Address]++
				}
				if b.Progress.Done < lastDone || b.Progress.Done > plan.Total() {
					t.Fatalf("%+v after %d of %d", b.Progress, lastDone, plan.Total())
				}
				lastDone, at = b.Progress.Done, b.Progress
			}
			// What was read in this run and is not recorded is what a resume reads again.
			again := 0
			for i := range s.touched {
				if i*extent.BlockSize >= at.At {
					again++
				}
			}
			if again*extent.BlockSize > MinGroup {
				t.Fatalf("%d blocks are to be read again", again)
			}
		}
		if at.Done != plan.Total() || int64(at.Counters.DataBytesScrubbed)+plan.MetadataTotal+at.Skipped != plan.Total() {
			t.Fatalf("at the end: %+v of %d", at, plan.Total())
		}
		for i, b := range s.blocks {
			a := uint64(i * extent.BlockSize)
			want := b.live && !b.later && (b.bad || b.unreadable)
			switch {
			case found[a] > 1:
				t.Fatalf("block %d was found %d times", i, found[a])
			case doomed[i]:
			case want != (found[a] == 1):
				t.Fatalf("block %d: %+v, found %d times", i, b, found[a])
			}
		}
	})
}

// TestCancelWhileReadsStall answers within a second although no read returns, and what is left behind
// ends when the device does answer.
func TestCancelWhileReadsStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := fill(1, 4000, 1000, 1000000)
		s.stall = make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		go func() { time.Sleep(5 * time.Second); cancel() }()
		began := time.Now()
		_, drained, err := Run(ctx, s, s.plan(), Progress{}, s.options(0))
		if took := time.Since(began); !errors.Is(err, context.Canceled) || took > 6*time.Second {
			t.Errorf("after %v: %v", took, err)
		}
		synctest.Wait()
		select {
		case <-drained:
			t.Error("reads that have not returned are not waited for")
		default:
		}
		close(s.stall)
		<-drained
		if s.pins != 0 {
			t.Errorf("%d looks were not let go of", s.pins)
		}
	})
}

// TestDeadDevice is no thousand bad blocks: nothing of it is recorded.
func TestDeadDevice(t *testing.T) {
	s := fill(1, 3000, 1000, 1000000)
	reads := 0
	s.onRead = func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if reads++; reads == 6 {
			s.dead = true
		}
	}
	plan := s.plan()
	last, drained, err := Run(t.Context(), s, plan, Progress{}, s.options(0))
	<-drained
	if !errors.Is(err, errMedia) || len(s.all(last)) > 0 || last.Progress.Done == plan.Total() {
		t.Fatalf("%+v, %v", last.Progress, err)
	}
	s.dead, s.onRead = false, nil
	if last = run(t, s, last.Progress, plan); last.Progress.Done != plan.Total() || last.Progress.Counters.Errors() > 0 {
		t.Errorf("%+v", last.Progress)
	}
}

// TestCannotRecord ends the scrub; what could not be recorded is not lost, but read again.
func TestCannotRecord(t *testing.T) {
	s := fill(1, 4000, 1000, 1000000)
	s.blocks[5].bad = true
	s.failSave = errMedia
	_, drained, err := Run(t.Context(), s, s.plan(), Progress{}, s.options(0))
	<-drained
	if !errors.Is(err, errMedia) {
		t.Fatal(err)
	}
	s.failSave = nil
	last := run(t, s, Progress{}, s.plan())
	if len(s.all(last)) != 1 {
		t.Errorf("found %v", s.all(last))
	}
}

// TestGivesWay rests three quarters of its time while clients use the store, and not a moment else.
func TestGivesWay(t *testing.T) {
	for _, busy := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := fill(1, 4096, 1024, 1000000)
			s.onRead = func() {
				time.Sleep(10 * time.Millisecond)
				if busy {
					s.mu.Lock()
					s.others++
					s.mu.Unlock()
				}
			}
			began := time.Now()
			run(t, s, Progress{}, s.plan())
			took := time.Since(began)
			// 128 reads of 10 ms, four at a time; or one at a time, with a rest of 30 ms after each.
			if !busy && took > 400*time.Millisecond || busy && took < 4*time.Second {
				t.Errorf("busy %t: %v for %d reads", busy, took, s.reads)
			}
		})
	}
}

// TestRunLimit holds the limit with everything in the way that there is.
func TestRunLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := fill(1, 12<<10, 1024, 1000000) // 48 MiB
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		o := s.options(8 << 20)
		o.Group = 0
		_, drained, err := Run(ctx, s, s.plan(), Progress{}, o)
		<-drained
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		within(t, "5 s", s.bytes, 40<<20, 0.2)
		if n := len(s.saved); n < 5 || n > 15 {
			t.Errorf("recorded %d times", n)
		}
	})
}

// TestGroupsAreLarge: one search of each tree, and one command, for many megabytes that lie together.
func TestGroupsAreLarge(t *testing.T) {
	s := fill(1, 64<<8, 64<<8, 1<<30) // 64 MiB
	o := s.options(0)
	o.Group = 0
	last, drained, err := Run(t.Context(), s, s.plan(), Progress{}, o)
	<-drained
	if err != nil {
		t.Fatal(err)
	}
	c := last.Progress.Counters
	if got := fmt.Sprint(c.ExtentLookups, c.CsumLookups, c.ReadOperations-2); got != "8 8 64" {
		t.Errorf("look-ups and reads: %s", got)
	}
}
