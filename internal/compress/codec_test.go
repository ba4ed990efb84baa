package compress

import (
	"bytes"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"pgregory.net/rapid"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
)

func TestFrameDecision(t *testing.T) {
	c := New()
	const frame = extent.MaxFrameSize
	// 31 blocks of noise and one of zeros save a block only just, or just not.
	almost := append(noise(1, frame-extent.BlockSize), make([]byte, extent.BlockSize)...)
	for _, tc := range []struct {
		name  string
		src   []byte
		codec extent.Codec
		want  extent.Codec
	}{
		{"text", text(1, frame), extent.CodecZstd, extent.CodecZstd},
		{"zeros", make([]byte, frame), extent.CodecZstd, extent.CodecZstd},
		{"noise", noise(2, frame), extent.CodecZstd, extent.CodecNone},
		{"text, compression off", text(1, frame), extent.CodecNone, extent.CodecNone},
		{"one block cannot save one", make([]byte, 4096), extent.CodecZstd, extent.CodecNone},
		{"one byte", []byte{1}, extent.CodecZstd, extent.CodecNone},
		{"a byte more than a block", make([]byte, 4097), extent.CodecZstd, extent.CodecZstd},
		{"a block saved on paper, the header eats it", almost, extent.CodecZstd, extent.CodecNone},
		{"two blocks of zeros after noise", append(almost[4096:], make([]byte, 4096)...), extent.CodecZstd, extent.CodecZstd},
	} {
		dst := make([]byte, 0, len(tc.src)+FrameSlack)
		out, used, err := c.Frame(dst, tc.src, tc.codec)
		if err != nil || used != tc.want {
			t.Errorf("%s: used %v, %v, want %v", tc.name, used, err, tc.want)
			continue
		}
		if used == extent.CodecNone && (len(out) != len(tc.src) || &out[0] != &tc.src[0]) {
			t.Errorf("%s: a raw frame must be the source itself", tc.name)
		}
		if used != extent.CodecNone {
			if &out[0] != &dst[:1][0] {
				t.Errorf("%s: room given and not used", tc.name)
			}
			if extent.BlocksFor(int64(len(out))) >= extent.BlocksFor(int64(len(tc.src))) {
				t.Errorf("%s: no block saved", tc.name)
			}
		}
		got := make([]byte, len(tc.src))
		f := extent.Frame{Raw: uint32(len(tc.src)), Stored: uint32(len(out)), Codec: used}
		if err := c.Decode(got, f, out); err != nil || !bytes.Equal(got, tc.src) {
			t.Errorf("%s: decoding: %v", tc.name, err)
		}
	}
}

func TestFrameRefusals(t *testing.T) {
	c := New()
	for _, tc := range []struct {
		n     int
		codec extent.Codec
		want  errdefs.Kind
	}{
		{0, extent.CodecZstd, errdefs.InvalidArgument},
		{extent.MaxFrameSize + 1, extent.CodecZstd, errdefs.InvalidArgument},
		{10, extent.CodecS2, errdefs.Precondition},
		{10, extent.Codec(77), errdefs.Precondition},
	} {
		if _, _, err := c.Frame(nil, make([]byte, tc.n), tc.codec); !errdefs.Is(err, tc.want) {
			t.Errorf("%d bytes with %v: %v, want %v", tc.n, tc.codec, err, tc.want)
		}
	}
	if err := Check(extent.CodecLZ4); errdefs.ReasonOf(err) != errdefs.ReasonUnknownFeature || !strings.Contains(err.Error(), "lz4") {
		t.Errorf("an unknown codec must be named: %v", err)
	}
	if Check(extent.CodecNone) != nil || Check(extent.CodecZstd) != nil {
		t.Error("known codecs refused")
	}
}

