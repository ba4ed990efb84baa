package engine

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/scrub"
	"github.com/shingle-store/shingle/internal/store"
	"github.com/shingle-store/shingle/internal/zone"
)

// scrubMachine is a store whose files are changed, and go bad, between the steps of a scrub.
type scrubMachine struct {
	t      *rapid.T
	b      *faultBench
	e      *Engine
	rng    *rand.Rand
	spoilt map[extent.Addr]uint64 // ever; when what was spoilt last was placed there
}

// TestScrubAgainstModel stops a scrub at any moment, in every way, changes whatever a client can change,
// and goes on: at the end it has found each bad block that was bad at its start and still is, once, and
// nothing that is not bad; its progress adds up.
func TestScrubAgainstModel(t *testing.T) {
	alone(t)
	if f := flag.Lookup("rapid.checks"); f.Value.String() == f.DefValue {
		n := "25"
		if testing.Short() {
			n = "5"
		}
		if err := f.Value.Set(n); err != nil {
			t.Fatal(err)
		}
		defer f.Value.Set(f.DefValue)
	}
	rapid.Check(t, func(rt *rapid.T) {
		m := &scrubMachine{t: rt, rng: rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 3)), spoilt: map[extent.Addr]uint64{}}
		codec := extent.Codec(rapid.IntRange(0, 1).Draw(rt, "codec"))
		g := rapid.SampledFrom([]zone.Geometry{zns(60, 256<<10), zns(60, 256<<10), disk, mixedSMR}).Draw(rt, "device")
		m.b = newFaultBench(t, g, quietReclaim(Options{Compression: &codec, ScrubGroup: scrub.MinGroup, DirtyLimit: minDirtyLimit}))
		m.e = m.b.open()
		defer func() { _ = m.b.e.Close(context.Background()) }()
		for i := range 5 {
			m.write(fmt.Sprintf("f%d", i))
		}
		for range rapid.IntRange(1, 3).Draw(rt, "scrubs") {
			for range rapid.IntRange(0, 10).Draw(rt, "changes") {
				m.change()
			}
			m.scrub()
		}
	})
}

func (m *scrubMachine) write(name string) {
	n := 1 + m.rng.IntN(300<<10)
	data := noise(m.rng.Uint64(), n)
	if m.rng.IntN(2) == 0 {
		data = text(m.rng.Uint64(), n)
	}
	if err := tryWriteAt(m.e, name, m.rng.Int64N(100<<10), data); err != nil && !errdefs.Is(err, errdefs.Corruption) {
		m.t.Fatal(err)
	}
	if _, err := m.e.Sync(context.Background(), nil, nil); err != nil {
		m.t.Fatal(err)
	}
}

// change does one thing that a client or the background does, or that the medium does.
func (m *scrubMachine) change() {
	ctx, e := context.Background(), m.e
	name := func() string { return fmt.Sprintf("f%d", m.rng.IntN(6)) }
	from := name()
	var err error
	switch m.rng.IntN(10) {
	case 0, 1:
		m.write(from)
	case 2:
		_, _, err = e.Truncate(ctx, from, m.rng.Int64N(300<<10), Preconditions{})
	case 3:
		_, _, err = e.Deallocate(ctx, from, m.rng.Int64N(200<<10), 1+m.rng.Int64N(50<<10), Preconditions{})
	case 4:
		_, err = e.Delete(ctx, DeleteRequest{Name: from})
	case 5:
		if to := name(); to != from {
			_, _, err = e.Clone(ctx, CloneRequest{Name: from, NewName: to, Replace: true})
		}
	case 6:
		_, err = e.Reclaim(ctx, ReclaimRequest{Threshold: ptr(0)}, nil)
	case 7:
		_, err = e.Trim(ctx, TrimRequest{Length: math.MaxUint64}, nil)
	default:
		m.spoil()
	}
	if err != nil && !errdefs.Is(err, errdefs.NotFound) && !errdefs.Is(err, errdefs.Corruption) {
		m.t.Fatal(err)
	}
}

// live returns the blocks that are on record and were placed by that commit or before, and when.
func (m *scrubMachine) live(placement uint64) (out map[extent.Addr]uint64) {
	out = map[extent.Addr]uint64{}
	err := m.e.st.View(func(tx *store.Tx) error {
		return tx.Extents(0, func(x store.Extent) bool {
			for a := x.Addr; a < x.End() && x.Placement <= placement; a += extent.BlockSize {
				out[a] = x.Placement
			}
			return true
		})
	})
	if err != nil {
		m.t.Fatal(err)
	}
	return out
}

