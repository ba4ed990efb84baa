package zone

import (
	"errors"
	"testing"

	"github.com/shingle-store/shingle/internal/errdefs"
)

func TestValidateNamesTheField(t *testing.T) {
	zns := Geometry{Dialect: ZNS, ZoneSize: 8 * blk, ZoneCapacity: 6 * blk, Zones: 6}
	smr := Geometry{Dialect: SMR, ZoneSize: 8 * blk, ZoneCapacity: 8 * blk, Zones: 6}
	for _, c := range []struct {
		field  string // empty: valid
		base   Geometry
		change func(*Geometry)
	}{
		{"", zns, func(g *Geometry) {}},
		{"", smr, func(g *Geometry) {}},
		{"", zns, func(g *Geometry) { g.MaxOpen, g.MaxActive = 3, 3 }},
		{"", zns, func(g *Geometry) { g.MaxOpen, g.MaxActive = 0, 3 }},
		{"", zns, func(g *Geometry) { g.MaxOpen, g.MaxActive = 3, 0 }},
		{"", zns, func(g *Geometry) { g.ZoneSize = 7 * blk }}, // no power of two
		{"", zns, func(g *Geometry) { g.AppendLimit = blk + 1 }},
		{"", smr, func(g *Geometry) { g.Conventional = 6 }},
		{"", smr, func(g *Geometry) { g.LastZoneSize = 7 * blk }},
		{"", zns, func(g *Geometry) { g.ZoneSize, g.ZoneCapacity, g.Zones = 256<<20, 256<<20, 75_000 }},
		{"Dialect", zns, func(g *Geometry) { g.Dialect = 0 }},
		{"Dialect", zns, func(g *Geometry) { g.Dialect = 3 }},
		{"ZoneSize", zns, func(g *Geometry) { g.ZoneSize = 0 }},
		{"ZoneSize", zns, func(g *Geometry) { g.ZoneSize = 8*blk + 512 }},
		{"ZoneSize", zns, func(g *Geometry) { g.ZoneSize = -8 * blk }},
		{"ZoneSize", zns, func(g *Geometry) { g.ZoneSize = 1 << 58 }},
		{"ZoneCapacity", zns, func(g *Geometry) { g.ZoneCapacity = 0 }},
		{"ZoneCapacity", zns, func(g *Geometry) { g.ZoneCapacity = 9 * blk }},
		{"ZoneCapacity", zns, func(g *Geometry) { g.ZoneCapacity = blk + 1 }},
		{"ZoneCapacity", smr, func(g *Geometry) { g.ZoneCapacity = 7 * blk }},
		{"Zones", zns, func(g *Geometry) { g.Zones = 0 }},
		{"Zones", zns, func(g *Geometry) { g.Zones = MaxZones + 1 }},
		{"Conventional", zns, func(g *Geometry) { g.Conventional = 1 }},
		{"Conventional", smr, func(g *Geometry) { g.Conventional = 7 }},
		{"Conventional", smr, func(g *Geometry) { g.Conventional = -1 }},
		{"MaxOpen", zns, func(g *Geometry) { g.MaxOpen = -1 }},
		{"MaxOpen", zns, func(g *Geometry) { g.MaxOpen, g.MaxActive = 4, 3 }},
		{"MaxActive", zns, func(g *Geometry) { g.MaxActive = -1 }},
		{"MaxActive", smr, func(g *Geometry) { g.MaxActive = 3 }},
		{"AppendLimit", zns, func(g *Geometry) { g.AppendLimit = -1 }},
		{"AppendLimit", zns, func(g *Geometry) { g.AppendLimit = 4095 }},
		{"LastZoneSize", zns, func(g *Geometry) { g.LastZoneSize = 100 }},
		{"LastZoneSize", zns, func(g *Geometry) { g.LastZoneSize = -blk }},
		{"LastZoneSize", zns, func(g *Geometry) { g.LastZoneSize = 8 * blk }},
	} {
		g := c.base
		c.change(&g)
		err := g.Validate()
		if c.field == "" {
			if err != nil {
				t.Errorf("%+v: %v", g, err)
			}
			continue
		}
		var e *errdefs.Error
		if !errors.As(err, &e) || e.Kind != errdefs.InvalidArgument || e.Field != c.field {
			t.Errorf("%+v: %v, want field %s", g, err, c.field)
		}
		if _, err := NewMem(g, MemOptions{}); err == nil {
			t.Errorf("NewMem took %+v", g)
		}
	}
}

func TestGeometrySizes(t *testing.T) {
	g := Geometry{Dialect: ZNS, ZoneSize: 8 * blk, ZoneCapacity: 6 * blk, Zones: 4}
	for _, c := range []struct {
		last                       int64
		size, capacity, dev, usage int64 // in blocks; of the last zone, of the device
	}{{0, 8, 6, 32, 24}, {7, 7, 6, 31, 24}, {5, 5, 5, 29, 23}} {
		g.LastZoneSize = c.last * blk
		if g.SizeOf(3) != c.size*blk || g.CapacityOf(3) != c.capacity*blk ||
			g.DeviceBytes() != c.dev*blk || g.UsableBytes() != c.usage*blk {
			t.Errorf("last zone of %d: %d, %d, %d, %d", c.last, g.SizeOf(3), g.CapacityOf(3), g.DeviceBytes(), g.UsableBytes())
		}
		if g.SizeOf(2) != 8*blk || g.CapacityOf(0) != 6*blk {
			t.Error("the other zones are not short")
		}
	}
}

func TestLimitsThatCanBeMet(t *testing.T) {
	g := Geometry{Dialect: SMR, ZoneSize: blk, ZoneCapacity: blk, Zones: 10, Conventional: 4}
	for limit, want := range []int{0, 1, 2, 3, 4, 5, 0, 0} {
		g.MaxOpen, g.MaxActive = limit, limit
		if g.OpenLimit() != want || g.ActiveLimit() != want {
			t.Errorf("limit %d of 6 zones: %d, %d", limit, g.OpenLimit(), g.ActiveLimit())
		}
	}
	if g.NumSequential() != 6 || g.IsSequential(3) || !g.IsSequential(4) {
		t.Error("the conventional zones are the first four")
	}
}
