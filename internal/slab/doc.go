// Package slab holds file data in memory: a bounded arena of 1 MiB slabs, mapped outside the
// Go heap and aligned for direct I/O.
//
// It owns the memory and the count of it, and promises that the slabs in use never pass the
// limit and that a page is not handed out again while a reference to it exists. Nothing of
// it survives a crash. What to do when the limit is reached (wait, write back) is left to
// the caller, who is told by Changed when to try again.
//
// With the race detector on, slabs come from the Go heap, since the detector does not watch
// mapped memory.
package slab
