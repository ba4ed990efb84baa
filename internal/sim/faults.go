package sim

import (
	"fmt"
	"testing/synctest"
	"time"

	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/zone"
	"github.com/shingle-store/shingle/internal/zone/faultdev"
)

// calmly lets an event go on with nothing going wrong.
func (r *run) calmly(ev *event) { r.sched.let(ev, verdict{}) }

// complete lets an event go on: well, with a fault, or with the end of the life.
func (r *run) complete(ev *event) {
	l := r.life
	switch ev.kind {
	case "client":
		r.notef("%v", ev)
		r.calmly(ev)
		return
	case "commit":
		r.completeCommit(ev)
		return
	case "committed":
		r.completeCommitted()
		return
	}
	r.cov.add("device "+ev.kind, 1)
	if l.ops > 0 {
		if l.ops--; l.ops == 0 {
			r.cutAt(ev)
			return
		}
	}
	r.meet(ev.dev)
	if l.stormy && r.mayFail(ev) && r.c.Rarely(r.cfg.Faults) {
		r.fault(ev)
		return
	}
	r.notef("%v", ev)
	r.calmly(ev)
}

// cutAt cuts the power at a device operation, before or after it takes effect.
func (r *run) cutAt(ev *event) {
	if r.c.Below(2) == 0 {
		r.cov.add("cuts before "+ev.kind, 1)
		r.cut(true, fmt.Sprintf("before %v", ev))
		return
	}
	r.cov.add("cuts after "+ev.kind, 1)
	r.sched.let(ev, verdict{after: func() { r.cut(true, fmt.Sprintf("after %v", ev)) }})
	synctest.Wait()
}

// fault lets a device operation go wrong.
func (r *run) fault(ev *event) {
	l, plan, d := r.life, ev.dev.plan, ev.dev.disk
	l.faults++
	r.hurt = r.hurt || r.twice()
	what := ""
	media := verdict{err: zone.ErrMedia}
	v := verdict{}
	switch ev.kind {
	case "append", "write":
		what = pick(r.c, "append moves none", "append moves part", "append moves all", "write lost", "append torn", "write misdirected", "zone read-only", "zone offline")
		if !r.mayRuin(d, ev.zone) {
			what = "append moves none"
		}
		switch what {
		case "append moves none":
			plan.FailAppend(ev.zone, 1, faultdev.MovedNone)
		case "append moves part":
			plan.FailAppend(ev.zone, 1, faultdev.MovedPart)
		case "append moves all":
			plan.FailAppend(ev.zone, 1, faultdev.MovedAll)
		case "write lost":
			plan.SpoilAppend(ev.zone, 1, faultdev.Lost, faultdev.Place{})
		case "append torn":
			plan.SpoilAppend(ev.zone, 1, faultdev.Torn, faultdev.Place{})
		case "write misdirected":
			over, ok := r.somewhere(d)
			if !ok {
				what = "write lost"
				plan.SpoilAppend(ev.zone, 1, faultdev.Lost, faultdev.Place{})
				break
			}
			plan.SpoilAppend(ev.zone, 1, faultdev.Misdirected, over.Place)
		default:
			if !r.mayEnd(d, ev.zone) {
				what = "append moves none"
				plan.FailAppend(ev.zone, 1, faultdev.MovedNone)
				break
			}
			to := zone.ReadOnly
			if what == "zone offline" {
				to = zone.Offline
				r.taintZone(d, ev.zone)
			}
			plan.FailZone(ev.zone, int64(r.c.Below(int(ev.len))), to)
		}
	case "read":
		what = pick(r.c, "read error once", "read error for ever")
		if what == "read error for ever" && !d.isLabel(ev.zone) {
			at := ev.off + extent.RoundDown(int64(r.c.Below(int(ev.len))))
			plan.FailRead(ev.zone, at, extent.BlockSize, true)
			bad := place{d.index, faultdev.Place{Zone: ev.zone, Range: extent.Range{Off: at, End: at + extent.BlockSize}}}
			r.taint(bad)
			r.forever = append(r.forever, bad)
			break
		}
		what = "read error once"
		plan.FailRead(ev.zone, ev.off, ev.len, false)
		r.shaky = append(r.shaky, place{d.index, faultdev.Place{Zone: ev.zone, Range: extent.Range{Off: ev.off, End: ev.off + ev.len}}})
	case "flush":
		what = pick(r.c, "flush fails", "flush fails but reached")
		plan.FailFlush(1, what != "flush fails")
	default:
		what = ev.kind + " fails"
		v = media
	}
	r.cov.add("faults "+what, 1)
	r.notef("%v: FAULT %s", ev, what)
	r.sched.let(ev, v)
	synctest.Wait()
	r.spoiled(l)
}

// trouble is what happens to the device with nobody asking.
func (r *run) trouble(pending []*event) {
	l := r.life
	l.faults++
	r.hurt = r.hurt || r.twice()
	what := pick(r.c, "stall", "bit rot", "zone read-only at rest", "zone offline at rest", "metadata disk full")
	switch what {
	case "stall":
		if len(pending) == 0 {
			return
		}
		ev := pending[r.c.Below(len(pending))]
		if ev.kind == "client" {
			return
		}
		d := pick(r.c, time.Second, 10*time.Second, time.Minute)
		ev.stalled = time.Now().Add(d)
		r.notef("%v stalls for %v", ev, d)
	case "bit rot":
		d := r.victim()
		p, ok := r.somewhere(d)
		if !ok {
			return
		}
		p.End = p.Off + extent.BlockSize
		at := p.Off + int64(r.c.Below(extent.BlockSize))
		if err := d.mem.Corrupt(p.Zone, at, 1); err != nil {
			r.failf("corrupt: %v", err)
		}
		r.taint(p)
		r.notef("FAULT bit rot in%s zone %d at %d", d, p.Zone, at)
	case "metadata disk full":
		l.metadataFull, l.full = true, !l.full
		r.notef("FAULT metadata disk full: %t", l.full)
	default:
		d := r.victim()
		p, ok := r.somewhere(d)
		if !ok || !r.mayEnd(d, p.Zone) {
			return
		}
		to := zone.ReadOnly
		if what == "zone offline at rest" {
			to = zone.Offline
			r.taintZone(d, p.Zone)
		}
		if err := d.mem.SetCondition(p.Zone, to); err != nil {
			r.failf("set condition: %v", err)
		}
		r.notef("FAULT %s:%s zone %d", what, d, p.Zone)
	}
	r.cov.add("faults "+what, 1)
}
