package sim

import (
	"context"
	"errors"
	"time"

	"github.com/shingle-store/shingle/internal/engine"
	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/scrub"
)

// planScrub has the store scrubbed, or stops the scrub that runs. Like what gives space back it changes
// nothing that a file holds; whatever else goes on, what it calls bad must be bad.
func (c *client) planScrub(ch *Choices) *op {
	l := c.r.life
	stop := ch.Below(6)
	if stop > 3 {
		return c.planStopScrub(stop)
	}
	req := engine.ScrubRequest{ReadOnly: ch.Rarely(3), Limit: pick(ch, int64(0), 0, 4<<20, 64<<10)}
	switch ch.Below(4) {
	case 1:
		slot := uint32(ch.Below(c.slots()))
		req.Scope.BlockGroup = &slot
	case 2:
		req.Scope.File = c.name(ch)
	case 3:
		req.Scope.Device = "0"
	}
	o := &op{what: "scrub", name: req.Scope.File}
	var shown []engine.Scrub
	var found []engine.ScrubFinding
	o.run = func(ctx context.Context) error {
		s, err := l.e.StartScrub(ctx, req)
		if errdefs.ReasonOf(err) == errdefs.ReasonScrubRunning {
			s, err = l.e.ResumeScrub(ctx, "") // if it is paused
		}
		if err != nil {
			return err
		}
		err = l.e.WatchScrub(ctx, s.ID, 250*time.Millisecond, func(s engine.Scrub) error {
			shown = append(shown, s)
			return nil
		})
		for after, more := uint64(0), err == nil; more; {
			var page []engine.ScrubFinding
			page, after, err = l.e.ScrubFindings(ctx, engine.ScrubFindingsQuery{ID: s.ID, After: after, Limit: 100})
			found = append(found, page...)
			more = after > 0 && err == nil
		}
		return err
	}
	o.after = func(err error) {
		switch {
		case req.Scope.Device != "" && c.r.mortal() && errdefs.Is(err, errdefs.OutOfRange), errdefs.Is(err, errdefs.Precondition) || errdefs.Is(err, errdefs.NotFound) || errdefs.Is(err, errdefs.AlreadyExists):
			c.r.cov.add("scrub refused", 1)
		case errors.Is(err, context.Canceled): // of the watch; the scrub goes on
			c.r.cov.add("scrub left alone", 1)
		case c.took(o, false, 0):
			c.r.checkScrub(o, shown, found)
		}
	}
	return o
}

// planStopScrub pauses or cancels the scrub that runs, or changes its limit.
func (c *client) planStopScrub(how int) *op {
	o := &op{what: "stop scrub"}
	l := c.r.life
	o.run = func(ctx context.Context) (err error) {
		if how == 4 {
			_, err = l.e.PauseScrub(ctx, "")
		} else {
			_, err = l.e.CancelScrub(ctx, "")
		}
		if errdefs.Is(err, errdefs.NotFound) || errdefs.Is(err, errdefs.Precondition) {
			return nil // none runs
		}
		return err
	}
	o.after = func(error) { c.took(o, false, 0) }
	return o
}

// checkScrub holds what a scrub has shown and found against what it may.
func (r *run) checkScrub(o *op, shown []engine.Scrub, found []engine.ScrubFinding) {
	calm := r.life.faults == 0 && !r.lame() && len(r.failing) == 0 && len(r.taints) == 0 && len(r.shaky) == 0
	last := shown[0]
	for _, s := range shown {
		if s.ID != last.ID || s.Total != last.Total || s.Done < last.Done || s.Done > s.Total || s.Skipped > s.Done {
			r.failf("%v: %+v after %+v", o, s, last)
		}
		last = s
	}
	k := last.Counters
	switch {
	case last.State == scrub.Finished && last.Done != last.Total:
		r.failf("%v: finished, and it is not: %+v", o, last)
	case (last.State == scrub.Interrupted || last.State == scrub.Failed) && calm && !r.life.metadataFull && r.cfg.MetadataLimit > 8<<20:
		r.failf("%v: it ended early with no fault: %+v", o, last)
	case k.VerifyErrors+k.NoCsum+k.CsumDiscards > 0:
		r.failf("%v: the metadata is called bad: %+v, %+v", o, last, found)
	case k.Errors() > 0 && calm:
		r.failf("%v: good blocks are called bad: %+v, %+v", o, last, found)
	case last.Findings != k.Errors() || int(last.Findings) > len(found):
		r.failf("%v: %d findings, and %+v", o, len(found), last)
	}
	met := map[[3]uint64]bool{}
	for _, f := range found {
		if f.Object != "" { // a label has no address
			continue
		}
		unlucky := f.Unreadable && r.within(r.shaky, int(f.Device), int(f.Zone), f.ZoneOffset)
		if !r.within(r.taints, int(f.Device), int(f.Zone), f.ZoneOffset) && !unlucky {
			r.failf("%v: a good block is called bad: %+v", o, f)
		}
		at := [3]uint64{f.Address, uint64(f.Device), uint64(f.Zone)}
		if met[at] {
			r.failf("%v: found twice: %+v", o, f)
		}
		met[at] = true
	}
	r.cov.add("scrub "+map[scrub.State]string{
		scrub.Paused: "paused", scrub.Cancelled: "cancelled", scrub.Interrupted: "interrupted", scrub.Finished: "finished", scrub.Failed: "failed",
	}[last.State], 1)
	r.cov.add("scrub bad blocks", len(found))
	r.cov.add("scrub bytes skipped", int(last.Skipped))
}
