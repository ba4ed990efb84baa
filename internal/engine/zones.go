package engine

import (
	"github.com/shingle-store/shingle/internal/alloc"
	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/zone"
	"github.com/shingle-store/shingle/internal/zone/array"
	"github.com/shingle-store/shingle/internal/zone/label"
)

// Zones describes the zones of the devices that are there, device after device by number: those at
// positions [first, first+n) of that order; n < 0 means all from first on.
func (e *Engine) Zones(first, n int) (out []ZoneInfo, err error) {
	var owners map[array.Place]int
	before := 0
	for _, m := range e.dev.Members() {
		from, dev := max(0, first-before), e.dev.Member(m.Number)
		zones := m.Geometry.Zones
		if dev == nil {
			continue
		}
		if from < zones && n != 0 {
			if owners == nil {
				owners = e.owners()
			}
			part, err := e.zonesOf(uint32(m.Number), dev, from, n, owners)
			if err != nil {
				return nil, err
			}
			for i := range part {
				part[i].Position = before + part[i].Index
			}
			out = append(out, part...)
			if n > 0 {
				n -= len(part)
			}
		}
		before += zones
	}
	return out, nil
}

// ZoneCount is how many zones Zones describes.
func (e *Engine) ZoneCount() (n int) {
	for _, m := range e.dev.Members() {
		if m.Present {
			n += m.Geometry.Zones
		}
	}
	return n
}

// owners says which slot each place belongs to.
func (e *Engine) owners() map[array.Place]int {
	m := map[array.Place]int{}
	for slot := range e.slots() {
		for _, p := range e.dev.Places(slot) {
			p.Stale = false
			m[p] = slot
		}
	}
	return m
}

func (e *Engine) zonesOf(number uint32, dev zone.Device, first, n int, owners map[array.Place]int) ([]ZoneInfo, error) {
	zs, err := dev.Report(first, n)
	if err != nil {
		return nil, errdefs.Wrap(errdefs.Device, errdefs.ReasonDeviceIO, "engine.Zones", "zone report", err)
	}
	g := dev.Geometry()
	a, b, err := label.Zones(g)
	if err != nil {
		return nil, err
	}
	out := make([]ZoneInfo, len(zs))
	for i, z := range zs {
		out[i] = ZoneInfo{Zone: z, Device: number, Start: int64(z.Index) * g.ZoneSize, BlockGroup: -1}
		slot, owned := owners[array.Place{Device: int(number), Zone: z.Index}]
		switch {
		case z.Index == a || z.Index == b:
			out[i].Use = "label"
		case owned:
			bg, _ := e.al.BlockGroup(uint32(slot))
			out[i].Use, out[i].BlockGroup = "data", int64(slot)
			out[i].Live, out[i].Unusable = bg.Live, bg.Unusable
			out[i].Quarantined = bg.State == alloc.Quarantined || bg.State == alloc.ReadOnly
		case !g.IsSequential(z.Index):
			out[i].Use = "conventional"
		}
	}
	return out, nil
}
