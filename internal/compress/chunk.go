package compress

import (
	"fmt"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/slab"
)

// ChunkResult is a chunk as frames. If AllRaw is true, no frame pays, the other fields are
// empty, and the chunk is best stored as a raw extent.
type ChunkResult struct {
	AllRaw bool
	Frames []extent.Frame
	// Data has one entry a frame: its stored bytes padded with zeros to the block, in memory
	// aligned to the block, in the ChunkBuf or, for frames kept raw, in the source.
	Data [][]byte
}

// ChunkBuf is the memory that Chunk works in. It holds one result at a time and is for one
// goroutine.
type ChunkBuf struct {
	out    []byte // where frames are compressed to; aligned
	gather []byte // a frame whose source is in pieces
	frames []extent.Frame
	data   [][]byte
}

// NewChunkBuf returns scratch memory of some 650 KiB.
func NewChunkBuf() *ChunkBuf {
	return &ChunkBuf{
		// A frame that does not pay spills past its blocks before it is given up.
		out:    slab.Aligned(extent.ChunkSize + extent.BlockSize),
		gather: slab.Aligned(extent.MaxFrameSize),
	}
}

// Chunk compresses the bytes of src, at most extent.ChunkSize in all, in frames of frameSize
// bytes (a multiple of the block, at most extent.MaxFrameSize; the last may be shorter). Frames
// that do not pay are kept raw. src is only read. The result is valid until scratch is used
// again, and while src is.
//
// Errors: InvalidArgument for sizes out of range or an empty src, Precondition for an unknown
// codec.
func (c *Compressor) Chunk(src [][]byte, frameSize int, codec extent.Codec, scratch *ChunkBuf) (ChunkResult, error) {
	total := 0
	for _, p := range src {
		total += len(p)
	}
	if total == 0 || total > extent.ChunkSize || frameSize <= 0 || frameSize > extent.MaxFrameSize || frameSize%extent.BlockSize != 0 {
		return ChunkResult{}, errdefs.Invalid("compress.Chunk", "", fmt.Sprintf("chunk of %d bytes in frames of %d", total, frameSize))
	}
	if Check(codec) != nil {
		return ChunkResult{}, unknown("compress.Chunk", codec)
	}
	if codec == extent.CodecNone {
		return ChunkResult{AllRaw: true}, nil
	}
	frames, data := scratch.frames[:0], scratch.data[:0]
	free := scratch.out
	pays := false
	for in := (pieces{rest: src}); total > 0; {
		n := min(frameSize, total)
		total -= n
		raw := in.next(n, scratch.gather)
		out, used, err := c.Frame(free[:0], raw, codec)
		if err != nil {
			return ChunkResult{}, err
		}
		stored := len(out)
		padded := int(extent.RoundUp(int64(stored)))
		switch {
		case used != extent.CodecNone:
			pays = true
			if &out[0] != &free[0] {
				copy(free, out)
			}
			out = free[:padded]
		case stored == padded && slab.IsAligned(raw) && &raw[0] != &scratch.gather[0]:
			padded = 0
		default:
			out = free[:padded]
			copy(out, raw)
		}
		clear(out[stored:])
		free = free[padded:]
		frames = append(frames, extent.Frame{Raw: uint32(n), Stored: uint32(stored), Codec: used})
		data = append(data, out)
	}
	scratch.frames, scratch.data = frames, data
	if !pays {
		return ChunkResult{AllRaw: true}, nil
	}
	return ChunkResult{Frames: frames, Data: data}, nil
}

// pieces reads a chunk's source in order.
type pieces struct {
	rest [][]byte
	pos  int // in rest[0]
}

// next returns the next n bytes, in place if they lie in one piece, else copied to room.
func (s *pieces) next(n int, room []byte) []byte {
	for s.pos == len(s.rest[0]) {
		s.rest, s.pos = s.rest[1:], 0
	}
	if p := s.rest[0][s.pos:]; len(p) >= n {
		s.pos += n
		return p[:n:n]
	}
	room = room[:0]
	for len(room) < n {
		p := s.rest[0][s.pos:]
		p = p[:min(len(p), n-len(room))]
		room = append(room, p...)
		if s.pos += len(p); s.pos == len(s.rest[0]) {
			s.rest, s.pos = s.rest[1:], 0
		}
	}
	return room
}
