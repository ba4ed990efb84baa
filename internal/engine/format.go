package engine

import (
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/shingle-store/shingle/internal/alloc"
	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/store"
	"github.com/shingle-store/shingle/internal/zone"
	"github.com/shingle-store/shingle/internal/zone/label"
)

// The smallest device accepted (docs/format.md 1.1): two label zones, two of relocation reserve
// and two for data; or, all conventional, two label zones and one for data. Each of at least eight
// blocks.
const (
	MinSequentialZones   = 6
	MinConventionalZones = 3
	MinZoneCapacity      = 8 * extent.BlockSize
)

// FormatOptions describe a new store.
type FormatOptions struct {
	Devices      []Device // stay the caller's; device i of the store
	MetadataPath string   // must not exist
	UUID         [16]byte // random
	// Copies of the data: 1 or 2, on different devices where there are several. Default 1.
	Copies      int
	Compression extent.Codec
	// MetadataLimit bounds the metadata file, in bytes; 0: as Options.MetadataLimit.
	MetadataLimit int64
	Now           func() time.Time
	// Force formats a device that holds a store already; what it held is lost.
	Force bool
	// MetadataNoSync is for tests.
	MetadataNoSync bool
}

// CheckGeometry says why a device cannot hold a store.
func CheckGeometry(g zone.Geometry) error {
	const op = "engine.Format"
	if err := g.Validate(); err != nil {
		return err
	}
	switch {
	case g.NumSequential() == 0 && g.Zones < MinConventionalZones:
		return errdefs.New(errdefs.Precondition, errdefs.ReasonDeviceTooSmall, op, "device", fmt.Sprintf("it has %d zones, all of them conventional; at least %d are needed: 2 for labels, 1 for data", g.Zones, MinConventionalZones))
	case g.Conventional > 0 && g.ZoneCapacity/extent.BlockSize > alloc.MaxConventionalBlocks:
		return errdefs.New(errdefs.Precondition, "", op, "device", fmt.Sprintf("its conventional zones hold %d bytes; at most %d can be kept track of", g.ZoneCapacity, int64(alloc.MaxConventionalBlocks)*extent.BlockSize))
	case g.NumSequential() > 0 && g.NumSequential() < MinSequentialZones:
		return errdefs.New(errdefs.Precondition, errdefs.ReasonDeviceTooSmall, op, "device", fmt.Sprintf("it has %d sequential zones; at least %d are needed: 2 for labels, 2 of reserve, 2 for data", g.NumSequential(), MinSequentialZones))
	case g.ZoneCapacity < MinZoneCapacity:
		return errdefs.New(errdefs.Precondition, errdefs.ReasonDeviceTooSmall, op, "device", fmt.Sprintf("its zones hold %d bytes; at least %d are needed", g.ZoneCapacity, MinZoneCapacity))
	case extent.MaxExtentSize(g.AppendLimit, g.ZoneCapacity) == 0:
		return errdefs.New(errdefs.Precondition, errdefs.ReasonDeviceTooSmall, op, "device", fmt.Sprintf("its append limit of %d bytes is less than a block", g.AppendLimit))
	}
	return nil
}

// FormattedGeneration is the generation of the latest label of a store that Format made and no engine
// has opened yet: each Open writes its own, one higher, before anything else.
const FormattedGeneration = 2

// checkDevices says why the devices cannot hold a store together.
func (o *FormatOptions) checkDevices() error {
	const op = "engine.Format"
	if len(o.Devices) == 0 {
		return errdefs.Invalid(op, "Devices", "Devices must be given")
	}
	if o.Copies < 0 || o.Copies > 2 {
		return errdefs.Invalid(op, "Copies", fmt.Sprintf("Copies must be 1 or 2, not %d", o.Copies))
	}
	first := o.Devices[0].Geometry()
	if o.Copies > 1 && first.NumSequential() == 0 {
		return errdefs.New(errdefs.Precondition, "", op, "devices", "all their zones are conventional; two copies need sequential zones")
	}
	for i, d := range o.Devices {
		g := d.Geometry()
		if err := CheckGeometry(g); err != nil {
			return err
		}
		if g.ZoneSize != first.ZoneSize || g.Dialect != first.Dialect {
			return errdefs.New(errdefs.Precondition, errdefs.ReasonDeviceMismatch, op, d.Path, fmt.Sprintf("device %d has zones of %d bytes and dialect %v, device 0 of %d and %v; all devices of a store have the same", i, g.ZoneSize, g.Dialect, first.ZoneSize, first.Dialect))
		}
		if l, err := label.Read(d); !o.Force && !errdefs.Is(err, errdefs.NotFound) {
			if err != nil {
				return err
			}
			return errdefs.New(errdefs.Precondition, errdefs.ReasonInUse, op, "device", fmt.Sprintf("it holds store %s; to destroy that, format with --force", uuid.UUID(l.Store)))
		}
	}
	return nil
}

