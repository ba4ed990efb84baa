//go:build linux && !race

package slab

import "golang.org/x/sys/unix"

// mapMemory returns n bytes of zeroed memory outside the Go heap. False: the system has none.
func mapMemory(n int) ([]byte, bool) {
	mem, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	return mem, err == nil
}

// unmapMemory gives mem, as mapMemory returned it, back. Using it afterwards is a fault that
// ends the process, which is better than writing into somebody else's file.
func unmapMemory(mem []byte) {
	if err := unix.Munmap(mem); err != nil {
		panic("slab: munmap: " + err.Error())
	}
}
