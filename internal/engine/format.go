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
	Device       zone.Device // stays the caller's
	MetadataPath string      // must not exist
	// PLACEHOLDER, as Options.Devices.
	Devices     []Device
	Copies      int
	UUID        [16]byte // random
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

// Format makes a new store: it resets every sequential zone, writes the label and then the
// metadata file. What conventional zones hold is left there and means nothing. It is done when the metadata file is there; a crash before leaves a device that can be formatted again.
// Errors: DEVICE_TOO_SMALL, IN_USE (holds a store, without Force), AlreadyExists.
func Format(o FormatOptions) error {
	const op = "engine.Format"
	if o.Device == nil && len(o.Devices) > 0 { // PLACEHOLDER
		o.Device = o.Devices[0].Device
	}
	g := o.Device.Geometry()
	if err := CheckGeometry(g); err != nil {
		return err
	}
	if l, err := label.Read(o.Device); !o.Force && !errdefs.Is(err, errdefs.NotFound) {
		if err != nil {
			return err
		}
		return errdefs.New(errdefs.Precondition, errdefs.ReasonInUse, op, "device", fmt.Sprintf("it holds store %s; to destroy that, format with --force", uuid.UUID(l.Store)))
	}
	if err := label.Erase(o.Device); err != nil {
		return err
	}
	a, b, err := label.Zones(g)
	if err != nil {
		return err
	}
	var groups []store.BlockGroup
	var books []alloc.BlockGroup
	var features uint64
	zones, err := o.Device.Report(0, -1)
	if err != nil {
		return errdefs.Wrap(errdefs.Device, errdefs.ReasonDeviceIO, op, "zone report", err)
	}
	for _, z := range zones {
		if z.Index == a || z.Index == b {
			continue
		}
		slot := uint32(len(groups))
		capacity := extent.RoundDown(z.Capacity)
		if capacity < MinZoneCapacity {
			continue // a short last zone too small to be of use
		}
		bg := store.BlockGroup{
			Slot: slot, Kind: store.KindSequential, Class: uint8(alloc.ClassData), Generation: 1, Capacity: capacity,
			Places: []store.Place{{Device: 0, Zone: uint32(z.Index)}},
		}
		conventional := !g.IsSequential(z.Index)
		if conventional {
			bg.Kind = store.KindConventional
			features |= store.FeatureConventional
		} else if z.Condition != zone.Empty && z.Condition != zone.ReadOnly && z.Condition != zone.Offline {
			if err := o.Device.Reset(z.Index); err != nil {
				return errdefs.Wrap(errdefs.Device, errdefs.ReasonDeviceIO, op, fmt.Sprintf("reset of zone %d", z.Index), err)
			}
		}
		groups = append(groups, bg)
		books = append(books, alloc.BlockGroup{Slot: slot, Zone: z.Index, Conventional: conventional, Capacity: capacity, Generation: 1, State: alloc.Empty})
	}
	if err := o.Device.Flush(); err != nil {
		return errdefs.Wrap(errdefs.Device, errdefs.ReasonDeviceIO, op, "flush", err)
	}
	// Both label zones get one, so that a bad block in either does not keep the new store shut.
	for generation := range uint64(FormattedGeneration) {
		err = label.Write(o.Device, label.Label{Store: o.UUID, Devices: 1, Generation: generation + 1, ZoneSize: g.ZoneSize, Zones: g.Zones, Dialect: g.Dialect})
		if err != nil {
			return err
		}
	}
	limits := Options{MetadataLimit: o.MetadataLimit}
	limits.setDefaults(g)
	return store.Create(o.MetadataPath, store.Init{
		Superblock: store.Superblock{
			FormatVersion: store.FormatVersion, Incompatible: features, StoreUUID: o.UUID, ZoneSize: g.ZoneSize, Created: o.Now().UnixNano(), StartCounter: FormattedGeneration,
			NodeIDLimit: store.RootID + 1, DefaultCompression: o.Compression, RelocationReserve: alloc.DefaultReserve(books), Clean: true,
		},
		Devices: []store.Device{{
			UUID: o.UUID, LabelGeneration: FormattedGeneration, OtherLabel: FormattedGeneration - 1, ZoneSize: g.ZoneSize, Zones: uint32(g.Zones), Dialect: uint8(g.Dialect), Conventional: uint32(g.Conventional),
		}},
		BlockGroups: groups,
	}, store.Options{MaxBytes: limits.MetadataLimit, NoSync: o.MetadataNoSync})
}
