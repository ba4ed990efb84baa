package engine

import (
	"context"
	"sync"
	"time"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/trim"
)

// TrimRequest says what to trim; see trim.Request.
type TrimRequest struct {
	Start, Length, MinLength uint64
	DryRun                   bool
	// Reclaim moves live data out of the block groups that lie in the range first, those that reclaim
	// would choose by itself. A dry run moves nothing.
	Reclaim bool
}

func (r TrimRequest) walk() trim.Request {
	return trim.Request{Start: r.Start, Length: r.Length, MinLength: r.MinLength, DryRun: r.DryRun}
}

// TrimResult is the whole summary of a trim; see trim.Result.
type TrimResult = trim.Result

const (
	// trimPatience is how long a trim waits in all for resets and openings under way, so that what
	// was deleted just before it counts.
	trimPatience = time.Second
	// readerPatience is how long it waits for the reads that may still look at a zone.
	readerPatience = time.Second
)

// trims are the trims of this run: one at a time.
type trims struct {
	turn chan struct{}
	mu   struct {
		sync.Mutex
		running *trimRun // nil: none
	}
}

type trimRun struct {
	cancel context.CancelFunc
	done   chan struct{}
	result TrimResult // when done is closed
}

// AddressSpaceEnd is the end of the logical addresses, in bytes: that of the last slot.
func (e *Engine) AddressSpaceEnd() uint64 { return uint64(e.slots()) * uint64(e.geo.ZoneSize) }

// BeginTrim answers what Trim would begin with, or refuses what it would refuse.
func (e *Engine) BeginTrim(r TrimRequest) (TrimResult, error) {
	if err := e.writable("engine.Trim"); err != nil && !r.DryRun {
		return TrimResult{}, err
	}
	return trim.Begin(e.newTrimSpace(), r.walk())
}

// Trim tells the device what is free in a range of logical addresses; trim.Run says how. It waits
// while another one runs. progress, unless nil, is given summaries meanwhile, and must not wait.
// It ends early, with state Cancelled and no error, by CancelTrim or when ctx ends. When it
// returns, what was trimmed is remembered, durably, until something is stored there.
//
// Errors: InvalidArgument for a range that makes no sense, ReadOnly unless it is a dry run, and
// ctx's if it ends before the trim began.
func (e *Engine) Trim(ctx context.Context, r TrimRequest, progress func(TrimResult)) (TrimResult, error) {
	begin, err := e.BeginTrim(r)
	if err != nil {
		return begin, err
	}
	select {
	case e.trims.turn <- struct{}{}:
		defer func() { <-e.trims.turn }()
	case <-ctx.Done():
		return TrimResult{}, ctx.Err()
	case <-e.stop:
		return TrimResult{}, e.writable("engine.Trim")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	run := &trimRun{cancel: cancel, done: make(chan struct{})}
	e.trims.mu.Lock()
	e.trims.mu.running = run
	e.trims.mu.Unlock()
	defer func() {
		e.trims.mu.Lock()
		e.trims.mu.running = nil
		e.trims.mu.Unlock()
		close(run.done)
	}()
	var relocated uint64
	var moveErr error
	show := func(res TrimResult) {
		if res.Relocated = relocated; progress != nil {
			progress(res)
		}
	}
	if !r.DryRun {
		e.settleFrees(ctx)
		if r.Reclaim {
			moveErr = e.reclaimIn(ctx, begin, func(moved int64) {
				relocated = uint64(moved)
				show(begin)
			})
		}
	}
	res, err := trim.Run(ctx, e.newTrimSpace(), r.walk(), show)
	if err != nil {
		return res, err
	}
	if res.Relocated = relocated; moveErr != nil && res.FirstError == nil {
		res.FirstError = moveErr
		if res.State == trim.Complete {
			res.State = trim.CompleteWithErrors
		}
	}
	e.count.trims.Add(1)
	e.count.discardBatches.Add(res.Batches)
	if res.Trimmed > 0 && !r.DryRun {
		// Also when ctx has ended: what was done is to be remembered.
		if err := e.group.Flush(context.WithoutCancel(ctx)); err != nil && res.FirstError == nil {
			res.FirstError = err
			if res.State == trim.Complete {
				res.State = trim.CompleteWithErrors
			}
		}
	}
	run.result = res
	return res, nil
}

// CancelTrim ends the trim that runs, and answers what it answers when it has ended. NotFound if
// none runs; ctx's error if that ends first.
func (e *Engine) CancelTrim(ctx context.Context) (TrimResult, error) {
	e.trims.mu.Lock()
	run := e.trims.mu.running
	e.trims.mu.Unlock()
	if run == nil {
		return TrimResult{}, errdefs.New(errdefs.NotFound, "", "engine.CancelTrim", "", "no trim is running")
	}
	run.cancel()
	select {
	case <-run.done:
		return run.result, nil
	case <-ctx.Done():
		return TrimResult{}, ctx.Err()
	}
}

// reclaimIn moves live data out of the block groups that lie in the range as a whole. moved is told
// how many bytes were stored elsewhere. That it was cancelled is no error.
func (e *Engine) reclaimIn(ctx context.Context, r TrimResult, moved func(int64)) error {
	size := uint64(e.geo.ZoneSize)
	var slots []uint32
	for slot := (r.NextStart + size - 1) / size; (slot+1)*size <= r.NextStart+r.Total; slot++ {
		slots = append(slots, uint32(slot))
	}
	if len(slots) == 0 {
		return nil
	}
	p, err := e.Reclaim(ctx, ReclaimRequest{BlockGroups: slots}, func(p ReclaimProgress) { moved(p.Moved) })
	moved(p.Moved)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// settleFrees lets what was deleted before the call be free, as far as that takes little time.
func (e *Engine) settleFrees(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, e.apart(trimPatience))
	defer cancel()
	until := func(done func() bool) {
		for !done() {
			select {
			case <-time.After(e.apart(time.Millisecond)):
			case <-ctx.Done():
				return
			}
		}
	}
	e.orphanKick.set()
	until(func() bool { return e.orphans.Load() == 0 })
	_ = e.group.Flush(ctx) // what fails here is no matter of this trim
	until(func() bool { return e.al.Aside() == 0 })
}
