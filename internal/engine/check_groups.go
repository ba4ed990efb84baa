package engine

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/slab"
	"github.com/shingle-store/shingle/internal/store"
	"github.com/shingle-store/shingle/internal/zone"
	"github.com/shingle-store/shingle/internal/zone/label"
)

// checkedGroup is a block group whose zone can be read.
type checkedGroup struct {
	zone     int
	readable int64 // bytes from the zone's start that can be read
}

// blockGroups checks that the records lie on zones of their own, and each against its zone.
func (c *check) blockGroups(ctx context.Context, tx *store.Tx) error {
	a, b, err := label.Zones(c.geo)
	if err != nil {
		return err
	}
	c.groups = map[uint32]checkedGroup{}
	owner := map[uint32]uint32{} // zone -> slot
	next := uint32(0)
	buf := slab.Aligned(extent.BlockSize)
	err = tx.BlockGroups(func(g store.BlockGroup) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		object := fmt.Sprintf("block group %d", g.Slot)
		if g.Slot != next {
			c.problem(object, "the records before it are missing, from block group %d on", next)
		}
		next = g.Slot + 1
		if len(g.Places) != 1 || g.Places[0].Device != 0 {
			c.problem(object, "it should have one place, on device 0, and has %v", g.Places)
			return nil
		}
		z := g.Places[0].Zone
		if int64(z) >= int64(len(c.zones)) {
			c.problem(object, "it lies on zone %d of a device with %d zones", z, len(c.zones))
			return nil
		}
		if other, taken := owner[z]; taken {
			c.problem(object, "it lies on zone %d, and so does block group %d", z, other)
		}
		owner[z] = g.Slot
		switch zi := c.zones[z]; {
		case int(z) == a || int(z) == b:
			c.problem(object, "it lies on zone %d, which holds labels", z)
		case c.geo.IsSequential(int(z)) == (g.Kind == store.KindConventional):
			c.problem(object, "it is of kind %d and lies on zone %d, which is of the other kind", g.Kind, z)
		case g.Capacity > zi.Capacity:
			c.problem(object, "its capacity is %d, that of zone %d is %d", g.Capacity, z, zi.Capacity)
		default:
			return c.blockGroup(tx, g, zi, buf)
		}
		return nil
	})
	return c.cutShort("block groups", err)
}

// cutShort reports a walk that a damaged record ended, and passes other errors on.
func (c *check) cutShort(object string, err error) error {
	if errdefs.Is(err, errdefs.Corruption) {
		c.problem(object, "what comes after a damaged record was not checked: %v", err)
		return nil
	}
	return err
}

// blockGroup holds a block group against its zone. Of a write pointer there are four cases: it is
// at alloc_offset; ahead of it, over bytes that no commit knows, which are unusable; behind it with
// nothing living above, after a reset or a lost append whose record did not follow; behind it with
// data above, which is lost. Only the last is wrong. A conventional zone has none: its bitmap is
// held against the extents with the metadata.
func (c *check) blockGroup(tx *store.Tx, g store.BlockGroup, z zone.Zone, buf []byte) error {
	object := fmt.Sprintf("zone %d", z.Index)
	base := extent.Addr(int64(g.Slot) * c.geo.ZoneSize)
	last, live, err := tx.LastExtent(base, base+extent.Addr(c.geo.ZoneSize))
	if err != nil {
		return nil // reported by the check of the metadata
	}
	end := int64(0)
	if live {
		end = int64(last.End() - base)
	}
	wp := min(z.WP, g.Capacity)
	if z.Condition == zone.Full || g.Kind == store.KindConventional {
		wp = g.Capacity
	}
	switch z.Condition {
	case zone.Offline:
		c.problem(object, "it is offline; %d live bytes of block group %d are lost", g.LiveBytes, g.Slot)
		return nil
	case zone.ReadOnly:
		c.problem(object, "it is read-only; %d live bytes of block group %d lie in it", g.LiveBytes, g.Slot)
	}
	if !live {
		return nil // it is reset at the next open, whatever it holds
	}
	if wp < end {
		c.problem(object, "its write pointer is at %d, but data lies up to %d in block group %d (alloc_offset %d): what is above is lost", wp, end, g.Slot, g.AllocOffset)
	}
	c.groups[g.Slot] = checkedGroup{zone: z.Index, readable: wp}
	if wp < extent.BlockSize || g.Kind == store.KindConventional {
		return nil // said above, or without a header
	}
	if err := c.o.Device.ReadAt(z.Index, 0, buf); err != nil {
		c.problem(object, "its header cannot be read: %v", err)
		return nil
	}
	h, err := label.DecodeHeader(buf)
	switch {
	case err != nil:
		c.problem(object, "its header is bad: %v", err)
	case h.Store != c.super.StoreUUID:
		c.problem(object, "its header is of store %s, not of %s", uuid.UUID(h.Store), uuid.UUID(c.super.StoreUUID))
	case h.Zone != z.Index || h.Device != 0:
		c.problem(object, "its header was written for zone %d of device %d", h.Zone, h.Device)
	case h.Slot != g.Slot:
		c.problem(object, "its header is of block group %d, the metadata has block group %d there", h.Slot, g.Slot)
	case h.Generation != g.Generation:
		c.problem(object, "its header is of generation %d, block group %d is at generation %d", h.Generation, g.Slot, g.Generation)
	}
	return nil
}
