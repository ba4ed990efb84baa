//go:build linux && !race

package slab

import (
	"testing"
	"unsafe"
)

// A huge page fits under a region only if it begins at a multiple of its size.
func TestRegionsAreAligned(t *testing.T) {
	for range 20 {
		mem, ok := mapMemory(regionSize)
		if !ok {
			t.Fatal("no memory")
		}
		if uintptr(unsafe.Pointer(&mem[0]))%regionSize != 0 || len(mem) != regionSize {
			t.Errorf("%d bytes at %p", len(mem), &mem[0])
		}
		mem[0], mem[len(mem)-1] = 1, 1
		defer unmapMemory(mem)
	}
}
