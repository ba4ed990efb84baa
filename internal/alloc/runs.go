package alloc

import "math/bits"

const (
	leafWords  = 8              // words of the bitmap under one leaf of the tree
	leafBlocks = 64 * leafWords // 512
)

// runMap is the bitmap of a conventional block group, a bit a block, with a tree over it that
// knows how long the free runs are. A free run of any length is found in one way down the tree and
// one leaf of 512 blocks, whatever the size of the zone and however it is cut up; a change costs the
// leaves it touches and the way up from them.
//
// Memory is taken with the first block that differs from the others: a zone that is all free or
// all used at open costs nothing. Then it is a bit a block for the map and 3 bytes per 64 blocks
// for the tree: 44 MiB for each TiB that is partly filled.
type runMap struct {
	blocks int // usable; the map is padded with used ones up to a whole tree
	used   int
	words  []uint64  // a set bit is a block in use; nil while all are alike
	nodes  []runNode // a binary heap: node i has the children 2i and 2i+1, node 1 is the root
	leaves int       // nodes[leaves+i] is over words[i*leafWords:]; a power of two
}

// runNode is what a part of the map looks like from outside, in blocks.
type runNode struct {
	head, tail, longest uint32 // free run at its start, at its end, the longest anywhere in it
}

// newRunMap returns a map of n > 0 blocks, all free or all used.
func newRunMap(n int, used bool) *runMap {
	m := &runMap{blocks: n}
	if used {
		m.used = n
	}
	return m
}

// loadRunMap returns a map of n > 0 blocks with the set bits of words in use. Bits past n are
// ignored, words that are missing are zero. words stays the caller's.
func loadRunMap(n int, words []uint64) *runMap {
	m := newRunMap(n, false)
	for _, w := range words[:min(len(words), (n+63)/64)] {
		m.used += bits.OnesCount64(w)
	}
	if last := n / 64; n%64 != 0 && last < len(words) {
		m.used -= bits.OnesCount64(words[last] >> (n % 64))
	}
	if m.used > 0 && m.used < n {
		m.grow()
		copy(m.words, words[:min(len(words), (n+63)/64)])
		m.pad()
		m.build()
	}
	return m
}

// free returns the number of free blocks.
func (m *runMap) free() int { return m.blocks - m.used }

// grow takes the memory, for a map whose blocks are all alike.
func (m *runMap) grow() {
	leaves := (m.blocks + leafBlocks - 1) / leafBlocks
	m.leaves = 1 << bits.Len(uint(leaves-1))
	m.words = make([]uint64, m.leaves*leafWords)
	m.nodes = make([]runNode, 2*m.leaves)
	if m.used > 0 {
		for i := range m.words {
			m.words[i] = ^uint64(0)
		}
	}
	m.pad()
	m.build()
}

// pad marks what lies past the end as used.
func (m *runMap) pad() {
	w := m.blocks / 64
	if m.blocks%64 != 0 {
		m.words[w] |= ^uint64(0) << (m.blocks % 64)
		w++
	}
	for ; w < len(m.words); w++ {
		m.words[w] = ^uint64(0)
	}
}

// build works the whole tree out.
func (m *runMap) build() {
	for i := range m.leaves {
		m.nodes[m.leaves+i] = leafNode(m.words[i*leafWords:][:leafWords])
	}
	for i, size := m.leaves-1, uint32(leafBlocks); i > 0; i-- {
		m.nodes[i] = joinNodes(m.nodes[2*i], m.nodes[2*i+1], size)
		if i&(i-1) == 0 { // the first of its level
			size *= 2
		}
	}
}

// leafNode looks at the words of one leaf.
func leafNode(words []uint64) runNode {
	n := runNode{}
	run, started := uint32(0), false // started: a used block was seen
	for _, w := range words {
		if w == 0 {
			run += 64
			continue
		}
		run += uint32(bits.TrailingZeros64(w))
		n.longest = max(n.longest, run, longestZeros(w))
		if !started {
			n.head, started = run, true
		}
		run = uint32(bits.LeadingZeros64(w))
	}
	n.tail, n.longest = run, max(n.longest, run)
	if !started {
		n.head = run
	}
	return n
}

