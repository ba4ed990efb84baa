package sim

import (
	"encoding/binary"
	"math/rand/v2"

	"github.com/shingle-store/shingle/internal/extent"
)

var words = []string{"zone ", "write ", "pointer ", "extent ", "block ", "group ", "scrub ", "trim ", "append ", "\n"}

// content returns n bytes that are the same for the same seed; those of even seeds compress well.
func content(seed uint64, n int) []byte {
	r := rand.New(rand.NewPCG(seed, 1))
	if seed%2 == 1 {
		p := make([]byte, 0, n+8)
		for len(p) < n {
			p = binary.LittleEndian.AppendUint64(p, r.Uint64())
		}
		return p[:n]
	}
	p := make([]byte, 0, n+16)
	for len(p) < n {
		p = append(p, words[r.IntN(len(words))]...)
	}
	return p[:n]
}

// tagged returns a block that names the write it comes from and is good as a whole or not at all.
func tagged(tag uint64) []byte {
	p := content(tag, extent.BlockSize)
	binary.LittleEndian.PutUint64(p, tag)
	return p
}
