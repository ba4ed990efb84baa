package scrub

import "github.com/shingle-store/shingle/internal/extent"

const (
	// readMost bounds one read, so that a client's does not wait long behind it.
	readMost = 1 << 20
	// readGap is how far apart what is read together may lie: a short gap costs less than another
	// command (S3).
	readGap = 32 << 10
)

// part is blocks of one piece within a read.
type part struct {
	at     int64 // address
	off    int64 // in the read
	sums   []uint32
	header bool // one block, a zone header
}

func (p *part) bytes() int64 {
	if p.header {
		return extent.BlockSize
	}
	return int64(len(p.sums)) * extent.BlockSize
}

// read is one read of the device: n bytes at off in the zone of slot.
type read struct {
	step  *step
	slot  uint32
	copy  int
	off   int64
	n     int64
	parts []part
}

// group makes the reads that cover the pieces, which do not overlap. Neighbours are read together,
// also over a short gap while no more than half of what is read is gaps; in the order given, which need
// not be that of the addresses, never across zones or copies, at most readMost bytes each.
func group(pieces []Piece, zoneSize int64, apart bool) (out []read) {
	live := int64(0) // in the last read
	most := int64(readGap)
	if apart {
		most = 0
	}
	for _, r := range pieces {
		p := part{at: r.At, sums: r.Sums, header: r.Header}
		for {
			slot, off := uint32(p.at/zoneSize), p.at%zoneSize
			room := min(int64(readMost), zoneSize-off)
			var last *read
			if n := len(out); n > 0 && out[n-1].slot == slot && out[n-1].copy == r.Copy {
				q := &out[n-1]
				gap := off - (q.off + q.n)
				if left := min(readMost-q.n-gap, zoneSize-off); gap >= 0 && gap <= most && left > 0 {
					if take := min(p.bytes(), left); q.n+gap+take <= 2*(live+take) {
						last, room, p.off = q, left, q.n+gap
					}
				}
			}
			head, rest := p.cut(room)
			if last == nil {
				head.off, live = 0, 0
				out = append(out, read{slot: slot, copy: r.Copy, off: off})
				last = &out[len(out)-1]
			}
			last.parts = append(last.parts, head)
			last.n = head.off + head.bytes()
			live += head.bytes()
			if rest == nil {
				break
			}
			p = *rest
		}
	}
	return out
}

// cut splits the part after at most n bytes, whole blocks.
func (p part) cut(n int64) (head part, rest *part) {
	if p.bytes() <= n {
		return p, nil
	}
	blocks := n / extent.BlockSize
	tail := part{at: p.at + blocks*extent.BlockSize, sums: p.sums[blocks:]}
	p.sums = p.sums[:blocks]
	return p, &tail
}
