package reclaim

import "github.com/shingle-store/shingle/internal/extent"

// Read is one read of a device: bytes [Off, End) of a zone, which hold pieces [First, Last).
type Read struct {
	Off, End    int64
	First, Last int
}

// Reads groups the reads of pieces, which are in order and do not overlap: neighbours with at most gap
// bytes between them are read together, up to most bytes; a longer piece is a read of its own. To
// read a short gap costs less than another command (S3 of the design).
func Reads(pieces []extent.Range, gap, most int64) []Read {
	var out []Read
	for i, p := range pieces {
		if n := len(out); n > 0 && p.Off-out[n-1].End <= gap && p.End-out[n-1].Off <= most {
			out[n-1].End, out[n-1].Last = p.End, i+1
			continue
		}
		out = append(out, Read{Off: p.Off, End: p.End, First: i, Last: i + 1})
	}
	return out
}

// Piece is a run of live blocks to be stored elsewhere.
type Piece struct {
	Blocks int64
	// Units are the blocks of each of its frames, which cannot be split; nil: it can be split at any
	// block.
	Units []int64
}

// Take is a prefix of a piece: so many blocks, which are so many units of one that has Units.
type Take struct {
	Piece  int
	Blocks int64
	Units  int
}

// Fit chooses what to put into room for so many blocks: pieces in order; of one that does not fit,
// what does; and what comes later to fill up the rest. left is the room that nothing fits. Every piece
// is taken once at most; what is not taken of it goes elsewhere.
func Fit(pieces []Piece, room int64) (take []Take, left int64) {
	for i := 0; i < len(pieces) && room > 0; i++ {
		p := &pieces[i]
		t := Take{Piece: i}
		if p.Units == nil {
			t.Blocks = min(p.Blocks, room)
		} else {
			for t.Units < len(p.Units) && t.Blocks+p.Units[t.Units] <= room {
				t.Blocks += p.Units[t.Units]
				t.Units++
			}
		}
		if t.Blocks > 0 {
			take = append(take, t)
			room -= t.Blocks
		}
	}
	return take, room
}
