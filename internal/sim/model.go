package sim

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/shingle-store/shingle/internal/extent"
)

// model is what a file that one client has to itself may be: what is durable of it, and what was
// written since.
type model struct {
	base []byte
	log  []written
	cur  []byte
	// bad: a block of it has been lost to a fault, or could not be made durable. It is good for
	// nothing but to be replaced or deleted.
	bad bool
}

type written struct {
	off  int64
	data []byte
}

func (m *model) durable() { m.base, m.log = slices.Clone(m.cur), nil }

func (m *model) write(off int64, data []byte) {
	if len(data) == 0 {
		return
	}
	m.log = append(m.log, written{off, data})
	m.cur = overwrite(m.cur, off, data)
}

func (m *model) clone() *model {
	c := *m
	c.cur = slices.Clone(m.cur)
	c.log = slices.Clip(m.log)
	return &c
}

func overwrite(p []byte, off int64, data []byte) []byte {
	p = slices.Clone(p)
	if end := int(off) + len(data); len(data) > 0 && end > len(p) {
		p = append(p, make([]byte, end-len(p))...)
	}
	copy(p[min(int(off), len(p)):], data)
	return p
}

func zeroed(p []byte, off, end int64) []byte {
	p = slices.Clone(p)
	clear(p[min(off, int64(len(p))):min(end, int64(len(p)))])
	return p
}

func resized(p []byte, n int64) []byte {
	p = slices.Clone(p[:min(int64(len(p)), n)])
	return append(p, make([]byte, n-int64(len(p)))...)
}

func firstDifference(a, b []byte) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}

// afterCrash says why got cannot be what a crash left of the file. Its size must be the size after
// some prefix of the writes, every block as new as that prefix at least, each block one of its
// versions whole. cut, unless empty, is a range that a truncate or punch was working on: there
// older versions, and versions with a part of the range zeroed, are legal too. Nothing is said of
// the bytes from good on, which could not be read.
func (m *model) afterCrash(got []byte, size int64, cut extent.Range) error {
	prefix, at := -1, int64(len(m.base))
	for k := 0; ; k++ {
		if at == size {
			prefix = k
			break
		}
		if k == len(m.log) {
			break
		}
		at = max(at, m.log[k].off+int64(len(m.log[k].data)))
	}
	if prefix < 0 {
		history := ""
		for _, w := range m.log {
			history += fmt.Sprintf(" [%d, %d)", w.off, w.off+int64(len(w.data)))
		}
		return fmt.Errorf("size %d is of no prefix of %d writes%s after size %d", size, len(m.log), history, len(m.base))
	}
	for b := 0; b < len(got); b += extent.BlockSize {
		end := min(b+extent.BlockSize, len(got))
		if err := m.blockAfterCrash(got[b:end], int64(b), prefix, cut); err != nil {
			return err
		}
	}
	return nil
}

func (m *model) blockAfterCrash(got []byte, off int64, prefix int, cut extent.Range) error {
	v := make([]byte, extent.BlockSize)
	copy(v, m.base[min(int(off), len(m.base)):])
	inCut := extent.Range{Off: off, End: off + extent.BlockSize}.Intersect(cut).Len() > 0
	legal := func(v []byte) bool {
		if bytes.Equal(v[:len(got)], got) {
			return true
		}
		return inCut && bytes.Equal(zeroed(v, max(0, cut.Off-off), max(0, cut.End-off))[:len(got)], got)
	}
	versions, ok := 1, legal(v)
	history := fmt.Sprintf("base of %d bytes: %t", len(m.base), ok)
	for k, w := range m.log {
		from, to := max(off, w.off), min(off+extent.BlockSize, w.off+int64(len(w.data)))
		if from >= to {
			continue
		}
		copy(v[from-off:to-off], w.data[from-w.off:to-w.off])
		if k < prefix && !inCut {
			ok = false // older ones are not legal any more
		}
		versions++
		ok = ok || legal(v)
		history += fmt.Sprintf(", write %d [%d, %d): %t, differs at %d", k, w.off, w.off+int64(len(w.data)), legal(v), firstDifference(v[:len(got)], got))
	}
	if !ok {
		return fmt.Errorf("block at %d is none of its %d versions (size prefix %d of %d writes; %s; it begins % x)", off, versions, prefix, len(m.log), history, got[:min(16, len(got))])
	}
	return nil
}
