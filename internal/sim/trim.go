package sim

import (
	"context"

	"github.com/shingle-store/shingle/internal/engine"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/trim"
	"github.com/shingle-store/shingle/internal/zone"
)

var _ zone.Discarder = (*device)(nil)

func (d *device) Discard(z int, ranges []extent.Range) error {
	n := int64(0)
	for _, r := range ranges {
		n += r.Len()
	}
	return d.do("discard", z, ranges[0].Off, n, func() error { return d.plan.Discard(z, ranges) })
}

func (d *device) Release(z int) error {
	return d.do("release", z, 0, 0, func() error { return d.plan.Release(z) })
}

// planTrim trims a part of the addresses, or all. It takes nothing from anybody: what the files hold
// is held against their models as ever.
func (c *client) planTrim(ch *Choices) *op {
	o := &op{what: "trim"}
	l := c.r.life
	r := engine.TrimRequest{Length: trim.ToEnd, DryRun: ch.Rarely(8)}
	if ch.Rarely(2) {
		end := int(l.e.AddressSpaceEnd())
		r.Start = uint64(ch.Below(end))
		if ch.Rarely(2) {
			r.Length = uint64(extent.BlockSize + ch.Below(end))
		}
	}
	if ch.Rarely(4) {
		r.MinLength = uint64(ch.Below(20 * extent.BlockSize))
	}
	var res engine.TrimResult
	o.run = func(ctx context.Context) (err error) {
		res, err = l.e.Trim(ctx, r, nil)
		return err
	}
	o.after = func(error) {
		if !c.took(o, false, 0) {
			return
		}
		sum := res.Trimmed + res.InUse + res.AlreadyTrimmed + res.TooShort + res.PartialZone + res.Busy + res.Unsupported + res.Gap + res.Quarantined + res.Failed
		switch {
		case sum != res.Done || res.State != trim.Cancelled && res.Done != res.Total:
			c.r.failf("%v: the figures add up to %d: %+v", o, sum, res)
		case res.Failed > 0 && l.faults == 0:
			c.r.failf("%v: something failed, and no fault was planned: %+v", o, res)
		}
		if res.Trimmed > 0 {
			c.r.cov.add("trimmed something", 1)
		}
	}
	return o
}
