package engine

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/scrub"
	"github.com/shingle-store/shingle/internal/zone"
)

// fullMetadata opens the store with no room in its metadata but what is kept for deletes.
func (b *faultBench) fullMetadata() *Engine {
	b.t.Helper()
	e := b.e
	attributes := map[string]string{"a": strings.Repeat("x", 3000)}
	for n := range 5000 {
		if _, err := e.Create(context.Background(), CreateRequest{Name: fmt.Sprintf("d/%d", n), Attributes: attributes}); err != nil {
			wantError(b.t, err, errdefs.NoSpace, errdefs.ReasonMetadataSpace)
			break
		}
	}
	b.shut()
	b.opts.MetadataLimit = e.Usage().Metadata / 4096 * 4096 * 16 / 15
	return b.open()
}

// TestScrubOnFullMetadata finishes where the metadata has no room for anything else, with its findings.
// Only so many that they would take away what deletes need stop it: it is interrupted, says so, and goes on
// when there is room.
func TestScrubOnFullMetadata(t *testing.T) {
	c, e := newCorrupted(t, Options{MetadataLimit: 6 << 20})
	c.spoil(e, "dir/large", 0, 1, 0)
	c.spoil(e, "text", 0, 0, 0)
	ps := pieces(t, e, "dir/large")
	e = c.fullMetadata()
	_, err := e.Create(context.Background(), CreateRequest{Name: "no room"})
	wantError(t, err, errdefs.NoSpace, errdefs.ReasonMetadataSpace)
	c.check(e, scrubAll(t, e, ScrubRequest{}), scrub.Uncorrectable)

	blocks := 0
	for _, x := range ps {
		z, off := e.at(x, 0)
		for i := range x.Blocks {
			if err := c.mem.Corrupt(z, off+i*extent.BlockSize, 1); err != nil {
				t.Fatal(err)
			}
			blocks++
		}
	}
	startScrub(t, e, ScrubRequest{Scope: ScrubScope{File: "dir/large"}})
	s := watchScrub(t, e)
	if s.State != scrub.Interrupted || !strings.Contains(s.Error, "metadata") || s.Findings > freeFindings || s.Findings != errorsOf(s) {
		t.Errorf("%+v", s)
	}
	deleteFile(t, e, "d/0") // which still works
	c.shut()
	c.opts.MetadataLimit *= 2
	e = c.open()
	if _, err := e.ResumeScrub(context.Background(), ""); err != nil {
		t.Fatal(err)
	}
	if s = watchScrub(t, e); s.State != scrub.Finished || s.Findings != uint64(blocks) || errorsOf(s) != uint64(blocks) || len(allFindings(t, e)) != blocks {
		t.Errorf("%d blocks are bad: %+v", blocks, s)
	}
}

// TestScrubLostZone counts every block of a zone that has gone, and what is said of them is bounded.
func TestScrubLostZone(t *testing.T) {
	c, e := newCorrupted(t, Options{})
	x := pieces(t, e, "dir/large")[3]
	z, _ := e.at(x, 0)
	g := groupOf(e, z)
	if err := c.mem.SetCondition(z, zone.Offline); err != nil {
		t.Fatal(err)
	}
	s := scrubAll(t, e, ScrubRequest{Scope: ScrubScope{Device: "0"}})
	if want := uint64(g.Live / extent.BlockSize); s.Counters.ReadErrors != want || s.Counters.SuperErrors != 1 || s.Findings != want+1 {
		t.Errorf("%d blocks are lost: %+v", want, s)
	}
	wantCondition(t, e, "ZONE_FAILED", Error, z)
}

// TestScrubOfFilesOnDisks finds what is bad on devices with zones that have no write pointer.
func TestScrubOfFilesOnDisks(t *testing.T) {
	for name, g := range map[string]zone.Geometry{"disk": disk, "mixed": mixedSMR} {
		t.Run(name, func(t *testing.T) {
			c := &corrupted{newFaultBench(t, g, quietReclaim(Options{})), map[string]string{}}
			e := c.open()
			for i := range 6 {
				put(t, e, fmt.Sprint(i), noise(uint64(i), 600<<10))
			}
			deleteFile(t, e, "3")
			if s := scrubAll(t, e, ScrubRequest{}); errorsOf(s) > 0 || s.Counters.UnverifiedErrors > 0 || s.Counters.CsumDiscards > 0 {
				t.Fatalf("%+v", s)
			}
			c.spoil(e, "0", 0, 0, 0)
			c.spoil(e, "1", -1, -1, 0)
			c.spoil(e, "5", 0, 2, 0)
			c.check(e, scrubAll(t, e, ScrubRequest{}), scrub.Uncorrectable)
		})
	}
}

// TestScrubLooksAgain deletes a file between the look-up of its bad block and the verdict: that is no
// error any more, and counts as skipped.
func TestScrubLooksAgain(t *testing.T) {
	c, e := newCorrupted(t, Options{})
	c.spoil(e, "text", 0, 0, 0)
	z, off := e.at(pieces(t, e, "text")[0], 0)
	var once sync.Once
	c.mem.SetHook(func(op zone.Op) error {
		if op.Kind == zone.OpRead && op.After && op.Zone == z && op.Off == off && op.Len == extent.BlockSize {
			once.Do(func() {
				deleteFile(t, e, "text")
				eventually(t, "the file to be freed", func() bool { return e.orphans.Load() == 0 })
			})
		}
		return nil
	})
	s := scrubAll(t, e, ScrubRequest{Scope: ScrubScope{Device: "0"}})
	if errorsOf(s) != 0 || s.Findings != 0 || s.Skipped < extent.BlockSize || s.Total-s.Skipped != int64(s.Counters.DataBytesScrubbed) {
		t.Errorf("%+v, %+v", s, allFindings(t, e))
	}
}
