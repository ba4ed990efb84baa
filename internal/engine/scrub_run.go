package engine

import (
	"context"
	"errors"
	"time"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/scrub"
	"github.com/shingle-store/shingle/internal/store"
)

// runScrub starts the run of a scrub that is on record as running. The caller has the turn.
func (e *Engine) runScrub(rec store.Scrub) {
	ctx, cancel := context.WithCancelCause(context.Background())
	run := &scrubRun{
		id: rec.ID, cancel: cancel, began: e.o.Now(), before: time.Duration(rec.Active), done: make(chan struct{}),
		limit: scrub.NewLimiter(rec.Limit, e.o.Now, e.after),
	}
	e.scrubs.mu.Lock()
	e.scrubs.mu.run = run
	e.scrubs.mu.Unlock()
	e.wg.Go(func() {
		select {
		case <-e.stop:
			cancel(&stopScrub{scrub.Interrupted, "the engine was closed"})
		case <-run.done:
		}
	})
	e.wg.Go(func() { e.scrubIt(ctx, run, rec) })
}

// after is time.After, apart from all other waits.
func (e *Engine) after(d time.Duration) <-chan time.Time { return time.After(e.apart(d)) }

// active returns the time that the scrub has been running, over all its runs.
func (r *scrubRun) active(now time.Time) time.Duration { return r.before + max(0, now.Sub(r.began)) }

// scrubIt is a run of a scrub, from beginning to recorded end.
func (e *Engine) scrubIt(ctx context.Context, run *scrubRun, rec store.Scrub) {
	defer func() {
		e.scrubs.mu.Lock()
		if e.scrubs.mu.run == run { // else another one has begun since the end was recorded
			e.scrubs.mu.run = nil
		}
		e.scrubs.mu.Unlock()
		close(run.done)
		run.cancel(nil)
	}()
	last, err := e.scrubSteps(ctx, run, rec)
	e.endScrub(ctx, run, rec, last, err)
}

func (e *Engine) scrubSteps(ctx context.Context, run *scrubRun, rec store.Scrub) (last scrub.Batch, err error) {
	last.Progress = progressOf(&rec)
	if err := e.dropScrubs(ctx, rec.ID); err != nil && !errdefs.Is(err, errdefs.NoSpace) {
		return last, err
	}
	select {
	case <-e.scrubs.drained: // reads of an earlier run have its buffers
	case <-ctx.Done():
		return last, ctx.Err()
	}
	space, err := e.newScrubSpace(run, rec)
	if err != nil {
		return last, err
	}
	e.scrubs.met.Store(space)
	defer e.scrubs.met.Store(nil)
	last, e.scrubs.drained, err = scrub.Run(ctx, space, planOf(&rec, e.geo.ZoneSize, e.slots()), last.Progress, scrub.Options{
		ZoneSize: e.geo.ZoneSize, Memory: e.o.ScrubMemory, Group: e.o.ScrubGroup, Limit: run.limit,
		Now: e.o.Now, After: e.after, Go: e.wg.Go,
	})
	return last, err
}

// endScrub records the end of a run: what it has read and not recorded, and how the scrub stands now.
func (e *Engine) endScrub(ctx context.Context, run *scrubRun, rec store.Scrub, last scrub.Batch, err error) {
	state, why := scrub.Finished, ""
	var corrupt *errdefs.Error
	switch stop := stopReason(ctx); {
	case err == nil:
	case stop != nil:
		if state = stop.state; !errors.Is(err, context.Canceled) {
			why = errdefs.Sentence(err)
		} else if state == scrub.Interrupted {
			why = stop.why
		}
	case errdefs.Is(err, errdefs.Device), errdefs.Is(err, errdefs.NoSpace), errdefs.Is(err, errdefs.ReadOnly), errdefs.Is(err, errdefs.Unavailable):
		state, why = scrub.Interrupted, errdefs.Sentence(err)
	default:
		state, why = scrub.Failed, errdefs.Sentence(err)
	}
	if errors.As(err, &corrupt) {
		e.o.Logger.Error("a scrub ended early", "scrub", rec.ID, "state", stateWord(state), "error", err)
	}
	end := func(s *store.Scrub) {
		now := e.o.Now()
		s.State, s.Error, s.Active = uint8(state), why, int64(run.active(now))
		if state == scrub.Finished || state == scrub.Failed || state == scrub.Cancelled {
			s.Ended = now.UnixNano()
		}
	}
	// Not with ctx, which has ended if it was told to stop.
	serr := e.recordScrub(context.Background(), &rec, func(s *store.Scrub) {
		putProgress(s, &last.Progress)
		end(s)
	}, e.findingRecords(last.Findings))
	if serr == nil {
		return
	}
	if state == scrub.Finished || state == scrub.Paused || state == scrub.Cancelled {
		state, why = scrub.Interrupted, errdefs.Sentence(serr)
	}
	if e.recordScrub(context.Background(), &rec, end, nil) == nil {
		return
	}
	e.o.Logger.Warn("the end of a scrub cannot be recorded", "scrub", rec.ID, "error", serr)
	m := &e.scrubs.mu
	m.Lock()
	defer m.Unlock()
	if m.rec.ID == rec.ID {
		m.state, m.err = state, why
	}
}

// Record implements scrub.Space.
func (s *scrubSpace) Record(ctx context.Context, b scrub.Batch) error {
	rec := store.Scrub{ID: s.rec.ID, Findings: s.recorded}
	err := s.e.recordScrub(ctx, &rec, func(x *store.Scrub) {
		putProgress(x, &b.Progress)
		x.Active = int64(s.run.active(s.e.o.Now()))
	}, s.e.findingRecords(b.Findings))
	if err == nil {
		s.recorded = rec.Findings
	}
	return err
}
