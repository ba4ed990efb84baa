package alloc

import (
	"math/bits"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// bitModel is a bitmap as one would write it down: a bool a block.
type bitModel []bool

func (b bitModel) count() (n int) {
	for _, used := range b {
		if used {
			n++
		}
	}
	return n
}

// runs returns the free runs inside of [from, to).
func (b bitModel) runs(from, to int) (out [][2]int) {
	for i := max(0, from); i < min(to, len(b)); i++ {
		if b[i] {
			continue
		}
		if k := len(out); k > 0 && out[k-1][0]+out[k-1][1] == i {
			out[k-1][1]++
		} else {
			out = append(out, [2]int{i, 1})
		}
	}
	return out
}

func (b bitModel) words() []uint64 {
	w := make([]uint64, (len(b)+63)/64)
	for i, used := range b {
		if used {
			w[i/64] |= 1 << (i % 64)
		}
	}
	return w
}

// checkRuns holds a map against the model: counts, the longest run, every answer of find that makes
// a difference, and the tree against one built anew.
func checkRuns(t *rapid.T, m *runMap, b bitModel) {
	if m.used != b.count() || m.free() != len(b)-b.count() {
		t.Fatalf("%d used, %d free; want %d of %d used", m.used, m.free(), b.count(), len(b))
	}
	longest := 0
	first := map[int]int{} // length -> where the lowest run of at least that begins
	for _, r := range b.runs(0, len(b)) {
		for n := longest + 1; n <= r[1]; n++ {
			first[n] = r[0]
		}
		longest = max(longest, r[1])
	}
	if m.longest() != longest {
		t.Fatalf("longest run %d, want %d", m.longest(), longest)
	}
	for _, n := range []int{1, 2, 3, longest / 2, longest, longest + 1} {
		if n < 1 {
			continue
		}
		at, ok := m.find(n)
		want, wantOK := first[n]
		if ok != wantOK || ok && at != want {
			t.Fatalf("find(%d) = %d %v, want %d %v", n, at, ok, want, wantOK)
		}
	}
	if m.words == nil {
		return
	}
	again := *m
	again.nodes = make([]runNode, len(m.nodes))
	again.build()
	if !slices.Equal(again.nodes, m.nodes) {
		t.Fatal("the tree is not what the bits make it")
	}
}

func TestRunMapAgainstBools(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.SampledFrom([]int{1, 2, 63, 64, 65, 511, 512, 513, 1500, 4097}).Draw(t, "blocks")
		b := make(bitModel, n)
		var m *runMap
		switch rapid.IntRange(0, 2).Draw(t, "start") {
		case 0:
			m = newRunMap(n, false)
		case 1:
			m = newRunMap(n, true)
			for i := range b {
				b[i] = true
			}
		default:
			for range rapid.IntRange(0, 8).Draw(t, "ranges") {
				at := rapid.IntRange(0, n-1).Draw(t, "at")
				for i := at; i < min(n, at+rapid.IntRange(1, n).Draw(t, "len")); i++ {
					b[i] = true
				}
			}
			words := b.words()
			if n%64 != 0 && rapid.Bool().Draw(t, "junk") {
				words[n/64] |= ^uint64(0) << (n % 64)
			}
			m = loadRunMap(n, words)
		}
		checkRuns(t, m, b)
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			at := rapid.IntRange(0, n-1).Draw(t, "at")
			k := rapid.IntRange(1, n-at).Draw(t, "len")
			if rapid.Bool().Draw(t, "short") {
				k = min(k, 3)
			}
			used := rapid.Bool().Draw(t, "used")
			want := 0
			for i := at; i < at+k; i++ {
				if b[i] != used {
					b[i] = used
					want++
				}
			}
			if got := m.set(at, k, used); got != want {
				t.Fatalf("set(%d, %d, %v) changed %d, want %d", at, k, used, got, want)
			}
			checkRuns(t, m, b)
			from, to := rapid.IntRange(0, n).Draw(t, "from"), rapid.IntRange(0, n+5).Draw(t, "to")
			least := rapid.IntRange(0, 5).Draw(t, "least")
			wantAt, wantN := min(to, n), 0
			for _, r := range b.runs(from, to) {
				if r[1] >= max(1, least) {
					wantAt, wantN = r[0], r[1]
					break
				}
			}
			if gotAt, gotN := m.next(from, to, least); gotN != wantN || wantN > 0 && gotAt != wantAt {
				t.Fatalf("next(%d, %d, %d) = %d +%d, want %d +%d", from, to, least, gotAt, gotN, wantAt, wantN)
			}
		}
	})
}

func TestLeafNode(t *testing.T) {
	full := ^uint64(0)
	for _, c := range []struct {
		words []uint64
		want  runNode
	}{
		{[]uint64{0, 0, 0, 0, 0, 0, 0, 0}, runNode{512, 512, 512}},
		{[]uint64{full, full, full, full, full, full, full, full}, runNode{0, 0, 0}},
		{[]uint64{1, 0, 0, 0, 0, 0, 0, 0}, runNode{0, 511, 511}},
		{[]uint64{0, 0, 0, 0, 0, 0, 0, 1 << 63}, runNode{511, 0, 511}},
		{[]uint64{1 << 10, full, 0, 0, full, full, full, full << 3}, runNode{10, 0, 128}},
		{[]uint64{full, 0xff00ff, full, full, full, full, full, full >> 5}, runNode{0, 5, 40}},
	} {
		if got := leafNode(c.words); got != c.want {
			t.Errorf("%x: %+v, want %+v", c.words, got, c.want)
		}
	}
	for _, w := range []uint64{0, 1, full, 1 << 63, 0xf0f0, 0x8000000000000001} {
		want, run := uint32(0), uint32(0)
		for i := range 64 {
			if w>>i&1 == 0 {
				run++
				want = max(want, run)
			} else {
				run = 0
			}
		}
		if got := longestZeros(w); got != want {
			t.Errorf("longestZeros(%x) = %d, want %d", w, got, want)
		}
	}
}

// A zone that is all alike takes no memory; the first block that differs takes it once.
func TestRunMapMemory(t *testing.T) {
	for _, used := range []bool{false, true} {
		m := newRunMap(65536, used)
		if m.set(100, 500, used) != 0 || m.words != nil {
			t.Errorf("used %v: setting what is so takes memory", used)
		}
		if m.set(7, 1, !used) != 1 || len(m.words) != 1024 || bits.OnesCount(uint(m.leaves)) != 1 {
			t.Errorf("used %v: %d words, %d leaves", used, len(m.words), m.leaves)
		}
	}
}

// BenchmarkRunMap allocates and frees single blocks in a zone of 256 MiB that is cut into runs of one
// block but for its end: the cost must not be that of the zone.
func BenchmarkRunMap(b *testing.B) {
	const n = 65536
	m := newRunMap(n, false)
	for i := 0; i < n-64; i += 2 {
		m.set(i, 1, true)
	}
	b.ReportAllocs()
	for b.Loop() {
		at, _ := m.find(8)
		m.set(at, 8, true)
		m.set(at, 8, false)
	}
}
