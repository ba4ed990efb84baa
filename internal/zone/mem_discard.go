package zone

import (
	"github.com/shingle-store/shingle/internal/extent"
)

var _ Discarder = (*Mem)(nil)

// Discard implements Discarder. The blocks read as zeros afterwards, so that a discard of
// something wanted does not go unnoticed.
func (d *Mem) Discard(zone int, ranges []extent.Range) error {
	off, total := int64(0), int64(0)
	for i, r := range ranges {
		if i == 0 {
			off = r.Off
		}
		total += r.Len()
	}
	c, err := d.begin("zone.Discard", OpDiscard, zone, off, total)
	if err != nil {
		return err
	}
	if err := d.discard(c, ranges); err != nil {
		return err
	}
	return d.end(c)
}

func (d *Mem) discard(c call, ranges []extent.Range) error {
	z := d.zone(c.op.Zone)
	z.io.Lock()
	defer z.io.Unlock()
	d.mu.Lock()
	err := d.upLocked(c)
	if err == nil {
		err = d.m.CheckDiscard(c.op.Zone, ranges)
	}
	if err == nil {
		d.changedLocked(c.op.Zone)
	}
	d.mu.Unlock()
	if err != nil {
		return err
	}
	for _, r := range ranges {
		z.zero(&d.pool, r)
	}
	return nil
}

// zero makes the range read as zeros. Where nothing was ever written it does already. The caller
// has io alone.
func (z *memZone) zero(p *segmentPool, r extent.Range) {
	for off := r.Off; off < r.End; {
		i := off / p.size
		end := min(r.End, (i+1)*p.size)
		if i < int64(len(z.segs)) && z.segs[i] != nil {
			z.saveOld(p, off, end-off)
			clear(z.segs[i][off-i*p.size : end-i*p.size])
		}
		off = end
	}
}

// Release implements Discarder. The memory of a reset zone goes back at the next flush anyway.
func (d *Mem) Release(zone int) error {
	return d.command("zone.Release", OpRelease, zone, d.m.CheckRelease)
}
