package filedev

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/zone"
)

var _ zone.Discarder = (*Device)(nil)

// Discard implements zone.Discarder by punching holes in the file, one a range. The zone does not
// take its file space as a whole again: later writes take it where they go, so a full host disk
// fails them with ErrMedia. ErrNoDiscard where the file system has no holes.
func (d *Device) Discard(i int, ranges []extent.Range) error {
	const op = "zone.Discard"
	if err := d.enter(op); err != nil {
		return err
	}
	defer d.exit()
	z := d.at(i)
	z.io.RLock()
	defer z.io.RUnlock()
	d.mu.Lock()
	err := d.m.CheckDiscard(i, ranges)
	d.mu.Unlock()
	if err != nil {
		return err
	}
	for _, r := range ranges {
		if err := d.punch(d.zoneOffset(i)+r.Off, r.Len()); err != nil {
			return discardError(op, i, err)
		}
	}
	return nil
}

// Release implements zone.Discarder: the zone's file space goes back to the host, and is taken
// again when the zone is next opened.
func (d *Device) Release(i int) error {
	const op = "zone.Release"
	if err := d.enter(op); err != nil {
		return err
	}
	defer d.exit()
	z := d.at(i)
	z.io.Lock()
	defer z.io.Unlock()
	// Not the zone's io but this lock is what allocate holds in Open.
	d.space.Lock()
	defer d.space.Unlock()
	d.mu.Lock()
	err := d.m.CheckRelease(i)
	if err == nil && z.allocated.Load() {
		z.allocated.Store(false)
		d.changedLocked(i)
	}
	d.mu.Unlock()
	if err != nil {
		return err
	}
	// Space taken by a run that crashed before a Flush is in no table, so the flag is not asked.
	return discardError(op, i, d.punch(d.zoneOffset(i), d.geo.CapacityOf(i)))
}

func (d *Device) punch(off, n int64) error {
	for {
		err := unix.Fallocate(d.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
		if err != unix.EINTR {
			return err
		}
	}
}

func discardError(op string, i int, err error) error {
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		return errdefs.Wrap(errdefs.Device, errdefs.ReasonDeviceIO, op, zoneName(i), zone.ErrNoDiscard)
	}
	return mediaError(op, i, err)
}
