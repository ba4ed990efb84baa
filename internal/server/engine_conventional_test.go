package server

import (
	"testing"

	pb "github.com/shingle-store/shingle/api/shingle/v1"
	"github.com/shingle-store/shingle/internal/zone"
)

// Zones, block groups and space of a device with zones of both kinds, and of an ordinary disk.
func TestConventionalZonesOverTheWire(t *testing.T) {
	for _, c := range []struct {
		g                        zone.Geometry
		sequential, conventional int64
	}{
		{zone.Geometry{Dialect: zone.SMR, ZoneSize: 1 << 20, ZoneCapacity: 1 << 20, Zones: 20, Conventional: 3, MaxOpen: 6}, 15, 3},
		{zone.Geometry{Dialect: zone.SMR, ZoneSize: 1 << 20, ZoneCapacity: 1 << 20, Zones: 12, Conventional: 12}, 0, 10},
	} {
		s := newStore(t, c.g)
		ctx := t.Context()
		if _, err := s.write(&pb.WriteRequest{Name: "a", Options: replace}, noise(4, 50_000), 1<<20); err != nil {
			t.Fatal(err)
		}
		u, err := s.store.GetUsage(ctx, &pb.GetUsageRequest{})
		if err != nil {
			t.Fatal(err)
		}
		var sequential, conventional int64
		for _, p := range u.Usage.Classes {
			if p.Used+p.Free+p.ZoneUnusable+p.Pending+p.Quarantined != p.Capacity {
				t.Errorf("%v does not add up", p)
			}
			if p.Conventional {
				conventional += p.BlockGroups
				if p.Used != 13*4096 || p.Class != pb.BlockGroupClass_BLOCK_GROUP_CLASS_DATA {
					t.Errorf("%v", p)
				}
			} else {
				sequential += p.BlockGroups
			}
		}
		if sequential != c.sequential || conventional != c.conventional {
			t.Errorf("%d and %d block groups in %v", sequential, conventional, u.Usage.Classes)
		}
		groups, err := s.store.ListBlockGroups(ctx, &pb.ListBlockGroupsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range groups.BlockGroups {
			if z := b.Zones[0].Zone; b.Conventional != (z < uint32(c.g.Conventional)) || b.Conventional && (b.AllocOffset != 0 || b.ZoneUnusable != 0) {
				t.Errorf("%v", b)
			}
		}
		zones, err := s.store.ListZones(ctx, &pb.ListZonesRequest{})
		if err != nil {
			t.Fatal(err)
		}
		live := uint64(0)
		for _, z := range zones.Zones {
			live += z.LiveBytes
			if z.Conventional != (z.Condition == pb.ZoneCondition_ZONE_CONDITION_NOT_WP) || (z.Use == pb.ZoneUse_ZONE_USE_DATA) != (z.BlockGroup != nil) {
				t.Errorf("%v", z)
			}
		}
		if live != 13*4096 {
			t.Errorf("%d live bytes", live)
		}
	}
}
