package filedev

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/zone"
)

// Flush implements zone.Device: the table pages whose zones changed go to their other slot,
// and one fdatasync makes them and all data durable. A crash in between leaves each page's
// good slot as it was. A page that failed to reach the file is written again by the next
// Flush, into the same slot, so the good one is never put at risk.
//
// The pages are taken before the fdatasync and may show a write that is still under way, or
// that the fdatasync misses; nobody has been told of it, so a write pointer ahead of data is
// no broken promise.
func (d *Device) Flush() error {
	const op = "zone.Flush"
	if err := d.enter(op); err != nil {
		return err
	}
	defer d.exit()
	d.flushing.Lock()
	defer d.flushing.Unlock()

	d.mu.Lock()
	pages := d.dirty
	d.dirty = nil
	bufs := aligned(len(pages) * pageSize)
	for i, p := range pages {
		d.table[p].dirty = false
		encodePage(bufs[i*pageSize:], d.layout, d.m, d.zones, p)
	}
	d.mu.Unlock()

	err := d.writePages(pages, bufs)
	if err == nil {
		err = d.datasync()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		for _, p := range pages {
			d.changedLocked(p * entriesPerPage)
		}
		return errdefs.Wrap(errdefs.Device, errdefs.ReasonDeviceIO, op, d.path,
			fmt.Errorf("%w: %w", zone.ErrMedia, err))
	}
	for _, p := range pages {
		d.table[p].slot ^= 1
		d.table[p].seq++
	}
	d.m.CountFlush()
	return nil
}

func (d *Device) writePages(pages []int, bufs []byte) error {
	for i, p := range pages {
		b := bufs[i*pageSize : (i+1)*pageSize]
		t := &d.table[p]
		sealPage(b, p, t.seq+1)
		if err := d.pwriteFull([][]byte{b}, d.pageOffset(p, t.slot^1)); err != nil {
			return err
		}
	}
	return nil
}

func (d *Device) datasync() error {
	for {
		if err := unix.Fdatasync(d.fd); err != unix.EINTR {
			return err
		}
	}
}

// encodePage fills in the entries of a page; zones is nil while the file is being made.
func encodePage(b []byte, l layout, m *zone.Machine, zones []zoneFile, page int) {
	clear(b[:pageSize])
	first := page * entriesPerPage
	for i := first; i < min(first+entriesPerPage, l.geo.Zones); i++ {
		e := entry{cond: m.Zone(i).Condition}
		e.end, e.finished = m.Written(i)
		if zones != nil {
			e.allocated = zones[i].allocated.Load()
		}
		putEntry(b[pageHead+(i-first)*entrySize:], e)
	}
}

// readTable loads each page from its good slot: the valid one with the greater sequence.
func (d *Device) readTable() error {
	const op = "filedev.Open"
	both := make([]byte, 2*pageSize)
	for p := range d.table {
		if err := d.preadFull(both, d.pageOffset(p, 0)); err != nil {
			return errdefs.Wrap(errdefs.Device, errdefs.ReasonDeviceIO, op, d.path, err)
		}
		t := &d.table[p]
		for slot := range 2 {
			if seq, ok := openPage(both[slot*pageSize:(slot+1)*pageSize], p); ok && seq > t.seq {
				t.seq, t.slot = seq, slot
			}
		}
		if t.seq == 0 {
			return d.tableDamaged(p, nil)
		}
		if err := d.restorePage(both[t.slot*pageSize:], p); err != nil {
			return d.tableDamaged(p, err)
		}
	}
	d.dirty = nil
	for p := range d.table {
		d.table[p].dirty = false
	}
	return nil
}

func (d *Device) restorePage(b []byte, page int) error {
	first := page * entriesPerPage
	for i := first; i < min(first+entriesPerPage, d.geo.Zones); i++ {
		e := getEntry(b[pageHead+(i-first)*entrySize:])
		if err := d.m.Restore(i, e.end, e.finished, e.cond); err != nil {
			return err
		}
		d.zones[i].allocated.Store(e.allocated)
	}
	return nil
}

func (d *Device) tableDamaged(page int, cause error) error {
	first := page * entriesPerPage
	return &errdefs.Error{
		Kind: errdefs.Corruption, Reason: errdefs.ReasonCorruption, Op: "filedev.Open", Object: d.path, Err: cause,
		Msg: fmt.Sprintf("the zone table of device file %s is damaged for zones %d to %d; put back a whole copy, or format it by force",
			d.path, first, min(first+entriesPerPage, d.geo.Zones)-1),
	}
}

// keepLimitLocked finishes zones until no more are active than the limit. Pages are written
// in one Flush but a loss of power may keep only some of them, so a zone that gave its slot
// back and the one that took it can both come up active.
func (d *Device) keepLimitLocked() error {
	limit := d.geo.ActiveLimit()
	if limit == 0 {
		return nil
	}
	var active []int
	for i := range d.geo.Zones {
		if d.m.Zone(i).Condition.IsActive() {
			active = append(active, i)
		}
	}
	slices.Reverse(active)
	for len(active) > limit {
		i := active[0]
		active = active[1:]
		end, _ := d.m.Written(i)
		if err := d.m.Restore(i, end, true, zone.Full); err != nil {
			return err
		}
	}
	return nil
}
