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
// and two for data, each of at least eight blocks.
const (
	MinSequentialZones = 6
	MinZoneCapacity    = 8 * extent.BlockSize
)

// FormatOptions describe a new store.
type FormatOptions struct {
	Device       zone.Device // stays the caller's
	MetadataPath string      // must not exist
	UUID         [16]byte    // random
	Compression  extent.Codec
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
	case g.NumSequential() == 0:
		return errdefs.New(errdefs.Precondition, errdefs.ReasonConventionalOnly, op, "device", "all its zones are conventional: this version stores data in sequential zones only; use a zoned device with sequential zones")
	case g.NumSequential() < MinSequentialZones:
		return errdefs.New(errdefs.Precondition, errdefs.ReasonDeviceTooSmall, op, "device", fmt.Sprintf("it has %d sequential zones; at least %d are needed: 2 for labels, 2 of reserve, 2 for data", g.NumSequential(), MinSequentialZones))
	case g.ZoneCapacity < MinZoneCapacity:
		return errdefs.New(errdefs.Precondition, errdefs.ReasonDeviceTooSmall, op, "device", fmt.Sprintf("its zones hold %d bytes; at least %d are needed", g.ZoneCapacity, MinZoneCapacity))
	case extent.MaxExtentSize(g.AppendLimit, g.ZoneCapacity) == 0:
		return errdefs.New(errdefs.Precondition, errdefs.ReasonDeviceTooSmall, op, "device", fmt.Sprintf("its append limit of %d bytes is less than a block", g.AppendLimit))
	}
	return nil
}

// Format makes a new store: it resets every sequential zone, writes the label and then the
// metadata file. It is done when the metadata file is there; a crash before leaves a device that can be formatted again.
// Errors: DEVICE_TOO_SMALL, CONVENTIONAL_ONLY, IN_USE (holds a store, without Force), AlreadyExists.
func Format(o FormatOptions) error {
	const op = "engine.Format"
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
	zones, err := o.Device.Report(g.Conventional, -1)
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
		if z.Condition != zone.Empty && z.Condition != zone.ReadOnly && z.Condition != zone.Offline {
			if err := o.Device.Reset(z.Index); err != nil {
				return errdefs.Wrap(errdefs.Device, errdefs.ReasonDeviceIO, op, fmt.Sprintf("reset of zone %d", z.Index), err)
			}
		}
		groups = append(groups, store.BlockGroup{
			Slot: slot, Kind: 1, Class: uint8(alloc.ClassData), Generation: 1, Capacity: capacity,
			Places: []store.Place{{Device: 0, Zone: uint32(z.Index)}},
		})
		books = append(books, alloc.BlockGroup{Slot: slot, Zone: z.Index, Capacity: capacity, Generation: 1, State: alloc.Empty})
	}
	if err := o.Device.Flush(); err != nil {
		return errdefs.Wrap(errdefs.Device, errdefs.ReasonDeviceIO, op, "flush", err)
	}
	// Both label zones get one, so that a bad block in either does not keep the new store shut.
	for generation := range uint64(2) {
		err = label.Write(o.Device, label.Label{Store: o.UUID, Devices: 1, Generation: generation + 1, ZoneSize: g.ZoneSize, Zones: g.Zones, Dialect: g.Dialect})
		if err != nil {
			return err
		}
	}
	limits := Options{MetadataLimit: o.MetadataLimit}
	limits.setDefaults(g)
	return store.Create(o.MetadataPath, store.Init{
		Superblock: store.Superblock{
			FormatVersion: store.FormatVersion, StoreUUID: o.UUID, ZoneSize: g.ZoneSize, Created: o.Now().UnixNano(), StartCounter: 2,
			NodeIDLimit: store.RootID + 1, DefaultCompression: o.Compression, RelocationReserve: alloc.DefaultReserve(books), Clean: true,
		},
		Devices: []store.Device{{
			UUID: o.UUID, LabelGeneration: 2, OtherLabel: 1, ZoneSize: g.ZoneSize, Zones: uint32(g.Zones), Dialect: uint8(g.Dialect), Conventional: uint32(g.Conventional),
		}},
		BlockGroups: groups,
	}, store.Options{MaxBytes: limits.MetadataLimit, NoSync: o.MetadataNoSync})
}
