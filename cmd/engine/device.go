package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/shingle-store/shingle/internal/config"
	"github.com/shingle-store/shingle/internal/engine"
	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/zone"
	"github.com/shingle-store/shingle/internal/zone/filedev"
)

// present tells the devices of the folder that are there from those that are not.
func (f *folder) present() (there, missing []config.Device, err error) {
	for _, d := range f.devices {
		ok, err := exists(d.Path)
		switch {
		case err != nil:
			return nil, nil, err
		case ok:
			there = append(there, d)
		default:
			missing = append(missing, d)
		}
	}
	return there, missing, nil
}

// openDevices opens devices that are there, all or none.
func (f *folder) openDevices(named []config.Device) (open []engine.Device, err error) {
	for _, d := range named {
		dev, err := f.openDevice(d)
		if err != nil {
			closeDevices(open)
			return nil, err
		}
		open = append(open, engine.Device{Path: deviceURL(d), Device: dev})
	}
	return open, nil
}

func closeDevices(open []engine.Device) {
	for _, d := range open {
		d.Close()
	}
}

// deviceURL names a device as --device has it, without what is only needed to make it.
func deviceURL(d config.Device) string {
	path := d.Path
	if full, err := filepath.Abs(path); err == nil {
		path = full
	}
	return "file:" + path
}

// geometries are those of open devices.
func geometries(open []engine.Device) []zone.Geometry {
	out := make([]zone.Geometry, len(open))
	for i, d := range open {
		out[i] = d.Geometry()
	}
	return out
}

// openDevice opens a device that is there and holds it against what the URL says of it.
func (f *folder) openDevice(named config.Device) (*filedev.Device, error) {
	d, err := filedev.Open(named.Path)
	if err != nil || f.own {
		return d, err
	}
	if err := named.Agrees(d.Geometry()); err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

// openNamed opens the device of a URL that was given while the engine runs; one that is not there is made
// if the URL gives its size. A relative path starts where the engine was started.
func openNamed(url string) (zone.Device, error) {
	const op = "engine.openNamed"
	d, err := config.ParseDevice(url)
	if e, ok := err.(*errdefs.Error); ok {
		return nil, errdefs.Invalid(op, "path", e.Msg)
	}
	if d.Path, err = filepath.Abs(d.Path); err != nil {
		return nil, errdefs.Invalid(op, "path", err.Error())
	}
	f := &folder{devices: []config.Device{d}}
	there, err := exists(d.Path)
	if err != nil {
		return nil, err
	}
	if !there {
		if err := createDevice(d); err != nil {
			return nil, err
		}
	}
	dev, err := f.openDevice(d)
	if err != nil {
		return nil, err // not a nil *filedev.Device in a zone.Device that is none
	}
	return dev, nil
}

// createDevice makes the device file that a URL describes. It appears under its name whole or
// not at all, so a crash in between leaves nothing in the way of the next try.
func createDevice(d config.Device) error {
	const op = "engine.createDevice"
	path := d.Path
	g, ok, err := d.Geometry()
	if err != nil {
		return err
	}
	if !ok {
		return errdefs.New(errdefs.NotFound, "", op, path, fmt.Sprintf(
			"there is no device file %s; to have it made, give its size: 'file:%s?size=16GiB'", path, path))
	}
	if err := fits(d, g); err != nil {
		return err
	}
	half := path + ".new"
	if err := filedev.Create(half, g, filedev.CreateOptions{Force: true}); err != nil {
		return err
	}
	// Not a rename: that would replace a file made by somebody else meanwhile.
	if err := os.Link(half, path); err != nil {
		return errors.Join(err, os.Remove(half))
	}
	return errors.Join(os.Remove(half), syncFolder(filepath.Dir(path)))
}

// fits says which device cannot hold a store, and why.
func fits(d config.Device, g zone.Geometry) error {
	err := engine.CheckGeometry(g)
	if e, ok := err.(*errdefs.Error); ok {
		return errdefs.New(e.Kind, e.Reason, e.Op, d.Path, "device "+d.Path+" cannot be used: "+e.Msg)
	}
	return err
}

// fit says which of the devices that are to be made cannot hold a store, or not together, before any of
// them is.
func (f *folder) fit() error {
	var first zone.Geometry
	firstPath := ""
	for _, d := range f.devices {
		g, sized, err := d.Geometry()
		if err != nil {
			return err
		}
		if !sized {
			continue
		}
		if err := fits(d, g); err != nil {
			return err
		}
		if firstPath == "" {
			first, firstPath = g, d.Path
		}
		if g.ZoneSize != first.ZoneSize || g.Dialect != first.Dialect {
			return errdefs.New(errdefs.Precondition, errdefs.ReasonDeviceMismatch, "engine.fit", d.Path, fmt.Sprintf(
				"devices %s and %s cannot be in one store: give them the same zone-size and the same dialect", firstPath, d.Path))
		}
	}
	return nil
}

// lostDevices is what to say when the metadata file is there and no device is.
func (f *folder) lostDevices() error {
	paths := make([]string, len(f.devices))
	for i, d := range f.devices {
		paths[i] = d.Path
	}
	what, it := "the device file "+paths[0]+" is", "it"
	if len(paths) > 1 {
		what, it = "the device files "+strings.Join(paths, ", ")+" are", "them"
	}
	return errdefs.New(errdefs.NotFound, errdefs.ReasonDeviceMismatch, "engine.lostDevices", paths[0], fmt.Sprintf(
		"%s missing, and %s says that a store lies on %s; put %s back, or name the right --device and --data", what, f.metadata(), it, it))
}

// lostDevice is what to say of one that is left out.
func lostDevice(d config.Device) string {
	return fmt.Sprintf("the device file %s is missing and left out", d.Path)
}
