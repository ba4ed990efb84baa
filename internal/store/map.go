package store

import "github.com/shingle-store/shingle/internal/extent"

// Piece is what to read for the file bytes [FileOff, FileOff+Len): Blocks blocks at Addr,
// to be checked against Sums, decoded, and Skip decoded bytes passed over.
type Piece struct {
	FileOff int64
	Len     int64
	Addr    extent.Addr // of the first block to read
	Blocks  int64
	Codec   extent.Codec   // CodecNone: the blocks are the data
	Frames  []extent.Frame // the frames to read, in order; nil when raw
	Skip    int64          // decoded bytes before the data, less than the first unit
	Sums    []uint32       // crc32c, one a block
}

// Map resolves the file bytes [off, end) for reading: a piece for each file extent, clipped
// to the range, with only the blocks or frames that it touches. Bytes between pieces are
// holes. Inline data is not looked at. Slices are the caller's.
func (tx *Tx) Map(file uint64, off, end int64) ([]Piece, error) {
	var pieces []Piece
	var u *units
	var bad error
	err := tx.FileExtents(file, off, end, func(e FileExtent) bool {
		if u == nil || e.Addr < u.Addr || e.Addr >= u.End() {
			if u, bad = tx.extentAt(e.Addr); bad != nil {
				return false
			}
		}
		var s span
		if s, bad = u.place(&e); bad != nil {
			return false
		}
		line := s.from - e.Off
		from, to := max(e.Off, off), min(e.End(), end)
		first, last := u.touched(span{from + line, to + line})
		p := Piece{
			FileOff: from, Len: to - from,
			Addr:   u.Addr + extent.Addr(u.storedAt(first)),
			Blocks: (u.storedAt(last+1) - u.storedAt(first)) / extent.BlockSize,
			Codec:  u.Codec,
			Skip:   from + line - u.decodedAt(first),
		}
		if !u.raw() {
			p.Frames = u.Frames[first : last+1 : last+1]
		}
		p.Sums, bad = tx.Checksums(p.Addr, p.Blocks)
		pieces = append(pieces, p)
		return bad == nil
	})
	if bad != nil {
		return nil, bad
	}
	return pieces, err
}
