package trim

import (
	"context"
	"errors"
	"sync"

	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/zone"
)

const (
	// maxRanges is the most ranges of one command: what NVMe's dataset management takes.
	maxRanges = 256
	// maxDepth is the most discards under way: a drive's queue as the kernel keeps it for SATA.
	maxDepth = 32
	// maxZones is the most zones being given back together. An emulated device takes 0.63 ms a MiB
	// for it, one after another, so a zone of 256 MiB is back after 0.7 s at the latest.
	maxZones = 4
	// heldRanges and heldBytes bound what is kept from being allocated while it is gathered.
	heldRanges = 32 * maxRanges
	heldBytes  = 256 << 20
)

// command is one discard, or one zone to be given back.
type command struct {
	slot   uint32
	ranges []extent.Range // nil: the zone
	length int64          // of the zone
}

// plug gathers commands and runs them together. The caller is one goroutine.
type plug struct {
	t      *run
	queue  []command
	ranges int   // in queue, zones not counted
	bytes  int64 // in those
	zones  int   // in queue
}

// add plugs a held range. Ranges come in ascending order within a slot.
func (p *plug) add(ctx context.Context, slot uint32, r extent.Range) {
	p.ranges++
	p.bytes += r.Len()
	if c := p.last(slot); c != nil {
		if end := &c.ranges[len(c.ranges)-1].End; *end == r.Off {
			*end = r.End
			p.ranges--
		} else {
			c.ranges = append(c.ranges, r)
		}
	} else {
		p.queue = append(p.queue, command{slot: slot, ranges: []extent.Range{r}})
	}
	if p.ranges >= heldRanges || p.bytes >= heldBytes {
		p.unplug(ctx)
	}
}

// last returns the command that takes one more range of the slot, or nil.
func (p *plug) last(slot uint32) *command {
	if n := len(p.queue); n > 0 {
		if c := &p.queue[n-1]; c.slot == slot && len(c.ranges) > 0 && len(c.ranges) < p.t.maxRanges {
			return c
		}
	}
	return nil
}

// addZone plugs a zone. Nothing is held yet.
func (p *plug) addZone(ctx context.Context, slot uint32, capacity int64) {
	p.queue = append(p.queue, command{slot: slot, length: capacity})
	if p.zones++; p.zones >= maxZones {
		p.unplug(ctx)
	}
}

// unplug runs what has been gathered and waits for it. After ctx has ended nothing more is sent:
// the rest is given back as it is.
func (p *plug) unplug(ctx context.Context) {
	queue := p.queue
	if p.ranges > 0 && ctx.Err() == nil {
		p.t.mu.Lock()
		p.t.mu.Batches++
		p.t.mu.Unlock()
	}
	p.queue, p.ranges, p.bytes, p.zones = p.queue[:0], 0, 0, 0
	if len(queue) > 0 {
		defer p.t.tell()
	}
	if len(queue) == 1 {
		p.t.do(ctx, &queue[0])
		return
	}
	var wg sync.WaitGroup
	slots := make(chan struct{}, p.t.maxDepth)
	for i := range queue {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			p.t.do(ctx, &queue[i])
		})
	}
	wg.Wait()
}

// do runs one command, counts what came of it, and gives back what it holds.
func (t *run) do(ctx context.Context, c *command) {
	switch {
	case ctx.Err() != nil:
		t.drop(c)
	case c.ranges != nil:
		t.discard(c)
	default:
		t.giveBack(ctx, c)
	}
}

// drop gives back what was not sent.
func (t *run) drop(c *command) {
	off := int64(0)
	if c.ranges != nil {
		t.s.Release(c.slot, c.ranges, false)
		off = c.ranges[0].Off
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.dropped = min(t.mu.dropped, t.addr(c.slot, off))
}

func (t *run) discard(c *command) {
	err := t.s.Discard(c.slot, c.ranges)
	t.s.Release(c.slot, c.ranges, err == nil)
	n := int64(0)
	for _, r := range c.ranges {
		n += r.Len()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	r := &t.mu.Result
	r.Commands++
	switch {
	case err == nil:
		r.Extents += uint64(len(c.ranges))
		t.countLocked(&r.Trimmed, n)
	case errors.Is(err, zone.ErrNoDiscard):
		t.countLocked(&r.Unsupported, n)
	default:
		t.failLocked(c.slot, c.ranges[0].Off, n, err)
	}
}

func (t *run) giveBack(ctx context.Context, c *command) {
	reset, err := t.s.GiveBack(ctx, c.slot)
	t.mu.Lock()
	defer t.mu.Unlock()
	r := &t.mu.Result
	if reset {
		r.ZonesReset++
	}
	switch {
	case err == nil:
		r.Extents++
		t.countLocked(&r.Trimmed, c.length)
	case errors.Is(err, ErrBusy):
		t.countLocked(&r.Busy, c.length)
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		t.mu.dropped = min(t.mu.dropped, t.addr(c.slot, 0))
	default:
		t.failLocked(c.slot, 0, c.length, err)
	}
}
