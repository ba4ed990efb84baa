package filedev

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/zone"
)

// Device is an emulated zoned device in a file. It implements zone.Device.
//
// Locks, in this order: flushing, a zone's io, space, mu. A zone's io is shared by its reads
// and writes, which may overlap in time, and held alone by its commands, so that a Reset
// waits for them. mu guards the zone machine and is never held over I/O.
type Device struct {
	layout
	path   string
	file   *os.File
	fd     int
	direct bool
	zones  []zoneFile
	users  sync.WaitGroup // calls that use fd; Close waits for them

	flushing sync.Mutex // one Flush at a time; guards which slot of a page is the good one
	space    sync.Mutex // one fallocate at a time

	mu     sync.Mutex
	m      *zone.Machine
	table  []tablePage
	dirty  []int // pages whose zones changed since the last good Flush, each once
	closed bool
}

type zoneFile struct {
	io        sync.RWMutex
	allocated atomic.Bool // the file has space for the whole capacity; set under space
}

// tablePage is the state of one page of the zone table.
type tablePage struct {
	seq   uint64 // of the good slot; guarded by Device.flushing
	slot  int    // the good slot, 0 or 1; guarded by Device.flushing
	dirty bool   // guarded by Device.mu
}

var _ zone.Device = (*Device)(nil)

// changedLocked marks the page of a zone whose state changed.
func (d *Device) changedLocked(zone int) {
	page := zone / entriesPerPage
	if t := &d.table[page]; !t.dirty {
		t.dirty = true
		d.dirty = append(d.dirty, page)
	}
}

// Direct reports whether data goes around the page cache.
func (d *Device) Direct() bool { return d.direct }

// Geometry implements zone.Device.
func (d *Device) Geometry() zone.Geometry { return d.geo }

// enter admits a call that is going to use the file; exit follows it.
func (d *Device) enter(op string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return errdefs.Wrap(errdefs.Device, errdefs.ReasonDeviceIO, op, d.path, zone.ErrClosed)
	}
	d.users.Add(1)
	return nil
}

func (d *Device) exit() { d.users.Done() }

// Report implements zone.Device.
func (d *Device) Report(first, n int) ([]zone.Zone, error) {
	if err := d.enter("zone.Report"); err != nil {
		return nil, err
	}
	defer d.exit()
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.m.Report(first, n)
}

// Stats implements zone.Device.
func (d *Device) Stats() zone.Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.m.Stats()
}

// Close waits for calls under way, gives up the lock and closes the file. It does not flush:
// what was not flushed may be gone, as after a crash. A second Close is ErrClosed.
func (d *Device) Close() error {
	const op = "zone.Close"
	d.mu.Lock()
	was := d.closed
	d.closed = true
	d.mu.Unlock()
	if was {
		return errdefs.Wrap(errdefs.Device, errdefs.ReasonDeviceIO, op, d.path, zone.ErrClosed)
	}
	d.users.Wait()
	return errdefs.Wrap(errdefs.Device, errdefs.ReasonDeviceIO, op, d.path, d.file.Close())
}

// at returns the zone, or a stand-in to lock for a number that the machine will refuse.
func (d *Device) at(i int) *zoneFile {
	if i < 0 || i >= len(d.zones) {
		return &zoneFile{}
	}
	return &d.zones[i]
}

// ReadAt implements zone.Device. With direct I/O a p that is not aligned to the block costs
// a copy.
func (d *Device) ReadAt(i int, off int64, p []byte) error {
	const op = "zone.ReadAt"
	if err := d.enter(op); err != nil {
		return err
	}
	defer d.exit()
	z := d.at(i)
	z.io.RLock()
	defer z.io.RUnlock()
	d.mu.Lock()
	written, err := d.m.CheckRead(i, off, int64(len(p)))
	d.mu.Unlock()
	if err != nil {
		return err
	}
	clear(p[written:])
	if written == 0 {
		return nil
	}
	return mediaError(op, i, d.pread(p[:written], d.zoneOffset(i)+off))
}

// Write implements zone.Device. After ErrMedia the write pointer has moved by the whole
// length.
func (d *Device) Write(i int, off int64, bufs [][]byte) error {
	_, err := d.put("zone.Write", i, bufs, func(n int64) (int64, error) {
		return off, d.m.StartWrite(i, off, n)
	})
	return err
}

// Append implements zone.Device. After ErrMedia the write pointer has moved by the whole
// length, unless the file system had no space for the zone: then it has not moved.
func (d *Device) Append(i int, bufs [][]byte) (int64, error) {
	return d.put("zone.Append", i, bufs, func(n int64) (int64, error) {
		return d.m.StartAppend(i, n)
	})
}

// put reserves the range under mu and writes it with nothing but the zone's shared lock.
func (d *Device) put(op string, i int, bufs [][]byte, startLocked func(n int64) (int64, error)) (int64, error) {
	if err := d.enter(op); err != nil {
		return 0, err
	}
	defer d.exit()
	z := d.at(i)
	z.io.RLock()
	defer z.io.RUnlock()
	if err := d.allocate(op, i); err != nil {
		return 0, err
	}
	d.mu.Lock()
	off, err := startLocked(zone.TotalLen(bufs))
	d.mu.Unlock()
	if err != nil {
		return 0, err
	}
	err = d.pwrite(bufs, d.zoneOffset(i)+off)
	d.mu.Lock()
	d.m.EndWrite(i, off)
	d.mu.Unlock()
	if err != nil {
		return 0, mediaError(op, i, err)
	}
	return off, nil
}

// Open implements zone.Device. The zone's file space is taken here, the first time.
func (d *Device) Open(i int) error {
	const op = "zone.Open"
	if err := d.enter(op); err != nil {
		return err
	}
	defer d.exit()
	if err := d.allocate(op, i); err != nil {
		return err
	}
	return d.command(op, i, d.m.Open)
}

// CloseZone implements zone.Device.
func (d *Device) CloseZone(i int) error { return d.guarded("zone.CloseZone", i, d.m.Close) }

// Finish implements zone.Device.
func (d *Device) Finish(i int) error { return d.guarded("zone.Finish", i, d.m.Finish) }

// Reset implements zone.Device. It waits for reads and writes of the zone and keeps the
// zone's file space: to punch it out and take it again costs more than it saves. Release does.
func (d *Device) Reset(i int) error { return d.guarded("zone.Reset", i, d.m.Reset) }

// SetCondition turns a zone ReadOnly or Offline as a failing drive would; it is kept by the
// next Flush. See zone.Machine.SetCondition.
func (d *Device) SetCondition(i int, c zone.Condition) error {
	return d.guarded("zone.SetCondition", i, func(i int) error { return d.m.SetCondition(i, c) })
}

func (d *Device) guarded(op string, i int, runLocked func(int) error) error {
	if err := d.enter(op); err != nil {
		return err
	}
	defer d.exit()
	return d.command(op, i, runLocked)
}

// command runs a command of the zone with no read or write of it under way.
func (d *Device) command(op string, i int, runLocked func(int) error) error {
	z := d.at(i)
	z.io.Lock()
	defer z.io.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	return runLocked(i)
}

// mediaError classifies a failure of the file system; nil stays nil.
func mediaError(op string, i int, err error) error {
	if err == nil {
		return nil
	}
	return errdefs.Wrap(errdefs.Device, errdefs.ReasonDeviceIO, op, zoneName(i),
		fmt.Errorf("%w: %w", zone.ErrMedia, err))
}

func zoneName(i int) string { return fmt.Sprintf("zone %d", i) }
