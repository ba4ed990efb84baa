package csum

import (
	"bytes"
	"hash/crc32"
	"math"
	"math/rand"
	"testing"

	"pgregory.net/rapid"

	"github.com/shingle-store/shingle/internal/extent"
)

func TestKnownSums(t *testing.T) {
	// RFC 3720, appendix B.4.
	ascending := make([]byte, 32)
	for i := range ascending {
		ascending[i] = byte(i)
	}
	for _, c := range []struct {
		name string
		p    []byte
		want uint32
	}{
		{"nothing", nil, 0},
		{"check word", []byte("123456789"), 0xe3069283},
		{"32 zeros", make([]byte, 32), 0x8a9136aa},
		{"32 ones", bytes.Repeat([]byte{0xff}, 32), 0x62a8ab43},
		{"ascending", ascending, 0x46dd794e},
	} {
		if got := Sum(c.p); got != c.want {
			t.Errorf("%s: %#x, want %#x", c.name, got, c.want)
		}
	}
}

func TestUpdateIsConcatenation(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := rapid.SliceOf(rapid.Byte()).Draw(t, "a")
		b := rapid.SliceOf(rapid.Byte()).Draw(t, "b")
		if Update(Sum(a), b) != Sum(append(bytes.Clone(a), b...)) {
			t.Fatal("Update is not the sum of both")
		}
	})
}

func TestCombineIsConcatenation(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := rapid.SliceOf(rapid.Byte()).Draw(t, "a")
		n := rapid.OneOf(rapid.IntRange(0, 300), rapid.IntRange(0, 20000),
			rapid.SampledFrom([]int{4095, extent.BlockSize, 4097, 8192})).Draw(t, "n")
		b := make([]byte, n)
		rand.New(rand.NewSource(rapid.Int64().Draw(t, "seed"))).Read(b)
		if got, want := Combine(Sum(a), Sum(b), int64(n)), Sum(append(bytes.Clone(a), b...)); got != want {
			t.Fatalf("Combine over %d bytes: %#x, want %#x", n, got, want)
		}
	})
}

// Lengths that no test can hold in memory must agree with themselves: appending m and then n
// bytes is appending m+n.
func TestCombineOfHugeLengths(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		crc := rapid.Uint32().Draw(t, "crc")
		m := rapid.Int64Range(0, math.MaxInt64/2).Draw(t, "m")
		n := rapid.Int64Range(0, math.MaxInt64/2).Draw(t, "n")
		if Combine(Combine(crc, 0, m), 0, n) != Combine(crc, 0, m+n) {
			t.Fatal("appending twice differs from appending once")
		}
	})
	// A length past 4 GiB against the plain way, in steps of 1 MiB.
	if testing.Short() {
		return
	}
	zero := make([]byte, 1<<20)
	crc := Sum([]byte("a"))
	want, n := crc, int64(0)
	for range 4100 {
		want = Update(want, zero)
		n += int64(len(zero))
	}
	zerosSum := uint32(0)
	for range 4100 {
		zerosSum = Combine(zerosSum, Sum(zero), int64(len(zero)))
	}
	if got := Combine(crc, zerosSum, n); got != want {
		t.Fatalf("over %d bytes: %#x, want %#x", n, got, want)
	}
}

func TestCombineBlockEqualsGeneralWay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := rapid.Uint32().Draw(t, "a"), rapid.Uint32().Draw(t, "b")
		if Combine(a, b, extent.BlockSize) != multiply(shift(extent.BlockSize), a)^b {
			t.Fatal("the table disagrees with the multiplication")
		}
	})
}

func TestBlocks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.OneOf(rapid.IntRange(0, 5*extent.BlockSize),
			rapid.SampledFrom([]int{0, 1, 4095, 4096, 4097, 8192})).Draw(t, "n")
		p := make([]byte, n)
		rand.New(rand.NewSource(int64(n))).Read(p)
		got := Blocks([]uint32{7}, p)
		if got[0] != 7 {
			t.Fatal("what dst held is lost")
		}
		got = got[1:]
		if int64(len(got)) != extent.BlocksFor(int64(n)) {
			t.Fatalf("%d sums for %d bytes", len(got), n)
		}
		padded := make([]byte, extent.RoundUp(int64(n)))
		copy(padded, p)
		whole := uint32(0)
		for i, sum := range got {
			block := padded[i*extent.BlockSize:][:extent.BlockSize]
			if sum != crc32.Checksum(block, crc32.MakeTable(crc32.Castagnoli)) {
				t.Fatalf("block %d of %d bytes", i, n)
			}
			whole = Combine(whole, sum, extent.BlockSize)
		}
		if whole != Sum(padded) {
			t.Fatal("the block sums do not combine to the sum of the whole")
		}
	})
}

func BenchmarkCombineBlock(b *testing.B) {
	crc := uint32(1)
	for b.Loop() {
		crc = Combine(crc, 0x12345678, extent.BlockSize)
	}
	_ = crc
}

func BenchmarkCombineAny(b *testing.B) {
	crc := uint32(1)
	for b.Loop() {
		crc = Combine(crc, 0x12345678, 123457)
	}
	_ = crc
}

func BenchmarkBlocks(b *testing.B) {
	p := make([]byte, 1<<20)
	dst := make([]uint32, 0, 256)
	b.SetBytes(int64(len(p)))
	for b.Loop() {
		dst = Blocks(dst[:0], p)
	}
}
