package zone

import (
	"sync"

	"github.com/shingle-store/shingle/internal/extent"
)

// segmentSize is the unit in which a memory device takes memory for a zone.
const segmentSize = 256 << 10

// settled is a state of a zone that is, or could become, what is on media.
type settled struct {
	data     int64
	finished bool
	cond     Condition
}

// memZone is the content of one zone. segs may be replaced by whoever holds io alone.
type memZone struct {
	io sync.RWMutex

	table sync.Mutex // guards the entries of segs between writers that share io
	segs  [][]byte   // nil: nothing written there yet

	// base is what the flushed zone held when an unflushed reset displaced it: until the
	// next flush the reset may turn out not to have happened. Held with io.
	base *displaced
	// undo holds, for a conventional zone, the flushed content of blocks overwritten since;
	// it is nil until the first write. Held with io.
	undo map[int64][]byte

	// Guarded by Mem.mu.
	durable settled // as of the last flush
	dirty   bool    // changed since
}

type displaced struct {
	segs [][]byte
	settled
}

// segmentPool hands out segments and keeps those of reset zones for later.
type segmentPool struct {
	size int64
	mu   sync.Mutex
	free [][]byte
}

// get returns a segment. Only a zeroed one is free of old data.
func (p *segmentPool) get(zeroed bool) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.free); n > 0 && !zeroed {
		s := p.free[n-1]
		p.free[n-1] = nil
		p.free = p.free[:n-1]
		return s
	}
	return make([]byte, p.size)
}

func (p *segmentPool) put(segs [][]byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range segs {
		if s != nil {
			p.free = append(p.free, s)
		}
	}
}

// segment returns the segment with index i, made if it is not there. io is shared.
func (z *memZone) segment(p *segmentPool, i int64, zeroed bool) []byte {
	z.table.Lock()
	defer z.table.Unlock()
	for int64(len(z.segs)) <= i {
		z.segs = append(z.segs, nil)
	}
	if z.segs[i] == nil {
		z.segs[i] = p.get(zeroed)
	}
	return z.segs[i]
}

// write copies bufs to off. The caller has io and owns the range.
func (z *memZone) write(p *segmentPool, off int64, bufs [][]byte) {
	zeroed := z.undo != nil
	for _, b := range bufs {
		for len(b) > 0 {
			s := z.segment(p, off/p.size, zeroed)
			n := copy(s[off%p.size:], b)
			b, off = b[n:], off+int64(n)
		}
	}
}

// read copies from off to p; what has no segment reads as zeros. The caller has io.
func (z *memZone) read(size, off int64, p []byte) {
	for len(p) > 0 {
		n := min(int64(len(p)), size-off%size)
		z.table.Lock()
		var s []byte
		if i := off / size; i < int64(len(z.segs)) {
			s = z.segs[i]
		}
		z.table.Unlock()
		if s == nil {
			clear(p[:n])
		} else {
			copy(p[:n], s[off%size:])
		}
		p, off = p[n:], off+n
	}
}

// saveOld keeps the flushed content of blocks of a conventional zone that are about to be
// overwritten for the first time since the flush. The caller has io alone.
func (z *memZone) saveOld(p *segmentPool, off, n int64) {
	if z.undo == nil {
		z.undo = map[int64][]byte{}
	}
	for b := off / extent.BlockSize; b < (off+n)/extent.BlockSize; b++ {
		if _, ok := z.undo[b]; !ok {
			old := make([]byte, extent.BlockSize)
			z.read(p.size, b*extent.BlockSize, old)
			z.undo[b] = old
		}
	}
}

// displace empties the zone for a reset. The first content displaced since a flush is kept,
// for the reset may be lost; what came and went between two flushes cannot come back. The
// caller has io alone and Mem.mu.
func (z *memZone) displace(p *segmentPool, was settled) {
	if z.base == nil {
		z.base = &displaced{segs: z.segs, settled: was}
	} else {
		p.put(z.segs)
	}
	z.segs = nil
}

// settle makes the present state the durable one. The caller has io alone and Mem.mu.
func (z *memZone) settle(p *segmentPool, now settled) {
	if z.base != nil {
		p.put(z.base.segs)
		z.base = nil
	}
	clear(z.undo)
	z.durable, z.dirty = now, false
}
