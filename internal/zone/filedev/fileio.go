package filedev

import (
	"errors"
	"io"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/zone"
)

// maxVectors is the most buffers of one pwritev: IOV_MAX of Linux.
const maxVectors = 1024

// bounceSize is the size of the aligned buffers that stand in for unaligned ones.
const bounceSize = 1 << 20

var bounces = sync.Pool{New: func() any { b := aligned(bounceSize); return &b }}

// aligned returns n bytes that begin on a block border in memory.
func aligned(n int) []byte {
	b := make([]byte, n+extent.BlockSize)
	skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(b))) % extent.BlockSize)
	return b[skip : skip+n : skip+n]
}

func isAligned(b []byte) bool {
	return (uintptr(unsafe.Pointer(unsafe.SliceData(b)))|uintptr(len(b)))%extent.BlockSize == 0
}

// pread fills p from off in the file.
func (d *Device) pread(p []byte, off int64) error {
	if !d.direct || isAligned(p) {
		return d.preadFull(p, off)
	}
	b := bounces.Get().(*[]byte)
	defer bounces.Put(b)
	for len(p) > 0 {
		part := (*b)[:min(len(p), bounceSize)]
		if err := d.preadFull(part, off); err != nil {
			return err
		}
		n := copy(p, part)
		p, off = p[n:], off+int64(n)
	}
	return nil
}

func (d *Device) preadFull(p []byte, off int64) error {
	for len(p) > 0 {
		n, err := unix.Pread(d.fd, p, off)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return err
		case n == 0:
			return io.ErrUnexpectedEOF
		}
		p, off = p[n:], off+int64(n)
	}
	return nil
}

// pwrite writes bufs one after another from off in the file. They are not changed.
func (d *Device) pwrite(bufs [][]byte, off int64) error {
	if d.direct {
		for _, b := range bufs {
			if !isAligned(b) {
				return d.pwriteBounced(bufs, off)
			}
		}
	}
	return d.pwriteFull(bufs, off)
}

func (d *Device) pwriteFull(bufs [][]byte, off int64) error {
	var vec [][]byte
	done := 0 // bytes of bufs[0] that are written
	for {
		for len(bufs) > 0 && done == len(bufs[0]) {
			bufs, done = bufs[1:], 0
		}
		if len(bufs) == 0 {
			return nil
		}
		if done == 0 && len(bufs) <= maxVectors {
			vec = bufs
		} else {
			vec = append(vec[:0:0], bufs[:min(len(bufs), maxVectors)]...)
			vec[0] = vec[0][done:]
		}
		n, err := unix.Pwritev(d.fd, vec, off)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		if n == 0 {
			return io.ErrShortWrite
		}
		off += int64(n)
		for n > 0 {
			step := min(n, len(bufs[0])-done)
			if n, done = n-step, done+step; done == len(bufs[0]) {
				bufs, done = bufs[1:], 0
			}
		}
	}
}

// pwriteBounced gathers bufs in aligned memory, a part at a time.
func (d *Device) pwriteBounced(bufs [][]byte, off int64) error {
	b := bounces.Get().(*[]byte)
	defer bounces.Put(b)
	fill := 0
	for _, p := range bufs {
		for len(p) > 0 {
			n := copy((*b)[fill:], p)
			p, fill = p[n:], fill+n
			if fill == bounceSize {
				if err := d.pwriteFull([][]byte{*b}, off); err != nil {
					return err
				}
				off, fill = off+bounceSize, 0
			}
		}
	}
	if fill == 0 {
		return nil
	}
	return d.pwriteFull([][]byte{(*b)[:fill]}, off)
}

// allocate takes file space for the zone's capacity the first time the zone is used, so that
// a full file system shows before the write pointer moves. Without support for it in the
// file system, writes take the space. A zone that does not exist is left to the machine.
func (d *Device) allocate(op string, i int) error {
	if i < 0 || i >= len(d.zones) || d.zones[i].allocated.Load() {
		return nil
	}
	d.space.Lock()
	defer d.space.Unlock()
	z := &d.zones[i]
	if z.allocated.Load() {
		return nil
	}
	d.mu.Lock()
	c := d.m.Zone(i).Condition
	d.mu.Unlock()
	if c == zone.Full || c == zone.ReadOnly || c == zone.Offline {
		return nil // the machine will refuse the write
	}
	for {
		err := unix.Fallocate(d.fd, 0, d.zoneOffset(i), d.geo.CapacityOf(i))
		if err == unix.EINTR {
			continue
		}
		if err != nil && !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.ENOSYS) {
			return mediaError(op, i, err)
		}
		break
	}
	z.allocated.Store(true)
	d.mu.Lock()
	d.changedLocked(i)
	d.mu.Unlock()
	return nil
}
