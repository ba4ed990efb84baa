package sim

import (
	"fmt"
	"slices"

	"github.com/shingle-store/shingle/internal/engine"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/zone"
	"github.com/shingle-store/shingle/internal/zone/faultdev"
	"github.com/shingle-store/shingle/internal/zone/label"
)

// disk is a memory device of a run. It outlives the lives of the engine.
type disk struct {
	index  int
	number int // which device of the store it is; -1: none, or not known yet
	path   string
	mem    *zone.Mem
	geo    zone.Geometry
	lost   bool // it has died, and is not back yet
	unsure bool // whether it is part of the store is for the engine to say: it is to join or leave
	gone   bool // it is no part of the store any more
}

// place is a range of a zone of a disk.
type place struct {
	disk int // its index
	faultdev.Place
}

// String names it in a history, with a space before; "" if it is the only one.
func (d *disk) String() string {
	if d.path == "" {
		return ""
	}
	return " " + d.path
}

// newDisk makes one with nothing on it.
func (r *run) newDisk(g zone.Geometry) (*disk, error) {
	mem, err := zone.NewMem(g, zone.MemOptions{Garbage: r.cfg.Garbage})
	if err != nil {
		return nil, err
	}
	d := &disk{index: len(r.disks), number: len(r.disks), mem: mem, geo: g}
	if r.several() {
		d.path = fmt.Sprintf("disk%d", d.index)
	}
	r.disks = append(r.disks, d)
	return d, nil
}

// several reports whether the store has, or has had, more than one device.
func (r *run) several() bool { return r.cfg.Devices > 1 }

// twice reports whether there are two copies of what is stored.
func (r *run) twice() bool { return r.cfg.Copies > 1 }

// numbered returns the disk that is device number of the store.
func (r *run) numbered(number int) *disk {
	for _, d := range r.disks {
		if d.number == number {
			return d
		}
	}
	return nil
}

// in is device of the life that a disk is in; nil: it was not given.
func (l *life) in(d *disk) *device {
	for _, dev := range l.devs {
		if dev.disk == d {
			return dev
		}
	}
	return nil
}

// given are the devices of a life as an open wants them.
func (l *life) given() (list []engine.Device) {
	for _, d := range l.devs {
		list = append(list, engine.Device{Path: d.disk.path, Device: d})
	}
	return list
}

// attach puts a disk under a life.
func (r *run) attach(l *life, d *disk) *device {
	dev := &device{s: &r.sched, life: l, disk: d, plan: faultdev.New(d.mem, r.c.Seed())}
	for _, p := range r.forever {
		if p.disk == d.index {
			dev.plan.FailRead(p.Zone, p.Off, p.Len(), true)
		}
	}
	r.sched.mu.Lock()
	l.devs = append(l.devs, dev)
	r.sched.mu.Unlock()
	return dev
}

// spoiled notes what writes that went wrong have ruined.
func (r *run) spoiled(l *life) {
	for _, d := range l.devs {
		for _, p := range d.plan.Spoiled() {
			r.taint(place{d.disk.index, p})
		}
	}
}

// With two copies one of them is always left alone: what is bad is bad in one copy only, so that nothing
// may ever be lost. On several disks all that goes wrong does so on the weak one, for a disk that fails
// commands is taken out of use, and what it held is then nowhere but on the other. On one disk it is the
// first half of its zones, each of which has its other copy in the second half.

// mayFail reports whether an operation of a disk may go wrong.
func (r *run) mayFail(ev *event) bool {
	switch {
	case !r.twice():
		return true
	case r.several():
		return ev.dev.disk == r.weak
	}
	return ev.kind != "read" || r.mayRuin(ev.dev.disk, ev.zone)
}

// mayRuin reports whether what a zone holds may go bad.
func (r *run) mayRuin(d *disk, z int) bool {
	switch {
	case !r.twice():
		return true
	case r.several():
		return d == r.weak
	}
	var usable []int
	a, b, err := label.Zones(d.geo)
	if err != nil {
		return false
	}
	for i := range d.geo.Zones {
		if i != a && i != b && d.geo.IsSequential(i) == d.geo.IsSequential(z) && d.geo.CapacityOf(i) >= engine.MinZoneCapacity {
			usable = append(usable, i)
		}
	}
	return slices.Contains(usable[:len(usable)/2], z)
}

// victim chooses a disk to which something happens that nobody asked for.
func (r *run) victim() *disk {
	switch {
	case !r.several():
		return r.disks[0]
	case r.twice():
		return r.weak
	}
	return r.life.devs[r.c.Below(len(r.life.devs))].disk
}

// somewhere chooses a range of whole blocks of data below a write pointer.
func (r *run) somewhere(d *disk) (place, bool) {
	if d == nil {
		return place{}, false
	}
	zs, err := d.mem.Report(0, -1)
	if err != nil {
		return place{}, false
	}
	var with []zone.Zone
	for _, z := range zs[d.firstData():] {
		if z.Condition != zone.Offline && min(z.WP, z.Capacity) > 2*extent.BlockSize && r.mayRuin(d, z.Index) {
			with = append(with, z)
		}
	}
	if len(with) == 0 {
		return place{}, false
	}
	z := with[r.c.Below(len(with))]
	blocks := int(min(z.WP, z.Capacity) / extent.BlockSize)
	b := int64(1 + r.c.Below(blocks-1)) // the header is nobody's data
	n := int64(1 + r.c.Below(blocks-int(b)))
	return place{d.index, faultdev.Place{Zone: z.Index, Range: extent.Range{Off: b * extent.BlockSize, End: (b + n) * extent.BlockSize}}}, true
}

// mayEnd allows two sequential zones to fail for good in a run, and no label.
func (r *run) mayEnd(d *disk, z int) bool {
	if d.isLabel(z) || !d.geo.IsSequential(z) || len(r.failing) >= 2 || !r.mayRuin(d, z) {
		return false
	}
	r.failing = append(r.failing, place{d.index, faultdev.Place{Zone: z}})
	return true
}

// isLabel reports whether the zone is one of the two that hold labels. With one of them being written
// the other is all there is, and for its loss there is no remedy.
func (d *disk) isLabel(z int) bool { return z >= d.firstData()-2 && z < d.firstData() }

// firstData is the first zone past the labels, of those that have a write pointer if any has.
func (d *disk) firstData() int {
	if d.geo.NumSequential() > 0 {
		return d.geo.Conventional + 2
	}
	return 2
}

func (r *run) taint(places ...place) { r.taints = append(r.taints, places...) }

func (r *run) taintZone(d *disk, z int) {
	r.taint(place{d.index, faultdev.Place{Zone: z, Range: extent.Range{End: d.geo.ZoneSize}}})
}

// within reports whether what lies at off in a zone of device number is in one of the places.
func (r *run) within(places []place, number, z int, off int64) bool {
	d := r.numbered(number)
	for _, p := range places {
		if d != nil && p.disk == d.index && p.Zone == z && off >= p.Off && off < p.End {
			return true
		}
	}
	return false
}
