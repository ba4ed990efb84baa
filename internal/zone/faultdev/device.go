package faultdev

import (
	"slices"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/zone"
)

// Geometry implements zone.Device.
func (d *Device) Geometry() zone.Geometry { return d.inner.Geometry() }

// Report implements zone.Device.
func (d *Device) Report(first, n int) ([]zone.Zone, error) { return d.inner.Report(first, n) }

// Stats implements zone.Device; they are those of the device below.
func (d *Device) Stats() zone.Stats { return d.inner.Stats() }

// Close implements zone.Device.
func (d *Device) Close() error { return d.inner.Close() }

// ReadAt implements zone.Device.
func (d *Device) ReadAt(z int, off int64, p []byte) error {
	d.wait(zone.OpRead, z, func(c *Counts) { c.Reads++ })
	if d.readFails(z, extent.Range{Off: off, End: off + int64(len(p))}) {
		return mediaError("zone.ReadAt", z)
	}
	return d.inner.ReadAt(z, off, p)
}

func (d *Device) readFails(z int, r extent.Range) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, f := range d.reads {
		if f.zone == z && f.r.Intersect(r).Len() > 0 {
			d.counts.FailedReads++
			if !f.forever {
				d.reads = slices.Delete(d.reads, i, i+1)
			}
			return true
		}
	}
	return false
}

// Write implements zone.Device.
func (d *Device) Write(z int, off int64, bufs [][]byte) error {
	d.wait(zone.OpWrite, z, func(c *Counts) { c.Writes++ })
	_, err := d.put("zone.Write", z, bufs, func(bufs [][]byte) (int64, error) {
		return off, d.inner.Write(z, off, bufs)
	})
	return err
}

// Append implements zone.Device.
func (d *Device) Append(z int, bufs [][]byte) (int64, error) {
	d.wait(zone.OpAppend, z, func(c *Counts) { c.Appends++ })
	return d.put("zone.Append", z, bufs, func(bufs [][]byte) (int64, error) {
		return d.inner.Append(z, bufs)
	})
}

// put writes all of bufs, or as much as the plan lets land before the write fails.
func (d *Device) put(op string, z int, bufs [][]byte, write func([][]byte) (int64, error)) (int64, error) {
	n := zone.TotalLen(bufs)
	land, fail, turn := d.decide(z, n)
	var off int64
	if land > 0 || !fail {
		var err error
		off, err = d.audit.write(z, land, func() (int64, error) { return write(prefix(bufs, land)) })
		if err == nil {
			err = d.spoil(z, off, land)
		}
		if err != nil {
			return 0, err
		}
	}
	if turn != nil {
		if err := d.turn(*turn); err != nil {
			return 0, err
		}
		cause := zone.ErrZoneReadOnly
		if turn.to == zone.Offline {
			cause = zone.ErrZoneOffline
		}
		return 0, errdefs.Wrap(errdefs.Device, errdefs.ReasonDeviceIO, op, "", cause)
	}
	if fail {
		return 0, mediaError(op, z)
	}
	return off, nil
}

// decide consults the plan about a write of n bytes: how many of them land, whether the
// write fails, and whether the zone fails with it.
func (d *Device) decide(z int, n int64) (land int64, fail bool, turn *zoneFailure) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, f := range d.failures {
		if f.zone != z {
			continue
		}
		if f.after >= n {
			f.after -= n
			continue
		}
		d.failures = slices.Delete(d.failures, i, i+1)
		d.counts.FailedAppends++
		return f.after, true, f
	}
	due := -1
	for i, f := range d.appends {
		if f.zone != AnyZone && f.zone != z {
			continue
		}
		if f.after--; f.after < 0 && due < 0 {
			due = i
		}
	}
	if due >= 0 {
		f := d.appends[due]
		d.appends = slices.Delete(d.appends, due, due+1)
		d.counts.FailedAppends++
		switch f.moved {
		case MovedAll:
			return n, true, nil
		case MovedPart:
			return d.rng.Int64N(max(1, n/extent.BlockSize)) * extent.BlockSize, true, nil
		}
		return 0, true, nil
	}
	return n, false, nil
}

// turn changes the zone's condition on the device below.
func (d *Device) turn(f zoneFailure) error {
	s, ok := d.inner.(conditionSetter)
	if !ok {
		return errdefs.New(errdefs.Internal, "", "faultdev.FailZone", "", "the device below has no SetCondition")
	}
	return d.audit.command(f.zone, f.to, func() error { return s.SetCondition(f.zone, f.to) })
}

// prefix returns the first n bytes of bufs.
func prefix(bufs [][]byte, n int64) [][]byte {
	var out [][]byte
	for _, b := range bufs {
		b = b[:min(n, int64(len(b)))]
		if len(b) > 0 {
			out, n = append(out, b), n-int64(len(b))
		}
	}
	return out
}

// Flush implements zone.Device.
func (d *Device) Flush() error {
	d.wait(zone.OpFlush, AnyZone, func(c *Counts) { c.Flushes++ })
	fail, reached := d.flushFails()
	if fail && !reached {
		return mediaError("zone.Flush", -1)
	}
	if err := d.inner.Flush(); err != nil {
		return err
	}
	if fail {
		return mediaError("zone.Flush", -1)
	}
	return nil
}

func (d *Device) flushFails() (fail, reached bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	due := -1
	for i, f := range d.flushes {
		if f.after--; f.after < 0 && due < 0 {
			due = i
		}
	}
	if due >= 0 {
		f := d.flushes[due]
		d.flushes = slices.Delete(d.flushes, due, due+1)
		d.counts.FailedFlushes++
		return true, f.reached
	}
	return false, false
}

// Open implements zone.Device.
func (d *Device) Open(z int) error {
	d.wait(zone.OpOpen, z, func(c *Counts) { c.Opens++ })
	return d.audit.command(z, zone.ExplicitOpen, func() error { return d.inner.Open(z) })
}

// CloseZone implements zone.Device.
func (d *Device) CloseZone(z int) error {
	d.wait(zone.OpCloseZone, z, func(c *Counts) { c.Closes++ })
	return d.audit.command(z, zone.Closed, func() error { return d.inner.CloseZone(z) })
}

// Finish implements zone.Device.
func (d *Device) Finish(z int) error {
	d.wait(zone.OpFinish, z, func(c *Counts) { c.Finishes++ })
	return d.audit.command(z, zone.Full, func() error { return d.inner.Finish(z) })
}

// Reset implements zone.Device.
func (d *Device) Reset(z int) error {
	d.wait(zone.OpReset, z, func(c *Counts) { c.Resets++ })
	if d.commandFails(zone.OpReset, z) {
		return mediaError("zone.Reset", z)
	}
	return d.audit.command(z, zone.Empty, func() error { return d.inner.Reset(z) })
}
