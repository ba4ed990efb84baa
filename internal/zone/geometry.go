package zone

import (
	"fmt"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
)

// MaxZones bounds Geometry.Zones, so that a zone number fits the 32 bits it has on media.
const MaxZones = 1 << 30

// Validate reports the first rule the geometry breaks, as an InvalidArgument error whose
// Field is the field's name. The rules are those of ZBC and ZNS that hold for every drive
// (reference/device-model 1 and 2); that Linux wants a power of two is not one of them.
func (g Geometry) Validate() error {
	bad := func(field, format string, args ...any) error {
		return errdefs.Invalid("zone.Geometry", field, field+" "+fmt.Sprintf(format, args...))
	}
	block := func(n int64) bool { return n > 0 && n%extent.BlockSize == 0 }
	switch {
	case g.Dialect != ZNS && g.Dialect != SMR:
		return bad("Dialect", "%d is neither ZNS (1) nor SMR (2)", g.Dialect)
	case !block(g.ZoneSize):
		return bad("ZoneSize", "%d is no positive multiple of %d", g.ZoneSize, extent.BlockSize)
	case !block(g.ZoneCapacity):
		return bad("ZoneCapacity", "%d is no positive multiple of %d", g.ZoneCapacity, extent.BlockSize)
	case g.ZoneCapacity > g.ZoneSize:
		return bad("ZoneCapacity", "%d is more than the zone size %d", g.ZoneCapacity, g.ZoneSize)
	case g.Dialect == SMR && g.ZoneCapacity != g.ZoneSize:
		return bad("ZoneCapacity", "%d differs from the zone size %d, which SMR has no word for",
			g.ZoneCapacity, g.ZoneSize)
	case g.Zones <= 0 || g.Zones > MaxZones:
		return bad("Zones", "%d is outside 1..%d", g.Zones, MaxZones)
	case g.ZoneSize > extent.MaxFileSize/int64(g.Zones):
		return bad("ZoneSize", "%d x %d zones is more than %d", g.ZoneSize, g.Zones, int64(extent.MaxFileSize))
	case g.Conventional < 0 || g.Conventional > g.Zones:
		return bad("Conventional", "%d is outside 0..%d", g.Conventional, g.Zones)
	case g.Dialect == ZNS && g.Conventional != 0:
		return bad("Conventional", "%d must be 0: ZNS has no conventional zones", g.Conventional)
	case g.MaxOpen < 0:
		return bad("MaxOpen", "%d is negative", g.MaxOpen)
	case g.MaxActive < 0:
		return bad("MaxActive", "%d is negative", g.MaxActive)
	case g.Dialect == SMR && g.MaxActive != 0:
		return bad("MaxActive", "%d must be 0: SMR has no active limit", g.MaxActive)
	case g.MaxActive != 0 && g.MaxOpen > g.MaxActive:
		return bad("MaxOpen", "%d is more than the active limit %d", g.MaxOpen, g.MaxActive)
	case g.AppendLimit < 0 || g.AppendLimit > 0 && g.AppendLimit < extent.BlockSize:
		return bad("AppendLimit", "%d is neither 0 nor at least one block of %d", g.AppendLimit, extent.BlockSize)
	case g.LastZoneSize != 0 && !block(g.LastZoneSize):
		return bad("LastZoneSize", "%d is no positive multiple of %d", g.LastZoneSize, extent.BlockSize)
	case g.LastZoneSize >= g.ZoneSize:
		return bad("LastZoneSize", "%d is not below the zone size %d", g.LastZoneSize, g.ZoneSize)
	}
	return nil
}

// IsSequential reports whether the zone has a write pointer. The zone must exist.
func (g Geometry) IsSequential(zone int) bool { return zone >= g.Conventional }

// NumSequential returns how many zones have a write pointer; they are the last ones.
func (g Geometry) NumSequential() int { return g.Zones - g.Conventional }

// SizeOf returns the zone's size in bytes, which is smaller for a short last zone.
func (g Geometry) SizeOf(zone int) int64 {
	if zone == g.Zones-1 && g.LastZoneSize != 0 {
		return g.LastZoneSize
	}
	return g.ZoneSize
}

// CapacityOf returns how many bytes of the zone can be written.
func (g Geometry) CapacityOf(zone int) int64 {
	return min(g.ZoneCapacity, g.SizeOf(zone))
}

// DeviceBytes returns the size the device reports: the gaps between the capacity and the
// end of each zone are in it.
func (g Geometry) DeviceBytes() int64 {
	return int64(g.Zones-1)*g.ZoneSize + g.SizeOf(g.Zones-1)
}

// UsableBytes returns the sum of the capacities of all zones, conventional ones included.
func (g Geometry) UsableBytes() int64 {
	return int64(g.Zones-1)*g.ZoneCapacity + g.CapacityOf(g.Zones-1)
}

// OpenLimit returns the limit on open zones that can really be met, 0 for none: a limit that
// every sequential zone fits in is never met.
func (g Geometry) OpenLimit() int { return g.limit(g.MaxOpen) }

// ActiveLimit returns the limit on active zones that can really be met, 0 for none.
func (g Geometry) ActiveLimit() int { return g.limit(g.MaxActive) }

func (g Geometry) limit(n int) int {
	if n >= g.NumSequential() {
		return 0
	}
	return n
}
