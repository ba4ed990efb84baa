package sim

import (
	"context"
	"slices"

	"github.com/shingle-store/shingle/internal/engine"
	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/trim"
)

// planSpace has space given back by hand. Nothing that a file holds changes by it, so the model has
// nothing to note: what the clients read says the rest.
func (c *client) planSpace(ch *Choices) *op {
	if c.r.trimming() && ch.Rarely(2) {
		return c.planCancelTrim()
	}
	if ch == c.r.c && c.r.mayChangeDevices() && ch.Rarely(4) {
		return c.planDevices(ch)
	}
	if c.r.cfg.Scrub && ch.Rarely(2) {
		return c.planScrub(ch)
	}
	if ch.Rarely(2) {
		return c.planReclaim(ch)
	}
	return c.planTrim(ch)
}

func (c *client) slots() int {
	return int(c.r.life.e.AddressSpaceEnd() / uint64(c.r.cfg.Geometry.ZoneSize))
}

func (c *client) planReclaim(ch *Choices) *op {
	req := engine.ReclaimRequest{DryRun: ch.Rarely(6)}
	if n := ch.Below(4); n > 0 {
		share := pick(ch, 0, 30, 75, 100)
		req.Threshold = &share
	}
	slots := c.slots()
	beyond := false
	if ch.Rarely(3) {
		for range 1 + ch.Below(4) {
			req.BlockGroups = append(req.BlockGroups, uint32(ch.Below(slots)))
		}
		if beyond = ch.Rarely(8); beyond {
			req.BlockGroups = append(req.BlockGroups, uint32(slots))
		}
	}
	if ch.Rarely(4) {
		req.Target = int64(1 + ch.Below(1<<20))
	}
	o := &op{what: "reclaim"}
	l := c.r.life
	var p engine.ReclaimProgress
	o.run = func(ctx context.Context) (err error) {
		p, err = l.e.Reclaim(ctx, req, nil)
		return err
	}
	o.after = func(err error) {
		if errdefs.Is(err, errdefs.NoSpace) && c.r.roomToMove() {
			c.r.failf("%v: no room to move live data to: %v", o, err)
			return
		}
		if !c.took(o, beyond, errdefs.OutOfRange) {
			return
		}
		switch {
		case p.Done > p.Total, p.Reset > p.Emptied, p.Emptied+p.Failed > p.Total:
			c.r.failf("%v: %+v", o, p)
		case req.DryRun && (p.Moved > 0 || p.Emptied > 0):
			c.r.failf("%v: a dry run that did something: %+v", o, p)
		case p.BadBlocks > 0 && len(c.r.taints) == 0 && len(c.r.shaky) == 0:
			c.r.failf("%v: good blocks are called bad: %+v", o, p)
		case p.Cancelled && o.ctx.Err() == nil:
			c.r.failf("%v: cancelled by nobody", o)
		}
	}
	return o
}

// roomToMove reports whether reclaim must find room for what it moves: nothing has failed that could
// have taken it, and the metadata has room for the records.
func (r *run) roomToMove() bool {
	return r.life.faults == 0 && len(r.failing) == 0 && len(r.taints) == 0 && r.cfg.MetadataLimit > 8<<20
}

func (c *client) planTrim(ch *Choices) *op {
	l := c.r.life
	end := l.e.AddressSpaceEnd()
	req := engine.TrimRequest{Length: trim.ToEnd, Reclaim: ch.Rarely(3), DryRun: ch.Rarely(6)}
	o := &op{what: "trim", end: int64(end)}
	bad := false
	if ch.Rarely(2) {
		zone := uint64(c.r.cfg.Geometry.ZoneSize)
		req.Start = uint64(ch.Below(c.slots())) * zone
		req.Length = uint64(1+ch.Below(3)) * zone
		if ch.Rarely(2) {
			req.Start += uint64(ch.Below(int(zone)))
			req.Length = uint64(extent.BlockSize + ch.Below(int(2*zone)))
		}
		if bad = ch.Rarely(8); bad {
			req.Start = end + uint64(ch.Below(2))
		}
		o.off, o.end = int64(req.Start), int64(req.Start+req.Length)
	}
	if ch.Rarely(3) {
		req.MinLength = uint64(ch.Below(100_000))
	}
	var res engine.TrimResult
	o.run = func(ctx context.Context) (err error) {
		res, err = l.e.Trim(ctx, req, nil)
		return err
	}
	o.after = func(error) {
		if !c.took(o, bad, errdefs.InvalidArgument) {
			return
		}
		sum := res.Trimmed + res.InUse + res.AlreadyTrimmed + res.TooShort + res.PartialZone + res.Busy +
			res.Unsupported + res.Gap + res.Quarantined + res.Failed
		calm := l.faults == 0 && !c.r.lame() && len(c.r.failing) == 0 && len(c.r.taints) == 0 && !c.r.life.metadataFull
		switch {
		case sum != res.Done || res.Done > res.Total:
			c.r.failf("%v: what was looked at does not add up: %+v", o, res)
		case res.State == trim.Complete && (res.Done != res.Total || res.FirstError != nil):
			c.r.failf("%v: complete, and it is not: %+v", o, res)
		case res.State == trim.Cancelled && o.ctx.Err() == nil:
			c.r.failf("%v: cancelled by nobody: %+v", o, res)
		case calm && c.r.cfg.MetadataLimit > 8<<20 && res.Failed > 0:
			c.r.failf("%v: something failed with no fault: %+v", o, res)
		case (!req.Reclaim || req.DryRun) && res.Relocated > 0:
			c.r.failf("%v: it did more than it was asked: %+v", o, res)
		}
		c.r.cov.add("trim bytes trimmed", int(res.Trimmed))
		c.r.cov.add("trim bytes relocated", int(res.Relocated))
	}
	return o
}

// planCancelTrim ends the trim of whoever runs one.
func (c *client) planCancelTrim() *op {
	o := &op{what: "cancel trim"}
	l := c.r.life
	o.run = func(ctx context.Context) error {
		_, err := l.e.CancelTrim(ctx)
		if errdefs.Is(err, errdefs.NotFound) {
			return nil
		}
		return err
	}
	o.after = func(error) { c.took(o, false, 0) }
	return o
}

// trimming reports whether a client has a trim under way.
func (r *run) trimming() bool {
	return slices.ContainsFunc(r.clients, func(c *client) bool { return c.op != nil && c.op.what == "trim" })
}
