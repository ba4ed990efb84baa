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

// prepare returns the open devices of the folder's store. An empty folder gets a store: the devices
// are made if they are not there, and formatted if they never held anything. fresh says that this
// happened. Of a store that is there some devices may be missing, about which warn hears, but not
// all.
func (f *folder) prepare(c config.Config, warn func(string)) (open []engine.Device, fresh bool, err error) {
	haveMeta, err := exists(f.metadata())
	if err != nil {
		return nil, false, err
	}
	there, missing, err := f.present()
	if err != nil {
		return nil, false, err
	}
	if haveMeta {
		if len(there) == 0 {
			return nil, false, f.lostDevices()
		}
		for _, d := range missing {
			warn(lostDevice(d))
		}
		open, err = f.openDevices(there)
		return open, false, err
	}
	if err := f.fit(); err != nil {
		return nil, false, err
	}
	for _, d := range missing {
		if err := createDevice(d); err != nil {
			return nil, false, err
		}
	}
	if open, err = f.openDevices(f.devices); err != nil {
		return nil, false, err
	}
	if err = f.unused(open); err == nil {
		err = f.format(open, c)
	}
	if err != nil {
		closeDevices(open)
		return nil, false, err
	}
	return open, true, nil
}

// unused refuses devices that may hold data; open are those of the folder, in the same order. Up to
// engine.FormattedGeneration a label is of a store that no engine has opened yet: format was interrupted
// before the metadata file was there.
func (f *folder) unused(open []engine.Device) error {
	for i, d := range open {
		named := f.devices[i]
		if err := fits(named, d.Geometry()); err != nil {
			return err
		}
		l, err := label.Read(d.Device)
		switch {
		case errdefs.Is(err, errdefs.NotFound):
		case err != nil:
			return err
		case l.Generation > engine.FormattedGeneration:
			return errdefs.New(errdefs.Precondition, errdefs.ReasonDeviceMismatch, "engine.prepare", named.Path, fmt.Sprintf(
				"the device %s holds store %s, but its metadata file %s is missing; put that back, or name the --data that belongs to the device (`engine format --force` would destroy the store)",
				named.Path, uuid.UUID(l.Store), f.metadata()))
		}
	}
	return nil
}

// format makes a new store on the devices, over whatever they hold.
func (f *folder) format(open []engine.Device, c config.Config) error {
	codec := extent.CodecZstd
	if c.Compression != nil {
		codec = *c.Compression
	}
	id, err := uuid.NewRandom()
	if err != nil {
		return err
	}
	return engine.Format(engine.FormatOptions{
		Devices: open, Copies: max(1, c.Copies), MetadataPath: f.metadata(), UUID: id, Compression: codec,
		MetadataLimit: c.MetadataLimit, Now: time.Now, Force: true,
	})
}

// remake is what format does to a folder: by force also to one that holds a store. Device
// files are made anew if their size is known, for they may be damaged or of another geometry, and
// else formatted as they are. What was destroyed is gone in an order that leaves, after a crash,
// nothing that could be taken for a store. It answers what can be stored, in bytes.
func (f *folder) remake(c config.Config, force bool) (devices []zone.Geometry, room int64, err error) {
	const op = "engine.format"
	haveMeta, err := exists(f.metadata())
	if err != nil {
		return nil, 0, err
	}
	if haveMeta && !force {
		return nil, 0, errdefs.New(errdefs.AlreadyExists, "", op, f.path, fmt.Sprintf(
			"%s holds a store already; choose another --data, or destroy it with --force", f.path))
	}
	if err := f.fit(); err != nil {
		return nil, 0, err
	}
	for _, d := range f.devices {
		if err := makeDevice(d, force); err != nil {
			return nil, 0, err
		}
	}
	open, err := f.openDevices(f.devices)
	if err != nil {
		return nil, 0, err
	}
	defer closeDevices(open)
	devices = geometries(open)
	if !force {
		err = f.unused(open)
	}
	if err == nil && haveMeta {
		if err = os.Remove(f.metadata()); err == nil {
			err = syncFolder(f.path)
		}
	}
	if err == nil {
		err = f.format(open, c)
	}
	if err != nil {
		return nil, 0, err
	}
	room, err = engine.Room(f.metadata())
	return devices, room, err
}

// makeDevice makes a device file if it is not there, or, by force, if its size is known.
func makeDevice(d config.Device, force bool) error {
	there, err := exists(d.Path)
	if err != nil {
		return err
	}
	g, sized, err := d.Geometry()
	switch {
	case err != nil:
		return err
	case !there:
		return createDevice(d)
	case sized && force:
		return filedev.Create(d.Path, g, filedev.CreateOptions{Force: true})
	}
	return nil
}
