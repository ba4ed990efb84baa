package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/shingle-store/shingle/internal/config"
	"github.com/shingle-store/shingle/internal/engine"
	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/zone"
	"github.com/shingle-store/shingle/internal/zone/filedev"
)

// folder is the data folder of a store, locked against every other engine until close.
type folder struct {
	path   string
	lock   *os.File
	device config.Device
	own    bool // the device is the emulated one in the folder
}

// openFolder locks the data folder, making it if make is set. The lock is the kernel's, on the
// folder itself: it goes with the process, however that ends.
func openFolder(c config.Config, make bool) (*folder, error) {
	const op = "engine.openFolder"
	if make {
		if err := os.MkdirAll(c.Data, 0o700); err != nil {
			return nil, fmt.Errorf("data folder %s cannot be made; choose another --data: %w", c.Data, err)
		}
	}
	lock, err := os.OpenFile(c.Data, os.O_RDONLY|unix.O_DIRECTORY, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, errdefs.New(errdefs.NotFound, "", op, c.Data, "there is no data folder "+c.Data+"; name the right one with --data")
	case errors.Is(err, unix.ENOTDIR):
		return nil, errdefs.New(errdefs.Precondition, "", op, c.Data, c.Data+" is not a folder; name another with --data")
	case err != nil:
		return nil, err
	}
	for {
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err != unix.EINTR {
			break
		}
	}
	if err == unix.EWOULDBLOCK {
		err = errdefs.New(errdefs.Unavailable, errdefs.ReasonInUse, op, c.Data,
			"data folder "+c.Data+" is in use by another engine; stop it or choose another --data")
	}
	if err != nil {
		lock.Close()
		return nil, err
	}
	f := &folder{path: c.Data, lock: lock, device: c.Device}
	if f.own = c.Device.Path == ""; f.own {
		f.device = config.DefaultDevice(filepath.Join(c.Data, "device"))
	}
	return f, nil
}

func (f *folder) close() { f.lock.Close() }

// metadata is the path of the metadata file.
func (f *folder) metadata() string { return filepath.Join(f.path, "metadata.db") }

// exists reports whether there is something at path, whatever it is.
func exists(path string) (bool, error) {
	_, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// openDevice opens the device that is there and holds it against what the URL says of it.
func (f *folder) openDevice() (*filedev.Device, error) {
	d, err := filedev.Open(f.device.Path)
	if err != nil || f.own {
		return d, err
	}
	if err := f.device.Agrees(d.Geometry()); err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

// createDevice makes the device file that the URL describes. It appears under its name whole or
// not at all, so a crash in between leaves nothing in the way of the next try.
func (f *folder) createDevice() error {
	const op = "engine.createDevice"
	path := f.device.Path
	g, ok, err := f.device.Geometry()
	if err != nil {
		return err
	}
	if !ok {
		return errdefs.New(errdefs.NotFound, "", op, path, fmt.Sprintf(
			"there is no device file %s; to have it made, give its size: --device 'file:%s?size=16GiB'", path, path))
	}
	if err := f.fits(g); err != nil {
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
func (f *folder) fits(g zone.Geometry) error {
	err := engine.CheckGeometry(g)
	if e, ok := err.(*errdefs.Error); ok {
		return errdefs.New(e.Kind, e.Reason, e.Op, f.device.Path, "device "+f.device.Path+" cannot be used: "+e.Msg)
	}
	return err
}

func syncFolder(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
