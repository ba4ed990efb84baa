//go:build !linux || race

package slab

// mapMemory returns n bytes of zeroed, aligned memory from the Go heap.
func mapMemory(n int) ([]byte, bool) { return Aligned(int64(n)), true }

// unmapMemory leaves mem to the garbage collector.
func unmapMemory([]byte) {}
