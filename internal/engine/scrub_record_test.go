package engine

import (
	"context"
	"testing"
	"time"

	"github.com/shingle-store/shingle/internal/scrub"
	"github.com/shingle-store/shingle/internal/store"
)

// endWithoutRecord is a scrub as it stands when neither its end nor that it ended could be recorded.
func endWithoutRecord(t *testing.T, e *Engine) {
	t.Helper()
	rec, _, _ := e.currentScrub()
	err := e.recordScrub(context.Background(), &rec, func(s *store.Scrub) { s.State, s.Ended = uint8(scrub.Running), 0 }, nil)
	if err != nil {
		t.Fatal(err)
	}
	e.scrubs.mu.Lock()
	e.scrubs.mu.state, e.scrubs.mu.err = scrub.Interrupted, "no space"
	e.scrubs.mu.Unlock()
}

// TestScrubWhoseEndIsNotOnRecord is interrupted whatever is changed of it, can be resumed, and is
// interrupted still when another has begun.
func TestScrubWhoseEndIsNotOnRecord(t *testing.T) {
	_, e := newCorrupted(t, Options{})
	ctx := context.Background()
	scrubAll(t, e, ScrubRequest{})
	endWithoutRecord(t, e)
	s, err := e.SetScrubLimit(ctx, 1<<30)
	if err != nil || s.State != scrub.Interrupted || s.Limit != 1<<30 || s.Error != "no space" {
		t.Fatalf("%+v, %v", s, err)
	}
	if s, err = e.ResumeScrub(ctx, ""); err != nil || s.ID != "1" {
		t.Fatalf("%+v, %v", s, err)
	}
	if s = watchScrub(t, e); s.State != scrub.Finished || s.Error != "" {
		t.Fatalf("%+v", s)
	}
	endWithoutRecord(t, e)
	scrubAll(t, e, ScrubRequest{})
	if s, err = e.GetScrub(ctx, "1"); err != nil || s.State != scrub.Interrupted {
		t.Errorf("%+v, %v", s, err)
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := e.WatchScrub(ctx, "1", time.Millisecond, func(Scrub) error { return nil }); err != nil {
		t.Errorf("the watch of a scrub that does not run: %v", err)
	}
}

// TestScrubLeftForAges has no time left below zero.
func TestScrubLeftForAges(t *testing.T) {
	e := &Engine{}
	for _, total := range []int64{1 << 20, 1 << 40, 1 << 62} {
		s := e.describeScrub(store.Scrub{ID: 1, State: uint8(scrub.Running), Total: total, Done: 100, Active: int64(100 * time.Second)})
		if s.ETA < 0 || s.ETA == 0 && total < 1<<30 {
			t.Errorf("%d bytes: %+v", total, s)
		}
	}
}
