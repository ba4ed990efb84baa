package engine

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/shingle-store/shingle/internal/errdefs"
)

// TestScrubBeginsWhileTheEngineCloses either begins a scrub before the engine closes, or is refused.
func TestScrubBeginsWhileTheEngineCloses(t *testing.T) {
	rounds := 10
	if testing.Short() {
		rounds = 3
	}
	b := newFaultBench(t, smallZNS, Options{})
	e := b.open()
	for i := range rounds {
		var begun sync.WaitGroup
		for range 4 {
			begun.Go(func() {
				for {
					_, err := e.StartScrub(context.Background(), ScrubRequest{Limit: 1 << 20})
					if errdefs.Is(err, errdefs.Unavailable) {
						return
					}
					if _, err = e.PauseScrub(context.Background(), ""); errdefs.Is(err, errdefs.Unavailable) {
						return
					}
					if _, err = e.ResumeScrub(context.Background(), ""); errdefs.Is(err, errdefs.Unavailable) {
						return
					}
					_, _ = e.CancelScrub(context.Background(), "")
				}
			})
		}
		time.Sleep(time.Duration(i) * time.Millisecond)
		b.shut()
		begun.Wait()
		e.scrubs.mu.Lock()
		run := e.scrubs.mu.run
		e.scrubs.mu.Unlock()
		if run != nil {
			t.Fatal("a scrub runs in an engine that is closed")
		}
		e = b.reopen()
	}
}
