package engine

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/scrub"
	"github.com/shingle-store/shingle/internal/zone"
)

// readLog is which blocks of the device were read, by the device's own count.
type readLog struct {
	mu     sync.Mutex
	blocks map[[2]int64]int // zone, block
	bytes  int64
	then   func(bytes int64) // with what was read so far, before each read
	fail   error
}

// logReads counts the reads of the device from now on.
func (b *faultBench) logReads() *readLog {
	l := &readLog{blocks: map[[2]int64]int{}}
	b.mem.SetHook(func(op zone.Op) error {
		if op.Kind != zone.OpRead || op.After {
			return nil
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.fail != nil {
			return l.fail
		}
		for i := range op.Len / extent.BlockSize {
			l.blocks[[2]int64{int64(op.Zone), op.Off/extent.BlockSize + i}]++
		}
		if l.bytes += op.Len; l.then != nil {
			l.then(l.bytes)
		}
		return nil
	})
	return l
}

// again returns how many bytes both logs have read.
func (l *readLog) again(o *readLog) (n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for b := range l.blocks {
		if o.blocks[b] > 0 {
			n += extent.BlockSize
		}
	}
	return n
}

// TestScrubResumes scrubs to about 40 % and stops: paused, cancelled, closed, killed, or with a device
// that fails. What the resume reads again is a group at most, by the device's own count; it goes on from
// where it was, and finds what there is once.
func TestScrubResumes(t *testing.T) {
	const group = scrub.MinGroup
	ctx := context.Background()
	gone := errdefs.Wrap(errdefs.Device, errdefs.ReasonDeviceIO, "test", "read", zone.ErrMedia)
	for name, c := range map[string]struct {
		stop  func(t *testing.T, b *faultBench, l *readLog) *Engine
		state scrub.State
	}{
		"pause": {func(t *testing.T, b *faultBench, _ *readLog) *Engine {
			if s, err := b.e.PauseScrub(ctx, ""); err != nil || s.State != scrub.Paused {
				t.Fatalf("%+v, %v", s, err)
			}
			return b.e
		}, scrub.Paused},
		"pause and restart": {func(t *testing.T, b *faultBench, _ *readLog) *Engine {
			if _, err := b.e.PauseScrub(ctx, ""); err != nil {
				t.Fatal(err)
			}
			return b.reopen()
		}, scrub.Paused},
		"cancel": {func(t *testing.T, b *faultBench, _ *readLog) *Engine {
			if s, err := b.e.CancelScrub(ctx, ""); err != nil || s.State != scrub.Cancelled || s.Ended.IsZero() {
				t.Fatalf("%+v, %v", s, err)
			}
			return b.e
		}, scrub.Cancelled},
		"close": {func(_ *testing.T, b *faultBench, _ *readLog) *Engine { return b.reopen() }, scrub.Interrupted},
		"kill":  {func(_ *testing.T, b *faultBench, _ *readLog) *Engine { return b.crash(7) }, scrub.Interrupted},
		"device": {func(t *testing.T, b *faultBench, l *readLog) *Engine {
			l.mu.Lock()
			l.fail = gone
			l.mu.Unlock()
			if s := watchScrub(t, b.e); s.State != scrub.Interrupted || s.Error == "" {
				t.Fatalf("%+v", s)
			}
			return b.e
		}, scrub.Interrupted},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c1, e := newCorrupted(t, Options{ScrubGroup: group})
			b := c1.faultBench
			c1.spoil(e, "dir/large", 0, 1, 0)
			c1.spoil(e, "dir/large", -1, -1, 0)
			c1.spoil(e, "text", 0, 0, 0)
			total := e.Usage().Used
			first := b.logReads()
			reached := make(chan struct{})
			var once sync.Once
			first.then = func(n int64) {
				if n > total*4/10 {
					once.Do(func() { close(reached) })
				}
			}
			startScrub(t, e, ScrubRequest{Limit: 64 << 20})
			<-reached
			e = c.stop(t, b, first)
			stopped, err := e.GetScrub(ctx, "")
			if err != nil || stopped.State != c.state {
				t.Fatalf("stopped: %+v, %v", stopped, err)
			}
			if stopped.Done >= stopped.Total || stopped.Done == 0 || stopped.State == scrub.Interrupted && stopped.Error == "" {
				t.Errorf("stopped: %+v", stopped)
			}
			second := b.logReads()
			s, err := e.ResumeScrub(ctx, "")
			if err != nil || s.ID != stopped.ID || s.Total != stopped.Total || s.Done < stopped.Done || s.Error != "" || !s.Ended.IsZero() {
				t.Fatalf("resumed: %+v, %v", s, err)
			}
			if s = watchScrub(t, e); s.State != scrub.Finished || s.Done != s.Total || s.Total != stopped.Total || s.Done < stopped.Done || s.Active < stopped.Active {
				t.Fatalf("%+v after %+v", s, stopped)
			}
			// At an open the labels and, of active zones, nothing else is read.
			if again := second.again(first); again > group+4*extent.BlockSize {
				t.Errorf("%d bytes were read again, a group has %d", again, group)
			} else {
				t.Logf("at %d %% %d bytes were read again", 100*stopped.Done/stopped.Total, again)
			}
			b.mem.SetHook(nil)
			c1.check(e, s, scrub.Uncorrectable)
			if _, err := e.ResumeScrub(ctx, ""); !errdefs.Is(err, errdefs.Precondition) {
				t.Errorf("resume of one that has finished: %v", err)
			}
		})
	}
}

