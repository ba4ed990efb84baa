package engine

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/scrub"
	"github.com/shingle-store/shingle/internal/zone"
)

func TestScrubRefusals(t *testing.T) {
	c, e := newCorrupted(t, Options{})
	ctx := context.Background()
	for name, x := range map[string]struct {
		r      ScrubRequest
		kind   errdefs.Kind
		reason errdefs.Reason
	}{
		"no such file":        {ScrubRequest{Scope: ScrubScope{File: "no"}}, errdefs.NotFound, ""},
		"a bad name":          {ScrubRequest{Scope: ScrubScope{File: "/"}}, errdefs.InvalidArgument, ""},
		"a directory":         {ScrubRequest{Scope: ScrubScope{File: "dir"}}, errdefs.Precondition, errdefs.ReasonNotAFile},
		"no such block group": {ScrubRequest{Scope: ScrubScope{BlockGroup: ptr(uint32(58))}}, errdefs.OutOfRange, ""},
		"no such device":      {ScrubRequest{Scope: ScrubScope{Device: "1"}}, errdefs.OutOfRange, ""},
		"no device at all":    {ScrubRequest{Scope: ScrubScope{Device: "sda"}}, errdefs.InvalidArgument, ""},
		"two scopes":          {ScrubRequest{Scope: ScrubScope{Device: "0", File: "text"}}, errdefs.InvalidArgument, ""},
		"a limit below zero":  {ScrubRequest{Limit: -1}, errdefs.InvalidArgument, ""},
		"a long request id":   {ScrubRequest{RequestID: strings.Repeat("x", 65)}, errdefs.InvalidArgument, ""},
	} {
		_, err := e.StartScrub(ctx, x.r)
		if !errdefs.Is(err, x.kind) || errdefs.ReasonOf(err) != x.reason {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, call := range map[string]func() error{
		"get":      func() error { _, err := e.GetScrub(ctx, ""); return err },
		"get 7":    func() error { _, err := e.GetScrub(ctx, "7"); return err },
		"get x":    func() error { _, err := e.GetScrub(ctx, "x"); return err },
		"pause":    func() error { _, err := e.PauseScrub(ctx, ""); return err },
		"resume":   func() error { _, err := e.ResumeScrub(ctx, ""); return err },
		"cancel":   func() error { _, err := e.CancelScrub(ctx, "3"); return err },
		"limit":    func() error { _, err := e.SetScrubLimit(ctx, 1); return err },
		"findings": func() error { _, _, err := e.ScrubFindings(ctx, ScrubFindingsQuery{Limit: 1}); return err },
		"watch":    func() error { return e.WatchScrub(ctx, "", time.Second, func(Scrub) error { return nil }) },
	} {
		if err := call(); !errdefs.Is(err, errdefs.NotFound) {
			t.Errorf("%s without a scrub: %v", name, err)
		}
	}
	scrubAll(t, e, ScrubRequest{})
	for name, call := range map[string]func() error{
		"pause":  func() error { _, err := e.PauseScrub(ctx, ""); return err },
		"resume": func() error { _, err := e.ResumeScrub(ctx, "1"); return err },
		"cancel": func() error { _, err := e.CancelScrub(ctx, "1"); return err },
		"limit":  func() error { _, err := e.SetScrubLimit(ctx, 1); return err },
	} {
		if err := call(); !errdefs.Is(err, errdefs.Precondition) || !strings.Contains(err.Error(), "finished") {
			t.Errorf("%s of one that has finished: %v", name, err)
		}
	}
	for _, n := range []int{0, -1, 1001} {
		if _, _, err := e.ScrubFindings(ctx, ScrubFindingsQuery{Limit: n}); !errdefs.Is(err, errdefs.InvalidArgument) {
			t.Errorf("%d findings: %v", n, err)
		}
	}
	e.Draining()
	if _, err := e.StartScrub(ctx, ScrubRequest{}); !errdefs.Is(err, errdefs.Unavailable) {
		t.Errorf("while draining: %v", err)
	}
	c.shut()
	if _, err := e.StartScrub(ctx, ScrubRequest{}); !errdefs.Is(err, errdefs.Unavailable) {
		t.Errorf("when closed: %v", err)
	}
}

// TestOneScrubAtATime refuses a second one while one runs or is paused, but for a retry of the same call.
func TestOneScrubAtATime(t *testing.T) {
	c, e := newCorrupted(t, Options{})
	ctx := context.Background()
	first := startScrub(t, e, ScrubRequest{Limit: 1 << 20, RequestID: "r"})
	second := func(want string) {
		t.Helper()
		_, err := e.StartScrub(ctx, ScrubRequest{RequestID: "q"})
		wantError(t, err, errdefs.AlreadyExists, errdefs.ReasonScrubRunning)
		if !strings.Contains(errdefs.Sentence(err), "scrub 1 is "+want) {
			t.Errorf("%v", err)
		}
		if s, err := e.StartScrub(ctx, ScrubRequest{RequestID: "r"}); err != nil || s.ID != first.ID {
			t.Errorf("a retry: %+v, %v", s, err)
		}
	}
	second("running")
	if _, err := e.PauseScrub(ctx, "2"); !errdefs.Is(err, errdefs.NotFound) {
		t.Errorf("%v", err)
	}
	if _, err := e.PauseScrub(ctx, "1"); err != nil {
		t.Fatal(err)
	}
	second("paused")
	e = c.reopen()
	second("paused")
	if s, err := e.CancelScrub(ctx, ""); err != nil || s.State != scrub.Cancelled || s.Done == s.Total {
		t.Fatalf("%+v, %v", s, err)
	}
	scrubAll(t, e, ScrubRequest{RequestID: "r"})
	// A restart finds the latest one only, so no older one runs.
	if _, err := e.ResumeScrub(ctx, "1"); !errdefs.Is(err, errdefs.Precondition) || !strings.Contains(errdefs.Sentence(err), "scrub 2") {
		t.Errorf("%v", err)
	}
	if s, err := e.GetScrub(ctx, "1"); err != nil || s.State != scrub.Cancelled || s.Limit != 1<<20 {
		t.Errorf("%+v, %v", s, err)
	}
}

// TestOldScrubsAreDropped keeps the latest ones, with their findings.
func TestOldScrubsAreDropped(t *testing.T) {
	c, e := newCorrupted(t, Options{})
	c.spoil(e, "text", 0, 0, 0)
	for range keptScrubs + 3 {
		scrubAll(t, e, ScrubRequest{Scope: ScrubScope{File: "text"}})
	}
	for id := 1; id <= keptScrubs+3; id++ {
		s, err := e.GetScrub(context.Background(), fmt.Sprint(id))
		if kept := id > 3; kept && (err != nil || s.Findings != 1) || !kept && !errdefs.Is(err, errdefs.NotFound) {
			t.Errorf("scrub %d: %+v, %v", id, s, err)
		}
		fs, _, err := e.ScrubFindings(context.Background(), ScrubFindingsQuery{ID: fmt.Sprint(id), Limit: 10})
		if kept := id > 3; kept && len(fs) != 1 || !kept && !errdefs.Is(err, errdefs.NotFound) {
			t.Errorf("findings of scrub %d: %v, %v", id, fs, err)
		}
	}
	// In a file whose other blocks are good, so check has nothing to say about the records.
	c.shut()
	for _, p := range c.bench.check(false) {
		t.Error(p)
	}
}

// TestScrubScopes covers what each scope names, and nothing else.
func TestScrubScopes(t *testing.T) {
	c, e := newCorrupted(t, Options{})
	c.spoil(e, "dir/large", 4, 0, 0)
	c.spoil(e, "text", 0, 0, 0)
	c.spoil(e, "holey", 2, 0, 0)
	c.spoil(e, "cloned", 0, 4, 3)
	ctx := context.Background()
	for _, name := range []string{"text", "dir/large", "holey", "cloned", "clones/1", "small/30"} {
		f, err := e.Get(ctx, Ref{Name: name})
		if err != nil {
			t.Fatal(err)
		}
		s := scrubAll(t, e, ScrubRequest{Scope: ScrubScope{File: name}})
		if s.Scope.File != name || s.Total != f.Stored || int64(s.Counters.DataBytesScrubbed) != s.Total || s.Counters.TreeExtentsScrubbed != 0 {
			t.Errorf("%s: %+v of %+v", name, s, f)
		}
		want := 1
		if name == "small/30" {
			want = 0
		}
		found := allFindings(t, e)
		if len(found) != want || want == 1 && found[0].File != name {
			t.Errorf("%s: %+v", name, found)
		}
	}
	live, found := int64(0), 0
	for i, g := range e.BlockGroups(0, -1) {
		s := scrubAll(t, e, ScrubRequest{Scope: ScrubScope{BlockGroup: ptr(uint32(i))}})
		if s.Total != g.Live || *s.Scope.BlockGroup != uint32(i) || int64(s.Counters.DataBytesScrubbed) != g.Live {
			t.Errorf("block group %d of %d live bytes: %+v", i, g.Live, s)
		}
		for _, f := range allFindings(t, e) {
			if f.Zone != uint32(g.Zone) {
				t.Errorf("found in block group %d: %+v", i, f)
			}
		}
		live, found = live+s.Total, found+int(s.Findings)
	}
	if found != len(c.want) || live != e.Usage().Used {
		t.Errorf("%d findings, %d bytes", found, live)
	}
	s := scrubAll(t, e, ScrubRequest{Scope: ScrubScope{Device: "0"}})
	if s.Total != live || s.Findings != uint64(len(c.want)) || s.Scope.Device != "0" {
		t.Errorf("%+v", s)
	}
}

// TestScrubOfDamagedMetadata names damaged records, goes round them, and goes on.
func TestScrubOfDamagedMetadata(t *testing.T) {
	c, e := newCorrupted(t, Options{})
	x := pieces(t, e, "dir/large")[2]
	c.shut()
	db, err := bbolt.Open(c.meta, 0o600, &bbolt.Options{NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		flip := func(bucket string, at func(c *bbolt.Cursor) ([]byte, []byte)) {
			b := tx.Bucket([]byte(bucket))
			k, v := at(b.Cursor())
			v = slices.Clone(v)
			v[len(v)-1] ^= 1
			if err := b.Put(slices.Clone(k), v); err != nil {
				t.Fatal(err)
			}
		}
		flip("nodes", (*bbolt.Cursor).Last)
		flip("checksums", (*bbolt.Cursor).First)
		flip("extents", func(c *bbolt.Cursor) ([]byte, []byte) {
			key := make([]byte, 8)
			for i := range key {
				key[i] = byte(uint64(x.Addr) >> (56 - 8*i))
			}
			return c.Seek(key)
		})
		return nil
	})
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	e = c.open()
	for round := range 2 {
		s := scrubAll(t, e, ScrubRequest{})
		var objects []string
		for _, f := range allFindings(t, e) {
			objects = append(objects, f.Object)
			if f.Expected^f.Actual == 0 || f.Outcome != scrub.Uncorrectable {
				t.Errorf("%+v", f)
			}
		}
		if want := []string{"metadata/nodes", "metadata/extents", "metadata/checksums"}; !slices.Equal(objects, want) {
			t.Errorf("round %d: %q", round, objects)
		}
		if k := s.Counters; k.VerifyErrors != 3 || k.NoCsum == 0 || k.CsumDiscards != 0 || k.CsumErrors+k.ReadErrors+k.SuperErrors > 0 || s.Skipped == 0 {
			t.Errorf("round %d: %+v", round, s)
		}
	}
	// Where no metadata is scrubbed, what is met on the way to the data counts.
	if s := scrubAll(t, e, ScrubRequest{Scope: ScrubScope{Device: "0"}}); s.Counters.VerifyErrors != 2 {
		t.Errorf("%+v: %+v", s, allFindings(t, e))
	}
}

// TestScrubTakesWhatOthersMeet counts a block once that a client's read meets before the scrub does, and
// that reclaim meets too.
func TestScrubTakesWhatOthersMeet(t *testing.T) {
	c, e := newCorrupted(t, Options{ScrubGroup: scrub.MinGroup})
	c.spoil(e, "dir/large", -1, -1, 0)
	c.spoil(e, "holey", 3, 1, 0)
	c.spoil(e, "text", 0, 0, 0)
	z, off := e.at(pieces(t, e, "holey")[9], 0)
	c.fault.FailRead(z, off, extent.BlockSize, true)
	gate, met := make(chan struct{}), make(chan struct{})
	c.fault.Stall(zone.OpRead, e.zoneOf(0), gate, met)
	startScrub(t, e, ScrubRequest{})
	<-met
	for range 3 {
		for _, name := range []string{"dir/large", "text", "holey"} {
			if _, err := tryRead(e, name, 0, nil); !errdefs.Is(err, errdefs.Corruption) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	var moving sync.WaitGroup
	moving.Go(func() { reclaimAll(t, e) }) // it waits for resets, and they for the read that stalls
	eventually(t, "all that can be moved to be moved", func() bool {
		return e.rc.emptied.Load() > 0 && e.rc.working.Load() == 0
	})
	close(gate)
	moving.Wait()
	s := watchScrub(t, e)
	found := allFindings(t, e)
	var bad []string
	for _, f := range found {
		if f.Object == "" {
			bad = append(bad, fmt.Sprintf("%s %t", f.File, f.Unreadable))
		}
	}
	slices.Sort(bad)
	if want := []string{"dir/large false", "holey false", "holey true", "text false"}; !slices.Equal(bad, want) {
		t.Errorf("found %q", bad)
	}
	if s.State != scrub.Finished || s.Done != s.Total || s.Skipped == 0 || s.Counters.CsumErrors != 3 || s.Counters.ReadErrors != 1 || s.Findings != 4 {
		t.Errorf("%+v", s)
	}
}

// TestWatchScrub shows every step, ends with the scrub, and with what ends the watch.
func TestWatchScrub(t *testing.T) {
	c, e := newCorrupted(t, Options{})
	ctx, cancel := context.WithCancel(context.Background())
	startScrub(t, e, ScrubRequest{Limit: 1 << 20})
	shown := 0
	err := e.WatchScrub(ctx, "", time.Millisecond, func(Scrub) error {
		if shown++; shown == 3 {
			cancel()
		}
		return nil
	})
	if err != context.Canceled || shown < 3 {
		t.Errorf("%d shown, %v", shown, err)
	}
	var watching sync.WaitGroup
	var last Scrub
	watching.Go(func() {
		err := e.WatchScrub(context.Background(), "", time.Hour, func(s Scrub) error { last = s; return nil })
		if err != nil {
			t.Error(err)
		}
	})
	time.Sleep(10 * time.Millisecond)
	if _, err := e.PauseScrub(context.Background(), ""); err != nil {
		t.Fatal(err)
	}
	watching.Wait()
	if last.State != scrub.Paused {
		t.Errorf("%+v", last)
	}
	stop := fmt.Errorf("enough")
	if err := e.WatchScrub(context.Background(), "1", time.Hour, func(Scrub) error { return stop }); err != stop {
		t.Error(err)
	}
	if _, err := e.ResumeScrub(context.Background(), ""); err != nil {
		t.Fatal(err)
	}
	watching.Go(func() {
		err := e.WatchScrub(context.Background(), "", time.Hour, func(Scrub) error { return nil })
		if err != nil && !errdefs.Is(err, errdefs.Unavailable) {
			t.Error(err)
		}
	})
	time.Sleep(10 * time.Millisecond)
	c.shut()
	watching.Wait()
}

// TestScrubSpeaksOfDeletedFiles names no file for a block that only a deleted file, which is not freed
// yet, refers to.
func TestScrubSpeaksOfDeletedFiles(t *testing.T) {
	c, e := newCorrupted(t, Options{})
	c.spoil(e, "text", 0, 0, 0)
	r, err := e.OpenReader(context.Background(), ReadRequest{Ref: Ref{Name: "text"}})
	if err != nil {
		t.Fatal(err)
	}
	deleteFile(t, e, "text")
	s := scrubAll(t, e, ScrubRequest{})
	if found := allFindings(t, e); len(found) != 1 || found[0].File != "" || found[0].FileID == 0 || found[0].Outcome != scrub.Gone ||
		s.Counters.CsumErrors != 1 || s.Counters.UncorrectableErrors != 0 {
		t.Errorf("%+v, %+v", s, found)
	}
	r.Close()
	eventually(t, "the file to be freed", func() bool { return e.orphans.Load() == 0 })
	if s = scrubAll(t, e, ScrubRequest{}); s.Findings != 0 {
		t.Errorf("%+v", s)
	}
}
