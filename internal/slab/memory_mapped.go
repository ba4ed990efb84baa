//go:build linux && !race

package slab

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// mapMemory returns n bytes, a power of two, of zeroed memory outside the Go heap that begin at a
// multiple of n, so that a huge page can lie under them. False: the system has none.
func mapMemory(n int) ([]byte, bool) {
	p, err := unix.MmapPtr(-1, 0, nil, uintptr(2*n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, false
	}
	before := -uintptr(p) & uintptr(n-1)
	mem := unsafe.Add(p, before)
	if before > 0 {
		unmap(p, before)
	}
	unmap(unsafe.Add(mem, n), uintptr(n)-before)
	b := unsafe.Slice((*byte)(mem), n)
	// Where the system has no huge pages, small ones do.
	_ = unix.Madvise(b, unix.MADV_HUGEPAGE)
	return b, true
}

// unmapMemory gives mem, as mapMemory returned it, back. Using it afterwards is a fault that
// ends the process, which is better than writing into somebody else's file.
func unmapMemory(mem []byte) { unmap(unsafe.Pointer(unsafe.SliceData(mem)), uintptr(len(mem))) }

func unmap(p unsafe.Pointer, n uintptr) {
	if err := unix.MunmapPtr(p, n); err != nil {
		panic("slab: munmap: " + err.Error())
	}
}