// TestCancelScrubWhileReadsStall cancels, and pauses, within a second while no read of the device
// returns; after that a scrub can be resumed, and ends when the device answers.
func TestCancelScrubWhileReadsStall(t *testing.T) {
	for name, stop := range map[string]func(*Engine) (Scrub, error){
		"cancel": func(e *Engine) (Scrub, error) { return e.CancelScrub(context.Background(), "") },
		"pause":  func(e *Engine) (Scrub, error) { return e.PauseScrub(context.Background(), "") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, e := newCorrupted(t, Options{})
				gate, met := make(chan struct{}), make(chan struct{})
				var once sync.Once
				c.mem.SetHook(func(op zone.Op) error {
					if op.Kind == zone.OpRead && !op.After {
						once.Do(func() { close(met) })
						<-gate
					}
					return nil
				})
				startScrub(t, e, ScrubRequest{Scope: ScrubScope{File: "dir/large"}})
				<-met
				began := time.Now()
				s, err := stop(e)
				if took := time.Since(began); err != nil || took > time.Second || s.State == scrub.Running {
					t.Errorf("after %v: %+v, %v", took, s, err)
				}
				began = time.Now()
				if _, err := e.ResumeScrub(context.Background(), ""); err != nil {
					t.Fatal(err)
				}
				if _, err := e.SetScrubLimit(context.Background(), 1<<30); err != nil || time.Since(began) > time.Second {
					t.Errorf("after %v: %v", time.Since(began), err)
				}
				if s, err = e.GetScrub(context.Background(), ""); err != nil || s.State != scrub.Running {
					t.Errorf("%+v, %v", s, err)
				}
				close(gate)
				if s = watchScrub(t, e); s.State != scrub.Finished || errorsOf(s) > 0 || s.Skipped > 0 {
					t.Errorf("%+v", s)
				}
			})
		})

	}
}

// TestScrubLimitOfTheStore holds 8 MiB/s within 20 % over 5 s, changes within a second, and holds on over
// a restart.
func TestScrubLimitOfTheStore(t *testing.T) {
	alone(t)
	synctest.Test(t, func(t *testing.T) {
		g := zone.Geometry{Dialect: zone.ZNS, ZoneSize: 8 << 20, ZoneCapacity: 8 << 20, Zones: 24, MaxOpen: 6, MaxActive: 8}
		codec := extent.CodecNone
		b := newFaultBench(t, g, Options{Compression: &codec, DirtyLimit: 256 << 20})
		e := b.open()
		writeAt(t, e, "f", 0, noise(1, 120<<20))
		syncAll(t, e)
		startScrub(t, e, ScrubRequest{Limit: 8 << 20, Scope: ScrubScope{Device: "0"}})
		read := func() int64 { return int64(b.fault.Stats().ReadBytes) }
		over := func(what string, d time.Duration, rate int64) {
			t.Helper()
			before := read()
			time.Sleep(d)
			got, want := read()-before, int64(d.Seconds()*float64(rate))
			if got < want*8/10 || got > want*12/10 {
				t.Errorf("%s: %d bytes, want %d", what, got, want)
			}
		}
		over("8 MiB/s", 5*time.Second, 8<<20)
		if s, err := e.SetScrubLimit(t.Context(), 2<<20); err != nil || s.Limit != 2<<20 {
			t.Fatalf("%+v, %v", s, err)
		}
		over("2 MiB/s at once", time.Second, 2<<20)
		e = b.reopen()
		s, err := e.ResumeScrub(t.Context(), "")
		if err != nil || s.Limit != 2<<20 {
			t.Fatalf("%+v, %v", s, err)
		}
		over("2 MiB/s after a restart", 5*time.Second, 2<<20)
		s, err = e.PauseScrub(t.Context(), "")
		if err != nil || s.Rate < 3<<20 || s.Rate > 9<<20 {
			t.Fatalf("%+v, %v", s, err)
		}
		time.Sleep(time.Minute)
		if p, err := e.ResumeScrub(t.Context(), ""); err != nil || p.Active > s.Active+time.Second {
			t.Fatalf("paused time counts as active: %+v, %v", p, err)
		}
		over("2 MiB/s after a pause", time.Second, 2<<20)
		if _, err := e.SetScrubLimit(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		before := time.Now()
		if s := watchScrub(t, e); s.State != scrub.Finished || time.Since(before) > time.Second || s.Limit != 0 {
			t.Errorf("without a limit, after %v: %+v", time.Since(before), s)
		}
	})
}

// TestScrubThatCannotRecord is interrupted with the reason when the metadata takes no more, and can be
// resumed after a restart.
func TestScrubThatCannotRecord(t *testing.T) {
	c, e := newCorrupted(t, Options{ScrubGroup: scrub.MinGroup})
	c.spoil(e, "dir/large", 0, 1, 0)
	started := make(chan struct{})
	var once sync.Once
	c.mem.SetHook(func(op zone.Op) error {
		if op.Kind == zone.OpRead && !op.After {
			once.Do(func() { e.failWrites(errors.New("the disk of the metadata is gone")); close(started) })
		}
		return nil
	})
	startScrub(t, e, ScrubRequest{Scope: ScrubScope{File: "dir/large"}})
	<-started
	s := watchScrub(t, e)
	if s.State != scrub.Interrupted || !strings.Contains(s.Error, "disk of the metadata is gone") {
		t.Errorf("%+v", s)
	}
	_, err := e.ResumeScrub(context.Background(), "")
	wantError(t, err, errdefs.ReadOnly, errdefs.ReasonReadOnly)
	_ = e.Close(context.Background())
	c.mem.SetHook(nil)
	e = c.open()
	if s, err = e.GetScrub(context.Background(), ""); err != nil || s.State != scrub.Interrupted || s.Error == "" {
		t.Errorf("after a restart: %+v, %v", s, err)
	}
	if _, err := e.ResumeScrub(context.Background(), ""); err != nil {
		t.Fatal(err)
	}
	c.check(e, watchScrub(t, e), scrub.Uncorrectable)
}
