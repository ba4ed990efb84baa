package filedev

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/zone"
)

// CreateOptions are the choices a caller of Create has.
type CreateOptions struct {
	// Force replaces an existing file that no engine is using.
	Force bool
}

// Create makes a device file with every zone empty and makes it durable. The file is sparse:
// it has the device's size and takes space as zones are first opened. Errors: InvalidArgument
// for a geometry that is wrong or has no room in the format, AlreadyExists if there is a file
// and Force is not set, Unavailable if an engine is using that file, Device if the
// file system fails. A file that Create could not complete is not a device file.
func Create(path string, g zone.Geometry, o CreateOptions) error {
	const op = "filedev.Create"
	if err := checkGeometry(g); err != nil {
		return err
	}
	flags := os.O_RDWR | os.O_CREATE
	if !o.Force {
		flags |= os.O_EXCL
	}
	f, err := os.OpenFile(path, flags, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return errdefs.New(errdefs.AlreadyExists, "", op, path,
			"device file "+path+" is there already; choose another --device or force its replacement")
	}
	if err != nil {
		return errdefs.Wrap(errdefs.Device, errdefs.ReasonDeviceIO, op, path, err)
	}
	defer f.Close()
	if err := regularAndLocked(op, path, f); err != nil {
		return err
	}
	if err := fill(f, layoutOf(g)); err != nil {
		if !o.Force {
			_ = os.Remove(path)
		}
		return errdefs.Wrap(errdefs.Device, errdefs.ReasonDeviceIO, op, path, err)
	}
	return nil
}

// fill writes the table before the header, so that half a file has no header.
func fill(f *os.File, l layout) error {
	if err := f.Truncate(0); err != nil {
		return err
	}
	if err := f.Truncate(l.fileSize()); err != nil {
		return err
	}
	m, err := zone.NewMachine(l.geo, nil)
	if err != nil {
		return err
	}
	page := make([]byte, pageSize)
	for p := range l.pages {
		encodePage(page, l, m, nil, p)
		sealPage(page, p, 1)
		if _, err := f.WriteAt(page, l.pageOffset(p, 0)); err != nil {
			return err
		}
	}
	if err := f.Sync(); err != nil {
		return err
	}
	encodeHeader(l, page)
	if _, err := f.WriteAt(page, 0); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(f.Name()))
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

// regularAndLocked takes the exclusive lock that lives as long as f is open.
func regularAndLocked(op, path string, f *os.File) error {
	st, err := f.Stat()
	if err != nil {
		return errdefs.Wrap(errdefs.Device, errdefs.ReasonDeviceIO, op, path, err)
	}
	if !st.Mode().IsRegular() {
		return errdefs.New(errdefs.Precondition, errdefs.ReasonDeviceMismatch, op, path,
			path+" is not a plain file; choose another --device")
	}
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err != unix.EINTR {
			break
		}
	}
	if err == unix.EWOULDBLOCK {
		return errdefs.New(errdefs.Unavailable, errdefs.ReasonInUse, op, path,
			"device file "+path+" is in use by another engine; stop it or choose another --device")
	}
	return errdefs.Wrap(errdefs.Device, errdefs.ReasonDeviceIO, op, path, err)
}

// Open opens a device file and locks it against every other engine until Close. Zones come
// up as after a loss of power: at the write pointers last flushed, none open. If two table
// pages of different ages leave more zones active than the limit allows, the highest
// numbered are finished. Errors: NotFound if there is no file, Unavailable if it is in use,
// Precondition if it is no device file or of a later format, Corruption if its header, its
// table or its length is damaged, Device if the file system fails.
func Open(path string) (*Device, error) { return openFile(path, setDirect) }

// openFile is Open with what turns direct I/O on for a descriptor and says whether it is.
func openFile(path string, direct func(fd int) bool) (*Device, error) {
	const op = "filedev.Open"
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errdefs.New(errdefs.NotFound, "", op, path,
			"there is no device file "+path+"; format one or choose another --device")
	}
	if errors.Is(err, unix.EISDIR) {
		return nil, errdefs.New(errdefs.Precondition, errdefs.ReasonDeviceMismatch, op, path,
			path+" is not a plain file; choose another --device")
	}
	if err != nil {
		return nil, errdefs.Wrap(errdefs.Device, errdefs.ReasonDeviceIO, op, path, err)
	}
	d, err := open(path, f, direct)
	if err != nil {
		f.Close()
		return nil, err
	}
	return d, nil
}

func open(path string, f *os.File, direct func(fd int) bool) (*Device, error) {
	const op = "filedev.Open"
	if err := regularAndLocked(op, path, f); err != nil {
		return nil, err
	}
	l, err := readHeader(path, f)
	if err != nil {
		return nil, err
	}
	d := &Device{
		layout: l, path: path, file: f, fd: int(f.Fd()),
		zones: make([]zoneFile, l.geo.Zones), table: make([]tablePage, l.pages),
	}
	if d.m, err = zone.NewMachine(l.geo, d.changedLocked); err != nil {
		return nil, err
	}
	if err := d.readTable(); err != nil {
		return nil, err
	}
	if err := d.keepLimitLocked(); err != nil {
		return nil, err
	}
	d.direct = direct(d.fd)
	return d, nil
}

func readHeader(path string, f *os.File) (layout, error) {
	const op = "filedev.Open"
	b := make([]byte, headerSize)
	_, err := f.ReadAt(b, 0)
	if err != nil && err != io.EOF {
		return layout{}, errdefs.Wrap(errdefs.Device, errdefs.ReasonDeviceIO, op, path, err)
	}
	l, err := decodeHeader(b)
	say := func(k errdefs.Kind, r errdefs.Reason, msg string) error {
		return &errdefs.Error{Kind: k, Reason: r, Op: op, Object: path, Msg: msg, Err: err}
	}
	switch {
	case errors.Is(err, errForeign):
		return l, say(errdefs.Precondition, errdefs.ReasonDeviceMismatch,
			path+" is not a Shingle device file; choose another --device, or format this one by force")
	case errors.Is(err, errVersion):
		return l, say(errdefs.Precondition, errdefs.ReasonUnknownFeature,
			"device file "+path+" was made by a later version; use that version")
	case err != nil:
		return l, say(errdefs.Corruption, errdefs.ReasonCorruption,
			"the header of device file "+path+" is damaged; put back a copy of its first 4096 bytes, or format it by force")
	}
	st, err := f.Stat()
	if err != nil {
		return l, errdefs.Wrap(errdefs.Device, errdefs.ReasonDeviceIO, op, path, err)
	}
	if st.Size() < l.fileSize() {
		return l, say(errdefs.Corruption, errdefs.ReasonCorruption, fmt.Sprintf(
			"device file %s has %d bytes and should have %d: it was cut short; put back a whole copy, or format it by force",
			path, st.Size(), l.fileSize()))
	}
	return l, nil
}

// setDirect turns direct I/O on for fd and reports whether the file system takes it with
// buffers and offsets aligned to the block. If it does not, fd is buffered as before.
func setDirect(fd int) bool {
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		return false
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFL, flags|unix.O_DIRECT); err != nil {
		return false
	}
	probe := aligned(extent.BlockSize)
	if n, err := unix.Pread(fd, probe, 0); err == nil && n == len(probe) {
		return true
	}
	_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETFL, flags)
	return false
}
