package main

import (
	"fmt"

	"github.com/shingle-store/shingle/api/client"
	shinglev1 "github.com/shingle-store/shingle/api/shingle/v1"
)

// sectorSize is the unit of blkzone, in bytes.
const sectorSize = 512

// zoneCode is a condition as the zoned standards number it, and as blkzone abbreviates it.
type zoneCode struct {
	number int
	word   string
}

// zoneCodes are the conditions in the words of blkzone(8).
var zoneCodes = map[shinglev1.ZoneCondition]zoneCode{
	shinglev1.ZoneCondition_ZONE_CONDITION_NOT_WP:        {0x0, "nw"},
	shinglev1.ZoneCondition_ZONE_CONDITION_EMPTY:         {0x1, "em"},
	shinglev1.ZoneCondition_ZONE_CONDITION_IMPLICIT_OPEN: {0x2, "oi"},
	shinglev1.ZoneCondition_ZONE_CONDITION_EXPLICIT_OPEN: {0x3, "oe"},
	shinglev1.ZoneCondition_ZONE_CONDITION_CLOSED:        {0x4, "cl"},
	shinglev1.ZoneCondition_ZONE_CONDITION_READ_ONLY:     {0xd, "ro"},
	shinglev1.ZoneCondition_ZONE_CONDITION_FULL:          {0xe, "fu"},
	shinglev1.ZoneCondition_ZONE_CONDITION_OFFLINE:       {0xf, "ol"},
}

// zoneReport is a zone in a line as `blkzone report` prints it: in sectors, the write pointer from the start
// of the zone. The engine never asks for a reset that a device recommends, nor writes out of order, so those
// two are 0.
func zoneReport(z *client.Zone) string {
	code, ok := zoneCodes[z.GetCondition()]
	if !ok {
		code = zoneCode{int(z.GetCondition()), "??"}
	}
	wptr, kind, word := z.GetWritePointer()/sectorSize, 2, "SEQ_WRITE_REQUIRED"
	if z.GetConventional() {
		wptr, kind, word = 0, 1, "CONVENTIONAL"
	}
	return fmt.Sprintf("  start: 0x%09x, len 0x%06x, cap 0x%06x, wptr 0x%06x reset:0 non-seq:0, zcond:%2d(%s) [type: %d(%s)]",
		z.GetStart()/sectorSize, z.GetSize()/sectorSize, z.GetCapacity()/sectorSize, wptr, code.number, code.word, kind, word)
}
