package sim

import (
	"context"
	"fmt"
	"time"

	"github.com/shingle-store/shingle/internal/engine"
	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/scrub"
)

// mortal reports whether a disk may die: there is another copy of all that is on it. What lies in
// conventional zones stays without a second copy until it is written again, so there none dies.
func (r *run) mortal() bool {
	return r.twice() && r.several() && r.cfg.Geometry.Conventional == 0
}

// gather chooses which disks the next life is given. One that has died stays away, comes back with what
// it held then, or is there and still dead; one that is well may die in this life.
func (r *run) gather(l *life, calm bool) {
	away, dead := false, false
	switch {
	case !r.mortal() || r.weak == nil:
	case r.weak.lost && !calm:
		how := pick(r.c, "back", "away", "dead")
		away, dead = how == "away", how == "dead"
	case !calm && r.c.Rarely(4):
		l.dies = 1 + r.c.Below(80)
	}
	for _, d := range r.disks {
		if d.gone || d == r.weak && away {
			continue
		}
		dev := r.attach(l, d)
		if d != r.weak {
			continue
		}
		if dev.dead = dead; !dead && d.lost {
			d.lost = false
			r.cov.add("copies devices back", 1)
			r.notef("%s is back", d.path)
		}
	}
}

// meet counts an operation of a disk down to its death.
func (r *run) meet(dev *device) {
	l := r.life
	if l.dies == 0 || dev.disk != r.weak || dev.disk.unsure {
		return
	}
	if l.dies--; l.dies > 0 {
		return
	}
	r.hurt, dev.disk.lost = true, true
	r.sched.mu.Lock()
	dev.dead = true
	r.sched.mu.Unlock()
	r.cov.add("copies devices lost", 1)
	r.notef("%s DIES", dev.disk.path)
}

// lame reports whether a disk of the store takes no part in this life.
func (r *run) lame() bool {
	if r.weak == nil {
		return false
	}
	dev := r.life.in(r.weak)
	return dev == nil || dev.isDead()
}

func (d *device) isDead() bool {
	d.s.mu.Lock()
	defer d.s.mu.Unlock()
	return d.dead
}

// mendAll has the store made whole in peace, and holds it to that: every block group gets its copies
// back, a scrub mends all that is bad, and the next one finds nothing. Then another disk may be the weak one.
func (r *run) mendAll() {
	l := r.life
	if r.lame() || r.cfg.MetadataLimit <= 8<<20 || !r.roomy() {
		return
	}
	l.dies = 0
	r.notef("all is mended")
	if !r.awaitWhole() {
		return
	}
	before := l.e.Counters()["corruptions_repaired"]
	if _, ok := r.scrubAll(); !ok {
		return
	}
	for _, d := range l.devs {
		d.plan.Heal()
	}
	s, ok := r.scrubAll()
	if !ok {
		return
	}
	if n := s.Counters.Errors() - r.noLabel(s); n > 0 && r.roomy() {
		r.failf("a scrub finds %d errors that the one before has not mended: %+v", n, r.findings(s.ID))
		return
	}
	r.cov.add("copies stores made whole", 1)
	r.cov.add("copies mended", int(l.e.Counters()["corruptions_repaired"]-before))
	if r.cfg.Geometry.Conventional > 0 || !r.awaitWhole() {
		return
	}
	r.callRoll()
	r.taints, r.shaky, r.forever, r.hurt = nil, nil, nil, false
	if all := r.members(); r.several() && len(all) > 0 {
		r.weak = all[r.c.Below(len(all))]
	}
}

// roomy reports whether there is room to move things to.
func (r *run) roomy() bool {
	u := r.life.e.Usage()
	return u.Free >= 6*r.cfg.Geometry.ZoneCapacity
}

// awaitWhole waits until every block group has its copies. False: something is wrong, or there is no room.
func (r *run) awaitWhole() bool {
	if !r.several() || r.cfg.Geometry.Conventional > 0 {
		return !r.failed()
	}
	for i := 0; ; i++ {
		var infos []engine.DeviceInfo
		var reb engine.Rebuild
		var err error
		r.await("list of devices", func() { infos, reb, err = r.life.e.Devices() }, false)
		if err != nil {
			r.failf("devices: %v", err)
			return false
		}
		whole := reb.BlockGroups == 0 && !reb.Running
		for _, d := range infos {
			if d.State == engine.DeviceFailed && r.life.faults > 0 {
				return false // it has been taken out of use, until the next life
			}
			whole = whole && d.Incomplete == 0 && d.State == engine.DeviceOnline
		}
		switch {
		case whole:
			if i > 0 {
				r.cov.add("copies rebuilds", 1)
			}
			return true
		case i > 300 && (!r.roomy() || len(r.failing) > 0 || r.life.faults > 0):
			// A block group with a zone that failed stays where it is, and keeps its device from leaving; a
			// finish that has failed in this life may have left no active zone to move anything to.
			r.cov.add("copies rebuilds without room", 1)
			return false
		case i > 300:
			r.failf("a rebuild does not end: %+v, %+v, usage %+v", reb, infos, r.life.e.Usage())
			return false
		}
		r.await("a rebuild", func() { time.Sleep(200 * time.Millisecond) }, false)
	}
}

// scrubAll has the whole store scrubbed in peace.
func (r *run) scrubAll() (s engine.Scrub, ok bool) {
	var err error
	ctx := context.Background()
	r.await("scrub", func() {
		if _, err = r.life.e.CancelScrub(ctx, ""); err != nil && !errdefs.Is(err, errdefs.NotFound) && !errdefs.Is(err, errdefs.Precondition) {
			err = fmt.Errorf("cancel: %w", err)
			return
		}
		if s, err = r.life.e.StartScrub(ctx, engine.ScrubRequest{}); err == nil {
			err = r.life.e.WatchScrub(ctx, s.ID, time.Second, func(n engine.Scrub) error { s = n; return nil })
		}
	}, false)
	switch {
	case err != nil:
		r.failf("scrub: %v", err)
	case s.State != scrub.Finished:
		r.failf("a scrub in peace has not finished: %+v", s)
	case s.Counters.UncorrectableErrors > r.noLabel(s) && r.roomy():
		r.failf("a scrub has not mended what is good in one copy: %+v, %+v", s, r.findings(s.ID))
	}
	return s, !r.failed()
}

// noLabel is how many labels a scrub may have found missing and not mended: with a finish that has failed in
// this life a device may have no active zone left for one.
func (r *run) noLabel(s engine.Scrub) uint64 {
	if r.life.faults == 0 {
		return 0
	}
	return s.Counters.SuperErrors
}

func (r *run) findings(id string) (found []engine.ScrubFinding) {
	r.await("findings", func() {
		found, _, _ = r.life.e.ScrubFindings(context.Background(), engine.ScrubFindingsQuery{ID: id, Limit: 20})
	}, false)
	return found
}
