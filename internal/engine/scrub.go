package engine

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/scrub"
	"github.com/shingle-store/shingle/internal/store"
)

// scrubs are the scrubs of the store: one at a time.
type scrubs struct {
	turn chan struct{} // a token: of who begins, stops or changes one; held over commits
	// met takes what others meet while a scrub runs; nil while none does.
	met atomic.Pointer[scrubSpace]
	// order numbers the changes of records as they are made, in the group commit's goroutine.
	order atomic.Uint64
	// drained is closed when no read of the last run is under way any more; of who runs a scrub.
	drained <-chan struct{}

	lookups, sumLookups, reads, bytes, findings atomic.Uint64

	mu struct {
		sync.Mutex
		rec   store.Scrub // the current scrub as it is on record; ID 0: there is none
		order uint64      // of the change that made rec
		run   *scrubRun   // nil: it does not run
		// why a scrub ended whose end could not be recorded; it stands for rec's
		state scrub.State
		err   string
	}
}

// scrubRun is a scrub while it runs.
type scrubRun struct {
	id     uint64
	cancel context.CancelCauseFunc
	limit  *scrub.Limiter
	began  time.Time
	before time.Duration // active time before
	done   chan struct{} // closed when it has ended, and that is recorded
}

// stopScrub is why a run is told to stop.
type stopScrub struct {
	state scrub.State
	why   string
}

func (s *stopScrub) Error() string { return "the scrub is to be stopped: " + s.why }

// maxRequestID bounds ScrubRequest.RequestID, in bytes.
const maxRequestID = 64

// takeScrubs takes the turn; the caller gives it back.
func (e *Engine) takeScrubs(ctx context.Context, op string) (giveBack func(), err error) {
	if err := e.writable(op); err != nil {
		return nil, err
	}
	select {
	case e.scrubs.turn <- struct{}{}:
		return func() { <-e.scrubs.turn }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-e.stop:
		return nil, e.writable(op)
	}
}

// current returns the current scrub and its run, if it runs.
func (e *Engine) currentScrub() (rec store.Scrub, state scrub.State, run *scrubRun) {
	m := &e.scrubs.mu
	m.Lock()
	defer m.Unlock()
	rec = m.rec
	if m.state != 0 {
		rec.State, rec.Error = uint8(m.state), m.err
	}
	return rec, scrub.State(rec.State), m.run
}

func scrubObject(id uint64) string { return "scrub " + strconv.FormatUint(id, 10) }

func noScrub(op, id string) error {
	if id == "" {
		return errdefs.New(errdefs.NotFound, "", op, "", "there has been no scrub")
	}
	return errdefs.New(errdefs.NotFound, "", op, "scrub "+id, "does not exist")
}

// scrubRecord returns the scrub with the id; "" is the current one.
func (e *Engine) scrubRecord(op, id string) (store.Scrub, error) {
	rec, _, _ := e.currentScrub()
	if id == "" || rec.ID > 0 && id == strconv.FormatUint(rec.ID, 10) {
		if rec.ID == 0 {
			return rec, noScrub(op, id)
		}
		return rec, nil
	}
	n, err := strconv.ParseUint(id, 10, 64)
	if err != nil || id != strconv.FormatUint(n, 10) {
		return rec, noScrub(op, id)
	}
	err = e.st.View(func(tx *store.Tx) (err error) {
		rec, err = tx.Scrub(n)
		return err
	})
	if errdefs.Is(err, errdefs.NotFound) {
		err = noScrub(op, id)
	}
	if cur, _, _ := e.currentScrub(); rec.ID < cur.ID && scrub.State(rec.State) == scrub.Running {
		rec.State, rec.Error = uint8(scrub.Interrupted), "its end could not be recorded" // one runs at a time
	}
	return rec, err
}

