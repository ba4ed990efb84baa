package engine

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/scrub"
	"github.com/shingle-store/shingle/internal/zone/label"
)

// startScrub begins a scrub.
func startScrub(t testing.TB, e *Engine, r ScrubRequest) Scrub {
	t.Helper()
	s, err := e.StartScrub(context.Background(), r)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// watchScrub waits until the current scrub does not run, and holds what it shows meanwhile against what
// progress must be.
func watchScrub(t testing.TB, e *Engine) (s Scrub) {
	t.Helper()
	last := Scrub{}
	err := e.WatchScrub(context.Background(), "", time.Millisecond, func(now Scrub) error {
		if now.Done < last.Done || now.Done > now.Total || now.Skipped > now.Done || last.ID == now.ID && now.Total != last.Total || now.Rate < 0 || now.ETA < 0 {
			return fmt.Errorf("%+v after %+v", now, last)
		}
		last = now
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return last
}

// scrubAll runs a scrub to its end.
func scrubAll(t testing.TB, e *Engine, r ScrubRequest) Scrub {
	t.Helper()
	startScrub(t, e, r)
	s := watchScrub(t, e)
	if s.State != scrub.Finished || s.Done != s.Total || s.Ended.IsZero() || s.Error != "" {
		t.Fatalf("the scrub has not finished: %+v", s)
	}
	return s
}

// findings returns the findings of the latest scrub, page by page.
func allFindings(t testing.TB, e *Engine) (all []ScrubFinding) {
	t.Helper()
	for after, pages := uint64(0), 0; ; pages++ {
		found, next, err := e.ScrubFindings(context.Background(), ScrubFindingsQuery{After: after, Limit: 3})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, found...)
		if next == 0 {
			if len(all) > 3 && pages == 0 {
				t.Fatalf("%d findings in one page of 3", len(all))
			}
			return all
		}
		after = next
	}
}

// errorsOf is the sum of the counters of what is bad.
func errorsOf(s Scrub) uint64 { return s.Counters.Errors() }

// TestScrubOfNothing is over at once, with a percentage that can be worked out.
func TestScrubOfNothing(t *testing.T) {
	b := newFaultBench(t, smallZNS, Options{})
	e := b.open()
	if _, err := e.GetScrub(context.Background(), ""); !errdefs.Is(err, errdefs.NotFound) {
		t.Fatalf("before any: %v", err)
	}
	s := scrubAll(t, e, ScrubRequest{})
	if errorsOf(s) != 0 || s.Findings != 0 || s.Counters.TreeExtentsScrubbed == 0 || s.Counters.DataBytesScrubbed != 0 || s.Total == 0 {
		t.Errorf("%+v", s)
	}
	if s.Rate < 0 || s.ETA != 0 || s.ID != "1" {
		t.Errorf("%+v", s)
	}
	put(t, e, "empty", nil)
	if s = scrubAll(t, e, ScrubRequest{Scope: ScrubScope{File: "empty"}}); s.Total != 0 || s.Done != 0 || s.Skipped != 0 {
		t.Errorf("%+v", s)
	}
}

// corrupted is a store with bad blocks of all kinds in it.
type corrupted struct {
	*faultBench
	want map[string]string // by address: what the finding must say
}

func (c *corrupted) spoil(e *Engine, name string, piece, block int, others int) {
	c.t.Helper()
	ps := pieces(c.t, e, name)
	x := ps[(piece+len(ps))%len(ps)]
	if block < 0 {
		block += int(x.Blocks)
	}
	z, off := e.at(x, int64(block))
	if err := c.mem.Corrupt(z, off+9, 1); err != nil {
		c.t.Fatal(err)
	}
	hangs := pieceBytes(x, int64(block))
	a := uint64(x.Addr) + uint64(block)*extent.BlockSize
	c.want[fmt.Sprint(a)] = fmt.Sprintf("%s [%d, +%d) zone %d offset %d, %d others, want %08x", name, hangs.Off, hangs.Len(), z, off, others, x.Sums[block])
}

func describeFinding(f ScrubFinding) string {
	return fmt.Sprintf("%s [%d, +%d) zone %d offset %d, %d others, want %08x", f.File, f.Offset, f.Length, f.Zone, f.ZoneOffset, f.OtherReferences, f.Expected)
}

// check holds the findings of the latest scrub against what was spoiled.
func (c *corrupted) check(e *Engine, s Scrub, outcome scrub.Outcome) {
	c.t.Helper()
	found := allFindings(c.t, e)
	left := len(c.want)
	for _, f := range found {
		if f.Object != "" {
			continue
		}
		left--
		if want := c.want[fmt.Sprint(f.Address)]; describeFinding(f) != want {
			c.t.Errorf("found %s, want %q", describeFinding(f), want)
		}
		if f.Outcome != outcome || f.Actual == f.Expected || f.Unreadable || f.Time.IsZero() {
			c.t.Errorf("%+v", f)
		}
	}
	if left != 0 || s.Counters.CsumErrors != uint64(len(c.want)) || s.Findings != uint64(len(found)) || errorsOf(s) != uint64(len(found)) ||
		s.Counters.UncorrectableErrors != errorsOf(s) || s.Counters.CorrectedErrors != 0 {
		c.t.Errorf("%d of %d blocks were not found: %+v", left, len(c.want), s)
		for _, f := range found {
			c.t.Logf("%+v", f)
		}
	}
}

// newCorrupted fills a store with files large and small, raw and compressed, cut and cloned.
func newCorrupted(t *testing.T, o Options) (*corrupted, *Engine) {
	b := newFaultBench(t, faultZNS, quietReclaim(o))
	c := &corrupted{b, map[string]string{}}
	e := b.open()
	writeAt(t, e, "dir/large", 0, noise(1, 5<<20))
	put(t, e, "text", text(2, 1<<20))
	holey(t, e, "holey", noise(3, 1<<20))
	put(t, e, "cloned", noise(4, 300<<10))
	for i := range 3 {
		cloneFile(t, e, "cloned", fmt.Sprintf("clones/%d", i))
	}
	for i := range 40 {
		put(t, e, fmt.Sprintf("small/%d", i), noise(uint64(10+i), 1000+i*300))
	}
	syncAll(t, e)
	return c, e
}

// TestScrubCountsEachOnce corrupts blocks on the media and finds exactly these, each named, in a first
// scrub and a second one, and none when the files have been written again or deleted.
func TestScrubCountsEachOnce(t *testing.T) {
	modes(t, func(t *testing.T, o Options) {
		o.ScrubGroup = scrub.MinGroup
		c, e := newCorrupted(t, o)
		clean := scrubAll(t, e, ScrubRequest{})
		if errorsOf(clean) != 0 || clean.Findings != 0 || clean.Skipped != 0 || clean.Counters.UnverifiedErrors != 0 ||
			clean.Counters.NoCsum != 0 || clean.Counters.CsumDiscards != 0 {
			t.Fatalf("a sound store: %+v", clean)
		}
		c.spoil(e, "dir/large", 0, 1, 0)
		c.spoil(e, "dir/large", 0, 2, 0) // the same group
		c.spoil(e, "dir/large", -1, -1, 0)
		for _, x := range []int{3, 5, 8, 13} {
			c.spoil(e, "dir/large", x, 0, 0) // borders of extents
		}
		c.spoil(e, "text", 0, 0, 0)
		c.spoil(e, "holey", 3, 1, 0)
		c.spoilClone(e)
		c.spoilZoneEnd(e)
		s := scrubAll(t, e, ScrubRequest{})
		c.check(e, s, scrub.Uncorrectable)
		s = scrubAll(t, e, ScrubRequest{ReadOnly: true})
		c.check(e, s, scrub.NotRepairedReadOnly)
		if !s.ReadOnly || s.ID != "3" {
			t.Errorf("%+v", s)
		}
		e = c.reopen()
		if again, err := e.GetScrub(context.Background(), "3"); err != nil || again.Findings != s.Findings || again.Counters != s.Counters {
			t.Errorf("after a restart: %+v, %v", again, err)
		}
		c.check(e, s, scrub.NotRepairedReadOnly)

		put(t, e, "dir/large", noise(5, 2<<20))
		for _, name := range []string{"text", "holey", "cloned", "clones/0", "clones/1", "clones/2"} {
			deleteFile(t, e, name)
		}
		for i := range 40 {
			put(t, e, fmt.Sprintf("small/%d", i), noise(uint64(100+i), 1000+i*300))
		}
		syncAll(t, e)
		eventually(t, "the deleted to be freed", func() bool { return e.orphans.Load() == 0 })
		if s = scrubAll(t, e, ScrubRequest{}); errorsOf(s) != 0 || s.Findings != 0 {
			t.Errorf("after all was written again: %+v, %+v", s, allFindings(t, e))
		}
	})
}

func (c *corrupted) spoilClone(e *Engine) {
	c.t.Helper()
	c.spoil(e, "cloned", 0, 4, 3)
}

// spoilZoneEnd spoils the last block of a full zone.
func (c *corrupted) spoilZoneEnd(e *Engine) {
	c.t.Helper()
	for i, x := range pieces(c.t, e, "dir/large") {
		if _, off := e.at(x, x.Blocks-1); off+extent.BlockSize == e.geo.ZoneCapacity {
			a := uint64(x.Addr) + uint64(x.Blocks-1)*extent.BlockSize
			if c.want[fmt.Sprint(a)] == "" {
				c.spoil(e, "dir/large", i, -1, 0)
				return
			}
		}
	}
	c.t.Fatal("no file ends with a zone")
}

// TestScrubLabelsAndHeaders finds a bad label and a bad zone header, and mends both: the label is written anew,
// and what lies behind the header is moved.
func TestScrubLabelsAndHeaders(t *testing.T) {
	c, e := newCorrupted(t, Options{})
	a, _, err := label.Zones(e.Geometry())
	if err != nil {
		t.Fatal(err)
	}
	if err := c.mem.Corrupt(a, 100, 1); err != nil {
		t.Fatal(err)
	}
	x := pieces(t, e, "text")[0]
	z, _ := e.at(x, 0)
	if err := c.mem.Corrupt(z, 40, 1); err != nil {
		t.Fatal(err)
	}
	s := scrubAll(t, e, ScrubRequest{Scope: ScrubScope{Device: "0"}})
	found := allFindings(t, e)
	if s.Counters.SuperErrors != 2 || len(found) != 2 || found[0].Object != "devices/0/label" || found[0].Zone != uint32(a) ||
		found[1].Object != fmt.Sprintf("devices/0/zones/%d/header", z) || s.Counters.TreeExtentsScrubbed != 0 {
		t.Fatalf("%+v: %+v", s, found)
	}
	for _, f := range found {
		if f.Expected == f.Actual || f.Outcome != scrub.Repaired {
			t.Errorf("%+v", f)
		}
	}
	named := 0
	for _, cond := range e.Conditions() {
		if cond.Reason == "CORRUPTION" && strings.HasPrefix(cond.Object, "devices/0/") {
			named++
		}
	}
	if named != 0 || s.Counters.CorrectedErrors != 2 {
		t.Errorf("%+v: %+v", s, e.Conditions())
	}
	if s := scrubAll(t, e, ScrubRequest{}); s.Counters.SuperErrors != 0 {
		t.Errorf("again: %+v", s)
	}
	l, other, err := label.ReadBoth(c.mem)
	if err != nil || l.Generation != e.starts || other == 0 {
		t.Errorf("the labels are of starts %d and %d, not %d and one more: %v", l.Generation, other, e.starts, err)
	}
}
