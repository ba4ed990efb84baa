package compress

import (
	"fmt"
	"math/rand"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// text returns n bytes that compress about as well as source code.
func text(seed int64, n int) []byte {
	rng := rand.New(rand.NewSource(seed))
	words := make([]string, 400)
	for i := range words {
		w := make([]byte, 2+rng.Intn(9))
		for j := range w {
			w[j] = "etaoinshrdlucmfwypvbgkjqxz"[min(25, int(rng.ExpFloat64()*6))]
		}
		words[i] = string(w)
	}
	var p []byte
	for len(p) < n {
		p = fmt.Append(p, words[min(399, int(rng.ExpFloat64()*60))], " ")
		if rng.Intn(12) == 0 {
			p = fmt.Appendf(p, "%d\n", rng.Intn(1<<20))
		}
	}
	return p[:n]
}

// noise returns n bytes that do not compress.
func noise(seed int64, n int) []byte {
	p := make([]byte, n)
	rand.New(rand.NewSource(seed)).Read(p)
	return p
}

// mixed returns n bytes of text, noise and zeros in stretches.
func mixed(seed int64, n int) []byte {
	rng := rand.New(rand.NewSource(seed))
	p := make([]byte, 0, n)
	for len(p) < n {
		k := min(n-len(p), 1+rng.Intn(200<<10))
		switch rng.Intn(3) {
		case 0:
			p = append(p, text(rng.Int63(), k)...)
		case 1:
			p = append(p, noise(rng.Int63(), k)...)
		case 2:
			p = append(p, make([]byte, k)...)
		}
	}
	return p
}
