package sim

import (
	"context"
	"errors"
	"strings"

	"github.com/shingle-store/shingle/internal/engine"
	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/zone"
)

// planDevices has a device added or replaced. Nothing that a file holds changes by it. What a crash
// leaves of it, the next open finds out.
func (c *client) planDevices(ch *Choices) *op {
	r, l := c.r, c.r.life
	r.hurt = true
	what := pick(ch, "replace device", "add device")
	o := &op{what: what}
	var old *disk
	if what != "add device" {
		members := r.members()
		old = members[ch.Below(len(members))]
		old.unsure = true
		o.name = old.path
	}
	fresh, err := r.newDisk(r.cfg.Geometry)
	if err != nil {
		r.failf("a new disk: %v", err)
		return c.planSync(ch)
	}
	fresh.number, fresh.unsure = -1, true
	r.attach(l, fresh)
	o.to = fresh.path
	var info engine.DeviceInfo
	o.run = func(ctx context.Context) (err error) {
		if old == nil {
			info, err = l.e.AddDevice(ctx, fresh.path, false)
		} else {
			info, err = l.e.ReplaceDevice(ctx, uint32(old.number), fresh.path, false)
		}
		return err
	}
	o.after = func(err error) {
		if errdefs.Is(err, errdefs.Precondition) || errdefs.Is(err, errdefs.NoSpace) || errdefs.Is(err, errdefs.Unavailable) {
			r.cov.add("copies device calls refused", 1)
			return
		}
		if c.took(o, false, 0) {
			fresh.number, fresh.unsure = int(info.Number), false
		}
	}
	return o
}

// mayChangeDevices reports whether the devices of the store may change now: one change at a time, while all
// take part.
func (r *run) mayChangeDevices() bool {
	if !r.cfg.Changes || !r.mortal() || r.lame() || len(r.disks) > 6 {
		return false
	}
	for _, d := range r.disks {
		if d.unsure && !d.gone {
			return false
		}
	}
	return true
}

// members are the disks that are part of the store for certain.
func (r *run) members() (list []*disk) {
	for _, d := range r.disks {
		if !d.gone && !d.unsure {
			list = append(list, d)
		}
	}
	return list
}

// openDevice is Options.OpenDevice of a life.
func (r *run) openDevice(l *life, path string) (zone.Device, error) {
	r.sched.mu.Lock()
	defer r.sched.mu.Unlock()
	for _, d := range l.devs {
		if d.disk.path == path {
			return d, nil
		}
	}
	return nil, errors.New("there is no " + path)
}

// notOurs takes an open's refusal of a disk of which it was not known whether the store has it.
func (r *run) notOurs(err error) bool {
	if !errdefs.Is(err, errdefs.Precondition) && !errdefs.Is(err, errdefs.Corruption) {
		return false
	}
	for _, d := range r.disks {
		if d.unsure && !d.gone && strings.Contains(err.Error(), d.path+" ") {
			r.notef("%s is no part of the store", d.path)
			r.leave(d)
			return true
		}
	}
	return false
}

// leave lets go of a disk that is no part of the store any more. After the weak one all are strong, until the
// store is known to be whole again.
func (r *run) leave(d *disk) {
	d.gone, d.number = true, -1
	if d == r.weak {
		r.weak = nil
	}
	r.cov.add("copies devices that left", 1)
}

// callRoll learns from the engine which disks are part of the store.
func (r *run) callRoll() {
	if !r.mortal() {
		return
	}
	var infos []engine.DeviceInfo
	var err error
	r.await("list of devices", func() { infos, _, err = r.life.e.Devices() }, false)
	if err != nil {
		r.failf("devices: %v", err)
		return
	}
	listed := map[string]engine.DeviceInfo{}
	for _, i := range infos {
		listed[i.Path] = i
	}
	for _, d := range r.disks {
		i, ok := listed[d.path]
		switch {
		case ok:
			d.number, d.unsure = int(i.Number), i.Leaving
		case d.gone || r.life.in(d) == nil || r.life.in(d).isDead():
		case !d.unsure && r.life.faults == 0:
			r.failf("%s was part of the store, and is not any more: %+v", d.path, infos)
		case d.unsure:
			r.leave(d)
		}
	}
}
