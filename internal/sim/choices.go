package sim

import "math/rand/v2"

// Choices is where every decision of a run comes from, as numbers in steps. They are drawn from a
// seed and recorded, or read from a record: then each number is taken modulo what is asked for, and
// 0 where the record has no more, so that a record from which something was cut still means something.
// 0 is the mildest of any choice. Not for use by several goroutines.
type Choices struct {
	rng   *rand.Rand // nil: from given
	given [][]uint64
	taken [][]uint64
	next  int // in the given step
}

// Fresh draws from a seed.
func Fresh(seed uint64) *Choices { return &Choices{rng: rand.New(rand.NewPCG(seed, 0x51319))} }

// Replay reads steps recorded by Steps; they stay the caller's.
func Replay(steps [][]uint64) *Choices { return &Choices{given: steps} }

// Step begins the next step; false means that the record has no more.
func (c *Choices) Step() bool {
	if c.rng == nil && len(c.taken) >= len(c.given) {
		return false
	}
	c.taken = append(c.taken, nil)
	c.next = 0
	return true
}

// Steps returns what was chosen so far.
func (c *Choices) Steps() [][]uint64 { return c.taken }

// number returns a choice in [0, n); n = 0 stands for any number.
func (c *Choices) number(n uint64) uint64 {
	var v uint64
	if c.rng != nil {
		v = c.rng.Uint64()
		if n > 0 {
			v %= n // small numbers make small records; the bias is nothing
		}
	} else if i := len(c.taken) - 1; i >= 0 && i < len(c.given) && c.next < len(c.given[i]) {
		v = c.given[i][c.next]
		if n > 0 {
			v %= n
		}
	}
	c.next++
	if i := len(c.taken) - 1; i >= 0 {
		c.taken[i] = append(c.taken[i], v)
	}
	return v
}

// Below returns a choice in [0, n); n is at least 1.
func (c *Choices) Below(n int) int { return int(c.number(uint64(n))) }

// Seed returns the seed of a stream of choices that are not recorded one by one.
func (c *Choices) Seed() uint64 { return c.number(1 << 32) }

// Rarely is true once in n times.
func (c *Choices) Rarely(n int) bool { return c.Below(n) == n-1 }

// pick returns one of the choices, the first being the mildest.
func pick[T any](c *Choices, of ...T) T { return of[c.Below(len(of))] }
