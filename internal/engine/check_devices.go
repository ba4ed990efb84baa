package engine

import (
	"fmt"

	"github.com/google/uuid"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/store"
	"github.com/shingle-store/shingle/internal/zone"
	"github.com/shingle-store/shingle/internal/zone/label"
)

// checkedDevice is a device of the store.
type checkedDevice struct {
	rec   store.Device
	dev   zone.Device // nil: it was not given
	geo   zone.Geometry
	zones []zone.Zone
	name  string // for problems: "" with one device, else "device 1 "
}

// match finds out which device is which, and holds each against its record. False: what was given is not of
// this metadata, and nothing on it means anything.
func (c *check) match(tx *store.Tx) (ours bool, err error) {
	c.devices = map[uint32]*checkedDevice{}
	err = tx.Devices(func(d store.Device) error {
		c.devices[d.Number] = &checkedDevice{rec: d}
		return nil
	})
	if errdefs.Is(err, errdefs.Corruption) {
		c.problem("device record", "it cannot be read: %v", err)
		c.devices[0] = &checkedDevice{} // what is said of the only device is said of 0
	} else if err != nil {
		return false, err
	}
	c.several = len(c.devices) > 1
	ours = true
	for _, dev := range c.o.Devices {
		d := c.whose(dev)
		if d == nil {
			ours = false
			continue
		}
		d.dev, d.geo = dev.Device, dev.Geometry()
		if d.zones, err = dev.Report(0, -1); err != nil {
			return false, errdefs.Wrap(errdefs.Device, errdefs.ReasonDeviceIO, "engine.Check", "zone report", err)
		}
		ours = c.device(d) && ours
	}
	for _, d := range c.devices {
		if d.dev == nil {
			c.problem(fmt.Sprintf("device %d", d.rec.Number), "it was not given; what lies on it is not checked")
		}
	}
	return ours, nil
}

// whose returns the record that a device is about by its label. With one of each that is the one.
func (c *check) whose(dev Device) *checkedDevice {
	l, err := label.Read(dev)
	if !c.several && len(c.o.Devices) == 1 {
		for _, d := range c.devices {
			return d
		}
	}
	object := "device " + dev.Path
	if err != nil {
		c.problem(object, "its label cannot be read, so its zones were not checked: %v", err)
		return nil
	}
	d := c.devices[l.Device]
	switch {
	case l.Store != c.super.StoreUUID:
		c.problem(object, "it belongs to store %s, the metadata to store %s; its zones were not checked", uuid.UUID(l.Store), uuid.UUID(c.super.StoreUUID))
		return nil
	case d == nil:
		c.problem(object, "it is device %d, which the store does not have; its zones were not checked", l.Device)
	case d.dev != nil:
		c.problem(object, "it is device %d, and so is another one; its zones were not checked", l.Device)
		return nil
	default:
		d.name = fmt.Sprintf("device %d ", l.Device)
	}
	return d
}

// device holds the label, the superblock and the device record against each other and against
// the device. False: it is not the device of this metadata, and nothing on it means anything.
func (c *check) device(dev *checkedDevice) (ours bool) {
	ours = true
	d, geo := dev.rec, dev.geo
	foreign := func(object, format string, a ...any) {
		ours = false
		c.problem(dev.name+object, format+"; its zones were not checked", a...)
	}
	if c.super.ZoneSize != geo.ZoneSize {
		foreign("device", "its zones have %d bytes, the metadata is about zones of %d", geo.ZoneSize, c.super.ZoneSize)
	}
	switch {
	case d.Zones == 0: // said by match
	case int(d.Zones) != geo.Zones || int(d.Conventional) != geo.Conventional || zone.Dialect(d.Dialect) != geo.Dialect:
		foreign("device", "it has %d zones, %d of them conventional, of dialect %d; the metadata says %d, %d and %d",
			geo.Zones, geo.Conventional, geo.Dialect, d.Zones, d.Conventional, d.Dialect)
	case d.LabelGeneration > c.super.StartCounter:
		c.problem(dev.name+"device record", "it is of start %d, the superblock of start %d", d.LabelGeneration, c.super.StartCounter)
	}
	l, other, err := label.ReadBoth(dev.dev)
	object := dev.name + "label"
	switch {
	case errdefs.Is(err, errdefs.NotFound):
		foreign("label", "the device holds no Shingle label: it is not the one that the metadata is about, or was erased")
	case err != nil:
		c.problem(object, "it cannot be read: %v", err)
	case l.Store != c.super.StoreUUID:
		foreign("label", "the device belongs to store %s, the metadata to store %s", uuid.UUID(l.Store), uuid.UUID(c.super.StoreUUID))
	case l.Device != d.Number || !c.several && l.Devices != 1 && c.super.Incompatible&store.FeatureDevices == 0:
		c.problem(object, "it is of device %d of %d, where there is only one", l.Device, l.Devices)
	case l.ZoneSize != geo.ZoneSize || l.Zones != geo.Zones || l.Dialect != geo.Dialect:
		c.problem(object, "it was written for %d zones of %d bytes and dialect %d; the device shows %d of %d and dialect %d",
			l.Zones, l.ZoneSize, l.Dialect, geo.Zones, geo.ZoneSize, geo.Dialect)
	case l.Generation >= d.OtherLabel && other == 0 && l.Generation < d.LabelGeneration:
		c.problem(object, "the one of start %d cannot be read; there is the one before it", d.LabelGeneration)
	case l.Generation < d.LabelGeneration:
		c.problem(object, "it is from start %d, the metadata from start %d: the device looks like an old copy", l.Generation, d.LabelGeneration)
	case l.Generation > c.super.StartCounter+1:
		c.problem(object, "it is from start %d, the metadata from start %d: the metadata looks like an old copy", l.Generation, c.super.StartCounter)
	}
	return ours
}
