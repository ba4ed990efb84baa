package alloc

import (
	"math/rand"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shingle-store/shingle/internal/errdefs"
)

// owner does what the engine owes the allocator: finishing and resetting.
func owner(a *Allocator) {
	for _, slot := range a.Closing() {
		a.Retire(slot)
	}
	if b, ok := a.BeginReset(); ok {
		a.FinishReset(b.Slot, true)
	}
}

// TestConcurrent has writers fill and empty a small store many times over, with appends that
// fail, and a watcher holding the books to the identity. Nobody may starve, and in the end all
// space is free again.
func TestConcurrent(t *testing.T) {
	groups := uniform(12, 9)
	a := mustNew(t, Options{BlockGroups: groups, MaxActive: 3, Reserve: DefaultReserve(groups)})
	rounds := 400
	if testing.Short() {
		rounds = 60
	}
	deadline := time.After(time.Minute)
	var writers sync.WaitGroup
	var done atomic.Bool
	for w := range 6 {
		writers.Add(1)
		go func() {
			defer writers.Done()
			random := rand.New(rand.NewSource(int64(w)))
			for range rounds {
				n := int64(1+random.Intn(12)) * blk
				for {
					changed := a.Changed()
					err := a.Reserve(n)
					if err == nil {
						break
					}
					if !errdefs.Is(err, errdefs.NoSpace) {
						t.Error(err)
						return
					}
					owner(a)
					select {
					case <-changed:
					case <-time.After(time.Millisecond): // another writer publishes, frees and resets
					case <-deadline:
						t.Error("Reserve starved")
						return
					}
				}
				if !writeAndDelete(t, a, random, n, deadline) {
					return
				}
			}
		}()
	}
	var watcher sync.WaitGroup
	watcher.Add(1)
	go func() {
		defer watcher.Done()
		for !done.Load() {
			checkBooks(t, a)
			time.Sleep(100 * time.Microsecond)
		}
	}()
	writers.Wait()
	done.Store(true)
	watcher.Wait()
	for range len(groups) {
		owner(a)
	}
	u, s := a.Usage(), a.Stats()
	if u.Used != 0 || u.Reserved != 0 || u.Deficit != 0 || u.Free+u.Unusable != u.Total {
		t.Errorf("left over: %+v", u)
	}
	if s.PeakActive > 3 || s.MaxExamined > 5 || s.Mismatches != 0 || s.Reset == 0 || s.Retired == 0 {
		t.Errorf("%+v", s)
	}
}

// writeAndDelete places n reserved bytes, publishes them and frees them again.
func writeAndDelete(t *testing.T, a *Allocator, random *rand.Rand, n int64, deadline <-chan time.Time) bool {
	var placed []Grant
	for n > 0 {
		changed := a.Changed()
		g, outcome := a.Allocate(ClassData, n)
		switch outcome {
		case Granted:
			if random.Intn(50) == 0 {
				a.Fail(g)
				continue
			}
			a.Complete(g)
			n -= g.Length
			placed = append(placed, g)
		case NeedsOpen:
			if b, ok := a.BeginOpen(ClassData); ok {
				a.FinishOpen(b.Slot, random.Intn(50) > 0)
			}
		default:
			// A failed append elsewhere may have eaten into what was promised, in which case
			// even NoSpace passes: whoever holds the space is about to free it.
			owner(a)
			select {
			case <-changed:
			case <-time.After(time.Millisecond):
			case <-deadline:
				t.Errorf("starved: %v, %+v", outcome, a.Usage())
				return false
			}
		}
	}
	for _, g := range placed {
		if random.Intn(4) == 0 {
			a.Discard(g.Slot, g.Length, false)
			continue
		}
		a.Publish(g.Slot, g.Length)
		a.Free(g.Slot, g.Length)
	}
	owner(a)
	return true
}
