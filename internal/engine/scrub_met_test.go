package engine

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/scrub"
	"github.com/shingle-store/shingle/internal/store"
	"github.com/shingle-store/shingle/internal/zone"
)

// TestScrubOfADeadDevice takes no block for bad that a client could not read because the whole device was
// gone.
func TestScrubOfADeadDevice(t *testing.T) {
	c, e := newCorrupted(t, Options{})
	l := c.logReads()
	reached := make(chan struct{})
	var once sync.Once
	l.then = func(n int64) { once.Do(func() { close(reached) }) }
	startScrub(t, e, ScrubRequest{Limit: 1 << 20})
	<-reached
	l.mu.Lock()
	l.fail = errdefs.Wrap(errdefs.Device, errdefs.ReasonDeviceIO, "test", "read", zone.ErrMedia)
	l.mu.Unlock()
	for _, name := range []string{"dir/large", "text", "holey"} {
		if _, err := tryRead(e, name, 0, nil); err == nil {
			t.Errorf("%s was read", name)
		}
	}
	s := watchScrub(t, e)
	if s.State != scrub.Interrupted || s.Findings != 0 || errorsOf(s) != 0 {
		t.Errorf("%+v", s)
	}
	for _, f := range allFindings(t, e) {
		t.Errorf("%+v", f)
	}
	l.mu.Lock()
	l.fail = nil
	l.mu.Unlock()
	if _, err := e.ResumeScrub(context.Background(), ""); err != nil {
		t.Fatal(err)
	}
	if _, err := e.SetScrubLimit(context.Background(), 0); err != nil {
		t.Fatal(err)
	}
	if s = watchScrub(t, e); s.State != scrub.Finished || errorsOf(s) != 0 {
		t.Errorf("%+v", s)
	}
}

// TestScrubNamesAFileThatIsThere: of the files that share a bad block it names one that is not deleted.
func TestScrubNamesAFileThatIsThere(t *testing.T) {
	c, e := newCorrupted(t, Options{})
	c.spoilClone(e)
	r, err := e.OpenReader(context.Background(), ReadRequest{Ref: Ref{Name: "cloned"}})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	deleteFile(t, e, "cloned") // the reader keeps it
	s := scrubAll(t, e, ScrubRequest{})
	found := allFindings(t, e)
	if len(found) != 1 || !strings.HasPrefix(found[0].File, "clones/") || found[0].Outcome != scrub.Uncorrectable || s.Counters.UncorrectableErrors != 1 {
		t.Fatalf("%+v, %+v", s, found)
	}
	if found[0].FileID == 0 || found[0].Offset != 4*extent.BlockSize || found[0].Length != extent.BlockSize {
		t.Errorf("%+v", found)
	}
}

// TestScrubMetIsThereWhenKnown has what others met ready to be taken at the moment at which the scrub
// itself passes over it as known, so that it is not lost when the scrub ends just then.
func TestScrubMetIsThereWhenKnown(t *testing.T) {
	c, e := newCorrupted(t, Options{})
	c.spoil(e, "text", 0, 0, 0)
	x := pieces(t, e, "text")[0]
	s, err := e.newScrubSpace(nil, store.Scrub{ID: 1, Placement: 1 << 62})
	if err != nil {
		t.Fatal(err)
	}
	e.scrubs.met.Store(s)
	defer e.scrubs.met.Store(nil)
	slot, _ := e.split(x.Addr)
	key := foundKey{addr: uint64(x.Addr), zone: uint32(e.zoneOf(slot))}
	for range 200 {
		met := make(chan struct{})
		go func() {
			defer close(met)
			e.scrubMet(x.Addr, badCopy{got: x.Sums[0] + 1}, x.Sums[0], false)
		}()
		for known := false; !known; {
			s.mu.Lock()
			if _, known = s.mu.known[key]; known && len(s.mu.met) == 0 {
				t.Error("known, and nowhere to be found")
			}
			s.mu.Unlock()
		}
		<-met
		if got := s.Met(); len(got) != 1 || got[0].Address != uint64(x.Addr) || got[0].Length == 0 {
			t.Fatalf("%+v", got)
		}
		s.mu.Lock()
		delete(s.mu.known, key)
		s.mu.Unlock()
		if t.Failed() {
			return
		}
	}
}
