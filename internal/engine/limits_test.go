package engine

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/store"
	"github.com/shingle-store/shingle/internal/zone"
)

// appendLimit is the append limit of the published system (seeds S0): no power of two, and no
// multiple of the chunk.
const appendLimit = 672 << 10

// stream is content of any length that differs from place to place: a payload of 1 MiB with the
// place stamped into its beginning.
type stream struct {
	payload []byte
	size    int64
}

func (s stream) at(off int64) []byte {
	binary.LittleEndian.PutUint64(s.payload, uint64(off))
	return s.payload[:min(int64(len(s.payload)), s.size-off)]
}

// write streams into the file with a sync every so many messages (0: none) and one at the end.
func (s stream) write(t testing.TB, e *Engine, name string, syncEvery int) {
	t.Helper()
	ctx := context.Background()
	w, err := e.OpenWriter(ctx, WriterOptions{Name: name})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	i := 0
	for off := int64(0); off < s.size; off += int64(len(s.payload)) {
		if err := w.Write(ctx, nil, [][]byte{s.at(off)}, nil); err != nil {
			t.Fatal(err)
		}
		if i++; syncEvery > 0 && i%syncEvery == 0 {
			if err := w.Sync(ctx); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Sync(ctx); err != nil {
		t.Fatal(err)
	}
}

// check reads all of it back.
func (s stream) check(t testing.TB, e *Engine, name string) {
	t.Helper()
	ctx := context.Background()
	r, err := e.OpenReader(ctx, ReadRequest{Ref: Ref{Name: name}})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	off := int64(0)
	var got []byte // of the message at off
	for {
		p, err := r.Next(ctx)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if p.Offset != off+int64(len(got)) {
			t.Fatalf("a piece at %d follows %d", p.Offset, off+int64(len(got)))
		}
		got = append(got, p.Data...)
		if want := s.at(off); len(got) >= len(want) {
			if !bytes.Equal(got, want) {
				t.Fatalf("the %d bytes at %d differ", len(got), off)
			}
			off, got = off+int64(len(got)), got[:0]
		}
	}
	if off != s.size {
		t.Errorf("%d bytes were read, want %d", off, s.size)
	}
}

// eachExtent walks the records.
func eachExtent(t testing.TB, e *Engine, fn func(store.Extent)) {
	t.Helper()
	err := e.st.View(func(tx *store.Tx) error {
		return tx.Extents(0, func(x store.Extent) bool {
			fn(x)
			return true
		})
	})
	if err != nil {
		t.Fatal(err)
	}
}

// checkExtents holds every record against the limit, and returns how many there are and how many
// zones they lie in.
func checkExtents(t testing.TB, e *Engine, limit int64) (n, zones int64) {
	t.Helper()
	seen := map[uint32]bool{}
	eachExtent(t, e, func(x store.Extent) {
		n++
		slot, off := e.split(x.Addr)
		seen[slot] = true
		size := x.Blocks * extent.BlockSize
		if size > limit || off+size > e.geo.ZoneCapacity || off < extent.BlockSize {
			t.Errorf("an extent of %d bytes at %d of block group %d; the limit is %d", size, off, slot, limit)
		}
		for _, f := range x.Frames {
			if int64(f.Raw) > min(limit, extent.MaxFrameSize) || f.Stored > f.Raw+extent.BlockSize {
				t.Errorf("a frame of %d bytes is stored in %d; the limit is %d", f.Raw, f.Stored, limit)
			}
		}
	})
	return n, int64(len(seen))
}

func wantCounters(t testing.TB, e *Engine, want map[string]uint64) {
	t.Helper()
	got := e.Counters()
	for name, n := range want {
		if got[name] != n {
			t.Errorf("%s is %d, want %d", name, got[name], n)
		}
	}
}

var limitZNS = zone.Geometry{
	Dialect: zone.ZNS, ZoneSize: 16 << 20, ZoneCapacity: 15 << 20, Zones: 40, MaxOpen: 6, MaxActive: 8, AppendLimit: appendLimit,
}

// TestCollectLarge is seeds S0 by its counts: ranges of 128 MiB, chunks of 512 KiB, extents of at
// most one append.
func TestCollectLarge(t *testing.T) {
	t.Parallel()
	size := int64(1 << 30)
	if testing.Short() {
		size = 128 << 20
	}
	codec := extent.CodecZstd
	b := newFaultBench(t, limitZNS, Options{Compression: &codec, DirtyLimit: 512 << 20, WritebackAge: time.Hour})
	e := b.open()
	s := stream{payload: bytes.Repeat(text(1, 4096), 256), size: size}
	s.write(t, e, "f", 0)
	wantCounters(t, e, map[string]uint64{
		"delalloc_largest_range": 128 << 20,
		"delalloc_ranges":        uint64(size / extent.MaxRangeSize),
		"chunks":                 uint64(size / extent.ChunkSize),
		"syncs":                  1,
	})
	checkExtents(t, e, appendLimit)
	n := int64(1 << 20)
	for off := int64(0); off < size; off += 31 * n {
		if got, err := tryRead(e, "f", off, &n); err != nil || !bytes.Equal(got, s.at(off)) {
			t.Errorf("the file differs at %d: %v", off, err)
		}
	}
	checkQuiet(t, e)
	b.checkLimits()
}

// TestCapAtAllocation writes incompressible data in every way there is. No way may lead to an
// extent larger than one append, and none to more extents than the limit makes necessary.
func TestCapAtAllocation(t *testing.T) {
	size := int64(48 << 20)
	if testing.Short() {
		size = 20 << 20
	}
	s := stream{payload: noise(1, 1<<20), size: size - 5*extent.BlockSize}
	for _, c := range []struct {
		name      string
		direct    bool
		syncEvery int
	}{{"delalloc", false, 0}, {"synced", false, 3}, {"nodelalloc", true, 0}, {"nodelalloc synced", true, 2}} {
		t.Run(c.name, func(t *testing.T) {
			b := newFaultBench(t, limitZNS, Options{NoDelalloc: c.direct, DirtyLimit: 256 << 20, WritebackAge: time.Hour})
			e := b.open()
			s.write(t, e, "f", c.syncEvery)
			n, zones := checkExtents(t, e, appendLimit)
			// A range of its own, and so a remainder of its own: the file, what lies between two
			// syncs, or a message.
			piece := s.size
			if c.syncEvery > 0 {
				piece = int64(c.syncEvery) << 20
			}
			if c.direct {
				piece = 1 << 20
			}
			most := zones
			for off := int64(0); off < s.size; off += piece {
				most += (min(piece, s.size-off) + appendLimit - 1) / appendLimit
			}
			if n > most {
				t.Errorf("there are %d extents in %d zones, want at most %d", n, zones, most)
			}
			if got := e.Counters()["extents"]; got != uint64(n) {
				t.Errorf("%d extents are counted and %d recorded", got, n)
			}
			want := map[string]uint64{"chunks": 0}
			if c.direct {
				want["delalloc_ranges"], want["delalloc_scans"], want["delalloc_largest_range"] = 0, 0, 0
			} else if c.syncEvery == 0 {
				want["delalloc_ranges"], want["delalloc_largest_range"] = 1, uint64(s.size)
			}
			wantCounters(t, e, want)
			s.check(t, e, "f")
			checkQuiet(t, e)
			e = b.reopen()
			s.check(t, e, "f")
			b.checkLimits()
		})
	}
}

// TestOddLimits stores on devices whose append limit divides nothing, or is one block.
func TestOddLimits(t *testing.T) {
	data := append(text(1, 700_000), noise(2, 500_001)...)
	for _, limit := range []int64{appendLimit, 126_976, 20 << 10, 4 << 10} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			modes(t, func(t *testing.T, o Options) {
				g := smallZNS
				g.AppendLimit = limit
				b := newFaultBench(t, g, o)
				e := b.open()
				if e.Info().MaxExtentSize != limit {
					t.Errorf("the largest extent is %d", e.Info().MaxExtentSize)
				}
				put(t, e, "put", data)
				if err := writeInSteps(e, "written", data, 99_999); err != nil {
					t.Fatal(err)
				}
				syncAll(t, e)
				n, zones := checkExtents(t, e, limit)
				if o.Compression == nil || *o.Compression == extent.CodecNone {
					if least := 2 * int64(len(data)) / limit; n < least || zones < 3 {
						t.Errorf("there are %d extents in %d zones", n, zones)
					}
				}
				checkQuiet(t, e)
				e = b.reopen()
				sameFile(t, e, "put", data)
				sameFile(t, e, "written", data)
				b.checkLimits()
			})
		})
	}
}