// longestZeros returns the length of the longest run of zero bits in w.
func longestZeros(w uint64) (n uint32) {
	for x := ^w; x != 0; x &= x << 1 {
		n++
	}
	return n
}

// joinNodes joins two neighbours of size blocks each.
func joinNodes(l, r runNode, size uint32) runNode {
	n := runNode{head: l.head, tail: r.tail, longest: max(l.longest, r.longest, l.tail+r.head)}
	if l.head == size {
		n.head += r.head
	}
	if r.tail == size {
		n.tail += l.tail
	}
	return n
}

// longest returns the length of the longest free run in blocks.
func (m *runMap) longest() int {
	if m.words == nil {
		return m.free()
	}
	return int(m.nodes[1].longest)
}

// find returns where the lowest free run of at least n blocks begins; n > 0.
func (m *runMap) find(n int) (at int, ok bool) {
	if n > m.longest() {
		return 0, false
	}
	if m.words == nil {
		return 0, true
	}
	want, size := uint32(n), m.leaves*leafBlocks
	i := 1
	for i < m.leaves {
		size /= 2
		l, r := m.nodes[2*i], m.nodes[2*i+1]
		switch {
		case l.longest >= want:
			i = 2 * i
		case l.tail+r.head >= want:
			return at + size - int(l.tail), true
		default:
			i = 2*i + 1
			at += size
		}
	}
	at, _ = m.next(at, at+leafBlocks, n)
	return at, true
}

// next returns the first free run in [from, to) of at least least blocks: where it begins and how
// long it is inside of [from, to); 0 if there is none. It looks at every word on the way.
func (m *runMap) next(from, to, least int) (at, n int) {
	from, to = max(from, 0), min(to, m.blocks)
	for from < to {
		at = m.seek(from, to, 0)
		end := m.seek(at, to, ^uint64(0))
		if end-at >= max(1, least) {
			return at, end - at
		}
		from = end
	}
	return to, 0
}

// seek returns the first block in [from, to) that is free (flip 0) or used (flip all ones), or to.
func (m *runMap) seek(from, to int, flip uint64) int {
	if m.words == nil {
		if free := m.used == 0; free == (flip == 0) {
			return from
		}
		return to
	}
	for from < to {
		if w := ^(m.words[from/64] ^ flip) >> (from % 64); w != 0 {
			return min(to, from+bits.TrailingZeros64(w))
		}
		from = (from/64 + 1) * 64
	}
	return to
}

// set makes the blocks [at, at+n) used or free and returns how many of them were not yet. The range
// lies in the map.
func (m *runMap) set(at, n int, used bool) (changed int) {
	if n <= 0 || m.words == nil && m.uniform(used) {
		return 0
	}
	if m.words == nil {
		m.grow()
	}
	for from, end := at, at+n; from < end; {
		w, lo := from/64, from%64
		k := min(64-lo, end-from)
		mask := ^uint64(0) >> (64 - k) << lo
		old := m.words[w]
		if used {
			m.words[w] |= mask
		} else {
			m.words[w] &^= mask
		}
		changed += bits.OnesCount64(old ^ m.words[w])
		from += k
	}
	if used {
		m.used += changed
	} else {
		m.used -= changed
	}
	m.update(at/leafBlocks, (at+n-1)/leafBlocks)
	return changed
}

// uniform reports whether all blocks are of the kind, for a map without memory.
func (m *runMap) uniform(used bool) bool {
	if used {
		return m.used == m.blocks
	}
	return m.used == 0
}

// update brings the tree up to date over leaves [first, last].
func (m *runMap) update(first, last int) {
	for i := first; i <= last; i++ {
		m.nodes[m.leaves+i] = leafNode(m.words[i*leafWords:][:leafWords])
	}
	size := uint32(leafBlocks)
	for lo, hi := (m.leaves+first)/2, (m.leaves+last)/2; lo > 0; lo, hi = lo/2, hi/2 {
		for i := lo; i <= hi; i++ {
			m.nodes[i] = joinNodes(m.nodes[2*i], m.nodes[2*i+1], size)
		}
		size *= 2
	}
}