// StartScrub begins a scrub and returns at once, when that is durable. AlreadyExists/SCRUB_RUNNING,
// with the id of the one that runs or is paused in the message, if there is one; NotFound for a file,
// InvalidArgument or OutOfRange for a scope that does not exist; ReadOnly if the store takes no changes;
// NoSpace/METADATA_SPACE if it cannot be recorded.
func (e *Engine) StartScrub(ctx context.Context, r ScrubRequest) (Scrub, error) {
	const op = "engine.StartScrub"
	rec, err := e.newScrub(op, r)
	if err != nil {
		return Scrub{}, err
	}
	done, err := e.takeScrubs(ctx, op)
	if err != nil {
		return Scrub{}, err
	}
	defer done()
	if old, state, _ := e.currentScrub(); old.ID > 0 && (state == scrub.Running || state == scrub.Paused) {
		if r.RequestID != "" && r.RequestID == old.RequestID {
			return e.describeScrub(old), nil
		}
		err := errdefs.New(errdefs.AlreadyExists, errdefs.ReasonScrubRunning, op, scrubObject(old.ID), "")
		err.Msg = fmt.Sprintf("scrub %d is running", old.ID)
		if state == scrub.Paused {
			err.Msg = fmt.Sprintf("scrub %d is paused: resume or cancel it", old.ID)
		}
		err.Meta = map[string]string{"scrub_id": strconv.FormatUint(old.ID, 10)}
		return Scrub{}, err
	}
	if e.draining.Load() {
		return Scrub{}, errdefs.New(errdefs.Unavailable, errdefs.ReasonDraining, op, "", "the engine is about to close")
	}
	if err := e.planScrub(&rec); err != nil {
		return Scrub{}, err
	}
	if err := e.recordScrub(ctx, &rec, nil, nil); err != nil {
		return Scrub{}, err
	}
	e.runScrub(rec)
	return e.GetScrub(ctx, "")
}

// GetScrub returns the scrub with the id, or with "" the one that runs, else the last. NotFound.
func (e *Engine) GetScrub(_ context.Context, id string) (Scrub, error) {
	rec, err := e.scrubRecord("engine.GetScrub", id)
	if err != nil {
		return Scrub{}, err
	}
	return e.describeScrub(rec), nil
}

// WatchScrub calls fn with the scrub at once, every interval, and last when it has stopped running
// (paused, cancelled, interrupted, finished, failed), and then returns nil; fn's error, or ctx's, or
// Unavailable when the engine closes ends it.
func (e *Engine) WatchScrub(ctx context.Context, id string, every time.Duration, fn func(Scrub) error) error {
	const op = "engine.WatchScrub"
	tick := time.NewTicker(max(every, time.Millisecond))
	defer tick.Stop()
	for {
		rec, err := e.scrubRecord(op, id)
		if err != nil {
			return err
		}
		id = strconv.FormatUint(rec.ID, 10) // that one, also when another has begun
		_, _, run := e.currentScrub()
		s := e.describeScrub(rec)
		if err := fn(s); err != nil || s.State != scrub.Running {
			return err
		}
		var over chan struct{}
		if run != nil && run.id == rec.ID {
			over = run.done
		}
		select {
		case <-tick.C:
		case <-over:
		case <-ctx.Done():
			return ctx.Err()
		case <-e.stop:
			return e.writable(op)
		}
	}
}

// PauseScrub stops the scrub that runs within a second, durably; FailedPrecondition if it does not run.
// Id "" is the current one.
func (e *Engine) PauseScrub(ctx context.Context, id string) (Scrub, error) {
	return e.stopScrub(ctx, "engine.PauseScrub", id, &stopScrub{scrub.Paused, "paused"})
}

// CancelScrub ends a scrub that runs, is paused or was interrupted, within a second, also while a device
// read stalls. It can be resumed.
func (e *Engine) CancelScrub(ctx context.Context, id string) (Scrub, error) {
	return e.stopScrub(ctx, "engine.CancelScrub", id, &stopScrub{scrub.Cancelled, "cancelled"})
}

func (e *Engine) stopScrub(ctx context.Context, op, id string, why *stopScrub) (Scrub, error) {
	done, err := e.takeScrubs(ctx, op)
	if err != nil {
		return Scrub{}, err
	}
	defer done()
	rec, err := e.scrubRecord(op, id)
	if err != nil {
		return Scrub{}, err
	}
	cur, state, run := e.currentScrub()
	if rec.ID != cur.ID {
		state = scrub.State(rec.State)
	}
	switch {
	case run != nil && run.id == rec.ID:
		run.cancel(why)
		select {
		case <-run.done:
		case <-ctx.Done():
			return Scrub{}, ctx.Err()
		}
		if cur, state, _ = e.currentScrub(); state != why.state {
			return Scrub{}, notRunning(op, cur.ID, state) // it had ended by itself
		}
	case rec.ID == cur.ID && why.state == scrub.Cancelled && (state == scrub.Paused || state == scrub.Interrupted):
		err := e.recordScrub(ctx, &rec, func(s *store.Scrub) {
			s.State, s.Error, s.Ended = uint8(scrub.Cancelled), "", e.o.Now().UnixNano()
		}, nil)
		if err != nil {
			return Scrub{}, err
		}
	default:
		return Scrub{}, notRunning(op, rec.ID, state)
	}
	return e.GetScrub(ctx, id)
}

