package sim

import (
	"context"
	"errors"

	"github.com/shingle-store/shingle/internal/engine"
	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
)

var sharedNames = []string{"shared/x", "shared/y"}

// planShared chooses a request on a file that others change at the same time.
func (c *client) planShared(ch *Choices) *op {
	name := sharedNames[ch.Below(len(sharedNames))]
	from := ch.Below(sharedBlocks)
	to := min(sharedBlocks, from+1+ch.Below(8))
	o := &op{name: name, off: int64(from) * extent.BlockSize, end: int64(to) * extent.BlockSize}
	l, g := c.r.life, c.r.regs
	var ch1 *change
	switch ch.Below(8) {
	case 0, 1:
		o.what = "shared read"
		n := o.end - o.off
		o.tick = g.tick()
		o.run = func(ctx context.Context) error { return c.read(ctx, o, l, &n, false) }
		o.after = func(error) {
			whole := c.sharedTook(o, nil)
			if !whole && errdefs.Is(o.err, errdefs.NotFound) {
				whole, o.got = true, nil
			}
			c.checkShared(o, from, to, whole, false)
		}
		return o
	case 2, 3, 4:
		o.what = "shared write"
		ch1 = g.begin(name, from, to, true)
		for range to - from {
			o.data = append(o.data, tagged(ch1.tag)...)
		}
		sync := ch.Rarely(4)
		o.run = func(ctx context.Context) error { return c.writeAt(ctx, l, name, o.off, o.data, sync) }
		o.after = func(error) {
			if c.sharedTook(o, ch1) && sync {
				ch1.durable = true
			}
		}
		return o
	case 5:
		o.what = "shared sync"
		o.tick = g.tick()
		o.run = func(ctx context.Context) error {
			_, err := l.e.Sync(ctx, []string{name}, nil)
			return err
		}
		o.after = func(error) {
			if c.sharedTook(o, nil) {
				mine := map[*change]bool{}
				for _, cs := range g.blocks[name] {
					for _, x := range cs {
						mine[x] = true
					}
				}
				g.synced(o.tick, func(x *change) bool { return mine[x] })
			}
		}
		return o
	case 6:
		o.what = "shared punch"
		ch1 = g.begin(name, from, to, false)
		o.run = func(ctx context.Context) error {
			_, _, err := l.e.Deallocate(ctx, name, o.off, o.end-o.off, engine.Preconditions{})
			return err
		}
	case 7:
		switch ch.Below(3) {
		case 0:
			o.what, o.end = "shared truncate", extent.MaxFileSize
			ch1 = g.begin(name, from, sharedBlocks, false)
			o.run = func(ctx context.Context) error {
				_, _, err := l.e.Truncate(ctx, name, o.off, engine.Preconditions{})
				return err
			}
		case 1:
			o.what = "shared delete"
			ch1 = g.begin(name, 0, sharedBlocks, false)
			o.run = func(ctx context.Context) error {
				_, err := l.e.Delete(ctx, engine.DeleteRequest{Name: name, AllowMissing: true})
				return err
			}
		case 2:
			o.what, o.off = "shared put", 0
			o.end = int64(to) * extent.BlockSize
			ch1 = g.begin(name, 0, to, true)
			// What lies past the new end goes away with the same change: blocks of it read as zeros.
			gone := g.begin(name, to, sharedBlocks, false)
			gone.begun = ch1.begun
			for range to {
				o.data = append(o.data, tagged(ch1.tag)...)
			}
			o.run = func(ctx context.Context) error { return c.put(ctx, l, name, o.data, 5*extent.BlockSize, nil) }
			o.after = func(error) {
				if c.sharedTook(o, ch1) {
					ch1.durable, gone.durable = true, true
				}
				gone.end, gone.refused = ch1.end, ch1.refused
			}
			return o
		}
	}
	cut := o.what == "shared punch" || o.what == "shared truncate"
	o.after = func(err error) {
		if cut && o.ctx.Err() != nil && errors.Is(err, o.ctx.Err()) {
			return // it may still happen, or have happened: it has no end
		}
		if cut && errdefs.Is(err, errdefs.Device) {
			c.took(o, false, 0)
			return // of a file that has failed, what is cut is gone, and the error says that it may come back
		}
		if c.sharedTook(o, ch1) {
			ch1.durable = true
		}
	}
	return o
}

// sharedTook holds an answer against what is legal, says when the change was done, and reports whether
// the request took place.
func (c *client) sharedTook(o *op, ch *change) bool {
	if errdefs.Is(o.err, errdefs.NotFound) {
		// Somebody has deleted it: for a change of nothing that is as good.
		if ch != nil {
			c.r.regs.refuse(ch)
		}
		return false
	}
	took := c.took(o, false, 0)
	if ch != nil {
		var late *notSynced
		switch {
		case took:
			ch.end = c.r.regs.tick()
		case asNotSynced(o.err, &late):
			ch.end = c.r.regs.tick()
		default:
			c.r.regs.refuse(ch)
		}
	}
	return took
}

// checkShared holds what a read found in blocks [from, to) against the registers.
func (c *client) checkShared(o *op, from, to int, whole, crashed bool) {
	for b := from; b < to; b++ {
		at := (b - from) * extent.BlockSize
		if !whole && at+extent.BlockSize > len(o.got) {
			return
		}
		part := o.got[min(at, len(o.got)):min(at+extent.BlockSize, len(o.got))]
		if err := c.r.regs.check(o.name, b, part, o.tick, crashed); err != nil {
			c.r.failf("%v: %v", o, err)
			return
		}
	}
}
