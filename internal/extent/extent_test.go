package extent

import "testing"

func TestMaxExtentSize(t *testing.T) {
	for _, c := range []struct{ limit, capacity, want int64 }{
		{0, 1 << 30, 128 << 20},
		{0, 64 << 20, 64 << 20},
		{672 << 10, 1 << 30, 672 << 10},
		{126976, 1 << 30, 126976},
		{131073, 1 << 30, 131072},
		{4095, 1 << 30, 0},
		{1 << 30, 1 << 30, 128 << 20},
		{0, 5000, 4096},
	} {
		if got := MaxExtentSize(c.limit, c.capacity); got != c.want {
			t.Errorf("MaxExtentSize(%d, %d) = %d, want %d", c.limit, c.capacity, got, c.want)
		}
	}
	if FrameSize(126976) != 126976 || FrameSize(672<<10) != 128<<10 {
		t.Error("a frame must fit an extent and never pass 128 KiB")
	}
}

func TestRounding(t *testing.T) {
	for _, c := range []struct{ n, blocks, down int64 }{
		{0, 0, 0}, {1, 1, 0}, {4095, 1, 0}, {4096, 1, 4096}, {4097, 2, 4096},
	} {
		if got := BlocksFor(c.n); got != c.blocks {
			t.Errorf("BlocksFor(%d) = %d, want %d", c.n, got, c.blocks)
		}
		if got := RoundUp(c.n); got != c.blocks*BlockSize {
			t.Errorf("RoundUp(%d) = %d", c.n, got)
		}
		if got := RoundDown(c.n); got != c.down {
			t.Errorf("RoundDown(%d) = %d, want %d", c.n, got, c.down)
		}
	}
	if (Frame{Raw: 131072, Stored: 4097}).Blocks() != 2 {
		t.Error("a frame of 4097 stored bytes takes two blocks")
	}
}

func TestRange(t *testing.T) {
	r := Range{10, 20}
	if r.Len() != 10 || (Range{5, 3}).Len() != 0 {
		t.Error("length")
	}
	if got := r.Intersect(Range{15, 30}); got != (Range{15, 20}) {
		t.Errorf("intersect: %v", got)
	}
	if r.Intersect(Range{20, 30}).Len() != 0 {
		t.Error("half-open ranges that touch do not overlap")
	}
}

func TestCodecNames(t *testing.T) {
	for c, want := range map[Codec]string{CodecNone: "none", CodecZstd: "zstd", CodecS2: "s2", CodecLZ4: "lz4", 9: "codec(9)"} {
		if c.String() != want {
			t.Errorf("%d: %q", c, c.String())
		}
	}
}
