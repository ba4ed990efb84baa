package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/reclaim"
)

// ReclaimRequest asks for space to be given back now.
type ReclaimRequest struct {
	// Threshold: only block groups of which so much is dead, in percent, 0 to 100; nil: Options.Reclaim.
	Threshold *int
	// BlockGroups: only these; empty: all.
	BlockGroups []uint32
	// Target: stop when so many bytes were given back; 0: go on.
	Target int64
	// DryRun changes nothing, and says what would be done.
	DryRun bool
}

// ReclaimProgress is what a Reclaim did so far. Sizes are bytes.
type ReclaimProgress struct {
	Emptied       uint64 // block groups without anything live left
	Reset         uint64 // of them, those whose zones have been reset
	Failed        uint64 // block groups with a bad block, or that records or zones kept from being emptied
	Done, Total   uint64 // block groups dealt with, and chosen when the call began
	TotalBytes    int64  // live in those chosen
	Moved         int64  // verified and stored elsewhere
	Dropped       int64  // died while they were moved
	Freed         int64  // given back by resets, less what was moved
	BadBlocks     uint64
	Current       *uint32 // being emptied now
	FirstError    string
	PendingResets uint64 // emptied, not reset yet: a reader has them, or the reset is under way
	Cancelled     bool   // the store is closing, or ctx ended
}

// Reclaim moves live data out of block groups of which much is dead, best first, and has their zones
// reset; progress, unless nil, is called as it goes on, with nobody waiting for it. It works without
// rest, and answers what it did also with an error. One runs at a time; another waits.
//
// Errors: InvalidArgument, OutOfRange (no such block group), ReadOnly; of ctx; NoSpace if there was no
// room to move to, which needs failing zones or a metadata file that is full.
func (e *Engine) Reclaim(ctx context.Context, r ReclaimRequest, progress func(ReclaimProgress)) (ReclaimProgress, error) {
	const op = "engine.Reclaim"
	var p ReclaimProgress
	share := e.rc.o.Threshold
	if r.Threshold != nil {
		share = *r.Threshold
	}
	switch {
	case share < 0 || share > 100:
		return p, errdefs.Invalid(op, "threshold_percent", "threshold_percent must be from 0 to 100")
	case r.Target < 0:
		return p, errdefs.Invalid(op, "target_bytes", "target_bytes must not be negative")
	}
	for _, slot := range r.BlockGroups {
		if int64(slot) >= int64(e.slots()) {
			return p, errdefs.New(errdefs.OutOfRange, "", op, fmt.Sprintf("block group %d", slot), fmt.Sprintf("there are %d block groups", e.slots()))
		}
	}
	if err := e.writable(op); err != nil && !r.DryRun {
		return p, err
	}
	select {
	case e.rc.call <- struct{}{}:
		defer func() { <-e.rc.call }()
	case <-ctx.Done():
		return p, ctx.Err()
	case <-e.stop:
		return p, e.writable(op)
	}
	chosen := e.chooseVictims(r, share)
	p.Total = uint64(len(chosen))
	for _, c := range chosen {
		p.TotalBytes += c.Live
	}
	if r.DryRun {
		for _, c := range chosen {
			p.Freed += c.Dead
		}
		return p, nil
	}
	report := func() {
		if progress != nil {
			progress(p)
		}
	}
	report()
	resets := e.al.Stats().Reset
	var err error
	for _, c := range chosen {
		if r.Target > 0 && p.Freed >= r.Target {
			break
		}
		p.Current = &c.Slot
		if err = e.reclaimOne(ctx, c, &p, report); err != nil {
			break
		}
		p.Done++
		p.Current = nil
		report()
	}
	p.Current = nil
	e.awaitEmptied(ctx, &p, resets)
	report()
	if err != nil && (ctx.Err() != nil || e.stopped()) {
		p.Cancelled = true
		return p, nil
	}
	return p, err
}

// chooseVictims returns what a call is about, best first. Those held back are tried again: who asks may
// have mended what was wrong.
func (e *Engine) chooseVictims(r ReclaimRequest, share int) []reclaim.Candidate {
	if !r.DryRun {
		e.rc.index.Release()
	}
	if len(r.BlockGroups) == 0 {
		return e.rc.index.Above(share)
	}
	wanted := map[uint32]bool{}
	for _, slot := range r.BlockGroups {
		wanted[slot] = true
	}
	var out []reclaim.Candidate
	for _, c := range e.rc.index.Above(share) {
		if wanted[c.Slot] {
			out = append(out, c)
		}
	}
	return out
}

// reclaimOne empties one block group for a call.
func (e *Engine) reclaimOne(ctx context.Context, c reclaim.Candidate, p *ReclaimProgress, report func()) error {
	appended := e.rc.discarded.Load()
	m := mover{
		e: e, rest: e.noRest,
		progress: func(step outcome) {
			p.Moved, p.Dropped, p.BadBlocks = p.Moved+step.moved, p.Dropped+step.dropped, p.BadBlocks+uint64(step.bad)
			report()
		},
	}
	before := p.Moved
	out, err := m.empty(ctx, c.Slot)
	switch {
	case err != nil:
		if !errors.Is(err, context.Canceled) && p.FirstError == "" {
			p.FirstError = errdefs.Sentence(err)
		}
		return err
	case out.skipped:
		return nil
	case !out.emptied:
		p.Failed++
		if p.FirstError == "" {
			p.FirstError = fmt.Sprintf("block group %d (zone %d) cannot be emptied", c.Slot, e.zoneOf(c.Slot))
		}
		return nil
	}
	p.Emptied++
	p.Freed += max(0, c.Live+c.Dead-(p.Moved-before)-int64(e.rc.discarded.Load()-appended))
	return nil
}

// awaitEmptied gives the resets of what was emptied a moment, and counts those done.
func (e *Engine) awaitEmptied(ctx context.Context, p *ReclaimProgress, before uint64) {
	for range 100 {
		changed := e.al.Changed()
		p.Reset = min(p.Emptied, e.al.Stats().Reset-before)
		p.PendingResets = p.Emptied - p.Reset
		if p.PendingResets == 0 || ctx.Err() != nil || e.failed() != nil {
			return
		}
		e.resetKick.set()
		select {
		case <-changed:
		case <-e.spaceTick():
		case <-ctx.Done():
		case <-e.broken:
		case <-e.stop:
			return
		}
		if e.al.Usage().Reclaimable == 0 && e.resetting.Load() == 0 {
			p.Reset = min(p.Emptied, e.al.Stats().Reset-before)
			p.PendingResets = p.Emptied - p.Reset
			return
		}
	}
}

func (e *Engine) noRest(_ time.Duration, _ bool) bool { return !e.stopped() }

// Reclaiming reports whether live data is being moved or zones are being reset now.
func (e *Engine) Reclaiming() bool { return e.rc.working.Load() > 0 || e.resetting.Load() > 0 }
