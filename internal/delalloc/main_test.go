package delalloc

import (
	"bytes"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/shingle-store/shingle/internal/csum"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/slab"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const block = extent.BlockSize

// epoch is when the tests' clock starts; second n is n seconds later.
var epoch = time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)

func second(n int) time.Time { return epoch.Add(time.Duration(n) * time.Second) }

// segment makes a segment of whole blocks filled with fill.
func segment(a *slab.Arena, off, blocks int64, fill byte, seq uint64, since time.Time) Segment {
	b, ok := a.Alloc(blocks * block)
	if !ok {
		panic("test arena too small")
	}
	copy(b.Bytes(), bytes.Repeat([]byte{fill}, int(blocks*block)))
	return Segment{Off: off, Buf: b, Sums: csum.Blocks(nil, b.Bytes()), Seq: seq, Since: since}
}

// bare makes a segment whose content does not matter, of memory that nobody counts.
func bare(off, blocks int64, seq uint64) Segment {
	return Segment{Off: off, Buf: slab.Heap(blocks * block), Sums: make([]uint32, blocks), Seq: seq, Since: second(int(seq))}
}

func mustPanic(t *testing.T, what string, f func()) {
	t.Helper()
	defer func() {
		if recover() == nil {
			t.Errorf("%s must panic", what)
		}
	}()
	f()
}
