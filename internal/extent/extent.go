package extent

import "fmt"

// Sizes in bytes. docs/format.md fixes them: changing one changes what is on media.
const (
	// BlockSize is the unit of allocation, checksum and device I/O.
	BlockSize = 4 << 10
	// MaxFrameSize is the most file data that is compressed as one unit.
	MaxFrameSize = 128 << 10
	// ChunkSize is the unit of work of a compression worker: four frames. The published
	// system (S0) uses the same size.
	ChunkSize = 512 << 10
	// MaxRangeSize is how much of a dirty range is collected at once, and the largest
	// extent the format allows (S0).
	MaxRangeSize = 128 << 20
	// MaxInlineSize is the most stored bytes of a file's data kept in its node.
	MaxInlineSize = 2 << 10
	// MaxCutInlineSize is what inline data may grow to when a part of it is cut off or zeroed
	// and compressed anew: a punch must not need space elsewhere.
	MaxCutInlineSize = 2 * MaxInlineSize
	// MaxFileSize bounds offsets, so that block arithmetic cannot overflow an int64.
	MaxFileSize = 1 << 60
)

// Addr is a logical address in bytes: block group slot x zone size + offset in the zone.
type Addr uint64

// Codec says how a frame or an inline value is stored. Ids are on media and never reused.
type Codec uint8

// The codecs. S2 and LZ4 have their ids kept so that they can be added without a new
// format; this version refuses to read them.
const (
	CodecNone Codec = 0
	CodecZstd Codec = 1
	CodecS2   Codec = 2
	CodecLZ4  Codec = 3
)

// String returns the codec's name as flags and the CLI spell it.
func (c Codec) String() string {
	switch c {
	case CodecNone:
		return "none"
	case CodecZstd:
		return "zstd"
	case CodecS2:
		return "s2"
	case CodecLZ4:
		return "lz4"
	}
	return fmt.Sprintf("codec(%d)", uint8(c))
}

// Range is the half-open byte range [Off, End).
type Range struct{ Off, End int64 }

// Len returns the length in bytes; an inverted range has length 0.
func (r Range) Len() int64 { return max(0, r.End-r.Off) }

// Intersect returns the common part of r and o; it is empty (Len 0) if there is none.
func (r Range) Intersect(o Range) Range {
	return Range{max(r.Off, o.Off), min(r.End, o.End)}
}

// Frame is one unit of a compressed extent. A frame whose Stored equals its blocks' worth of
// Raw (Codec none) is kept raw because compression did not pay.
type Frame struct {
	Raw    uint32 // bytes of file data, 1..MaxFrameSize
	Stored uint32 // bytes after compression, before padding to the block
	Codec  Codec  // how this frame is stored
}

// Blocks returns how many blocks the frame takes on the device.
func (f Frame) Blocks() int64 { return BlocksFor(int64(f.Stored)) }

// BlocksFor returns how many blocks n bytes need.
func BlocksFor(n int64) int64 { return (n + BlockSize - 1) / BlockSize }

// RoundUp rounds n up to a whole number of blocks, in bytes.
func RoundUp(n int64) int64 { return BlocksFor(n) * BlockSize }

// RoundDown rounds n down to a whole number of blocks, in bytes.
func RoundDown(n int64) int64 { return n / BlockSize * BlockSize }

// MaxExtentSize returns the largest extent in bytes for a device with the given append
// limit (0: none) and zone capacity: min(append limit or no limit, 128 MiB, zone capacity),
// rounded down to the block. A result of 0 means that the device cannot hold an extent.
func MaxExtentSize(appendLimit, zoneCapacity int64) int64 {
	m := min(int64(MaxRangeSize), zoneCapacity)
	if appendLimit > 0 {
		m = min(m, appendLimit)
	}
	return RoundDown(m)
}

// FrameSize returns the frame size in bytes to use with the given largest extent: a frame
// never spans extents.
func FrameSize(maxExtent int64) int64 { return min(MaxFrameSize, maxExtent) }