// spoil makes a live block bad. Doing it twice would make it good again.
func (m *scrubMachine) spoil() {
	live := m.live(math.MaxUint64)
	if len(live) == 0 {
		return
	}
	a := slices.Sorted(maps.Keys(live))[m.rng.IntN(len(live))]
	if m.spoilt[a] == live[a] {
		return
	}
	slot, off := m.e.split(a)
	if err := m.b.mem.Corrupt(m.e.zoneOf(slot), off+m.rng.Int64N(extent.BlockSize), 1); err != nil {
		m.t.Fatal(err)
	}
	m.spoilt[a] = live[a]
}

// stop ends the run of a scrub in one way or another.
func (m *scrubMachine) stop() {
	ctx := context.Background()
	var err error
	switch rapid.SampledFrom([]string{"pause", "cancel", "close", "crash"}).Draw(m.t, "stop") {
	case "pause":
		_, err = m.e.PauseScrub(ctx, "")
	case "cancel":
		_, err = m.e.CancelScrub(ctx, "")
	case "close":
		m.e = m.b.reopen()
	case "crash":
		m.e = m.b.crash(m.rng.Uint64())
	}
	if err != nil && !errdefs.Is(err, errdefs.Precondition) { // it had finished
		m.t.Fatal(err)
	}
}

func (m *scrubMachine) scrub() {
	ctx := context.Background()
	bad := maps.Clone(m.spoilt)
	s, err := m.e.StartScrub(ctx, ScrubRequest{Limit: 256 << 20})
	if err != nil {
		m.t.Fatal(err)
	}
	last := s
	for {
		time.Sleep(time.Duration(rapid.IntRange(0, 4000).Draw(m.t, "µs")) * time.Microsecond)
		for range rapid.IntRange(0, 2).Draw(m.t, "meanwhile") {
			m.change()
		}
		m.stop()
		if s, err = m.e.GetScrub(ctx, ""); err != nil {
			m.t.Fatal(err)
		}
		if s.Done < last.Done || s.Done > s.Total || s.Total != last.Total || s.ID != last.ID {
			m.t.Fatalf("%+v after %+v", s, last)
		}
		last = s
		if s.State == scrub.Finished {
			break
		}
		for range rapid.IntRange(0, 5).Draw(m.t, "between") {
			m.change()
		}
		if _, err := m.e.ResumeScrub(ctx, ""); err != nil {
			m.t.Fatal(err)
		}
	}
	m.judge(s, bad)
}

// judge holds what a scrub has found against what was bad when it began, and what is now.
func (m *scrubMachine) judge(s Scrub, bad map[extent.Addr]uint64) {
	rec, err := m.e.scrubRecord("test", "")
	if err != nil {
		m.t.Fatal(err)
	}
	found := map[extent.Addr]bool{}
	after, more := uint64(0), true
	for more {
		fs, next, err := m.e.ScrubFindings(context.Background(), ScrubFindingsQuery{After: after, Limit: 100})
		if err != nil {
			m.t.Fatal(err)
		}
		for _, f := range fs {
			a := extent.Addr(f.Address)
			if found[a] || m.spoilt[a] == 0 || f.Object != "" || f.Unreadable {
				m.t.Fatalf("found twice, or not bad: %+v", f)
			}
			found[a] = true
		}
		after, more = next, next > 0
	}
	for a, placed := range m.live(rec.Placement) {
		if bad[a] == placed && !found[a] {
			m.t.Fatalf("block %d is bad, and was not found: %+v", a, s)
		}
	}
	c := s.Counters
	if int(c.CsumErrors) != len(found) || errorsOf(s) != c.CsumErrors || c.UnverifiedErrors+c.NoCsum+c.CsumDiscards > 0 || int(s.Findings) != len(found) {
		m.t.Fatalf("%d found: %+v", len(found), s)
	}
	if s.Done != s.Total || rec.MetadataTotal+int64(c.DataBytesScrubbed)+s.Skipped != s.Total {
		m.t.Fatalf("%d of metadata: %+v", rec.MetadataTotal, s)
	}
}
