// Package delalloc holds what has been written and has no place on a device yet: the dirty
// ranges of a file, and the rules by which they are collected for writing back.
//
// It owns one Index a file, with its lock, the payload memory in it, and the Mode and the
// counters that a store's indexes share. It is pure: no I/O, no clock, no goroutines. It
// promises that newer data is never hidden by older, that every byte put in is taken, dropped
// or overlaid exactly once, and that nothing is found in it while delayed allocation is off
// because nothing is in it (S4). Everything here is lost in a crash; that a range
// leaves memory only after its commit is the engine's part, as are reservations of space and
// the order of writes, truncates and commits of one file.
package delalloc