// Format makes a new store: it resets every sequential zone, writes the labels and then the
// metadata file. What conventional zones hold is left there and means nothing. It is done when the metadata file is there; a crash before leaves devices that can be formatted again.
// Errors: DEVICE_TOO_SMALL, DEVICE_MISMATCH (zone size, dialect), IN_USE (holds a store, without Force),
// AlreadyExists.
func Format(o FormatOptions) error {
	if err := o.checkDevices(); err != nil {
		return err
	}
	copies := max(1, o.Copies)
	sequential, conventional := map[uint32][]int{}, map[uint32][]int{}
	for i, d := range o.Devices {
		var err error
		if sequential[uint32(i)], conventional[uint32(i)], err = clean(d); err != nil {
			return err
		}
	}
	if copies > 1 {
		clear(conventional) // what is in them cannot be moved to where it would have its second copy again
	}
	layout := o.layOut(sequential, conventional, copies)
	if err := o.fits(layout, copies); err != nil {
		return err
	}
	var devices []store.Device
	for i, d := range o.Devices {
		g := d.Geometry()
		// Both label zones get one, so that a bad block in either does not keep the new store shut.
		for generation := range uint64(FormattedGeneration) {
			err := label.Write(d, label.Label{Store: o.UUID, Device: uint32(i), Devices: uint32(len(o.Devices)), Generation: generation + 1, ZoneSize: g.ZoneSize, Zones: g.Zones, Dialect: g.Dialect})
			if err != nil {
				return err
			}
		}
		devices = append(devices, store.Device{
			Number: uint32(i), UUID: o.UUID, LabelGeneration: FormattedGeneration, OtherLabel: FormattedGeneration - 1, ZoneSize: g.ZoneSize, Zones: uint32(g.Zones), Dialect: uint8(g.Dialect), Conventional: uint32(g.Conventional),
		})
	}
	super := store.Superblock{
		FormatVersion: store.FormatVersion, Incompatible: layout.features, StoreUUID: o.UUID, ZoneSize: o.Devices[0].Geometry().ZoneSize, Created: o.Now().UnixNano(), StartCounter: FormattedGeneration,
		NodeIDLimit: store.RootID + 1, DefaultCompression: o.Compression, RelocationReserve: alloc.DefaultReserve(layout.books), Clean: true,
	}
	if copies > 1 || len(devices) > 1 {
		super.Incompatible |= store.FeatureDevices
		super.Copies, super.NextDevice = uint32(copies), uint32(len(devices))
	}
	limits := Options{MetadataLimit: o.MetadataLimit}
	limits.setDefaults(usableBytes(o.Devices))
	return store.Create(o.MetadataPath, store.Init{Superblock: super, Devices: devices, BlockGroups: layout.groups}, store.Options{MaxBytes: limits.MetadataLimit, NoSync: o.MetadataNoSync})
}

// clean erases the labels of a device and resets its zones, durably, and returns the zones that data can
// be put in.
func clean(d zone.Device) (sequential, conventional []int, err error) {
	const op = "engine.Format"
	if err := label.Erase(d); err != nil {
		return nil, nil, err
	}
	g := d.Geometry()
	a, b, err := label.Zones(g)
	if err != nil {
		return nil, nil, err
	}
	zones, err := d.Report(0, -1)
	if err != nil {
		return nil, nil, errdefs.Wrap(errdefs.Device, errdefs.ReasonDeviceIO, op, "zone report", err)
	}
	for _, z := range zones {
		switch {
		case z.Index == a || z.Index == b:
		case extent.RoundDown(z.Capacity) < MinZoneCapacity: // a short last zone too small to be of use
		case !g.IsSequential(z.Index):
			conventional = append(conventional, z.Index)
		default:
			if z.Condition != zone.Empty && z.Condition != zone.ReadOnly && z.Condition != zone.Offline {
				if err := d.Reset(z.Index); err != nil {
					return nil, nil, errdefs.Wrap(errdefs.Device, errdefs.ReasonDeviceIO, op, fmt.Sprintf("reset of zone %d", z.Index), err)
				}
			}
			sequential = append(sequential, z.Index)
		}
	}
	if err := d.Flush(); err != nil {
		return nil, nil, errdefs.Wrap(errdefs.Device, errdefs.ReasonDeviceIO, op, "flush", err)
	}
	return sequential, conventional, nil
}

// layout is which block groups a new store has.
type layout struct {
	groups   []store.BlockGroup
	books    []alloc.BlockGroup
	features uint64
}

// layOut makes block groups of the zones: conventional ones first.
func (o *FormatOptions) layOut(sequential, conventional map[uint32][]int, copies int) (l layout) {
	add := func(places []store.Place, kind uint8) {
		capacity := int64(0)
		for i, p := range places {
			c := extent.RoundDown(o.Devices[p.Device].Geometry().CapacityOf(int(p.Zone)))
			if i == 0 || c < capacity {
				capacity = c
			}
		}
		slot := uint32(len(l.groups))
		l.groups = append(l.groups, store.BlockGroup{Slot: slot, Kind: kind, Class: uint8(alloc.ClassData), Generation: 1, Capacity: capacity, Places: places})
		l.books = append(l.books, alloc.BlockGroup{Slot: slot, Zone: int(places[0].Zone), Conventional: kind == store.KindConventional, Capacity: capacity, Generation: 1, State: alloc.Empty})
	}
	for _, places := range pairZones(conventional, copies) {
		add(places, store.KindConventional)
		l.features |= store.FeatureConventional
	}
	for _, places := range pairZones(sequential, copies) {
		add(places, store.KindSequential)
	}
	return l
}

// fits refuses devices whose zones make too few block groups with so many copies.
func (o *FormatOptions) fits(l layout, copies int) error {
	need, have := MinSequentialZones-2, 0
	for _, g := range l.groups {
		if g.Kind == store.KindSequential {
			have++
		}
	}
	if have == 0 {
		need, have = MinConventionalZones-2, len(l.groups)
	}
	if have >= need {
		return nil
	}
	return errdefs.New(errdefs.Precondition, errdefs.ReasonDeviceTooSmall, "engine.Format", "devices", fmt.Sprintf(
		"their zones make %d block groups with %d copies; at least %d are needed: 2 of reserve, 2 for data, besides 2 zones for labels on each device", have, copies, need))
}
