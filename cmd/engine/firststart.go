package main

import (
	"fmt"
	"os"
	"time"

	"github.com/google/uuid"

	"github.com/shingle-store/shingle/internal/config"
	"github.com/shingle-store/shingle/internal/engine"
	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/zone"
	"github.com/shingle-store/shingle/internal/zone/filedev"
	"github.com/shingle-store/shingle/internal/zone/label"
)

// prepare returns the open device of the folder's store. An empty folder gets a store: the device
// is made if it is not there, and formatted if it never held anything. fresh says that this
// happened.
func (f *folder) prepare(c config.Config) (d *filedev.Device, fresh bool, err error) {
	haveMeta, err := exists(f.metadata())
	if err != nil {
		return nil, false, err
	}
	haveDevice, err := exists(f.device.Path)
	if err != nil {
		return nil, false, err
	}
	switch {
	case haveMeta && !haveDevice:
		return nil, false, f.lostDevice()
	case !haveMeta && !haveDevice:
		if err := f.createDevice(); err != nil {
			return nil, false, err
		}
	}
	if d, err = f.openDevice(); err != nil {
		return nil, false, err
	}
	if haveMeta {
		return d, false, nil
	}
	if err = f.unused(d); err == nil {
		err = f.format(d, c, true)
	}
	if err != nil {
		d.Close()
		return nil, false, err
	}
	return d, true, nil
}

// lostDevice is what to say when the metadata file is there and the device is not.
func (f *folder) lostDevice() error {
	return errdefs.New(errdefs.NotFound, errdefs.ReasonDeviceMismatch, "engine.lostDevice", f.device.Path, fmt.Sprintf(
		"the device file %s is missing, and %s says that a store lies on it; put it back, or name the right --device and --data",
		f.device.Path, f.metadata()))
}

// unused refuses a device that may hold data. Up to engine.FormattedGeneration a label is of a store
// that no engine has opened yet: format was interrupted before the metadata file was there.
func (f *folder) unused(d zone.Device) error {
	if err := f.fits(d.Geometry()); err != nil {
		return err
	}
	l, err := label.Read(d)
	switch {
	case errdefs.Is(err, errdefs.NotFound):
		return nil
	case err != nil:
		return err
	case l.Generation > engine.FormattedGeneration:
		return errdefs.New(errdefs.Precondition, errdefs.ReasonDeviceMismatch, "engine.prepare", f.device.Path, fmt.Sprintf(
			"the device %s holds store %s, but its metadata file %s is missing; put that back, or name the --data that belongs to the device (`engine format --force` would destroy the store)",
			f.device.Path, uuid.UUID(l.Store), f.metadata()))
	}
	return nil
}

// format makes a new store on the device.
func (f *folder) format(d zone.Device, c config.Config, force bool) error {
	codec := extent.CodecZstd
	if c.Compression != nil {
		codec = *c.Compression
	}
	id, err := uuid.NewRandom()
	if err != nil {
		return err
	}
	return engine.Format(engine.FormatOptions{
		Devices: []engine.Device{{Path: f.device.Path, Device: d}}, MetadataPath: f.metadata(), UUID: id, Compression: codec,
		MetadataLimit: c.MetadataLimit, Now: time.Now, Force: force,
	})
}

// remake is what format does to a folder: by force also to one that holds a store. The device
// file is made anew if its size is known, for it may be damaged or of another geometry, and
// else formatted as it is. What was destroyed is gone in an order that leaves, after a crash,
// nothing that could be taken for a store.
func (f *folder) remake(c config.Config, force bool) (zone.Geometry, error) {
	const op = "engine.format"
	haveMeta, err := exists(f.metadata())
	if err != nil {
		return zone.Geometry{}, err
	}
	if haveMeta && !force {
		return zone.Geometry{}, errdefs.New(errdefs.AlreadyExists, "", op, f.path, fmt.Sprintf(
			"%s holds a store already; choose another --data, or destroy it with --force", f.path))
	}
	haveDevice, err := exists(f.device.Path)
	if err != nil {
		return zone.Geometry{}, err
	}
	g, sized, err := f.device.Geometry()
	if err != nil {
		return zone.Geometry{}, err
	}
	if sized {
		if err := f.fits(g); err != nil {
			return zone.Geometry{}, err
		}
	}
	switch {
	case !haveDevice:
		err = f.createDevice()
	case sized && force:
		err = filedev.Create(f.device.Path, g, filedev.CreateOptions{Force: true})
	}
	if err != nil {
		return zone.Geometry{}, err
	}
	d, err := f.openDevice()
	if err != nil {
		return zone.Geometry{}, err
	}
	defer d.Close()
	if !force {
		if err := f.unused(d); err != nil {
			return zone.Geometry{}, err
		}
	}
	if haveMeta {
		if err := os.Remove(f.metadata()); err != nil {
			return zone.Geometry{}, err
		}
		if err := syncFolder(f.path); err != nil {
			return zone.Geometry{}, err
		}
	}
	return d.Geometry(), f.format(d, c, true)
}
