package alloc

import "math/bits"

// slotSet is an ordered set of slots: a bitmap under two levels of summary, so that the lowest
// and the highest member are found in three steps among up to 64^3 words' worth of slots and
// with one more word per 2^18 slots beyond.
type slotSet struct {
	levels [3][]uint64 // levels[0]: a bit a slot; levels[i+1]: a bit for each non-zero word below
	count  int
}

func newSlotSet(n int) slotSet {
	var s slotSet
	for i := range s.levels {
		n = (n + 63) / 64
		s.levels[i] = make([]uint64, n)
	}
	return s
}

// grow makes room for slots below n.
func (s *slotSet) grow(n int) {
	for i := range s.levels {
		n = (n + 63) / 64
		for len(s.levels[i]) < n {
			s.levels[i] = append(s.levels[i], 0)
		}
	}
}

func (s *slotSet) has(slot uint32) bool { return s.levels[0][slot/64]>>(slot%64)&1 != 0 }

func (s *slotSet) set(slot uint32, in bool) {
	if s.has(slot) == in {
		return
	}
	if in {
		s.count++
		for i := range s.levels {
			s.levels[i][slot/64] |= 1 << (slot % 64)
			slot /= 64
		}
		return
	}
	s.count--
	for i := range s.levels {
		s.levels[i][slot/64] &^= 1 << (slot % 64)
		if s.levels[i][slot/64] != 0 {
			return
		}
		slot /= 64
	}
}

// lowest returns the smallest member.
func (s *slotSet) lowest() (uint32, bool) {
	for w, word := range s.levels[2] {
		if word != 0 {
			at := w*64 + bits.TrailingZeros64(word)
			at = at*64 + bits.TrailingZeros64(s.levels[1][at])
			return uint32(at*64 + bits.TrailingZeros64(s.levels[0][at])), true
		}
	}
	return 0, false
}

// highest returns the greatest member.
func (s *slotSet) highest() (uint32, bool) {
	for w := len(s.levels[2]) - 1; w >= 0; w-- {
		if word := s.levels[2][w]; word != 0 {
			at := w*64 + 63 - bits.LeadingZeros64(word)
			at = at*64 + 63 - bits.LeadingZeros64(s.levels[1][at])
			return uint32(at*64 + 63 - bits.LeadingZeros64(s.levels[0][at])), true
		}
	}
	return 0, false
}
