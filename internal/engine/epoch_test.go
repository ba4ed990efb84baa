package engine

import (
	"testing"
	"testing/synctest"
)

func TestEpochWaitsOnlyForEarlierReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newEpochs()
		early := p.enter()
		done := make(chan bool, 1)
		go func() { done <- p.wait(nil) }()
		synctest.Wait()
		late := p.enter()
		select {
		case <-done:
			t.Fatal("the wait ended although an earlier read is pinned")
		default:
		}
		p.exit(early)
		synctest.Wait()
		select {
		case ok := <-done:
			if !ok {
				t.Fatal("the wait was given up")
			}
		default:
			t.Fatal("the wait goes on although only a later read is pinned")
		}
		p.exit(late)
		if len(p.mu.active) != 0 {
			t.Fatalf("epochs left: %v", p.mu.active)
		}
	})
}

func TestEpochWaitStops(t *testing.T) {
	p := newEpochs()
	p.enter()
	stop := make(chan struct{})
	close(stop)
	if p.wait(stop) {
		t.Fatal("a stopped wait must say so")
	}
	if !newEpochs().wait(nil) {
		t.Fatal("nothing to wait for")
	}
}