func TestDecodeRefusals(t *testing.T) {
	c := New()
	src := text(3, 50000)
	packed, _, _ := c.Frame(nil, src, extent.CodecZstd)
	n := uint32(len(packed))
	// Larger than any frame, and honest about it: allocating for it would be the bug.
	big, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	if err != nil {
		t.Fatal(err)
	}
	bomb := big.EncodeAll(make([]byte, 64<<20), nil)
	for _, tc := range []struct {
		name string
		f    extent.Frame
		src  []byte
		room int
		want errdefs.Kind
	}{
		{"raw 0", extent.Frame{Raw: 0, Stored: n, Codec: 1}, packed, 50000, errdefs.Corruption},
		{"raw past a frame", extent.Frame{Raw: extent.MaxFrameSize + 1, Stored: n, Codec: 1}, packed, 1 << 20, errdefs.Corruption},
		{"raw too small", extent.Frame{Raw: 49999, Stored: n, Codec: 1}, packed, 50000, errdefs.Corruption},
		{"raw too large", extent.Frame{Raw: 50001, Stored: n, Codec: 1}, packed, 60000, errdefs.Corruption},
		{"stored 0", extent.Frame{Raw: 50000, Stored: 0, Codec: 1}, packed, 50000, errdefs.Corruption},
		{"stored cut", extent.Frame{Raw: 50000, Stored: n - 1, Codec: 1}, packed, 50000, errdefs.Corruption},
		{"source cut", extent.Frame{Raw: 50000, Stored: n, Codec: 1}, packed[:n-1], 50000, errdefs.Corruption},
		{"padding taken for data", extent.Frame{Raw: 50000, Stored: n + 4, Codec: 1}, append(bytes.Clone(packed), 0, 0, 0, 0), 50000, errdefs.Corruption},
		{"no zstd", extent.Frame{Raw: 50000, Stored: n, Codec: 1}, src, 50000, errdefs.Corruption},
		{"bomb", extent.Frame{Raw: 50000, Stored: uint32(len(bomb)), Codec: 1}, bomb, 50000, errdefs.Corruption},
		{"raw codec, lengths differ", extent.Frame{Raw: 100, Stored: 99, Codec: 0}, src, 100, errdefs.Corruption},
		{"room too small", extent.Frame{Raw: 50000, Stored: n, Codec: 1}, packed, 49999, errdefs.InvalidArgument},
		{"codec s2", extent.Frame{Raw: 50000, Stored: n, Codec: 2}, packed, 50000, errdefs.Precondition},
	} {
		dst := bytes.Repeat([]byte{0xee}, tc.room+100)
		if err := c.Decode(dst[:tc.room], tc.f, tc.src); !errdefs.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", tc.name, err, tc.want)
		}
		if !bytes.Equal(dst[tc.room:], bytes.Repeat([]byte{0xee}, 100)) {
			t.Errorf("%s: wrote past the room", tc.name)
		}
	}
	dst := make([]byte, 50000)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	const tries = 20
	for range tries {
		_ = c.Decode(dst, extent.Frame{Raw: 50000, Stored: uint32(len(bomb)), Codec: 1}, bomb)
	}
	runtime.ReadMemStats(&after)
	if n := (after.TotalAlloc - before.TotalAlloc) / tries; n > extent.MaxFrameSize {
		t.Errorf("a false header made the decoder allocate %d bytes", n)
	}
}

// The best of several runs, since the machine may be busy.
func TestNoiseIsCheap(t *testing.T) {
	dst := make([]byte, 0, extent.MaxFrameSize+FrameSlack)
	best := func(src []byte) time.Duration {
		least := time.Hour
		for range 20 {
			start := time.Now()
			_, _, _ = shared.Frame(dst, src, extent.CodecZstd)
			least = min(least, time.Since(start))
		}
		return least
	}
	words, random := best(text(1, extent.MaxFrameSize)), best(noise(1, extent.MaxFrameSize))
	if random*100 > words*15 {
		t.Errorf("a frame of noise takes %v, one of text %v", random, words)
	}
}

func TestDecodeIgnoresPadding(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := shared
		src := mixed(rapid.Int64().Draw(t, "seed"), rapid.IntRange(1, extent.MaxFrameSize).Draw(t, "n"))
		out, used, err := c.Frame(nil, src, extent.CodecZstd)
		if err != nil {
			t.Fatal(err)
		}
		padded := make([]byte, extent.RoundUp(int64(len(out))))
		copy(padded, out)
		dst := make([]byte, len(src)+1)
		dst[len(src)] = 0xee
		f := extent.Frame{Raw: uint32(len(src)), Stored: uint32(len(out)), Codec: used}
		if err := c.Decode(dst, f, padded); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(dst[:len(src)], src) || dst[len(src)] != 0xee {
			t.Fatal("wrong bytes")
		}
	})
}

