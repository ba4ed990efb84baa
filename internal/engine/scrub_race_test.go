package engine

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/scrub"
)

// TestScrubRaces scrubs over and over while files are overwritten, cut, punched, deleted and cloned, live
// data is moved, space is trimmed, and scrubs are paused and resumed: bad blocks of files that nobody
// touches are found in each, once, and nothing else is.
func TestScrubRaces(t *testing.T) {
	modes(t, func(t *testing.T, o Options) {
		o.DirtyLimit, o.MaxWait, o.WritebackAge, o.ScrubGroup = minDirtyLimit, 20*time.Second, 5*time.Millisecond, scrub.MinGroup
		b := newFaultBench(t, zns(60, 256<<10), o)
		e := b.open()
		ctx := context.Background()
		bad := map[uint64]string{}
		for i := range 4 {
			name := fmt.Sprintf("still/%d", i)
			put(t, e, name, noise(uint64(i), 300<<10))
			x := pieces(t, e, name)[0]
			z, off := e.at(x, int64(i))
			if err := b.mem.Corrupt(z, off, 1); err != nil {
				t.Fatal(err)
			}
			bad[uint64(x.Addr)+uint64(i)*extent.BlockSize] = name
		}
		steps := 100
		switch {
		case raceEnabled && testing.Short():
			steps = 10
		case testing.Short():
			steps = 30
		}
		var writers, others sync.WaitGroup
		stop := make(chan struct{})
		again := func(f func() error) {
			others.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					if err := f(); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		again(func() error {
			_, err := e.Reclaim(ctx, ReclaimRequest{Threshold: ptr(0)}, nil)
			return err
		})
		again(func() error {
			_, err := e.Trim(ctx, TrimRequest{Length: 1<<64 - 1}, nil)
			time.Sleep(3 * time.Millisecond)
			return err
		})
		n := 0
		again(func() error {
			n++
			_, _, err := e.Clone(ctx, CloneRequest{Name: fmt.Sprintf("still/%d", n%4), NewName: fmt.Sprintf("clone/%d", n%8), Replace: true})
			if err == nil && n%3 == 0 {
				_, err = e.Delete(ctx, DeleteRequest{Name: fmt.Sprintf("clone/%d", n%8)})
			}
			time.Sleep(time.Millisecond)
			return err
		})
		again(func() error {
			_, err := e.PauseScrub(ctx, "")
			if err == nil {
				_, err = e.ResumeScrub(ctx, "")
			}
			time.Sleep(7 * time.Millisecond)
			if errdefs.Is(err, errdefs.Precondition) || errdefs.Is(err, errdefs.NotFound) {
				return nil
			}
			return err
		})
		for i := range 3 {
			writers.Go(func() { raceFile(t, e, fmt.Sprintf("f%d", i), uint64(i), steps) })
		}
		scrubs, skipped := 0, int64(0)
		done := make(chan struct{})
		go func() { writers.Wait(); close(done) }()
		for over := false; !over; scrubs++ {
			select {
			case <-done:
				over = true
			default:
			}
			startScrub(t, e, ScrubRequest{})
			s := watchScrub(t, e)
			for s.State == scrub.Paused {
				time.Sleep(time.Millisecond)
				s = watchScrub(t, e)
			}
			skipped += s.Skipped
			left := len(bad)
			for _, f := range allFindings(t, e) {
				if bad[f.Address] == "" || f.Unreadable {
					t.Errorf("scrub %s found what is not bad: %+v", s.ID, f)
				}
				left--
			}
			if left != 0 || s.State != scrub.Finished || s.Done != s.Total || errorsOf(s) != uint64(len(bad)) || s.Counters.NoCsum+s.Counters.CsumDiscards > 0 {
				t.Errorf("%d bad blocks were not found: %+v", left, s)
			}
			if t.Failed() {
				break
			}
		}
		<-done
		close(stop)
		others.Wait()
		t.Logf("%d scrubs, %d bytes skipped", scrubs, skipped)
		syncAll(t, e)
		b.checkLimits()
	})
}
