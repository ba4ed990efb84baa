// Package csum computes the checksum of everything Shingle stores: crc32c (Castagnoli), the
// one that processors compute themselves and that docs/format.md fixes.
//
// It owns no state and does no I/O; it promises nothing after a crash. Where checksums are
// kept and what a mismatch means is left to the packages that store and read blocks.
package csum
