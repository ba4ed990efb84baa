package main

import (
	"testing"

	"github.com/shingle-store/shingle/api/client"
	shinglev1 "github.com/shingle-store/shingle/api/shingle/v1"
)

// TestZoneReport holds lines against what util-linux's blkzone prints for such zones.
func TestZoneReport(t *testing.T) {
	for _, c := range []struct {
		z    *client.Zone
		want string
	}{
		{
			&client.Zone{Size: 256 << 20, Capacity: 256 << 20, Conventional: true, Condition: shinglev1.ZoneCondition_ZONE_CONDITION_NOT_WP},
			"  start: 0x000000000, len 0x080000, cap 0x080000, wptr 0x000000 reset:0 non-seq:0, zcond: 0(nw) [type: 1(CONVENTIONAL)]",
		},
		{
			&client.Zone{Start: 256 << 20, Size: 256 << 20, Capacity: 192 << 20, WritePointer: 4096, Condition: shinglev1.ZoneCondition_ZONE_CONDITION_IMPLICIT_OPEN},
			"  start: 0x000080000, len 0x080000, cap 0x060000, wptr 0x000008 reset:0 non-seq:0, zcond: 2(oi) [type: 2(SEQ_WRITE_REQUIRED)]",
		},
		{
			&client.Zone{Start: 20 << 40, Size: 256 << 20, Capacity: 256 << 20, WritePointer: 256 << 20, Condition: shinglev1.ZoneCondition_ZONE_CONDITION_FULL},
			"  start: 0xa00000000, len 0x080000, cap 0x080000, wptr 0x080000 reset:0 non-seq:0, zcond:14(fu) [type: 2(SEQ_WRITE_REQUIRED)]",
		},
	} {
		if got := zoneReport(c.z); got != c.want {
			t.Errorf("%v:\n%s\n%s", c.z, got, c.want)
		}
	}
}

// TestZoneCodes: every condition of the API has its word.
func TestZoneCodes(t *testing.T) {
	words := map[string]bool{}
	for n, name := range shinglev1.ZoneCondition_name {
		if n == 0 {
			continue
		}
		code, ok := zoneCodes[shinglev1.ZoneCondition(n)]
		if !ok || words[code.word] {
			t.Errorf("%s: %+v", name, code)
		}
		words[code.word] = true
	}
}
