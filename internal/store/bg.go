package store

import (
	"encoding/binary"
	"fmt"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
)

// Device is the record of a zoned device (docs/format.md 2.2).
type Device struct {
	Number          uint32
	UUID            [16]byte
	LabelGeneration uint64
	ZoneSize        int64 // bytes
	Zones           uint32
	Dialect         uint8  // 1 ZNS, 2 SMR
	Conventional    uint32 // number of conventional zones
	OtherLabel      uint64 // of the label in the other label zone, which is no older; 0: none
	Leaving         bool   // what lies on the device is being moved to others
}

func (d *Device) encode() []byte {
	var b []byte
	b = putBytes(b, 1, d.UUID[:])
	b = putUint(b, 2, d.LabelGeneration)
	b = putUint(b, 3, uint64(d.ZoneSize))
	b = putUint(b, 4, uint64(d.Zones))
	b = putUint(b, 5, uint64(d.Dialect))
	b = putUint(b, 6, uint64(d.Conventional))
	b = putUint(b, 7, d.OtherLabel)
	if d.Leaving {
		b = putUint(b, 8, 1)
	}
	return b
}

func decodeDevice(key, p []byte) (d Device, err error) {
	if len(key) != 4 {
		return d, errWire
	}
	d.Number = binary.BigEndian.Uint32(key)
	err = eachField(p, func(f field) error {
		switch f.num {
		case 1:
			return id16(f, &d.UUID)
		case 2:
			return number(f, &d.LabelGeneration, max64)
		case 3:
			return number(f, &d.ZoneSize, max63)
		case 4:
			return number(f, &d.Zones, max32)
		case 5:
			return number(f, &d.Dialect, max8)
		case 6:
			return number(f, &d.Conventional, max32)
		case 7:
			return number(f, &d.OtherLabel, max64)
		case 8:
			return oneBit(f, &d.Leaving)
		}
		return nil
	})
	return d, err
}

// Device returns the record of device n, or NotFound.
func (tx *Tx) Device(n uint32) (Device, error) {
	key := key32(n)
	p, ok, err := tx.get(bDevices, key)
	if err != nil {
		return Device{}, err
	}
	if !ok {
		return Device{}, notFound("store.Device", fmt.Sprintf("device %d", n))
	}
	d, err := decodeDevice(key, p)
	return d, badRecord(bDevices, key, err)
}

// PutDevice writes d under its number.
func (tx *Tx) PutDevice(d Device) error { return tx.put(bDevices, key32(d.Number), d.encode()) }

// DeleteDevice deletes the record of device n.
func (tx *Tx) DeleteDevice(n uint32) error { return tx.del(bDevices, key32(n)) }

// Devices calls fn for each device by number.
func (tx *Tx) Devices(fn func(Device) error) error {
	c := tx.cursor(bDevices)
	for k, p, err := c.seek(nil); k != nil || err != nil; k, p, err = c.next() {
		if err != nil {
			return err
		}
		d, err := decodeDevice(k, p)
		if err != nil {
			return badRecord(bDevices, k, err)
		}
		if err := fn(d); err != nil {
			return err
		}
	}
	return nil
}

// Place says which zone of which device lies under a block group. Stale: what the zone holds is not what
// the block group holds (docs/format.md 2.3).
type Place struct {
	Device, Zone uint32
	Stale        bool
}

// The kinds of block groups; ids are on media.
const (
	KindSequential   = 1
	KindConventional = 2
)

// BGFlags are the flags of a block group; bits are on media.
type BGFlags uint32

// The flags of docs/format.md 2.3. Unknown bits are kept.
const (
	BGFinished    BGFlags = 1 // no more is written before a reset
	BGReadOnly    BGFlags = 2
	BGQuarantined BGFlags = 4
	// BGTrimmed: the zone is empty and was given back to the device (docs/format.md 2.13). It means
	// nothing beside an AllocOffset, and goes when an extent is stored there.
	BGTrimmed BGFlags = 8
)

// BlockGroup is the record of one slot of the address space (docs/format.md 2.3).
type BlockGroup struct {
	Slot        uint32
	Kind        uint8 // KindSequential, KindConventional
	Class       uint8 // 1 data, 2 relocation, 3 log
	Generation  uint64
	AllocOffset int64 // bytes from the zone start to the end of the last committed extent; 0 if conventional
	LiveBytes   int64 // stored bytes referenced
	Places      []Place
	Capacity    int64 // bytes, a sequential zone's header included; 0 without a place
	Flags       BGFlags
}

func (g *BlockGroup) encode() []byte {
	var b []byte
	b = putUint(b, 1, uint64(g.Kind))
	b = putUint(b, 2, uint64(g.Class))
	b = putUint(b, 3, g.Generation)
	b = putUint(b, 4, uint64(g.AllocOffset))
	b = putUint(b, 5, uint64(g.LiveBytes))
	for _, p := range g.Places {
		var m []byte
		m = putUint(m, 1, uint64(p.Device))
		m = putUint(m, 2, uint64(p.Zone))
		if p.Stale {
			m = putUint(m, 3, 1)
		}
		if len(m) == 0 { // device 0, zone 0: still a place
			m = []byte{1 << 3, 0}
		}
		b = putBytes(b, 6, m)
	}
	b = putUint(b, 7, uint64(g.Capacity))
	return putUint(b, 8, uint64(g.Flags))
}