var shared = New()

func TestInline(t *testing.T) {
	for _, tc := range []struct {
		name  string
		src   []byte
		codec extent.Codec
		used  extent.Codec
		ok    bool
	}{
		{"nothing", nil, extent.CodecZstd, 0, false},
		{"tiny", []byte("a"), extent.CodecZstd, extent.CodecNone, true},
		{"short text", text(1, 1500), extent.CodecZstd, extent.CodecZstd, true},
		{"short text, compression off", text(1, 1500), extent.CodecNone, extent.CodecNone, true},
		{"noise that fits", noise(1, extent.MaxInlineSize), extent.CodecZstd, extent.CodecNone, true},
		{"noise, a byte too long", noise(1, extent.MaxInlineSize+1), extent.CodecZstd, 0, false},
		{"text that fits once packed", text(1, 3000), extent.CodecZstd, extent.CodecZstd, true},
		{"the same, compression off", text(1, 3000), extent.CodecNone, 0, false},
		{"text that does not fit", text(1, 20000), extent.CodecZstd, 0, false},
		{"a frame of zeros", make([]byte, extent.MaxFrameSize), extent.CodecZstd, extent.CodecZstd, true},
		{"more than a frame", make([]byte, extent.MaxFrameSize+1), extent.CodecZstd, 0, false},
		{"unknown codec", text(1, 100), extent.CodecLZ4, 0, false},
	} {
		stored, used, ok := shared.Inline(tc.src, tc.codec, extent.MaxInlineSize)
		if ok != tc.ok || used != tc.used {
			t.Errorf("%s: %v %v, want %v %v", tc.name, used, ok, tc.used, tc.ok)
			continue
		}
		if !ok {
			continue
		}
		if len(stored) > extent.MaxInlineSize {
			t.Errorf("%s: %d bytes stored", tc.name, len(stored))
		}
		got := make([]byte, len(tc.src))
		f := extent.Frame{Raw: uint32(len(tc.src)), Stored: uint32(len(stored)), Codec: used}
		if err := shared.Decode(got, f, stored); err != nil || !bytes.Equal(got, tc.src) {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
}

func FuzzDecode(f *testing.F) {
	packed, _, _ := shared.Frame(nil, text(1, 9000), extent.CodecZstd)
	f.Add(uint32(9000), uint32(len(packed)), uint8(1), packed)
	f.Add(uint32(5), uint32(5), uint8(0), []byte("hello"))
	f.Add(uint32(131072), uint32(4), uint8(1), []byte{0x28, 0xb5, 0x2f, 0xfd})
	f.Fuzz(func(t *testing.T, raw, stored uint32, codec uint8, src []byte) {
		const guard = 64
		dst := bytes.Repeat([]byte{0xee}, int(raw%(extent.MaxFrameSize+2))+guard)
		room := len(dst) - guard
		err := shared.Decode(dst[:room], extent.Frame{Raw: raw, Stored: stored, Codec: extent.Codec(codec)}, src)
		if err != nil && errdefs.KindOf(err) == errdefs.Internal {
			t.Fatalf("unclassified: %v", err)
		}
		for _, b := range dst[room:] {
			if b != 0xee {
				t.Fatal("wrote past the room")
			}
		}
	})
}

func BenchmarkFrame(b *testing.B) {
	for _, c := range []struct {
		name string
		src  []byte
	}{{"text", text(1, extent.MaxFrameSize)}, {"noise", noise(1, extent.MaxFrameSize)}} {
		b.Run(c.name, func(b *testing.B) {
			dst := make([]byte, 0, len(c.src)+FrameSlack)
			b.SetBytes(int64(len(c.src)))
			b.ReportAllocs()
			for b.Loop() {
				out, _, _ := shared.Frame(dst, c.src, extent.CodecZstd)
				b.ReportMetric(float64(len(out))/float64(len(c.src)), "stored/raw")
			}
		})
	}
}
