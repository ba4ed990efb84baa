package compress

import (
	"bytes"
	"math/rand"
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/slab"
)

// aligned returns p in memory aligned to the block.
func aligned(p []byte) []byte {
	q := slab.Aligned(int64(len(p)))
	copy(q, p)
	return q
}

// check decodes r and compares it with what went in.
func check(t interface{ Fatalf(string, ...any) }, r ChunkResult, src []byte, frameSize int) {
	if len(r.Frames) != len(r.Data) {
		t.Fatalf("%d frames, %d pieces of data", len(r.Frames), len(r.Data))
	}
	var got []byte
	paying := 0
	for i, f := range r.Frames {
		d := r.Data[i]
		if int64(len(d)) != f.Blocks()*extent.BlockSize || !slab.IsAligned(d) {
			t.Fatalf("frame %d: %d bytes for %d stored, aligned %v", i, len(d), f.Stored, slab.IsAligned(d))
		}
		for _, b := range d[f.Stored:] {
			if b != 0 {
				t.Fatalf("frame %d: padding is not zero", i)
			}
		}
		if int(f.Raw) != frameSize && i != len(r.Frames)-1 {
			t.Fatalf("frame %d holds %d bytes", i, f.Raw)
		}
		if f.Codec != extent.CodecNone {
			paying++
			if f.Blocks() >= extent.BlocksFor(int64(f.Raw)) {
				t.Fatalf("frame %d saves nothing", i)
			}
		}
		raw := make([]byte, f.Raw)
		if err := shared.Decode(raw, f, d); err != nil {
			t.Fatalf("frame %d: %v", i, err)
		}
		got = append(got, raw...)
	}
	if paying == 0 {
		t.Fatalf("no frame pays and the result is not AllRaw")
	}
	if !bytes.Equal(got, src) {
		t.Fatalf("the frames do not decode to the source")
	}
}

func TestChunkRoundTrip(t *testing.T) {
	scratch := NewChunkBuf()
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.OneOf(rapid.IntRange(1, extent.ChunkSize), rapid.SampledFrom([]int{
			1, 4096, 4097, 128 << 10, extent.ChunkSize - 1, extent.ChunkSize})).Draw(t, "n")
		src := aligned(mixed(rapid.Int64().Draw(t, "seed"), n))
		var in [][]byte
		for rest := src; len(rest) > 0; {
			k := min(len(rest), rapid.IntRange(0, 40).Draw(t, "piece")*extent.BlockSize)
			in, rest = append(in, rest[:k:k]), rest[k:]
		}
		frameSize := rapid.SampledFrom([]int{4096, 8192, 126976, 128 << 10}).Draw(t, "frame")
		before := bytes.Clone(src)
		r, err := shared.Chunk(in, frameSize, extent.CodecZstd, scratch)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(before, src) {
			t.Fatal("the source was written to")
		}
		if r.AllRaw {
			if r.Frames != nil || r.Data != nil {
				t.Fatal("AllRaw with frames")
			}
			for i := 0; i < n; i += frameSize {
				if _, used, _ := shared.Frame(nil, src[i:min(n, i+frameSize)], extent.CodecZstd); used != extent.CodecNone {
					t.Fatalf("AllRaw, but the frame at %d pays", i)
				}
			}
			return
		}
		check(t, r, src, frameSize)
	})
}

func TestChunkRawFramesAlias(t *testing.T) {
	src := aligned(append(text(1, 128<<10), noise(2, 256<<10)...))
	scratch := NewChunkBuf()
	r, err := shared.Chunk([][]byte{src}, 128<<10, extent.CodecZstd, scratch)
	if err != nil || r.AllRaw {
		t.Fatal(err, r.AllRaw)
	}
	check(t, r, src, 128<<10)
	if &r.Data[1][0] != &src[128<<10] || &r.Data[2][0] != &src[256<<10] {
		t.Error("a raw frame in one aligned piece was copied")
	}
	// Cut in the middle of a frame it has to be gathered, and twice in one chunk.
	r, err = shared.Chunk([][]byte{src[:200<<10], src[200<<10 : 300<<10], src[300<<10:]}, 128<<10, extent.CodecZstd, scratch)
	if err != nil {
		t.Fatal(err)
	}
	check(t, r, src, 128<<10)
	if &r.Data[1][0] == &r.Data[2][0] {
		t.Error("two gathered frames share memory")
	}
}

func TestChunkRefusals(t *testing.T) {
	scratch := NewChunkBuf()
	for _, tc := range []struct {
		name  string
		n     int
		frame int
		codec extent.Codec
		want  errdefs.Kind
	}{
		{"empty", 0, 4096, extent.CodecZstd, errdefs.InvalidArgument},
		{"too long", extent.ChunkSize + 1, 4096, extent.CodecZstd, errdefs.InvalidArgument},
		{"no frame size", 4096, 0, extent.CodecZstd, errdefs.InvalidArgument},
		{"frame too large", 4096, 132 << 10, extent.CodecZstd, errdefs.InvalidArgument},
		{"odd frame", 4096, 5000, extent.CodecZstd, errdefs.InvalidArgument},
		{"codec", 4096, 4096, extent.CodecS2, errdefs.Precondition},
	} {
		if _, err := shared.Chunk([][]byte{make([]byte, tc.n)}, tc.frame, tc.codec, scratch); !errdefs.Is(err, tc.want) {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
	if r, err := shared.Chunk([][]byte{text(1, 100000)}, 128<<10, extent.CodecNone, scratch); err != nil || !r.AllRaw {
		t.Errorf("compression off: %v %v", r.AllRaw, err)
	}
}

// onWorker reports a failure without ending the goroutine, which is not the test's.
type onWorker struct{ *testing.T }

func (t onWorker) Fatalf(format string, args ...any) { t.Errorf(format, args...) }

func TestPoolRunsEverythingBounded(t *testing.T) {
	for _, workers := range []int{0, 1, 3} {
		p := NewPool(workers)
		var running, peak, done atomic.Int64
		var mu sync.Mutex
		held := map[*ChunkBuf]bool{}
		for i := range 60 {
			src := mixed(int64(i), 64<<10)
			p.Go(func(scratch *ChunkBuf) {
				mu.Lock()
				peak.Store(max(peak.Load(), running.Add(1)))
				if held[scratch] {
					t.Error("scratch memory in use twice")
				}
				held[scratch] = true
				mu.Unlock()
				r, err := shared.Chunk([][]byte{src}, 16<<10, extent.CodecZstd, scratch)
				if err != nil {
					t.Error(err)
				} else if !r.AllRaw {
					check(onWorker{t}, r, src, 16<<10)
				}
				mu.Lock()
				held[scratch] = false
				mu.Unlock()
				running.Add(-1)
				done.Add(1)
			})
		}
		p.Close()
		if done.Load() != 60 {
			t.Errorf("%d of 60 done at Close", done.Load())
		}
		if peak.Load() > int64(max(1, workers)) {
			t.Errorf("%d at once with %d workers", peak.Load(), workers)
		}
	}
}

func BenchmarkChunk(b *testing.B) {
	scratch := NewChunkBuf()
	src := aligned(text(1, extent.ChunkSize))
	rand.New(rand.NewSource(1)).Read(src[:128<<10])
	b.SetBytes(int64(len(src)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := shared.Chunk([][]byte{src}, 128<<10, extent.CodecZstd, scratch); err != nil {
			b.Fatal(err)
		}
	}
}
