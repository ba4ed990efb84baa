package csum

import (
	"hash/crc32"

	"github.com/shingle-store/shingle/internal/extent"
)

// A crc is a polynomial over GF(2) modulo the Castagnoli polynomial, bit-reversed: the top
// bit is the coefficient of x^0. Appending n bytes multiplies it by x^(8n); the rest of
// Combine is addition. The method is that of zlib's crc32_combine.
const one = uint32(1) << 31

// powers[k] is x^(2^k). An int64 count of bytes has 63 bits and 3 more make it bits. (The
// order of x is 2^31-1 here, so zlib's trick of a table of 32 used in turn would be wrong.)
var powers = func() (t [66]uint32) {
	t[0] = one >> 1
	for k := 1; k < len(t); k++ {
		t[k] = multiply(t[k-1], t[k-1])
	}
	return t
}()

// afterBlock[i][b] is the effect of one block of bytes on a crc whose byte i is b.
var afterBlock = func() (t [4][256]uint32) {
	op := shift(extent.BlockSize)
	for i := range t {
		for b := range t[i] {
			t[i][b] = multiply(op, uint32(b)<<(8*i))
		}
	}
	return t
}()

// multiply returns a*b modulo the polynomial.
func multiply(a, b uint32) uint32 {
	var p uint32
	for m := one; m != 0 && a&(m|(m-1)) != 0; m >>= 1 {
		if a&m != 0 {
			p ^= b
		}
		carry := b & 1
		b >>= 1
		if carry != 0 {
			b ^= crc32.Castagnoli
		}
	}
	return p
}

// shift returns x^(8n).
func shift(n int64) uint32 {
	p := one
	for k := 3; n > 0; k, n = k+1, n>>1 {
		if n&1 != 0 {
			p = multiply(powers[k], p)
		}
	}
	return p
}

// Combine returns the crc32c of A followed by B, where crc1 is that of A, crc2 that of B, and
// len2 >= 0 the length of B in bytes. With len2 equal to the block it is four look-ups; else
// it costs some hundreds of nanoseconds, growing with the logarithm of len2.
func Combine(crc1, crc2 uint32, len2 int64) uint32 {
	if len2 == extent.BlockSize {
		return afterBlock[0][byte(crc1)] ^ afterBlock[1][byte(crc1>>8)] ^
			afterBlock[2][byte(crc1>>16)] ^ afterBlock[3][crc1>>24] ^ crc2
	}
	return multiply(shift(len2), crc1) ^ crc2
}
