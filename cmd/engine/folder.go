package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/shingle-store/shingle/internal/config"
	"github.com/shingle-store/shingle/internal/errdefs"
)

// folder is the data folder of a store, locked against every other engine until close.
type folder struct {
	path    string
	lock    *os.File
	devices []config.Device // in the order in which they were named, which means nothing once they are formatted
	own     bool            // the one device is the emulated one in the folder
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
	if err = flock(lock); err == unix.EWOULDBLOCK {
		err = errdefs.New(errdefs.Unavailable, errdefs.ReasonInUse, op, c.Data,
			"data folder "+c.Data+" is in use by another engine; stop it or choose another --data")
	}
	if err != nil {
		lock.Close()
		return nil, err
	}
	f := &folder{path: c.Data, lock: lock, devices: c.Devices}
	if f.own = len(c.Devices) == 0; f.own {
		f.devices = []config.Device{config.DefaultDevice(filepath.Join(c.Data, "device"))}
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

func syncFolder(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
