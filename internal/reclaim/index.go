package reclaim

import (
	"slices"
	"sync"

	"github.com/shingle-store/shingle/internal/extent"
)

// Candidate is a block group that live data can be moved out of. Sizes are bytes, multiples of
// extent.BlockSize and greater than 0.
type Candidate struct {
	Slot uint32
	Live int64 // to be moved
	Dead int64 // what that gives back
}

// Share returns how much of the candidate is dead, in percent, rounded down.
func (c Candidate) Share() int { return int(c.Dead * 100 / (c.Live + c.Dead)) }

// before reports whether emptying c costs less than emptying o for what it gives back; the lower slot
// if that is the same.
func (c Candidate) before(o Candidate) bool {
	// In blocks the products stay within 64 bits for zones of up to 8 TiB.
	x := c.Live / extent.BlockSize * ((o.Live + o.Dead) / extent.BlockSize)
	y := o.Live / extent.BlockSize * ((c.Live + c.Dead) / extent.BlockSize)
	if x != y {
		return x < y
	}
	return c.Slot < o.Slot
}

// Index holds the candidates in the order of what they cost. Its methods may be called from any
// goroutine and take one mutex, for a time that grows with the logarithm of the candidates (Above
// apart); none waits for anything else.
type Index struct {
	mu    sync.Mutex
	heap  []Candidate
	at    map[uint32]int       // position in the heap
	held  map[uint32]Candidate // not to be chosen while their figures stay as they are
	dead  int64                // of the heap
	stuck int64                // dead bytes of the held
}

// NewIndex returns an empty index.
func NewIndex() *Index {
	return &Index{at: map[uint32]int{}, held: map[uint32]Candidate{}}
}

// Set says what a block group holds, in bytes. It is a candidate if movable, and if it has both live
// and dead bytes: without live ones it is reset as it is, without dead ones nothing is to be had. A
// held one whose live bytes have changed is held no longer.
func (x *Index) Set(slot uint32, live, dead int64, movable bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	c := Candidate{slot, live, dead}
	if h, ok := x.held[slot]; ok {
		delete(x.held, slot)
		x.stuck -= h.Dead
		if movable && live == h.Live && dead > 0 {
			x.held[slot] = c
			x.stuck += dead
			return
		}
	}
	x.removeLocked(slot)
	if movable && live > 0 && dead > 0 {
		x.heap = append(x.heap, c)
		x.dead += dead
		x.at[slot] = len(x.heap) - 1
		x.upLocked(len(x.heap) - 1)
	}
}

// Hold keeps a candidate from being chosen until its live bytes change: what is live in it cannot be
// moved. One that is no candidate stays none.
func (x *Index) Hold(slot uint32) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if i, ok := x.at[slot]; ok {
		c := x.heap[i]
		x.removeLocked(slot)
		x.held[slot] = c
		x.stuck += c.Dead
	}
}

// Release lets everything that is held be chosen again.
func (x *Index) Release() {
	x.mu.Lock()
	held := x.held
	x.held, x.stuck = map[uint32]Candidate{}, 0
	x.mu.Unlock()
	for slot, c := range held {
		x.Set(slot, c.Live, c.Dead, true)
	}
}

// Best returns the candidate that costs least; false if there is none.
func (x *Index) Best() (Candidate, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.heap) == 0 {
		return Candidate{}, false
	}
	return x.heap[0], true
}

// Lookup returns a candidate as it is now; false if it is none, or held.
func (x *Index) Lookup(slot uint32) (Candidate, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	i, ok := x.at[slot]
	if !ok {
		return Candidate{}, false
	}
	return x.heap[i], true
}

// Above returns the candidates of which at least share percent is dead, best first. It looks at all
// candidates: for calls by hand only.
func (x *Index) Above(share int) []Candidate {
	x.mu.Lock()
	all := slices.Clone(x.heap)
	x.mu.Unlock()
	all = slices.DeleteFunc(all, func(c Candidate) bool { return c.Share() < share })
	slices.SortFunc(all, func(a, b Candidate) int {
		if a.before(b) {
			return -1
		}
		return 1
	})
	return all
}

// Dead returns how many bytes emptying all candidates would give back, and how many are in block
// groups that are held.
func (x *Index) Dead() (movable, stuck int64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.dead, x.stuck
}

func (x *Index) removeLocked(slot uint32) {
	i, ok := x.at[slot]
	if !ok {
		return
	}
	x.dead -= x.heap[i].Dead
	last := len(x.heap) - 1
	x.swapLocked(i, last)
	x.heap = x.heap[:last]
	delete(x.at, slot)
	if i < last {
		x.downLocked(i)
		x.upLocked(i)
	}
}

func (x *Index) swapLocked(i, j int) {
	x.heap[i], x.heap[j] = x.heap[j], x.heap[i]
	x.at[x.heap[i].Slot], x.at[x.heap[j].Slot] = i, j
}

func (x *Index) upLocked(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if !x.heap[i].before(x.heap[parent]) {
			return
		}
		x.swapLocked(i, parent)
		i = parent
	}
}

func (x *Index) downLocked(i int) {
	for {
		least := i
		for _, c := range []int{2*i + 1, 2*i + 2} {
			if c < len(x.heap) && x.heap[c].before(x.heap[least]) {
				least = c
			}
		}
		if least == i {
			return
		}
		x.swapLocked(i, least)
		i = least
	}
}
