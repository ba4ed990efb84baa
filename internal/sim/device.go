package sim

import (
	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/zone"
	"github.com/shingle-store/shingle/internal/zone/faultdev"
)

// device is the device as one life of the engine sees it: each operation waits to be chosen, and the
// fault that was chosen with it, if any, has been armed in plan by then.
type device struct {
	s    *sched
	life *life
	disk *disk
	plan *faultdev.Device
	dead bool // every operation fails; guarded by sched.mu
}

var (
	_ zone.Device    = (*device)(nil)
	_ zone.Discarder = (*device)(nil)
)

func (d *device) do(kind string, z int, off, n int64, op func() error) error {
	v := d.s.wait(&event{kind: kind, dev: d, zone: z, off: off, len: n, life: d.life})
	if v.err != nil {
		where := "device"
		return errdefs.Wrap(errdefs.Device, errdefs.ReasonDeviceIO, "sim."+kind, where, v.err)
	}
	if d.isDead() {
		return errdefs.Wrap(errdefs.Device, errdefs.ReasonDeviceIO, "sim."+kind, "device", zone.ErrMedia)
	}
	err := op()
	if v.after != nil {
		v.after()
		return errdefs.Wrap(errdefs.Device, errdefs.ReasonDeviceIO, "sim."+kind, "device", errGone)
	}
	return err
}

func (d *device) Geometry() zone.Geometry { return d.plan.Geometry() }

func (d *device) Report(first, n int) ([]zone.Zone, error) {
	d.s.mu.Lock()
	gone, dead := d.life.gone, d.dead
	d.s.mu.Unlock()
	if dead {
		return nil, errdefs.Wrap(errdefs.Device, errdefs.ReasonDeviceIO, "sim.report", "device", zone.ErrMedia)
	}
	if gone {
		return nil, errdefs.Wrap(errdefs.Device, errdefs.ReasonDeviceIO, "sim.report", "device", errGone)
	}
	return d.plan.Report(first, n)
}

func (d *device) Stats() zone.Stats { return d.plan.Stats() }

// Close leaves the memory device open for the next life.
func (d *device) Close() error { return nil }

func (d *device) ReadAt(z int, off int64, p []byte) error {
	return d.do("read", z, off, int64(len(p)), func() error { return d.plan.ReadAt(z, off, p) })
}

func (d *device) Write(z int, off int64, bufs [][]byte) error {
	return d.do("write", z, off, zone.TotalLen(bufs), func() error { return d.plan.Write(z, off, bufs) })
}

func (d *device) Append(z int, bufs [][]byte) (off int64, err error) {
	err = d.do("append", z, -1, zone.TotalLen(bufs), func() (err error) {
		off, err = d.plan.Append(z, bufs)
		return err
	})
	return off, err
}

func (d *device) Flush() error { return d.do("flush", -1, 0, 0, d.plan.Flush) }

func (d *device) Open(z int) error {
	return d.do("open", z, 0, 0, func() error { return d.plan.Open(z) })
}

func (d *device) CloseZone(z int) error {
	return d.do("close", z, 0, 0, func() error { return d.plan.CloseZone(z) })
}

func (d *device) Finish(z int) error {
	return d.do("finish", z, 0, 0, func() error { return d.plan.Finish(z) })
}

func (d *device) Reset(z int) error {
	return d.do("reset", z, 0, 0, func() error { return d.plan.Reset(z) })
}

func (d *device) Discard(z int, ranges []extent.Range) error {
	return d.do("discard", z, 0, 0, func() error { return d.plan.Discard(z, ranges) })
}

func (d *device) Release(z int) error {
	return d.do("release", z, 0, 0, func() error { return d.plan.Release(z) })
}