func decodeBlockGroup(key, p []byte) (g BlockGroup, err error) {
	if len(key) != 4 {
		return g, errWire
	}
	g.Slot = binary.BigEndian.Uint32(key)
	err = eachField(p, func(f field) error {
		switch f.num {
		case 1:
			return number(f, &g.Kind, max8)
		case 2:
			return number(f, &g.Class, max8)
		case 3:
			return number(f, &g.Generation, max64)
		case 4:
			return number(f, &g.AllocOffset, max63)
		case 5:
			return number(f, &g.LiveBytes, max63)
		case 6:
			b, err := f.bytes(len(f.b))
			if err != nil {
				return err
			}
			var pl Place
			err = eachField(b, func(f field) error {
				switch f.num {
				case 1:
					return number(f, &pl.Device, max32)
				case 2:
					return number(f, &pl.Zone, max32)
				case 3:
					return oneBit(f, &pl.Stale)
				}
				return nil
			})
			g.Places = append(g.Places, pl)
			return err
		case 7:
			return number(f, &g.Capacity, max63)
		case 8:
			return number(f, &g.Flags, max32)
		}
		return nil
	})
	return g, err
}

// Trimmed reports whether the record says that the zone is empty and was given back.
func (g *BlockGroup) Trimmed() bool {
	return g.Flags&BGTrimmed != 0 && g.AllocOffset == 0 && g.LiveBytes == 0
}

// BlockGroup returns the record of slot as this transaction sees it, or NotFound. Places
// is shared with the transaction: do not change it in place.
func (tx *Tx) BlockGroup(slot uint32) (BlockGroup, error) {
	if e := tx.groups[slot]; e != nil {
		return e.BlockGroup, nil
	}
	key := key32(slot)
	p, ok, err := tx.get(bBlockGroups, key)
	if err != nil {
		return BlockGroup{}, err
	}
	if !ok {
		return BlockGroup{}, notFound("store.BlockGroup", fmt.Sprintf("block group %d", slot))
	}
	g, err := decodeBlockGroup(key, p)
	return g, badRecord(bBlockGroups, key, err)
}

// PutBlockGroup writes g under its slot.
func (tx *Tx) PutBlockGroup(g BlockGroup) error {
	if e := tx.groups[g.Slot]; e != nil {
		e.BlockGroup, e.dirty = g, false
	}
	return tx.put(bBlockGroups, key32(g.Slot), g.encode())
}

// BlockGroups calls fn for every block group in slot order until it returns an error, which
// is handed back. fn must not put block groups.
func (tx *Tx) BlockGroups(fn func(BlockGroup) error) error {
	c := tx.cursor(bBlockGroups)
	for k, p, err := c.seek(nil); k != nil || err != nil; k, p, err = c.next() {
		if err != nil {
			return err
		}
		g, err := decodeBlockGroup(k, p)
		if err != nil {
			return badRecord(bBlockGroups, k, err)
		}
		if e := tx.groups[g.Slot]; e != nil {
			g = e.BlockGroup
		}
		if err := fn(g); err != nil {
			return err
		}
	}
	return nil
}

// groupEntry is a block group whose live bytes this transaction changes. Many extents of
// one transaction fall into few groups, so the record is written once, by finish.
type groupEntry struct {
	BlockGroup
	dirty bool
}

func (tx *Tx) groupEntry(slot uint32) (*groupEntry, error) {
	if e := tx.groups[slot]; e != nil {
		return e, nil
	}
	g, err := tx.BlockGroup(slot)
	if errdefs.Is(err, errdefs.NotFound) {
		err = corrupt("store.BlockGroup", fmt.Sprintf("block group %d", slot), "an address lies in a group without a record")
	}
	if err != nil {
		return nil, err
	}
	e := &groupEntry{BlockGroup: g}
	tx.groups[slot] = e
	return e, nil
}

// addLive adds stored bytes to the group's live bytes and moves alloc_offset up to end, an
// offset in the zone (0: leaves it).
func (tx *Tx) addLive(slot uint32, stored, end int64) error {
	e, err := tx.groupEntry(slot)
	if err != nil {
		return err
	}
	if e.LiveBytes+stored < 0 {
		return corrupt("store.addLive", fmt.Sprintf("block group %d", slot), "more bytes die than are live")
	}
	e.LiveBytes += stored
	if e.Kind != KindConventional {
		e.AllocOffset = max(e.AllocOffset, end)
	}
	if end > 0 {
		e.Flags &^= BGTrimmed
	}
	e.dirty = true
	tx.mutations++
	return nil
}

func (tx *Tx) writeGroups() error {
	for _, e := range tx.groups {
		if e.dirty {
			if err := tx.put(bBlockGroups, key32(e.Slot), e.encode()); err != nil {
				return err
			}
		}
	}
	return nil
}

// slotOf returns the block group and the offset in its zone of a.
func (tx *Tx) slotOf(a extent.Addr) (slot uint64, off int64) {
	zs := uint64(tx.super.ZoneSize)
	return uint64(a) / zs, int64(uint64(a) % zs)
}
