package engine

import (
	"context"
	"fmt"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/store"
	"github.com/shingle-store/shingle/internal/zone/array"
)

// MapKind is what a range of a file is.
type MapKind uint8

// The kinds of ranges.
const (
	MapData   MapKind = iota + 1 // in blocks of the device
	MapHole                      // nothing; reads as zeros
	MapInline                    // in the file's record
	MapDirty                     // received and not durable yet
)

// MapExtent is a range of a file that lies in one piece.
type MapExtent struct {
	Offset, Length int64 // bytes of the file
	Kind           MapKind
	// Of data: the block, or compressed frame, that holds the first byte, and the bytes of
	// content in it before that one.
	Address extent.Addr
	Places  []array.Place // one a copy
	ZoneOff int64         // bytes from the zone's start, the same in each
	Skip    int64
	// Stored is the bytes of the whole blocks or frames that hold data; of inline data all
	// bytes of it in the record.
	Stored int64
	Codec  extent.Codec // of data and inline data
	// Shared: something else refers to some of these blocks or frames too. True also where
	// finding out would take long.
	Shared bool
}

const (
	// maxMapped is the most extents of one Map.
	maxMapped = 1000
	// mapSearch is how many back-references one Map may read to tell what is shared: some tens of
	// milliseconds, in a transaction that keeps pages from being used again.
	mapSearch = 64 << 10
)

// Map says where a file lies from off on: at most limit extents (0, or more than 1000: 1000) that
// follow each other without gaps up to next, which is -1 at the end of the file. What is received
// while it looks may show or not.
// Errors: NotFound, InvalidArgument, Precondition / NOT_A_FILE, Corruption, the context's.
func (e *Engine) Map(ctx context.Context, r Ref, off int64, limit int) (info File, list []MapExtent, next int64, err error) {
	if off < 0 {
		return File{}, nil, 0, errdefs.Invalid("engine.Map", "offset", "offset must not be negative")
	}
	if limit <= 0 || limit > maxMapped {
		limit = maxMapped
	}
	f, err := e.openRef(r)
	if err != nil {
		return File{}, nil, 0, err
	}
	defer e.release(f)
	if err := f.cut.Acquire(ctx, 1); err != nil {
		return File{}, nil, 0, err
	}
	defer f.cut.Release(1)
	f.mu.Lock()
	m := mapping{e: e, id: f.id, size: f.mu.size, dirty: f.dirtyFromLocked(off, limit+1)}
	f.mu.Unlock()
	// Memory before metadata, as in a read: what commits between the two shows as dirty.
	err = e.st.View(func(tx *store.Tx) error {
		n, err := tx.Node(f.id)
		if err != nil {
			return err
		}
		if n.Parent == 0 {
			return errdefs.New(errdefs.NotFound, "", "engine.Map", fmt.Sprintf("file #%d", f.id), "has no name")
		}
		name, err := tx.Path(f.id)
		if err != nil {
			return err
		}
		info, m.inline, m.budget, list = e.fileOf(n, name), n.Inline, mapSearch, nil
		at := off
		for at < m.size && len(list) < limit {
			x, err := m.extent(tx, at)
			if err != nil {
				return err
			}
			list = append(list, x)
			at += x.Length
		}
		next = at
		return nil
	})
	if next >= m.size {
		next = -1
	}
	return info, list, next, err
}

// dirtyFromLocked returns up to n ranges of the file, from off on, of which memory has what is not
// durable. They do not touch. The caller holds f.mu.
func (f *file) dirtyFromLocked(off int64, n int) (out intervals) {
	for len(out) < n {
		start, end, ok := f.pending.Next(off)
		if s, e, also := f.dirty.Next(off); also && (!ok || s < start) {
			start, end, ok = s, e, true
		}
		if !ok {
			break
		}
		if last := len(out) - 1; last >= 0 && out[last].End == start {
			out[last].End = end
		} else {
			out = append(out, extent.Range{Off: start, End: end})
		}
		off = end
	}
	return out
}

// mapping is what one Map looks at.
type mapping struct {
	e      *Engine
	id     uint64
	size   int64
	dirty  intervals // of the file, those that end before what was mapped already taken out
	inline *store.Inline
	budget int
}

// extent describes what lies at the file offset at, below the size.
func (m *mapping) extent(tx *store.Tx, at int64) (MapExtent, error) {
	x := MapExtent{Offset: at}
	for len(m.dirty) > 0 && m.dirty[0].End <= at {
		m.dirty = m.dirty[1:]
	}
	end := m.size
	if len(m.dirty) > 0 {
		if d := m.dirty[0]; d.Off <= at {
			x.Kind, x.Length = MapDirty, min(d.End, end)-at
			return x, nil
		}
		end = min(end, m.dirty[0].Off)
	}
	if in := m.inline; in != nil && at < in.RawLen {
		x.Kind, x.Length, x.Stored, x.Codec = MapInline, min(end, in.RawLen)-at, int64(len(in.Data)), in.Codec
		return x, nil
	}
	p, ok, err := tx.Mapped(m.id, at, end, &m.budget)
	if err != nil {
		return x, err
	}
	if !ok || p.Off > at {
		if ok {
			end = p.Off
		}
		x.Kind, x.Length = MapHole, end-at
		return x, nil
	}
	slot, off := m.e.split(p.Addr)
	return MapExtent{
		Offset: at, Length: p.Len, Kind: MapData, Address: p.Addr, Places: m.e.dev.Places(int(slot)), ZoneOff: off,
		Skip: p.Skip, Stored: p.Stored, Codec: p.Codec, Shared: p.Shared,
	}, nil
}