func notRunning(op string, id uint64, state scrub.State) error {
	return errdefs.New(errdefs.Precondition, errdefs.ReasonPrecondition, op, scrubObject(id), fmt.Sprintf("scrub %d is %s", id, stateWord(state)))
}

// ResumeScrub goes on with the latest scrub, if it was paused, interrupted or cancelled, where it stopped.
// NotFound; Precondition if it is none of these, or not the latest; AlreadyExists/SCRUB_RUNNING if another
// one runs or is paused.
func (e *Engine) ResumeScrub(ctx context.Context, id string) (Scrub, error) {
	const op = "engine.ResumeScrub"
	done, err := e.takeScrubs(ctx, op)
	if err != nil {
		return Scrub{}, err
	}
	defer done()
	rec, err := e.scrubRecord(op, id)
	if err != nil {
		return Scrub{}, err
	}
	cur, state, _ := e.currentScrub()
	switch {
	case cur.ID == rec.ID:
	case state == scrub.Running || state == scrub.Paused:
		return Scrub{}, errdefs.New(errdefs.AlreadyExists, errdefs.ReasonScrubRunning, op, scrubObject(cur.ID), fmt.Sprintf("scrub %d is %s", cur.ID, stateWord(state)))
	default: // that one has looked at more, and a restart finds the latest only
		return Scrub{}, errdefs.New(errdefs.Precondition, errdefs.ReasonPrecondition, op, scrubObject(rec.ID),
			fmt.Sprintf("scrub %d has begun since, and only the latest can be resumed", cur.ID))
	}
	switch scrub.State(rec.State) {
	case scrub.Paused, scrub.Interrupted, scrub.Cancelled:
	default:
		return Scrub{}, notRunning(op, rec.ID, scrub.State(rec.State))
	}
	err = e.recordScrub(ctx, &rec, func(s *store.Scrub) {
		s.State, s.Error, s.Ended = uint8(scrub.Running), "", 0
	}, nil)
	if err != nil {
		return Scrub{}, err
	}
	e.runScrub(rec)
	return e.GetScrub(ctx, "")
}

// SetScrubLimit sets the limit of the current scrub, durably, in force within a second. 0: none. NotFound
// if there is no scrub, Precondition if it is over.
func (e *Engine) SetScrubLimit(ctx context.Context, bytesPerSecond int64) (Scrub, error) {
	const op = "engine.SetScrubLimit"
	if bytesPerSecond < 0 {
		return Scrub{}, errdefs.Invalid(op, "limit", "limit must not be negative")
	}
	done, err := e.takeScrubs(ctx, op)
	if err != nil {
		return Scrub{}, err
	}
	defer done()
	rec, state, run := e.currentScrub()
	switch {
	case rec.ID == 0:
		return Scrub{}, noScrub(op, "")
	case state == scrub.Finished || state == scrub.Failed:
		return Scrub{}, notRunning(op, rec.ID, state)
	}
	if err := e.recordScrub(ctx, &rec, func(s *store.Scrub) { s.Limit = bytesPerSecond }, nil); err != nil {
		return Scrub{}, err
	}
	if run != nil {
		run.limit.Set(bytesPerSecond)
	}
	return e.GetScrub(ctx, "")
}

func stateWord(s scrub.State) string {
	switch s {
	case scrub.Running:
		return "running"
	case scrub.Paused:
		return "paused"
	case scrub.Cancelled:
		return "cancelled"
	case scrub.Interrupted:
		return "interrupted"
	case scrub.Finished:
		return "finished"
	case scrub.Failed:
		return "failed"
	}
	return "in an unknown state"
}

// stopReason returns why a run was told to stop; nil: it was not.
func stopReason(ctx context.Context) *stopScrub {
	var why *stopScrub
	errors.As(context.Cause(ctx), &why)
	return why
}
