package zone

import (
	"math/rand/v2"
	"slices"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
)

// CutPower takes the power away: every call from now on fails with ErrPowerLost, and so does
// every call that has not returned yet, whether or not it took effect. It may be called from
// a hook. What was not flushed is undecided until PowerOn.
func (d *Mem) CutPower() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.power = powerOff
}

// PowerOn brings the device back, cutting the power first if it is on, and decides with rng
// what survived (reference/device-model 4, "Volatile cache"):
//   - of a sequential zone a prefix, whole blocks long, between what was flushed and what was
//     written, calls in flight included; with MemOptions.Garbage its last block may be torn;
//   - of a conventional zone any subset of the blocks written since the flush;
//   - a reset or finish that was not flushed happened or did not; writes after a reset that
//     did not happen are gone;
//   - no zone is open; zones that were are Closed, or Empty with nothing in them.
//
// The active limit holds afterwards. What survived is durable. The same sequence of
// operations and the same rng give the same outcome.
func (d *Mem) PowerOn(rng *rand.Rand) {
	d.CutPower()
	d.flush.Lock()
	defer d.flush.Unlock()
	var lost []outcome
	for i := range d.zones {
		z := &d.zones[i]
		z.io.Lock()
		d.mu.Lock()
		if z.dirty {
			lost = append(lost, d.drawLocked(i, rng))
		}
		d.mu.Unlock()
		z.io.Unlock()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.m.PowerCycle()
	d.keepLimitLocked(lost, rng)
	for _, o := range lost {
		d.applyLocked(o, rng)
	}
	for i := range d.zones {
		d.zones[i].settle(&d.pool, d.stateLocked(i))
	}
	d.dirty = nil
	d.power = powerOn
	d.boot++
}

// outcome is what becomes of one zone that was not flushed.
type outcome struct {
	zone    int
	rolled  bool // the reset did not happen: the displaced content is back
	settled      // what is on media
	final   settled
	flushed int64 // bytes of the content that were flushed
}

// drawLocked draws one zone's outcome. Bringing back displaced content waits for applyLocked.
func (d *Mem) drawLocked(zone int, rng *rand.Rand) outcome {
	z := &d.zones[zone]
	o := outcome{zone: zone, final: d.stateLocked(zone)}
	o.settled = o.final
	if o.cond == NotWP {
		return o
	}
	wasFinished := false
	switch {
	case z.base == nil:
		o.flushed, wasFinished = z.durable.data, z.durable.finished
	case rng.IntN(2) == 0:
		o.rolled = true
		o.flushed, wasFinished = z.durable.data, z.durable.finished
		o.data, o.finished = z.base.data, z.base.finished
	}
	unflushed := (o.data - o.flushed) / extent.BlockSize
	o.data = o.flushed + rng.Int64N(unflushed+1)*extent.BlockSize
	if o.finished && !wasFinished {
		o.finished = rng.IntN(2) == 0
	}
	o.cond = d.surviving(o.settled, zone)
	return o
}

// surviving returns the condition that goes with what is left in a zone.
func (d *Mem) surviving(s settled, zone int) Condition {
	switch {
	case s.cond == ReadOnly || s.cond == Offline:
		return s.cond
	case s.finished || s.data == d.geo.CapacityOf(zone):
		return Full
	case s.data == 0:
		return Empty
	}
	return Closed
}

// keepLimitLocked lets unflushed commands have happened after all, one zone after another in
// random order, until no more zones are active than the device has slots for. It ends below
// the limit, because the zones active before the cut kept it.
func (d *Mem) keepLimitLocked(lost []outcome, rng *rand.Rand) {
	limit := d.geo.ActiveLimit()
	if limit == 0 {
		return
	}
	active := d.m.active
	for _, o := range lost {
		active += b2i(o.cond.IsActive()) - b2i(d.m.zones[o.zone].cond.IsActive())
	}
	for _, i := range rng.Perm(len(lost)) {
		o := &lost[i]
		if active <= limit {
			return
		}
		final := d.surviving(o.final, o.zone)
		if o.cond.IsActive() && !final.IsActive() {
			o.settled, o.rolled = o.final, false
			o.cond, o.flushed = final, o.data
			active--
		}
	}
}

// applyLocked puts an outcome in place.
func (d *Mem) applyLocked(o outcome, rng *rand.Rand) {
	z := &d.zones[o.zone]
	if o.cond == NotWP {
		z.dropSome(d.pool.size, rng)
		return
	}
	if o.rolled {
		d.pool.put(z.segs)
		z.segs, z.base = z.base.segs, nil
	}
	if d.opts.Garbage && o.data > o.flushed && rng.IntN(2) == 0 {
		z.scribble(d.pool.size, o.data-extent.BlockSize, extent.BlockSize, rng)
	}
	if err := d.m.Restore(o.zone, o.data, o.finished, o.cond); err != nil {
		panic(err) // an outcome that no history leads to is a bug of this file
	}
}

// dropSome takes back any subset of the blocks written to a conventional zone.
func (z *memZone) dropSome(size int64, rng *rand.Rand) {
	blocks := make([]int64, 0, len(z.undo))
	for b := range z.undo {
		blocks = append(blocks, b)
	}
	slices.Sort(blocks)
	for _, b := range blocks {
		if rng.IntN(2) == 0 {
			off := b * extent.BlockSize
			copy(z.segs[off/size][off%size:], z.undo[b])
		}
	}
}

// scribble tears a block: from a random sector on it holds bytes that nobody wrote.
func (z *memZone) scribble(size, off, n int64, rng *rand.Rand) {
	const sector = 512
	for i := off + rng.Int64N(n/sector)*sector; i < off+n; i++ {
		if s := z.segs[i/size]; s != nil {
			s[i%size] = byte(rng.Uint32())
		}
	}
}

// SetCondition turns a sequential zone ReadOnly or Offline at once and durably. See
// Machine.SetCondition.
func (d *Mem) SetCondition(zone int, c Condition) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.m.SetCondition(zone, c)
}

// Corrupt flips every bit of n bytes at off in the zone, at rest: nobody is told. Bytes never
// written are passed over. Any alignment will do.
func (d *Mem) Corrupt(zone int, off, n int64) error {
	const op = "zone.Corrupt"
	if zone < 0 || zone >= len(d.zones) || off < 0 || n < 0 || off+n > d.geo.CapacityOf(zone) {
		return errdefs.New(errdefs.InvalidArgument, "", op, object(zone), "range is outside the zone")
	}
	z := &d.zones[zone]
	z.io.Lock()
	defer z.io.Unlock()
	for i := off; i < off+n; i++ {
		if s := i / d.pool.size; s < int64(len(z.segs)) && z.segs[s] != nil {
			z.segs[s][i%d.pool.size] ^= 0xff
		}
	}
	return nil
}
