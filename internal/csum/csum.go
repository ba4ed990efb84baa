package csum

import (
	"hash/crc32"

	"github.com/shingle-store/shingle/internal/extent"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// zeros pads a short last block.
var zeros [extent.BlockSize]byte

// Sum returns the crc32c of p. The sum of nothing is 0.
func Sum(p []byte) uint32 { return crc32.Checksum(p, castagnoli) }

// Update returns the crc32c of A followed by p, where crc is that of A.
func Update(crc uint32, p []byte) uint32 { return crc32.Update(crc, castagnoli, p) }

// Blocks appends to dst the crc32c of each block of p, in order, and returns the extended
// slice. A short last block is summed as if padded with zeros to the block, because that is
// what is stored (docs/format.md 1.4). p is only read.
func Blocks(dst []uint32, p []byte) []uint32 {
	for len(p) >= extent.BlockSize {
		dst = append(dst, Sum(p[:extent.BlockSize]))
		p = p[extent.BlockSize:]
	}
	if len(p) > 0 {
		dst = append(dst, Update(Sum(p), zeros[len(p):]))
	}
	return dst
}

// OfAll returns the checksum of the pieces one after the other.
func OfAll(pieces [][]byte) uint32 {
	var c uint32
	for _, p := range pieces {
		c = Update(c, p)
	}
	return c
}
