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

// checkedGroup is a block group of which a zone can be read.
type checkedGroup struct {
	copies []checkedCopy
}

// checkedCopy is one of its zones that can be read.
type checkedCopy struct {
	on       *checkedDevice
	zone     int
	readable int64 // bytes from the zone's start that can be read
}

// readable is how much can be read of the copy of which most can.
func (g checkedGroup) readable() (n int64) {
	for _, c := range g.copies {
		n = max(n, c.readable)
	}
	return n
}

// zoneName names a zone in problems.
func (d *checkedDevice) zoneName(z int) string { return fmt.Sprintf("%szone %d", d.name, z) }

// blockGroups checks that the records lie on zones of their own, and each against its zones.
func (c *check) blockGroups(ctx context.Context, tx *store.Tx) error {
	c.groups = map[uint32]checkedGroup{}
	owner := map[store.Place]uint32{}
	next := uint32(0)
	buf := slab.Aligned(extent.BlockSize)
	err := tx.BlockGroups(func(g store.BlockGroup) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		object := fmt.Sprintf("block group %d", g.Slot)
		if g.Slot != next {
			c.problem(object, "the records before it are missing, from block group %d on", next)
		}
		next = g.Slot + 1
		copies := max(1, int(c.super.Copies))
		known := len(g.Places) <= copies && (len(g.Places) > 0 || g.Capacity == 0)
		for _, p := range g.Places {
			known = known && c.devices[p.Device] != nil
		}
		switch {
		case !known && !c.several:
			c.problem(object, "it should have one place, on device 0, and has %v", g.Places)
			return nil
		case !known:
			c.problem(object, "it should have %d places, on the store's devices, and has %v", copies, g.Places)
			return nil
		}
		whole := 0
		for i, p := range g.Places {
			fits, err := c.place(tx, g, i, owner, buf)
			if err != nil {
				return err
			}
			if fits && !p.Stale {
				whole++
			}
		}
		if g.LiveBytes > 0 && whole < copies && whole > 0 {
			c.problem(object, "%d bytes in it have %d copies of %d", g.LiveBytes, whole, copies)
		}
		return nil
	})
	return c.cutShort("block groups", err)
}

// place checks one place of a block group. fits: its zone was held against the block group.
func (c *check) place(tx *store.Tx, g store.BlockGroup, copy int, owner map[store.Place]uint32, buf []byte) (fits bool, err error) {
	object := fmt.Sprintf("block group %d", g.Slot)
	p := g.Places[copy]
	d, z := c.devices[p.Device], p.Zone
	at := store.Place{Device: p.Device, Zone: z}
	if other, taken := owner[at]; taken {
		c.problem(object, "it lies on %s, and so does block group %d", d.zoneName(int(z)), other)
	}
	owner[at] = g.Slot
	if d.dev == nil {
		return false, nil
	}
	if int64(z) >= int64(len(d.zones)) {
		c.problem(object, "it lies on %s of a device with %d zones", d.zoneName(int(z)), len(d.zones))
		return false, nil
	}
	a, b, err := label.Zones(d.geo)
	if err != nil {
		return false, err
	}
	switch zi := d.zones[z]; {
	case int(z) == a || int(z) == b:
		c.problem(object, "it lies on %s, which holds labels", d.zoneName(int(z)))
	case d.geo.IsSequential(int(z)) == (g.Kind == store.KindConventional):
		c.problem(object, "it is of kind %d and lies on %s, which is of the other kind", g.Kind, d.zoneName(int(z)))
	case g.Capacity > zi.Capacity:
		c.problem(object, "its capacity is %d, that of %s is %d", g.Capacity, d.zoneName(int(z)), zi.Capacity)
	case p.Stale:
		return false, nil
	default:
		return true, c.blockGroup(tx, g, copy, d, zi, buf)
	}
	return false, nil
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
func (c *check) blockGroup(tx *store.Tx, g store.BlockGroup, copy int, d *checkedDevice, z zone.Zone, buf []byte) error {
	object := d.zoneName(z.Index)
	base := extent.Addr(int64(g.Slot) * c.super.ZoneSize)
	last, live, err := tx.LastExtent(base, base+extent.Addr(c.super.ZoneSize))
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
	c.groups[g.Slot] = checkedGroup{append(c.groups[g.Slot].copies, checkedCopy{on: d, zone: z.Index, readable: wp})}
	if wp < extent.BlockSize || g.Kind == store.KindConventional {
		return nil // said above, or without a header
	}
	if err := d.dev.ReadAt(z.Index, 0, buf); err != nil {
		c.problem(object, "its header cannot be read: %v", err)
		return nil
	}
	h, err := label.DecodeHeader(buf)
	switch {
	case err != nil:
		c.problem(object, "its header is bad: %v", err)
	case h.Store != c.super.StoreUUID:
		c.problem(object, "its header is of store %s, not of %s", uuid.UUID(h.Store), uuid.UUID(c.super.StoreUUID))
	case h.Zone != z.Index || h.Device != d.rec.Number || int(h.Copy) != copy:
		c.problem(object, "its header was written for zone %d of device %d, copy %d", h.Zone, h.Device, h.Copy)
	case h.Slot != g.Slot:
		c.problem(object, "its header is of block group %d, the metadata has block group %d there", h.Slot, g.Slot)
	case h.Generation != g.Generation:
		c.problem(object, "its header is of generation %d, block group %d is at generation %d", h.Generation, g.Slot, g.Generation)
	}
	return nil
}
